// SPDX-License-Identifier: Apache-2.0
//! What earlier runs have left to the queue of a target: pending findings, and the failures of deliveries.

use vipwatch_core::{InstanceId, Moment};

use super::state::{FailedAttempt, TargetQueueState};
use crate::notify::earlier_run::{EarlierFailure, RecordedFindings};
use crate::notify::notification::Subject;

impl TargetQueueState {
    /// The lowest concluded number of the instances with a failure that this run may not know: the delivery was given up,
    /// or it is pending.
    pub(super) fn oldest_failure(&self) -> Option<i64> {
        let may_fail = self
            .subjects
            .values()
            .filter(|tracked| !tracked.delivery.is_idle() || tracked.is_given_up());
        may_fail.map(|tracked| tracked.delivery.concluded().map_or(0, |last| last.seq - 1)).min()
    }

    /// Restores the failures of an earlier run: of deliveries that it gave up, and of those that are still pending.
    /// `failed` finds the last failed attempt for an instance. Returns the instances with a failure.
    pub(super) fn restore_failures(
        &mut self,
        failed: impl Fn(&InstanceId) -> Option<EarlierFailure>,
    ) -> Vec<(InstanceId, EarlierFailure)> {
        let mut restored = Vec::new();
        for (subject, tracked) in &self.subjects {
            let Subject::Instance(id) = subject else { continue };
            let last = tracked.delivery.concluded().map_or(0, |concluded| concluded.seq);
            let failure = if tracked.is_given_up() {
                let of_last = failed(id).filter(|failure| failure.notification <= last);
                Some(of_last.unwrap_or_else(|| EarlierFailure::unknown(last)))
            } else {
                let is_pending = tracked.delivery.pending() > 0;
                failed(id).filter(|failure| is_pending && failure.notification > last)
            };
            // An attempt of this run may have failed meanwhile.
            let failure = failure.filter(|_| !self.failing.contains_key(subject));
            restored.extend(failure.map(|failure| (id.clone(), failure)));
        }
        for (id, failure) in &restored {
            let failed = FailedAttempt { error: failure.error.clone(), is_of_earlier_run: true };
            self.failing.insert(Subject::Instance(id.clone()), failed);
        }
        restored
    }

    /// The findings that an earlier run has left pending, with the last concluded number.
    pub(super) fn unread_findings(&self) -> impl Iterator<Item = (&Subject, i64)> {
        let findings = self.subjects.iter().filter(|(subject, tracked)| {
            matches!(subject, Subject::Finding(_)) && tracked.delivery.is_idle()
        });
        findings.filter_map(|(subject, tracked)| Some((subject, tracked.delivery.concluded()?.seq)))
    }

    /// Continues with the findings that an earlier run has left pending. `recorded` has their notifications, oldest first.
    /// A finding without a notification is forgotten.
    pub(super) fn resume_findings(
        &mut self,
        recorded: &RecordedFindings,
        is_wanted: impl Fn(&InstanceId) -> bool,
        now: Moment,
    ) {
        let unread: Vec<Subject> =
            self.unread_findings().map(|(subject, _)| subject.clone()).collect();
        for subject in unread {
            let is_wanted = subject.instance().is_none_or(&is_wanted);
            let all = recorded.get(&subject).filter(|_| is_wanted).map_or(&[][..], Vec::as_slice);
            for notification in all {
                self.submit(notification, now);
            }
            let tracked = self.subjects.get(&subject);
            if tracked.is_some_and(|tracked| tracked.delivery.is_idle()) {
                self.forget(&subject);
            }
        }
    }
}
