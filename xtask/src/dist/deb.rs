// SPDX-License-Identifier: Apache-2.0
//! Debian packages, made by cargo-deb from a generated manifest.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::DistRelease;
use super::files::{self, Inputs, Layout, Package, PackagedFile};
use crate::{TaskError, build, provision};

/// How much time compression takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// gzip, for tests.
    Fast,
    /// xz, for packages that are shipped.
    Small,
}

/// Makes the Debian package in `out`; returns its path.
pub fn make(
    package: Package,
    inputs: &Inputs,
    release: &DistRelease,
    compression: Compression,
    work: &Path,
    out: &Path,
) -> Result<PathBuf, TaskError> {
    let name = package.name();
    let directory = work.join("deb").join(name);
    fs::create_dir_all(&directory)?;
    let files = files::files(package, Layout::Debian, inputs)?;
    let manifest = directory.join("Cargo.toml");
    build::write(&manifest, manifest_text(package, &files, inputs, release)?.as_bytes())?;
    build::write(&directory.join("lib.rs"), b"")?;
    let path = out.join(format!("{name}_{}-1_amd64.deb", release.version));
    let mut command = std::process::Command::new(provision::cargo_deb()?);
    command.args(["--no-build", "--no-strip", "--no-dbgsym", "--quiet", "--compress-system"]);
    match compression {
        Compression::Fast => command.args(["--fast", "-Z", "gz"]),
        Compression::Small => command.args(["-Z", "xz"]),
    };
    command.arg("--manifest-path").arg(&manifest).arg("--output").arg(&path);
    command.args(["--target", super::X86_64]);
    command.env("SOURCE_DATE_EPOCH", release.epoch.to_string()).current_dir(&directory);
    // cargo-deb must not write into the target directory of the project.
    command.env("CARGO_TARGET_DIR", directory.join("target"));
    // It prints the path of the package, which would stand before the JSON of `dist --json`.
    command.stdout(std::process::Stdio::null());
    if command.status()?.success() {
        return Ok(path);
    }
    Err(TaskError(format!(
        "cannot make the Debian package {name}\n  hint: the manifest for cargo-deb is {}",
        manifest.display()
    )))
}

/// The manifest that cargo-deb reads: the fields of `packaging/deb/NAME/control.toml` and the list of files.
fn manifest_text(
    package: Package,
    files: &[PackagedFile],
    inputs: &Inputs,
    release: &DistRelease,
) -> Result<String, TaskError> {
    let name = package.name();
    let scripts = build::root().join("packaging/deb").join(name);
    let fields = fs::read_to_string(scripts.join("control.toml"))?;
    let changelog = inputs.generated.join(format!("{name}.changelog"));
    let mut text = format!(
        "[workspace]\n\n[package]\nname = \"{name}\"\nversion = \"{}\"\nedition = \"2024\"\nlicense = \"Apache-2.0\"\n\
         description = \"{}\"\n\n[lib]\npath = \"lib.rs\"\n\n[package.metadata.deb]\n{fields}\
         maintainer-scripts = \"{}\"\nchangelog = \"{}\"\n",
        release.version,
        package.summary(),
        scripts.display(),
        changelog.display(),
    );
    let triggers = scripts.join("triggers");
    if triggers.exists() {
        let _ = writeln!(text, "triggers-file = \"{}\"", triggers.display());
    }
    let configuration = files.iter().filter(|file| file.destination.starts_with("etc/"));
    let configuration: Vec<String> =
        configuration.map(|file| format!("/{}", file.destination)).collect();
    let _ = writeln!(text, "conf-files = {configuration:?}\nassets = [");
    for PackagedFile { source, destination, mode } in files {
        let source = source.display();
        let _ = writeln!(text, "  [\"{source}\", \"{destination}\", \"{mode:o}\"],");
    }
    text.push_str("]\n");
    Ok(text)
}
