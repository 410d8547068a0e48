//! Records the result of a delivery in the history and in the published state, and sends it to subscribers.

use std::sync::atomic::Ordering;

use super::Node;
use crate::notify::outlet::DeliveryReport;

impl Node {
    /// Records that a target received a notification, or why it did not.
    pub(super) fn record_delivery(&mut self, report: &DeliveryReport) {
        let DeliveryReport { instance, seq, stage, target, outcome, is_final, .. } = report;
        let stage_word = stage.word();
        if !self.notifier.is_awaited(report) {
            let error = outcome.as_ref().err();
            tracing::info!(%instance, seq, stage = stage_word, target, error, "delivery to a removed target ended");
            return;
        }
        let is_complete = *is_final && self.notifier.conclude(report);
        if self.store.entry(instance).is_none() {
            return;
        }
        match outcome {
            Ok(()) => {
                tracing::debug!(%instance, seq, stage = stage_word, target, "delivered");
                self.record_success(report, is_complete);
            }
            // An empty text: the same failure as at the last attempt, which is recorded already.
            Err(error) if error.is_empty() => return,
            Err(error) => {
                let will_retry = !*is_final;
                tracing::warn!(%instance, seq, stage = stage_word, target, error, will_retry, "delivery failed");
                self.store.counters.outlet_failures.fetch_add(1, Ordering::Relaxed);
                self.history.clear_latency(*seq, *stage);
                self.store.amend(instance, |entry| {
                    entry.failures.insert((*stage, target.clone()), error.clone());
                });
            }
        }
        self.publish_delivery_event(report);
    }

    /// `is_complete`: all targets of the stage have received the notification, so the stage has a latency.
    fn record_success(&self, report: &DeliveryReport, is_complete: bool) {
        let DeliveryReport { instance, seq, stage, target, micros, .. } = report;
        if is_complete {
            self.history.set_latency(*seq, *stage, *micros);
        }
        self.store.amend(instance, |entry| {
            entry.failures.remove(&(*stage, target.clone()));
            let is_first = entry.seq == *seq && entry.latencies.of(*stage).is_none();
            if is_complete && is_first {
                entry.latencies.set(*stage, *micros);
            }
        });
    }
}
