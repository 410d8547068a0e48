// SPDX-License-Identifier: Apache-2.0
//! Which transitions are being announced or are announced completely, in memory and in the table `delivery`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vipwatch_core::{Conclusion, EventKind, InstanceId};
use vipwatch_history::{ConcludedRow, DeliveryKey, DeliverySource, DeliveryStore};

use crate::notify::ANNOUNCE;
use crate::transition::Transition;

/// The announcements of this run, and those that the last run has completed. A clone is another handle on the same
/// list.
#[derive(Debug, Clone)]
pub(crate) struct AnnounceProgress {
    /// The sequence number of the transition that is being announced, or is announced completely.
    ///
    /// BOUND: one entry for each instance.
    seqs: Arc<Mutex<BTreeMap<InstanceId, i64>>>,
    deliveries: DeliveryStore,
}

impl AnnounceProgress {
    /// `completed`: the announcements that the last run has completed.
    pub(crate) fn new(completed: BTreeMap<InstanceId, i64>, deliveries: DeliveryStore) -> Self {
        Self { seqs: Arc::new(Mutex::new(completed)), deliveries }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<InstanceId, i64>> {
        self.seqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the transition `seq` is being announced, or is announced completely.
    pub(crate) fn includes(&self, id: &InstanceId, seq: i64) -> bool {
        self.lock().get(id).is_some_and(|announced| *announced >= seq)
    }

    pub(super) fn begin(&self, id: &InstanceId, seq: i64) {
        self.lock().insert(id.clone(), seq);
    }

    /// The announcement has ended before its last round.
    pub(super) fn abandon(&self, id: &InstanceId, seq: i64) {
        let mut seqs = self.lock();
        if seqs.get(id) == Some(&seq) {
            seqs.remove(id);
        }
    }

    /// The instance is no longer primary.
    pub(super) fn stop(&self, id: &InstanceId) {
        self.lock().remove(id);
    }

    /// Stores that all rounds were sent: the next run does not repeat them while the role is the same.
    pub(super) fn complete(&self, transition: &Transition) {
        let id = &transition.instance.id;
        let seqs = self.lock();
        if seqs.get(id) != Some(&transition.seq) {
            return;
        }
        let row = ConcludedRow {
            seq: transition.seq,
            outcome: Conclusion::Delivered.into(),
            role: Some(EventKind::Role(transition.to.kind())),
            reported_missed: 0,
        };
        // ORDER: under the lock, so that the row is not written after `forget` has deleted it.
        self.deliveries.record(key(id), row);
    }

    /// The announcement does not end yet: the next run repeats it, even if an earlier one is stored as completed.
    pub(super) fn reopen(&self, id: &InstanceId) {
        // ORDER: under the lock, as in `complete`.
        let _seqs = self.lock();
        self.deliveries.delete(key(id));
    }

    /// Deletes what is stored about an instance that is not announced any more.
    pub(crate) fn forget(&self, id: &InstanceId) {
        let mut seqs = self.lock();
        seqs.remove(id);
        self.deliveries.delete(key(id));
    }

    /// The instances that are being announced, or are announced completely.
    pub(crate) fn instances(&self) -> Vec<InstanceId> {
        self.lock().keys().cloned().collect()
    }
}

fn key(id: &InstanceId) -> DeliveryKey {
    let (target, source) = (ANNOUNCE.into(), DeliverySource::Node);
    DeliveryKey { target, source, instance: id.to_string() }
}
