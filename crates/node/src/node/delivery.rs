// SPDX-License-Identifier: Apache-2.0
//! Records the result of a delivery in the history and in the published state, and sends it to subscribers.

use std::collections::BTreeMap;
use std::time::SystemTime;

use vipwatch_api::DeliveryEvent;
use vipwatch_core::{Conclusion, InstanceId};
use vipwatch_history::{DeliverySource, Reader, Stage};

use super::Node;
use crate::log::{addresses, netns_name};
use crate::notify::earlier_run::{EarlierFailure, EarlierFailures};
use crate::notify::notification::DeliveryReport;
use crate::state::FailedDelivery;

/// Maximum number of events that are read to find the failed attempts of earlier runs. It limits the time of a start.
const MAX_EVENTS_READ: u32 = 20_000;

impl Node {
    /// Records that a target received a notification, or why it did not. The queue of a hook or webhook has logged it.
    pub(super) fn record_delivery(&mut self, report: &DeliveryReport) {
        self.note_cluster_delivery(report);
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
                    let entry = self.store.entry(instance);
                    let config = entry.as_ref().map(|entry| &*entry.instance);
                    let (netns, address) = (config.map(netns_name), config.map(addresses));
                    let stage = stage.word();
                    tracing::warn!(%instance, netns, address, seq, stage, target, error, "delivery failed");
                }
                self.store.amend(instance, |entry| {
                    let key = (*stage, target.clone());
                    let since = entry.failures.get(&key).map(|known| known.since);
                    let since = since.unwrap_or_else(SystemTime::now);
                    let error = error.clone();
                    entry.failures.insert(key, FailedDelivery { error, since });
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
        let (mut has_failed, mut is_first) = (false, false);
        self.store.amend(instance, |entry| {
            has_failed = entry.failures.remove(&(*stage, target.clone())).is_some();
            is_first = latency.is_some() && entry.begin_latency(*stage, *seq);
            if let Some(micros) = latency.filter(|_| is_first && entry.seq == *seq) {
                entry.latencies.set(*stage, micros);
            }
        });
        if let Some(micros) = latency.filter(|_| is_first) {
            self.store.latencies.observe(*stage, micros);
        }
        // The queue of a hook or webhook has logged it.
        if has_failed && !matches!(stage, Stage::Hook | Stage::Webhook) {
            let stage = stage.word();
            tracing::info!(%instance, seq, stage, target, "delivery works again");
        }
    }

    /// Puts the failures of an earlier run into the published state: of the deliveries that it gave up, and of those that
    /// are still pending. Without them, the audit would report that the failures are over.
    pub(super) fn restore_failures(&self) {
        let Some(after) = self.notifier.oldest_failure() else { return };
        for restored in self.notifier.restore_failures(&self.failed_deliveries(after)) {
            let EarlierFailure { error, at, .. } = restored.failure;
            let key = (restored.stage, restored.target.to_string());
            self.store.amend(&restored.instance, |entry| {
                entry.failures.entry(key).or_insert(FailedDelivery { error, since: at });
            });
        }
    }

    /// The last failed attempt of each target and instance, as far as the history has it.
    fn failed_deliveries(&self, after: i64) -> EarlierFailures {
        let bodies = Reader::open(&self.config.state_dir)
            .and_then(|reader| reader.failed_deliveries_after(after, MAX_EVENTS_READ));
        let bodies = bodies.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read failed deliveries");
            Vec::new()
        });
        let mut failures = BTreeMap::new();
        for event in bodies.iter().filter_map(|body| serde_json::from_str(body).ok()) {
            let DeliveryEvent { id, target, notification, at, error, finding, source, .. } = event;
            let id = id.as_ref().and_then(|id| id.parse().ok());
            let is_stage = finding.is_none() && source == DeliverySource::Node.as_str();
            if let (Some(id), Some(error), true) = (id, error, is_stage) {
                // The newest event comes first.
                let failure = EarlierFailure { notification, at: at.into(), error };
                failures.entry((target, id)).or_insert(failure);
            }
        }
        failures
    }
}
