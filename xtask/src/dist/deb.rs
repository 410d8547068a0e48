// SPDX-License-Identifier: Apache-2.0
//! Debian packages, made by cargo-deb from a generated manifest.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use super::files::{self, Layout, Package, PackagedFile};
use super::{DistInputs, Extent};
use crate::{TaskError, build, process, provision};

/// Makes the Debian package; returns its name. Packages for tests are compressed quickly.
pub fn make(package: &Package, inputs: &DistInputs, extent: Extent) -> Result<String, TaskError> {
    let directory = inputs.work.join("deb").join(package.name);
    fs::create_dir_all(&directory)?;
    let files = files::files(package, Layout::Debian, inputs)?;
    let manifest = directory.join("Cargo.toml");
    build::write(&manifest, manifest_text(package, &files, inputs)?.as_bytes())?;
    build::write(&directory.join("lib.rs"), b"")?;
    let name = format!("{}_{}-1_amd64.deb", package.name, inputs.release.version);
    let mut command = Command::new(provision::cargo_deb()?);
    command.args(["--no-build", "--no-strip", "--no-dbgsym", "--quiet", "--compress-system"]);
    match extent {
        Extent::Quick => command.args(["--fast", "-Z", "gz"]),
        Extent::Full => command.args(["-Z", "xz"]),
    };
    command.arg("--manifest-path").arg(&manifest).arg("--output").arg(inputs.out.join(&name));
    command.args(["--target", super::X86_64]).current_dir(&directory);
    command.env("SOURCE_DATE_EPOCH", inputs.release.epoch.to_string());
    // cargo-deb must not write into the target directory of the project.
    command.env("CARGO_TARGET_DIR", directory.join("target"));
    process::output(&mut command)?;
    Ok(name)
}

/// The manifest that cargo-deb reads: the fields of `packaging/deb/NAME/control.toml` and the list of files.
fn manifest_text(
    package: &Package,
    files: &[PackagedFile],
    inputs: &DistInputs,
) -> Result<String, TaskError> {
    let name = package.name;
    let scripts = build::root().join("packaging/deb").join(name);
    let fields = fs::read_to_string(scripts.join("control.toml"))?;
    let changelog = inputs.generated.join(format!("{name}.changelog"));
    let mut text = format!(
        "[workspace]\n\n[package]\nname = \"{name}\"\nversion = \"{}\"\nedition = \"2024\"\nlicense = \"Apache-2.0\"\n\
         description = \"{}\"\n\n[lib]\npath = \"lib.rs\"\n\n[package.metadata.deb]\n{fields}\
         maintainer-scripts = \"{}\"\nchangelog = \"{}\"\n",
        inputs.release.version,
        package.summary,
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
