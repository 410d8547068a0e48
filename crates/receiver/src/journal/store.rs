// SPDX-License-Identifier: Apache-2.0
//! The journal's SQLite file: format, lock, and the contents at the start.

use std::io;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, Row};
use rustix::fs::{Mode, OFlags};
use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;
use vipwatch_linux::clock::{from_unix_millis, unix_millis_now};
use vipwatch_linux::file::{is_storage_error, restrict_database, set_aside};
use vipwatch_linux::lock::FileLock;

use super::{FILE, FORMAT_VERSION, JournalError, SettledRow, StoredReports, undelivered};

/// Name of the file that is locked while a receiver uses the journal.
const LOCK_FILE: &str = "journal.lock";

/// Size of SQLite's write-ahead log after which SQLite itself makes a checkpoint: 4096 pages of 4 KiB are 16 MiB. The
/// writer makes its own checkpoints when it is idle; this limit is for a receiver that is never idle.
const WAL_LIMIT_PAGES: i64 = 4096;
const WAL_LIMIT_BYTES: i64 = WAL_LIMIT_PAGES * 4096;

/// Tables of a new journal, besides [`undelivered::CREATE`]. The writer assigns `seq` itself, so that no number is ever used again.
const CREATE: &str = "
CREATE TABLE report (
    seq      INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,              -- milliseconds since the Unix epoch
    instance TEXT NOT NULL,
    state    TEXT NOT NULL                  -- the reported state
);
CREATE TABLE settled (
    instance TEXT PRIMARY KEY,
    seq      INTEGER NOT NULL,              -- the last report that is settled
    at       INTEGER NOT NULL,
    state    TEXT NOT NULL,
    acted    INTEGER NOT NULL               -- the last report that was delivered to the sink; 0 for none
) WITHOUT ROWID;
";

/// An open journal file, and the lock that keeps other receivers from it.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) connection: Connection,
    lock: FileLock,
}

/// The contents of a file when it was opened.
#[derive(Default)]
pub(super) struct StoredState {
    pub(super) reports: StoredReports,
    /// No report has a sequence number above this one.
    pub(super) last_seq: i64,
}

impl Store {
    /// Opens or creates the journal in `directory`. A file that is damaged or has another format is renamed and replaced.
    pub(super) fn open(directory: &Path) -> Result<(Self, StoredState), JournalError> {
        let lock = lock(directory)?;
        match open_file(&directory.join(FILE)) {
            Err(error) if error.is_damage() => Self::create_anew(directory, lock, None),
            Err(JournalError::OtherFormat { found, .. }) => {
                Self::create_anew(directory, lock, Some(found))
            }
            opened => opened.map(|(connection, stored)| (Self { connection, lock }, stored)),
        }
    }

    /// Renames the file, which is damaged, and creates a new one.
    pub(super) fn replace(self, directory: &Path) -> Result<(Self, StoredState), JournalError> {
        // ORDER: the connection is closed before its files are renamed, because SQLite removes `-wal` and `-shm` by
        // name when it closes a database.
        drop(self.connection);
        Self::create_anew(directory, self.lock, None)
    }

    /// Renames a file of another `format`, or without one a damaged file, and creates a new one.
    fn create_anew(
        directory: &Path,
        lock: FileLock,
        format: Option<i64>,
    ) -> Result<(Self, StoredState), JournalError> {
        let path = directory.join(FILE);
        let aside = set_aside(&path, format)?;
        let kept_as = aside.path.display();
        if let Some(format) = format {
            tracing::error!(format, %kept_as, "journal file has another format; a new one is begun");
        } else {
            tracing::error!(%kept_as, "journal file is damaged; a new one is begun");
        }
        let (connection, stored) = open_file(&path)?;
        // The last sequence number of the old file is unknown. A receiver that has stored fewer than ten
        // reports a second since 1970 has not reached this number.
        let stored = StoredState { last_seq: unix_millis_now() / 100, ..stored };
        Ok((Self { connection, lock }, stored))
    }
}

fn open_file(path: &Path) -> Result<(Connection, StoredState), JournalError> {
    let name = || path.display().to_string();
    let failed = |source| JournalError::Open { path: name(), source };
    restrict_database(path);
    let connection = Connection::open(path).map_err(failed)?;
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let is_new = version == 0 && !has_tables(&connection).map_err(failed)?;
    if !is_new && version != FORMAT_VERSION {
        return Err(JournalError::OtherFormat { path: name(), found: version });
    }
    let read = prepare(&connection, is_new).and_then(|()| {
        // SQLite opens a file on a read-only disk for reading only, and does not notice that the disk becomes
        // writable.
        if connection.is_readonly("main")? {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
            return Err(rusqlite::Error::SqliteFailure(code, None));
        }
        Ok(StoredState { reports: read_reports(&connection)?, last_seq: last_seq(&connection)? })
    });
    Ok((connection, read.map_err(failed)?))
}

/// Whether SQLite reports that a file is not a database, or is damaged.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// Locks the directory for this receiver: two writers would assign the same sequence numbers.
fn lock(directory: &Path) -> Result<FileLock, JournalError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let (path, mode) = (directory.join(LOCK_FILE), Mode::from_raw_mode(0o600));
    let file = rustix::fs::open(&path, flags | OFlags::CREATE, mode).map_err(io::Error::from);
    let file = match file {
        // On a disk that cannot be written, the lock file of an earlier receiver may exist.
        Err(error) if is_storage_error(&error) => {
            rustix::fs::open(&path, flags, mode).or(Err(error))?
        }
        file => file?,
    };
    let lock = FileLock::try_exclusive(file)?;
    lock.ok_or_else(|| JournalError::Locked(directory.display().to_string()))
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) > 0 FROM sqlite_schema", [], |row| row.get(0))
}

/// Sets SQLite's options, and creates the tables of a new file.
fn prepare(connection: &Connection, is_new: bool) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // An fsync for each commit: a report that was answered with 200 survives a power failure.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", WAL_LIMIT_BYTES)?;
    connection.pragma_update(None, "wal_autocheckpoint", WAL_LIMIT_PAGES)?;
    if !is_new {
        return Ok(());
    }
    let tables = [CREATE, undelivered::CREATE].concat();
    connection
        .execute_batch(&format!("BEGIN; {tables} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"))
}

/// Reads settled states and unsettled reports.
fn read_reports(connection: &Connection) -> rusqlite::Result<StoredReports> {
    let mut reports = StoredReports::new();
    let mut settled = connection.prepare("SELECT instance, seq, state, acted, at FROM settled")?;
    let mut rows = settled.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(ReportRow { instance, seq, state }) = ReportRow::read(row)? {
            let (acted_seq, at) = (row.get(3)?, from_unix_millis(row.get(4)?));
            let settled = SettledRow { state, seq, acted_seq, at };
            reports.entry(instance).or_default().settled = Some(settled);
        }
    }
    let mut unsettled = connection.prepare(
        "SELECT instance, seq, state FROM report WHERE seq > \
         coalesce((SELECT seq FROM settled WHERE settled.instance = report.instance), 0) ORDER BY seq",
    )?;
    let mut rows = unsettled.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(ReportRow { instance, seq, state }) = ReportRow::read(row)? {
            reports.entry(instance).or_default().unsettled.push((seq, state));
        }
    }
    Ok(reports)
}

/// The highest sequence number in the file; 0 if it is empty.
fn last_seq(connection: &Connection) -> rusqlite::Result<i64> {
    let query = "SELECT max(coalesce((SELECT max(seq) FROM report), 0), \
                 coalesce((SELECT max(seq) FROM settled), 0))";
    connection.query_row(query, [], |row| row.get(0))
}

/// The columns `instance`, `seq` and `state`.
struct ReportRow {
    instance: InstanceId,
    seq: i64,
    state: ReportedState,
}

impl ReportRow {
    /// Reads the first three columns; `None` for values that this program does not write.
    fn read(row: &Row<'_>) -> rusqlite::Result<Option<Self>> {
        let (instance, state): (String, String) = (row.get(0)?, row.get(2)?);
        let (Ok(instance), Some(state)) = (instance.parse(), ReportedState::parse(&state)) else {
            return Ok(None);
        };
        Ok(Some(Self { instance, seq: row.get(1)?, state }))
    }
}
