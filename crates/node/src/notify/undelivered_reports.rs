// SPDX-License-Identifier: Apache-2.0
//! Settled reports that targets for every report have not received: what the receiver's journal must keep, and what is
//! counted as missed when it cannot keep more.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use vipwatch_core::InstanceId;
use vipwatch_history::{DeliverySource, MissedNotifications};
use vipwatch_receiver::journal::{JournalReader, ReportSeqs};

use super::notification::Notification;
use super::notifier::Notifier;
use super::target_queue::TargetQueue;

impl Notifier {
    /// Reads the backlog of the receiver's targets from this journal.
    pub(super) fn set_journal(&self, journal: JournalReader) {
        let mut current = self.context().journal.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(journal);
    }

    /// The queues of the receiver's targets that must receive every report.
    fn queues_for_every_report(&self) -> impl Iterator<Item = Arc<TargetQueue>> {
        let queues = self.queues(DeliverySource::Receiver).into_iter();
        queues.filter(|queue| queue.is_for_every())
    }

    /// Whether a target of the receiver must receive every report.
    pub(super) fn needs_every_report(&self) -> bool {
        self.queues_for_every_report().next().is_some()
    }

    /// As [`Self::deliver_to_all`] for the receiver, for the last report of a router in an earlier run or before a
    /// reload. A target for every report receives those that are missing before it first.
    pub(super) fn resume_report(&self, notification: &Arc<dyn Notification>) {
        for queue in self.queues(DeliverySource::Receiver) {
            queue.resume(notification, false);
        }
    }

    /// The sequence number up to which all targets for every report have received the reports of each instance.
    pub(super) fn received_reports(&self) -> BTreeMap<InstanceId, i64> {
        let mut lowest = BTreeMap::new();
        for (id, seq) in self.queues_for_every_report().flat_map(|queue| queue.concluded_seqs()) {
            let known = lowest.entry(id).or_insert(seq);
            *known = seq.min(*known);
        }
        lowest
    }

    /// Counts reports as missed for the targets for every report that have not received them.
    pub(super) fn count_missed_reports(
        &self,
        seqs: ReportSeqs,
        on_stored: Arc<dyn Fn() + Send + Sync>,
    ) {
        let Some(store) = &self.context().store else { return };
        let names = self.queues_for_every_report().map(|queue| queue.settings().name().to_owned());
        store.count_missed(MissedNotifications {
            source: DeliverySource::Receiver,
            targets: names.collect(),
            seqs: seqs.into_iter().map(|(id, seqs)| (id.to_string(), seqs)).collect(),
            on_stored,
        });
    }
}
