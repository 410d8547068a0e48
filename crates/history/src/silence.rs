// SPDX-License-Identifier: Apache-2.0
//! Silences, which are kept in the history file so that a restart of the node does not end them.

use rusqlite::{Connection, Transaction, params};

/// Creates the table of silences.
pub(crate) const CREATE: &str = "
CREATE TABLE silence (
    number     INTEGER PRIMARY KEY,
    instance   TEXT,                         -- NULL: all instances and the node
    created_at INTEGER NOT NULL,             -- milliseconds since the epoch
    until      INTEGER NOT NULL,             -- milliseconds since the epoch
    reason     TEXT NOT NULL,
    created_by TEXT NOT NULL,
    ended_by   TEXT                          -- NULL: no user ended it
);
";

/// One silence. Times are in milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilenceRow {
    /// The number of the silence.
    pub number: i64,
    /// The id of the instance; `None` for all instances and the node.
    pub instance: Option<String>,
    /// When it was created.
    pub created_at: i64,
    /// When it ends.
    pub until: i64,
    /// Why it was created.
    pub reason: String,
    /// The user that created it.
    pub created_by: String,
    /// The user that ended it before its time; `None` if no user did.
    pub ended_by: Option<String>,
}

/// All stored silences, also those that have ended.
pub(crate) fn all(connection: &Connection) -> rusqlite::Result<Vec<SilenceRow>> {
    let mut statement = connection.prepare(
        "SELECT number, instance, created_at, until, reason, created_by, ended_by FROM silence \
         ORDER BY number",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(SilenceRow {
            number: row.get(0)?,
            instance: row.get(1)?,
            created_at: row.get(2)?,
            until: row.get(3)?,
            reason: row.get(4)?,
            created_by: row.get(5)?,
            ended_by: row.get(6)?,
        })
    })?;
    rows.collect()
}

/// Replaces the stored silences by `rows`.
pub(crate) fn replace(transaction: &Transaction<'_>, rows: &[SilenceRow]) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM silence", [])?;
    let mut statement = transaction.prepare(
        "INSERT INTO silence (number, instance, created_at, until, reason, created_by, ended_by) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for row in rows {
        let SilenceRow { number, instance, created_at, until, reason, created_by, ended_by } = row;
        statement
            .execute(params![number, instance, created_at, until, reason, created_by, ended_by])?;
    }
    Ok(())
}
