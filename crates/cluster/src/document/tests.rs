// SPDX-License-Identifier: Apache-2.0
//! Tests of the documents.

use vipwatch_api::RoleKind::{Backup, Primary};
use vipwatch_api::{ClusterConnectionState, ClusterHistoryItem, ClusterScope, ClusterSource};

use super::*;
use crate::key::ClusterKey;
use crate::record::{Confidence, FORMAT, RecentTransition, ReporterRecord, RoleRecord, encode};
use crate::sample::{TestCluster, role_record, router, time, vrid_51};
use vipwatch_core::FindingKind;

fn basis() -> ClusterBasis {
    ClusterBasis {
        node: Some("a".to_owned()),
        source: ClusterSource::Node,
        domain: Some("prod".to_owned()),
        scope: ClusterScope::Full,
        connection: ClusterConnectionState::Connected,
        endpoint: None,
        stale_since: None,
        error: None,
        revision: 7,
        unknown: vec!["given by the caller".to_owned()],
    }
}

fn finding(id: &str, kind: FindingKind, closed: Option<i64>) -> FindingRecord {
    FindingRecord {
        schema: FORMAT,
        id: id.to_owned(),
        name: kind.name().to_owned(),
        severity: kind.severity(),
        confidence: Confidence::Certain,
        group: Some("vrrp:ipv4:51:192.0.2.80".to_owned()),
        nodes: vec!["a".to_owned()],
        text: "text".to_owned(),
        hint: "hint".to_owned(),
        evidence: Vec::new(),
        opened: time(20),
        changed: time(20),
        closed: closed.map(time),
        reporter: "a".to_owned(),
        notified_open: vec!["pager".to_owned()],
        notified_closed: Vec::new(),
        silenced: None,
        part_of: None,
        about: Vec::new(),
    }
}

/// A group on the nodes a (primary) and b (lost), and a router that is known on a only, as a backup.
fn cluster() -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.start("b");
    let transition = |seq, to| RecentTransition { seq, at: time(seq), from: None, to, cause: None };
    let recent = vec![transition(10, Backup), transition(30, Primary)];
    cluster.publish(&vrid_51(), &RoleRecord { recent, ..role_record("a", "VI_1", Primary) });
    cluster.role("b", Backup);
    cluster.publish(&router("8b1c"), &role_record("a", "8b1c", Backup));
    cluster.lose("b");
    let reporter = ReporterRecord {
        schema: FORMAT,
        node: "a".to_owned(),
        process: "process-of-a".to_owned(),
        at: time(0),
    };
    cluster.put(&ClusterKey::Reporter, encode(&reporter));
    for record in [
        finding("1-a", FindingKind::ClusterFlapping, None),
        finding("2-b", FindingKind::ClusterTwoPrimaries, None),
    ] {
        cluster.put(&ClusterKey::Finding(record.id.parse().unwrap()), encode(&record));
    }
    let closed = finding("0-c", FindingKind::ClusterTwoPrimaries, Some(40));
    cluster.put(&ClusterKey::Closed(closed.id.parse().unwrap()), encode(&closed));
    cluster
}

#[test]
fn the_status_counts_nodes_groups_and_findings_and_names_the_lost_node() {
    let status = status(&cluster().view, basis());
    assert_eq!(status.reporter.as_deref(), Some("a"));
    assert_eq!((status.nodes.live, status.nodes.lost, status.nodes.stopped), (1, 1, 0));
    let groups = status.groups;
    assert_eq!((groups.total, groups.one_primary, groups.unknown), (2, 1, 1));
    assert_eq!(status.findings, 2);
    let expected = ["given by the caller", "node b is lost: its roles are the last known ones"];
    assert_eq!(status.basis.unknown, expected);
}

#[test]
fn the_most_serious_group_is_first_and_has_its_findings() {
    let list = groups(&cluster().view, basis());
    let ids: Vec<&str> = list.items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["router:8b1c", "vrrp:ipv4:51:192.0.2.80"]);
    let group = &list.items[1];
    assert_eq!(
        (group.primaries.as_slice(), group.addresses.as_slice()),
        (&["a".to_owned()][..], &["192.0.2.80/24".to_owned()][..])
    );
    assert_eq!(group.findings.len(), 2);
    let states: Vec<ClusterNodeState> =
        group.members.iter().map(|member| member.node_state).collect();
    assert_eq!(states, [ClusterNodeState::Live, ClusterNodeState::Lost]);
    let one = groups_where(&cluster().view, basis(), |group| group.id == "router:8b1c");
    assert_eq!(one.items.len(), 1);
}

#[test]
fn a_group_with_a_claim_that_is_not_confirmed_says_so() {
    let mut cluster = cluster();
    cluster.start("b");
    cluster.role("b", Primary);
    let list = groups(&cluster.view, basis());
    assert!(list.basis.unknown.iter().any(|text| text.contains("one may have crashed")));
}

#[test]
fn a_node_has_the_number_of_its_instances() {
    let list = nodes(&cluster().view, basis());
    let [a, b] = list.items.as_slice() else { panic!("{list:?}") };
    assert_eq!((a.instances, a.primaries, a.backups, a.is_reporter), (2, 1, 1, true));
    assert_eq!((b.state, b.version.as_deref(), b.heartbeat), (ClusterNodeState::Lost, None, None));
    assert_eq!(b.epoch, "epoch-of-b");
    assert_eq!((a.followed, b.followed), (Some(1), None), "as in the heartbeat");
}

#[test]
fn a_member_names_the_addresses_of_its_group_that_it_lacks() {
    let mut cluster = cluster();
    let mut more = role_record("a", "VI_1", Primary);
    // The length of a prefix does not matter.
    more.addresses = ["192.0.2.80/32", "192.0.2.81/24"].map(|it| it.parse().unwrap()).to_vec();
    cluster.publish(&vrid_51(), &more);
    let list = groups(&cluster.view, basis());
    let [a, b] = list.items[1].members.as_slice() else { panic!("{list:?}") };
    assert!(a.missing.is_empty(), "{:?}", a.missing);
    assert_eq!(b.missing, ["192.0.2.81/24"]);
}

#[test]
fn the_most_serious_finding_is_first_and_closed_ones_are_not_listed() {
    let list = findings(&cluster().view, basis());
    let ids: Vec<&str> = list.items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["2-b", "1-a"]);
    assert_eq!(list.items[0].delivered, ["pager"]);
}

#[test]
fn the_history_has_transitions_and_findings_in_the_order_of_their_times() {
    let kinds = |limit, group, since: Option<i64>| {
        let since = since.map(time);
        let selection = ClusterHistorySelection { group, since, limit };
        let history = history(&cluster().view, basis(), selection);
        history
            .items
            .into_iter()
            .map(|item| match item {
                ClusterHistoryItem::Transition { seq, .. } => format!("transition {seq}"),
                ClusterHistoryItem::FindingOpened { finding, .. } => {
                    format!("opened {}", finding.id)
                }
                ClusterHistoryItem::FindingClosed { finding, .. } => {
                    format!("closed {}", finding.id)
                }
            })
            .collect::<Vec<_>>()
    };
    let all =
        ["transition 10", "opened 0-c", "opened 1-a", "opened 2-b", "transition 30", "closed 0-c"];
    assert_eq!(kinds(100, None, None), all);
    assert_eq!(kinds(2, None, None), all[4..]);
    assert_eq!(kinds(100, None, Some(30)), all[4..]);
    assert_eq!(kinds(100, Some("router:8b1c"), None), [""; 0]);
}
