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

/// Names of the file and its lock up to format 2. [`take_over_old_file`] renames the file.
const OLD_FILE: &str = "claims.sqlite";
const OLD_LOCK_FILE: &str = "claims.lock";

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

/// Adds the column of format 2 to a journal of format 1.
const UPGRADE_FROM_1: &str = "
ALTER TABLE settled ADD COLUMN acted INTEGER NOT NULL DEFAULT 0;
UPDATE settled SET acted = seq;
DROP INDEX report_by_instance;
";

/// Changes the names of format 1 and 2 to those of format 3.
const RENAME_STATE: &str = "
ALTER TABLE report RENAME COLUMN word TO state;
ALTER TABLE settled RENAME COLUMN word TO state;
";

/// Format 2 has its deliveries in a table of another name than format 3.
const RENAME_DELIVERIES_OF_2: &str = "
ALTER TABLE told RENAME TO old_delivery;
ALTER TABLE old_delivery RENAME COLUMN party TO target;
";

/// From format 4 on, the history has the deliveries. The old ones stay in a table of this name until the history has
/// stored them.
const RENAME_DELIVERIES_OF_3: &str = "
ALTER TABLE delivery RENAME TO old_delivery;
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
    /// Opens or creates the journal in `directory`. A damaged file is renamed and replaced.
    pub(super) fn open(directory: &Path) -> Result<(Self, StoredState), JournalError> {
        let lock = lock(directory, LOCK_FILE)?;
        take_over_old_file(directory)?;
        match open_file(&directory.join(FILE)) {
            Err(error) if error.is_damage() => Self::create_anew(directory, lock),
            opened => opened.map(|(connection, stored)| (Self { connection, lock }, stored)),
        }
    }

    /// Renames the file, which is damaged, and creates a new one.
    pub(super) fn replace(self, directory: &Path) -> Result<(Self, StoredState), JournalError> {
        // ORDER: the connection is closed before its files are renamed, because SQLite removes `-wal` and `-shm` by
        // name when it closes a database.
        drop(self.connection);
        Self::create_anew(directory, self.lock)
    }

    fn create_anew(directory: &Path, lock: FileLock) -> Result<(Self, StoredState), JournalError> {
        let path = directory.join(FILE);
        let aside = set_aside(&path)?;
        tracing::error!(kept_as = %aside.display(), "journal file is damaged; a new one is begun");
        let (connection, stored) = open_file(&path)?;
        // The last sequence number of the damaged file is unknown. A receiver that has stored fewer than ten
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
    if version > FORMAT_VERSION {
        return Err(JournalError::TooNew { path: name(), found: version });
    }
    let read = prepare(&connection, version).and_then(|()| {
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

/// Renames the file of an earlier version of this program. Nothing happens if there is none, or if the new file
/// exists.
fn take_over_old_file(directory: &Path) -> Result<(), JournalError> {
    let (old, new) = (directory.join(OLD_FILE), directory.join(FILE));
    if !old.exists() {
        return Ok(());
    }
    if new.exists() {
        // For example after an earlier version of the program ran again.
        tracing::error!(ignored = %old.display(), used = %new.display(), "two journal files");
        return Ok(());
    }
    // A receiver of the earlier version may still use the file.
    let _old_lock = lock(directory, OLD_LOCK_FILE)?;
    // ORDER: SQLite copies the write-ahead log into the file when the last connection closes. Afterwards the
    // file is complete without the log, which has the name of the old file.
    let read = Connection::open(&old).and_then(|connection| {
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
    });
    let is_readable = match read {
        Ok(()) => true,
        Err(error) if is_damage(&error) => false,
        // For example on a full disk. The file and its log stay as they are, and the writer tries again.
        Err(source) => return Err(JournalError::Open { path: old.display().to_string(), source }),
    };
    let wal = directory.join(format!("{OLD_FILE}-wal"));
    let has_wal = std::fs::metadata(&wal).is_ok_and(|metadata| metadata.len() > 0);
    if is_readable && has_wal {
        let reason = format!("cannot write the log of {} into the file", old.display());
        return Err(io::Error::other(reason).into());
    }
    std::fs::rename(&old, &new)?;
    if has_wal {
        // The old file is damaged. It is kept with its log when the damage is found again.
        std::fs::rename(&wal, directory.join(format!("{FILE}-wal")))?;
    }
    let _ = std::fs::remove_file(directory.join(OLD_LOCK_FILE));
    tracing::info!(from = %old.display(), to = %new.display(), "journal file renamed");
    Ok(())
}

/// Locks the directory for this receiver: two writers would assign the same sequence numbers.
fn lock(directory: &Path, name: &str) -> Result<FileLock, JournalError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let (path, mode) = (directory.join(name), Mode::from_raw_mode(0o600));
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

/// Sets SQLite's options, and creates or upgrades the tables of a file of format `version`.
fn prepare(connection: &Connection, version: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // An fsync for each commit: a report that was answered with 200 survives a power failure.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", WAL_LIMIT_BYTES)?;
    connection.pragma_update(None, "wal_autocheckpoint", WAL_LIMIT_PAGES)?;
    let steps: &[&str] = match version {
        0 => &[CREATE, undelivered::CREATE],
        1 => &[UPGRADE_FROM_1, RENAME_STATE, undelivered::CREATE],
        2 => &[RENAME_STATE, RENAME_DELIVERIES_OF_2, undelivered::CREATE],
        3 => &[RENAME_DELIVERIES_OF_3, undelivered::CREATE],
        4 => &[undelivered::CREATE],
        _ => return Ok(()),
    };
    let steps = steps.concat();
    connection
        .execute_batch(&format!("BEGIN; {steps} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"))
}

/// Reads settled states, unsettled reports, and the deliveries of format 3.
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
    if !connection.table_exists(None, "old_delivery")? {
        return Ok(reports);
    }
    let mut deliveries = connection.prepare("SELECT instance, seq, target FROM old_delivery")?;
    let mut rows = deliveries.query([])?;
    while let Some(row) = rows.next()? {
        let instance = row.get::<_, String>(0)?.parse::<InstanceId>();
        if let Some(report) = instance.ok().and_then(|instance| reports.get_mut(&instance)) {
            report.delivered.insert(row.get(2)?, row.get(1)?);
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
