// SPDX-License-Identifier: Apache-2.0
//! Events as documents of the API, made from live transitions, deliveries and findings, and from rows of the history.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use vipwatch_api::{
    AddressItem, CauseEvent, ClusterFindingItem, DeliveryEvent, FindingEvent, FindingItem,
    FindingScope, FindingState, LatencyMap, NodeEvent, RemovedEvent, Schema, Timestamp,
    TransitionEvent, timestamp_from_millis,
};
use vipwatch_core::{Cause, InstanceId, RoleKind};
use vipwatch_history::{HistoryEntry, Latencies, Record, SequenceEntry, Stage};
use vipwatch_linux::clock::unix_millis;

use crate::audit::DatedFinding;
use crate::cause::{cause_item, recorded_cause_item};
use crate::discovery::InstanceConfig;
use crate::notify::notification::DeliveryReport;
use crate::state::HealthProblem;
use crate::transition::Transition;

/// The word for a role that stands for an instance that is no longer configured.
pub const REMOVED: &str = "removed";

/// The source of the events that the node itself makes.
const SOURCE: &str = "node";

/// The name of a node and the epoch of its history: the parts that all its events have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The name of the node.
    pub node: Arc<str>,
    /// The epoch of the history.
    pub epoch: Arc<str>,
}

impl NodeIdentity {
    /// The event of a transition. `stages` deliver it; a notification has none.
    pub fn transition(
        &self,
        transition: &Transition,
        latencies: &Latencies,
        stages: &[Stage],
    ) -> TransitionEvent {
        let record = transition.record();
        let mut event = self.recorded_transition(&record, latencies, Some(&transition.instance));
        event.stages = stages.iter().map(|stage| stage.word().to_owned()).collect();
        event
    }

    /// The event of a row of the history. `instance` is its configuration, if it is still configured.
    pub fn recorded(
        &self,
        entry: &SequenceEntry,
        instance: Option<&InstanceConfig>,
    ) -> Option<NodeEvent> {
        match entry {
            SequenceEntry::Transition(row) if row.record.to.is_none() => {
                Some(NodeEvent::Removed(self.removed(&row.record)))
            }
            SequenceEntry::Transition(row) => {
                let HistoryEntry { record, latencies } = &**row;
                Some(NodeEvent::Transition(Box::new(
                    self.recorded_transition(record, latencies, instance),
                )))
            }
            // A document of another release may be unreadable; the client then misses it.
            SequenceEntry::Event(row) => NodeEvent::from_data(&row.name, &row.body)?.ok(),
        }
    }

    /// The event of an instance that is no longer configured, from its row of the history.
    pub fn removed(&self, record: &Record) -> RemovedEvent {
        RemovedEvent {
            schema: Schema::Removed,
            node: self.node.to_string(),
            epoch: self.epoch.to_string(),
            source: SOURCE.to_owned(),
            seq: record.seq,
            at: timestamp_from_millis(record.at),
            id: record.instance.clone(),
            netns: record.netns.clone(),
            from: record.from,
        }
    }

    pub(crate) fn recorded_transition(
        &self,
        record: &Record,
        latencies: &Latencies,
        instance: Option<&InstanceConfig>,
    ) -> TransitionEvent {
        let addresses = instance.map(deciding_addresses);
        let record = record.clone();
        TransitionEvent {
            schema: Schema::Transition,
            node: self.node.to_string(),
            epoch: self.epoch.to_string(),
            source: SOURCE.to_owned(),
            seq: record.seq,
            at: timestamp_from_millis(record.at),
            id: record.instance,
            netns: record.netns,
            origin: instance.map_or("", |instance| instance.origin.word()).to_owned(),
            from: record.from,
            to: record.to.unwrap_or(RoleKind::Unknown),
            trigger: record.trigger,
            cause: recorded_cause_item(record.cause.as_ref()),
            reason: record.reason,
            addresses: addresses.unwrap_or_default(),
            latencies: latency_map(latencies),
            stages: Vec::new(),
        }
    }

    /// The event of a cause that has become known after its transition.
    pub(crate) fn cause(&self, seq: i64, transition: &Transition, cause: &Cause) -> CauseEvent {
        CauseEvent {
            schema: Schema::Cause,
            node: self.node.to_string(),
            epoch: self.epoch.to_string(),
            source: SOURCE.to_owned(),
            seq,
            at: time(SystemTime::now()),
            id: transition.instance.id.to_string(),
            transition: transition.seq,
            from: transition.from,
            to: transition.to.kind(),
            cause: cause_item(Some(cause)),
        }
    }

    /// The event of a delivery.
    pub(crate) fn delivery(&self, seq: i64, report: &DeliveryReport) -> DeliveryEvent {
        DeliveryEvent {
            schema: Schema::Delivery,
            node: self.node.to_string(),
            epoch: self.epoch.to_string(),
            source: report.source.as_str().to_owned(),
            seq,
            at: time(SystemTime::now()),
            id: report.instance.as_ref().map(ToString::to_string),
            finding: report.finding.clone(),
            notification: report.seq,
            stage: report.outlet.to_owned(),
            target: report.target.clone(),
            micros: report.micros,
            error: report.outcome.clone().err(),
            is_final: report.is_final,
        }
    }

    /// The event of a finding that has appeared or gone.
    pub(crate) fn finding(
        &self,
        seq: i64,
        state: FindingState,
        finding: FindingItem,
    ) -> FindingEvent {
        FindingEvent {
            schema: Schema::Finding,
            node: self.node.to_string(),
            epoch: self.epoch.to_string(),
            source: SOURCE.to_owned(),
            seq,
            at: time(SystemTime::now()),
            id: finding.id.clone(),
            state,
            finding,
            scope: FindingScope::Local,
            cluster: None,
        }
    }

    /// A finding about several nodes in the form of a finding of this node.
    pub(crate) fn local_finding(item: &ClusterFindingItem) -> FindingItem {
        FindingItem {
            id: None,
            cluster_id: Some(item.id.clone()),
            name: item.name.clone(),
            severity: item.severity,
            text: item.text.clone(),
            hint: item.hint.clone(),
            since: Some(item.opened),
            silenced_until: None,
            harmless: false,
        }
    }

    /// The event of a finding about several nodes. `instance` is that of this node in the group.
    pub(crate) fn cluster_finding(
        &self,
        seq: i64,
        state: FindingState,
        item: ClusterFindingItem,
        instance: Option<&InstanceId>,
    ) -> FindingEvent {
        let id = instance.map(ToString::to_string);
        let finding = FindingItem { id, ..Self::local_finding(&item) };
        let cluster = Some(Box::new(item));
        let scope = FindingScope::Cluster;
        FindingEvent { scope, cluster, ..self.finding(seq, state, finding) }
    }
}

/// A time as the API writes it.
pub fn time(at: SystemTime) -> Timestamp {
    timestamp_from_millis(unix_millis(at))
}

/// The latencies by the words of their stages.
pub fn latency_map(latencies: &Latencies) -> LatencyMap {
    let known = Stage::ALL
        .iter()
        .filter_map(|stage| Some((stage.word().to_owned(), latencies.of(*stage)?)));
    known.collect()
}

/// The addresses that decide the role, without their state.
fn deciding_addresses(instance: &InstanceConfig) -> Vec<AddressItem> {
    let watched = instance.watched();
    let addresses = watched.iter().map(|(link, cidr)| AddressItem {
        cidr: cidr.to_string(),
        link: link.to_string(),
        held: None,
        state: None,
        floating: false,
    });
    addresses.collect()
}

/// A finding of the audit about the instance `id`.
pub fn audit_finding(id: &str, dated: &DatedFinding) -> FindingItem {
    let DatedFinding { finding, since } = dated;
    FindingItem {
        cluster_id: None,
        id: Some(id.to_owned()),
        name: finding.kind.name().to_owned(),
        severity: finding.severity,
        text: finding.text.clone(),
        hint: finding.hint.to_owned(),
        // The Unix epoch stands for an unknown time.
        since: (*since > UNIX_EPOCH).then(|| time(*since)),
        silenced_until: None,
        harmless: false,
    }
}

/// A problem of the node itself as a finding.
pub fn health_finding(problem: &HealthProblem) -> FindingItem {
    FindingItem {
        cluster_id: None,
        id: None,
        name: problem.kind.name().to_owned(),
        severity: problem.severity,
        text: problem.text.clone(),
        hint: problem.kind.hint().to_owned(),
        since: Some(time(problem.since)),
        silenced_until: None,
        harmless: false,
    }
}
