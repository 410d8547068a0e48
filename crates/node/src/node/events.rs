// SPDX-License-Identifier: Apache-2.0
//! Publishes events: in the history, to the clients of the event stream, and findings to the targets.
//!
//! ORDER: every event of the node takes its sequence number here or in `publish`, on the main loop. So the order of the
//! numbers is the order in which clients receive the events.

use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_api::{FindingEvent, FindingItem, FindingState};
use vipwatch_core::{Cause, InstanceId, Moment};
use vipwatch_history::{EventRecord, Latencies, Reader};
use vipwatch_linux::clock;

use super::Node;
use crate::audit::FindingChange;
use crate::notify::earlier_run::RecordedFindings;
use crate::notify::notification::{DeliveryReport, FindingNotification, Notification};
use crate::transition::{Transition, millis};

impl Node {
    /// The sequence number of the next event.
    pub(super) fn next_seq(&mut self) -> i64 {
        self.seq += 1;
        self.seq
    }

    /// Sends a transition to the clients. The history has it as a transition.
    pub(super) fn publish_transition_event(&self, transition: &Transition, latencies: &Latencies) {
        let Transition { seq, instance, .. } = transition;
        self.store.events.publish(*seq, "transition", Some(&instance.id), || {
            let stages = self.outlets.expected(transition);
            to_json(&self.identity.transition(transition, latencies, &stages))
        });
    }

    /// Records a cause that has become known after its transition, and sends it to the clients.
    pub(super) fn publish_cause_event(&mut self, transition: &Transition, cause: &Cause) {
        let seq = self.next_seq();
        let body = to_json(&self.identity.cause(seq, transition, cause));
        self.publish_recorded("cause", Some(&transition.instance.id), body);
    }

    /// Records the result of an attempt to deliver, and sends it to the clients.
    pub(super) fn publish_delivery_event(&mut self, report: &DeliveryReport) {
        let seq = self.next_seq();
        let body = to_json(&self.identity.delivery(seq, report));
        self.publish_recorded("delivery", report.instance.as_ref(), body);
    }

    /// Publishes the findings that have appeared or gone since the last call.
    pub(super) fn publish_findings(&mut self) {
        for FindingChange { finding, state } in self.finding_changes.take_all() {
            let instance = finding.id.as_ref().and_then(|id| id.parse().ok());
            self.publish_finding(instance.as_ref(), finding, state);
        }
    }

    fn publish_finding(
        &mut self,
        instance: Option<&InstanceId>,
        mut item: FindingItem,
        state: FindingState,
    ) {
        let until = self.silences.until(instance, SystemTime::now());
        item.silenced_until = until.map(crate::event::time);
        let seq = self.next_seq();
        let event = self.identity.finding(seq, state, item);
        let (body, id, read_at) = (to_json(&event), instance.cloned(), clock::now());
        let finding: Arc<dyn Notification> =
            Arc::new(FindingNotification { event, instance: id, read_at, is_recorded: false });
        // ORDER: the targets store that the finding is pending before the event is recorded. A kill between the two must
        // not leave a finding that the next run does not open again and that no target receives.
        self.outlets.deliver_finding(&finding);
        self.publish_recorded("finding", instance, body);
    }

    /// Delivers the findings that an earlier run, or a target that a reload has added again, has left pending. Reads the
    /// history if there are any.
    pub(super) fn resume_findings(&self) {
        let Some(after) = self.notifier.oldest_unread_finding() else { return };
        let recorded = Reader::open(&self.config.state_dir)
            .and_then(|reader| reader.pending_findings_after(after));
        let bodies = match recorded {
            Ok(bodies) => bodies,
            Err(error) => {
                tracing::warn!(%error, "cannot read pending findings");
                return;
            }
        };
        let mut all = RecordedFindings::new();
        for event in bodies.iter().filter_map(|body| serde_json::from_str(body).ok()) {
            let event: FindingEvent = event;
            let Ok(instance) = event.finding.id.as_ref().map(|id| id.parse()).transpose() else {
                continue;
            };
            let read_at = clock::now();
            let finding = FindingNotification { event, instance, read_at, is_recorded: true };
            let finding: Arc<dyn Notification> = Arc::new(finding);
            all.entry(finding.subject()).or_default().push(finding);
        }
        self.outlets.resume_findings(&all, |id| self.store.entry(id).is_some());
    }

    /// Records the event with the last sequence number, and sends it to the clients.
    pub(super) fn publish_recorded(
        &self,
        name: &'static str,
        instance: Option<&InstanceId>,
        body: String,
    ) {
        let (seq, at) = (self.seq, millis(SystemTime::now()));
        self.store.events.publish(seq, name, instance, || body.clone());
        let instance = instance.map(ToString::to_string);
        self.history.record_event(EventRecord { seq, at, name: name.to_owned(), instance, body });
    }

    /// When the next silence ends.
    pub(super) fn silence_due(&self) -> Option<Moment> {
        let end = self.silences.next_end()?;
        Some(clock::now() + end.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Stores silences that were added or removed, and ends those that are over.
    pub(super) fn update_silences(&mut self) {
        let now = SystemTime::now();
        if self.silences.end_of_cluster(now) {
            self.notifier.silences_changed();
        }
        let ended = self.silences.take_ended(now);
        for silence in &ended {
            let instance = silence.instance.as_deref().unwrap_or("all");
            tracing::info!(silence = silence.number, instance, "silence is over");
        }
        let is_changed = self.silences.take_changes();
        if is_changed || !ended.is_empty() {
            self.history.store_silences(self.silences.rows());
            self.notifier.silences_changed();
            if let Some(cluster) = &self.cluster {
                cluster.mark_silences();
            }
        }
    }
}

pub(super) fn to_json(document: &impl serde::Serialize) -> String {
    serde_json::to_string(document).unwrap_or_default()
}
