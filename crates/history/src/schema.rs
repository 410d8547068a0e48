// SPDX-License-Identifier: Apache-2.0
//! The tables of the history file and its format number.
//!
//! `PRAGMA user_version` holds the format number. Only a file of the current format is read or written.

use std::path::Path;

use rusqlite::Connection;

use crate::{HistoryError, event, silence};

/// The format that this program reads and writes.
pub(crate) const VERSION: i64 = 11;

/// The tables of transitions, roles, runs and deliveries.
///
/// `transition`: one row for each transition, in order of `seq`. `run`: one row for each run of the recorder; its
/// transitions have numbers above `after_seq`. `unrecorded`: one row for each period in which transitions were
/// dropped. `role`: the last role of each instance, which retention does not delete. `delivery`: the last concluded
/// notification of each target, source and instance.
const CREATE: &str = "
CREATE TABLE transition (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,           -- milliseconds since the epoch
    instance    TEXT NOT NULL,
    netns       TEXT,                       -- NULL: the node's own
    from_role   TEXT,                       -- NULL: not known
    to_role     TEXT NOT NULL,
    trigger     TEXT NOT NULL,              -- why the node read the role
    reason      TEXT,
    cause       TEXT,                       -- NULL: not known when the row was written
    evidence    TEXT,                       -- a JSON object; NULL without a cause
    file_us     INTEGER,                    -- latency of each stage in microseconds; NULL: the stage does not
    announce_us INTEGER,                    -- apply, or its delivery has not ended
    hook_us     INTEGER,
    webhook_us  INTEGER,
    agent_us    INTEGER
);
CREATE INDEX transition_by_instance ON transition (instance, seq);
CREATE INDEX transition_by_time ON transition (at);
CREATE TABLE role (
    instance TEXT PRIMARY KEY,
    role     TEXT NOT NULL,
    since    INTEGER NOT NULL,              -- milliseconds since the epoch
    seq      INTEGER NOT NULL               -- its last transition
);
CREATE TABLE run (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    began     INTEGER NOT NULL,
    seen      INTEGER NOT NULL,             -- last time it is known to have run
    ended     INTEGER,                      -- NULL: it runs, or was killed
    dropped   INTEGER NOT NULL DEFAULT 0,   -- transitions that could not be recorded
    retention INTEGER,                      -- the time of retention when it was seen; NULL: no retention yet
    ahead     INTEGER,                      -- milliseconds by which the wall clock is ahead of it
    ahead_since INTEGER,                    -- since when, by the time of retention
    after_seq INTEGER NOT NULL              -- the highest number in use when the run began
);
CREATE TABLE unrecorded (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    from_at   INTEGER NOT NULL,             -- milliseconds since the epoch
    until_at  INTEGER NOT NULL,
    until_seq INTEGER NOT NULL,             -- the number of the last dropped transition
    count     INTEGER NOT NULL
);
CREATE TABLE delivery (
    target   TEXT NOT NULL,                 -- the name of the target
    source   TEXT NOT NULL,                 -- node or receiver
    instance TEXT NOT NULL,
    seq      INTEGER NOT NULL,              -- the last concluded notification
    outcome  TEXT NOT NULL,                 -- delivered, given-up, superseded or filtered
    role     TEXT,                          -- what the target received last; NULL: nothing, or not known
    missed   INTEGER NOT NULL DEFAULT 0,    -- notifications that retention deleted undelivered
    at       INTEGER NOT NULL,              -- milliseconds since the epoch
    PRIMARY KEY (target, source, instance)
) WITHOUT ROWID;
";

/// Sets the connection up for writing, and creates the tables of a new file.
pub(crate) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), HistoryError> {
    // ORDER: the format is checked first, because a file of another format must not be modified.
    let is_new = is_empty(connection)?;
    if !is_new {
        check_format(connection, path)?;
    }
    // WAL: readers and the writer do not block each other. FULL: a committed batch survives a killed
    // process and a power failure, at the cost of one fsync for each batch.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    // In KiB. A small cache is enough: this connection appends rows and does not query.
    connection.pragma_update(None, "cache_size", -512)?;
    if is_new {
        let transaction = connection.transaction()?;
        transaction.execute_batch(&[CREATE, event::CREATE, silence::CREATE].concat())?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Fails if the file has another format than this program's.
pub(crate) fn check_format(connection: &Connection, path: &Path) -> Result<(), HistoryError> {
    match format(connection)? {
        VERSION => Ok(()),
        found => Err(HistoryError::OtherFormat { path: path.to_owned(), found }),
    }
}

fn format(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Whether the file has no format and no table, as SQLite creates it.
fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(tables == 0 && format(connection)? == 0)
}
