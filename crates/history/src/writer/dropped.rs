// SPDX-License-Identifier: Apache-2.0
//! The period in which transitions were dropped: it becomes a row of the table `unrecorded`.

use rusqlite::{Connection, params};

use crate::Record;

/// Dropped transitions that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DroppedSpan {
    /// The time of the first one, in milliseconds since the Unix epoch.
    from: i64,
    /// The time of the last one.
    until: i64,
    /// The sequence number of the last one.
    pub(super) until_seq: i64,
    /// Their number.
    pub(super) count: u64,
}

impl DroppedSpan {
    /// The span of one transition.
    pub(super) fn of(record: &Record) -> Self {
        Self { from: record.at, until: record.at, until_seq: record.seq, count: 1 }
    }

    /// The span of both.
    pub(super) fn join(self, other: Self) -> Self {
        Self {
            from: self.from.min(other.from),
            until: self.until.max(other.until),
            until_seq: self.until_seq.max(other.until_seq),
            count: self.count + other.count,
        }
    }

    /// Inserts the row.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let count = i64::try_from(self.count).unwrap_or(i64::MAX);
        connection.execute(
            "INSERT INTO unrecorded (from_at, until_at, until_seq, count) VALUES (?1, ?2, ?3, ?4)",
            params![self.from, self.until, self.until_seq, count],
        )?;
        Ok(())
    }
}
