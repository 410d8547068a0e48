//! The promise: what was answered with 200 is here first, on the disk, and is acted on, also by the next
//! process if this one is killed.
//!
//! One thread writes, in batches with one fsync each: a thousand reports at once cost a few of them.
//!
//! A file that cannot be opened or written ends nothing: reports are refused with the reason, and the
//! thread tries to open the file again. A damaged file is renamed, and a new one is begun.

mod store;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::SystemTime;

use vipwatch_core::debounce::ReportedState;
use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::spawn_worker;

use self::store::Store;
use self::writer::JournalWriter;

/// The file's name in the state directory.
pub const FILE: &str = "claims.sqlite";

/// The format that this program writes.
const VERSION: i64 = 2;

/// Reports that may wait for the disk; more are told to come again.
const LONGEST: usize = 8192;
/// Bundles of notes that may wait for the thread; the next one grows meanwhile.
const BUNDLES: usize = 64;

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be opened.
    #[error("cannot open the journal {path}")]
    Open {
        /// The file.
        path: String,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A later program has written it.
    #[error(
        "the journal {path} has format {found}, and this program knows formats up to {VERSION}"
    )]
    TooNew {
        /// The file.
        path: String,
        /// Its format.
        found: i64,
    },
    /// Another process has it.
    #[error("another receiver keeps its journal in {0}")]
    Taken(String),
    /// The thread, or its bell, cannot be had.
    #[error("the journal cannot be written")]
    Io(#[from] io::Error),
}

impl JournalError {
    fn is_damage(&self) -> bool {
        matches!(self, Self::Open { source, .. } if store::is_damage(source))
    }

    /// Whether trying again cannot help: somebody has to change something first.
    fn is_final(&self) -> bool {
        match self {
            Self::Taken(_) | Self::TooNew { .. } => true,
            Self::Io(error) => error.kind() == io::ErrorKind::PermissionDenied,
            Self::Open { .. } => false,
        }
    }
}

/// What is remembered of each instance.
pub type StoredReports = BTreeMap<InstanceId, StoredReport>;

/// What is remembered of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredReport {
    /// What holds.
    pub settled: Option<SettledRow>,
    /// Who was told, and of which report.
    pub told: BTreeMap<String, i64>,
    /// Reports that were promised and not settled, in order.
    pub open: Vec<(i64, ReportedState)>,
}

/// What holds of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledRow {
    /// What.
    pub state: ReportedState,
    /// The last report that was considered.
    pub seq: i64,
    /// The last one that was acted on; zero if none ever was.
    pub acted: i64,
    /// When.
    pub at: SystemTime,
}

/// What is to be written.
#[derive(Debug)]
enum JournalEntry {
    Report {
        ticket: u64,
        instance: InstanceId,
        state: ReportedState,
    },
    SettledReport {
        instance: InstanceId,
        seq: i64,
        state: ReportedState,
        /// The last report that was acted on; 0 leaves it as it is.
        acted: i64,
    },
    /// A report that has its number, for a new file.
    Again {
        instance: InstanceId,
        seq: i64,
        state: ReportedState,
    },
    Forget(InstanceId),
    /// There is something in the ledger.
    DeliveredReports,
    End,
}

/// Who was told about whom, and of which report.
type DeliveredReports = BTreeMap<(Arc<str>, InstanceId), i64>;

/// Where it is noted who was told. Handed to those who tell; they may outlive the journal.
#[derive(Debug, Clone)]
pub struct DeliveryStore {
    told: Arc<Mutex<DeliveredReports>>,
    sender: SyncSender<Vec<JournalEntry>>,
}

impl DeliveryStore {
    /// `party` knows what holds of `instance` by the report `seq`. What is lost of this with the process is
    /// told once more by the next.
    pub fn told(&self, party: &Arc<str>, instance: &InstanceId, seq: i64) {
        let Ok(mut told) = self.told.lock() else { return };
        let is_first = told.is_empty();
        told.insert((Arc::clone(party), instance.clone()), seq);
        drop(told);
        // A thread that has too much to do to be woken looks here when it has done it.
        if is_first {
            let _ = self.sender.try_send(vec![JournalEntry::DeliveredReports]);
        }
    }
}

/// What became of a report: its number, or why it could not be kept.
pub type StoreResult = (u64, Result<i64, String>);

/// What the thread has to say.
#[derive(Debug)]
pub enum Completion {
    /// A report was written, or could not be.
    Stored(StoreResult),
    /// The file could be opened at last; this is what it remembers.
    Opened(StoredReports),
    /// A new file was begun in the place of a damaged one: it does not have what holds. It does have which
    /// targets were told.
    Replaced,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    /// What is handed over next.
    bundle: Vec<JournalEntry>,
    /// Reports that were taken and have not come back.
    waiting: usize,
    sender: SyncSender<Vec<JournalEntry>>,
    told: Arc<Mutex<DeliveredReports>>,
    /// Where the thread leaves what it has written.
    /// BOUND: one entry for each report that waits to be written, and `keep` takes no more than `LONGEST` of those.
    shelf: WakeQueue<Completion>,
    thread: Option<JoinHandle<()>>,
    /// Why the file could not be opened at the start.
    problem: Option<String>,
}

impl Journal {
    /// Opens the journal in `directory`, and tells what it remembers. If the disk is full, read-only or
    /// broken, the journal refuses every report until it could be opened: see [`Self::problem`].
    pub fn open(directory: &Path) -> Result<(Self, StoredReports), JournalError> {
        let (store, found, problem) = match Store::open(directory) {
            Ok((store, found)) => (Some(store), Some(found), None),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => (None, None, Some(ErrorChain(&error).to_string())),
        };
        if let Some(error) = &problem {
            tracing::error!(error, "journal cannot be opened; reports are answered with 503");
        }
        let shelf = WakeQueue::new()?;
        let (sender, receiver) = sync_channel(BUNDLES);
        let told = Arc::<Mutex<DeliveredReports>>::default();
        let found = found.unwrap_or_default();
        let mut writer = JournalWriter::new(directory, shelf.clone(), Arc::clone(&told));
        match store {
            Some(store) => writer.begin(store, &found.memories, found.last),
            None => writer.refuse(problem.clone().unwrap_or_default()),
        }
        let thread = spawn_worker("journal", move |heartbeat| writer.work(&receiver, heartbeat))?;
        let (bundle, waiting, thread) = (Vec::new(), 0, Some(thread));
        let journal = Self { bundle, waiting, sender, told, shelf, thread, problem };
        Ok((journal, found.memories))
    }

    /// Why the file could not be opened at the start; nothing, if it could.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Takes a report that is to be written; false if there is no room, and nothing can be promised.
    pub fn keep(&mut self, ticket: u64, instance: InstanceId, state: ReportedState) -> bool {
        let has_room = self.waiting < LONGEST;
        if has_room {
            self.waiting += 1;
            self.bundle.push(JournalEntry::Report { ticket, instance, state });
        }
        has_room
    }

    /// Notes what holds, and whether it was acted on or was so already. What is lost of this with the
    /// process is considered once more by the next.
    pub fn settle(
        &mut self,
        instance: InstanceId,
        seq: i64,
        state: ReportedState,
        is_acted_on: bool,
    ) {
        let acted = if is_acted_on { seq } else { 0 };
        self.bundle.push(JournalEntry::SettledReport { instance, seq, state, acted });
    }

    /// Notes what holds once more, in a new file: `acted` is the last report that was acted on.
    pub fn restore(&mut self, instance: InstanceId, seq: i64, state: ReportedState, acted: i64) {
        self.bundle.push(JournalEntry::SettledReport { instance, seq, state, acted });
    }

    /// Writes a report that is held back once more, in a new file, with the number it has. Settling that
    /// number then settles this report.
    pub fn restore_report(&mut self, instance: InstanceId, seq: i64, state: ReportedState) {
        self.bundle.push(JournalEntry::Again { instance, seq, state });
    }

    /// Nothing is remembered of this one any more.
    pub fn forget(&mut self, instance: InstanceId) {
        self.bundle.push(JournalEntry::Forget(instance));
    }

    /// Hands over what was taken, without waiting: all at once, so that it is written at once. What finds no
    /// room is handed over with what comes next. An error says that nobody writes any more.
    pub fn hand_over(&mut self) -> io::Result<()> {
        if self.bundle.is_empty() {
            return Ok(());
        }
        match self.sender.try_send(std::mem::take(&mut self.bundle)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(bundle)) => {
                self.bundle = bundle;
                Ok(())
            }
            Err(TrySendError::Disconnected(_)) => {
                Err(io::Error::other("the journal's thread has ended"))
            }
        }
    }

    /// Whether something waits to be handed over.
    pub fn is_behind(&self) -> bool {
        !self.bundle.is_empty()
    }

    /// For those who tell.
    pub fn ledger(&self) -> DeliveryStore {
        DeliveryStore { told: Arc::clone(&self.told), sender: self.sender.clone() }
    }

    /// The completions since the last call, in order.
    pub fn completions(&mut self) -> Vec<Completion> {
        let completions = self.shelf.take();
        let is_kept = |one: &&Completion| matches!(one, Completion::Stored(_));
        let kept = completions.iter().filter(is_kept).count();
        self.waiting = self.waiting.saturating_sub(kept);
        completions
    }
}

impl AsFd for Journal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shelf.as_fd()
    }
}

impl Drop for Journal {
    /// Everything that was handed over is written before this returns.
    fn drop(&mut self) {
        self.bundle.push(JournalEntry::End);
        // Others may still have a ledger, so that the line is not cut.
        let _ = self.sender.send(std::mem::take(&mut self.bundle));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
