// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask dist --verify`: builds a second time in another directory, and compares all files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{DistRelease, SUMS, sbom, target_directory};
use crate::{TaskError, TaskResult, build, process};

/// Builds a copy of the repository, and fails if a file differs from that in `out`.
pub fn run(out: &Path, release: &DistRelease) -> TaskResult {
    // Another length of the path too: a path in a program would move everything behind it.
    let copy = target_directory()?.join("dist-verify/a-copy-in-another-directory");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy)?;
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet", "--no-hardlinks"]).args([&build::root(), &copy]);
    process::run(&mut clone)?;
    // Changes that are not committed are a part of the first build.
    sbom::copy_sources(&copy)?;
    let second = copy.join("target/dist");
    process::run(
        build::cargo()
            .args(["xtask", "dist", "--version", &release.version, "--out"])
            .arg(&second)
            .env("CARGO_TARGET_DIR", copy.join("target"))
            .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
            .current_dir(&copy)
            .stdout(Stdio::null()),
    )?;
    compare(out, &second)?;
    fs::remove_dir_all(&copy)?;
    eprintln!("xtask: a second build in another directory has the same bytes");
    Ok(())
}

/// Fails with the names of the files that differ. Both builds stay for `cmp` and `diffoscope`.
fn compare(first: &Path, second: &Path) -> TaskResult {
    let sums = |directory: &Path| fs::read_to_string(directory.join(SUMS));
    let (ours, theirs) = (sums(first)?, sums(second)?);
    let (ours, theirs): (BTreeSet<&str>, BTreeSet<&str>) =
        (ours.lines().collect(), theirs.lines().collect());
    let lines = ours.symmetric_difference(&theirs);
    let names: BTreeSet<&str> = lines.filter_map(|line| line.split_whitespace().nth(1)).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(TaskError(format!(
        "a second build has other bytes: {names:?}\n  hint: compare the files in {} and {}",
        first.display(),
        second.display()
    )))
}
