// SPDX-License-Identifier: Apache-2.0
//! Reads settled reports that a target has not received, on any thread, while the writer runs.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use vipwatch_core::InstanceId;

use super::undelivered::{self, Uncommitted};
use super::{FILE, JournalError};
use crate::report_sink::SettledReport;

/// A handle for reading the journal. It may outlive the journal.
#[derive(Debug, Clone)]
pub struct JournalReader {
    path: PathBuf,
    uncommitted: Uncommitted,
}

impl JournalReader {
    pub(super) fn new(directory: &Path, uncommitted: Uncommitted) -> Self {
        Self { path: directory.join(FILE), uncommitted }
    }

    /// The settled reports of `instance` with a sequence number above `after` and below `before`, oldest first, at
    /// most `limit`. `None` if the writer has not committed all of them yet. Reports that all targets for every report
    /// have received are not in the journal any more.
    pub fn settled_between(
        &self,
        instance: &InstanceId,
        after: i64,
        before: i64,
        limit: usize,
    ) -> Result<Option<Vec<SettledReport>>, JournalError> {
        if self.uncommitted.has_before(instance, before) {
            return Ok(None);
        }
        if !self.path.exists() {
            return Err(JournalError::Missing(self.path.display().to_string()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reports = Connection::open_with_flags(&self.path, flags).and_then(|connection| {
            undelivered::between(&connection, instance, (after, before), limit)
        });
        let path = || self.path.display().to_string();
        reports.map(Some).map_err(|source| JournalError::Open { path: path(), source })
    }
}
