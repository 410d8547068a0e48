// SPDX-License-Identifier: Apache-2.0
//! The results of attempts: what is counted, stored, logged and reported.

use std::time::Duration;

use vipwatch_core::Conclusion;
use vipwatch_core::Moment;
use vipwatch_core::notification::{AfterAttempt, AttemptResult, Concluded};
use vipwatch_history::DeliverySource;
use vipwatch_linux::clock;

use super::state::{FailedAttempt, TakenEvent, TargetQueueState};
use crate::log::{addresses, netns_name};
use crate::notify::attempt::{Attempt, OutgoingEvent};
use crate::notify::notification::{DeliveryReport, Notification, Subject};
use crate::transition::micros;

impl TargetQueueState {
    /// Ends an attempt.
    pub(super) fn finish(&mut self, taken: &[TakenEvent], attempts: Vec<Attempt>, now: Moment) {
        self.running = self.running.saturating_sub(taken.len());
        let is_batch = self.settings.batch().is_some();
        let mut wait = self.settings.batch().map_or(Duration::ZERO, |batch| batch.interval);
        // The notifications of a failed batch are tried again at the same time.
        let batch_jitter = self.jitter.clone();
        for (taken, attempt) in taken.iter().zip(attempts) {
            let mut jitter = batch_jitter.clone();
            let jitter = if is_batch { &mut jitter } else { &mut self.jitter };
            let mut result = attempt.result;
            if self.is_closing && result != AttemptResult::Delivered {
                result = AttemptResult::Interrupted;
            }
            let Some(tracked) = self.subjects.get_mut(&taken.subject) else {
                log_removed(&self.name, taken, attempt.error.as_deref());
                continue;
            };
            let after = tracked.delivery.finish(result, now, &self.policy, jitter);
            if let Some(AfterAttempt::RetryAfter(pause)) = after {
                wait = wait.max(pause);
            }
            self.record(taken, after, attempt.error);
            self.place(&taken.subject, now);
        }
        if is_batch {
            self.next_batch_at = now + wait;
            // Draws the random number that the notifications of this batch have used.
            self.jitter.shorten(Duration::ZERO);
        }
    }

    /// Counts, stores, logs and reports the result of an attempt.
    fn record(&mut self, taken: &TakenEvent, after: Option<AfterAttempt>, error: Option<String>) {
        let TakenEvent { subject, event } = taken;
        let conclusion = match after {
            Some(AfterAttempt::Concluded(conclusion)) => Some(conclusion),
            Some(AfterAttempt::RetryAfter(_)) | None => None,
        };
        if let Some(conclusion) = conclusion {
            self.count(conclusion);
            let is_delivered = conclusion == Conclusion::Delivered;
            self.store(subject, if is_delivered { event.missed } else { 0 });
        }
        let mut is_new = true;
        if let Some(error) = &error {
            is_new = self.note_failure(subject, event, conclusion, error);
        } else {
            self.note_success(subject, event);
        }
        if is_new {
            self.report(&*event.notification, conclusion, error);
        }
    }

    fn note_success(&mut self, subject: &Subject, event: &OutgoingEvent) {
        let (target, seq) = (&*self.name, event.notification.seq());
        let (instance, finding) = (subject.instance_word(), subject.finding());
        tracing::debug!(instance, finding, seq, target, "delivered");
        if self.failing.remove(subject).is_some() && self.failing.is_empty() {
            tracing::info!(target, "delivery works again");
        }
    }

    /// Logs a failure, unless it is known: many instances that fail with the same error, and are retried, are logged
    /// once. Returns false if the same subject failed with the same error before.
    fn note_failure(
        &mut self,
        subject: &Subject,
        event: &OutgoingEvent,
        conclusion: Option<Conclusion>,
        error: &str,
    ) -> bool {
        self.counters.failures += 1;
        let mut known = self.failing.values().filter(|known| !known.is_of_earlier_run);
        if conclusion.is_some() || known.all(|known| known.error != error) {
            let (target, seq) = (&*self.name, event.notification.seq());
            let next = match conclusion {
                None => "retry",
                Some(Conclusion::GivenUp) => "given up",
                Some(conclusion) => conclusion.into(),
            };
            let (instance, finding) = (subject.instance_word(), subject.finding());
            let config = event.notification.config();
            let (netns, address) = (config.map(netns_name), config.map(addresses));
            tracing::warn!(
                instance,
                netns,
                address,
                finding,
                seq,
                target,
                error,
                next,
                "delivery failed"
            );
        }
        let failed = FailedAttempt { error: error.to_owned(), is_of_earlier_run: false };
        let known = self.failing.insert(subject.clone(), failed);
        conclusion.is_some() || known.is_none_or(|known| known.error != error)
    }

    pub(super) fn report(
        &self,
        notification: &dyn Notification,
        conclusion: Option<Conclusion>,
        error: Option<String>,
    ) {
        let Some(reports) = &self.context.reports else { return };
        let measured_from = notification.measured_from();
        reports.push(DeliveryReport {
            source: self.source,
            instance: notification.instance().cloned(),
            finding: notification.finding().map(str::to_owned),
            seq: notification.seq(),
            stage: self.settings.stage(),
            outlet: self.settings.kind().word(),
            target: self.name.to_string(),
            micros: measured_from.map(|moment| micros(moment, clock::now())),
            outcome: error.map_or(Ok(()), Err),
            is_final: conclusion.is_some(),
            conclusion,
        });
    }

    /// Reports that a notification about an instance of the node, which has failed before, is not wanted any more.
    pub(super) fn report_filtered(&self, subject: &Subject) {
        let (Subject::Instance(id), DeliverySource::Node) = (subject, self.source) else { return };
        let concluded = self.subjects.get(subject).and_then(|tracked| tracked.delivery.concluded());
        let Some(Concluded { seq, conclusion, .. }) = concluded else { return };
        let stage = self.settings.stage();
        let mut report = DeliveryReport::new(id, seq, None, stage, &self.name);
        report.conclusion = Some(conclusion);
        if let Some(reports) = &self.context.reports {
            reports.push(report);
        }
    }

    pub(super) fn count(&mut self, conclusion: Conclusion) {
        let counter = match conclusion {
            Conclusion::Delivered => &mut self.counters.delivered,
            Conclusion::GivenUp => &mut self.counters.given_up,
            Conclusion::Superseded => &mut self.counters.superseded,
            Conclusion::Filtered => &mut self.counters.filtered,
        };
        *counter += 1;
    }
}

/// Logs the end of an attempt to deliver to a target that a reload has removed meanwhile.
fn log_removed(target: &str, taken: &TakenEvent, error: Option<&str>) {
    let seq = taken.event.notification.seq();
    let (instance, finding) = (taken.subject.instance_word(), taken.subject.finding());
    tracing::info!(instance, finding, seq, target, error, "delivery to a removed target ended");
}
