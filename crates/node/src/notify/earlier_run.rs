// SPDX-License-Identifier: Apache-2.0
//! What earlier runs have left to this one: pending findings, and the failures of deliveries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::InstanceId;
use vipwatch_history::{DeliverySource, Stage};

use super::notification::{Notification, Subject};
use super::notifier::Notifier;

/// The findings that the history has, by subject, oldest first.
pub(crate) type RecordedFindings = BTreeMap<Subject, Vec<Arc<dyn Notification>>>;

/// A failed attempt of an earlier run.
#[derive(Debug, Clone)]
pub(crate) struct EarlierFailure {
    /// The sequence number of the notification.
    pub(crate) notification: i64,
    /// When it failed; the Unix epoch if that is not known.
    pub(crate) at: SystemTime,
    /// The error as text.
    pub(crate) error: String,
}

impl EarlierFailure {
    /// A failure of which the history does not have the attempt any more.
    pub(super) fn unknown(notification: i64) -> Self {
        let error = "given up before the last restart; the history has no details".to_owned();
        Self { notification, at: SystemTime::UNIX_EPOCH, error }
    }
}

/// The last failed attempt of an earlier run, by target and instance.
pub(crate) type EarlierFailures = BTreeMap<(String, InstanceId), EarlierFailure>;

/// A failure that the notifier has restored.
#[derive(Debug)]
pub(crate) struct RestoredFailure {
    /// The stage of the target.
    pub(crate) stage: Stage,
    /// The name of the target.
    pub(crate) target: Arc<str>,
    /// The instance that the notification is about.
    pub(crate) instance: InstanceId,
    /// The failed attempt.
    pub(crate) failure: EarlierFailure,
}

impl Notifier {
    /// The number after which the history has the failures of an earlier run; `None` if it left none.
    pub(crate) fn oldest_failure(&self) -> Option<i64> {
        let queues = self.queues(DeliverySource::Node);
        queues.iter().filter_map(|queue| queue.oldest_failure()).min()
    }

    /// Restores the failures of an earlier run: of the deliveries that it gave up, and of those that are pending.
    pub(crate) fn restore_failures(&self, failed: &EarlierFailures) -> Vec<RestoredFailure> {
        let mut all = Vec::new();
        for (target, queue) in self.named_queues(DeliverySource::Node) {
            let of = |id: &InstanceId| failed.get(&(target.to_string(), id.clone())).cloned();
            let restored = queue.restore_failures(of);
            let stage = queue.settings().stage();
            all.extend(restored.into_iter().map(|(instance, failure)| RestoredFailure {
                stage,
                target: Arc::clone(&target),
                instance,
                failure,
            }));
        }
        all
    }

    /// The lowest of the last concluded numbers of the findings that an earlier run has left pending; `None` if no
    /// finding is pending.
    pub(crate) fn oldest_unread_finding(&self) -> Option<i64> {
        let queues = self.queues(DeliverySource::Node);
        queues.iter().filter_map(|queue| queue.oldest_unread_finding()).min()
    }

    /// Continues with the findings that an earlier run has left pending. Those about an instance for which `is_wanted` is
    /// false, given the name of the target, are forgotten.
    pub(super) fn resume_findings(
        &self,
        recorded: &RecordedFindings,
        is_wanted: impl Fn(&str, &InstanceId) -> bool,
    ) {
        for (name, queue) in self.named_queues(DeliverySource::Node) {
            queue.resume_findings(recorded, |id| is_wanted(&name, id));
        }
    }
}
