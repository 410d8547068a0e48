//! The writer's thread: batches, retention, and what to do when the file cannot be used.
//!
//! ```text
//!            opened                     damaged: renamed, a new one is begun
//!   closed ─────────▶ open ─┬─ written ◀─────────────────┐
//!     ▲                     └─ failed: counted ──▶ tried again after RETRY
//!     └── cannot be opened: tried again after RETRY
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Statement, Transaction, params};
use vipwatch_linux::file::set_aside;
use vipwatch_linux::worker::{Heartbeat, beat_every};

use super::damage::is_damaged;
use super::{Health, Note, OpenedHistory, Restated, Retention, now, open_or_replace, reserve};
use crate::{HistoryError, Latencies, Record, Stage};

/// Changes in one transaction.
const BATCH: usize = 1000;
/// How often the recorder writes down that it runs, and applies the limits of retention.
const HEARTBEAT: Duration = Duration::from_mins(1);
/// Rows that one statement deletes: a million in one would be taken for a thread that stands still.
const DELETED_AT_ONCE: i64 = 10_000;
/// How long after a failure the file is opened or written again.
const RETRY: Duration = Duration::from_secs(5);
/// How long a file that was examined counts as intact. Every user that may read the history can ask for
/// an examination.
const INTACT_FOR: Duration = Duration::from_mins(5);

/// The thread's side of a writer.
pub(super) struct Recorder {
    path: PathBuf,
    /// `None`: the file cannot be opened.
    connection: Option<Connection>,
    keep: Retention,
    /// The highest number that a change is known to have, also one that could not be written.
    last: i64,
    health: Arc<Health>,
    /// Rows in `change`. `None`: not counted yet, or a failed statement made the number uncertain.
    rows: Option<u64>,
    /// When the file was last examined without a sign of damage.
    found_intact: Option<Instant>,
}

impl Recorder {
    pub(super) fn new(
        path: PathBuf,
        connection: Option<Connection>,
        keep: Retention,
        last: i64,
        health: Arc<Health>,
    ) -> Self {
        Self { path, connection, keep, last, health, rows: None, found_intact: None }
    }

    /// Writes until the sender is dropped.
    pub(super) fn run(mut self, receiver: &Receiver<Note>, heartbeat: &Heartbeat) {
        let mut next_beat = Instant::now();
        loop {
            heartbeat.beat();
            let now = Instant::now();
            if next_beat <= now {
                let outcome = self.open_again().and_then(|()| self.beat(false, heartbeat));
                self.conclude(outcome);
                let pause = if self.is_failing() { RETRY } else { HEARTBEAT };
                next_beat = Instant::now() + pause;
            }
            let pause = next_beat.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(pause.min(beat_every())) {
                Ok(first) => {
                    let rest = receiver.try_iter().take(BATCH - 1);
                    let batch: Vec<Note> = std::iter::once(first).chain(rest).collect();
                    if batch.iter().any(|note| matches!(note, Note::Examine)) {
                        self.examine(heartbeat);
                    }
                    self.take(&batch);
                    if self.is_failing() {
                        next_beat = next_beat.min(Instant::now() + RETRY);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // The process ends: there is nothing left to try.
                    let _ = self.beat(true, heartbeat);
                    return;
                }
            }
        }
    }

    fn take(&mut self, batch: &[Note]) {
        for note in batch {
            if let Note::Change(change) = note {
                self.last = self.last.max(change.0.seq);
            }
        }
        let mut outcome = self.write(batch);
        if outcome.as_ref().is_err_and(HistoryError::is_damage) {
            self.replace_damaged();
            outcome = self.write(batch);
        }
        if outcome.is_err() {
            let changes = batch.iter().filter(|note| matches!(note, Note::Change(..)));
            self.health.dropped.fetch_add(changes.count() as u64, Ordering::Relaxed);
            self.health.is_outdated.store(true, Ordering::Relaxed);
        }
        self.conclude(outcome);
    }

    /// Keeps the reason of a failure for the owner; a damaged file is replaced.
    fn conclude(&mut self, outcome: Result<(), HistoryError>) {
        let error = match outcome {
            Err(error) if error.is_damage() => {
                self.replace_damaged();
                return;
            }
            // The reason is known since the file could not be opened.
            Err(HistoryError::Missing(_)) => return,
            other => other.err(),
        };
        self.set_failing(error.map(|error| error.with_cause()));
    }

    fn is_failing(&self) -> bool {
        self.health.failing.lock().is_ok_and(|failing| failing.is_some())
    }

    fn set_failing(&self, why: Option<String>) {
        if let Ok(mut failing) = self.health.failing.lock() {
            *failing = why;
        }
    }

    /// Opens the file if it is not open.
    fn open_again(&mut self) -> Result<(), HistoryError> {
        if self.connection.is_some() {
            return Ok(());
        }
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let (connection, opened) = open_or_replace(&self.path)?;
        let OpenedHistory { set_aside, .. } = opened;
        if let (Some(aside), Ok(mut all)) = (set_aside, self.health.set_aside.lock()) {
            all.push(aside);
        }
        // The file does not have the changes since the owner got its first number.
        reserve(&connection, self.last)?;
        (self.connection, self.rows) = (Some(connection), None);
        self.health.is_outdated.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Replaces the file if it is damaged.
    fn examine(&mut self, heartbeat: &Heartbeat) {
        if self.found_intact.is_some_and(|at| at.elapsed() < INTACT_FOR) {
            return;
        }
        let progress = heartbeat.clone();
        if is_damaged(&self.path, move || progress.beat()) {
            self.replace_damaged();
        } else {
            self.found_intact = Some(Instant::now());
        }
    }

    /// Renames the damaged file and begins a new one.
    fn replace_damaged(&mut self) {
        // ORDER: a connection removes files by name when it is closed, so it goes before they are renamed.
        self.connection = None;
        let outcome = set_aside(&self.path).map_err(HistoryError::from).and_then(|aside| {
            if let Ok(mut all) = self.health.set_aside.lock() {
                all.push(aside);
            }
            self.open_again()
        });
        self.set_failing(outcome.err().map(|error| error.with_cause()));
    }

    fn connection(&mut self) -> Result<&mut Connection, HistoryError> {
        self.connection.as_mut().ok_or_else(|| HistoryError::Missing(self.path.clone()))
    }

    fn write(&mut self, batch: &[Note]) -> Result<(), HistoryError> {
        let transaction = self.connection()?.transaction()?;
        let mut statements = Statements::prepare(&transaction)?;
        for note in batch {
            match note {
                Note::Change(change) => statements.insert_change(&change.0, &change.1)?,
                Note::Stage(seq, stage, micros) => {
                    set_stage(&transaction, *seq, *stage, *micros)?;
                }
                Note::Restate(restated) => statements.restate(restated)?,
                Note::Examine => {}
            }
        }
        drop(statements);
        transaction.commit()?;
        let inserted = batch.iter().filter(|note| matches!(note, Note::Change(..))).count();
        self.rows = self.rows.map(|rows| rows + inserted as u64);
        Ok(())
    }

    /// Writes down that the recorder runs, or has ended, and applies the limits of retention.
    fn beat(&mut self, is_end: bool, heartbeat: &Heartbeat) -> Result<(), HistoryError> {
        let time = now();
        let dropped =
            i64::try_from(self.health.dropped.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.connection()?.execute(
            "UPDATE run SET seen = ?1, ended = CASE WHEN ?2 THEN ?1 END, dropped = ?3 \
             WHERE id = (SELECT max(id) FROM run)",
            params![time, is_end, dropped],
        )?;
        self.apply_retention(time, heartbeat)
    }

    /// Deletes rows beyond the limits of age, number and file size.
    fn apply_retention(&mut self, time: i64, heartbeat: &Heartbeat) -> Result<(), HistoryError> {
        // ORDER: the number is uncertain until every statement has succeeded.
        let known = self.rows.take();
        let keep = self.keep;
        let connection = self.connection()?;
        let age = i64::try_from(keep.age.as_millis()).unwrap_or(i64::MAX);
        let oldest = time.saturating_sub(age);
        let expired = delete_older(connection, oldest, heartbeat)?;
        connection.execute(
            "DELETE FROM run WHERE seen < ?1 AND id < (SELECT max(id) FROM run)",
            [oldest],
        )?;
        let rows = match known {
            Some(rows) => rows.saturating_sub(expired),
            None => count_rows(connection)?,
        };
        // Sequence numbers have gaps: each kill skips UNWRITTEN of them. Only rows count.
        let excess = rows.saturating_sub(keep.changes);
        let rows = rows.saturating_sub(delete_oldest(connection, excess, heartbeat)?);
        let is_too_large = used_bytes(connection)? > keep.bytes;
        let excess = if is_too_large { rows.div_ceil(10) } else { 0 };
        let deleted = delete_oldest(connection, excess, heartbeat)?;
        self.rows = Some(rows.saturating_sub(deleted));
        Ok(())
    }
}

/// Prepared once for a batch.
struct Statements<'t> {
    change: Statement<'t>,
    standing: Statement<'t>,
    restate: Statement<'t>,
}

impl<'t> Statements<'t> {
    fn prepare(transaction: &'t Transaction<'_>) -> rusqlite::Result<Self> {
        let change = transaction.prepare(
            "INSERT INTO change (seq, at, instance, netns, from_role, to_role, cause, reason, \
             file_us, announce_us, hook_us, webhook_us, agent_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?;
        let standing = transaction.prepare(
            "INSERT INTO standing (instance, role, since, seq, hook_us, webhook_us) \
             VALUES (?1, ?2, ?3, ?4, ?6, ?7) \
             ON CONFLICT (instance) DO UPDATE SET role = ?2, \
             seq = CASE WHEN ?5 THEN ?4 ELSE seq END, \
             hook_us = CASE WHEN ?5 THEN ?6 ELSE hook_us END, \
             webhook_us = CASE WHEN ?5 THEN ?7 ELSE webhook_us END, \
             since = CASE WHEN role = ?2 THEN since ELSE ?3 END",
        )?;
        let restate = transaction.prepare(
            "INSERT OR REPLACE INTO standing (instance, role, since, seq, hook_us, webhook_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        Ok(Self { change, standing, restate })
    }

    fn insert_change(&mut self, record: &Record, latencies: &Latencies) -> rusqlite::Result<()> {
        let Record { seq, at, instance, netns, from, to, cause, reason, is_news } = record;
        let [file, announce, hook, webhook, agent] = latencies.0;
        self.change.execute(params![
            seq, at, instance, netns, from, to, cause, reason, file, announce, hook, webhook, agent
        ])?;
        self.standing.execute(params![instance, to, at, seq, is_news, hook, webhook])?;
        Ok(())
    }

    fn restate(&mut self, restated: &Restated) -> rusqlite::Result<()> {
        let Restated { instance, seq, last } = restated;
        let [hook, webhook] = [Stage::Hook, Stage::Webhook].map(|stage| last.latencies.of(stage));
        self.restate.execute(params![instance, last.role, last.since, seq, hook, webhook])?;
        Ok(())
    }
}

fn set_stage(
    transaction: &Transaction<'_>,
    seq: i64,
    stage: Stage,
    micros: Option<i64>,
) -> rusqlite::Result<()> {
    let column = stage.word();
    let tables: &[&str] = match stage {
        Stage::Hook | Stage::Webhook => &["change", "standing"],
        Stage::File | Stage::Announce | Stage::Agent => &["change"],
    };
    for table in tables {
        // A second delivery of the same change keeps the first latency.
        let update = format!(
            "UPDATE {table} SET {column}_us = ?2 \
             WHERE seq = ?1 AND ({column}_us IS NULL OR ?2 IS NULL)"
        );
        transaction.prepare(&update)?.execute(params![seq, micros])?;
    }
    Ok(())
}

/// Reads an index of the whole table, so it is done once; the number is kept from then on.
fn count_rows(connection: &Connection) -> rusqlite::Result<u64> {
    let rows: i64 = connection.query_row("SELECT count(*) FROM change", [], |row| row.get(0))?;
    Ok(u64::try_from(rows).unwrap_or(0))
}

/// Deletes rows that are older than `oldest` and returns how many there were.
fn delete_older(
    connection: &Connection,
    oldest: i64,
    heartbeat: &Heartbeat,
) -> rusqlite::Result<u64> {
    let mut deleted = 0;
    loop {
        heartbeat.beat();
        let count = connection.execute(
            "DELETE FROM change WHERE seq IN (SELECT seq FROM change WHERE at < ?1 LIMIT ?2)",
            [oldest, DELETED_AT_ONCE],
        )?;
        deleted += count as u64;
        if i64::try_from(count).is_ok_and(|count| count < DELETED_AT_ONCE) {
            return Ok(deleted);
        }
    }
}

/// Deletes the oldest `count` rows and returns how many there were.
fn delete_oldest(
    connection: &Connection,
    count: u64,
    heartbeat: &Heartbeat,
) -> rusqlite::Result<u64> {
    let mut left = i64::try_from(count).unwrap_or(i64::MAX);
    let mut deleted = 0;
    while left > 0 {
        heartbeat.beat();
        let at_once = left.min(DELETED_AT_ONCE);
        deleted += connection.execute(
            "DELETE FROM change WHERE seq IN (SELECT seq FROM change ORDER BY seq LIMIT ?1)",
            [at_once],
        )? as u64;
        left -= at_once;
    }
    Ok(deleted)
}

/// The used part of the file. The file itself never shrinks: SQLite uses free pages again.
fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let number = |pragma: &str| -> rusqlite::Result<u64> {
        let found: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        Ok(u64::try_from(found).unwrap_or(0))
    };
    let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
    Ok(pages * number("page_size")?)
}
