// SPDX-License-Identifier: Apache-2.0
//! Tests of the difference between two states of the cluster.

use super::*;
use crate::cluster::sample::{basis, member, node};
use crate::{FindingScope, Severity};

fn state() -> ClusterState {
    let groups = vec![ClusterGroupItem {
        id: "router:a".to_owned(),
        state: GroupState::OnePrimary,
        primaries: vec!["n1".to_owned()],
        addresses: Vec::new(),
        members: vec![member("n1", RoleKind::Primary), member("n2", RoleKind::Backup)],
        findings: Vec::new(),
    }];
    let nodes = ["n1", "n2"].map(node).to_vec();
    ClusterState { basis: basis(), nodes, groups, findings: vec![finding("1")] }
}

fn finding(id: &str) -> ClusterFindingItem {
    ClusterFindingItem {
        id: id.to_owned(),
        name: "cluster-no-primary".to_owned(),
        severity: Severity::Critical,
        confidence: "certain".to_owned(),
        scope: FindingScope::Cluster,
        group: Some("router:a".to_owned()),
        nodes: Vec::new(),
        text: String::new(),
        hint: String::new(),
        evidence: Vec::new(),
        opened: Timestamp::UNIX_EPOCH,
        closed: None,
        reporter: "n1".to_owned(),
        delivered: Vec::new(),
        silenced: None,
        part_of: None,
    }
}

/// The changes as words.
fn words(before: &ClusterState, after: &ClusterState) -> Vec<String> {
    let word = |change: &ClusterChangeKind| match change {
        ClusterChangeKind::Role { node, from, to, .. } => format!("{node} {from:?} {to:?}"),
        ClusterChangeKind::Node { node, from, to } => format!("{node} {from:?} {to:?}"),
        ClusterChangeKind::FindingOpened { finding } => format!("opened {}", finding.id),
        ClusterChangeKind::FindingClosed { finding } => format!("closed {}", finding.id),
        ClusterChangeKind::Connection { state, .. } => format!("{state:?}"),
    };
    before.changes(after).iter().map(word).collect()
}

#[test]
fn a_heartbeat_is_not_a_change() {
    let mut after = state();
    after.basis.revision = 8;
    after.nodes[0].heartbeat = Some(2);
    assert_eq!(words(&state(), &after), Vec::<String>::new());
}

#[test]
fn a_role_that_changes_appears_and_disappears_is_a_change() {
    let mut after = state();
    after.groups[0].members[1].role = RoleKind::Primary;
    after.groups[0].members[0].node = "n3".to_owned();
    let words = words(&state(), &after);
    let expected =
        ["n1 Some(Primary) None", "n2 Some(Backup) Some(Primary)", "n3 None Some(Primary)"];
    assert_eq!(words, expected);
}

#[test]
fn another_id_of_the_group_is_not_a_change_of_its_members() {
    let mut after = state();
    after.groups[0].id = "router:b".to_owned();
    assert_eq!(words(&state(), &after), Vec::<String>::new());
}

#[test]
fn nodes_findings_and_the_connection_have_changes() {
    let mut after = state();
    after.nodes[1].state = ClusterNodeState::Lost;
    after.nodes.push(node("n3"));
    after.findings = vec![finding("2")];
    after.basis.connection = ClusterConnectionState::Stale;
    let expected =
        ["Stale", "n2 Some(Live) Some(Lost)", "n3 None Some(Live)", "closed 1", "opened 2"];
    assert_eq!(words(&state(), &after), expected);
}
