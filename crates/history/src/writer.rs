// SPDX-License-Identifier: Apache-2.0
//! Writes records in batches, on its own thread: the caller never waits for the disk.
//!
//! If the file cannot be opened or written, the thread counts the records as dropped and retries. It
//! renames a file that is damaged or has another format, and creates a new one. In each case the `role` table is out
//! of date, and the owner of the writer [stores](Writer::store_last_role) the last role of every instance again.

mod damage;
mod dropped;
mod queue;
mod recorder;
mod retention;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use vipwatch_core::RoleKind;
use vipwatch_linux::clock::unix_millis_now as now;
use vipwatch_linux::file::set_aside;
use vipwatch_linux::worker::spawn_worker;

use self::dropped::DroppedSpan;
pub(crate) use self::queue::MessageSender;
pub use self::queue::QueueLength;
use self::recorder::Recorder;
use crate::delivery::{
    DeliveryStore, MissedNotifications, SharedChanges, StoredDelivery, stored_deliveries,
};
use crate::reader::{last_roles, open_without_writing};
use crate::{
    CauseRecord, EventRecord, FILE, HistoryEntry, HistoryError, LastRole, Latencies, Record,
    SilenceRow, Stage, event, schema, silence,
};
pub use vipwatch_linux::file::SetAsideFile;

/// Maximum number of messages that wait for the thread: more than a node has instances.
const QUEUE_LENGTH: usize = 1 << 13;

/// The name of the thread that writes.
pub const WRITER_WORKER: &str = "history";

/// How long the start of the node waits for the file. The thread goes on to open it.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Time between two updates of `run.seen` in a history without transitions.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_mins(1);

/// The limits of the history. The recorder deletes the oldest transitions beyond any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Maximum age of a transition.
    pub age: Duration,
    /// Maximum number of transitions.
    pub transitions: u64,
    /// Maximum used size of the file, in bytes. It holds for undelivered transitions, too.
    pub bytes: u64,
    /// Maximum number of transitions beyond the limits of age and number that are kept because a target for every transition has not
    /// received them. The oldest ones beyond this number are deleted, and the target is informed of their number.
    pub undelivered: u64,
}

impl Default for Retention {
    /// 30 days, a million transitions (about 200 MB), 512 MiB, and 100,000 undelivered transitions (about 20 MB).
    fn default() -> Self {
        Self {
            age: Duration::from_hours(24 * 30),
            transitions: 1_000_000,
            bytes: 512 << 20,
            undelivered: 100_000,
        }
    }
}

/// What the writer read when it opened the history.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OpenedHistory {
    /// The last time at which the previous recorder is known to have run, in milliseconds since the
    /// Unix epoch; `None` if it ended in order.
    pub killed: Option<i64>,
    /// The file that was replaced by a new one; `None` if it could be used.
    pub set_aside: Option<SetAsideFile>,
    /// The highest sequence number in use, also of transitions that were lost.
    pub last_seq: i64,
    /// The last known role of each instance.
    pub roles: BTreeMap<String, LastRole>,
    /// The epoch of the file; a random one if the file cannot be opened.
    pub epoch: String,
    /// The silences, also those that have ended.
    pub silences: Vec<SilenceRow>,
    /// The last concluded notification of every target, source and instance.
    pub deliveries: Vec<StoredDelivery>,
    /// Why the file could not be opened; `None` if it is open. The writer retries.
    pub open_error: Option<String>,
}

/// A message to the thread.
#[derive(Debug)]
pub(crate) enum WriterMessage {
    /// Inserts a transition and updates the last role of its instance.
    InsertTransition(Box<HistoryEntry>),
    /// Sets the latency of one stage of a transition.
    SetLatency(StageLatency),
    /// Sets the cause of a transition.
    SetCause(i64, Box<CauseRecord>),
    /// Replaces the row of an instance in the `role` table.
    StoreLastRole(Box<RoleRow>),
    /// Inserts an event.
    InsertEvent(Box<EventRecord>),
    /// Replaces the stored silences.
    StoreSilences(Vec<SilenceRow>),
    /// Checks the file for damage, because a reader found some.
    CheckForDamage,
    /// Takes the changes of the [`DeliveryStore`].
    TakeDeliveries,
    /// Counts notifications as missed that are about to be deleted.
    CountMissed(Box<MissedNotifications>),
    /// Replaces the configured targets.
    SetTargets(Box<StoredTargets>),
    /// Writes everything and ends the thread.
    Stop,
}

/// The names of the configured targets. Retention keeps what they have not received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredTargets {
    /// Targets of the node that receive every transition.
    pub every: Vec<String>,
    /// All targets. The rows of other targets are deleted when they are older than the history.
    pub all: Vec<String>,
}

/// The latency of one stage of one transition.
#[derive(Debug)]
pub(crate) struct StageLatency {
    seq: i64,
    stage: Stage,
    /// In microseconds.
    micros: i64,
}

/// One row of the `role` table.
#[derive(Debug)]
pub(crate) struct RoleRow {
    instance: String,
    role: RoleKind,
    since: i64,
    /// The sequence number of the last transition.
    seq: i64,
}

/// The state of the thread and its file, shared with the owner of the writer.
#[derive(Debug, Default)]
struct Health {
    /// The number of transitions that could not be recorded.
    dropped: AtomicU64,
    /// The dropped transitions that the file does not mention yet; `None` if there are none.
    dropped_span: Mutex<Option<DroppedSpan>>,
    /// Why the file cannot be opened or written; `None` if it can.
    failing: Mutex<Option<String>>,
    /// The files that were replaced, since the last call of [`Writer::take_set_aside`].
    set_aside: Mutex<Vec<SetAsideFile>>,
    /// The silences of a file that answered after the start; `None` if it was opened in time, or if the node has taken them.
    late_silences: Mutex<Option<Vec<SilenceRow>>>,
    /// See [`Writer::other_format`].
    other_format: Mutex<Option<String>>,
    /// Whether the `role` table is out of date: messages were lost, or the file is new.
    is_outdated: AtomicBool,
    /// The highest sequence number of a transition or event that was not written, since the floor of the epoch was
    /// last raised; 0 if there is none.
    lost_seq: AtomicI64,
    /// Every transition up to this number is written, or could not be.
    written_seq: Arc<AtomicI64>,
    /// The number of messages that wait for the thread.
    queue_length: QueueLength,
}

impl Health {
    /// Counts dropped transitions and remembers when they happened.
    fn add_dropped(&self, span: DroppedSpan) {
        self.dropped.fetch_add(span.count, Ordering::Relaxed);
        self.lost_seq.fetch_max(span.until_seq, Ordering::Relaxed);
        self.restore_span(span);
        self.is_outdated.store(true, Ordering::Relaxed);
    }

    /// Joins `span` with the dropped transitions that the file does not mention yet.
    fn restore_span(&self, span: DroppedSpan) {
        if let Ok(mut pending) = self.dropped_span.lock() {
            *pending = Some(pending.map_or(span, |pending| pending.join(span)));
        }
    }

    /// Whether transitions were dropped that the file does not mention yet.
    fn has_span(&self) -> bool {
        self.dropped_span.lock().is_ok_and(|span| span.is_some())
    }

    /// Takes the dropped transitions that the file does not mention yet.
    fn take_span(&self) -> Option<DroppedSpan> {
        self.dropped_span.lock().map_or(None, |mut span| span.take())
    }
}

/// The handle of the thread that writes the history. Dropping it writes the queued rows and ends the thread.
#[derive(Debug)]
pub struct Writer {
    sender: MessageSender,
    changes: SharedChanges,
    health: Arc<Health>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens or creates the history in `directory`. Fails if the thread cannot be started; any other error is in
    /// [`OpenedHistory::open_error`] and in [`Self::failing`].
    pub fn open(directory: &Path, keep: Retention) -> Result<(Self, OpenedHistory), HistoryError> {
        let path = directory.join(FILE);
        let unanswered = OpenedHistory {
            last_seq: seq_from_clock(),
            epoch: epoch_from_clock(),
            open_error: Some("the disk does not answer".to_owned()),
            ..OpenedHistory::default()
        };
        let health = Arc::new(Health::default());
        let changes = SharedChanges::default();
        // BOUND: QUEUE_LENGTH messages; a further one is dropped and counted.
        let (sender, receiver) = sync_channel(QUEUE_LENGTH);
        let sender = MessageSender::new(sender, health.queue_length.clone());
        // Without a buffer: the thread knows whether the file was opened in time.
        let (answer, opened) = sync_channel(0);
        let recorder = Recorder::new(path.clone(), None, keep, &unanswered, Arc::clone(&health));
        let mut recorder = recorder.with_changes(Arc::clone(&changes));
        let thread = spawn_worker(WRITER_WORKER, move |heartbeat| {
            let disk = heartbeat.disk();
            let (connection, opened) = match open_or_replace(&path) {
                Ok((connection, opened)) => (Some(connection), opened),
                Err(error) => (None, read_only(&path, &error)),
            };
            recorder.note_other_format();
            let (last_seq, epoch) = (opened.last_seq, opened.epoch.clone());
            match answer.send(opened) {
                Ok(()) => recorder.use_file(connection, last_seq, epoch),
                Err(late) => recorder.keep_silences(late.0.silences),
            }
            drop(disk);
            recorder.run(&receiver, heartbeat);
        })?;
        let opened = opened.recv_timeout(OPEN_LIMIT).unwrap_or(unanswered);
        if let Ok(mut failing) = health.failing.lock() {
            failing.clone_from(&opened.open_error);
        }
        health.written_seq.store(opened.last_seq, Ordering::Release);
        Ok((Self { sender, changes, health, thread: Some(thread) }, opened))
    }

    /// Queues a transition without waiting. If the queue is full, the transition is counted as dropped,
    /// and the history stores that number.
    pub fn record(&self, record: Record, latencies: Latencies) {
        let span = DroppedSpan::of(&record);
        let entry = Box::new(HistoryEntry { record, latencies });
        if !self.send(WriterMessage::InsertTransition(entry)) {
            self.health.add_dropped(span);
        }
    }

    /// Queues the latency of `stage` for the transition `seq`, in microseconds.
    pub fn set_latency(&self, seq: i64, stage: Stage, micros: i64) {
        // A lost latency is not counted as dropped: only transitions are.
        let _ = self.send(WriterMessage::SetLatency(StageLatency { seq, stage, micros }));
    }

    /// Queues the cause of the transition `seq`.
    pub fn set_cause(&self, seq: i64, cause: CauseRecord) {
        let _ = self.send(WriterMessage::SetCause(seq, Box::new(cause)));
    }

    /// Stores the role of an instance since `since`, with the last transition `seq`, without recording a transition.
    pub fn store_last_role(&self, instance: String, role: RoleKind, since: i64, seq: i64) {
        if !self.send(WriterMessage::StoreLastRole(Box::new(RoleRow {
            instance,
            role,
            since,
            seq,
        }))) {
            self.health.is_outdated.store(true, Ordering::Relaxed);
        }
    }

    /// Queues an event without waiting. An event that is lost is not counted as dropped, but the floor of the epoch
    /// records that it may be missing.
    pub fn record_event(&self, event: EventRecord) {
        let seq = event.seq;
        if !self.send(WriterMessage::InsertEvent(Box::new(event))) {
            self.health.lost_seq.fetch_max(seq, Ordering::Relaxed);
        }
    }

    /// Replaces the stored silences.
    pub fn store_silences(&self, rows: Vec<SilenceRow>) {
        if !self.send(WriterMessage::StoreSilences(rows)) {
            self.health.is_outdated.store(true, Ordering::Relaxed);
        }
    }

    /// Checks the file, because a reader found damage; the thread renames a damaged file. A file that was
    /// found intact is not checked again for five minutes.
    pub fn check_for_damage(&self) {
        let _ = self.send(WriterMessage::CheckForDamage);
    }

    /// The handle with which the notifier records its deliveries.
    pub fn delivery_store(&self) -> DeliveryStore {
        let written_seq = Arc::clone(&self.health.written_seq);
        DeliveryStore::new(Arc::clone(&self.changes), self.sender.clone(), written_seq)
    }

    /// Replaces the configured targets.
    pub fn set_targets(&self, targets: StoredTargets) {
        let _ = self.send(WriterMessage::SetTargets(Box::new(targets)));
    }

    /// Queues a message; false if the queue is full.
    fn send(&self, message: WriterMessage) -> bool {
        self.sender.try_send(message)
    }

    /// The number of messages that wait for the thread.
    pub fn queue_length(&self) -> QueueLength {
        self.health.queue_length.clone()
    }

    /// The number of transitions that could not be recorded.
    pub fn dropped(&self) -> u64 {
        self.health.dropped.load(Ordering::Relaxed)
    }

    /// Why the file cannot be opened or written now; `None` if it can.
    pub fn failing(&self) -> Option<String> {
        self.health.failing.lock().map_or(None, |failing| failing.clone())
    }

    /// The files that were replaced, since the last call.
    pub fn take_set_aside(&self) -> Vec<SetAsideFile> {
        self.health.set_aside.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }

    /// A line about a file of another format that was replaced, until it is moved away or deleted; `None` without one.
    pub fn other_format(&self) -> Option<String> {
        self.health.other_format.lock().map_or(None, |text| text.clone())
    }

    /// The silences of a file that answered after the start: the node has not read them. They stay in the file until the node
    /// has taken them.
    pub fn take_late_silences(&self) -> Vec<SilenceRow> {
        let late = self.health.late_silences.lock().map(|mut late| late.take());
        late.ok().flatten().unwrap_or_default()
    }

    /// Whether the file can be written and its `role` table is out of date: the caller then stores the
    /// last role of every instance. The call resets the flag.
    pub fn take_outdated(&self) -> bool {
        self.failing().is_none() && self.health.is_outdated.swap(false, Ordering::Relaxed)
    }
}

/// More transitions than a node can have delivered, but not written, when it was killed. So many sequence
/// numbers are skipped after a kill.
const MAX_UNWRITTEN: i64 = 100_000;

/// A sequence number that is at least the highest in use. Numbers are never reused, because targets
/// identify transitions by them.
fn highest_possible_seq(connection: &Connection, is_killed: bool) -> Result<i64, HistoryError> {
    let dropped: i64 =
        connection.query_row("SELECT coalesce(sum(dropped), 0) FROM run", [], |row| row.get(0))?;
    let lost = if is_killed { MAX_UNWRITTEN } else { 0 };
    Ok(highest_stored_seq(connection)?.saturating_add(lost).saturating_add(dropped))
}

/// The same if no file can be read: ten numbers for each second since the Unix epoch, which is more than any
/// node has used.
fn seq_from_clock() -> i64 {
    now() / 100
}

/// The epoch of a run without a file.
fn epoch_from_clock() -> String {
    format!("{:x}", now())
}

/// The highest sequence number in the file: of a transition, of a deleted transition, of the `role` table
/// (the transition itself may not be in the file), or one that was [reserved](reserve_seq).
fn highest_stored_seq(connection: &Connection) -> Result<i64, HistoryError> {
    let highest = "SELECT max(coalesce((SELECT max(seq) FROM transition), 0), \
         coalesce((SELECT max(seq) FROM role), 0), \
         coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = 'transition'), 0), \
         (SELECT floor FROM epoch), coalesce((SELECT max(seq) FROM event), 0))";
    Ok(connection.query_row(highest, [], |row| row.get(0))?)
}

/// Marks the sequence numbers up to `last` as used, whether or not the file has their transitions.
fn reserve_seq(connection: &Connection, last: i64) -> Result<(), HistoryError> {
    let update = "UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'transition'";
    // SQLite adds the row with the first transition.
    if connection.execute(update, [last])? == 0 {
        let insert = "INSERT INTO sqlite_sequence (name, seq) VALUES ('transition', ?1)";
        connection.execute(insert, [last])?;
    }
    Ok(())
}

impl Drop for Writer {
    /// Waits until every queued message is written.
    fn drop(&mut self) {
        // The thread does not see the end of the channel: a [`DeliveryStore`] may have a sender, too.
        self.sender.send(WriterMessage::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens the file, and creates its directory. A file that is damaged or has another format is renamed, and a new one created.
fn open_or_replace(path: &Path) -> Result<(Connection, OpenedHistory), HistoryError> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let format = match open(path) {
        Err(HistoryError::OtherFormat { found, .. }) => Some(found),
        Err(error) if error.is_damage() => None,
        other => return other,
    };
    let aside = set_aside(path, format)?;
    let (connection, opened) = open(path)?;
    let last_seq = seq_from_clock();
    reserve_seq(&connection, last_seq)?;
    Ok((connection, OpenedHistory { set_aside: Some(aside), last_seq, ..opened }))
}

fn open(path: &Path) -> Result<(Connection, OpenedHistory), HistoryError> {
    let failed = |source| HistoryError::Open { path: path.to_owned(), source };
    vipwatch_linux::file::restrict_database(path);
    let mut connection = Connection::open(path).map_err(failed)?;
    schema::prepare(&mut connection, path)?;
    let roles = last_roles(&connection)?;
    let (killed, last_seq) = begin_run(&mut connection)?;
    if killed.is_some() {
        // The killed run may have sent events that it had not written yet.
        event::raise_floor(&connection, last_seq)?;
    }
    let epoch = event::epoch(&connection)?.name;
    let silences = silence::all(&connection)?;
    let deliveries = stored_deliveries(&connection)?;
    let opened = OpenedHistory {
        killed,
        last_seq,
        roles,
        epoch,
        silences,
        deliveries,
        ..OpenedHistory::default()
    };
    Ok((connection, opened))
}

/// Reads what it can from a file that cannot be opened for writing because of `error`.
fn read_only(path: &Path, error: &HistoryError) -> OpenedHistory {
    let connection = open_without_writing(path);
    let roles = connection.as_ref().and_then(|file| last_roles(file).ok()).unwrap_or_default();
    let deliveries = connection.as_ref().and_then(|file| stored_deliveries(file).ok());
    // The last writer counts as killed, so that its numbers are skipped and not reused.
    let stored = connection.as_ref().and_then(|file| highest_possible_seq(file, true).ok());
    let last_seq = seq_from_clock().max(stored.unwrap_or(0));
    let silences = connection.as_ref().and_then(|file| silence::all(file).ok());
    OpenedHistory {
        last_seq,
        // Not the epoch of the file: events of this run are not in it.
        epoch: epoch_from_clock(),
        silences: silences.unwrap_or_default(),
        roles,
        deliveries: deliveries.unwrap_or_default(),
        open_error: Some(error.with_cause()),
        ..OpenedHistory::default()
    }
}

/// Inserts the row of this run. Returns the time at which the previous run was last seen, if it was killed, and the
/// highest sequence number in use.
fn begin_run(connection: &mut Connection) -> Result<(Option<i64>, i64), HistoryError> {
    let transaction = connection.transaction()?;
    let killed = transaction.query_row(
        "SELECT max(seen) FROM run WHERE id = (SELECT max(id) FROM run) AND ended IS NULL",
        [],
        |row| row.get::<_, Option<i64>>(0),
    )?;
    let last_seq = highest_possible_seq(&transaction, killed.is_some())?;
    reserve_seq(&transaction, last_seq)?;
    let insert = "INSERT INTO run (began, seen, after_seq) VALUES (?1, ?1, ?2)";
    transaction.execute(insert, [now(), last_seq])?;
    transaction.commit()?;
    Ok((killed, last_seq))
}

#[cfg(test)]
mod tests;
