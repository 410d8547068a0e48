//! Records which report was delivered to which target.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use vipwatch_core::InstanceId;

use super::JournalEntry;

/// Sequence number of the last report about an instance that was delivered to a target, by the target's name.
pub(super) type Deliveries = BTreeMap<(Arc<str>, InstanceId), i64>;

/// Deliveries that the writer has not taken yet.
/// BOUND: one entry for each target and instance.
pub(super) type SharedDeliveries = Arc<Mutex<Deliveries>>;

/// Handle for the threads that deliver reports. It may outlive the journal; deliveries that are recorded then are lost.
#[derive(Debug, Clone)]
pub struct DeliveryStore {
    deliveries: SharedDeliveries,
    sender: SyncSender<Vec<JournalEntry>>,
}

impl DeliveryStore {
    pub(super) fn new(deliveries: SharedDeliveries, sender: SyncSender<Vec<JournalEntry>>) -> Self {
        Self { deliveries, sender }
    }

    /// Records that `target` has the state of `instance` of the report `seq`. The writer stores it later; if
    /// the process is killed before, the next process delivers the report again.
    pub fn record(&self, target: &Arc<str>, instance: &InstanceId, seq: i64) {
        let Ok(mut deliveries) = self.deliveries.lock() else { return };
        let is_first = deliveries.is_empty();
        deliveries.insert((Arc::clone(target), instance.clone()), seq);
        drop(deliveries);
        if is_first {
            // If the queue is full, the writer takes the deliveries after the next batch.
            let _ = self.sender.try_send(vec![JournalEntry::TakeDeliveries]);
        }
    }
}
