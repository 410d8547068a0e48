//! Records the result of a delivery in the history and in the published state, and sends it to subscribers.

use std::sync::atomic::Ordering;

use vipwatch_core::{Conclusion, InstanceId};
use vipwatch_history::{DeliverySource, Stage};

use super::Node;
use crate::notify::notification::DeliveryReport;

impl Node {
    /// Records that a target received a notification, or why it did not. The queue of a hook or webhook has logged it.
    pub(super) fn record_delivery(&mut self, report: &DeliveryReport) {
        let DeliveryReport { seq, stage, target, outcome, conclusion, .. } = report;
        let Some(instance) = self.followed_instance(report) else {
            let is_event = match outcome {
                Ok(()) => *conclusion == Some(Conclusion::Delivered),
                Err(error) => !error.is_empty(),
            };
            if is_event {
                self.publish_delivery_event(report);
            }
            return;
        };
        let is_of_queue = matches!(stage, Stage::Hook | Stage::Webhook);
        match outcome {
            Ok(()) => {
                let is_delivered = *conclusion == Some(Conclusion::Delivered);
                let is_complete =
                    is_delivered && self.outlets.is_stage_delivered(instance, *stage, *seq);
                self.record_success(report, instance, is_complete);
                if !is_delivered {
                    return;
                }
            }
            // An empty text: the same failure as at the last attempt, which is recorded already.
            Err(error) if error.is_empty() => return,
            Err(error) => {
                if !is_of_queue {
                    let stage = stage.word();
                    tracing::warn!(%instance, seq, stage, target, error, "delivery failed");
                }
                self.store.counters.outlet_failures.fetch_add(1, Ordering::Relaxed);
                self.store.amend(instance, |entry| {
                    entry.failures.insert((*stage, target.clone()), error.clone());
                });
            }
        }
        self.publish_delivery_event(report);
    }

    /// The instance with the state that the delivery belongs to. `None` for a report of a monitor, for a finding, and for
    /// an instance that was removed: these have no stages.
    fn followed_instance<'a>(&self, report: &'a DeliveryReport) -> Option<&'a InstanceId> {
        let is_stage = report.source == DeliverySource::Node && report.finding.is_none();
        let instance = report.instance.as_ref().filter(|_| is_stage)?;
        self.store.entry(instance).is_some().then_some(instance)
    }

    /// `is_complete`: all targets of the stage have received the notification, so the stage has a latency.
    fn record_success(&self, report: &DeliveryReport, instance: &InstanceId, is_complete: bool) {
        let DeliveryReport { seq, stage, target, micros, .. } = report;
        // A delivery that is repeated after a restart or a reload says nothing about the latency of its transition.
        let latency = micros.filter(|_| is_complete);
        if let Some(micros) = latency {
            self.history.set_latency(*seq, *stage, micros);
        }
        let mut has_failed = false;
        self.store.amend(instance, |entry| {
            has_failed = entry.failures.remove(&(*stage, target.clone())).is_some();
            let is_first = entry.seq == *seq && entry.latencies.of(*stage).is_none();
            if let Some(micros) = latency.filter(|_| is_first) {
                entry.latencies.set(*stage, micros);
            }
        });
        // The queue of a hook or webhook has logged it.
        if has_failed && !matches!(stage, Stage::Hook | Stage::Webhook) {
            let stage = stage.word();
            tracing::info!(%instance, seq, stage, target, "delivery works again");
        }
    }
}
