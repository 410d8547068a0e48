// SPDX-License-Identifier: Apache-2.0
//! Stores the result of the last synchronisation in a file, so that the node can export it.

use std::io::Write;
use std::path::{Path, PathBuf};

use vipwatch_core::conntrack_sync::{CONNTRACK_STATUS_FILE, ConntrackSync};
use vipwatch_core::{Moment, NeutronState};
use vipwatch_linux::{clock, file};

/// The permissions of the file: those of the state file.
const MODE: u32 = 0o644;

/// The synchronisation under way, and the file for its result.
#[derive(Debug)]
pub(super) struct SyncRecord {
    path: PathBuf,
    /// When the commands were requested, and how many have failed; `None` if none run.
    running: Option<(Moment, u32)>,
    /// A result that is not in the file yet.
    unwritten: Option<ConntrackSync>,
}

/// Deletes the result of an earlier run. If that fails, the node exports an old result, and the monitor still works.
pub fn delete_result(directory: &Path) {
    let _ = std::fs::remove_file(directory.join(CONNTRACK_STATUS_FILE));
}

impl SyncRecord {
    pub(super) fn new(directory: &Path) -> Self {
        Self { path: directory.join(CONNTRACK_STATUS_FILE), running: None, unwritten: None }
    }

    /// The commands were requested. A request that runs has no result any more.
    pub(super) fn begin(&mut self, now: Moment) {
        self.running = Some((now, 0));
    }

    pub(super) fn count_failure(&mut self) {
        if let Some((_, failed)) = &mut self.running {
            *failed = failed.saturating_add(1);
        }
    }

    /// All commands have ended.
    pub(super) fn end(&mut self, state: NeutronState, now: Moment) {
        let Some((began, failed)) = self.running.take() else { return };
        let ended_at = u64::try_from(clock::unix_millis_now()).unwrap_or(0);
        self.unwritten =
            Some(ConntrackSync { state, ended_at, duration: now.since(began), failed });
    }

    /// The helper has ended. The synchronisation that runs, or else the next one, counts as failed.
    pub(super) fn fail(&mut self, state: NeutronState, now: Moment) {
        self.running.get_or_insert((now, 0));
        self.count_failure();
        self.end(state, now);
    }

    /// Writes the last result, if that is still to be done.
    // Not inlined: its buffers would otherwise be part of the caller's stack frame while the process waits.
    #[inline(never)]
    pub(super) fn write(&mut self) {
        let Some(sync) = self.unwritten.take() else { return };
        // A failure is not reported: the state file in the same directory fails in the same way, and that is reported.
        let _ = file::replace_file(&self.path, MODE, |file| {
            file.write_all(sync.to_string().as_bytes())
        });
    }
}
