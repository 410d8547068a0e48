// SPDX-License-Identifier: Apache-2.0
//! The table `delivery`: for each target, source and instance the last notification that is concluded, and how.
//!
//! The notifier records a conclusion from any thread and does not wait. The writer's thread stores it with its next
//! batch. If the file cannot be written, the conclusions wait in memory, one for each row.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, Transaction, params};
use strum::{EnumString, IntoStaticStr};
use vipwatch_core::EventKind;

use crate::HistoryError;
use crate::writer::{MessageSender, WriterMessage};

/// Maximum number of concluded sequence numbers that wait for the disk, for one row. Beyond it, the number of missed
/// notifications may be too high after retention has deleted some.
const MAX_WAITING_SEQS: usize = 256;

/// Where a notification comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum DeliverySource {
    /// The node: transitions, removals and findings.
    Node,
    /// The receiver: states that monitors reported and that are settled.
    Receiver,
}

impl DeliverySource {
    /// The word in the table and in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The key of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryKey {
    /// The name of the target.
    pub target: Arc<str>,
    /// Where the notifications come from.
    pub source: DeliverySource,
    /// The id of the instance; for a finding, the id (empty for one about the node), a space and the name of the finding.
    /// A finding has a row only while a notification about it is pending.
    pub instance: String,
}

/// A concluded notification that is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcludedRow {
    /// Its sequence number.
    pub seq: i64,
    /// How it was concluded: `delivered`, `given-up`, `superseded` or `filtered`.
    pub outcome: &'static str,
    /// What the target received last; `None` if it has received nothing.
    pub role: Option<EventKind>,
    /// Number of missed notifications that the target was informed of.
    pub reported_missed: u32,
}

/// A row as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDelivery {
    /// The key of the row.
    pub key: DeliveryKey,
    /// The sequence number of the last concluded notification.
    pub seq: i64,
    /// How it was concluded.
    pub outcome: String,
    /// What the target received last; `None` if it has received nothing.
    pub role: Option<EventKind>,
    /// Number of notifications that retention deleted before the target received them.
    pub missed: u32,
}

/// Notifications that are about to be deleted, and that targets have not received.
#[derive(Clone)]
pub struct MissedNotifications {
    /// Where the notifications come from.
    pub source: DeliverySource,
    /// The targets that must receive every notification.
    pub targets: Vec<String>,
    /// The sequence numbers, by the id of the instance.
    pub seqs: BTreeMap<String, Vec<i64>>,
    /// Called on the writer's thread after they are stored.
    pub on_stored: Arc<dyn Fn() + Send + Sync>,
}

impl MissedNotifications {
    /// Adds, to each target, the number of notifications that it has not received, and counts them as concluded. A
    /// second call changes nothing. The caller commits.
    pub(crate) fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        // SQLite computes all new values from the old row.
        let mut update = transaction.prepare(
            "UPDATE delivery SET \
             missed = missed + (SELECT count(*) FROM json_each(?1) WHERE value > delivery.seq), \
             seq = max(seq, ?2) \
             WHERE source = ?3 AND instance = ?4 AND target IN (SELECT value FROM json_each(?5))",
        )?;
        let targets = serde_json::json!(self.targets).to_string();
        for (instance, seqs) in &self.seqs {
            let Some(last) = seqs.iter().max() else { continue };
            let (seqs, source) = (format!("{seqs:?}"), self.source.as_str());
            update.execute(params![seqs, last, source, instance, targets])?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for MissedNotifications {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MissedNotifications")
            .field("source", &self.source)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

/// A change of one row that waits for the writer's thread.
#[derive(Debug, Clone)]
enum RowChange {
    Set {
        row: ConcludedRow,
        /// The sequence numbers that were concluded since the last write.
        seqs: Vec<i64>,
    },
    Delete,
}

/// The changes that wait.
/// BOUND: one entry for each row.
#[derive(Debug, Default)]
pub(crate) struct DeliveryChanges(BTreeMap<DeliveryKey, RowChange>);

pub(crate) type SharedChanges = Arc<Mutex<DeliveryChanges>>;

/// The handle with which the notifier records conclusions. It may outlive the writer; conclusions that are recorded
/// then are lost.
#[derive(Debug, Clone)]
pub struct DeliveryStore {
    changes: SharedChanges,
    sender: MessageSender,
    written_seq: Arc<AtomicI64>,
}

impl DeliveryStore {
    pub(crate) fn new(
        changes: SharedChanges,
        sender: MessageSender,
        written_seq: Arc<AtomicI64>,
    ) -> Self {
        Self { changes, sender, written_seq }
    }

    /// Whether the writer's thread has written all transitions up to `seq`, or has failed to.
    pub fn has_written(&self, seq: i64) -> bool {
        self.written_seq.load(Ordering::Acquire) >= seq
    }

    /// Records a conclusion. If the process is killed before it is stored, the next one delivers the notification again.
    pub fn record(&self, key: DeliveryKey, row: ConcludedRow) {
        self.change(|changes| changes.set(key, row));
    }

    /// Deletes the row of an instance that no longer exists.
    pub fn delete(&self, key: DeliveryKey) {
        self.change(|changes| {
            changes.0.insert(key, RowChange::Delete);
        });
    }

    /// Counts notifications as missed. If the writer's queue is full or the file cannot be written, nothing happens, and
    /// `on_stored` is not called.
    pub fn count_missed(&self, missed: MissedNotifications) {
        self.sender.try_send(WriterMessage::CountMissed(Box::new(missed)));
    }

    fn change(&self, change: impl FnOnce(&mut DeliveryChanges)) {
        let Ok(mut changes) = self.changes.lock() else { return };
        let is_first = changes.0.is_empty();
        change(&mut changes);
        drop(changes);
        if is_first {
            // If the queue is full, the writer takes the changes with its next batch.
            self.sender.try_send(WriterMessage::TakeDeliveries);
        }
    }
}

impl DeliveryChanges {
    fn set(&mut self, key: DeliveryKey, row: ConcludedRow) {
        let change = self.0.entry(key).or_insert(RowChange::Delete);
        let (mut seqs, reported) = match change {
            RowChange::Set { row, seqs } => (std::mem::take(seqs), row.reported_missed),
            RowChange::Delete => (Vec::new(), 0),
        };
        if seqs.len() < MAX_WAITING_SEQS {
            seqs.push(row.seq);
        }
        let reported_missed = row.reported_missed.saturating_add(reported);
        *change = RowChange::Set { row: ConcludedRow { reported_missed, ..row }, seqs };
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds changes that could not be written. A newer change of the same row stays.
    pub(crate) fn put_back(&mut self, older: Self) {
        for (key, change) in older.0 {
            self.0.entry(key).or_insert(change);
        }
    }

    /// Writes all changes. The caller commits.
    pub(crate) fn write(&self, transaction: &Transaction<'_>, at: i64) -> rusqlite::Result<()> {
        let mut insert = transaction.prepare(
            "INSERT INTO delivery (target, source, instance, seq, outcome, role, at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
             ON CONFLICT (target, source, instance) DO UPDATE SET seq = max(seq, ?4), outcome = ?5, \
             role = ?6, at = ?7",
        )?;
        let mut correct = transaction.prepare(
            "UPDATE delivery SET missed = max(0, missed - ?4 - \
             (SELECT count(*) FROM json_each(?5) WHERE value <= seq)) \
             WHERE target = ?1 AND source = ?2 AND instance = ?3 AND missed > 0",
        )?;
        let mut delete = transaction
            .prepare("DELETE FROM delivery WHERE target = ?1 AND source = ?2 AND instance = ?3")?;
        for (key, change) in &self.0 {
            let DeliveryKey { target, source, instance } = key;
            match change {
                RowChange::Set { row, seqs } => {
                    let ConcludedRow { seq, outcome, role, reported_missed } = row;
                    // ORDER: retention has counted notifications as missed that were in memory and are concluded
                    // now. They have numbers up to the stored one, so this comes before the number changes.
                    let seqs = format!("{seqs:?}");
                    correct.execute(params![
                        target,
                        source.as_str(),
                        instance,
                        reported_missed,
                        seqs
                    ])?;
                    insert.execute(params![
                        target,
                        source.as_str(),
                        instance,
                        seq,
                        outcome,
                        role.map(EventKind::as_str),
                        at
                    ])?;
                }
                RowChange::Delete => {
                    delete.execute(params![target, source.as_str(), instance])?;
                }
            }
        }
        Ok(())
    }
}

/// How far a target is with one instance, as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredPosition {
    /// The last notification that is concluded or counted as missed; 0 without a row.
    pub seq: i64,
    /// Number of notifications that were deleted before the target received them.
    pub missed: u32,
}

/// All rows of the table. A row with an unknown source is left out.
pub(crate) fn stored_deliveries(
    connection: &Connection,
) -> Result<Vec<StoredDelivery>, HistoryError> {
    let mut statement = connection
        .prepare("SELECT target, source, instance, seq, outcome, role, missed FROM delivery")?;
    let mut rows = statement.query([])?;
    let mut all: Vec<StoredDelivery> = Vec::new();
    while let Some(row) = rows.next()? {
        let Ok(source) = row.get::<_, String>(1)?.parse() else { continue };
        let name: String = row.get(0)?;
        // The rows of a target follow each other, and share its name.
        let last = all.last().filter(|last| *last.key.target == *name);
        let target = last.map_or_else(|| Arc::from(name), |last| Arc::clone(&last.key.target));
        all.push(StoredDelivery {
            key: DeliveryKey { target, source, instance: row.get(2)? },
            seq: row.get(3)?,
            outcome: row.get(4)?,
            role: row.get::<_, Option<String>>(5)?.as_deref().and_then(EventKind::from_word),
            missed: row.get(6)?,
        });
    }
    Ok(all)
}
