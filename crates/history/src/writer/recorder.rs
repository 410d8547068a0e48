// SPDX-License-Identifier: Apache-2.0
//! The writer's thread: batches, retention, retries and replacement of a damaged file.
//!
//! ```text
//!             opened
//!   closed ──────────▶ open ─── batch written ──▶ open
//!     │  ▲               ├───── write failed ───▶ open: batch counted as dropped, retry after RETRY_DELAY
//!     │  └─ damaged ─────┘      (the file is renamed and a new one is created)
//!     └──── cannot be opened: retry after RETRY_DELAY
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Row, Statement, Transaction, params};
use vipwatch_core::RoleKind;
use vipwatch_linux::file::{other_format_text, set_aside};
use vipwatch_linux::worker::{Heartbeat, beat_every};

use super::damage::is_damaged;
use super::dropped::DroppedSpan;
use super::retention::{Cleanup, ClockAhead, RetentionClock};
use super::{
    HEARTBEAT_INTERVAL, Health, OpenedHistory, Retention, RoleRow, StageLatency, StoredTargets,
    WriterMessage, now, open_or_replace, reserve_seq,
};
use crate::delivery::{DeliveryChanges, SharedChanges};
use crate::{
    CauseRecord, EventRecord, HistoryEntry, HistoryError, REMOVED, Record, event, schema, silence,
};

/// Maximum number of messages in one transaction.
const MAX_BATCH: usize = 1000;
/// Delay before the recorder retries to open or write the file.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long a file counts as intact after a check. Every user that can read the history can cause a check,
/// which reads the whole file.
const INTACT_PERIOD: Duration = Duration::from_mins(5);

/// The state of the writer's thread.
pub(super) struct Recorder {
    path: PathBuf,
    /// `None` if the file cannot be opened.
    connection: Option<Connection>,
    keep: Retention,
    /// The highest sequence number in use, also of a transition that could not be written.
    last_seq: i64,
    /// The epoch of this run, which a file that is opened later takes over.
    epoch: String,
    health: Arc<Health>,
    /// The number of rows in `transition`. `None`: not counted yet, or uncertain after a failed statement.
    rows: Option<u64>,
    /// The time of the last check that found no damage.
    found_intact: Option<Instant>,
    /// `None` until the notifier has sent its targets: no transition may be deleted before, because a target may not
    /// have received it.
    targets: Option<StoredTargets>,
    /// `None` before the first retention.
    retention: Option<RetentionClock>,
    /// Deliveries that are to be stored.
    changes: SharedChanges,
}

impl Recorder {
    pub(super) fn new(
        path: PathBuf,
        connection: Option<Connection>,
        keep: Retention,
        opened: &OpenedHistory,
        health: Arc<Health>,
    ) -> Self {
        Self {
            path,
            connection,
            keep,
            last_seq: opened.last_seq,
            epoch: opened.epoch.clone(),
            health,
            rows: None,
            found_intact: None,
            targets: None,
            retention: None,
            changes: SharedChanges::default(),
        }
    }

    /// Also writes the deliveries in `changes`.
    pub(super) fn with_changes(self, changes: SharedChanges) -> Self {
        Self { changes, ..self }
    }

    /// Uses the file that was opened at the start.
    pub(super) fn use_file(&mut self, file: Option<Connection>, last_seq: i64, epoch: String) {
        (self.connection, self.last_seq, self.epoch) = (file, last_seq, epoch);
    }

    /// Keeps the silences of a file that was opened too late for the start.
    pub(super) fn keep_silences(&self, silences: Vec<crate::SilenceRow>) {
        if let Ok(mut late) = self.health.late_silences.lock() {
            *late = Some(silences);
        }
    }

    /// Looks for a replaced file of another format.
    pub(super) fn note_other_format(&self) {
        if let Ok(mut text) = self.health.other_format.lock() {
            *text = other_format_text(&self.path, schema::VERSION);
        }
    }

    /// Writes until [`WriterMessage::Stop`].
    pub(super) fn run(mut self, receiver: &Receiver<WriterMessage>, heartbeat: &Heartbeat) {
        let mut next_beat = Instant::now();
        loop {
            heartbeat.beat();
            let now = Instant::now();
            if next_beat <= now {
                let _disk = heartbeat.disk();
                let outcome = self.open_again().and_then(|()| self.beat(false, heartbeat));
                self.conclude(outcome);
                // Deliveries that could not be written before.
                if !self.is_failing() && self.changes.lock().is_ok_and(|all| !all.is_empty()) {
                    self.write_or_drop(&[]);
                }
                let pause = if self.is_failing() { RETRY_DELAY } else { HEARTBEAT_INTERVAL };
                next_beat = Instant::now() + pause;
            }
            let pause = next_beat.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(pause.min(beat_every())) {
                Ok(first) => {
                    let _disk = heartbeat.disk();
                    let rest = receiver.try_iter().take(MAX_BATCH - 1);
                    let batch: Vec<WriterMessage> = std::iter::once(first).chain(rest).collect();
                    self.health.queue_length.remove(batch.len());
                    if batch.iter().any(|message| matches!(message, WriterMessage::CheckForDamage))
                    {
                        self.check_for_damage(heartbeat);
                    }
                    self.write_or_drop(&batch);
                    if batch.iter().any(|message| matches!(message, WriterMessage::Stop)) {
                        return self.end(heartbeat);
                    }
                    if self.is_failing() {
                        next_beat = next_beat.min(Instant::now() + RETRY_DELAY);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end(heartbeat),
            }
        }
    }

    fn end(mut self, heartbeat: &Heartbeat) {
        // The process ends, so a failure cannot be retried.
        self.write_or_drop(&[]);
        let _ = self.beat(true, heartbeat);
    }

    /// Writes a batch. If that fails, counts its transitions as dropped.
    fn write_or_drop(&mut self, batch: &[WriterMessage]) {
        for message in batch {
            self.last_seq = self.last_seq.max(message.seq());
        }
        let changes = self.changes.lock().map(|mut all| std::mem::take(&mut *all));
        let changes = changes.unwrap_or_default();
        let mut outcome = self.write(batch, &changes);
        if outcome.as_ref().is_err_and(HistoryError::is_damage) {
            self.replace_damaged();
            outcome = self.write(batch, &changes);
        }
        self.health.written_seq.store(self.last_seq, Ordering::Release);
        if outcome.is_err() {
            if let Ok(mut all) = self.changes.lock() {
                all.put_back(changes);
            }
            let lost = batch.iter().map(WriterMessage::seq).max().unwrap_or(0);
            self.health.lost_seq.fetch_max(lost, Ordering::Relaxed);
            match dropped_span(batch) {
                Some(span) => self.health.add_dropped(span),
                None => self.health.is_outdated.store(true, Ordering::Relaxed),
            }
        }
        self.conclude(outcome);
    }

    /// Stores the error for the owner of the writer, or replaces a damaged file.
    fn conclude(&mut self, outcome: Result<(), HistoryError>) {
        let error = match outcome {
            Err(error) if error.is_damage() => {
                self.replace_damaged();
                return;
            }
            // The file is not open, and the reason for that is already stored.
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

    /// Opens the file, unless it is open.
    fn open_again(&mut self) -> Result<(), HistoryError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let (connection, opened) = open_or_replace(&self.path)?;
        let OpenedHistory { set_aside, .. } = opened;
        if let (Some(aside), Ok(mut all)) = (set_aside, self.health.set_aside.lock()) {
            all.push(aside);
        }
        // The file does not have the transitions that could not be written meanwhile.
        reserve_seq(&connection, self.last_seq)?;
        event::continue_epoch(&connection, &self.epoch, self.last_seq)?;
        (self.connection, self.rows) = (Some(connection), None);
        self.health.is_outdated.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Checks the file and replaces it if it is damaged.
    fn check_for_damage(&mut self, heartbeat: &Heartbeat) {
        if self.found_intact.is_some_and(|at| at.elapsed() < INTACT_PERIOD) {
            return;
        }
        let progress = heartbeat.clone();
        if is_damaged(&self.path, move || progress.beat()) {
            self.replace_damaged();
        } else {
            self.found_intact = Some(Instant::now());
        }
    }

    /// Renames the damaged file and creates a new one.
    fn replace_damaged(&mut self) {
        // ORDER: closing a connection deletes files by name, so it is closed before the files are renamed.
        self.connection = None;
        let outcome = set_aside(&self.path, None).map_err(HistoryError::from).and_then(|aside| {
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

    fn write(
        &mut self,
        batch: &[WriterMessage],
        changes: &DeliveryChanges,
    ) -> Result<(), HistoryError> {
        let targets = batch.iter().rev().find_map(|message| match message {
            WriterMessage::SetTargets(targets) => Some(targets),
            _ => None,
        });
        if let Some(targets) = targets {
            self.targets = Some(targets.as_ref().clone());
        }
        let span = self.health.take_span();
        let outcome = self.write_with_span(batch, changes, span);
        // An error keeps the span for the next batch.
        if let (Err(_), Some(span)) = (&outcome, span) {
            self.health.restore_span(span);
        }
        outcome
    }

    /// Writes the span of the transitions that were dropped before, and the batch, in one transaction.
    fn write_with_span(
        &mut self,
        batch: &[WriterMessage],
        changes: &DeliveryChanges,
        span: Option<DroppedSpan>,
    ) -> Result<(), HistoryError> {
        let lost = self.health.lost_seq.load(Ordering::Relaxed);
        let has_late_silences = self.health.late_silences.lock().is_ok_and(|late| late.is_some());
        let transaction = self.connection()?.transaction()?;
        if let Some(span) = span {
            span.insert(&transaction)?;
        }
        // The recorder ran at least until now: the bound of the gap if it is killed.
        let seen = "UPDATE run SET seen = max(seen, ?1) WHERE id = (SELECT max(id) FROM run)";
        transaction.execute(seen, [now()])?;
        let mut statements = Statements::prepare(&transaction)?;
        for message in batch {
            match message {
                WriterMessage::InsertTransition(entry) => statements.insert_transition(entry)?,
                WriterMessage::SetLatency(latency) => set_latency(&transaction, latency)?,
                WriterMessage::SetCause(seq, cause) => statements.set_cause(*seq, cause)?,
                WriterMessage::StoreLastRole(row) => statements.store_last_role(row)?,
                WriterMessage::InsertEvent(event) => statements.insert_event(event)?,
                // The node does not know the silences that it has not taken.
                WriterMessage::StoreSilences(_) if has_late_silences => {}
                WriterMessage::StoreSilences(rows) => silence::replace(&transaction, rows)?,
                // ORDER: before the conclusions, which correct the number.
                WriterMessage::CountMissed(missed) => missed.write(&transaction)?,
                WriterMessage::CheckForDamage
                | WriterMessage::TakeDeliveries
                | WriterMessage::SetTargets(_)
                | WriterMessage::Stop => {}
            }
        }
        drop(statements);
        if !changes.is_empty() {
            changes.write(&transaction, now())?;
        }
        if lost > 0 {
            event::raise_floor(&transaction, lost)?;
        }
        transaction.commit()?;
        for message in batch {
            if let WriterMessage::CountMissed(missed) = message {
                (missed.on_stored)();
            }
        }
        // A number that was lost meanwhile is higher, and stays for the next batch.
        let _ =
            self.health.lost_seq.compare_exchange(lost, 0, Ordering::Relaxed, Ordering::Relaxed);
        self.rows = self.rows.map(|rows| rows + transitions_in(batch));
        Ok(())
    }

    /// Updates the row of this run, applies the retention limits, and looks for a replaced file of another format.
    fn beat(&mut self, is_end: bool, heartbeat: &Heartbeat) -> Result<(), HistoryError> {
        self.note_other_format();
        if self.health.has_span() {
            // No batch follows if no transition does.
            self.write(&[], &DeliveryChanges::default())?;
        }
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
        // ORDER: the number of rows is uncertain until every statement has succeeded.
        let known = self.rows.take();
        let Self { connection, keep, targets, path, retention, .. } = self;
        let connection = connection.as_mut().ok_or_else(|| HistoryError::Missing(path.clone()))?;
        let clock = if let Some(clock) = retention {
            clock
        } else {
            let last = last_retention(connection)?;
            retention.insert(RetentionClock::new(last, time, Instant::now()))
        };
        let time = clock.time(time, Instant::now());
        let store = "UPDATE run SET retention = ?1, ahead = ?2, ahead_since = ?3 \
             WHERE id = (SELECT max(id) FROM run)";
        connection.execute(store, [time, clock.ahead.least, clock.ahead.since])?;
        let cleanup = Cleanup { connection, keep, targets: targets.as_ref(), time, heartbeat };
        self.rows = cleanup.run(known)?;
        Ok(())
    }
}

/// The last time of retention; `None` if there was no retention yet.
fn last_retention(connection: &Connection) -> rusqlite::Result<Option<(i64, ClockAhead)>> {
    let last = "SELECT retention, ahead, ahead_since FROM run WHERE retention IS NOT NULL \
         ORDER BY id DESC LIMIT 1";
    let read =
        |row: &Row<'_>| Ok((row.get(0)?, ClockAhead { least: row.get(1)?, since: row.get(2)? }));
    connection.query_row(last, [], read).optional()
}

impl WriterMessage {
    /// The sequence number of a transition or event; 0 for other messages.
    fn seq(&self) -> i64 {
        match self {
            Self::InsertTransition(entry) => entry.record.seq,
            Self::InsertEvent(event) => event.seq,
            Self::SetLatency(_)
            | Self::SetCause(..)
            | Self::StoreLastRole(_)
            | Self::StoreSilences(_)
            | Self::CheckForDamage
            | Self::TakeDeliveries
            | Self::CountMissed(_)
            | Self::SetTargets(_)
            | Self::Stop => 0,
        }
    }
}

/// The number of transitions in a batch.
fn transitions_in(batch: &[WriterMessage]) -> u64 {
    batch.iter().filter(|message| matches!(message, WriterMessage::InsertTransition(_))).count()
        as u64
}

/// The transitions of a batch that could not be written; `None` if it has none.
fn dropped_span(batch: &[WriterMessage]) -> Option<DroppedSpan> {
    let spans = batch.iter().filter_map(|message| match message {
        WriterMessage::InsertTransition(entry) => Some(DroppedSpan::of(&entry.record)),
        WriterMessage::SetLatency(_)
        | WriterMessage::SetCause(..)
        | WriterMessage::StoreLastRole(_)
        | WriterMessage::InsertEvent(_)
        | WriterMessage::StoreSilences(_)
        | WriterMessage::CheckForDamage
        | WriterMessage::TakeDeliveries
        | WriterMessage::CountMissed(_)
        | WriterMessage::SetTargets(_)
        | WriterMessage::Stop => None,
    });
    spans.reduce(DroppedSpan::join)
}

/// Statements that are prepared once for each batch.
struct Statements<'t> {
    insert_transition: Statement<'t>,
    /// Updates the last role after a transition. `since` changes only with the role.
    update_role: Statement<'t>,
    delete_role: Statement<'t>,
    replace_role: Statement<'t>,
    insert_event: Statement<'t>,
    set_cause: Statement<'t>,
}

impl<'t> Statements<'t> {
    fn prepare(transaction: &'t Transaction<'_>) -> rusqlite::Result<Self> {
        let insert_transition = transaction.prepare(
            "INSERT INTO transition (seq, at, instance, netns, from_role, to_role, trigger, reason, \
             cause, evidence, file_us, announce_us, hook_us, webhook_us, agent_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        )?;
        let update_role = transaction.prepare(
            "INSERT INTO role (instance, role, since, seq) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (instance) DO UPDATE SET role = ?2, seq = ?4, \
             since = CASE WHEN role = ?2 THEN since ELSE ?3 END",
        )?;
        let delete_role = transaction.prepare("DELETE FROM role WHERE instance = ?1")?;
        let replace_role = transaction.prepare(
            "INSERT OR REPLACE INTO role (instance, role, since, seq) VALUES (?1, ?2, ?3, ?4)",
        )?;
        let insert_event = transaction.prepare(event::INSERT)?;
        let set_cause = transaction
            .prepare("UPDATE transition SET cause = ?2, evidence = ?3 WHERE seq = ?1")?;
        Ok(Self {
            insert_transition,
            update_role,
            delete_role,
            replace_role,
            insert_event,
            set_cause,
        })
    }

    fn insert_transition(&mut self, entry: &HistoryEntry) -> rusqlite::Result<()> {
        let Record { seq, at, instance, netns, from, to, trigger, reason, cause } = &entry.record;
        let evidence = cause.as_ref().map(|cause| &cause.evidence);
        let cause = cause.as_ref().map(|cause| &cause.word);
        let (from, role) = (from.map(RoleKind::word), to.map(RoleKind::word));
        let to = role.unwrap_or(REMOVED);
        let [file, announce, hook, webhook, agent] = entry.latencies.0;
        self.insert_transition.execute(params![
            seq, at, instance, netns, from, to, trigger, reason, cause, evidence, file, announce,
            hook, webhook, agent
        ])?;
        match role {
            None => self.delete_role.execute([instance])?,
            Some(role) => self.update_role.execute(params![instance, role, at, seq])?,
        };
        Ok(())
    }

    fn set_cause(&mut self, seq: i64, cause: &CauseRecord) -> rusqlite::Result<()> {
        self.set_cause.execute(params![seq, cause.word, cause.evidence])?;
        Ok(())
    }

    fn insert_event(&mut self, event: &EventRecord) -> rusqlite::Result<()> {
        let EventRecord { seq, at, name, instance, body } = event;
        self.insert_event.execute(params![seq, at, name, instance, body])?;
        Ok(())
    }

    fn store_last_role(&mut self, row: &RoleRow) -> rusqlite::Result<()> {
        let RoleRow { instance, role, since, seq } = row;
        self.replace_role.execute(params![instance, role.word(), since, seq])?;
        Ok(())
    }
}

fn set_latency(transaction: &Transaction<'_>, latency: &StageLatency) -> rusqlite::Result<()> {
    let StageLatency { seq, stage, micros } = latency;
    let column = stage.word();
    // A second delivery of the same transition keeps the first latency.
    let update =
        format!("UPDATE transition SET {column}_us = ?2 WHERE seq = ?1 AND {column}_us IS NULL");
    transaction.prepare(&update)?.execute(params![seq, micros])?;
    Ok(())
}
