// SPDX-License-Identifier: Apache-2.0
//! RPMs, made by rpmbuild from the spec files in `packaging/rpm`. cargo-generate-rpm cannot be used: it has no triggers,
//! with which the package for Neutron follows Neutron's own package.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::files::{self, Layout, Package, PackagedFile};
use super::{DistInputs, archive};
use crate::{TaskError, TaskResult, build, process};

/// Makes the RPM; returns its name.
pub fn make(package: &Package, inputs: &DistInputs) -> Result<String, TaskError> {
    let (name, release) = (package.name, &inputs.release);
    let directory = inputs.work.join("rpm").join(name);
    let tree = directory.join("tree");
    fs::create_dir_all(&tree)?;
    let mut files = files::files(package, Layout::Merged, inputs)?;
    archive::stage(&files, &tree)?;
    compress_manual_pages(&mut files, &tree)?;
    build::write(&directory.join("files"), file_list(&files).as_bytes())?;
    let sources = build::root().join("packaging/rpm");
    let mut command = Command::new("rpmbuild");
    command.args(["-bb", "--quiet", "--target", "x86_64-linux"]);
    let defines = [
        ("_topdir", directory.join("build").display().to_string()),
        ("_rpmdir", inputs.out.display().to_string()),
        ("_rpmfilename", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm".to_owned()),
        ("vipwatch_version", release.version.clone()),
        ("vipwatch_tree", tree.display().to_string()),
        ("vipwatch_files", directory.join("files").display().to_string()),
        ("packager", super::MAINTAINER.to_owned()),
        // The same bytes on every machine, and no changes of the programs.
        ("_buildhost", "vipwatch".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
        ("source_date_epoch_from_changelog", "0".to_owned()),
        ("_build_id_links", "none".to_owned()),
        ("debug_package", "%{nil}".to_owned()),
        ("__os_install_post", "%{nil}".to_owned()),
        ("_binary_payload", "w7.xzdio".to_owned()),
    ];
    for (key, value) in defines {
        command.arg("--define").arg(format!("{key} {value}"));
    }
    command.arg(sources.join(format!("{name}.spec")));
    command.env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    process::output(&mut command)?;
    Ok(format!("{name}-{}-1.x86_64.rpm", release.version))
}

/// Compresses the manual pages in `tree`, as rpmbuild of a distribution does, and changes their names in `files`.
fn compress_manual_pages(files: &mut [PackagedFile], tree: &Path) -> TaskResult {
    for file in files.iter_mut().filter(|file| file.destination.starts_with("usr/share/man/")) {
        archive::gzip(&tree.join(&file.destination))?;
        file.destination.push_str(".gz");
    }
    Ok(())
}

/// The list of files for rpmbuild, with the kind of each file.
fn file_list(files: &[PackagedFile]) -> String {
    let mut list = String::new();
    for PackagedFile { destination, mode, .. } in files {
        let kind = match destination.as_str() {
            path if path.starts_with("etc/") => "%config(noreplace) ",
            path if path.starts_with("usr/share/licenses/") => "%license ",
            path if path.starts_with("usr/share/doc/") => "%doc ",
            _ => "",
        };
        let _ = writeln!(list, "%attr({mode:o},root,root) {kind}\"/{destination}\"");
    }
    list
}
