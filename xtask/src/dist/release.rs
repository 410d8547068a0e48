// SPDX-License-Identifier: Apache-2.0
//! The version, the time and the commit that the packages carry.

use std::process::Command;

use crate::{TaskError, build, process};

/// Facts about the build that do not depend on the machine.
pub struct DistRelease {
    pub version: String,
    /// The time of the commit, in seconds since 1970. All files in the packages have it.
    pub epoch: u64,
    /// The hash of the commit; empty outside of a git clone.
    pub commit: String,
}

impl DistRelease {
    /// Reads `SOURCE_DATE_EPOCH`, or the time of the newest commit.
    pub fn new(version: &str) -> Result<Self, TaskError> {
        let time = std::env::var("SOURCE_DATE_EPOCH");
        let time = time.unwrap_or_else(|_| git(&["log", "-1", "--format=%ct"]));
        let epoch = time.trim().parse().map_err(|error| {
            TaskError(format!(
                "cannot read the time of the commit ({error})\n  hint: outside of a git clone, set SOURCE_DATE_EPOCH \
                 to a number of seconds"
            ))
        })?;
        let commit = git(&["rev-parse", "HEAD"]);
        Ok(Self { version: version.to_owned(), epoch, commit })
    }

    /// The time as date(1) writes it with these options.
    pub fn date(&self, format: &str) -> Result<String, TaskError> {
        let time = format!("--date=@{}", self.epoch);
        process::text(Command::new("date").args(["--utc", &time, format]).env("LC_ALL", "C"))
    }
}

/// The output of git; empty if it fails.
fn git(args: &[&str]) -> String {
    process::text(Command::new("git").args(args).current_dir(build::root())).unwrap_or_default()
}
