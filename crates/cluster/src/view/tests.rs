// SPDX-License-Identifier: Apache-2.0
//! Tests of the view: changes by revision, range reads, ignored keys, liveness.

mod order;

use vipwatch_api::ClusterNodeState::{Live, Lost, Stopped};
use vipwatch_api::RoleKind::{Backup, Primary};

use super::*;
use crate::record::{MemberState, encode};
use crate::sample::{
    TestCluster, key_space, member_record, node_record, role_key, role_record, router, vrid_51,
};

fn stored(key: &ClusterKey, value: Vec<u8>, mod_revision: i64) -> StoredValue {
    let key = key_space().text(key);
    StoredValue { key, value, mod_revision, create_revision: mod_revision, lease: 0 }
}

fn role_value(node: &str, role: vipwatch_api::RoleKind, mod_revision: i64) -> StoredValue {
    let key = role_key(&vrid_51(), node, "VI_1");
    stored(&key, encode(&role_record(node, "VI_1", role)), mod_revision)
}

fn roles(view: &ClusterView) -> Vec<(String, vipwatch_api::RoleKind)> {
    view.roles(&vrid_51()).map(|role| (role.node.to_string(), role.record.role)).collect()
}

#[test]
fn an_older_change_does_not_replace_a_newer_one() {
    let mut view = ClusterView::new(key_space());
    assert!(view.apply(ViewChange::Put(role_value("a", Primary, 5))));
    assert!(!view.apply(ViewChange::Put(role_value("a", Backup, 4))));
    assert!(!view.apply(ViewChange::Put(role_value("a", Primary, 5))), "the same event twice");
    assert_eq!(roles(&view), [("a".to_owned(), Primary)]);
    let key = key_space().text(&role_key(&vrid_51(), "a", "VI_1"));
    assert!(!view.apply(ViewChange::Deleted { key: key.clone(), mod_revision: 3 }));
    assert!(view.apply(ViewChange::Deleted { key, mod_revision: 6 }));
    assert!(!view.apply(ViewChange::Put(role_value("a", Primary, 5))));
    assert_eq!(roles(&view), []);
    assert_eq!((view.revision(), view.role_count()), (6, 0));
}

#[test]
fn a_range_read_removes_the_keys_that_it_does_not_have() {
    let mut view = ClusterView::new(key_space());
    let prefix = key_space().bucket(&vrid_51());
    view.apply(ViewChange::Put(role_value("a", Primary, 5)));
    view.apply(ViewChange::Put(role_value("c", Primary, 9)));
    view.replace_range(&prefix, vec![role_value("b", Backup, 6)], 8);
    let expected = [("b".to_owned(), Backup), ("c".to_owned(), Primary)];
    assert_eq!(roles(&view), expected, "c is newer than the read");
    view.apply(ViewChange::Put(role_value("a", Backup, 7)));
    assert_eq!(roles(&view), expected, "at revision 8, the key of a did not exist");
    view.apply(ViewChange::Put(role_value("a", Backup, 10)));
    assert_eq!(roles(&view).len(), 3);
}

#[test]
fn a_read_of_all_roles_leaves_nodes_as_they_are() {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.role("a", Primary);
    let (prefix, revision) = (key_space().roles(), cluster.revision + 1);
    cluster.view.replace_range(&prefix, Vec::new(), revision);
    assert_eq!(roles(&cluster.view), []);
    assert_eq!(cluster.view.node(&"a".parse().unwrap()).unwrap().state, Live);
}

#[test]
fn a_forgotten_range_can_be_read_again() {
    let mut view = ClusterView::new(key_space());
    let other = router("8b1c");
    let record = role_record("a", "8b1c", Primary);
    let other_value = stored(&role_key(&other, "a", "8b1c"), encode(&record), 4);
    let all = vec![role_value("a", Primary, 5), other_value];
    view.replace_range(&key_space().roles(), all, 8);
    view.forget_range(&key_space().bucket(&vrid_51()));
    assert_eq!((roles(&view).len(), view.role_count()), (0, 1));
    view.replace_range(&key_space().bucket(&vrid_51()), vec![role_value("a", Primary, 5)], 8);
    assert_eq!(roles(&view).len(), 1);
    // The other bucket is still complete up to revision 8.
    let old = stored(&role_key(&other, "b", "8b1c"), encode(&role_record("b", "8b1c", Backup)), 3);
    view.apply(ViewChange::Put(old));
    assert_eq!(view.roles(&other).count(), 1);
    view.forget_range(&key_space().roles());
    assert_eq!(view.role_count(), 0);
}

#[test]
fn keys_and_values_that_are_not_used_are_counted_and_remove_the_value_before() {
    let mut cluster = TestCluster::new();
    cluster.role("a", Primary);
    let key = role_key(&vrid_51(), "a", "VI_1");
    cluster.put(&key, b"garbage".to_vec());
    assert_eq!(roles(&cluster.view), []);
    assert_eq!(cluster.view.ignored().invalid_values, 1);
    cluster.put(&key, br#"{"schema":9}"#.to_vec());
    let ignored = cluster.view.ignored();
    assert_eq!((ignored.invalid_values, ignored.newer_values), (0, 1));
    cluster.role("a", Backup);
    assert_eq!(cluster.view.ignored(), IgnoredSummary::default());
    let foreign = |key: &str| StoredValue {
        key: key.to_owned(),
        value: Vec::new(),
        mod_revision: 90,
        create_revision: 90,
        lease: 0,
    };
    let view = &mut cluster.view;
    assert!(view.apply(ViewChange::Put(foreign("/vipwatch/v1/prod/colour/a"))));
    assert!(!view.apply(ViewChange::Put(foreign("/vipwatch/v1/other/node/a"))));
    assert_eq!(view.ignored().foreign_keys, 1);
    view.replace_range(key_space().all(), Vec::new(), 99);
    assert_eq!(view.ignored(), IgnoredSummary::default());
}

#[test]
fn a_node_is_live_while_its_record_exists_with_the_epoch_of_its_membership() {
    let mut cluster = TestCluster::new();
    let state =
        |cluster: &TestCluster| cluster.view.nodes().map(|node| node.state).collect::<Vec<_>>();
    cluster.start("a");
    assert_eq!(state(&cluster), [Live]);
    cluster.lose("a");
    assert_eq!(state(&cluster), [Lost]);
    cluster.heartbeat("a", 0);
    cluster.stop("a");
    assert_eq!(state(&cluster), [Stopped]);
    let key = ClusterKey::Node("a".parse().unwrap());
    let mut other = node_record("a", 1, 0);
    other.epoch = "other".to_owned();
    cluster.put(&key, encode(&other));
    assert_eq!(state(&cluster), [Stopped], "the membership has another epoch");
    let mut member = member_record("a", MemberState::Running);
    member.epoch = "other".to_owned();
    cluster.put(&ClusterKey::Member("a".parse().unwrap()), encode(&member));
    assert_eq!(state(&cluster), [Live]);
    cluster.lose("a");
    cluster.delete(&ClusterKey::Member("a".parse().unwrap()));
    assert_eq!(state(&cluster), []);
}

/// A silence of node a for an hour.
fn silence_value(id: &str, reason: &str, mod_revision: i64) -> StoredValue {
    let key = ClusterKey::Silence(id.parse().unwrap());
    let record = SilenceRecord {
        schema: crate::record::FORMAT,
        id: id.to_owned(),
        node: Some("a".to_owned()),
        group: None,
        reason: reason.to_owned(),
        created_by: reason.to_owned(),
        at: crate::sample::time(0),
        until: crate::sample::time(3600),
    };
    StoredValue { lease: 7, ..stored(&key, encode(&record), mod_revision) }
}

#[test]
fn a_silence_ends_after_the_time_that_its_creator_wanted_although_its_lease_goes_on() {
    let mut view = ClusterView::new(key_space());
    view.apply(ViewChange::Put(silence_value("cli.x", "reboot", 5)));
    let serial = view.silence_serial();
    let mut passes = |minutes: u64| {
        let now = vipwatch_core::Moment::new(std::time::Duration::from_mins(minutes));
        view.end_overdue_silences(now)
    };
    assert!(!passes(1000) && !passes(1059) && passes(1060) && !passes(2000));
    assert!(view.silences().next().is_none() && view.silence_serial() > serial);
    assert_eq!(view.silence_index(), SilenceIndex::default());
    let known = view.known_keys(&key_space().silences());
    assert_eq!((known.len(), view.ignored().invalid_values), (1, 1), "its key is known");
    assert!(!view.apply(ViewChange::Put(silence_value("cli.x", "reboot", 5))));
}

#[test]
fn one_node_does_not_use_up_the_silences_of_the_domain() {
    let mut view = ClusterView::new(key_space());
    for number in 1..=150 {
        view.apply(ViewChange::Put(silence_value(&format!("a.{number}"), "reboot", number)));
    }
    for (revision, id) in (200..).zip(["b.1", "cli.x"]) {
        view.apply(ViewChange::Put(silence_value(id, "reboot", revision)));
    }
    assert_eq!(view.silences().count(), MAX_SILENCES_OF_NODE + 2);
    assert_eq!(view.ignored().surplus_records, 50);
}

#[test]
fn the_words_of_a_silence_are_short_in_a_finding() {
    let mut view = ClusterView::new(key_space());
    view.apply(ViewChange::Put(silence_value("cli.x", &"\u{1}".repeat(300), 5)));
    let index = view.silence_index();
    let silence = index.covering(None, &["a".to_owned()]).unwrap();
    let bytes = encode(silence).len();
    assert!((400..1000).contains(&bytes), "{bytes}");
}
