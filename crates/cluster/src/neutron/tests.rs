// SPDX-License-Identifier: Apache-2.0
//! The comparison of a group with Neutron's answer.

use vipwatch_api::RoleKind::{Backup, Partial, Primary};

use super::*;
use crate::sample::{TestCluster, role_record, router, vrid_51};

/// A router with these members.
fn group(members: &[(&str, RoleKind)]) -> Group {
    let mut cluster = TestCluster::new();
    for (node, role) in members {
        cluster.start(node);
        cluster.publish(&router("r1"), &role_record(node, "r1", *role));
    }
    let nodes: Vec<&str> = members.iter().map(|(node, _)| *node).collect();
    cluster.confirm(&nodes);
    cluster.view.groups_of(&router("r1")).remove(0)
}

fn answer(hosts: &[(&str, &str)]) -> NeutronAnswer {
    let host = |(host, word): &(&str, &str)| NeutronHost {
        host: (*host).to_owned(),
        state: word.parse().unwrap_or(HaState::Unknown),
    };
    NeutronAnswer::new(hosts.iter().map(host).collect())
}

fn result(members: &[(&str, RoleKind)], hosts: &[(&str, &str)]) -> NeutronComparison {
    compare(&group(members), &answer(hosts))
}

const A_IS_PRIMARY: [(&str, RoleKind); 2] = [("a", Primary), ("b", Backup)];

#[test]
fn the_primary_as_the_only_active_host_is_equal() {
    use NeutronComparison::Equal;
    assert_eq!(result(&A_IS_PRIMARY, &[("b", "standby"), ("a", "active")]), Equal);
    // A host without vipwatch is no contradiction.
    assert_eq!(result(&A_IS_PRIMARY, &[("a", "active"), ("x", "standby")]), Equal);
    assert_eq!(result(&A_IS_PRIMARY, &[("a", "active")]), Equal);
}

#[test]
fn another_active_host_several_or_none_differ() {
    for hosts in [
        &[("a", "standby"), ("b", "active")][..],
        &[("a", "active"), ("b", "active")],
        &[("a", "standby"), ("b", "standby")],
        &[("a", "unknown"), ("b", "standby")],
        // Neutron knows the primary, and its active host has no vipwatch.
        &[("a", "standby"), ("x", "active")],
        // Neutron has moved the router away from the node that still holds the addresses.
        &[("b", "active"), ("x", "standby")],
        // An unknown word of a later release is not active.
        &[("a", "promoting")],
    ] {
        assert_eq!(result(&A_IS_PRIMARY, hosts), NeutronComparison::Different, "{hosts:?}");
    }
}

#[test]
fn names_that_differ_are_not_guessed() {
    for hosts in [
        &[("a.example.net", "active"), ("b.example.net", "standby")][..],
        &[("a.example.net", "standby"), ("b.example.net", "active")],
        &[("A", "active")],
        &[("x", "standby"), ("y", "standby")],
    ] {
        assert_eq!(result(&A_IS_PRIMARY, hosts), NeutronComparison::Unmatched, "{hosts:?}");
    }
}

#[test]
fn only_a_router_with_exactly_one_whole_primary_is_compared() {
    use NeutronComparison::NotCompared;
    let hosts = [("a", "standby"), ("b", "active")];
    for members in [
        [("a", Primary), ("b", Primary)],
        [("a", Backup), ("b", Backup)],
        [("a", Partial), ("b", Backup)],
    ] {
        assert_eq!(result(&members, &hosts), NotCompared, "{members:?}");
    }
    assert_eq!(result(&A_IS_PRIMARY, &[]), NotCompared, "Neutron has no such HA router");
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.role("a", Primary);
    let group = cluster.view.groups_of(&vrid_51()).remove(0);
    assert_eq!(compare(&group, &answer(&hosts)), NotCompared, "not a router");
}
