// SPDX-License-Identifier: Apache-2.0
//! The journal's writer thread. Reports are written at once, all that have arrived with one fsync; other rows are
//! [deferred](super::deferred).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender};
use std::time::{Duration, Instant};

use rusqlite::params;
use vipwatch_core::debounce::ReportedState;
use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_linux::clock::unix_millis_now;
use vipwatch_linux::file::other_format_text;
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::{Heartbeat, beat_every};

use super::deferred::DeferredRows;
use super::store::{Store, StoredState, is_damage};
use super::undelivered::{self, Uncommitted, UndeliveredCleanup};
use super::{
    Completion, FILE, FORMAT_VERSION, JournalEntry, JournalError, StoreResult, StoredReports,
};

/// Rows after which the writer moves SQLite's write-ahead log into the database file. The first report after a
/// checkpoint waits for one fsync more, so the writer does not do it after each transaction.
const CHECKPOINT_ROWS: usize = 1000;
/// How long no entry must have arrived before a checkpoint, which takes several fsyncs.
const CHECKPOINT_IDLE_TIME: Duration = Duration::from_millis(100);
/// Time between two attempts to open a file that could not be opened.
const REOPEN_INTERVAL: Duration = Duration::from_secs(5);
/// How long settled reports stay in the file: one day.
const REPORT_RETENTION_MILLIS: i64 = 86_400_000;

/// A report that is to be stored.
struct NewReport {
    request_id: u64,
    instance: InstanceId,
    state: ReportedState,
}

/// The state of the writer thread.
pub(super) struct JournalWriter {
    directory: PathBuf,
    /// `None`: the file cannot be opened.
    store: Option<Store>,
    /// Why the file cannot be opened.
    open_error: String,
    last_open_attempt: Instant,
    /// The file was open before. Then the receiver has newer states in memory than a file that is opened again.
    was_open: bool,
    /// BOUND: see `Journal::completions`.
    completions: WakeQueue<Completion>,
    /// The last sequence number that was assigned.
    last_seq: i64,
    deferred: DeferredRows,
    /// Deferred rows could not be written, and that was logged.
    is_failure_logged: bool,
    rows_since_checkpoint: usize,
    /// Settled reports that are not committed; shared with readers.
    uncommitted: Uncommitted,
    /// The last [`Completion::OtherFormat`].
    other_format: Option<String>,
}

impl JournalWriter {
    /// A writer without a file. Call [`Self::open`] next. The first report gets a sequence number above `last_seq`.
    pub(super) fn new(directory: &Path, completions: WakeQueue<Completion>, last_seq: i64) -> Self {
        Self {
            directory: directory.to_owned(),
            store: None,
            open_error: String::new(),
            last_open_attempt: Instant::now(),
            was_open: false,
            completions,
            last_seq,
            deferred: DeferredRows::default(),
            is_failure_logged: false,
            rows_since_checkpoint: 0,
            uncommitted: Uncommitted::default(),
            other_format: None,
        }
    }

    /// Removes settled reports from `uncommitted` when they are committed.
    pub(super) fn remove_committed_from(&mut self, uncommitted: Uncommitted) {
        self.uncommitted = uncommitted;
    }

    /// Writes to `store` from now on. No report in it has a sequence number above `last_seq`.
    fn use_store(&mut self, store: Store, last_seq: i64) {
        self.store = Some(store);
        self.was_open = true;
        self.last_seq = self.last_seq.max(last_seq);
    }

    /// Opens the file and sends the stored reports, or the error; false if another attempt cannot succeed. If the answer is too
    /// late, the receiver gets them as [`Completion::Opened`].
    pub(super) fn open(
        &mut self,
        answer: &SyncSender<Result<StoredReports, JournalError>>,
        heartbeat: &Heartbeat,
    ) -> bool {
        let _disk = heartbeat.disk();
        match self.open_store() {
            Ok((store, StoredState { reports, last_seq })) => {
                self.use_store(store, last_seq);
                if let Err(SendError(Ok(reports))) = answer.send(Ok(reports)) {
                    self.completions.push(Completion::Opened(reports));
                }
                true
            }
            Err(error) => {
                self.open_error = ErrorChain(&error).to_string();
                let is_permanent = error.is_permanent();
                answer.send(Err(error)).is_err() || !is_permanent
            }
        }
    }

    fn open_store(&self) -> Result<(Store, StoredState), JournalError> {
        std::fs::create_dir_all(&self.directory)?;
        Store::open(&self.directory)
    }

    /// Writes until [`JournalEntry::Stop`].
    pub(super) fn run(mut self, batches: &Receiver<Vec<JournalEntry>>, heartbeat: &Heartbeat) {
        loop {
            heartbeat.beat();
            if self.store.is_none() && self.last_open_attempt.elapsed() >= REOPEN_INTERVAL {
                let _disk = heartbeat.disk();
                self.reopen();
                self.last_open_attempt = Instant::now();
            }
            let first = match batches.recv_timeout(self.time_to_wait()) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) => {
                    let _disk = heartbeat.disk();
                    self.write_while_idle();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => vec![JournalEntry::Stop],
            };
            let _disk = heartbeat.disk();
            let entries = std::iter::once(first).chain(batches.try_iter()).flatten();
            if !self.process(entries) {
                return;
            }
        }
    }

    /// How long to wait for the next batch.
    fn time_to_wait(&self) -> Duration {
        let limit = match (&self.store, self.deferred.time_left()) {
            (None, _) => REOPEN_INTERVAL.saturating_sub(self.last_open_attempt.elapsed()),
            (Some(_), Some(left)) => left,
            (Some(_), None) if self.rows_since_checkpoint >= CHECKPOINT_ROWS => {
                CHECKPOINT_IDLE_TIME
            }
            (Some(_), None) => Duration::MAX,
        };
        limit.min(beat_every())
    }

    /// No batch has arrived: commits deferred rows that are due, or makes a checkpoint.
    fn write_while_idle(&mut self) {
        if self.store.is_none() {
            return;
        }
        if self.deferred.time_left().is_some() {
            if self.deferred.is_due() {
                self.commit_deferred();
            }
        } else if self.rows_since_checkpoint >= CHECKPOINT_ROWS {
            self.checkpoint();
        }
    }

    /// Processes all entries that have arrived; false after [`JournalEntry::Stop`].
    fn process(&mut self, entries: impl Iterator<Item = JournalEntry>) -> bool {
        let mut reports = Vec::new();
        let mut deletions = Vec::new();
        let mut is_stopping = false;
        for entry in entries {
            match entry {
                JournalEntry::Report { request_id, instance, state } => {
                    reports.push(NewReport { request_id, instance, state });
                }
                JournalEntry::Stop => is_stopping = true,
                entry @ (JournalEntry::CleanUp(_) | JournalEntry::DeleteUndelivered(_)) => {
                    deletions.push(entry);
                }
                entry => {
                    // The reports before this entry get the next numbers.
                    let last_seq = self.last_seq + i64::try_from(reports.len()).unwrap_or(0);
                    self.deferred.add(entry, last_seq);
                }
            }
        }
        if !reports.is_empty() {
            self.store_reports(&reports);
        }
        if is_stopping || self.deferred.is_due() {
            self.commit_deferred();
        }
        for entry in deletions {
            self.delete_rows(entry);
        }
        !is_stopping
    }

    /// Deletes rows for a cleanup.
    fn delete_rows(&mut self, entry: JournalEntry) {
        let deleted = match entry {
            JournalEntry::CleanUp(cleanup) => {
                self.look_for_other_format();
                self.clean_up(&cleanup)
            }
            JournalEntry::DeleteUndelivered(last) => match &mut self.store {
                Some(store) => undelivered::delete_up_to(&mut store.connection, &last),
                None => Ok(()),
            },
            _ => Ok(()),
        };
        // Other errors, such as a full disk, may be gone at the next cleanup.
        if let Err(error) = deleted {
            self.replace_if_damaged(&error);
        }
    }

    /// Reports that a replaced file of another format exists, or does not exist any more.
    fn look_for_other_format(&mut self) {
        let text = other_format_text(&self.directory.join(FILE), FORMAT_VERSION);
        if text != self.other_format {
            self.other_format.clone_from(&text);
            self.completions.push(Completion::OtherFormat(text));
        }
    }

    /// Deletes settled reports that are older than [`REPORT_RETENTION_MILLIS`] or received by all targets.
    fn clean_up(&mut self, cleanup: &UndeliveredCleanup) -> rusqlite::Result<()> {
        let Some(Store { connection, .. }) = &mut self.store else { return Ok(()) };
        connection.execute(
            "DELETE FROM report WHERE at < ?1 AND seq <= \
             (SELECT seq FROM settled WHERE settled.instance = report.instance)",
            [unix_millis_now() - REPORT_RETENTION_MILLIS],
        )?;
        undelivered::delete_received(connection, &cleanup.received)?;
        let excess = undelivered::excess(connection, cleanup.limit)?;
        if !excess.is_empty() {
            self.completions.push(Completion::Excess(excess));
        }
        Ok(())
    }

    /// Tries again to open the file.
    fn reopen(&mut self) {
        match self.open_store() {
            Ok((store, stored)) => {
                tracing::info!("journal opened; reports are accepted");
                self.switch_to(store, stored);
            }
            Err(error) => self.open_error = ErrorChain(&error).to_string(),
        }
    }

    /// Uses a file that was opened or created while the writer runs.
    fn switch_to(&mut self, store: Store, stored: StoredState) {
        let StoredState { reports, last_seq } = stored;
        let was_open = self.was_open;
        self.use_store(store, last_seq);
        // ORDER: the receiver gets the stored reports before the result of any report that is written from now on.
        let completion = if was_open { Completion::Replaced } else { Completion::Opened(reports) };
        self.completions.push(completion);
    }

    /// If `error` means that the file is damaged, renames it and creates a new one. Returns whether a new file
    /// is open.
    fn replace_if_damaged(&mut self, error: &rusqlite::Error) -> bool {
        if !is_damage(error) {
            return false;
        }
        let Some(store) = self.store.take() else { return false };
        match store.replace(&self.directory) {
            Ok((store, stored)) => self.switch_to(store, stored),
            Err(error) => self.open_error = ErrorChain(&error).to_string(),
        }
        self.store.is_some()
    }

    /// Moves SQLite's write-ahead log into the database file, as far as it is possible without waiting.
    fn checkpoint(&mut self) {
        self.rows_since_checkpoint = 0;
        let Some(store) = &self.store else { return };
        let done = store.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        // Other errors, such as a full disk, may be gone at the next checkpoint.
        if let Err(error) = done {
            self.replace_if_damaged(&error);
        }
    }

    /// Stores reports and returns their results as completions.
    fn store_reports(&mut self, reports: &[NewReport]) {
        let mut written = self.insert(reports);
        if written.as_ref().is_err_and(|error| self.replace_if_damaged(error)) {
            written = self.insert(reports);
        }
        let results = written.unwrap_or_else(|error| {
            let is_open = self.store.is_some();
            let reason = if is_open { error.to_string() } else { self.open_error.clone() };
            let failed = |report: &NewReport| StoreResult {
                request_id: report.request_id,
                seq: Err(reason.clone()),
            };
            reports.iter().map(failed).collect()
        });
        self.completions.push_all(results.into_iter().map(Completion::Stored));
    }

    /// Inserts reports in one transaction.
    fn insert(&mut self, reports: &[NewReport]) -> rusqlite::Result<Vec<StoreResult>> {
        let at = unix_millis_now();
        let Some(store) = &mut self.store else { return Err(not_open()) };
        if self.deferred.is_full() {
            return Err(too_many_uncommitted());
        }
        let transaction = store.connection.transaction()?;
        let mut results = Vec::with_capacity(reports.len());
        let mut seq = self.last_seq;
        {
            let mut insert = transaction
                .prepare("INSERT INTO report (seq, at, instance, state) VALUES (?1, ?2, ?3, ?4)")?;
            for NewReport { request_id, instance, state } in reports {
                seq += 1;
                insert.execute(params![seq, at, instance.as_str(), state.as_str()])?;
                results.push(StoreResult { request_id: *request_id, seq: Ok(seq) });
            }
        }
        transaction.commit()?;
        self.rows_since_checkpoint += reports.len();
        self.last_seq = seq;
        Ok(results)
    }

    /// Commits the deferred rows. If that fails, they are kept and tried again.
    fn commit_deferred(&mut self) {
        let mut deferred = std::mem::take(&mut self.deferred);
        self.rows_since_checkpoint += deferred.len();
        match self.try_commit(&deferred) {
            Ok(()) => {
                self.uncommitted.remove(deferred.kept());
                if std::mem::take(&mut self.is_failure_logged) {
                    tracing::info!("journal stores settled states again");
                }
            }
            Err(error) => {
                deferred.postpone();
                self.deferred = deferred;
                if self.replace_if_damaged(&error) {
                    return;
                }
                if !std::mem::replace(&mut self.is_failure_logged, true) {
                    tracing::error!(
                        %error,
                        "cannot store settled states in the journal; they may be repeated after a restart"
                    );
                }
            }
        }
    }

    fn try_commit(&mut self, deferred: &DeferredRows) -> rusqlite::Result<()> {
        let Some(store) = &mut self.store else { return Err(not_open()) };
        let transaction = store.connection.transaction()?;
        deferred.write(&transaction)?;
        transaction.commit()
    }
}

/// The error of reports that arrive while too many settled reports could not be committed.
fn too_many_uncommitted() -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
    let reason = "settled reports cannot be stored".to_owned();
    rusqlite::Error::SqliteFailure(code, Some(reason))
}

/// The error of a statement that cannot be run because no file is open. [`JournalWriter::open_error`] has the reason.
fn not_open() -> rusqlite::Error {
    rusqlite::Error::InvalidQuery
}
