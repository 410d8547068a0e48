// SPDX-License-Identifier: Apache-2.0
//! The tables of the history file, its format number and the migrations.
//!
//! `PRAGMA user_version` holds the format number. [`prepare`] migrates an earlier format in one
//! transaction and refuses a later one. A reader cannot migrate: [`name_old_tables`] lets it query a
//! file of an earlier format.

use std::path::Path;

use rusqlite::Connection;

use crate::HistoryError;

/// The format that this program writes.
pub(crate) const VERSION: i64 = 6;

/// The oldest format that can be read without a migration.
const OLDEST_READABLE: i64 = 3;

/// The format with the present names of tables, without those of [`TO_5`].
const WITHOUT_EVENTS: i64 = 4;

/// Creates format 1.
///
/// `change`: one row for each transition, in order of `seq`. `run`: one row for each run of the
/// recorder; `ended` is NULL while the recorder runs and after it was killed.
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

/// Migrates format 1 to 2.
///
/// Adds to `change` the latency of each stage in microseconds; NULL: the stage does not apply, or its
/// delivery has not ended. Adds `standing`: the last role of each instance, which retention does not
/// delete.
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

/// Migrates format 2 to 3.
///
/// Copies the latencies of hooks and webhooks of each instance's last transition to `standing`.
/// Retention deletes rows of `change`, and the next node must not repeat their deliveries. A row that
/// retention has already deleted counts as delivered.
pub(crate) const TO_3: &str = "
ALTER TABLE standing ADD COLUMN hook_us INTEGER;
ALTER TABLE standing ADD COLUMN webhook_us INTEGER;
UPDATE standing SET
    hook_us = (SELECT hook_us FROM change WHERE change.seq = standing.seq),
    webhook_us = (SELECT webhook_us FROM change WHERE change.seq = standing.seq);
UPDATE standing SET hook_us = 0, webhook_us = 0 WHERE seq NOT IN (SELECT seq FROM change);
CREATE INDEX standing_by_seq ON standing (seq);
";

/// Migrates format 3 to 4: `change` becomes `transition`, `standing` becomes `role`.
///
/// SQLite renames the row of `change` in `sqlite_sequence` too, so no sequence number is reused. The indexes keep
/// their names, because SQLite cannot rename an index, and building a million entries anew needs disk space and
/// time that a node may not have at its start.
pub(crate) const TO_4: &str = "
ALTER TABLE change RENAME TO transition;
ALTER TABLE standing RENAME TO role;
";

/// The names under which the deliveries of format 4 are stored, one for each kind of target. Format 4 does not know
/// which target of a kind received a transition. A target without rows of its own takes these.
pub const ANY_HOOK: &str = "*hook";
/// The same for webhooks.
pub const ANY_WEBHOOK: &str = "*webhook";

/// Migrates format 4 to 5: adds `delivery`, the last concluded notification of each target, source and instance.
///
/// In format 4 a role without the latency of hooks or webhooks is not delivered. It stays pending: the number before
/// it counts as the last concluded one. Of a role that is delivered, later rows of `transition` repeat the role at
/// the start of a node, and are concluded too.
pub(crate) const TO_5_DELIVERY: &str = "
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
INSERT INTO delivery (target, source, instance, seq, outcome, at)
    SELECT '*hook', 'node', instance, CASE WHEN hook_us IS NULL THEN seq - 1 ELSE
        coalesce((SELECT max(seq) FROM transition WHERE transition.instance = role.instance), seq) END,
        'delivered', since FROM role
    UNION ALL
    SELECT '*webhook', 'node', instance, CASE WHEN webhook_us IS NULL THEN seq - 1 ELSE
        coalesce((SELECT max(seq) FROM transition WHERE transition.instance = role.instance), seq) END,
        'delivered', since FROM role;
ALTER TABLE role DROP COLUMN hook_us;
ALTER TABLE role DROP COLUMN webhook_us;
";

/// Gives a file of format 3 or 4 an empty table `delivery`, for this connection only.
const NO_DELIVERIES: &str = "
CREATE TEMP VIEW delivery AS SELECT '' AS target, '' AS source, '' AS instance, 0 AS seq, '' AS outcome,
    NULL AS role, 0 AS missed, 0 AS at WHERE false;
";

/// Migrates format 4 to 5: adds deliveries, events with their epoch, silences, and the places of gaps.
pub(crate) const TO_5: &[&str] =
    &[TO_5_DELIVERY, crate::event::CREATE, crate::silence::CREATE, crate::timeline::CREATE];

/// The format with events, without the columns of [`TO_6`].
const WITHOUT_CAUSES: i64 = 5;

/// Migrates format 5 to 6: the column `cause` becomes `trigger`, and a new column `cause` says why the role changed.
pub(crate) const TO_6: &str = "
ALTER TABLE transition RENAME COLUMN cause TO trigger;
ALTER TABLE transition ADD COLUMN cause TEXT;       -- NULL: not known when the row was written
ALTER TABLE transition ADD COLUMN evidence TEXT;    -- a JSON object; NULL without a cause
";

/// Gives the columns of formats 3 to 5 the names of format 6, for this connection only.
const NAMES_OF_5: &str = "
PRAGMA temp_store = MEMORY;
CREATE TEMP VIEW transition AS SELECT seq, at, instance, netns, from_role, to_role, cause AS trigger, reason,
    NULL AS cause, NULL AS evidence, file_us, announce_us, hook_us, webhook_us, agent_us FROM main.transition;
";

/// Gives the tables of format 3 the names of format 4, for this connection only.
const NAMES_OF_3: &str = "
PRAGMA temp_store = MEMORY;
CREATE TEMP VIEW transition AS SELECT seq, at, instance, netns, from_role, to_role, cause AS trigger, reason,
    NULL AS cause, NULL AS evidence, file_us, announce_us, hook_us, webhook_us, agent_us FROM main.change;
CREATE TEMP VIEW role AS SELECT * FROM main.standing;
";

/// Adds to format 4 the columns and tables of format 5, for this connection only.
const NAMES_OF_4: &str = "
PRAGMA temp_store = MEMORY;
CREATE TEMP VIEW run AS SELECT id, began, seen, ended, dropped, coalesce(
    (SELECT seq FROM transition WHERE at < began ORDER BY at DESC, seq DESC LIMIT 1), 0) AS after_seq
    FROM main.run;
CREATE TEMP VIEW unrecorded AS
    SELECT id, began AS from_at, seen AS until_at, coalesce(
        (SELECT after_seq FROM run AS later WHERE later.id > run.id ORDER BY id LIMIT 1),
        (SELECT max(seq) FROM transition), 0) AS until_seq, dropped AS count
    FROM run WHERE dropped > 0;
";

/// Sets the connection up for writing and migrates the file to the current format. Returns whether the file had an
/// earlier format.
pub(crate) fn prepare(connection: &mut Connection, path: &Path) -> Result<bool, HistoryError> {
    // ORDER: the format is checked first, because a file of a later program must not be modified.
    let found = version(connection, path)?;
    // WAL: readers and the writer do not block each other. FULL: a committed batch survives a killed
    // process and a power failure, at the cost of one fsync for each batch.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    // In KiB. A small cache is enough: this connection appends rows and does not query.
    connection.pragma_update(None, "cache_size", -512)?;
    if found == VERSION {
        return Ok(false);
    }
    let transaction = connection.transaction()?;
    let steps: [&[&str]; 6] = [&[TO_1], &[TO_2], &[TO_3], &[TO_4], TO_5, &[TO_6]];
    for (version, step) in (1_i64..).zip(steps) {
        if found < version {
            step.iter().try_for_each(|statements| transaction.execute_batch(statements))?;
        }
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    // An empty file has no format.
    Ok(found > 0)
}

/// Lets a connection that cannot write query a file of an earlier format. Fails if the format is too
/// old for that or later than this program's.
pub(crate) fn name_old_tables(connection: &Connection, path: &Path) -> Result<(), HistoryError> {
    match version(connection, path)? {
        VERSION => Ok(()),
        WITHOUT_CAUSES => Ok(connection.execute_batch(NAMES_OF_5)?),
        WITHOUT_EVENTS => {
            connection.execute_batch(NAMES_OF_5)?;
            Ok(connection.execute_batch(&[NAMES_OF_4, NO_DELIVERIES].concat())?)
        }
        OLDEST_READABLE => {
            connection.execute_batch(NAMES_OF_3)?;
            Ok(connection.execute_batch(&[NAMES_OF_4, NO_DELIVERIES].concat())?)
        }
        found => Err(HistoryError::TooOld { path: path.to_owned(), found }),
    }
}

/// The format of the file; 0 for an empty file. Fails if the format is later than this program's.
fn version(connection: &Connection, path: &Path) -> Result<i64, HistoryError> {
    let found = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > VERSION {
        return Err(HistoryError::TooNew { path: path.to_owned(), found, known: VERSION });
    }
    Ok(found)
}
