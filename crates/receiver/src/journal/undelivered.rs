// SPDX-License-Identifier: Apache-2.0
//! The table `undelivered`: settled reports, until every target that must receive each of them has done so.
//!
//! The sink knows what its targets have received, and passes it to the journal for each cleanup. Rows beyond the
//! limit are deleted in two steps, because the sink counts them in another file: the writer lists the oldest rows
//! ([`excess`]), the sink stores that its targets have missed them, and only then the rows are deleted
//! ([`delete_up_to`]). If the process is killed in between, the rows count as missed and are deleted later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, Row, Transaction, params};
use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;
use vipwatch_linux::clock::{from_unix_millis, unix_millis};

use crate::report_sink::SettledReport;

/// Creates the table.
pub(super) const CREATE: &str = "
CREATE TABLE undelivered (
    instance   TEXT NOT NULL,
    seq        INTEGER NOT NULL,            -- the report that was settled
    at         INTEGER NOT NULL,            -- milliseconds since the Unix epoch
    from_state TEXT,                        -- the settled state before; NULL for none
    state      TEXT NOT NULL,
    PRIMARY KEY (instance, seq)
) WITHOUT ROWID;
";

/// Maximum number of rows that one cleanup lists as excess. If there are more, another cleanup follows at once.
const MAX_LISTED_ROWS: u64 = 100_000;

/// Sequence numbers of settled reports, ascending, by instance.
pub type ReportSeqs = BTreeMap<InstanceId, Vec<i64>>;

/// What the writer needs to delete rows.
#[derive(Debug, Default)]
pub(super) struct UndeliveredCleanup {
    /// The sequence number up to which all targets for every report have received the reports of an instance. Without
    /// an entry, no target needs them.
    pub(super) received: BTreeMap<InstanceId, i64>,
    /// Maximum number of rows.
    pub(super) limit: u64,
}

/// The reports that the writer has not committed to the table yet.
///
/// BOUND: the writer refuses further reports while it has too many rows that it cannot commit.
#[derive(Debug, Clone, Default)]
pub(super) struct Uncommitted(Arc<Mutex<BTreeSet<(InstanceId, i64)>>>);

impl Uncommitted {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<(InstanceId, i64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, report: &SettledReport) {
        self.lock().insert((report.instance.clone(), report.seq));
    }

    /// Removes the reports of a deleted instance.
    pub(super) fn forget(&self, instance: &InstanceId) {
        self.lock().retain(|(other, _)| other != instance);
    }

    /// Removes reports that are committed.
    pub(super) fn remove<'a>(&self, reports: impl Iterator<Item = &'a SettledReport>) {
        let mut all = self.lock();
        for report in reports {
            all.remove(&(report.instance.clone(), report.seq));
        }
    }

    /// Whether a report of `instance` with a number below `before` is not committed.
    pub(super) fn has_before(&self, instance: &InstanceId, before: i64) -> bool {
        let (first, end) = ((instance.clone(), i64::MIN), (instance.clone(), before));
        self.lock().range(first..end).next().is_some()
    }
}

/// Inserts rows. The caller commits.
pub(super) fn insert<'a>(
    transaction: &Transaction<'_>,
    reports: impl Iterator<Item = &'a SettledReport>,
) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare(
        "INSERT OR REPLACE INTO undelivered (instance, seq, at, from_state, state) \
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for SettledReport { instance, state, from, seq, at } in reports {
        let from = from.map(ReportedState::as_str);
        let at = unix_millis(*at);
        insert.execute(params![instance.as_str(), seq, at, from, state.as_str()])?;
    }
    Ok(())
}

/// Deletes the rows that every target has received.
pub(super) fn delete_received(
    connection: &mut Connection,
    received: &BTreeMap<InstanceId, i64>,
) -> rusqlite::Result<()> {
    let instances: Vec<String> = {
        let mut select = connection.prepare("SELECT DISTINCT instance FROM undelivered")?;
        select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?
    };
    let received = instances.iter().map(|instance| {
        let id = instance.parse::<InstanceId>().ok();
        (instance.as_str(), id.and_then(|id| received.get(&id).copied()).unwrap_or(i64::MAX))
    });
    delete(connection, received)
}

/// Deletes the rows of each instance up to a sequence number.
pub(super) fn delete_up_to(
    connection: &mut Connection,
    last: &BTreeMap<InstanceId, i64>,
) -> rusqlite::Result<()> {
    delete(connection, last.iter().map(|(instance, seq)| (instance.as_str(), *seq)))
}

fn delete<'a>(
    connection: &mut Connection,
    last: impl Iterator<Item = (&'a str, i64)>,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut delete =
            transaction.prepare("DELETE FROM undelivered WHERE instance = ?1 AND seq <= ?2")?;
        for (instance, seq) in last {
            delete.execute(params![instance, seq])?;
        }
    }
    transaction.commit()
}

/// The oldest rows beyond `limit`, at most [`MAX_LISTED_ROWS`].
pub(super) fn excess(connection: &Connection, limit: u64) -> rusqlite::Result<ReportSeqs> {
    let rows: i64 =
        connection.query_row("SELECT count(*) FROM undelivered", [], |row| row.get(0))?;
    let count = u64::try_from(rows).unwrap_or(0).saturating_sub(limit).min(MAX_LISTED_ROWS);
    let mut seqs = ReportSeqs::new();
    if count == 0 {
        return Ok(seqs);
    }
    let mut select =
        connection.prepare("SELECT instance, seq FROM undelivered ORDER BY seq LIMIT ?1")?;
    let mut rows = select.query([i64::try_from(count).unwrap_or(i64::MAX)])?;
    while let Some(row) = rows.next()? {
        if let Ok(instance) = row.get::<_, String>(0)?.parse() {
            seqs.entry(instance).or_default().push(row.get(1)?);
        }
    }
    Ok(seqs)
}

/// The rows of one instance with a sequence number above `after` and below `before`, oldest first, at most `limit`.
pub(super) fn between(
    connection: &Connection,
    instance: &InstanceId,
    (after, before): (i64, i64),
    limit: usize,
) -> rusqlite::Result<Vec<SettledReport>> {
    let mut select = connection.prepare(
        "SELECT seq, at, from_state, state FROM undelivered \
         WHERE instance = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq LIMIT ?4",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = select
        .query_map(params![instance.as_str(), after, before, limit], |row| read(row, instance))?;
    rows.collect()
}

fn read(row: &Row<'_>, instance: &InstanceId) -> rusqlite::Result<SettledReport> {
    let (from, state): (Option<String>, String) = (row.get(2)?, row.get(3)?);
    Ok(SettledReport {
        instance: instance.clone(),
        // The writer stores no other words.
        state: ReportedState::parse(&state).unwrap_or(ReportedState::Unknown),
        from: from.as_deref().and_then(ReportedState::parse),
        seq: row.get(0)?,
        at: from_unix_millis(row.get(1)?),
    })
}
