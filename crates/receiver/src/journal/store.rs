//! The journal's file: its format, its lock, and what is read from it at the start.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;
use vipwatch_linux::file::{is_storage_error, set_aside};

use super::{FILE, JournalError, SettledRow, StoredReports, VERSION, writer};

/// Whose lock says that somebody writes.
const LOCK: &str = "claims.lock";

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

/// An open journal file, and the lock that keeps other receivers from it.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) connection: Connection,
    lock: OwnedFd,
}

/// The contents of a file when it was opened.
#[derive(Default)]
pub(super) struct StoredState {
    pub(super) memories: StoredReports,
    /// No report has a number above this one.
    pub(super) last: i64,
}

impl Store {
    /// Opens the journal in `directory`, or begins one; a damaged file is set aside.
    pub(super) fn open(directory: &Path) -> Result<(Self, StoredState), JournalError> {
        let lock = lock(directory)?;
        match open_file(&directory.join(FILE)) {
            Err(error) if error.is_damage() => Self::begin_anew(directory, lock),
            opened => opened.map(|(connection, found)| (Self { connection, lock }, found)),
        }
    }

    /// Sets the file aside, which is damaged, and begins another one.
    pub(super) fn replace(self, directory: &Path) -> Result<(Self, StoredState), JournalError> {
        // ORDER: a connection removes files by name when it is closed, so it goes before they are renamed.
        drop(self.connection);
        Self::begin_anew(directory, self.lock)
    }

    fn begin_anew(directory: &Path, lock: OwnedFd) -> Result<(Self, StoredState), JournalError> {
        let path = directory.join(FILE);
        let aside = set_aside(&path)?;
        tracing::error!(kept_as = %aside.display(), "journal file is damaged; a new one is begun");
        let (connection, found) = open_file(&path)?;
        // The numbers that were given are not known: ten a second since the epoch is more.
        let found = StoredState { last: writer::now() / 100, ..found };
        Ok((Self { connection, lock }, found))
    }
}

fn open_file(path: &Path) -> Result<(Connection, StoredState), JournalError> {
    let name = || path.display().to_string();
    let failed = |source| JournalError::Open { path: name(), source };
    vipwatch_linux::file::restrict_database(path);
    let connection = Connection::open(path).map_err(failed)?;
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    if version > VERSION {
        return Err(JournalError::TooNew { path: name(), found: version });
    }
    let read = prepare(&connection, version).and_then(|()| {
        // SQLite opens a file on a read-only disk for reading, and would do so until it is closed.
        if connection.is_readonly("main")? {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
            return Err(rusqlite::Error::SqliteFailure(code, None));
        }
        Ok(StoredState { memories: recall(&connection)?, last: last_number(&connection)? })
    });
    Ok((connection, read.map_err(failed)?))
}

/// Whether SQLite says that a file is not a database any more, or not a whole one.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// One receiver for a journal: it gives the numbers.
fn lock(directory: &Path) -> Result<OwnedFd, JournalError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let (path, mode) = (directory.join(LOCK), Mode::from_raw_mode(0o600));
    let file = rustix::fs::open(&path, flags | OFlags::CREATE, mode).map_err(io::Error::from);
    let file = match file {
        // On a disk that cannot be written it may be there already.
        Err(error) if is_storage_error(&error) => {
            rustix::fs::open(&path, flags, mode).or(Err(error))?
        }
        file => file?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::AGAIN) => Err(JournalError::Taken(directory.display().to_string())),
        Err(errno) => Err(JournalError::Io(errno.into())),
    }
}

/// Makes it what this program writes.
fn prepare(connection: &Connection, found: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A promise outlives the machine.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    // The clerk does it when nobody waits; this is for those who never leave him a moment: 16 MiB.
    connection.pragma_update(None, "wal_autocheckpoint", 4096)?;
    let steps = match found {
        0 => CREATE,
        1 => TAKE_OVER,
        _ => return Ok(()),
    };
    connection.execute_batch(&format!(
        "BEGIN; {steps} {CREATE_TOLD} PRAGMA user_version = {VERSION}; COMMIT;"
    ))
}

/// What is to be remembered.
fn recall(connection: &Connection) -> rusqlite::Result<StoredReports> {
    let mut memories = StoredReports::new();
    let mut settled = connection.prepare("SELECT instance, seq, word, acted, at FROM settled")?;
    let mut rows = settled.query([])?;
    while let Some(row) = rows.next()? {
        if let Some((instance, seq, state)) = entry(row)? {
            let at = Duration::from_millis(row.get::<_, i64>(4)?.try_into().unwrap_or(0));
            let holds = SettledRow { state, seq, acted: row.get(3)?, at: UNIX_EPOCH + at };
            memories.entry(instance).or_default().settled = Some(holds);
        }
    }
    let mut open = connection.prepare(
        "SELECT instance, seq, word FROM report WHERE seq > \
         coalesce((SELECT seq FROM settled WHERE settled.instance = report.instance), 0) ORDER BY seq",
    )?;
    let mut rows = open.query([])?;
    while let Some(row) = rows.next()? {
        if let Some((instance, seq, state)) = entry(row)? {
            memories.entry(instance).or_default().open.push((seq, state));
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
fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<(InstanceId, i64, ReportedState)>> {
    let (instance, seq, word): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(instance
        .parse()
        .ok()
        .zip(ReportedState::parse(&word))
        .map(|(instance, state)| (instance, seq, state)))
}
