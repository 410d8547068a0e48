// SPDX-License-Identifier: Apache-2.0
//! The cluster in the main loop: confirms the roles of this node, and publishes the findings about several nodes.
//!
//! ```text
//!   session ── wants a confirmation ──▶ namespaces are read again ──▶ confirm
//!           ── view has changed ──────▶ findings of this node's groups ──▶ history, clients
//!           ── finding (reporter) ────▶ hooks and webhooks ──▶ etcd: which targets have it
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_api::{
    ClusterBasis, ClusterConnectionState, ClusterFindingItem, FindingScope, FindingState,
};
use vipwatch_cluster::document::finding_item;
use vipwatch_cluster::key::FindingId;
use vipwatch_cluster::record::FindingRecord;
use vipwatch_cluster::session::{
    ClusterEvent, ConfirmationId, ConfirmationRequest, DeliveredFinding, NameHolder,
};
use vipwatch_core::{Conclusion, InstanceId, NetnsName};
use vipwatch_linux::clock;

use super::Node;
use super::cluster_findings::{ClusterFindings, KnownFinding};
use crate::cluster::{ClusterService, OwnPart};
use crate::event::time;
use crate::notify::notification::{
    DeliveryReport, FindingNotification, FindingSubject, Notification, Subject,
};
use crate::view::FindingSources;
use vipwatch_core::FindingKind;

/// A confirmation that waits until these namespaces are read.
#[derive(Debug)]
pub(super) struct PendingConfirmation {
    id: ConfirmationId,
    /// The namespaces; `None` is the node's own.
    namespaces: BTreeSet<Option<NetnsName>>,
}

impl Node {
    /// Starts the session with etcd, and continues with the findings that the last run has recorded.
    ///
    /// ORDER: after the first roles are published, so that the first records are complete.
    pub(super) fn start_cluster(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let sources =
            FindingSources::new(&self.store, &self.receiver_handle, &self.config.state_dir);
        self.cluster_findings = ClusterFindings::restored(sources.open_events_in_history());
        cluster.set_notifies(self.notifier.has_finding_target());
        cluster.start_session();
    }

    /// Takes the events of the session.
    ///
    /// ORDER: before the follower reads. The namespaces of a confirmation are then read in the same turn.
    pub(super) fn take_cluster_events(&mut self) {
        let Some(cluster) = self.cluster.clone() else { return };
        let mut is_health_changed = false;
        for event in cluster.inbox().take_all() {
            self.count_cluster_change(&event);
            match event {
                ClusterEvent::ConfirmationWanted(request) => self.begin_confirmation(&request),
                ClusterEvent::ConnectionChanged(state) => {
                    connection_changed(&cluster, state);
                    is_health_changed = true;
                }
                ClusterEvent::NameTaken
                | ClusterEvent::NameFree
                | ClusterEvent::RejectionChanged
                | ClusterEvent::SurplusChanged => is_health_changed = true,
                ClusterEvent::ReporterChanged { is_reporter } => {
                    cluster.reporter_changed(is_reporter);
                    self.reporter_changed(is_reporter);
                }
                ClusterEvent::FindingOpen(_) | ClusterEvent::FindingClosed(_)
                    if !cluster.is_reporter() =>
                {
                    // The next reporter delivers the finding.
                }
                ClusterEvent::FindingOpen(record) => self.deliver_open(&cluster, &record),
                ClusterEvent::FindingClosed(record) => self.deliver_closed(&record),
                ClusterEvent::ViewChanged => {
                    self.follow_cluster_silences(&cluster);
                    self.compare_cluster_findings(&cluster);
                }
            }
        }
        // The events of one turn have no order among themselves: the state decides.
        if is_health_changed && let Some(basis) = cluster.basis() {
            self.store.set_health(FindingKind::NodeCluster, problem(&cluster, &basis));
        }
    }

    /// Counts an event that changes a document about the cluster, for the clients that wait for it.
    fn count_cluster_change(&self, event: &ClusterEvent) {
        match event {
            ClusterEvent::ViewChanged
            | ClusterEvent::ConnectionChanged(_)
            | ClusterEvent::RejectionChanged
            | ClusterEvent::ReporterChanged { .. } => self.store.cluster_changes.add(),
            // The view has changed too, or no document has.
            ClusterEvent::ConfirmationWanted(_)
            | ClusterEvent::NameTaken
            | ClusterEvent::NameFree
            | ClusterEvent::SurplusChanged
            | ClusterEvent::FindingOpen(_)
            | ClusterEvent::FindingClosed(_) => {}
        }
    }

    fn begin_confirmation(&mut self, request: &ConfirmationRequest) {
        let entries = request.instances.iter().filter_map(|id| self.store.entry(id));
        let namespaces: BTreeSet<_> = entries.map(|entry| entry.instance.netns.clone()).collect();
        for netns in &namespaces {
            self.follower.table().request_snapshot(netns.clone());
        }
        self.confirmation = Some(PendingConfirmation { id: request.id, namespaces });
    }

    /// Confirms the roles, if their namespaces are read. A namespace that changes too often is read later.
    pub(super) fn finish_confirmation(&mut self) {
        let Some(pending) = &self.confirmation else { return };
        let table = self.follower.table();
        if pending.namespaces.iter().any(|netns| table.is_pending(netns)) {
            return;
        }
        if let Some(cluster) = &self.cluster {
            cluster.confirm(pending.id);
        }
        self.confirmation = None;
    }

    fn reporter_changed(&mut self, is_reporter: bool) {
        if is_reporter {
            tracing::info!("this node delivers the findings of the cluster from now on");
            return;
        }
        tracing::info!("this node no longer delivers the findings of the cluster");
        self.forget_cluster_deliveries();
    }

    /// Says in etcd that the node stops, and ends the session.
    pub(super) fn stop_cluster(&mut self) {
        if let Some(cluster) = &self.cluster {
            cluster.stop();
            self.forget_cluster_deliveries();
        }
    }

    /// Removes the findings of the cluster from the queues of the targets: the next reporter delivers them, and a target
    /// must not receive them from both.
    fn forget_cluster_deliveries(&mut self) {
        for id in self.cluster_findings.forget_deliveries() {
            let subject = FindingSubject { instance: None, name: id.as_str().into() };
            self.notifier.forget_subject(&Subject::Finding(Arc::new(subject)));
        }
    }

    /// Applies the silences of this node and of its groups that were added elsewhere. Without a connection, those that are known
    /// last until their end.
    fn follow_cluster_silences(&mut self, cluster: &ClusterService) {
        let now = SystemTime::now();
        let Some(silences) = cluster.foreign_silences(&mut self.foreign_silences) else { return };
        if self.silences.set_of_cluster(silences, now) {
            self.notifier.silences_changed();
        }
    }

    /// Publishes the findings about this node's groups that have appeared or gone since the last call.
    fn compare_cluster_findings(&mut self, cluster: &ClusterService) {
        let is_connected = cluster
            .basis()
            .is_some_and(|basis| basis.connection == ClusterConnectionState::Connected);
        if !is_connected {
            return;
        }
        let known = &self.cluster_findings;
        let changes = cluster.read(|view| {
            let news = view.findings().filter(|record| known.is_new(record));
            let mut parts = cluster.own_parts(view);
            let news: Vec<(FindingRecord, OwnPart)> = news
                .map(|record| (record, parts.of(record)))
                .filter(|(_, own)| own.is_concerned)
                .map(|(record, own)| (record.clone(), own))
                .collect();
            let open: BTreeSet<&str> = view.findings().map(|record| record.id.as_str()).collect();
            (news, known.gone(&open))
        });
        let Some((news, gone)) = changes else { return };
        for (record, own) in news {
            self.publish_open(&record, own.instance);
        }
        for id in gone {
            self.publish_closed(&id, None);
        }
    }

    /// Records that a finding is open, unless that is recorded; returns the sequence number of the event.
    fn publish_open(&mut self, record: &FindingRecord, instance: Option<InstanceId>) -> i64 {
        let state = match self.cluster_findings.get(&record.id) {
            Some(known) if known.is_same(record) => return known.seq,
            Some(_) => FindingState::Changed,
            None => FindingState::Open,
        };
        let item = finding_item(record, FindingScope::Cluster);
        let instance = instance.or_else(|| self.cluster_findings.get(&record.id)?.instance.clone());
        let seq = self.publish_cluster_event(&item, state, instance.as_ref());
        self.cluster_findings.insert(KnownFinding { item, instance, seq });
        seq
    }

    /// Records that a finding has ended, if it was recorded as open; returns the sequence number of the event.
    fn publish_closed(&mut self, id: &str, record: Option<&FindingRecord>) -> Option<i64> {
        let known = self.cluster_findings.remove(id)?;
        let group = known.item.group.as_deref();
        let own = || {
            let cluster = self.cluster.as_ref()?;
            cluster.read(|view| cluster.own_parts(view).instance(group?)).flatten()
        };
        let instance = known.instance.or_else(own);
        let item = match record {
            Some(record) => finding_item(record, FindingScope::Cluster),
            None => ClusterFindingItem { closed: Some(time(SystemTime::now())), ..known.item },
        };
        Some(self.publish_cluster_event(&item, FindingState::Closed, instance.as_ref()))
    }

    fn publish_cluster_event(
        &mut self,
        item: &ClusterFindingItem,
        state: FindingState,
        instance: Option<&InstanceId>,
    ) -> i64 {
        let seq = self.next_seq();
        let event = self.identity.cluster_finding(seq, state, item.clone(), instance);
        // The text is that of the record, which any client of etcd can write.
        let (finding, group) = (&item.name, item.group.as_deref());
        if state == FindingState::Closed {
            tracing::info!(finding, group, "finding of the cluster is over");
        } else {
            tracing::warn!(finding, group, "finding of the cluster");
        }
        self.publish_recorded("finding", instance, super::events::to_json(&event));
        seq
    }

    /// On the reporter, after a reload: delivers the open findings to the targets that are new.
    pub(super) fn deliver_to_new_targets(&mut self) {
        let Some(cluster) = self.cluster.clone().filter(ClusterService::is_reporter) else {
            return;
        };
        let targets = self.outlets.target_names();
        self.cluster_findings.retain_targets(|name| targets.iter().any(|known| **known == *name));
        cluster.repeat_openings();
    }

    /// On the reporter: delivers an open finding to the targets that have not received it.
    fn deliver_open(&mut self, cluster: &ClusterService, record: &FindingRecord) {
        let own = cluster.read(|view| cluster.own_parts(view).of(record)).unwrap_or_default();
        // The clients of this node see only what concerns it, whichever node is the reporter.
        let seq = if own.is_concerned {
            self.publish_open(record, own.instance)
        } else {
            self.next_seq()
        };
        let item = finding_item(record, FindingScope::Cluster);
        let notification = self.cluster_notification(seq, FindingState::Open, item);
        let findings = &self.cluster_findings;
        let names = self.outlets.deliver_cluster_finding(&notification, |name| {
            let is_notified = record.notified_open.iter().any(|target| target == name);
            !is_notified && !findings.is_queued(&record.id, name)
        });
        self.cluster_findings.queued(&record.id, seq, false, names);
    }

    /// On the reporter: delivers the end of a finding to the targets that know of it.
    fn deliver_closed(&mut self, record: &FindingRecord) {
        let seq = self.publish_closed(&record.id, Some(record));
        let seq = seq.unwrap_or_else(|| self.next_seq());
        let item = finding_item(record, FindingScope::Cluster);
        let notification = self.cluster_notification(seq, FindingState::Closed, item);
        let findings = &self.cluster_findings;
        let names = self.outlets.deliver_cluster_finding(&notification, |name| {
            let is_in = |list: &[String]| list.iter().any(|target| target == name);
            let knows = is_in(&record.notified_open) || findings.is_queued(&record.id, name);
            knows && !is_in(&record.notified_closed) && !findings.is_end_queued(&record.id, name)
        });
        self.cluster_findings.queued(&record.id, seq, true, names);
    }

    fn cluster_notification(
        &self,
        seq: i64,
        state: FindingState,
        item: ClusterFindingItem,
    ) -> Arc<dyn Notification> {
        let event = self.identity.cluster_finding(seq, state, item, None);
        let (instance, read_at) = (None, clock::now());
        Arc::new(FindingNotification { event, instance, read_at, is_recorded: false })
    }

    /// Records in etcd that a target has received a finding of the cluster.
    pub(super) fn note_cluster_delivery(&mut self, report: &DeliveryReport) {
        let (Some(cluster), Some(conclusion)) = (&self.cluster, report.conclusion) else { return };
        let is_delivered = conclusion == Conclusion::Delivered;
        let findings = &mut self.cluster_findings;
        let queued = findings.concluded(report.seq, &report.target, is_delivered);
        let Some(queued) = queued.filter(|_| is_delivered) else { return };
        let Ok(id) = queued.id.parse::<FindingId>() else { return };
        let target = report.target.clone();
        cluster.notified(DeliveredFinding { id, target, is_closed: queued.is_closed });
    }
}

fn connection_changed(cluster: &ClusterService, state: ClusterConnectionState) {
    let error = cluster.basis().and_then(|basis| basis.error);
    match state {
        // The session has logged the connection.
        ClusterConnectionState::Connected | ClusterConnectionState::Off => {}
        ClusterConnectionState::Stale => {
            tracing::warn!(error, "connection to etcd lost; the view of the cluster is old");
        }
        ClusterConnectionState::Connecting => tracing::warn!(error, "etcd does not answer"),
    }
    // A reporter that is cut off from etcd may have a successor.
    let is_connected = state == ClusterConnectionState::Connected;
    cluster.reporter_changed(is_connected && cluster.is_reporter());
}

/// Why this node does not take part in the cluster as it should; `None` if it does.
fn problem(cluster: &ClusterService, basis: &ClusterBasis) -> Option<String> {
    let cause = basis.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    match basis.connection {
        ClusterConnectionState::Stale => Some(format!(
            "the view of the cluster is old, and other nodes do not see this one{cause}"
        )),
        ClusterConnectionState::Connecting => {
            Some(format!("the node has not read etcd since it started{cause}"))
        }
        ClusterConnectionState::Connected => match cluster.name_holder() {
            Some(NameHolder { epoch, version }) => Some(format!(
                "another vipwatch node (epoch {epoch}, version {version}) publishes as {}, so this node publishes \
                 nothing; give one of them another name with node.name",
                cluster.node()
            )),
            None if basis.error.is_some() => Some(format!(
                "etcd rejects the records of this node, so other nodes do not have its current roles{cause}"
            )),
            None => beyond_limits(cluster),
        },
        ClusterConnectionState::Off => None,
    }
}

/// The records of other nodes beyond the limits of this node; `None` if there are none.
fn beyond_limits(cluster: &ClusterService) -> Option<String> {
    let surplus = cluster.surplus_records();
    if surplus > 0 {
        return Some(format!(
            "etcd has {surplus} records more than this node keeps, so that its view of the cluster is not complete; delete \
             the records that no node of this domain has written"
        ));
    }
    cluster.is_full_of_findings().then(|| {
        "too many findings of the cluster are open, so that this node opens no more: see `vipwatch cluster findings`".to_owned()
    })
}
