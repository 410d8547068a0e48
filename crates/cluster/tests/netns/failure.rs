// SPDX-License-Identifier: Apache-2.0
//! The session of a node while etcd fails: members, the majority, compaction, space, and slow answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vipwatch_api::{ClusterConnectionState, ClusterNodeState, RoleKind};
use vipwatch_cluster::etcd::{EtcdErrorKind, EtcdLogin, EtcdPassword};
use vipwatch_cluster::reader::{EtcdReader, ReadProgress};
use vipwatch_cluster::session::{ClusterEvent, SessionSettings};
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::{
    Etcd, EtcdPlace, EtcdProcessOptions, Lab, TestNetns, wait_for, wait_showing,
};

use crate::node::{TestNode, is_live, lasting_session, role_of, session, state_of};
use crate::support::settings;

use RoleKind::{Backup, Primary};

fn wait_connection(node: &TestNode, state: ClusterConnectionState) {
    let show = || format!("{:#?}", node.handle.basis());
    wait_showing("the state of the connection", show, || {
        (node.handle.basis().connection == state).then_some(())
    });
}

pub(crate) fn errors(node: &TestNode, kind: EtcdErrorKind) -> u64 {
    let position = EtcdErrorKind::ALL.iter().position(|known| *known == kind).unwrap();
    node.handle.counters().errors[position]
}

#[test]
fn a_killed_member_is_left_and_the_lease_survives() {
    let lab = Lab::new();
    let mut etcd = Etcd::three(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &[("r1", Backup)]);
    a.wait_role("r1", "b", Backup);
    let endpoint = a.wait_endpoint();
    let used = etcd.endpoints().iter().position(|known| *known == endpoint).unwrap();
    etcd.kill(used);
    a.set("r1", Backup);
    b.set("r1", Primary);
    a.wait_role("r1", "b", Primary);
    b.wait_role("r1", "a", Backup);
    assert_ne!(a.wait_endpoint(), endpoint);
    assert_eq!(a.handle.counters().lease_losses, 0);
    assert!(a.handle.counters().connections >= 2);
}

#[test]
fn without_a_majority_the_view_is_stale_and_afterwards_complete() {
    let lab = Lab::new();
    let mut etcd = Etcd::three(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &[("r1", Backup)]);
    a.wait_role("r1", "b", Backup);
    let leader = etcd.leader();
    let other = (leader + 1) % 3;
    etcd.kill(leader);
    etcd.kill(other);
    wait_connection(&a, ClusterConnectionState::Stale);
    wait_connection(&b, ClusterConnectionState::Stale);
    let basis = a.handle.basis();
    assert!(basis.stale_since.is_some() && basis.error.is_some(), "{basis:?}");
    // The last view stays, and the node goes on.
    assert_eq!(role_of(&a.handle.view(), "r1", "b"), Some(Backup));
    b.set("r1", Primary);
    a.set("r1", Backup);
    etcd.restart_only(leader);
    etcd.restart_only(other);
    a.wait_role("r1", "b", Primary);
    b.wait_role("r1", "a", Backup);
    wait_connection(&a, ClusterConnectionState::Connected);
    assert!(a.handle.basis().stale_since.is_none());
    assert_eq!(a.handle.counters().lease_losses, 0);
}

#[test]
fn a_compaction_during_a_lost_connection_makes_the_node_read_everything_again() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let a = TestNode::start(
        lasting_session(&settings(&etcd), "a"),
        &[("r1", Primary), ("r2", Primary)],
    );
    let c =
        TestNode::start(lasting_session(&settings(&etcd), "c"), &[("r1", Backup), ("r2", Backup)]);
    a.wait_role("r2", "c", Backup);
    // The domain changes while node `a` is not connected: etcd is restarted on another address for a moment.
    etcd.kill(0);
    wait_connection(&a, ClusterConnectionState::Stale);
    c.crash();
    etcd.move_member(0, EtcdPlace::loopback());
    etcd.ctl(&["del", "/vipwatch/v1/test/role/router:r2/c/r2"]);
    etcd.ctl(&["put", "/vipwatch/v1/test/role/router:r1/c/r1", "garbage"]);
    etcd.compact();
    etcd.move_back(0);
    a.wait("the roles of c to be gone", |view| {
        role_of(view, "r2", "c").is_none() && role_of(view, "r1", "c").is_none()
    });
    wait_for("the resynchronisation", || (a.handle.counters().resyncs > 0).then_some(()));
    a.wait_role("r1", "a", Primary);
    a.set("r1", Backup);
    a.wait_role("r1", "a", Backup);
}

#[test]
fn an_etcd_that_has_lost_its_data_gets_all_roles_again_and_its_new_revisions_count() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Backup)]);
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &[("r1", Backup)]);
    let mut reader = EtcdReader::open(settings(&etcd), "test".parse().unwrap()).unwrap();
    // The revisions of the roles are far greater than those after the loss.
    for _ in 0..100 {
        etcd.ctl(&["put", "/other", "value"]);
    }
    b.set("r1", Primary);
    a.wait_role("r1", "b", Primary);
    wait_for("the reader", || {
        reader.wait(Duration::from_millis(100));
        (role_of(&reader.view(), "r1", "b") == Some(Primary)).then_some(())
    });
    etcd.kill(0);
    etcd.delete_data(0);
    b.set("r1", Backup);
    etcd.restart(0);
    a.wait_role("r1", "b", Backup);
    b.wait_role("r1", "a", Backup);
    b.set("r1", Primary);
    a.wait_role("r1", "b", Primary);
    assert!(a.handle.basis().revision < 100, "{:?}", a.handle.basis());
    wait_for("the reader", || {
        reader.wait(Duration::from_millis(100));
        let view = reader.view();
        (view.revision() < 100 && role_of(&view, "r1", "b") == Some(Primary)).then_some(())
    });
    wait_for("a reporter", || (a.handle.is_reporter() || b.handle.is_reporter()).then_some(()));
}

/// The revision of etcd exceeds `revision` by writes of others, while no node reaches it.
fn write_beyond(etcd: &mut Etcd, revision: i64) {
    etcd.move_member(0, EtcdPlace::loopback());
    // One line of input is one request; an empty line ends each of the three lists of a transaction.
    while etcd.revision() <= revision + 5 {
        etcd.ctl_with_input(&["txn"], "\nput /other value\n\n\n");
    }
    etcd.move_back(0);
}

#[test]
fn a_restored_etcd_that_others_have_written_beyond_the_known_revision_gets_the_present_roles() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Backup)]);
    b.wait_role("r1", "a", Primary);
    a.wait_role("r1", "b", Backup);
    let snapshot = lab.path().join("snapshot.db");
    etcd.save(&snapshot);
    a.set("r1", Backup);
    b.set("r1", Primary);
    a.wait_role("r1", "b", Primary);
    b.wait_role("r1", "a", Backup);
    etcd.kill(0);
    let known = a.handle.basis().revision.max(b.handle.basis().revision);
    etcd.restore(&snapshot);
    write_beyond(&mut etcd, known);
    let stored = || etcd.entries("/vipwatch/v1/test/role/router:r1/");
    wait_showing(
        "the present roles",
        || format!("{:#?}", stored()),
        || {
            let stored = stored();
            let has = |number: usize, role: &str| stored[number].1.contains(role);
            (has(0, "\"role\":\"backup\"") && has(1, "\"role\":\"primary\"")).then_some(())
        },
    );
    for node in [&a, &b] {
        node.wait_role("r1", "a", Backup);
        node.wait_role("r1", "b", Primary);
        assert_eq!(node.handle.counters().resyncs, 1);
    }
}

#[test]
fn an_emptied_etcd_that_others_have_written_has_a_reporter_again() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let nodes = ["a", "b"].map(|name| {
        let role = if name == "a" { Primary } else { Backup };
        TestNode::start(session(&settings(&etcd), name), &[("r1", role)])
    });
    let reporters = || nodes.iter().filter(|node| node.handle.is_reporter()).count();
    wait_for("a reporter", || (reporters() == 1).then_some(()));
    etcd.kill(0);
    let known = nodes.iter().map(|node| node.handle.basis().revision).max().unwrap();
    etcd.delete_data(0);
    write_beyond(&mut etcd, known);
    wait_for("a reporter", || {
        let key = etcd.ctl(&["get", "/vipwatch/v1/test/reporter"]);
        (!key.is_empty() && reporters() == 1).then_some(())
    });
    for node in &nodes {
        node.wait_role("r1", "a", Primary);
        node.wait_role("r1", "b", Backup);
    }
}

#[test]
fn an_etcd_that_was_emptied_longer_ago_than_the_lease_gets_all_roles_again() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let mut short = session(&settings(&etcd), "a");
    short.lease = Duration::from_secs(2);
    short.etcd.timeout = Duration::from_secs(1);
    let a = TestNode::start(short, &[("r1", Primary)]);
    a.wait_role("r1", "a", Primary);
    wait_for("the reporter", || a.handle.is_reporter().then_some(()));
    let losses = a.handle.counters().lease_losses;
    etcd.kill(0);
    let known = a.handle.basis().revision;
    etcd.delete_data(0);
    let begin = std::time::Instant::now();
    wait_for("the end of the lease", || (begin.elapsed() > Duration::from_secs(3)).then_some(()));
    write_beyond(&mut etcd, known);
    wait_for("the role in etcd", || {
        let stored = etcd.entries("/vipwatch/v1/test/role/router:r1/");
        (stored.len() == 1).then_some(())
    });
    wait_for("the key of the reporter", || {
        (!etcd.ctl(&["get", "/vipwatch/v1/test/reporter"]).is_empty()).then_some(())
    });
    let counters = a.handle.counters();
    assert!(counters.lease_losses > losses, "{known} {counters:#?} {:#?}", a.handle.basis());
}

#[test]
fn a_running_node_whose_membership_was_revoked_belongs_to_the_cluster_again() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let instances = [("r1", Primary), ("r2", Backup), ("r3", Backup)];
    let a = TestNode::start(session(&settings(&etcd), "a"), &instances);
    let lease = |key: &str| {
        let output = etcd.ctl(&["get", key, "--write-out", "json"]);
        let digits = output.split("\"lease\":").nth(1)?;
        let digits = digits.chars().take_while(char::is_ascii_digit).collect::<String>();
        Some(format!("{:x}", digits.parse::<u64>().ok()?))
    };
    let roles = || etcd.entries("/vipwatch/v1/test/role/").len();
    for round in 0..8 {
        wait_for("all roles", || (roles() == 3).then_some(()));
        let member = wait_for("the membership", || lease("/vipwatch/v1/test/member/a"));
        // A role that changes at the same moment is written with the revoked lease.
        a.set("r2", if round % 2 == 0 { Primary } else { Backup });
        etcd.ctl(&["lease", "revoke", &member]);
        a.set("r2", if round % 2 == 0 { Backup } else { Primary });
        let is_new = || lease("/vipwatch/v1/test/member/a").filter(|now| *now != member);
        let show = || format!("{:#?} {:#?}", a.handle.basis(), etcd.entries("/vipwatch/"));
        wait_showing("a new membership", show, is_new);
    }
    wait_for("all roles", || (roles() == 3).then_some(()));
    assert_eq!(errors(&a, EtcdErrorKind::Lease), 0);
}

#[test]
fn a_renamed_node_leaves_nothing_of_its_old_name() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let old = TestNode::start(session(&settings(&etcd), "old"), &[("r1", Backup)]);
    let other = TestNode::start(session(&settings(&etcd), "other"), &[("r1", Primary)]);
    other.wait_role("r1", "old", Backup);
    old.stop();
    let mut renamed = session(&settings(&etcd), "new");
    renamed.epoch = "epoch-of-old".to_owned();
    let new = TestNode::start(renamed, &[("r1", Backup)]);
    new.wait_role("r1", "other", Primary);
    other.wait_role("r1", "new", Backup);
    other.wait("the old name to go", |view| state_of(view, "old").is_none());
    // Another node that was stopped stays.
    other.stop();
    new.wait("the other to stop", |view| {
        state_of(view, "other") == Some(ClusterNodeState::Stopped)
    });
}

#[test]
fn a_node_whose_lease_has_ended_registers_again() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Backup)]);
    b.wait_role("r1", "a", Primary);
    let lease = |etcd: &Etcd| {
        let output = etcd.ctl(&["get", "/vipwatch/v1/test/node/a", "--write-out", "json"]);
        let digits = output.split("\"lease\":").nth(1).unwrap();
        let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
        format!("{:x}", digits.parse::<i64>().unwrap())
    };
    etcd.ctl(&["lease", "revoke", &lease(&etcd)]);
    wait_for("the loss to be noticed", || (a.handle.counters().lease_losses == 1).then_some(()));
    a.set("r1", Backup);
    b.wait_role("r1", "a", Backup);
    assert!(a.handle.is_registered());
}

#[test]
fn a_node_without_a_network_is_lost_and_comes_back_with_its_last_roles() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let place = |name: &str, address: &str| {
        let netns = lab.netns(name);
        switch.plug(&netns, "eth0", &format!("port-{name}"));
        netns.ip(&format!("address add {address}/24 dev eth0"));
        netns
    };
    let store = place("store", "192.0.2.1");
    let host_a = place("a", "192.0.2.2");
    let host_b = place("b", "192.0.2.3");
    let members = vec![EtcdPlace::in_netns(&store, "192.0.2.1".parse().unwrap())];
    let etcd = Etcd::start(lab.path(), members, EtcdProcessOptions::default());
    let settings = settings(&etcd);
    // The thread of a session stays in the namespace of the thread that starts it.
    let start = |netns: &TestNetns, name: &str, role| {
        netns.visit(|| TestNode::start(session(&settings, name), &[("r1", role)]))
    };
    let a = start(&host_a, "a", Primary);
    let b = start(&host_b, "b", Backup);
    b.wait_role("r1", "a", Primary);
    switch.block("port-a");
    b.wait("a to be lost", |view| state_of(view, "a") == Some(ClusterNodeState::Lost));
    wait_connection(&a, ClusterConnectionState::Stale);
    assert_eq!(role_of(&b.handle.view(), "r1", "a"), Some(Primary));
    a.set("r1", Backup);
    switch.unblock("port-a");
    b.wait_role("r1", "a", Backup);
    assert_eq!(a.handle.counters().lease_losses, 1);
}

#[test]
fn a_deleted_membership_is_written_again() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    a.wait_role("r1", "a", Primary);
    let lease = |key: &str| {
        let output = etcd.ctl(&["get", key, "--write-out", "json"]);
        let digits = output.split("\"lease\":").nth(1)?;
        Some(digits.chars().take_while(char::is_ascii_digit).collect::<String>())
    };
    let (member, role) = ("/vipwatch/v1/test/member/a", "/vipwatch/v1/test/role/router:r1/a/r1");
    let before = lease(member).unwrap();
    etcd.ctl(&["del", member]);
    let after = wait_for("the membership", || lease(member));
    assert_ne!(after, before);
    // The roles get the lease of the new membership.
    wait_for("the lease of the role", || (lease(role).as_ref() == Some(&after)).then_some(()));
}

#[test]
fn a_paused_etcd_ends_leases_of_no_node_that_comes_back_in_time() {
    let lab = Lab::new();
    let etcd = Etcd::three(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &[("r1", Backup)]);
    a.wait_role("r1", "b", Backup);
    let endpoint = a.wait_endpoint();
    let used = etcd.endpoints().iter().position(|known| *known == endpoint).unwrap();
    etcd.pause(used);
    // A paused member keeps its sockets: only the time limit shows it.
    wait_for("another endpoint", || a.handle.basis().endpoint.filter(|now| *now != endpoint));
    a.set("r1", Backup);
    b.set("r1", Primary);
    a.wait_role("r1", "b", Primary);
    b.wait_role("r1", "a", Backup);
    etcd.resume(used);
}

#[test]
fn a_full_etcd_is_reported_and_the_view_still_follows() {
    let lab = Lab::new();
    let etcd = Etcd::small(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &[("r1", Backup)]);
    a.wait_role("r1", "b", Backup);
    etcd.fill();
    a.set("r1", Backup);
    wait_for("the error", || (errors(&a, EtcdErrorKind::NoSpace) > 0).then_some(()));
    wait_connection(&a, ClusterConnectionState::Connected);
    let show = || format!("{:#?}", a.handle.basis());
    wait_showing("the error in the answers", show, || {
        let error = a.handle.basis().error?;
        error.contains("database of etcd is full").then_some(())
    });
    // The leases are renewed, also that of the node with a role that etcd does not accept: no node is lost.
    let renewals = || {
        let events = a.side.events();
        events.iter().filter(|event| matches!(event, ClusterEvent::ConfirmationWanted(_))).count()
    };
    let before = renewals();
    wait_for("three renewals", || (renewals() > before + 2).then_some(()));
    assert!(is_live(&a.handle.view(), "b"));
    etcd.make_space();
    b.wait_role("r1", "a", Backup);
    wait_for("no error", || a.handle.basis().error.is_none().then_some(()));
}

#[test]
fn roles_that_etcd_has_rejected_for_too_long_are_not_current_for_other_nodes() {
    let lab = Lab::new();
    let etcd = Etcd::small(lab.path());
    let lease = Duration::from_secs(3);
    let short = |name| SessionSettings { lease, ..session(&settings(&etcd), name) };
    let a = TestNode::start(short("a"), &[("r1", Primary)]);
    let b = TestNode::start(short("b"), &[("r1", Backup)]);
    b.wait_role("r1", "a", Primary);
    etcd.fill();
    a.set("r1", Backup);
    b.wait("the loss of a", |view| state_of(view, "a") == Some(ClusterNodeState::Lost));
    assert_eq!(role_of(&b.handle.view(), "r1", "a"), Some(Primary), "the last known role");
    let is_notified = |event: &ClusterEvent| matches!(event, ClusterEvent::RejectionChanged);
    assert!(a.side.events().iter().any(is_notified));
    etcd.make_space();
    b.wait("a again", |view| is_live(view, "a"));
    b.wait_role("r1", "a", Backup);
}

#[test]
fn a_wrong_password_is_an_error_and_a_right_one_works() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    etcd.enable_login("vipwatch", "right", "/vipwatch/");
    let with = |password: &str| {
        let mut settings = session(&settings(&etcd), "a");
        let password = EtcdPassword::new(password.to_owned());
        settings.etcd.login = Some(EtcdLogin { user: "vipwatch".to_owned(), password });
        settings
    };
    let wrong = TestNode::start(with("wrong"), &[("r1", Primary)]);
    wait_for("the error", || (errors(&wrong, EtcdErrorKind::Access) > 1).then_some(()));
    let basis = wrong.handle.basis();
    assert_eq!(basis.connection, ClusterConnectionState::Connecting);
    assert!(basis.error.unwrap().contains("rejects the login"));
    wrong.stop();
    let right = TestNode::start(with("right"), &[("r1", Primary)]);
    right.wait_role("r1", "a", Primary);
    right.stop();
}

#[test]
fn a_password_that_is_changed_while_a_node_runs_is_read_again() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    etcd.enable_login("vipwatch", "first", "/vipwatch/");
    let stored = Arc::new(Mutex::new("first".to_owned()));
    let mut settings = lasting_session(&settings(&etcd), "a");
    let file = stored.clone();
    let password = EtcdPassword::read_by(move || Ok(file.lock().unwrap().clone()));
    settings.etcd.login = Some(EtcdLogin { user: "vipwatch".to_owned(), password });
    let a = TestNode::start(settings, &[("r1", Primary)]);
    a.wait_role("r1", "a", Primary);
    etcd.set_password("vipwatch", "second");
    a.set("r1", Backup);
    wait_for("the error", || (errors(&a, EtcdErrorKind::Access) > 0).then_some(()));
    "second".clone_into(&mut stored.lock().unwrap());
    a.wait_role("r1", "a", Backup);
    wait_connection(&a, ClusterConnectionState::Connected);
}

#[test]
fn a_password_that_cannot_be_read_is_an_error_with_its_cause() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let mut settings = session(&settings(&etcd), "a");
    let password = EtcdPassword::read_by(|| Err("no such file".into()));
    settings.etcd.login = Some(EtcdLogin { user: "vipwatch".to_owned(), password });
    let a = TestNode::start(settings, &[("r1", Primary)]);
    wait_for("the error", || (errors(&a, EtcdErrorKind::Settings) > 0).then_some(()));
    let error = a.handle.basis().error.unwrap();
    assert_eq!(error, "cannot read the password: no such file");
}

#[test]
fn a_user_without_permission_to_write_leaves_no_leases_behind() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    etcd.enable_login("vipwatch", "right", "/vipwatch/");
    etcd.ctl(&["role", "grant-permission", "--prefix=true", "vipwatch", "read", "/vipwatch/"]);
    let mut settings = session(&settings(&etcd), "a");
    let password = EtcdPassword::new("right".to_owned());
    settings.etcd.login = Some(EtcdLogin { user: "vipwatch".to_owned(), password });
    let a = TestNode::start(settings, &[("r1", Primary)]);
    wait_for("four attempts", || (errors(&a, EtcdErrorKind::Access) > 3).then_some(()));
    // One of the membership, for the next attempt, and one of an attempt that goes on.
    let leases = etcd.lease_count();
    assert!(leases <= 2, "{leases} leases");
    assert_eq!(a.handle.basis().connection, ClusterConnectionState::Connected);
}

#[test]
fn a_node_starts_before_etcd_and_stops_without_it() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let settings = settings(&etcd);
    etcd.kill(0);
    let a = TestNode::start(session(&settings, "a"), &[("r1", Primary)]);
    wait_for("an error", || (errors(&a, EtcdErrorKind::Connection) > 1).then_some(()));
    assert_eq!(a.handle.basis().connection, ClusterConnectionState::Connecting);
    etcd.restart(0);
    a.wait_role("r1", "a", Primary);
    etcd.kill(0);
    wait_connection(&a, ClusterConnectionState::Stale);
    a.stop();
}

#[test]
fn a_reader_follows_the_domain_over_a_restart_of_etcd() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary), ("r2", Backup)]);
    a.wait_role("r2", "a", Backup);
    let mut reader = EtcdReader::open(settings(&etcd), "test".parse().unwrap()).unwrap();
    assert_eq!(role_of(&reader.view(), "r1", "a"), Some(Primary));
    assert_eq!(reader.basis().connection, ClusterConnectionState::Connected);
    let mut follow = |what: &str, is_true: &dyn Fn(&EtcdReader) -> bool| {
        wait_for(what, || {
            let progress = reader.wait(Duration::from_millis(100));
            let is_known = matches!(progress, ReadProgress::Changed | ReadProgress::Unchanged);
            (is_known && is_true(&reader)).then_some(())
        });
    };
    a.set("r1", Backup);
    follow("a change", &|reader| role_of(&reader.view(), "r1", "a") == Some(Backup));
    etcd.kill(0);
    follow("the loss", &|reader| reader.basis().connection == ClusterConnectionState::Stale);
    etcd.restart(0);
    a.set("r2", Primary);
    follow("a change after the restart", &|reader| {
        role_of(&reader.view(), "r2", "a") == Some(Primary)
            && reader.basis().connection == ClusterConnectionState::Connected
    });
}
