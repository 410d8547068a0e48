// SPDX-License-Identifier: Apache-2.0
//! The journal: the receiver's write-ahead store. A report is answered with 200 only after it is on the disk,
//! so that the next process acts on it if this one is killed.
//!
//! One thread (`writer`) writes all reports that have arrived meanwhile in one transaction with one fsync.
//! `store` is the SQLite file, `deferred` are the rows that no reply waits for, `undelivered` are settled reports that
//! targets have not received. Which target has received which report is stored in the history, by the notifier.
//!
//! If the file cannot be opened or written, the receiver goes on: reports are refused with the reason, and the
//! writer opens the file again every few seconds. A file that is damaged or has another format is renamed and kept, and
//! replaced by a new one.

mod deferred;
mod error;
mod reader;
mod store;
mod undelivered;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use vipwatch_core::debounce::ReportedState;
use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::spawn_worker;

use crate::report_sink::SettledReport;

pub use self::error::JournalError;
pub use self::reader::JournalReader;
pub use self::undelivered::ReportSeqs;
use self::undelivered::{Uncommitted, UndeliveredCleanup};
use self::writer::JournalWriter;

/// Name of the journal's file in the state directory.
pub const FILE: &str = "journal.sqlite";

/// `PRAGMA user_version` of the files that this program writes.
const FORMAT_VERSION: i64 = 5;

/// Maximum number of reports that wait for the disk. Further reports are refused with 503.
const MAX_STORING_REPORTS: usize = 8192;

/// Maximum number of batches in the writer's queue. While it is full, the next batch grows.
const MAX_QUEUED_BATCHES: usize = 64;

/// How long the start waits for the file. The writer goes on to open it.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// What the journal has stored about each instance.
pub type StoredReports = BTreeMap<InstanceId, StoredReport>;

/// What the journal has stored about one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredReport {
    /// The settled state; `None` if no report was settled.
    pub settled: Option<SettledRow>,
    /// Sequence number and state of the reports that were stored and not settled, in order.
    pub unsettled: Vec<(i64, ReportedState)>,
}

impl StoredReport {
    /// The highest sequence number of the instance; 0 if it has none.
    pub(crate) fn last_seq(&self) -> i64 {
        let settled = self.settled.map_or(0, |row| row.seq);
        self.unsettled.last().map_or(settled, |(seq, _)| *seq)
    }
}

/// The settled state of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledRow {
    /// The state.
    pub state: ReportedState,
    /// Sequence number of the last report that is settled.
    pub seq: i64,
    /// Sequence number of the last report that was delivered to the sink; 0 if none was.
    pub acted_seq: i64,
    /// When the row was written.
    pub at: SystemTime,
}

/// An entry of the writer's queue.
#[derive(Debug)]
enum JournalEntry {
    /// Store a report, and return the result under `request_id`.
    Report { request_id: u64, instance: InstanceId, state: ReportedState },
    /// Record that the reports up to `seq` are settled as `state`. An `acted_seq` of 0 leaves the stored one
    /// unchanged.
    Settled { instance: InstanceId, seq: i64, state: ReportedState, acted_seq: i64 },
    /// Keep a settled report until all targets for every report have received it.
    Keep(SettledReport),
    /// Delete old reports, and the settled reports that are not needed any more.
    CleanUp(UndeliveredCleanup),
    /// Delete the settled reports of each instance up to a sequence number, which count as missed.
    DeleteUndelivered(BTreeMap<InstanceId, i64>),
    /// Store a report again, in a new file, with the sequence number that it has.
    RestoredReport { instance: InstanceId, seq: i64, state: ReportedState },
    /// Delete all rows of an instance.
    Forget(InstanceId),
    /// Write everything and end the thread.
    Stop,
}

/// Result of storing one report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreResult {
    /// The caller's number for the request, from [`Journal::store`].
    pub request_id: u64,
    /// The report's sequence number, or why it could not be stored.
    pub seq: Result<i64, String>,
}

/// What the writer has done.
#[derive(Debug)]
pub enum Completion {
    /// A report was stored or could not be stored.
    Stored(StoreResult),
    /// The file, which could not be opened at the start, is open and has these reports.
    Opened(StoredReports),
    /// A new file has replaced a damaged one. The settled states and unsettled reports must be written again.
    Replaced,
    /// A cleanup has found a file of another format that was replaced, with a line about it; `None` after the file was
    /// moved away or deleted.
    OtherFormat(Option<String>),
    /// More settled reports are undelivered than the limit. These are the oldest ones. They are deleted with
    /// [`Journal::delete_undelivered`] after they were counted as missed.
    Excess(ReportSeqs),
}

/// The receiver's side of the journal. Dropping it writes everything and ends the writer thread.
#[derive(Debug)]
pub struct Journal {
    /// Entries for the next batch.
    batch: Vec<JournalEntry>,
    /// Number of reports without a result: their [`StoreResult`] was not taken yet.
    storing: usize,
    sender: SyncSender<Vec<JournalEntry>>,
    /// BOUND: one entry for each report that is being stored, of which [`Self::store`] accepts
    /// [`MAX_STORING_REPORTS`], and one for each time the file is opened or replaced, and two for each time it is cleaned up.
    completions: WakeQueue<Completion>,
    uncommitted: Uncommitted,
    reader: JournalReader,
    thread: Option<JoinHandle<()>>,
    open_error: Option<String>,
}

impl Journal {
    /// Opens the journal in `directory`, starts the writer, and returns the stored reports. Sequence numbers up to
    /// `used_seq` are in use, whether or not the file has them. If the disk is full, read-only or broken, or does not answer,
    /// the journal refuses all reports until the file can be opened: see [`Self::open_error`].
    pub fn open(directory: &Path, used_seq: i64) -> Result<(Self, StoredReports), JournalError> {
        let completions = WakeQueue::new()?;
        let uncommitted = Uncommitted::default();
        let mut writer = JournalWriter::new(directory, completions.clone(), used_seq);
        writer.remove_committed_from(uncommitted.clone());
        let (sender, batches) = sync_channel(MAX_QUEUED_BATCHES);
        // Without a buffer: the thread knows whether the file was opened in time.
        let (answer, opened) = sync_channel(0);
        let thread = spawn_worker("journal", move |heartbeat| {
            if writer.open(&answer, heartbeat) {
                writer.run(&batches, heartbeat);
            }
        })?;
        let (stored, open_error) = match opened.recv_timeout(OPEN_LIMIT) {
            Ok(Ok(stored)) => (stored, None),
            Ok(Err(error)) if error.is_permanent() => return Err(error),
            Ok(Err(error)) => (StoredReports::new(), Some(ErrorChain(&error).to_string())),
            Err(_) => (StoredReports::new(), Some("the disk does not answer".to_owned())),
        };
        if let Some(error) = &open_error {
            tracing::error!(error, "journal cannot be opened; reports are answered with 503");
        }
        let journal = Self {
            batch: Vec::new(),
            storing: 0,
            sender,
            completions,
            reader: JournalReader::new(directory, uncommitted.clone()),
            uncommitted,
            thread: Some(thread),
            open_error,
        };
        Ok((journal, stored))
    }

    /// Why the file could not be opened at the start; `None` if it could.
    pub fn open_error(&self) -> Option<&str> {
        self.open_error.as_deref()
    }

    /// Accepts a report that is to be stored; false if too many wait for the disk. The result comes as
    /// [`Completion::Stored`] with `request_id`.
    pub fn store(&mut self, request_id: u64, instance: InstanceId, state: ReportedState) -> bool {
        let has_room = self.storing < MAX_STORING_REPORTS;
        if has_room {
            self.storing += 1;
            self.batch.push(JournalEntry::Report { request_id, instance, state });
        }
        has_room
    }

    /// Records that the reports up to `seq` are settled as `state`, and whether `seq` was delivered to the
    /// sink. If this row is lost in a crash, the next process applies the reports again.
    pub fn settle(
        &mut self,
        instance: InstanceId,
        seq: i64,
        state: ReportedState,
        is_acted_on: bool,
    ) {
        let acted_seq = if is_acted_on { seq } else { 0 };
        self.batch.push(JournalEntry::Settled { instance, seq, state, acted_seq });
    }

    /// Keeps a settled report until all targets for every report have received it. The caller
    /// [settles](Self::settle) it in the same batch, so that both are committed together.
    pub fn keep(&mut self, settled: SettledReport) {
        self.uncommitted.add(&settled);
        self.batch.push(JournalEntry::Keep(settled));
    }

    /// Deletes old reports, and the settled reports of each instance up to the number in `received`; all of an
    /// instance that is not in it. If more than `limit` are left, the oldest ones come as [`Completion::Excess`].
    pub fn clean_up(&mut self, received: BTreeMap<InstanceId, i64>, limit: u64) {
        self.batch.push(JournalEntry::CleanUp(UndeliveredCleanup { received, limit }));
    }

    /// Deletes the settled reports of each instance up to a sequence number.
    pub fn delete_undelivered(&mut self, last: BTreeMap<InstanceId, i64>) {
        self.batch.push(JournalEntry::DeleteUndelivered(last));
    }

    /// A handle for reading the settled reports.
    pub fn reader(&self) -> JournalReader {
        self.reader.clone()
    }

    /// Records a settled state again, in a new file.
    pub fn restore_settled(
        &mut self,
        instance: InstanceId,
        seq: i64,
        state: ReportedState,
        acted_seq: i64,
    ) {
        self.batch.push(JournalEntry::Settled { instance, seq, state, acted_seq });
    }

    /// Stores a report that is held back again, in a new file, with its old sequence number.
    pub fn restore_report(&mut self, instance: InstanceId, seq: i64, state: ReportedState) {
        self.batch.push(JournalEntry::RestoredReport { instance, seq, state });
    }

    /// Deletes all rows of an instance.
    pub fn forget(&mut self, instance: InstanceId) {
        self.uncommitted.forget(&instance);
        self.batch.push(JournalEntry::Forget(instance));
    }

    /// Sends the batch to the writer without waiting. If the writer's queue is full, the batch is kept and grows. An
    /// error means that the writer thread has ended.
    pub fn send_batch(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        match self.sender.try_send(std::mem::take(&mut self.batch)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(batch)) => {
                self.batch = batch;
                Ok(())
            }
            Err(TrySendError::Disconnected(_)) => {
                Err(io::Error::other("the journal's writer thread has ended"))
            }
        }
    }

    /// Whether entries wait to be sent to the writer.
    pub fn has_unsent(&self) -> bool {
        !self.batch.is_empty()
    }

    /// The completions since the last call, in order. The journal's descriptor is readable when there are some.
    pub fn take_completions(&mut self) -> Vec<Completion> {
        let completions = self.completions.take_all();
        let is_result = |completion: &&Completion| matches!(completion, Completion::Stored(_));
        let results = completions.iter().filter(is_result).count();
        self.storing = self.storing.saturating_sub(results);
        completions
    }
}

impl AsFd for Journal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }
}

impl Drop for Journal {
    /// Returns when the writer has written all entries.
    fn drop(&mut self) {
        self.batch.push(JournalEntry::Stop);
        let _ = self.sender.send(std::mem::take(&mut self.batch));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
