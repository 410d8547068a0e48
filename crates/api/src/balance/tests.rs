// SPDX-License-Identifier: Apache-2.0
//! Tests of the distribution of primaries.

use super::*;
use crate::cluster::sample::{self, basis};

fn node(name: &str, state: ClusterNodeState) -> ClusterNodeItem {
    ClusterNodeItem { state, ..sample::node(name) }
}

fn member(node: &str, role: RoleKind, priority: Option<u8>) -> ClusterMemberItem {
    ClusterMemberItem { priority, ..sample::member(node, role) }
}

fn live(name: &str) -> ClusterNodeItem {
    node(name, ClusterNodeState::Live)
}

/// A group with its primary on the node `from`, and backups with priority 90 on the others.
fn group(number: u32, from: &str, others: &[&str]) -> ClusterGroupItem {
    let backups = others.iter().map(|node| member(node, RoleKind::Backup, Some(90)));
    let primary = member(from, RoleKind::Primary, Some(100));
    ClusterGroupItem {
        id: format!("router:{number}"),
        state: GroupState::OnePrimary,
        primaries: vec![from.to_owned()],
        addresses: Vec::new(),
        members: std::iter::once(primary).chain(backups).collect(),
        findings: Vec::new(),
    }
}

#[test]
fn the_difference_is_from_the_mean_of_the_live_nodes() {
    let nodes = [live("a"), live("b"), node("c", ClusterNodeState::Lost)];
    let mut groups: Vec<_> = (0..3).map(|number| group(number, "a", &["b"])).collect();
    groups[0].members.push(ClusterMemberItem {
        node_state: ClusterNodeState::Lost,
        ..member("c", RoleKind::Primary, None)
    });
    groups[1].members[1].role = RoleKind::Fault;
    let balance = balance(basis(), &nodes, &groups);
    assert_eq!(balance.mean, Some(1.5));
    let numbers: Vec<_> =
        balance.items.iter().map(|share| (share.primaries, share.others)).collect();
    assert_eq!(numbers, [(3, 0), (0, 1), (1, 0)]);
    let differences: Vec<_> = balance.items.iter().map(|share| share.difference).collect();
    assert_eq!(differences, [Some(1.5), Some(-1.5), None]);
}

#[test]
fn groups_move_until_the_numbers_differ_by_at_most_one() {
    let nodes = [live("a"), live("b"), live("c")];
    let groups: Vec<_> = (0..10).map(|number| group(number, "a", &["b", "c"])).collect();
    let balance = balance(basis(), &nodes, &groups);
    let to = |node: &str| balance.moves.iter().filter(|one| one.to == node).count();
    assert_eq!((to("b"), to("c")), (3, 3));
    let first = &balance.moves[0];
    assert_eq!((first.from_priority, first.to_priority), (Some(100), 90));
}

#[test]
fn only_a_live_backup_with_a_known_priority_can_take_over() {
    let nodes = [live("a"), live("b")];
    let of = |change: &dyn Fn(&mut ClusterGroupItem)| {
        let mut groups: Vec<_> = (0..4).map(|number| group(number, "a", &["b"])).collect();
        groups.iter_mut().for_each(change);
        balance(basis(), &nodes, &groups).moves.len()
    };
    assert_eq!(of(&|_| {}), 2);
    assert_eq!(of(&|group| group.members[1].priority = None), 0);
    assert_eq!(of(&|group| group.members[1].role = RoleKind::Fault), 0);
    assert_eq!(of(&|group| group.members[1].node_state = ClusterNodeState::Lost), 0);
    assert_eq!(of(&|group| group.state = GroupState::TwoPrimaries), 0);
}

#[test]
fn a_cluster_without_live_nodes_has_no_mean() {
    let balance = balance(basis(), &[node("a", ClusterNodeState::Stopped)], &[]);
    assert_eq!((balance.mean, balance.items.len()), (None, 1));
}
