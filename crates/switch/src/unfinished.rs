// SPDX-License-Identifier: Apache-2.0
//! Records of replacements that are under way, in a directory below `/run`. A record is written before the old monitor
//! ends and deleted when the new one is verified. If the switch is killed, the next run finds the record and the
//! arguments of the monitor in it. After a reboot there are no records, and the agent has started all monitors.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vipwatch_core::InstanceId;
use vipwatch_linux::file::{read_head, replace_file};
use vipwatch_linux::lock::FileLock;

use crate::command_line::PROGRAM;
use crate::launch::StartPlan;

/// Maximum size of a record, in bytes.
const MAX_RECORD: u64 = 1 << 20;

/// One replacement that is under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnfinishedRecord {
    pub(crate) router: String,
    /// The words after the program.
    pub(crate) arguments: Vec<String>,
    /// How the monitor is started; the program in it is the one that was wanted.
    pub(crate) plan: StartPlan,
    /// The pid of the old monitor.
    pub(crate) old_pid: u32,
}

/// Why the records cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("cannot use the directory {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("another vipwatch-neutron-switch is running")]
    Locked,
    #[error("cannot read the record {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write the record {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// The directory of the records, locked for this process.
#[derive(Debug)]
pub(crate) struct RecordDirectory {
    path: PathBuf,
    lock: Option<(FileLock, std::fs::File)>,
}

impl RecordDirectory {
    /// Opens the directory for a run that changes monitors, and creates it if it does not exist.
    pub(crate) fn lock(path: &Path) -> Result<Self, RecordError> {
        let failed = |source| RecordError::Directory { path: path.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let directory = std::fs::File::open(path).map_err(failed)?;
        // A second descriptor of the same open directory: a child process can hold the lock with it.
        let shared = directory.try_clone().map_err(failed)?;
        let lock = FileLock::try_exclusive(directory.into()).map_err(failed)?;
        let lock = lock.ok_or(RecordError::Locked)?;
        Ok(Self { path: path.to_owned(), lock: Some((lock, shared)) })
    }

    /// A descriptor that holds the lock as long as it is open.
    pub(crate) fn shared_lock(&self) -> Option<OwnedFd> {
        self.lock.as_ref().and_then(|(_, shared)| shared.try_clone().ok()).map(Into::into)
    }

    /// Uses the directory without a lock, for a run that changes nothing.
    pub(crate) fn read_only(path: &Path) -> Self {
        Self { path: path.to_owned(), lock: None }
    }

    /// The file for the messages of a program at its start.
    pub(crate) fn messages_of(&self, router: &InstanceId) -> PathBuf {
        self.path.join(format!("{router}.messages"))
    }

    /// A name that ends with `neutron-keepalived-state-change` and leads to `program`. The agent and monitors recognise a
    /// monitor by that name, and Neutron's diverted program has another one.
    pub(crate) fn named_like_monitor(&self, program: &Path) -> io::Result<PathBuf> {
        if program.file_name().is_some_and(|name| name == PROGRAM) {
            return Ok(program.to_owned());
        }
        let link = self.path.join(PROGRAM);
        let new = self.path.join(format!("{PROGRAM}.new"));
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // ORDER: the name exists at every moment: a helper process of an earlier run may be about to execute it.
        std::os::unix::fs::symlink(program, &new)?;
        std::fs::rename(&new, &link)?;
        Ok(link)
    }

    /// All records, sorted by router.
    pub(crate) fn records(&self) -> Result<Vec<UnfinishedRecord>, RecordError> {
        let mut records = Vec::new();
        let entries = match std::fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(records),
            entries => entries
                .map_err(|source| RecordError::Directory { path: self.path.clone(), source })?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let failed = |source| RecordError::Read { path: path.clone(), source };
                let text = read_head(&path, MAX_RECORD).map_err(failed)?;
                records.push(serde_json::from_slice(&text).map_err(|e| failed(e.into()))?);
            }
        }
        records.sort_by(|a: &UnfinishedRecord, b| a.router.cmp(&b.router));
        Ok(records)
    }

    pub(crate) fn write(
        &self,
        router: &InstanceId,
        record: &UnfinishedRecord,
    ) -> Result<(), RecordError> {
        let path = self.path_of(router);
        let text = serde_json::to_vec(record).map_err(io::Error::from);
        let written =
            text.and_then(|text| replace_file(&path, 0o600, |file| file.write_all(&text)));
        written.map_err(|source| RecordError::Write { path, source })
    }

    pub(crate) fn delete(&self, router: &InstanceId) {
        let _ = std::fs::remove_file(self.path_of(router));
        let _ = std::fs::remove_file(self.messages_of(router));
    }

    fn path_of(&self, router: &InstanceId) -> PathBuf {
        self.path.join(format!("{router}.json"))
    }
}
