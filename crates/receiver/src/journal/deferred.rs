// SPDX-License-Identifier: Apache-2.0
//! Rows that no reply waits for. The writer commits them together, a little later, and of each instance only the
//! newest.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rusqlite::{Transaction, params};
use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;
use vipwatch_linux::clock::unix_millis_now;

use super::{JournalEntry, undelivered};
use crate::report_sink::SettledReport;

/// Maximum delay before deferred rows are committed.
const MAX_COMMIT_DELAY: Duration = Duration::from_millis(50);

/// Maximum number of settled reports that wait to be committed. More than a few wait only if the file cannot be written.
const MAX_KEPT_REPORTS: usize = 100_000;

/// A row of the table `settled`.
#[derive(Debug, Clone, Copy)]
pub(super) struct SettledUpdate {
    seq: i64,
    state: ReportedState,
    acted_seq: i64,
}

#[derive(Debug, Clone, Copy)]
enum InstanceChange {
    Settle(SettledUpdate),
    /// Delete the rows of the instance up to this sequence number.
    Forget(i64),
}

#[derive(Debug, Default)]
pub(super) struct DeferredRows {
    /// Changes of `settled`.
    settled: BTreeMap<InstanceId, InstanceChange>,
    /// Rows of `report` for a new file, by sequence number.
    reports: BTreeMap<i64, (InstanceId, ReportedState)>,
    /// Rows of `undelivered`, by instance and sequence number.
    kept: BTreeMap<(InstanceId, i64), SettledReport>,
    /// When the oldest row was added; `None` if there are no rows.
    since: Option<Instant>,
}

impl DeferredRows {
    /// Adds the rows of an entry. `last_seq` is the last sequence number that was assigned.
    pub(super) fn add(&mut self, entry: JournalEntry, last_seq: i64) {
        match entry {
            JournalEntry::Settled { instance, seq, state, acted_seq } => {
                let before = match self.settled.get(&instance) {
                    Some(InstanceChange::Settle(update)) => update.acted_seq,
                    Some(InstanceChange::Forget(_)) | None => 0,
                };
                let update = SettledUpdate { seq, state, acted_seq: acted_seq.max(before) };
                self.settled.insert(instance, InstanceChange::Settle(update));
            }
            JournalEntry::RestoredReport { instance, seq, state } => {
                self.reports.insert(seq, (instance, state));
            }
            JournalEntry::Keep(settled) => {
                self.kept.insert((settled.instance.clone(), settled.seq), settled);
            }
            JournalEntry::Forget(instance) => {
                self.kept.retain(|(other, _), _| *other != instance);
                self.reports.retain(|_, (other, _)| *other != instance);
                // A report that arrives before this change is committed is kept.
                self.settled.insert(instance, InstanceChange::Forget(last_seq));
            }
            JournalEntry::Report { .. }
            | JournalEntry::CleanUp(_)
            | JournalEntry::DeleteUndelivered(_)
            | JournalEntry::Stop => return,
        }
        self.since.get_or_insert_with(Instant::now);
    }

    /// Time until the rows must be committed; `None` if there are no rows.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.since.map(|since| MAX_COMMIT_DELAY.saturating_sub(since.elapsed()))
    }

    /// Whether the rows must be committed now.
    pub(super) fn is_due(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// Starts the delay again, after the rows could not be committed.
    pub(super) fn postpone(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Number of rows, for the checkpoint.
    pub(super) fn len(&self) -> usize {
        self.settled.len() + self.kept.len()
    }

    /// The settled reports that are to be kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = &SettledReport> {
        self.kept.values()
    }

    /// Whether no further report can be stored: too many rows could not be committed.
    pub(super) fn is_full(&self) -> bool {
        self.kept.len() >= MAX_KEPT_REPORTS
    }

    /// Writes all rows. The caller commits.
    pub(super) fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let at = unix_millis_now();
        // ORDER: rows of a forgotten instance are deleted first.
        self.write_settled(transaction, at)?;
        undelivered::insert(transaction, self.kept())?;
        let mut report = transaction.prepare(
            "INSERT OR REPLACE INTO report (seq, at, instance, state) VALUES (?1, ?2, ?3, ?4)",
        )?;
        for (seq, (instance, state)) in &self.reports {
            report.execute(params![seq, at, instance.as_str(), state.as_str()])?;
        }
        Ok(())
    }

    fn write_settled(&self, transaction: &Transaction<'_>, at: i64) -> rusqlite::Result<()> {
        let mut settled = transaction.prepare(
            "INSERT INTO settled (instance, seq, at, state, acted) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (instance) DO UPDATE SET seq = ?2, at = ?3, state = ?4, \
             acted = max(acted, ?5)",
        )?;
        for (instance, change) in &self.settled {
            let id = instance.as_str();
            match change {
                InstanceChange::Settle(SettledUpdate { seq, state, acted_seq }) => {
                    settled.execute(params![id, seq, at, state.as_str(), acted_seq])?;
                }
                InstanceChange::Forget(last_seq) => {
                    for table in ["report", "settled", "undelivered"] {
                        let delete =
                            format!("DELETE FROM {table} WHERE instance = ?1 AND seq <= ?2");
                        transaction.execute(&delete, params![id, last_seq])?;
                    }
                }
            }
        }
        Ok(())
    }
}
