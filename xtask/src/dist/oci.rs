// SPDX-License-Identifier: Apache-2.0
//! An OCI image from scratch: one layer with the static program, as an OCI layout in a tar archive.
//!
//! `docs/guides/install.md` has the mounts and namespaces that a container needs.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::files::{CONFIG, CONFIG_SOURCE, PackagedFile};
use super::{DistInputs, DistRelease, archive};
use crate::{TaskError, TaskResult, build};

/// Writes the image; returns its name.
pub fn make(inputs: &DistInputs) -> Result<String, TaskError> {
    let release = &inputs.release;
    let work = inputs.work.join("oci");
    let layout = work.join("layout");
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    let layer = work.join("layer.tar");
    write_layer(inputs, &work.join("tree"), &layer)?;
    // The configuration has the sum of the archive, the manifest that of the compressed archive.
    let diff_id = format!("sha256:{}", archive::sha256(&work, "layer.tar")?);
    archive::gzip(&layer)?;
    let layer = blob(&layout, &fs::read(work.join("layer.tar.gz"))?, LAYER_TYPE)?;
    let config = config(release, &diff_id)?;
    let config = blob(&layout, config.to_string().as_bytes(), CONFIG_TYPE)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config,
        "layers": [layer],
        "annotations": annotations(release)?,
    });
    let mut manifest = blob(&layout, manifest.to_string().as_bytes(), MANIFEST_TYPE)?;
    manifest["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    let name = format!("vipwatch:{}", release.version);
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    build::write(&layout.join("index.json"), index.to_string().as_bytes())?;
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    build::write(&layout.join("oci-layout"), version.to_string().as_bytes())?;
    let name = format!("vipwatch-{}-oci.tar", release.version);
    let names = ["blobs", "index.json", "oci-layout"];
    archive::tar(&layout, &names, &inputs.out.join(&name), release)?;
    Ok(name)
}

const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The files of the image: the program, its configuration, the licences, and empty directories for mounts.
fn write_layer(inputs: &DistInputs, tree: &Path, layer: &Path) -> TaskResult {
    let root = build::root();
    let licenses = inputs.generated.join("vipwatch.licenses.gz");
    let files = [
        PackagedFile::new(inputs.vipwatch.clone(), "usr/bin/vipwatch")?,
        PackagedFile::new(root.join(CONFIG_SOURCE), CONFIG)?,
        PackagedFile::new(root.join("LICENSE"), "usr/share/doc/vipwatch/LICENSE")?,
        PackagedFile::new(root.join("NOTICE"), "usr/share/doc/vipwatch/NOTICE")?,
        PackagedFile::new(licenses, "usr/share/doc/vipwatch/third-party-licenses.gz")?,
    ];
    archive::stage(&files, tree)?;
    for directory in ["run/vipwatch", "run/netns", "var/lib/vipwatch", "tmp"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    archive::tar(tree, &["etc", "run", "tmp", "usr", "var"], layer, &inputs.release)
}

/// The configuration of the image.
fn config(release: &DistRelease, diff_id: &str) -> Result<Value, TaskError> {
    Ok(json!({
        "created": created(release)?,
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
        "history": [{ "created": created(release)?, "created_by": "cargo xtask dist" }],
    }))
}

/// The predefined annotations of the OCI specification, which are the labels of the image too.
fn annotations(release: &DistRelease) -> Result<Value, TaskError> {
    Ok(json!({
        "org.opencontainers.image.title": "vipwatch",
        "org.opencontainers.image.description": "Follows every virtual address of a machine",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
        "org.opencontainers.image.created": created(release)?,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }))
}

/// Stores a blob in the layout; returns its descriptor.
fn blob(layout: &Path, content: &[u8], media_type: &str) -> Result<Value, TaskError> {
    let blobs = layout.join("blobs");
    build::write(&blobs.join("scratch"), content)?;
    let sum = archive::sha256(&blobs, "scratch")?;
    fs::rename(blobs.join("scratch"), blobs.join("sha256").join(&sum))?;
    let digest = format!("sha256:{sum}");
    Ok(json!({ "mediaType": media_type, "digest": digest, "size": content.len() }))
}

/// The time of the commit as `2026-11-17T12:00:00Z`.
fn created(release: &DistRelease) -> Result<String, TaskError> {
    release.date("+%Y-%m-%dT%H:%M:%SZ")
}
