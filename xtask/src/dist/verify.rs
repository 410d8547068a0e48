// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask dist --verify`: builds a second time in another directory, and compares all files.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{DistRelease, sbom};
use crate::{TaskError, TaskResult, build};

/// Builds a copy of the repository, and fails if a file differs from that in `out`.
pub fn run(out: &Path, release: &DistRelease) -> TaskResult {
    let target = std::path::absolute(build::target_directory())?;
    // Another length of the path too: a path in a program would move everything behind it.
    let copy = target.join("dist-verify/a-copy-in-another-directory");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy)?;
    let status = Command::new("git")
        .args(["clone", "--quiet", "--no-hardlinks"])
        .args([build::root(), copy.clone()])
        .status()?;
    if !status.success() {
        return Err(TaskError(format!("cannot clone the repository to {}", copy.display())));
    }
    // Changes that are not committed are a part of the first build.
    sbom::copy_sources(&copy)?;
    let second = copy.join("target/dist");
    // The tools of the first build, so that they are not built again.
    let mut path = vec![target.join("tools/bin")];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["xtask", "dist", "--version", &release.version, "--out"])
        .arg(&second)
        .env("PATH", std::env::join_paths(path)?)
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .current_dir(&copy)
        .stdout(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        return Err(TaskError(format!("the second build in {} failed", copy.display())));
    }
    compare(out, &second)?;
    fs::remove_dir_all(&copy)?;
    eprintln!("xtask: a second build in another directory has the same bytes");
    Ok(())
}

/// Fails with the names of the files that differ. Both builds stay for `cmp` and `diffoscope`.
fn compare(first: &Path, second: &Path) -> TaskResult {
    let sums = |directory: &Path| -> Result<Vec<String>, TaskError> {
        let text = fs::read_to_string(directory.join("SHA256SUMS"))?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let (ours, theirs) = (sums(first)?, sums(second)?);
    let name = |line: &&String| line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let mut different: Vec<String> =
        ours.iter().filter(|line| !theirs.contains(line)).map(|line| name(&line)).collect();
    different.extend(theirs.iter().filter(|line| !ours.contains(line)).map(|line| name(&line)));
    different.sort();
    different.dedup();
    if different.is_empty() {
        return Ok(());
    }
    Err(TaskError(format!(
        "a second build has other bytes: {}\n  hint: compare the files in {} and {}",
        different.join(", "),
        first.display(),
        second.display()
    )))
}
