//! The promise: what was answered with 200 is here first, on the disk, and is acted on, also by the next
//! process if this one is killed.
//!
//! One thread writes, in batches with one fsync each: a thousand reports at once cost a few of them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, params};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use vipwatch_core::InstanceId;
use vipwatch_core::claim::Claim;

/// The file's name in the state directory.
pub const FILE: &str = "claims.sqlite";

/// Whose lock says that somebody writes.
const LOCK: &str = "claims.lock";

/// The format that this program writes.
const VERSION: i64 = 2;

/// Reports that may wait for the disk; more are told to come again.
const LONGEST: usize = 8192;
/// Bundles of notes that may wait for the thread; the next one grows meanwhile.
const BUNDLES: usize = 64;
/// How long what nobody waits for may wait for the disk.
const LATER: Duration = Duration::from_millis(50);
/// How often what was acted on is cleared, and how long it is kept until then.
const CLEARING: Duration = Duration::from_mins(1);
const KEPT_MILLIS: i64 = 86_400_000;

/// As a new journal is made. Numbers are ours to give, so that none is ever used again.
const CREATE: &str = "
CREATE TABLE report (
    seq      INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,              -- milliseconds since the epoch
    instance TEXT NOT NULL,
    word     TEXT NOT NULL
);
CREATE TABLE settled (
    instance TEXT PRIMARY KEY,
    seq      INTEGER NOT NULL,              -- the last report that was considered
    at       INTEGER NOT NULL,
    word     TEXT NOT NULL,
    acted    INTEGER NOT NULL               -- the last one that was acted on; 0 for none
) WITHOUT ROWID;
";

/// From format 1, which did not know who was told.
const TAKE_OVER: &str = "
ALTER TABLE settled ADD COLUMN acted INTEGER NOT NULL DEFAULT 0;
UPDATE settled SET acted = seq;
DROP INDEX report_by_instance;
";

const CREATE_TOLD: &str = "
CREATE TABLE told (
    party    TEXT NOT NULL,
    instance TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    PRIMARY KEY (party, instance)
) WITHOUT ROWID;
";

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
    /// It is no database any more.
    #[error(
        "the journal {path} is damaged: move it away; what was promised and not acted on is in it"
    )]
    Damaged {
        /// The file.
        path: String,
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

/// What is remembered of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// What holds.
    pub settled: Option<Holds>,
    /// Who was told, and of which report.
    pub told: BTreeMap<String, i64>,
    /// Reports that were promised and not settled, in order.
    pub open: Vec<(i64, Claim)>,
}

/// What holds of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// What.
    pub claim: Claim,
    /// The last report that was considered.
    pub seq: i64,
    /// The last one that was acted on; zero if none ever was.
    pub acted: i64,
    /// When.
    pub at: SystemTime,
}

/// What is to be written.
#[derive(Debug)]
enum Note {
    Report {
        ticket: u64,
        instance: InstanceId,
        claim: Claim,
    },
    Settled {
        instance: InstanceId,
        seq: i64,
        claim: Claim,
        is_acted_on: bool,
    },
    Forget(InstanceId),
    /// There is something in the ledger.
    Told,
    End,
}

/// Who was told about whom, and of which report.
type Told = BTreeMap<(Arc<str>, InstanceId), i64>;

/// Where it is noted who was told. Handed to those who tell; they may outlive the journal.
#[derive(Debug, Clone)]
pub struct Ledger {
    told: Arc<Mutex<Told>>,
    sender: SyncSender<Vec<Note>>,
}

impl Ledger {
    /// `party` knows what holds of `instance` by the report `seq`. What is lost of this with the process is
    /// told once more by the next.
    pub fn told(&self, party: &Arc<str>, instance: &InstanceId, seq: i64) {
        let Ok(mut told) = self.told.lock() else { return };
        let is_first = told.is_empty();
        told.insert((Arc::clone(party), instance.clone()), seq);
        drop(told);
        // A thread that has too much to do to be woken looks here when it has done it.
        if is_first {
            let _ = self.sender.try_send(vec![Note::Told]);
        }
    }
}

/// What became of a report: its number, or why it could not be kept.
pub type Kept = (u64, Result<i64, String>);

/// Where the thread leaves what it has written.
#[derive(Debug)]
struct Shelf {
    kept: Mutex<Vec<Kept>>,
    bell: OwnedFd,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    /// What is handed over next.
    bundle: Vec<Note>,
    /// Reports that were taken and have not come back.
    waiting: usize,
    sender: SyncSender<Vec<Note>>,
    told: Arc<Mutex<Told>>,
    shelf: Arc<Shelf>,
    thread: Option<JoinHandle<()>>,
    /// Held for as long as we write.
    _lock: OwnedFd,
}

impl Journal {
    /// Opens the journal in `directory`, and tells what it remembers.
    pub fn open(directory: &Path) -> Result<(Self, BTreeMap<InstanceId, Memory>), JournalError> {
        let path = directory.join(FILE);
        let name = || path.display().to_string();
        let failed = |source: rusqlite::Error| match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                JournalError::Damaged { path: name() }
            }
            _ => JournalError::Open { path: name(), source },
        };
        let lock = lock(directory)?;
        let connection = Connection::open(&path).map_err(failed)?;
        let found: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(failed)?;
        if found > VERSION {
            return Err(JournalError::TooNew { path: name(), found });
        }
        let memory = prepare(&connection, found).and_then(|()| recall(&connection));
        let memory = memory.map_err(failed)?;
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let shelf = Arc::new(Shelf { kept: Mutex::default(), bell });
        let (sender, receiver) = sync_channel(BUNDLES);
        let theirs = Arc::clone(&shelf);
        let last = last_number(&connection).map_err(failed)?;
        let told = Arc::<Mutex<Told>>::default();
        let (later, ledger) = (Later::default(), Arc::clone(&told));
        let clerk = Clerk { connection, shelf: theirs, last, later, ledger, is_failing: false };
        let work = move || clerk.work(&receiver);
        let thread = std::thread::Builder::new().name("journal".to_owned()).spawn(work)?;
        let (bundle, waiting) = (Vec::new(), 0);
        let thread = Some(thread);
        let journal = Self { bundle, waiting, sender, told, shelf, thread, _lock: lock };
        Ok((journal, memory))
    }

    /// Takes a report that is to be written; false if there is no room, and nothing can be promised.
    pub fn keep(&mut self, ticket: u64, instance: InstanceId, claim: Claim) -> bool {
        let has_room = self.waiting < LONGEST;
        if has_room {
            self.waiting += 1;
            self.bundle.push(Note::Report { ticket, instance, claim });
        }
        has_room
    }

    /// Notes what holds, and whether it was acted on or was so already. What is lost of this with the
    /// process is considered once more by the next.
    pub fn settle(&mut self, instance: InstanceId, seq: i64, claim: Claim, is_acted_on: bool) {
        self.bundle.push(Note::Settled { instance, seq, claim, is_acted_on });
    }

    /// Nothing is remembered of this one any more.
    pub fn forget(&mut self, instance: InstanceId) {
        self.bundle.push(Note::Forget(instance));
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
    pub fn ledger(&self) -> Ledger {
        Ledger { told: Arc::clone(&self.told), sender: self.sender.clone() }
    }

    /// What has been written since the last call.
    pub fn kept(&mut self) -> Vec<Kept> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shelf.bell, &mut count);
        let kept = self.shelf.kept.lock().map(|mut kept| std::mem::take(&mut *kept));
        let kept = kept.unwrap_or_default();
        self.waiting = self.waiting.saturating_sub(kept.len());
        kept
    }
}

impl AsFd for Journal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shelf.bell.as_fd()
    }
}

impl Drop for Journal {
    /// Everything that was handed over is written before this returns.
    fn drop(&mut self) {
        self.bundle.push(Note::End);
        // Others may still have a ledger, so that the line is not cut.
        let _ = self.sender.send(std::mem::take(&mut self.bundle));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One receiver for a journal: it gives the numbers.
fn lock(directory: &Path) -> Result<OwnedFd, JournalError> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(0o600);
    let file = rustix::fs::open(directory.join(LOCK), flags, mode).map_err(io::Error::from)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::AGAIN) => Err(JournalError::Taken(directory.display().to_string())),
        Err(errno) => Err(JournalError::Io(errno.into())),
    }
}

fn prepare(connection: &Connection, found: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A promise outlives the machine.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    let steps = match found {
        0 => CREATE,
        1 => TAKE_OVER,
        _ => return Ok(()),
    };
    connection.execute_batch(&format!(
        "BEGIN; {steps} {CREATE_TOLD} PRAGMA user_version = {VERSION}; COMMIT;"
    ))
}

fn recall(connection: &Connection) -> rusqlite::Result<BTreeMap<InstanceId, Memory>> {
    let mut memories: BTreeMap<InstanceId, Memory> = BTreeMap::new();
    let mut settled = connection.prepare("SELECT instance, seq, word, acted, at FROM settled")?;
    let mut rows = settled.query([])?;
    while let Some(row) = rows.next()? {
        if let Some((instance, seq, claim)) = entry(row)? {
            let at = Duration::from_millis(row.get::<_, i64>(4)?.try_into().unwrap_or(0));
            let holds = Holds { claim, seq, acted: row.get(3)?, at: UNIX_EPOCH + at };
            memories.entry(instance).or_default().settled = Some(holds);
        }
    }
    let mut open = connection.prepare(
        "SELECT instance, seq, word FROM report WHERE seq > \
         coalesce((SELECT seq FROM settled WHERE settled.instance = report.instance), 0) ORDER BY seq",
    )?;
    let mut rows = open.query([])?;
    while let Some(row) = rows.next()? {
        if let Some((instance, seq, claim)) = entry(row)? {
            memories.entry(instance).or_default().open.push((seq, claim));
        }
    }
    let mut told = connection.prepare("SELECT instance, seq, party FROM told")?;
    let mut rows = told.query([])?;
    while let Some(row) = rows.next()? {
        let instance = row.get::<_, String>(0)?.parse::<InstanceId>();
        if let Some(memory) = instance.ok().and_then(|instance| memories.get_mut(&instance)) {
            memory.told.insert(row.get(2)?, row.get(1)?);
        }
    }
    Ok(memories)
}

/// The highest number that was ever given.
fn last_number(connection: &Connection) -> rusqlite::Result<i64> {
    let question = "SELECT max(coalesce((SELECT max(seq) FROM report), 0), \
                    coalesce((SELECT max(seq) FROM settled), 0))";
    connection.query_row(question, [], |row| row.get(0))
}

/// What only we have written is as we have written it; anything else is left alone.
fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<(InstanceId, i64, Claim)>> {
    let (instance, seq, word): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(instance
        .parse()
        .ok()
        .zip(Claim::of_word(&word))
        .map(|(instance, claim)| (instance, seq, claim)))
}

/// What need not be on the disk before somebody is answered: of each instance and party, the last.
#[derive(Default)]
struct Later {
    /// The last report that was considered, what holds, and the last that was acted on; `None` to forget.
    settled: BTreeMap<InstanceId, Option<(i64, Claim, i64)>>,
    told: Told,
    since: Option<Instant>,
}

impl Later {
    fn add(&mut self, note: Note) {
        match note {
            Note::Settled { instance, seq, claim, is_acted_on } => {
                let entry = self.settled.entry(instance).or_default();
                let before = entry.map_or(0, |(_, _, acted)| acted);
                *entry = Some((seq, claim, if is_acted_on { seq } else { before }));
            }
            Note::Forget(instance) => {
                self.told.retain(|(_, other), _| *other != instance);
                self.settled.insert(instance, None);
            }
            Note::Told | Note::Report { .. } | Note::End => return,
        }
        self.since.get_or_insert_with(Instant::now);
    }

    /// Takes over what is in the ledger.
    fn take(&mut self, ledger: &Mutex<Told>) {
        let told = ledger.lock().map(|mut told| std::mem::take(&mut *told)).unwrap_or_default();
        if !told.is_empty() {
            self.told.extend(told);
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// How long it may wait.
    fn patience(&self) -> Option<Duration> {
        self.since.map(|since| LATER.saturating_sub(since.elapsed()))
    }
}

/// The thread's side.
struct Clerk {
    connection: Connection,
    shelf: Arc<Shelf>,
    /// The last number that was given.
    last: i64,
    later: Later,
    ledger: Arc<Mutex<Told>>,
    /// What may wait cannot be written, and that was said.
    is_failing: bool,
}

impl Clerk {
    fn work(mut self, bundles: &Receiver<Vec<Note>>) {
        let mut cleared = Instant::now();
        loop {
            let first = match self.later.patience() {
                None => bundles.recv().ok(),
                Some(patience) => match bundles.recv_timeout(patience) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.write_later();
                        continue;
                    }
                    bundle => bundle.ok(),
                },
            };
            let first = first.unwrap_or_else(|| vec![Note::End]);
            let mut reports = Vec::new();
            let mut is_over = false;
            for note in std::iter::once(first).chain(bundles.try_iter()).flatten() {
                match note {
                    Note::Report { ticket, instance, claim } => {
                        reports.push((ticket, instance, claim));
                    }
                    Note::End => is_over = true,
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

    /// Writes reports, and leaves word of it.
    fn promise(&mut self, reports: &[(u64, InstanceId, Claim)]) {
        let kept: Vec<Kept> = match self.write(reports) {
            Ok(kept) => kept,
            Err(error) => {
                let why = error.to_string();
                reports.iter().map(|(ticket, ..)| (*ticket, Err(why.clone()))).collect()
            }
        };
        if let Ok(mut shelf) = self.shelf.kept.lock() {
            shelf.extend(kept);
        }
        let _ = rustix::io::write(&self.shelf.bell, &1_u64.to_ne_bytes());
    }

    fn write(&mut self, reports: &[(u64, InstanceId, Claim)]) -> rusqlite::Result<Vec<Kept>> {
        let at = now();
        let transaction = self.connection.transaction()?;
        let mut kept = Vec::with_capacity(reports.len());
        let mut seq = self.last;
        {
            let mut insert = transaction
                .prepare("INSERT INTO report (seq, at, instance, word) VALUES (?1, ?2, ?3, ?4)")?;
            for (ticket, instance, claim) in reports {
                seq += 1;
                insert.execute(params![seq, at, instance.as_str(), claim.word()])?;
                kept.push((*ticket, Ok(seq)));
            }
        }
        transaction.commit()?;
        self.last = seq;
        Ok(kept)
    }

    /// Writes what could wait. If it cannot be written now, it is tried again.
    fn write_later(&mut self) {
        let later = std::mem::take(&mut self.later);
        match self.try_write_later(&later) {
            Ok(()) if std::mem::take(&mut self.is_failing) => {
                tracing::info!("the journal can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let what =
                        "what was told cannot be noted, and may be told again after a restart";
                    tracing::error!(%error, "{what}");
                }
                self.later = Later { since: Some(Instant::now()), ..later };
            }
        }
    }

    fn try_write_later(&mut self, later: &Later) -> rusqlite::Result<()> {
        let at = now();
        let transaction = self.connection.transaction()?;
        {
            let mut settled = transaction.prepare(
                "INSERT INTO settled (instance, seq, at, word, acted) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT (instance) DO UPDATE SET seq = ?2, at = ?3, word = ?4, \
                 acted = max(acted, ?5)",
            )?;
            for (instance, holds) in &later.settled {
                let id = instance.as_str();
                if let Some((seq, claim, acted)) = holds {
                    settled.execute(params![id, seq, at, claim.word(), acted])?;
                    continue;
                }
                for table in ["report", "settled", "told"] {
                    let delete = format!("DELETE FROM {table} WHERE instance = ?1");
                    transaction.execute(&delete, [id])?;
                }
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
    fn clear(&self) {
        // A disk that is full now may not be next time.
        let _ = self.connection.execute(
            "DELETE FROM report WHERE at < ?1 AND seq <= \
             (SELECT seq FROM settled WHERE settled.instance = report.instance)",
            [now() - KEPT_MILLIS],
        );
    }
}

/// Milliseconds since the epoch.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> InstanceId {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_promised_is_remembered_and_what_was_settled_is_settled() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, memory) = Journal::open(directory.path()).unwrap();
        assert!(memory.is_empty());
        for (ticket, claim) in [(1, Claim::Backup), (2, Claim::Primary), (3, Claim::Backup)] {
            assert!(journal.keep(ticket, id("a"), claim));
        }
        assert!(journal.keep(4, id("b"), Claim::Primary));
        journal.settle(id("a"), 1, Claim::Backup, true);
        drop(journal);
        let (mut journal, memory) = Journal::open(directory.path()).unwrap();
        let holds = memory[&id("a")].settled.unwrap();
        assert_eq!((holds.claim, holds.seq, holds.acted), (Claim::Backup, 1, 1));
        assert_eq!(memory[&id("a")].open, [(2, Claim::Primary), (3, Claim::Backup)]);
        assert_eq!(memory[&id("b")].settled, None);
        assert_eq!(memory[&id("b")].open, [(4, Claim::Primary)]);
        journal.settle(id("a"), 3, Claim::Backup, false);
        drop(journal);
        let (_journal, memory) = Journal::open(directory.path()).unwrap();
        assert_eq!(memory[&id("a")].open, []);
        let holds = memory[&id("a")].settled.unwrap();
        assert_eq!((holds.seq, holds.acted), (3, 1), "nobody was told of what was so already");
    }

    #[test]
    fn who_was_told_is_remembered_and_a_ledger_that_is_still_held_holds_nobody_up() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(directory.path()).unwrap();
        journal.settle(id("a"), 7, Claim::Primary, true);
        journal.hand_over().unwrap();
        let (ledger, party) = (journal.ledger(), Arc::from("hook"));
        ledger.told(&party, &id("a"), 5);
        ledger.told(&party, &id("a"), 7);
        drop(journal);
        ledger.told(&party, &id("a"), 9);
        let (_journal, memory) = Journal::open(directory.path()).unwrap();
        assert_eq!(memory[&id("a")].told, BTreeMap::from([("hook".to_owned(), 7)]));
    }

    #[test]
    fn a_journal_of_the_format_before_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let connection = Connection::open(directory.path().join(FILE)).unwrap();
        let made = "CREATE TABLE report (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, \
                    instance TEXT NOT NULL, word TEXT NOT NULL); \
                    CREATE INDEX report_by_instance ON report (instance, seq); \
                    CREATE TABLE settled (instance TEXT PRIMARY KEY, seq INTEGER NOT NULL, \
                    at INTEGER NOT NULL, word TEXT NOT NULL); PRAGMA user_version = 1; \
                    INSERT INTO settled VALUES ('a', 3, 5, 'primary');";
        connection.execute_batch(made).unwrap();
        drop(connection);
        let (mut journal, memory) = Journal::open(directory.path()).unwrap();
        let holds = memory[&id("a")].settled.unwrap();
        assert_eq!((holds.claim, holds.seq, holds.acted), (Claim::Primary, 3, 3));
        assert!(journal.keep(1, id("b"), Claim::Backup));
        drop(journal);
        let (_journal, memory) = Journal::open(directory.path()).unwrap();
        assert_eq!(memory[&id("b")].open, [(4, Claim::Backup)], "no number is used again");
    }

    #[test]
    fn every_ticket_comes_back_with_a_number() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(directory.path()).unwrap();
        for ticket in 0..500 {
            assert!(journal.keep(ticket, id("a"), Claim::Backup));
            journal.hand_over().unwrap();
        }
        let mut kept = Vec::new();
        while kept.len() < 500 {
            let mut polled = [rustix::event::PollFd::new(&journal, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut polled, None).unwrap();
            journal.hand_over().unwrap();
            kept.extend(journal.kept());
        }
        let numbers: Vec<i64> = kept.iter().map(|(_, seq)| *seq.as_ref().unwrap()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "in order, and none twice");
    }

    #[test]
    fn one_receiver_writes_and_another_is_told_so() {
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(directory.path()).unwrap();
        let error = Journal::open(directory.path()).unwrap_err();
        assert!(matches!(error, JournalError::Taken(_)), "{error}");
        drop(journal);
        Journal::open(directory.path()).unwrap();
    }

    #[test]
    fn whoever_is_forgotten_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(directory.path()).unwrap();
        assert!(journal.keep(1, id("a"), Claim::Backup) && journal.keep(2, id("b"), Claim::Backup));
        journal.settle(id("a"), 1, Claim::Backup, true);
        journal.hand_over().unwrap();
        journal.ledger().told(&Arc::from("hook"), &id("a"), 1);
        journal.forget(id("a"));
        drop(journal);
        let (_journal, memory) = Journal::open(directory.path()).unwrap();
        assert_eq!(memory.keys().collect::<Vec<_>>(), [&id("b")]);
    }

    #[test]
    fn a_journal_that_is_no_database_is_named_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let mut file = std::fs::File::create(&path).unwrap();
        io::Write::write_all(&mut file, &[b'x'; 4096]).unwrap();
        let error = Journal::open(directory.path()).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn a_journal_of_a_later_program_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let connection = Connection::open(directory.path().join(FILE)).unwrap();
        connection.pragma_update(None, "user_version", 9).unwrap();
        drop(connection);
        let error = Journal::open(directory.path()).unwrap_err();
        assert!(matches!(error, JournalError::TooNew { found: 9, .. }), "{error}");
    }
}
