// SPDX-License-Identifier: Apache-2.0
//! The session of a node: registration, publishing, heartbeats, and the same name twice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vipwatch_api::{ClusterNodeState, GroupState, RoleKind};
use vipwatch_cluster::session::ClusterEvent;
use vipwatch_cluster::view::ClusterView;
use vipwatch_testkit::{Etcd, Lab, wait_for, wait_showing};

use crate::node::{TestNode, is_live, lasting_session, role_of, session, state_of, wanted};
use crate::support::settings;

use RoleKind::{Backup, Primary};

#[test]
fn two_nodes_see_each_others_roles_and_one_change() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary), ("r2", Backup)]);
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Backup), ("r3", Backup)]);
    a.wait_role("r1", "b", Backup);
    b.wait_role("r1", "a", Primary);
    // The view of a node has the groups of its own instances; that of the reporter has all.
    wait_for("a reporter", || (a.handle.is_reporter() || b.handle.is_reporter()).then_some(()));
    let (reporter, other) = if a.handle.is_reporter() { (&a, &b) } else { (&b, &a) };
    reporter.wait("all roles", |view| view.role_count() == 4);
    other.wait("the roles of its own groups", |view| view.role_count() == 3);
    b.wait_endpoint();
    assert_eq!(b.handle.basis().domain.as_deref(), Some("test"));

    a.set("r1", Backup);
    b.set("r1", Primary);
    a.wait_role("r1", "b", Primary);
    b.wait_role("r1", "a", Backup);
    let has_one_primary = |view: &ClusterView| {
        let mut groups = view.groups().filter(|group| group.id == "router:r1");
        groups.next().is_some_and(|group| group.state() == GroupState::OnePrimary)
    };
    a.wait("one primary", has_one_primary);
    b.wait("one primary", has_one_primary);
}

#[test]
fn many_buckets_have_one_watch_and_the_view_has_only_them() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    // The first node becomes the reporter, so that the views of the others have their own groups only.
    let reporter = TestNode::start(lasting_session(&settings(&etcd), "reporter"), &[]);
    wait_for("the reporter", || reporter.handle.is_reporter().then_some(()));
    let routers: Vec<String> = (0..300).map(|number| format!("r{number}")).collect();
    let roles = |role| routers.iter().map(|router| (router.as_str(), role)).collect::<Vec<_>>();
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &roles(Backup));
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &roles(Primary));
    b.set("other", Primary);
    reporter.wait("all roles", |view| view.role_count() == 601);
    a.wait("the roles of its own groups", |view| view.role_count() == 600);

    b.set("r7", Backup);
    a.wait_role("r7", "b", Backup);
    // A bucket that becomes one of its own is read, and followed by the watch that exists.
    a.set("other", Backup);
    a.wait_role("other", "b", Primary);
    b.set("other", Backup);
    a.wait_role("other", "b", Backup);
    // The few buckets that remain have a watch each.
    routers[100..].iter().for_each(|router| a.set_wanted(router, None));
    a.wait("the roles of its groups", |view| view.role_count() == 202);
    b.set("r7", Primary);
    a.wait_role("r7", "b", Primary);
    b.set("r200", Backup);
    reporter.wait_role("r200", "b", Backup);
    assert_eq!(a.handle.view().role_count(), 202);
}

#[test]
fn many_buckets_are_followed_from_their_position_after_a_restart_of_etcd() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let routers: Vec<String> = (0..300).map(|number| format!("r{number}")).collect();
    let roles = |role| routers.iter().map(|router| (router.as_str(), role)).collect::<Vec<_>>();
    let reporter = TestNode::start(lasting_session(&settings(&etcd), "reporter"), &[]);
    wait_for("the reporter", || reporter.handle.is_reporter().then_some(()));
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &roles(Backup));
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &roles(Primary));
    a.wait("all roles", |view| view.role_count() == 600);
    let reads = a.handle.counters().range_reads;
    etcd.kill(0);
    b.set("r7", Backup);
    etcd.restart(0);
    a.wait_role("r7", "b", Backup);
    b.set("r8", Backup);
    a.wait_role("r8", "b", Backup);
    assert_eq!(a.handle.counters().range_reads, reads, "no range is read again");
}

/// The client of etcd keeps the memory of the longest message of a stream until the stream ends.
#[test]
fn a_stream_is_opened_again_after_a_long_message_and_loses_no_change() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[]);
    wait_for("the reporter", || a.handle.is_reporter().then_some(()));
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &[("r1", Primary)]);
    a.wait_role("r1", "b", Primary);
    let streams = || {
        let name = r#"grpc_server_started_total{grpc_method="Watch","#;
        let metrics = Etcd::metrics(&etcd.endpoint(0));
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let before = streams();
    // While etcd does not answer, all changes gather for one transaction.
    etcd.pause(0);
    for number in 1..=50 {
        let router = format!("r{number}");
        let mut wanted = wanted(&router, Backup);
        wanted.record.reason = Some("x".repeat(5_000));
        b.set_wanted(&router, Some(wanted));
    }
    etcd.resume(0);
    a.wait("all roles", |view| view.role_count() == 50);
    wait_for("a new stream", || (streams() > before).then_some(()));
    b.set("r7", Primary);
    a.wait_role("r7", "b", Primary);
    b.wait_role("r7", "b", Primary);
}

#[test]
fn an_unchanged_record_is_not_written_again() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary), ("r2", Backup)]);
    a.wait_role("r2", "a", Backup);
    let revision = |router: &str| {
        let bucket = wanted(router, Primary).bucket;
        a.handle.view().roles(&bucket).next().map(|role| role.mod_revision)
    };
    let before = (revision("r1"), revision("r2"));
    a.handle.mark_all();
    a.set("r1", Backup);
    a.wait_role("r1", "a", Backup);
    assert_eq!(revision("r2"), before.1);
    assert_ne!(revision("r1"), before.0);
}

#[test]
fn a_removed_instance_and_one_that_changes_its_bucket_leave_no_key() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary), ("r2", Backup)]);
    a.wait_role("r2", "a", Backup);
    let mut moved = wanted("r1", Primary);
    moved.bucket = "vrrp:ipv4:51".parse().unwrap();
    a.set_wanted("r1", Some(moved));
    a.set_wanted("r2", None);
    let expected = ["/vipwatch/v1/test/role/vrrp:ipv4:51/a/r1"];
    wait_showing(
        "one key",
        || format!("{:?}", etcd.entries("/vipwatch/v1/test/role/")),
        || {
            let keys: Vec<String> =
                etcd.entries("/vipwatch/v1/test/role/").into_iter().map(|(key, _)| key).collect();
            (keys == expected).then_some(())
        },
    );
    a.wait("only the new bucket", |view| view.role_count() == 1);
}

#[test]
fn a_stopped_node_is_stopped_and_a_crashed_node_is_lost_when_its_lease_ends() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Backup)]);
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Primary)]);
    let c = TestNode::start(session(&settings(&etcd), "c"), &[("r1", Backup)]);
    a.wait_role("r1", "b", Primary);
    a.wait_role("r1", "c", Backup);
    b.stop();
    a.wait("b to be stopped", |view| state_of(view, "b") == Some(ClusterNodeState::Stopped));
    c.crash();
    a.wait("c to be lost", |view| state_of(view, "c") == Some(ClusterNodeState::Lost));
    // The last known roles stay.
    assert_eq!(role_of(&a.handle.view(), "r1", "b"), Some(Primary));
    assert_eq!(role_of(&a.handle.view(), "r1", "c"), Some(Backup));
}

#[test]
fn a_restarted_node_continues_its_membership_and_deletes_old_keys() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let witness =
        TestNode::start(session(&settings(&etcd), "w"), &[("r1", Backup), ("r2", Backup)]);
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary), ("r2", Primary)]);
    witness.wait_role("r1", "a", Primary);
    witness.wait_role("r2", "a", Primary);
    let member = |etcd: &Etcd| etcd.entries("/vipwatch/v1/test/member/a").remove(0).1;
    let lease = |member: &str| {
        member.split("\"lease\":").nth(1).unwrap().split(',').next().unwrap().to_owned()
    };
    let before = lease(&member(&etcd));
    a.crash();
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    witness.wait("the old key to be deleted", |view| role_of(view, "r2", "a").is_none());
    assert!(is_live(&witness.handle.view(), "a"));
    assert_eq!(lease(&member(&etcd)), before);
    a.wait_role("r1", "a", Primary);
    assert_eq!(a.handle.counters().name_conflicts, 0);
}

#[test]
fn a_second_node_with_the_same_name_waits_until_the_first_is_gone() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let first = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    first.wait_role("r1", "a", Primary);
    let mut other = session(&settings(&etcd), "a");
    other.epoch = "another-epoch".to_owned();
    let second = TestNode::start(other, &[("r1", Backup)]);
    let holder = wait_for("the second to notice", || second.handle.name_holder());
    assert_eq!((&*holder.epoch, &*holder.version), ("epoch-of-a", "1.2.3"));
    assert!(second.side.events().contains(&ClusterEvent::NameTaken));
    assert!(!second.handle.is_registered());
    // The second publishes nothing, and still has a view.
    second.wait_role("r1", "a", Primary);
    first.stop();
    second.wait_registered();
    second.wait_role("r1", "a", Backup);
    assert!(second.side.events().contains(&ClusterEvent::NameFree));
}

#[test]
fn of_two_processes_with_one_epoch_the_later_has_the_name() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let first = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    first.wait_role("r1", "a", Primary);
    let second = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Backup)]);
    second.wait_role("r1", "a", Backup);
    wait_for("the first to notice", || first.handle.name_holder());
    first.set("r1", Primary);
    assert_eq!(first.handle.counters().name_conflicts, 1);
    // The first stays silent while the second works, although its epoch is that of a process before a restart.
    let beats = second.handle.counters().heartbeats;
    wait_for("three heartbeats", || {
        (second.handle.counters().heartbeats > beats + 3).then_some(())
    });
    assert_eq!(role_of(&first.handle.view(), "r1", "a"), Some(Backup));
    assert_eq!(first.handle.counters().name_conflicts, 1);
    assert_eq!(second.handle.counters().name_conflicts, 0);
    second.stop();
    first.wait_registered();
    first.wait_role("r1", "a", Primary);
}

#[test]
fn a_conflict_is_confirmed_by_both_nodes_before_their_next_heartbeat() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let slow = |name: &str| {
        let mut settings = session(&settings(&etcd), name);
        settings.heartbeat = Duration::from_mins(5);
        settings.lease = Duration::from_mins(15);
        settings
    };
    let a = TestNode::start(slow("a"), &[("r1", Primary)]);
    let b = TestNode::start(slow("b"), &[("r1", Backup)]);
    a.wait_role("r1", "b", Backup);
    b.set("r1", Primary);
    for node in [&a, &b] {
        node.wait("two confirmed primaries", |view| {
            view.groups().any(|group| group.state() == GroupState::TwoPrimaries)
        });
    }
    assert_eq!(a.side.urgent()[0].instances[0].as_str(), "r1");
}

#[test]
fn a_node_whose_main_loop_is_stuck_does_not_confirm_a_conflict() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Backup)]);
    a.wait_role("r1", "b", Backup);
    a.side.is_stuck.store(true, Ordering::SeqCst);
    b.set("r1", Primary);
    b.wait_role("r1", "b", Primary);
    let beats = a.handle.counters().heartbeats;
    wait_for("two heartbeats of a", || (a.handle.counters().heartbeats >= beats + 2).then_some(()));
    let is_confirmed =
        |view: &ClusterView| view.groups().any(|group| !group.confirmed_claims().is_empty());
    assert!(!is_confirmed(&b.handle.view()));
    a.side.is_stuck.store(false, Ordering::SeqCst);
    b.wait("the confirmation", is_confirmed);
}

#[test]
fn a_deleted_or_overwritten_key_is_published_again() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    a.wait_role("r1", "a", Primary);
    let key = "/vipwatch/v1/test/role/router:r1/a/r1";
    let is_published = || {
        let entries = etcd.entries(key);
        entries.first().is_some_and(|(_, value)| value.contains("\"primary\"")).then_some(())
    };
    etcd.ctl(&["del", key]);
    wait_for("the role after its deletion", is_published);
    etcd.ctl(&["put", key, "garbage"]);
    wait_for("the role after it was overwritten", is_published);
    // The key of the node is deleted by an operator: the node registers again.
    etcd.ctl(&["del", "/vipwatch/v1/test/node/a"]);
    wait_for("the node", || (!etcd.entries("/vipwatch/v1/test/node/a").is_empty()).then_some(()));
    a.wait_role("r1", "a", Primary);
}

#[test]
fn foreign_keys_and_garbage_are_counted_and_change_nothing() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    a.wait_role("r1", "a", Primary);
    etcd.ctl(&["put", "/vipwatch/v1/test/node/x y", "foreign"]);
    etcd.ctl(&["put", "/vipwatch/v1/test/node/garbage", "{"]);
    etcd.ctl(&["put", "/vipwatch/v1/test/member/later", "{\"schema\":99}"]);
    etcd.ctl(&["put", "/vipwatch/v1/test/role/router:r1/b/r1", "[]"]);
    a.wait("the keys to be counted", |view| {
        let ignored = view.ignored();
        (ignored.foreign_keys, ignored.invalid_values, ignored.newer_values) == (1, 2, 1)
    });
    assert_eq!(a.handle.view().role_count(), 1);
    // A later reader counts the same.
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Backup)]);
    b.wait_role("r1", "a", Primary);
    assert_eq!(b.handle.view().ignored(), a.handle.view().ignored());
}
