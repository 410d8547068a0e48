// SPDX-License-Identifier: Apache-2.0
//! Metrics of the cluster. Every node exports those of its own connection. Only the reporter exports the numbers of groups
//! and findings, so that a sum over all nodes counts each of them once.

use vipwatch_api::{ClusterConnectionState, ClusterStatus, FindingKind, GroupSummary};
use vipwatch_cluster::etcd::EtcdErrorKind;
use vipwatch_cluster::session::ClusterCounters;
use vipwatch_cluster::view::ClusterView;
use vipwatch_linux::clock;

use super::{EmitSample, MetricFamily, MetricValue, emit_one};
use crate::view::ApiContext;

/// The facts about the cluster at one moment.
#[derive(Debug)]
pub(super) struct ClusterNumbers {
    status: ClusterStatus,
    counters: ClusterCounters,
    /// The number of open findings of each kind, in the order of [`FindingKind::ALL`], without those that are silenced or a part
    /// of another one.
    findings: [u64; FindingKind::ALL.len()],
    silences: u64,
    is_registered: bool,
    is_reporter: bool,
}

impl ClusterNumbers {
    /// `None` if no cluster is configured.
    pub(super) fn read(context: &ApiContext) -> Option<Self> {
        let cluster = context.cluster.as_ref()?;
        let status = crate::view::cluster_status(context);
        let is_connected = status.basis.connection == ClusterConnectionState::Connected;
        Some(Self {
            status,
            findings: cluster.read(finding_counts).unwrap_or([0; FindingKind::ALL.len()]),
            silences: cluster.read(|view| view.silences().count() as u64).unwrap_or_default(),
            counters: cluster.counters().unwrap_or_default(),
            is_registered: cluster.is_registered(),
            // A reporter that is cut off from etcd may have a successor.
            is_reporter: is_connected && cluster.is_reporter(),
        })
    }

    /// The age of the view in seconds; 0 while it follows etcd.
    fn stale_seconds(&self) -> f64 {
        let now = clock::unix_millis(std::time::SystemTime::now());
        let since = self.status.basis.stale_since.map(vipwatch_api::Timestamp::as_millisecond);
        let millis = since.map_or(0, |since| now.saturating_sub(since).max(0));
        // A view that is old for centuries loses precision.
        #[expect(clippy::cast_precision_loss, reason = "less than 2^52 ms")]
        let seconds = millis as f64 / 1000.0;
        seconds
    }
}

pub(super) const FAMILIES: &[MetricFamily] = families! { Cluster:
    Gauge "vipwatch_cluster_connected", "Whether the view of this node follows etcd" => |cluster, emit| {
        let state = cluster.status.basis.connection;
        emit_one(emit, u64::from(state == ClusterConnectionState::Connected));
    };
    Gauge "vipwatch_cluster_stale_seconds", "Time since the connection to etcd was lost, or 0" =>
        |cluster, emit| emit(&[], MetricValue::Number(cluster.stale_seconds()));
    Gauge "vipwatch_cluster_registered", "Whether etcd has this node as a running node" =>
        |cluster, emit| emit_one(emit, u64::from(cluster.is_registered));
    Gauge "vipwatch_cluster_reporter", "Whether this node reports the findings of the cluster" =>
        |cluster, emit| emit_one(emit, u64::from(cluster.is_reporter));
    Gauge "vipwatch_cluster_nodes", "Nodes of the cluster with this state, as this node sees them" => |cluster, emit| {
        let nodes = cluster.status.nodes;
        for (state, count) in
            [("live", nodes.live), ("stopped", nodes.stopped), ("lost", nodes.lost)]
        {
            emit(&[("state", state)], MetricValue::Count(count));
        }
    };
    Gauge "vipwatch_cluster_groups", "Groups of the cluster with this state; only the reporter has samples" =>
        |cluster, emit| {
            if cluster.is_reporter {
                emit_groups(cluster.status.groups, emit);
            }
        };
    Gauge "vipwatch_cluster_findings",
        "Open findings of the cluster with this name and severity; only the reporter has samples" =>
        |cluster, emit| {
            let kinds = FindingKind::ALL.iter().zip(cluster.findings);
            let kinds = kinds.filter(|(kind, _)| cluster.is_reporter && kind.is_of_cluster());
            for (kind, count) in kinds {
                let labels = [("name", kind.name()), ("severity", kind.severity().word())];
                emit(&labels, MetricValue::Count(count));
            }
        };
    Gauge "vipwatch_cluster_silences", "Silences of nodes and groups that etcd has; only the reporter has samples" =>
        |cluster, emit| {
            if cluster.is_reporter {
                emit_one(emit, cluster.silences);
            }
        };
    Counter "vipwatch_cluster_connections_total", "Connections to etcd that were opened" =>
        |cluster, emit| emit_one(emit, cluster.counters.connections);
    Counter "vipwatch_cluster_writes_total", "Keys that this node has written to etcd or deleted" =>
        |cluster, emit| emit_one(emit, cluster.counters.writes);
    Counter "vipwatch_cluster_written_bytes_total", "Bytes of the values that this node has written to etcd" =>
        |cluster, emit| emit_one(emit, cluster.counters.written_bytes);
    Counter "vipwatch_cluster_heartbeats_total", "Heartbeats that etcd has accepted" =>
        |cluster, emit| emit_one(emit, cluster.counters.heartbeats);
    Counter "vipwatch_cluster_watch_events_total", "Changes of keys that etcd has sent to this node" =>
        |cluster, emit| emit_one(emit, cluster.counters.watch_events);
    Counter "vipwatch_cluster_differences_total", "Keys that differed from etcd although no event was on its way" =>
        |cluster, emit| emit_one(emit, cluster.counters.differences);
    Counter "vipwatch_cluster_lease_losses_total", "How often the lease of this node ended while it was running" =>
        |cluster, emit| emit_one(emit, cluster.counters.lease_losses);
    Counter "vipwatch_cluster_name_conflicts_total", "How often another process had the name of this node" =>
        |cluster, emit| emit_one(emit, cluster.counters.name_conflicts);
    Counter "vipwatch_cluster_errors_total", "Failed calls of etcd" => |cluster, emit| {
        for (kind, count) in EtcdErrorKind::ALL.into_iter().zip(cluster.counters.errors) {
            emit(&[("kind", kind.word())], MetricValue::Count(count));
        }
    };
};

fn finding_counts(view: &ClusterView) -> [u64; FindingKind::ALL.len()] {
    let mut counts = [0; FindingKind::ALL.len()];
    let delivered = view.findings().filter(|it| it.silenced.is_none() && it.part_of.is_none());
    for kind in delivered.filter_map(|record| FindingKind::from_name(&record.name)) {
        counts[kind as usize] += 1;
    }
    counts
}

fn emit_groups(groups: GroupSummary, emit: &mut EmitSample<'_>) {
    let counts = [
        ("one-primary", groups.one_primary),
        ("two-primaries", groups.two_primaries),
        ("no-primary", groups.no_primary),
        ("ambiguous", groups.ambiguous),
        ("unknown", groups.unknown),
    ];
    for (state, count) in counts {
        emit(&[("state", state)], MetricValue::Count(count));
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_cluster::key::KeySpace;
    use vipwatch_cluster::view::{StoredValue, ViewChange};

    use super::*;

    #[test]
    fn findings_that_nobody_is_notified_of_are_not_counted() {
        let mut view = ClusterView::new(KeySpace::new(&"default".parse().unwrap()));
        let at = "2026-01-01T00:00:00Z";
        let silence = serde_json::json!({"id": "x", "until": at, "created_by": "", "reason": ""});
        let (null, node) = (serde_json::Value::Null, serde_json::json!("a"));
        let causes = [(&null, &null), (&silence, &null), (&null, &node)];
        for (id, (silenced, part_of)) in (1..).zip(causes) {
            let record = serde_json::json!({
                "schema": 1, "id": format!("f-{id}"), "name": "cluster-no-primary", "severity": "critical",
                "confidence": "certain", "group": "group:web", "nodes": ["a"], "text": "", "hint": "", "opened": at,
                "changed": at, "reporter": "a", "silenced": silenced, "part_of": part_of,
            });
            view.apply(ViewChange::Put(StoredValue {
                key: format!("/vipwatch/v1/default/finding/f-{id}"),
                value: record.to_string().into_bytes(),
                mod_revision: id,
                create_revision: id,
                lease: 0,
            }));
        }
        assert_eq!(view.findings().count(), 3);
        assert_eq!(finding_counts(&view)[FindingKind::ClusterNoPrimary as usize], 1);
    }
}
