//! Writes in batches, on a thread of its own: the caller never waits for the disk.
//!
//! A file that cannot be opened or written does not end anything: records are counted as dropped, and
//! the thread tries again. A damaged file is renamed, and a new one is begun. Afterwards the `standing`
//! table is out of date, and the owner of the writer [restates](Writer::restate) every instance.

mod damage;
mod recorder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use vipwatch_linux::clock::unix_millis_now as now;
use vipwatch_linux::file::set_aside;
use vipwatch_linux::worker::spawn_worker;

use self::recorder::Recorder;
use crate::reader::{last_roles, open_without_writing};
use crate::{FILE, HistoryError, LastRole, Latencies, Record, Stage, schema};

/// Changes that may wait for the disk, which takes a thousand at a time: more than a node has
/// instances.
const QUEUE: usize = 1 << 13;
/// How much to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How long.
    pub age: Duration,
    /// How many changes.
    pub changes: u64,
    /// How large the file may become.
    pub bytes: u64,
}

impl Default for Retention {
    /// A month, a million changes (some 200 MB), or half a gigabyte.
    fn default() -> Self {
        Self { age: Duration::from_hours(24 * 30), changes: 1_000_000, bytes: 512 << 20 }
    }
}

/// What was found when the history was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OpenedHistory {
    /// The recorder before was killed; this is when it was last known to run.
    pub killed: Option<i64>,
    /// The file was damaged and is kept under this name.
    pub set_aside: Option<PathBuf>,
    /// No change has a number above this one, whether it is in the history or was lost.
    pub last: i64,
    /// The last known role of each instance.
    pub roles: BTreeMap<String, LastRole>,
    /// Why the file could not be opened; the writer tries again until it can.
    pub failed: Option<String>,
}

/// What the thread is handed.
#[derive(Debug)]
enum Note {
    Change(Box<(Record, Latencies)>),
    /// Who knew how soon; `None`: it does not know after all.
    Stage(i64, Stage, Option<i64>),
    /// The present state of an instance, for the `standing` table only.
    Restate(Box<Restated>),
    /// A reader has met damage: examine the file.
    Examine,
}

#[derive(Debug)]
struct Restated {
    instance: String,
    seq: i64,
    last: LastRole,
}

/// What went wrong, shared with the thread.
#[derive(Debug, Default)]
struct Health {
    dropped: AtomicU64,
    /// Why the file cannot be opened or written; `None` if it can.
    failing: Mutex<Option<String>>,
    /// Damaged files that were renamed, since the owner last asked.
    set_aside: Mutex<Vec<PathBuf>>,
    /// Notes were lost, or a new file was begun: `standing` is out of date.
    is_outdated: AtomicBool,
}

/// Records changes.
#[derive(Debug)]
pub struct Writer {
    sender: Option<SyncSender<Note>>,
    health: Arc<Health>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens the history in `directory`, or begins one. Fails if a later program has written it; any
    /// other trouble with the file is in [`OpenedHistory::failed`] and in [`Self::failing`].
    pub fn open(directory: &Path, keep: Retention) -> Result<(Self, OpenedHistory), HistoryError> {
        let path = directory.join(FILE);
        let (connection, opened) = match open_or_replace(&path) {
            Ok((connection, opened)) => (Some(connection), opened),
            Err(error @ HistoryError::TooNew { .. }) => return Err(error),
            Err(error) => (None, read_only(&path, &error)),
        };
        let health = Health { failing: Mutex::new(opened.failed.clone()), ..Health::default() };
        let health = Arc::new(health);
        let (sender, receiver) = sync_channel(QUEUE);
        let recorder = Recorder::new(path, connection, keep, opened.last, Arc::clone(&health));
        let thread = spawn_worker("history", move |heartbeat| recorder.run(&receiver, heartbeat))?;
        Ok((Self { sender: Some(sender), health, thread: Some(thread) }, opened))
    }

    /// Takes a record down, without waiting. If the disk is so far behind that there is no
    /// room, it is counted instead, and the count is in the history.
    pub fn record(&self, record: Record, latencies: Latencies) {
        if !self.put(Note::Change(Box::new((record, latencies)))) {
            self.health.dropped.fetch_add(1, Ordering::Relaxed);
            self.health.is_outdated.store(true, Ordering::Relaxed);
        }
    }

    /// Takes down that `stage` knew of change `seq` after so many microseconds.
    pub fn stage(&self, seq: i64, stage: Stage, micros: i64) {
        // A change is worth counting if it is lost; how long it took is not.
        let _ = self.put(Note::Stage(seq, stage, Some(micros)));
    }

    /// Takes down that `stage` does not know of change `seq` yet.
    pub fn unstage(&self, seq: i64, stage: Stage) {
        let _ = self.put(Note::Stage(seq, stage, None));
    }

    /// Writes the present state of an instance, whose last change is `seq`, without recording a change.
    pub fn restate(&self, instance: String, seq: i64, last: LastRole) {
        if !self.put(Note::Restate(Box::new(Restated { instance, seq, last }))) {
            self.health.is_outdated.store(true, Ordering::Relaxed);
        }
    }

    /// Has the file examined, because a reader has met damage; a damaged file is set aside. A file that was
    /// found intact is not examined again for some minutes.
    pub fn examine(&self) {
        let _ = self.put(Note::Examine);
    }

    fn put(&self, note: Note) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.try_send(note).is_ok())
    }

    /// How many changes could not be recorded.
    pub fn dropped(&self) -> u64 {
        self.health.dropped.load(Ordering::Relaxed)
    }

    /// Why the file cannot be opened or written now; `None` if it can.
    pub fn failing(&self) -> Option<String> {
        self.health.failing.lock().map_or(None, |failing| failing.clone())
    }

    /// The new names of files that were damaged, since the last call.
    pub fn take_set_aside(&self) -> Vec<PathBuf> {
        self.health.set_aside.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }

    /// Whether the file can be written and does not have the present state of every instance: then the
    /// caller restates them all. True once for each such time.
    pub fn take_outdated(&self) -> bool {
        self.failing().is_none() && self.health.is_outdated.swap(false, Ordering::Relaxed)
    }
}

/// More changes than a node can have told of and not written before it was killed.
const UNWRITTEN: i64 = 100_000;

/// A number that no change has gone beyond. Numbers are never used again: others know changes by them.
fn floor(connection: &Connection, is_killed: bool) -> Result<i64, HistoryError> {
    let dropped: i64 =
        connection.query_row("SELECT coalesce(sum(dropped), 0) FROM run", [], |row| row.get(0))?;
    let lost = if is_killed { UNWRITTEN } else { 0 };
    Ok(last(connection)?.saturating_add(lost).saturating_add(dropped))
}

/// The same without a file to read: ten numbers a second since the epoch, which is more than there were.
fn unknown_floor() -> i64 {
    now() / 100
}

/// The highest number in the file: of a change that is kept, of one that was deleted or
/// [reserved](reserve), or of an instance that was restated and whose change is not in the file.
fn last(connection: &Connection) -> Result<i64, HistoryError> {
    let last = connection.query_row(
        "SELECT max(coalesce((SELECT max(seq) FROM change), 0), \
         coalesce((SELECT max(seq) FROM standing), 0), \
         coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'change'), 0))",
        [],
        |row| row.get(0),
    )?;
    Ok(last)
}

/// Writes down that changes have numbers up to `last`, whether or not they are in the file.
fn reserve(connection: &Connection, last: i64) -> Result<(), HistoryError> {
    let update = "UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'change'";
    // SQLite adds the row with the first change.
    if connection.execute(update, [last])? == 0 {
        let insert = "INSERT INTO sqlite_sequence (name, seq) VALUES ('change', ?1)";
        connection.execute(insert, [last])?;
    }
    Ok(())
}

impl Drop for Writer {
    /// Everything that was recorded is written before this returns.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens the file; a damaged one is set aside first.
fn open_or_replace(path: &Path) -> Result<(Connection, OpenedHistory), HistoryError> {
    match open(path) {
        Err(error) if error.is_damage() => {
            let aside = set_aside(path)?;
            let (connection, opened) = open(path)?;
            let (set_aside, last) = (Some(aside), unknown_floor());
            reserve(&connection, last)?;
            Ok((connection, OpenedHistory { set_aside, last, ..opened }))
        }
        other => other,
    }
}

fn open(path: &Path) -> Result<(Connection, OpenedHistory), HistoryError> {
    let failed = |source| HistoryError::Open { path: path.to_owned(), source };
    vipwatch_linux::file::restrict_database(path);
    let mut connection = Connection::open(path).map_err(failed)?;
    schema::prepare(&mut connection, path)?;
    let roles = last_roles(&connection)?;
    let killed = begin_run(&mut connection)?;
    let last = floor(&connection, killed.is_some())?;
    reserve(&connection, last)?;
    Ok((connection, OpenedHistory { killed, last, roles, ..OpenedHistory::default() }))
}

/// Reads a file that cannot be opened for writing because of `error`, as far as it can be read.
fn read_only(path: &Path, error: &HistoryError) -> OpenedHistory {
    let connection = open_without_writing(path);
    let roles = connection.as_ref().and_then(|file| last_roles(file).ok()).unwrap_or_default();
    // Whether its last writer was killed is not examined: numbers may be skipped, but not used again.
    let known = connection.as_ref().and_then(|file| floor(file, true).ok()).unwrap_or(0);
    let (last, failed) = (unknown_floor().max(known), Some(error.with_cause()));
    OpenedHistory { last, roles, failed, ..OpenedHistory::default() }
}

/// Notes that the recorder runs; tells when the one before was last known to, if it was killed.
fn begin_run(connection: &mut Connection) -> Result<Option<i64>, HistoryError> {
    let transaction = connection.transaction()?;
    let killed = transaction.query_row(
        "SELECT max(seen) FROM run WHERE id = (SELECT max(id) FROM run) AND ended IS NULL",
        [],
        |row| row.get(0),
    )?;
    let time = now();
    transaction.execute("INSERT INTO run (began, seen) VALUES (?1, ?1)", [time])?;
    transaction.commit()?;
    Ok(killed)
}

#[cfg(test)]
mod tests;
