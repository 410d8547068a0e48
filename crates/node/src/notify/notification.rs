// SPDX-License-Identifier: Apache-2.0
//! The notifications for hooks, webhooks, the upstream and the IPv6 outlet, and the report about each attempt.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_api::{FindingEvent, FindingState, NotificationBody};
use vipwatch_core::{Conclusion, EventKind, InstanceId, Moment};
use vipwatch_history::{DeliverySource, Latencies, Record, Stage};
use vipwatch_linux::clock;
use vipwatch_linux::wake_queue::WakeQueue;

use crate::discovery::InstanceConfig;
use crate::event::NodeIdentity;
use crate::transition::{micros, time_from_millis};

/// What a notification is about. Of the notifications about one subject, a newer one may replace an older one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The role of an instance.
    Instance(InstanceId),
    /// One finding.
    Finding(Arc<FindingSubject>),
}

/// What tells one finding from another.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FindingSubject {
    /// The instance; `None` for a finding about the node.
    pub(crate) instance: Option<InstanceId>,
    /// The name of the finding.
    pub(crate) name: Box<str>,
}

impl Subject {
    /// The instance that the subject is about; `None` for a finding about the node.
    pub(crate) fn instance(&self) -> Option<&InstanceId> {
        match self {
            Self::Instance(id) => Some(id),
            Self::Finding(finding) => finding.instance.as_ref(),
        }
    }

    /// The id of the instance in log lines; `node` for a finding about the node.
    pub(crate) fn instance_word(&self) -> &str {
        self.instance().map_or("node", InstanceId::as_str)
    }

    /// The name of the finding; `None` for the role of an instance.
    pub(crate) fn finding(&self) -> Option<&str> {
        match self {
            Self::Instance(_) => None,
            Self::Finding(finding) => Some(&finding.name),
        }
    }

    /// The text in the table `delivery`: the id of an instance, or `ID NAME` for a finding. An id contains no space, and
    /// is empty for a finding about the node.
    pub(crate) fn stored_text(&self) -> String {
        let id = self.instance().map_or("", InstanceId::as_str);
        self.finding().map_or_else(|| id.to_owned(), |name| format!("{id} {name}"))
    }

    /// The subject with this [`Self::stored_text`]; `None` if the text is not valid.
    pub(crate) fn from_stored_text(text: &str) -> Option<Self> {
        let Some((id, name)) = text.split_once(' ') else {
            return text.parse().ok().map(Self::Instance);
        };
        let instance = if id.is_empty() { None } else { Some(id.parse().ok()?) };
        Some(Self::Finding(Arc::new(FindingSubject { instance, name: name.into() })))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.stored_text().trim_start())
    }
}

/// The content of a delivery.
pub(crate) trait Notification: Debug + Send + Sync {
    /// The instance that the notification is about; `None` for a finding about the node.
    fn instance(&self) -> Option<&InstanceId>;
    /// The configuration of that instance; `None` if it is not known.
    fn config(&self) -> Option<&InstanceConfig> {
        None
    }
    /// Whether the silences of this node apply. The reporter evaluates those of a finding about several nodes.
    fn is_local(&self) -> bool {
        true
    }

    /// What the notification is about.
    fn subject(&self) -> Subject;

    /// The name of the finding that the notification is about; `None` for any other notification.
    fn finding(&self) -> Option<&str> {
        None
    }
    /// Whether the finding has appeared, changed or gone; `None` for any other notification.
    fn finding_state(&self) -> Option<FindingState> {
        None
    }

    /// The same finding for a target without the notification that it has appeared; `None` for any other notification.
    fn as_opening(&self) -> Option<Arc<dyn Notification>> {
        None
    }
    /// The sequence number of the transition, report or finding.
    fn seq(&self) -> i64;
    /// What happened.
    fn kind(&self) -> EventKind;
    /// When it happened, on the clock of the calendar.
    fn at(&self) -> SystemTime;
    /// When the change was read from the kernel or from the monitor's request. Latencies count from this moment.
    fn read_at(&self) -> Moment;

    /// The time from which the latency of its delivery is measured; `None` for a delivery that is repeated, or that was
    /// read from the history, long after the kernel's event.
    fn measured_from(&self) -> Option<Moment> {
        Some(self.read_at())
    }
    /// The document that is sent to the target.
    fn body(&self, identity: &NodeIdentity) -> NotificationBody;
}

/// A transition as the history has it: one that a target has not received yet, or the removal of an instance.
#[derive(Debug)]
pub(crate) struct RecordedTransition {
    pub(crate) record: Record,
    pub(crate) id: InstanceId,
    /// The configuration of the instance; `None` if it is no longer configured.
    pub(crate) instance: Option<Arc<InstanceConfig>>,
    pub(crate) read_at: Moment,
}

impl Notification for RecordedTransition {
    fn instance(&self) -> Option<&InstanceId> {
        Some(&self.id)
    }

    fn config(&self) -> Option<&InstanceConfig> {
        self.instance.as_deref()
    }

    fn subject(&self) -> Subject {
        Subject::Instance(self.id.clone())
    }

    fn seq(&self) -> i64 {
        self.record.seq
    }

    fn kind(&self) -> EventKind {
        self.record.to.map_or(EventKind::Removed, EventKind::Role)
    }

    fn at(&self) -> SystemTime {
        time_from_millis(self.record.at)
    }

    fn read_at(&self) -> Moment {
        self.read_at
    }

    fn measured_from(&self) -> Option<Moment> {
        None
    }

    fn body(&self, identity: &NodeIdentity) -> NotificationBody {
        if self.record.to.is_none() {
            return NotificationBody::Removed(identity.removed(&self.record));
        }
        let instance = self.instance.as_deref();
        let event = identity.recorded_transition(&self.record, &Latencies::default(), instance);
        NotificationBody::Transition(Box::new(event))
    }
}

/// A finding that has appeared or gone.
#[derive(Debug, Clone)]
pub(crate) struct FindingNotification {
    pub(crate) event: FindingEvent,
    /// `None` for a finding about the node.
    pub(crate) instance: Option<InstanceId>,
    pub(crate) read_at: Moment,
    /// An earlier run has published it.
    pub(crate) is_recorded: bool,
}

impl Notification for FindingNotification {
    fn instance(&self) -> Option<&InstanceId> {
        self.instance.as_ref()
    }

    fn is_local(&self) -> bool {
        self.event.cluster.is_none()
    }

    fn subject(&self) -> Subject {
        // Several groups can have a finding with the same name. The pending deliveries of another run do not continue with
        // the id as the name: the reporter delivers an open finding again to the targets that have not received it.
        let cluster = self.event.cluster.as_ref().map(|item| item.id.as_str());
        let name = cluster.unwrap_or(&self.event.finding.name).into();
        Subject::Finding(Arc::new(FindingSubject { instance: self.instance.clone(), name }))
    }

    fn finding(&self) -> Option<&str> {
        Some(&self.event.finding.name)
    }

    fn finding_state(&self) -> Option<FindingState> {
        Some(self.event.state)
    }

    fn as_opening(&self) -> Option<Arc<dyn Notification>> {
        let mut opening = self.clone();
        opening.event.state = FindingState::Open;
        Some(Arc::new(opening))
    }

    fn seq(&self) -> i64 {
        self.event.seq
    }

    fn kind(&self) -> EventKind {
        EventKind::Finding
    }

    fn at(&self) -> SystemTime {
        self.event.at.into()
    }

    fn read_at(&self) -> Moment {
        self.read_at
    }

    fn measured_from(&self) -> Option<Moment> {
        Some(self.read_at).filter(|_| !self.is_recorded)
    }

    fn body(&self, _identity: &NodeIdentity) -> NotificationBody {
        NotificationBody::Finding(Box::new(self.event.clone()))
    }
}

/// The result of one attempt to deliver a notification.
#[derive(Debug)]
pub(crate) struct DeliveryReport {
    /// Where the notification comes from.
    pub(crate) source: DeliverySource,
    /// The instance that the notification is about; `None` for a finding about the node.
    pub(crate) instance: Option<InstanceId>,
    /// The name of the finding that the notification is about; `None` for any other notification.
    pub(crate) finding: Option<String>,
    /// The sequence number of the notification.
    pub(crate) seq: i64,
    /// The stage that the target belongs to.
    pub(crate) stage: Stage,
    /// The kind of outlet, in events.
    pub(crate) outlet: &'static str,
    /// The name of the target.
    pub(crate) target: String,
    /// The time since the change was read from the kernel, in microseconds; `None` if it was read in an earlier run, or
    /// is delivered again.
    pub(crate) micros: Option<i64>,
    /// The error as text; empty if it is the same error as at the last attempt.
    pub(crate) outcome: Result<(), String>,
    /// Whether this was the last attempt: the target has the notification, or it was given up.
    pub(crate) is_final: bool,
    /// How the delivery was concluded; `None` if there will be another attempt.
    pub(crate) conclusion: Option<Conclusion>,
}

/// Reports from the workers to the node's main loop.
///
/// BOUND: one report for each attempt. An entry waits at least 250 ms between two attempts, and the main loop empties the
/// queue in every turn.
pub(crate) type ReportQueue = WakeQueue<DeliveryReport>;

impl DeliveryReport {
    /// A report that the notification `seq` about `instance` has reached `target` now.
    pub(crate) fn new(
        instance: &InstanceId,
        seq: i64,
        measured_from: Option<Moment>,
        stage: Stage,
        target: &str,
    ) -> Self {
        Self {
            source: DeliverySource::Node,
            instance: Some(instance.clone()),
            finding: None,
            seq,
            stage,
            outlet: stage.word(),
            target: target.to_owned(),
            micros: measured_from.map(|moment| micros(moment, clock::now())),
            outcome: Ok(()),
            is_final: true,
            conclusion: Some(Conclusion::Delivered),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_text_of_a_subject_is_read_back_and_a_node_finding_is_no_instance() {
        for text in ["VI_1", "VI_1 webhook-failed", " node-history"] {
            let subject = Subject::from_stored_text(text).unwrap();
            assert_eq!(subject.stored_text(), text);
        }
        let about_node = Subject::from_stored_text(" node-history").unwrap();
        assert_eq!((about_node.instance(), about_node.finding()), (None, Some("node-history")));
        assert_ne!(about_node, Subject::Instance("node-history".parse().unwrap()));
        assert_eq!(about_node.to_string(), "node-history");
        assert_eq!(Subject::from_stored_text("a/b hook-failed"), None);
    }
}
