// SPDX-License-Identifier: Apache-2.0
//! Tests of groups: which instances belong together, and the state of each group.

use vipwatch_api::RoleKind::{Backup, Fault, Partial, Primary, Unknown};

use super::*;
use crate::sample::{TestCluster, role_record, router, vrid_51};

fn ids(cluster: &TestCluster) -> Vec<String> {
    cluster.view.groups().map(|group| group.id).collect()
}

fn state(cluster: &TestCluster) -> GroupState {
    let groups: Vec<Group> = cluster.view.groups().collect();
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups[0].state()
}

fn with_addresses(node: &str, instance: &str, addresses: &[&str]) -> RoleRecord {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    RoleRecord { addresses, ..role_record(node, instance, Backup) }
}

#[test]
fn instances_of_a_vrid_belong_together_if_they_share_an_address() {
    let mut cluster = TestCluster::new();
    cluster.publish(&vrid_51(), &with_addresses("a", "x", &["192.0.2.9/24", "192.0.2.80/24"]));
    cluster.publish(&vrid_51(), &with_addresses("b", "x", &["192.0.2.80/32"]));
    cluster.publish(&vrid_51(), &with_addresses("b", "y", &["198.51.100.1/24"]));
    cluster.publish(&vrid_51(), &with_addresses("c", "none", &[]));
    cluster.publish(&vrid_51(), &with_addresses("d", "none", &[]));
    let expected =
        ["alone:c:none", "alone:d:none", "vrrp:ipv4:51:192.0.2.9", "vrrp:ipv4:51:198.51.100.1"];
    assert_eq!(ids(&cluster), expected);
    let group = &cluster.view.groups_of(&vrid_51())[2];
    let nodes: Vec<&str> = group.members.iter().map(|member| member.node.as_str()).collect();
    assert_eq!(nodes, ["a", "b"]);
}

#[test]
fn a_group_keeps_its_id_while_an_address_is_added_on_one_node_after_the_other() {
    let mut cluster = TestCluster::new();
    let id = "vrrp:ipv4:51:192.0.2.80";
    for (node, addresses) in [
        ("a", &["192.0.2.80/24"][..]),
        ("b", &["192.0.2.80/24"]),
        ("b", &["192.0.2.80/24", "192.0.2.9/24"]),
        ("a", &["192.0.2.80/24", "192.0.2.9/24"]),
    ] {
        let record = with_addresses(node, "x", addresses);
        cluster.publish(&vrid_51(), &record);
        assert_eq!(ids(&cluster), [id], "as in the metrics of each node");
        let own = record.addresses.iter().map(ipnet::IpNet::addr);
        assert_eq!(vrid_51().own_group(own), id);
    }
    cluster.publish(&vrid_51(), &with_addresses("c", "x", &["192.0.2.9/24", "192.0.2.80/24"]));
    assert_eq!(ids(&cluster), [id], "most nodes have it first");
}

#[test]
fn instances_without_a_vrid_belong_together_by_their_addresses() {
    let mut cluster = TestCluster::new();
    let bucket: Bucket = "vrrp:ipv4:-".parse().unwrap();
    for node in ["a", "b"] {
        let vrid = None;
        cluster.publish(
            &bucket,
            &RoleRecord { vrid, ..with_addresses(node, "x", &["192.0.2.80/24"]) },
        );
    }
    assert_eq!(ids(&cluster), ["vrrp:ipv4:-:192.0.2.80"]);
    assert_eq!(Bucket::of_group("vrrp:ipv4:-:192.0.2.80"), Some(bucket));
}

#[test]
fn a_third_instance_connects_two_that_share_nothing() {
    let mut cluster = TestCluster::new();
    cluster.publish(&vrid_51(), &with_addresses("a", "x", &["192.0.2.1/24"]));
    cluster.publish(&vrid_51(), &with_addresses("b", "x", &["192.0.2.2/24"]));
    assert_eq!(ids(&cluster).len(), 2);
    cluster.publish(&vrid_51(), &with_addresses("c", "x", &["192.0.2.1/24", "192.0.2.2/24"]));
    assert_eq!(ids(&cluster), ["vrrp:ipv4:51:192.0.2.1"]);
}

#[test]
fn a_router_and_an_instance_that_is_alone_are_groups_by_themselves() {
    let mut cluster = TestCluster::new();
    let bucket = router("8b1c");
    cluster.publish(&bucket, &with_addresses("a", "8b1c", &["192.0.2.1/24"]));
    cluster.publish(&bucket, &with_addresses("b", "8b1c", &["192.0.2.2/24"]));
    let alone = Bucket::Alone { node: "a".parse().unwrap(), instance: "VI_1".parse().unwrap() };
    cluster.publish(&alone, &with_addresses("a", "VI_1", &[]));
    assert_eq!(ids(&cluster), ["alone:a:VI_1", "router:8b1c"]);
}

#[test]
fn a_node_with_two_instances_in_one_group_makes_it_ambiguous() {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.publish(&vrid_51(), &role_record("a", "x", Primary));
    cluster.publish(&vrid_51(), &role_record("a", "y", Primary));
    assert_eq!(state(&cluster), GroupState::Ambiguous);
    let group = cluster.view.groups().next().unwrap();
    assert_eq!(group.ambiguities, [Ambiguity::NodeTwice { node: "a".parse().unwrap() }]);
}

#[test]
fn a_configured_group_and_an_instance_without_the_name_on_another_node_are_ambiguous() {
    let mut cluster = TestCluster::new();
    let bucket = Bucket::Configured("web".parse().unwrap());
    cluster.publish(&bucket, &role_record("a", "x", Primary));
    cluster.publish(&vrid_51(), &role_record("b", "x", Backup));
    let groups: Vec<Group> = cluster.view.groups().collect();
    let other = |group: &Group| match group.ambiguities.as_slice() {
        [Ambiguity::OtherGroup { id, .. }] => id.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(other(&groups[0]), "vrrp:ipv4:51:192.0.2.80");
    assert_eq!(other(&groups[1]), "group:web");
    // With an instance of the same node in both, they are two groups.
    cluster.publish(&vrid_51(), &role_record("a", "y", Backup));
    assert!(cluster.view.groups().all(|group| group.ambiguities.is_empty()));
}

#[test]
fn two_routers_with_equal_addresses_are_two_groups() {
    let mut cluster = TestCluster::new();
    cluster.publish(&router("1"), &role_record("a", "1", Primary));
    cluster.publish(&router("2"), &role_record("b", "2", Primary));
    assert!(cluster.view.groups().all(|group| group.ambiguities.is_empty()));
}

#[test]
fn addresses_of_one_link_do_not_connect_a_router_with_an_instance() {
    let mut cluster = TestCluster::new();
    cluster.publish(&router("1"), &with_addresses("a", "1", &["169.254.0.51/24"]));
    cluster.publish(&vrid_51(), &with_addresses("b", "x", &["169.254.0.51/24"]));
    assert!(cluster.view.groups().all(|group| group.ambiguities.is_empty()));
}

fn vrid_61_of_ipv6() -> Bucket {
    Bucket::Vrrp { is_ipv6: true, vrid: Some(61) }
}

#[test]
fn a_common_link_local_address_does_not_join_instances_of_different_links() {
    let mut cluster = TestCluster::new();
    for node in ["a", "b", "c"] {
        cluster.start(node);
    }
    let bucket = vrid_61_of_ipv6();
    let claim = |node, instance, addresses: &[&str]| {
        let record = with_addresses(node, instance, addresses);
        RoleRecord { role: Primary, vrid: Some(61), ..record }
    };
    cluster.publish(&bucket, &claim("a", "x", &["fe80::1/64", "2001:db8:1::1/64"]));
    cluster.publish(&bucket, &with_addresses("b", "x", &["fe80::1/64", "2001:db8:1::1/64"]));
    cluster.publish(&bucket, &claim("c", "x", &["fe80::1/64", "2001:db8:2::1/64"]));
    // A second VLAN of the same pair of nodes.
    cluster.publish(&bucket, &claim("a", "y", &["fe80::1/64", "2001:db8:3::1/64"]));
    cluster.publish(&bucket, &with_addresses("b", "y", &["fe80::1/64", "2001:db8:3::1/64"]));
    cluster.confirm(&["a", "b", "c"]);
    let expected =
        ["vrrp:ipv6:61:2001:db8:1::1", "vrrp:ipv6:61:2001:db8:2::1", "vrrp:ipv6:61:2001:db8:3::1"];
    assert_eq!(ids(&cluster), expected);
    for group in cluster.view.groups() {
        assert_eq!(group.state(), GroupState::OnePrimary, "{}", group.id);
    }
}

#[test]
fn a_link_local_address_of_ipv4_does_not_join_instances_of_different_links() {
    let mut cluster = TestCluster::new();
    let addresses = |own: &'static str| ["169.254.7.1/24", own];
    cluster.publish(&vrid_51(), &with_addresses("a", "x", &addresses("192.0.2.1/24")));
    cluster.publish(&vrid_51(), &with_addresses("b", "x", &addresses("198.51.100.1/24")));
    assert_eq!(ids(&cluster), ["vrrp:ipv4:51:192.0.2.1", "vrrp:ipv4:51:198.51.100.1"]);
}

#[test]
fn instances_that_have_only_link_local_addresses_are_compared_by_them() {
    let mut cluster = TestCluster::new();
    let bucket = vrid_61_of_ipv6();
    cluster.publish(&bucket, &with_addresses("a", "x", &["fe80::1/64"]));
    cluster.publish(&bucket, &with_addresses("b", "x", &["fe80::1/64"]));
    cluster.publish(&bucket, &with_addresses("c", "x", &["fe80::1/64", "2001:db8:1::1/64"]));
    assert_eq!(ids(&cluster), ["vrrp:ipv6:61:2001:db8:1::1", "vrrp:ipv6:61:fe80::1"]);
}

#[test]
fn two_claims_are_two_primaries_only_when_both_nodes_have_confirmed_them() {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.start("b");
    cluster.role("a", Primary);
    cluster.role("b", Backup);
    assert_eq!(state(&cluster), GroupState::OnePrimary);
    cluster.role("b", Partial);
    assert_eq!(state(&cluster), GroupState::Unknown);
    cluster.confirm(&["b"]);
    assert_eq!(state(&cluster), GroupState::Unknown, "a may have crashed");
    cluster.confirm(&["a"]);
    assert_eq!(state(&cluster), GroupState::TwoPrimaries);
    cluster.lose("a");
    assert_eq!(state(&cluster), GroupState::OnePrimary);
}

#[test]
fn a_group_has_no_primary_only_if_all_its_nodes_are_live_and_know_their_role() {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.start("b");
    cluster.role("a", Backup);
    cluster.role("b", Fault);
    assert_eq!(state(&cluster), GroupState::NoPrimary);
    cluster.role("b", Unknown);
    assert_eq!(state(&cluster), GroupState::Unknown);
    cluster.role("b", Backup);
    cluster.stop("b");
    assert_eq!(state(&cluster), GroupState::Unknown);
    assert_eq!(cluster.view.groups_of(&vrid_51())[0].members[1].state, ClusterNodeState::Stopped);
}

#[test]
fn a_group_with_instances_on_one_node_only_may_have_its_primary_on_a_node_without_vipwatch() {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.start("b");
    cluster.role("a", Backup);
    assert_eq!(state(&cluster), GroupState::Unknown);
    cluster.role("b", Backup);
    assert_eq!(state(&cluster), GroupState::NoPrimary);
}

#[test]
fn a_role_of_another_epoch_is_the_last_known_role() {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    let old = RoleRecord { epoch: "old".to_owned(), ..role_record("a", "VI_1", Primary) };
    cluster.publish(&vrid_51(), &old);
    assert_eq!(state(&cluster), GroupState::Unknown);
    cluster.role("a", Primary);
    assert_eq!(state(&cluster), GroupState::OnePrimary);
}
