// SPDX-License-Identifier: Apache-2.0
//! The log file: one line for each step, so that an operator can see later what was done and when.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vipwatch_core::escape_untrusted;
use vipwatch_linux::clock;

/// The log cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the log file {}", path.display())]
pub(crate) struct SwitchLogError {
    path: PathBuf,
    source: io::Error,
}

/// The open log.
#[derive(Debug)]
pub(crate) struct SwitchLog {
    path: PathBuf,
    file: File,
}

impl SwitchLog {
    /// Opens the log to append to it; its directory is created if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self, SwitchLogError> {
        let failed = |source| SwitchLogError { path: path.to_owned(), source };
        if let Some(directory) = path.parent() {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o755).create(directory).map_err(failed)?;
        }
        let file = File::options().append(true).create(true).mode(0o640).open(path);
        Ok(Self { path: path.to_owned(), file: file.map_err(failed)? })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one line with the local time and the pid of this process.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), SwitchLogError> {
        let now = clock::local_time();
        let line = format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03} {} {}\n",
            now.year,
            now.month,
            now.day,
            now.hour,
            now.minute,
            now.second,
            now.millisecond,
            std::process::id(),
            escape_untrusted(text)
        );
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|source| SwitchLogError { path: self.path.clone(), source })
    }
}
