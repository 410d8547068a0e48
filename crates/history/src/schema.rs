//! The file's format. A number in the file (`PRAGMA user_version`) says which; a later one is
//! refused, an earlier one is brought up.

use std::path::Path;

use rusqlite::Connection;

use crate::HistoryError;

/// The format that this program writes.
pub(crate) const VERSION: i64 = 3;

/// From nothing to version 1.
///
/// `change`: one row for each change of role, in order of `seq`. `run`: one row for each life
/// of the recorder; without `ended`, it runs, or was killed.
pub(crate) const TO_1: &str = "
CREATE TABLE change (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,             -- milliseconds since the epoch
    instance  TEXT NOT NULL,
    netns     TEXT,                         -- NULL: the node's own
    from_role TEXT,                         -- NULL: not known
    to_role   TEXT NOT NULL,
    cause     TEXT NOT NULL,
    reason    TEXT
);
CREATE INDEX change_by_instance ON change (instance, seq);
CREATE INDEX change_by_time ON change (at);
CREATE TABLE run (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    began   INTEGER NOT NULL,
    seen    INTEGER NOT NULL,               -- last time it is known to have run
    ended   INTEGER,                        -- NULL: it runs, or was killed
    dropped INTEGER NOT NULL DEFAULT 0      -- changes that could not be recorded
);
";

/// From version 1 to 2.
///
/// In `change`: how long after the kernel's word each stage knew, in microseconds. NULL: it was not
/// told, or not yet. `standing`: what each instance was last, which is kept longer than changes are.
pub(crate) const TO_2: &str = "
ALTER TABLE change ADD COLUMN file_us INTEGER;
ALTER TABLE change ADD COLUMN announce_us INTEGER;
ALTER TABLE change ADD COLUMN hook_us INTEGER;
ALTER TABLE change ADD COLUMN webhook_us INTEGER;
ALTER TABLE change ADD COLUMN agent_us INTEGER;
CREATE TABLE standing (
    instance TEXT PRIMARY KEY,
    role     TEXT NOT NULL,
    since    INTEGER NOT NULL,              -- milliseconds since the epoch
    seq      INTEGER NOT NULL               -- its last change
);
INSERT INTO standing (instance, role, since, seq)
    SELECT instance, to_role, at, seq FROM change
    WHERE seq IN (SELECT max(seq) FROM change GROUP BY instance);
";

/// From version 2 to 3.
///
/// In `standing`: whether hooks and webhooks were told of the last change, as `change` has it. Retention
/// deletes rows of `change`, and the next node must not repeat its deliveries. Of a row that
/// is gone already nothing is known; it counts as delivered.
const TO_3: &str = "
ALTER TABLE standing ADD COLUMN hook_us INTEGER;
ALTER TABLE standing ADD COLUMN webhook_us INTEGER;
UPDATE standing SET
    hook_us = (SELECT hook_us FROM change WHERE change.seq = standing.seq),
    webhook_us = (SELECT webhook_us FROM change WHERE change.seq = standing.seq);
UPDATE standing SET hook_us = 0, webhook_us = 0 WHERE seq NOT IN (SELECT seq FROM change);
CREATE INDEX standing_by_seq ON standing (seq);
";

/// Sees to it that the file has our format.
pub(crate) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), HistoryError> {
    // ORDER: what a later program has written is not touched.
    let found = version(connection, path)?;
    // Readers do not wait for the writer, nor it for them; and neither a killed process nor a
    // lost machine loses what was committed. That is one fsync for a batch.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    // In KiB: changes are added at the end, and nobody here reads.
    connection.pragma_update(None, "cache_size", -512)?;
    if found == VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    for (version, step) in (1_i64..).zip([TO_1, TO_2, TO_3]) {
        if found < version {
            transaction.execute_batch(step)?;
        }
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    Ok(transaction.commit()?)
}

/// The file's format; 0 for an empty file.
pub(crate) fn version(connection: &Connection, path: &Path) -> Result<i64, HistoryError> {
    let found = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > VERSION {
        return Err(HistoryError::TooNew { path: path.to_owned(), found, known: VERSION });
    }
    Ok(found)
}
