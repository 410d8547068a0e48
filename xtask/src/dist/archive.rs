// SPDX-License-Identifier: Apache-2.0
//! Trees of files, and tar archives of them with the same bytes in every run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::DistRelease;
use super::files::PackagedFile;
use crate::{TaskError, TaskResult, process};

/// Copies files to their places below `directory`.
pub fn stage(files: &[PackagedFile], directory: &Path) -> TaskResult {
    for PackagedFile { source, destination, mode } in files {
        let path = directory.join(destination);
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        fs::copy(source, &path).map_err(|error| {
            TaskError(format!("cannot copy {} to {}: {error}", source.display(), path.display()))
        })?;
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
    }
    Ok(())
}

/// Writes `names` in `directory` as a tar archive: sorted, of root, with the time of the commit.
pub fn tar(directory: &Path, names: &[&str], archive: &Path, release: &DistRelease) -> TaskResult {
    let mut command = Command::new("tar");
    command.args(["--create", "--sort=name", "--format=gnu", "--numeric-owner"]);
    command.args(["--owner=0", "--group=0", "--mode=u+rwX,go+rX,go-w"]);
    command.arg(format!("--mtime=@{}", release.epoch)).arg("--file").arg(archive);
    command.arg("--directory").arg(directory).args(names).env("LC_ALL", "C");
    process::run(&mut command)
}

/// Compresses a file; the result has `.gz` after its name. Without -n it would have the time of this run.
pub fn gzip(path: &Path) -> TaskResult {
    process::run(Command::new("gzip").args(["-9", "-n", "--force"]).arg(path))
}

/// The sums of files in a directory, in the format of sha256sum(1).
pub fn sha256_lines(directory: &Path, names: &[String]) -> Result<String, TaskError> {
    let text = process::text(Command::new("sha256sum").args(names).current_dir(directory))?;
    Ok(text + "\n")
}

/// The SHA-256 sum of a file in hexadecimal digits.
pub fn sha256(directory: &Path, name: &str) -> Result<String, TaskError> {
    let line = sha256_lines(directory, &[name.to_owned()])?;
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}
