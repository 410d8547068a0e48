//! The journal's thread: what somebody waits for is written at once, many with one fsync; the rest a little
//! later, and of each only the last.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::params;
use vipwatch_core::debounce::ReportedState;
use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::{Heartbeat, beat_every};

use super::store::{Store, StoredState, is_damage};
use super::{Completion, DeliveredReports, JournalEntry, StoreResult, StoredReports};

/// How long what nobody waits for may wait for the disk.
const LATER: Duration = Duration::from_millis(50);
/// The file is put in order, which takes some fsyncs, when so many rows were written and then nobody has come for
/// so long. Not after each: the first to come after that waits for one fsync more.
const ENOUGH: usize = 1000;
const QUIET: Duration = Duration::from_millis(100);
/// How long after a failure the file is opened again.
const RETRY: Duration = Duration::from_secs(5);
/// How often what was acted on is cleared, and how long it is kept until then.
const CLEARING: Duration = Duration::from_mins(1);
const KEPT_MILLIS: i64 = 86_400_000;

/// What need not be on the disk before somebody is answered: of each instance and party, the last.
#[derive(Default)]
struct Later {
    /// The last report that was considered, what holds, and the last that was acted on; `None` to forget.
    settled: BTreeMap<InstanceId, Option<(i64, ReportedState, i64)>>,
    /// Reports that are written once more, into a new file, with the numbers they had.
    reports: BTreeMap<i64, (InstanceId, ReportedState)>,
    told: DeliveredReports,
    since: Option<Instant>,
}

impl Later {
    fn add(&mut self, note: JournalEntry) {
        match note {
            JournalEntry::SettledReport { instance, seq, state, acted } => {
                let entry = self.settled.entry(instance).or_default();
                let before = entry.map_or(0, |(_, _, acted)| acted);
                *entry = Some((seq, state, acted.max(before)));
            }
            JournalEntry::Again { instance, seq, state } => {
                self.reports.insert(seq, (instance, state));
            }
            JournalEntry::Forget(instance) => {
                self.reports.retain(|_, (other, _)| *other != instance);
                self.told.retain(|(_, other), _| *other != instance);
                self.settled.insert(instance, None);
            }
            JournalEntry::DeliveredReports | JournalEntry::Report { .. } | JournalEntry::End => {
                return;
            }
        }
        self.since.get_or_insert_with(Instant::now);
    }

    /// Takes over what is in the ledger.
    fn take(&mut self, ledger: &Mutex<DeliveredReports>) {
        let told = ledger.lock().map(|mut told| std::mem::take(&mut *told)).unwrap_or_default();
        if !told.is_empty() {
            self.told.extend(told);
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// Adds rows that a new file does not have; what is newer stays.
    fn add_known(&mut self, known: &DeliveredReports) {
        let is_forgotten = |instance| matches!(self.settled.get(instance), Some(None));
        for (key, seq) in known.iter().filter(|((_, instance), _)| !is_forgotten(instance)) {
            self.told.entry(key.clone()).or_insert(*seq);
        }
        self.since.get_or_insert_with(Instant::now);
    }

    /// How long it may wait.
    fn patience(&self) -> Option<Duration> {
        self.since.map(|since| LATER.saturating_sub(since.elapsed()))
    }
}

/// The thread's side.
pub(super) struct JournalWriter {
    directory: PathBuf,
    /// `None`: the file cannot be opened.
    store: Option<Store>,
    /// Why not.
    error: String,
    /// Whether the file was open before: then those who use the journal know more than a file that is
    /// opened again.
    was_open: bool,
    /// BOUND: see `Journal::shelf`.
    shelf: WakeQueue<Completion>,
    /// The last number that was given.
    last: i64,
    later: Later,
    ledger: Arc<Mutex<DeliveredReports>>,
    /// The rows of `told` in the file, for a new file if this one is damaged.
    /// BOUND: one for each target and instance, and the receiver takes no more than so many instances.
    known: DeliveredReports,
    /// What may wait cannot be written, and that was said.
    is_failing: bool,
    /// Rows since the file was last put in order.
    written: usize,
}

impl JournalWriter {
    pub(super) fn new(
        directory: &Path,
        shelf: WakeQueue<Completion>,
        ledger: Arc<Mutex<DeliveredReports>>,
    ) -> Self {
        Self {
            directory: directory.to_owned(),
            store: None,
            error: String::new(),
            was_open: false,
            shelf,
            last: 0,
            later: Later::default(),
            ledger,
            known: DeliveredReports::new(),
            is_failing: false,
            written: 0,
        }
    }

    /// Writes to `store` from now on, which remembers `memories`; no report has a number above `last`.
    pub(super) fn begin(&mut self, store: Store, memories: &StoredReports, last: i64) {
        if self.was_open {
            self.later.add_known(&self.known);
        } else {
            self.known = told_of(memories);
        }
        (self.store, self.was_open) = (Some(store), true);
        self.last = self.last.max(last);
    }

    /// Refuses reports for this reason, until the file could be opened.
    pub(super) fn refuse(&mut self, error: String) {
        self.error = error;
    }

    /// Writes until it is told to end.
    pub(super) fn work(mut self, bundles: &Receiver<Vec<JournalEntry>>, heartbeat: &Heartbeat) {
        let mut cleared = Instant::now();
        let mut tried = Instant::now();
        loop {
            heartbeat.beat();
            if self.store.is_none() && tried.elapsed() >= RETRY {
                self.open_again();
                tried = Instant::now();
            }
            let patience = self.later.patience().filter(|_| self.store.is_some());
            let retry = self.store.is_none().then(|| RETRY.saturating_sub(tried.elapsed()));
            let order = (self.written >= ENOUGH).then_some(QUIET);
            let limit = patience.or(retry).or(order);
            let first = match bundles.recv_timeout(limit.unwrap_or(Duration::MAX).min(beat_every()))
            {
                Err(RecvTimeoutError::Timeout) => {
                    self.take_the_time(patience, order);
                    continue;
                }
                bundle => bundle.ok(),
            };
            let first = first.unwrap_or_else(|| vec![JournalEntry::End]);
            let mut reports = Vec::new();
            let mut is_over = false;
            for note in std::iter::once(first).chain(bundles.try_iter()).flatten() {
                match note {
                    JournalEntry::Report { ticket, instance, state } => {
                        reports.push((ticket, instance, state));
                    }
                    JournalEntry::End => is_over = true,
                    note => self.later.add(note),
                }
            }
            if !reports.is_empty() {
                self.promise(&reports);
            }
            self.later.take(&self.ledger);
            if is_over || self.later.patience().is_some_and(|left| left.is_zero()) {
                self.write_later();
            }
            if cleared.elapsed() >= CLEARING || is_over {
                cleared = Instant::now();
                self.clear();
            }
            if is_over {
                return;
            }
        }
    }

    /// No report has come: what could wait for that is done, if its time has come.
    fn take_the_time(&mut self, patience: Option<Duration>, order: Option<Duration>) {
        if patience.is_some() {
            if self.later.patience().is_some_and(|left| left.is_zero()) {
                self.write_later();
            }
        } else if self.store.is_some() && order.is_some() {
            self.put_in_order();
        }
    }

    /// Opens the file that could not be opened.
    fn open_again(&mut self) {
        let opened = std::fs::create_dir_all(&self.directory)
            .map_err(super::JournalError::from)
            .and_then(|()| Store::open(&self.directory));
        match opened {
            Ok((store, found)) => {
                tracing::info!("journal is open; reports are taken");
                self.take_over(store, found);
            }
            Err(error) => self.error = ErrorChain(&error).to_string(),
        }
    }

    fn take_over(&mut self, store: Store, found: StoredState) {
        let StoredState { memories, last } = found;
        let was_open = self.was_open;
        self.begin(store, &memories, last);
        // ORDER: what was remembered is left before anything that is written from now on.
        self.shelf.put(if was_open { Completion::Replaced } else { Completion::Opened(memories) });
    }

    /// If that is why a statement failed, sets the damaged file aside and begins another one; returns
    /// whether there is one.
    fn replace_if_damaged(&mut self, error: &rusqlite::Error) -> bool {
        if !is_damage(error) {
            return false;
        }
        let Some(store) = self.store.take() else { return false };
        match store.replace(&self.directory) {
            Ok((store, found)) => self.take_over(store, found),
            Err(error) => self.error = ErrorChain(&error).to_string(),
        }
        self.store.is_some()
    }

    /// Moves what was written from the log of SQLite to its place, when hardly anybody waits for it.
    fn put_in_order(&mut self) {
        self.written = 0;
        let Some(store) = &self.store else { return };
        let ordered = store.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        // A disk that is full now may not be next time.
        if let Err(error) = ordered {
            self.replace_if_damaged(&error);
        }
    }

    /// Writes reports, and leaves word of it.
    fn promise(&mut self, reports: &[(u64, InstanceId, ReportedState)]) {
        let mut written = self.write(reports);
        if written.as_ref().is_err_and(|error| self.replace_if_damaged(error)) {
            written = self.write(reports);
        }
        let kept: Vec<StoreResult> = match written {
            Ok(kept) => kept,
            Err(error) => {
                let is_open = self.store.is_some();
                let why = if is_open { error.to_string() } else { self.error.clone() };
                reports.iter().map(|(ticket, ..)| (*ticket, Err(why.clone()))).collect()
            }
        };
        self.shelf.put_all(kept.into_iter().map(Completion::Stored));
    }

    fn write(
        &mut self,
        reports: &[(u64, InstanceId, ReportedState)],
    ) -> rusqlite::Result<Vec<StoreResult>> {
        let at = now();
        let Some(store) = &mut self.store else { return Err(closed()) };
        let transaction = store.connection.transaction()?;
        let mut kept = Vec::with_capacity(reports.len());
        let mut seq = self.last;
        {
            let mut insert = transaction
                .prepare("INSERT INTO report (seq, at, instance, word) VALUES (?1, ?2, ?3, ?4)")?;
            for (ticket, instance, state) in reports {
                seq += 1;
                insert.execute(params![seq, at, instance.as_str(), state.as_str()])?;
                kept.push((*ticket, Ok(seq)));
            }
        }
        transaction.commit()?;
        self.written += reports.len();
        self.last = seq;
        Ok(kept)
    }

    /// Writes what could wait. If it cannot be written now, it is tried again.
    fn write_later(&mut self) {
        let later = std::mem::take(&mut self.later);
        self.written += later.settled.len() + later.told.len();
        match self.try_write_later(&later) {
            Ok(()) => {
                self.note_written(later);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("the journal can be written again");
                }
            }
            Err(error) => {
                self.later = Later { since: Some(Instant::now()), ..later };
                if self.replace_if_damaged(&error) {
                    return;
                }
                if !std::mem::replace(&mut self.is_failing, true) {
                    let what =
                        "what was told cannot be noted, and may be told again after a restart";
                    tracing::error!(%error, "{what}");
                }
            }
        }
    }

    /// Keeps `known` as the file is.
    fn note_written(&mut self, later: Later) {
        let Later { settled, told, .. } = later;
        let is_forgotten = |instance: &InstanceId| matches!(settled.get(instance), Some(None));
        if settled.values().any(Option::is_none) {
            self.known.retain(|(_, instance), _| !is_forgotten(instance));
        }
        self.known.extend(told);
    }

    fn try_write_later(&mut self, later: &Later) -> rusqlite::Result<()> {
        let at = now();
        let Some(store) = &mut self.store else { return Err(closed()) };
        let transaction = store.connection.transaction()?;
        {
            let mut settled = transaction.prepare(
                "INSERT INTO settled (instance, seq, at, word, acted) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT (instance) DO UPDATE SET seq = ?2, at = ?3, word = ?4, \
                 acted = max(acted, ?5)",
            )?;
            for (instance, holds) in &later.settled {
                let id = instance.as_str();
                if let Some((seq, state, acted)) = holds {
                    settled.execute(params![id, seq, at, state.as_str(), acted])?;
                    continue;
                }
                for table in ["report", "settled", "told"] {
                    let delete = format!("DELETE FROM {table} WHERE instance = ?1");
                    transaction.execute(&delete, [id])?;
                }
            }
            let mut again = transaction.prepare(
                "INSERT OR REPLACE INTO report (seq, at, instance, word) VALUES (?1, ?2, ?3, ?4)",
            )?;
            for (seq, (instance, state)) in &later.reports {
                again.execute(params![seq, at, instance.as_str(), state.as_str()])?;
            }
            let mut told = transaction.prepare(
                "INSERT INTO told (party, instance, seq) VALUES (?1, ?2, ?3) \
                 ON CONFLICT (party, instance) DO UPDATE SET seq = ?3",
            )?;
            for ((party, instance), seq) in &later.told {
                told.execute(params![&**party, instance.as_str(), seq])?;
            }
        }
        transaction.commit()
    }

    /// Clears reports that were acted on long ago.
    fn clear(&mut self) {
        let Some(store) = &self.store else { return };
        let cleared = store.connection.execute(
            "DELETE FROM report WHERE at < ?1 AND seq <= \
             (SELECT seq FROM settled WHERE settled.instance = report.instance)",
            [now() - KEPT_MILLIS],
        );
        // A disk that is full now may not be next time.
        if let Err(error) = cleared {
            self.replace_if_damaged(&error);
        }
    }
}

/// The rows of `told` in `memories`. Each name is kept once.
fn told_of(memories: &StoredReports) -> DeliveredReports {
    let mut names: BTreeMap<&str, Arc<str>> = BTreeMap::new();
    let mut all = DeliveredReports::new();
    for (instance, memory) in memories {
        for (name, seq) in &memory.told {
            let party = names.entry(name).or_insert_with(|| Arc::from(name.as_str()));
            all.insert((Arc::clone(party), instance.clone()), *seq);
        }
    }
    all
}

/// The error of a statement that cannot be run because no file is open.
fn closed() -> rusqlite::Error {
    rusqlite::Error::InvalidQuery
}

/// Milliseconds since the epoch.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
