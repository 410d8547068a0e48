// SPDX-License-Identifier: Apache-2.0
//! An OCI image from scratch: one layer with the static program, as an OCI layout in a tar archive.
//!
//! `docs/guides/install.md` has the mounts and namespaces that a container needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::files::{CONFIG, Inputs, PackagedFile};
use super::{DistRelease, archive, files};
use crate::{TaskError, build};

/// Writes the image to `out`; returns its path.
pub fn make(
    inputs: &Inputs,
    release: &DistRelease,
    work: &Path,
    out: &Path,
) -> Result<PathBuf, TaskError> {
    let layout = work.join("oci/layout");
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    let layer = work.join("oci/layer.tar");
    write_layer(inputs, release, work, &layer)?;
    // The configuration has the sum of the archive, the manifest that of the compressed archive.
    let diff_id = format!("sha256:{}", archive::sha256(&layer)?);
    archive::gzip(&layer)?;
    let layer = blob(&layout, &fs::read(layer.with_extension("tar.gz"))?, LAYER_TYPE)?;
    let config = blob(&layout, &bytes(&config(release, &diff_id)?)?, CONFIG_TYPE)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config,
        "layers": [layer],
        "annotations": annotations(release)?,
    });
    let mut manifest = blob(&layout, &bytes(&manifest)?, MANIFEST_TYPE)?;
    manifest["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    let name = format!("vipwatch:{}", release.version);
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    build::write(&layout.join("index.json"), &bytes(&index)?)?;
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    build::write(&layout.join("oci-layout"), &bytes(&version)?)?;
    let path = out.join(format!("vipwatch-{}-oci.tar", release.version));
    archive::tar(&layout, &["blobs", "index.json", "oci-layout"], &path, release)?;
    Ok(path)
}

const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The files of the image: the program, its configuration, the licences, and empty directories for mounts.
fn write_layer(
    inputs: &Inputs,
    release: &DistRelease,
    work: &Path,
    layer: &Path,
) -> Result<(), TaskError> {
    let tree = work.join("oci/tree");
    let file = |source: &Path, destination: &str, mode| PackagedFile {
        source: source.to_owned(),
        destination: destination.to_owned(),
        mode,
    };
    let root = build::root();
    let files = [
        file(&inputs.vipwatch, "usr/bin/vipwatch", 0o755),
        file(&files::config(), CONFIG, 0o644),
        file(&root.join("LICENSE"), "usr/share/doc/vipwatch/LICENSE", 0o644),
        file(&root.join("NOTICE"), "usr/share/doc/vipwatch/NOTICE", 0o644),
        file(
            &inputs.generated.join("vipwatch.licenses.gz"),
            "usr/share/doc/vipwatch/third-party-licenses.gz",
            0o644,
        ),
    ];
    archive::stage(&files, &tree)?;
    for directory in ["run/vipwatch", "run/netns", "var/lib/vipwatch", "tmp"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    archive::tar(&tree, &["etc", "run", "tmp", "usr", "var"], layer, release)
}

/// The configuration of the image.
fn config(release: &DistRelease, diff_id: &str) -> Result<Value, TaskError> {
    Ok(json!({
        "created": rfc3339(release.epoch)?,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": "0:0",
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/vipwatch"],
            "Cmd": ["node"],
            "WorkingDir": "/",
            "Volumes": { "/var/lib/vipwatch": {} },
            "Labels": annotations(release)?,
            "StopSignal": "SIGTERM",
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        "history": [{ "created": rfc3339(release.epoch)?, "created_by": "cargo xtask dist" }],
    }))
}

/// The predefined annotations of the OCI specification, which are the labels of the image too.
fn annotations(release: &DistRelease) -> Result<Value, TaskError> {
    Ok(json!({
        "org.opencontainers.image.title": "vipwatch",
        "org.opencontainers.image.description": "Follows every virtual address of a machine",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
        "org.opencontainers.image.created": rfc3339(release.epoch)?,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }))
}

/// Stores a blob in the layout; returns its descriptor.
fn blob(layout: &Path, content: &[u8], media_type: &str) -> Result<Value, TaskError> {
    let scratch = layout.join("blobs/scratch");
    build::write(&scratch, content)?;
    let sum = archive::sha256(&scratch)?;
    fs::rename(scratch, layout.join("blobs/sha256").join(&sum))?;
    let digest = format!("sha256:{sum}");
    Ok(json!({ "mediaType": media_type, "digest": digest, "size": content.len() }))
}

fn bytes(value: &Value) -> Result<Vec<u8>, TaskError> {
    Ok(serde_json::to_vec(value)?)
}

/// A time of the commit as `2026-11-17T12:00:00Z`.
fn rfc3339(epoch: u64) -> Result<String, TaskError> {
    let date = format!("--date=@{epoch}");
    let output = Command::new("date").args(["--utc", &date, "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
