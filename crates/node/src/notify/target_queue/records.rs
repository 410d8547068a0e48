// SPDX-License-Identifier: Apache-2.0
//! The conclusions for each subject: on the disk, and for queries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_api::{FailingDelivery, TargetItem};
use vipwatch_core::notification::Concluded;
use vipwatch_core::{Conclusion, InstanceId};
use vipwatch_history::{ConcludedRow, DeliveryKey};
use vipwatch_linux::clock;

use super::state::{StoredSubject, TargetQueueState, TrackedSubject};
use crate::event;
use crate::notify::notification::Subject;

/// Maximum number of failing instances in a view.
const MAX_LISTED: usize = 20;

impl TargetQueueState {
    pub(super) fn key(&self, subject: &Subject) -> DeliveryKey {
        let (target, source) = (Arc::clone(&self.name), self.source);
        DeliveryKey { target, source, instance: subject.stored_text() }
    }

    /// Has the history store the conclusion about `subject`.
    pub(super) fn store(&self, subject: &Subject, reported_missed: u32) {
        let tracked = self.subjects.get(subject);
        let concluded = tracked.and_then(|tracked| tracked.delivery.concluded());
        let Some(store) = &self.context.store else { return };
        if let Some(Concluded { seq, conclusion, delivered: role }) = concluded {
            let outcome = conclusion.into();
            store.record(self.key(subject), ConcludedRow { seq, outcome, role, reported_missed });
        }
    }

    pub(super) fn store_again(&self) {
        for subject in self.subjects.keys() {
            self.store(subject, 0);
        }
    }

    pub(super) fn is_done(&self, subject: &Subject, seq: i64) -> bool {
        let tracked = self.subjects.get(subject);
        let concluded = tracked.and_then(|tracked| tracked.delivery.concluded());
        concluded.is_some_and(|concluded| {
            concluded.seq > seq
                || (concluded.seq == seq && concluded.conclusion != Conclusion::GivenUp)
        })
    }

    pub(super) fn knows(&self, subject: &Subject) -> bool {
        self.subjects.contains_key(subject)
    }

    pub(super) fn instances(&self) -> Vec<InstanceId> {
        let instances = self.subjects.keys().filter_map(|subject| match subject {
            Subject::Instance(id) => Some(id.clone()),
            Subject::Finding(_) => None,
        });
        instances.collect()
    }

    pub(super) fn concluded_seqs(&self) -> Vec<(InstanceId, i64)> {
        let concluded = self.subjects.iter().filter_map(|(subject, tracked)| match subject {
            Subject::Instance(id) => Some((id.clone(), tracked.delivery.concluded()?.seq)),
            Subject::Finding(_) => None,
        });
        concluded.collect()
    }

    /// Stores that notifications about a finding from `seq` on are pending. The row is deleted when they are concluded,
    /// so a finding without a row has nothing pending.
    pub(super) fn begin_finding(&mut self, subject: &Subject, seq: i64) {
        if self.subjects.contains_key(subject) {
            return;
        }
        let before = Concluded { seq: seq - 1, conclusion: Conclusion::Filtered, delivered: None };
        self.subjects.insert(subject.clone(), TrackedSubject::new(Some(before), 0));
        self.store(subject, 0);
    }

    pub(super) fn take_concluded(&mut self) -> BTreeMap<Subject, StoredSubject> {
        let subjects = std::mem::take(&mut self.subjects).into_iter();
        let stored = subjects.filter_map(|(subject, tracked)| {
            let concluded = tracked.delivery.concluded()?;
            Some((subject, StoredSubject { concluded, missed: tracked.delivery.missed() }))
        });
        stored.collect()
    }

    pub(super) fn pending(&self) -> usize {
        self.subjects.values().map(|tracked| tracked.delivery.pending()).sum()
    }

    pub(super) fn view(&self) -> TargetItem {
        let held = self.silenced.iter().filter_map(|subject| self.subjects.get(subject));
        let silenced: usize = held.map(|tracked| tracked.delivery.pending()).sum();
        let waiting = self.subjects.iter().filter(|(subject, _)| !self.silenced.contains(*subject));
        let pending = waiting.map(|(_, tracked)| tracked);
        let pending = pending.filter(|tracked| tracked.delivery.pending() > 0);
        let oldest = pending.filter_map(|tracked| tracked.delivery.first());
        let oldest = oldest.map(|first| first.content.read_at()).min();
        let failing = self.failing.iter().take(MAX_LISTED).map(|(subject, failed)| {
            FailingDelivery { id: subject.to_string(), error: failed.error.clone() }
        });
        TargetItem {
            name: self.name.to_string(),
            kind: self.settings.kind(),
            source: self.source.as_str().to_owned(),
            pending: (self.pending() - silenced) as u64,
            silenced: silenced as u64,
            oldest_pending: oldest
                .map(|oldest| event::time(SystemTime::now() - clock::now().since(oldest))),
            delivered: self.counters.delivered,
            failures: self.counters.failures,
            given_up: self.counters.given_up,
            superseded: self.counters.superseded,
            filtered: self.counters.filtered,
            dropped: self.counters.dropped,
            failing: failing.collect(),
        }
    }
}
