// SPDX-License-Identifier: Apache-2.0
//! Tests of the drain check with a cluster.

use super::*;
use crate::cluster::sample;
use crate::drain::rules::tests::{facts, finding, instance};
use crate::{ClusterBasis, ClusterSource, DrainFacts, DrainVerdict, drain_check};

fn member(node: &str, node_state: ClusterNodeState, role: RoleKind) -> ClusterMemberItem {
    ClusterMemberItem { node_state, ..sample::member(node, role) }
}

/// The view of `a`, with itself and these other nodes.
fn cluster(
    own: RoleKind,
    others: Vec<ClusterMemberItem>,
    connection: ClusterConnectionState,
) -> ClusterGroupList {
    let members = [vec![member("a", ClusterNodeState::Live, own)], others].concat();
    ClusterGroupList {
        schema: Schema::ClusterGroups,
        basis: ClusterBasis {
            node: Some("a".to_owned()),
            source: ClusterSource::Node,
            domain: Some("default".to_owned()),
            scope: ClusterScope::Own,
            connection,
            endpoint: None,
            stale_since: None,
            error: None,
            revision: 1,
            unknown: Vec::new(),
        },
        items: vec![ClusterGroupItem {
            id: "group:x".to_owned(),
            state: GroupState::OnePrimary,
            primaries: Vec::new(),
            addresses: Vec::new(),
            members,
            findings: Vec::new(),
        }],
    }
}

use ClusterConnectionState::{Connected, Connecting, Off, Stale};
use DrainQuestion::{If, Now};
use RoleKind::{Backup, Fault, Partial, Primary};

fn live(node: &str, role: RoleKind) -> ClusterMemberItem {
    member(node, ClusterNodeState::Live, role)
}

fn lost(node: &str, role: RoleKind) -> ClusterMemberItem {
    member(node, ClusterNodeState::Lost, role)
}

fn check(
    question: DrainQuestion,
    own: RoleKind,
    others: Vec<ClusterMemberItem>,
    connection: ClusterConnectionState,
) -> DrainCheckDocument {
    let instances = vec![instance("VI_1", own)];
    let cluster = Some(cluster(own, others, connection));
    drain_check(question, DrainFacts { instances, cluster, ..facts() })
}

fn names(reasons: &[DrainReason]) -> Vec<&str> {
    reasons.iter().map(|reason| reason.name.as_str()).collect()
}

#[test]
fn in_a_cluster_another_live_node_must_hold_the_addresses() {
    let held = check(Now, Backup, vec![live("b", Primary), live("c", Backup)], Connected);
    assert_eq!((held.verdict, held.notes.len()), (DrainVerdict::Drained, 0));
    assert_eq!(names(&held.not_known), [""; 0]);
    let last_one = check(Now, Backup, vec![live("b", Primary), lost("c", Backup)], Connected);
    let found = (last_one.verdict, names(&last_one.notes));
    assert_eq!(found, (DrainVerdict::Drained, vec!["last-backup"]));
    let alone = check(Now, Backup, vec![lost("b", Primary), live("c", Backup)], Connected);
    assert_eq!(names(&alone.blocking), ["no-primary"]);
    let stopped = member("b", ClusterNodeState::Stopped, Primary);
    let stopped = check(Now, Backup, vec![stopped, live("c", Backup)], Connected);
    assert_eq!(names(&stopped.uncertain), ["primary-not-certain"]);
    let unconfirmed = ClusterMemberItem { confirmed: false, ..live("b", Primary) };
    let unconfirmed = check(Now, Backup, vec![unconfirmed], Connected);
    assert_eq!(names(&unconfirmed.uncertain), ["primary-not-certain"]);
}

#[test]
fn an_instance_in_fault_needs_a_primary_elsewhere_too() {
    // keepalived with `use_vmac` removes the link with its stop.
    let nowhere = check(Now, Fault, vec![live("b", Backup)], Connected);
    let found = (nowhere.verdict, names(&nowhere.blocking));
    assert_eq!(found, (DrainVerdict::NotDrained, vec!["no-primary"]));
    let held = check(Now, Fault, vec![live("b", Primary)], Connected);
    assert_eq!(held.verdict, DrainVerdict::Drained);
}

#[test]
fn a_primary_that_is_only_heard_is_on_a_node_without_vipwatch() {
    let hearing = ClusterMemberItem { hears_other: Some(true), ..live("b", Backup) };
    let outside = check(Now, Backup, vec![hearing], Connected);
    let found = (outside.verdict, names(&outside.uncertain));
    assert_eq!(found, (DrainVerdict::Unknown, vec!["primary-not-certain"]), "it may be over");
    // The adverts arrive here, and now.
    let mut own = instance("VI_1", Backup);
    own.hears_other = Some(true);
    let groups = Some(cluster(Backup, vec![live("b", Backup)], Connected));
    let here = drain_check(Now, DrainFacts { instances: vec![own], cluster: groups, ..facts() });
    assert_eq!(
        (here.verdict, names(&here.notes)),
        (DrainVerdict::Drained, vec!["primary-outside"])
    );
}

#[test]
fn a_view_that_is_old_or_was_never_read_proves_nothing() {
    for connection in [Stale, Connecting] {
        for question in [Now, If] {
            let check = check(question, Backup, vec![live("b", Primary)], connection);
            let found = (check.verdict, names(&check.uncertain));
            assert_eq!(found, (DrainVerdict::Unknown, vec!["cluster-view"]), "{connection:?}");
        }
    }
    assert_eq!(check(Now, Backup, Vec::new(), Off).verdict, DrainVerdict::Drained);
}

#[test]
fn a_primary_can_be_taken_down_if_the_next_backup_is_certainly_able() {
    let ready = check(If, Primary, vec![live("b", Backup)], Connected);
    assert_eq!(ready.verdict, DrainVerdict::Ready);
    assert_eq!(ready.instances[0].successors, ["b"]);
    let now = check(Now, Primary, vec![live("b", Backup)], Connected);
    assert_eq!(names(&now.blocking), ["primary-here"]);
    let drained = check(If, Backup, vec![live("b", Primary)], Connected);
    assert_eq!(drained.verdict, DrainVerdict::Drained);
    let nobody = |others| {
        let check = check(If, Primary, others, Connected);
        assert_eq!(check.verdict, DrainVerdict::NotSafe);
        assert_eq!(names(&check.blocking), ["no-backup-elsewhere"]);
        check.blocking[0].text.clone()
    };
    nobody(Vec::new());
    nobody(vec![live("b", Fault)]);
    let findings = vec!["keepalived-gone".to_owned()];
    let dead = ClusterMemberItem { findings, ..live("b", Backup) };
    assert!(nobody(vec![dead]).ends_with("b has keepalived-gone"));
    let stopped = ClusterMemberItem { keepalived: Some(false), ..live("b", Backup) };
    assert!(nobody(vec![stopped]).ends_with("keepalived does not work on b"));
    let two = check(If, Primary, vec![live("b", Primary)], Connected);
    assert_eq!(names(&two.blocking), ["two-primaries"]);
}

#[test]
fn a_node_that_would_take_over_without_an_address_is_no_backup() {
    let address = || vec!["192.0.2.81/24".to_owned()];
    let half = ClusterMemberItem { missing: address(), ..live("b", Backup) };
    let check = check(If, Primary, vec![half.clone()], Connected);
    let found = (check.verdict, names(&check.blocking));
    assert_eq!(found, (DrainVerdict::NotSafe, vec!["no-backup-elsewhere"]));
    assert_eq!(check.blocking[0].text, "b would take over without 192.0.2.81/24");
    // Only a third node has it.
    let mut groups = cluster(Primary, vec![half, lost("c", Backup)], Connected);
    groups.items[0].members[0].missing = address();
    let instances = vec![instance("VI_1", Primary)];
    let kept = drain_check(If, DrainFacts { instances, cluster: Some(groups), ..facts() });
    assert_eq!(kept.verdict, DrainVerdict::Ready);
}

#[test]
fn a_failed_track_script_of_the_next_node_cannot_be_known() {
    let ready = check(If, Primary, vec![live("b", Backup)], Connected);
    assert_eq!(names(&ready.not_known), ["track-scripts"]);
    let drained = check(If, Backup, vec![live("b", Primary)], Connected);
    assert_eq!(names(&drained.not_known), [""; 0]);
}

#[test]
fn a_part_of_the_addresses_on_another_node_is_not_enough() {
    let mut own = instance("VI_1", Backup);
    // The adverts of that node are no proof either.
    own.hears_other = Some(true);
    let groups = Some(cluster(Backup, vec![live("b", Partial)], Connected));
    let part = drain_check(Now, DrainFacts { instances: vec![own], cluster: groups, ..facts() });
    let found = (part.verdict, names(&part.blocking));
    assert_eq!(found, (DrainVerdict::NotDrained, vec!["partly-held"]));
    let whole = check(Now, Backup, vec![live("b", Partial), live("c", Primary)], Connected);
    assert_eq!(whole.verdict, DrainVerdict::Drained);
    // It is primary of the addresses that its own file has.
    let mut shorter = live("b", Primary);
    shorter.missing = vec!["192.0.2.81".to_owned()];
    let lost = check(Now, Backup, vec![shorter.clone()], Connected);
    let found = (lost.verdict, names(&lost.blocking));
    assert_eq!(found, (DrainVerdict::NotDrained, vec!["partly-held"]));
    let other = check(Now, Backup, vec![shorter, live("c", Primary)], Connected);
    assert_eq!(other.verdict, DrainVerdict::Drained);
}

#[test]
fn flapping_is_no_doubt_for_what_is_here_if_another_node_holds_the_addresses() {
    let local = |question| {
        let mut facts = facts();
        facts.instances = vec![instance("VI_1", Backup)];
        facts.findings.items = vec![finding(Some("VI_1"), "cluster-flapping")];
        facts.cluster = Some(cluster(Backup, vec![live("b", Primary)], Connected));
        drain_check(question, facts).verdict
    };
    let of_records = |question| {
        let mut groups = cluster(Backup, vec![live("b", Primary)], Connected);
        groups.items[0].findings = vec!["cluster-flapping".to_owned()];
        of_node(question, &groups).verdict
    };
    assert_eq!(local(Now), DrainVerdict::Drained);
    assert_eq!(of_records(Now), DrainVerdict::Drained);
    assert_eq!(local(If), DrainVerdict::Unknown);
    assert_eq!(of_records(If), DrainVerdict::Unknown);
}

/// The answer about `a` from its own view.
fn of_node(question: DrainQuestion, groups: &ClusterGroupList) -> DrainCheckDocument {
    drain_check_of_cluster(question, groups, &sample::node("a"), Timestamp::UNIX_EPOCH)
}

#[test]
fn the_findings_in_the_records_count_as_on_the_node_itself() {
    let with = |question, finding: &str| {
        let mut groups = cluster(Backup, vec![live("b", Primary)], Connected);
        groups.items[0].members[0].findings = vec![finding.to_owned()];
        of_node(question, &groups)
    };
    for (finding, reason) in [
        ("floating-left", "addresses-here"),
        ("agent-behind", "consumer-behind"),
        ("no-primary", "no-primary"),
    ] {
        let check = with(Now, finding);
        let found = (check.verdict, names(&check.blocking));
        assert_eq!(found, (DrainVerdict::NotDrained, vec![reason]));
    }
    assert!(with(Now, "floating-left").instances[0].holds_addresses);
    assert!(!with(Now, "keepalived-gone").instances[0].loses_backup);
    for question in [Now, If] {
        let check = with(question, "kernel-not-read");
        let found = (check.verdict, names(&check.uncertain));
        assert_eq!(found, (DrainVerdict::Unknown, vec!["kernel-not-read"]));
    }
}

#[test]
fn records_that_lack_instances_of_a_node_prove_nothing() {
    let groups = cluster(Backup, vec![live("b", Primary)], Connected);
    let node = ClusterNodeItem { followed: Some(2), ..sample::node("a") };
    let check = drain_check_of_cluster(Now, &groups, &node, Timestamp::UNIX_EPOCH);
    let found = (check.verdict, names(&check.uncertain));
    assert_eq!(found, (DrainVerdict::Unknown, vec!["cluster-view"]));
    assert_eq!(of_node(Now, &groups).verdict, DrainVerdict::Drained);
}

#[test]
fn records_that_etcd_rejects_prove_no_clean_failover() {
    let mut groups = cluster(Backup, vec![live("b", Primary)], Connected);
    groups.basis.error = Some("no space".to_owned());
    let local = |question| {
        let (instances, cluster) = (vec![instance("VI_1", Backup)], Some(groups.clone()));
        drain_check(question, DrainFacts { instances, cluster, ..facts() })
    };
    assert_eq!(names(&local(Now).notes), ["last-backup", "cluster-records"]);
    for check in [local(If), of_node(If, &groups), of_node(Now, &groups)] {
        let found = (check.verdict, names(&check.uncertain));
        assert_eq!(found, (DrainVerdict::Unknown, vec!["cluster-records"]));
    }
}

#[test]
fn without_knowledge_about_the_backup_the_answer_is_never_yes() {
    let doubts = [
        lost("b", Backup),
        member("b", ClusterNodeState::Stopped, Backup),
        ClusterMemberItem { confirmed: false, ..live("b", Backup) },
        ClusterMemberItem { keepalived: None, ..live("b", Backup) },
    ];
    for doubt in doubts {
        let check = check(If, Primary, vec![doubt.clone()], Connected);
        let found = (check.verdict, names(&check.uncertain));
        assert_eq!(found, (DrainVerdict::Unknown, vec!["backup-not-certain"]), "{doubt:?}");
    }
    let alone = check(If, Primary, vec![live("b", Backup)], Off);
    let found = (alone.verdict, names(&alone.uncertain));
    assert_eq!(found, (DrainVerdict::Unknown, vec!["no-cluster"]));
    assert_eq!(check(If, Backup, Vec::new(), Off).verdict, DrainVerdict::Drained);
}

#[test]
fn the_next_backup_has_the_highest_priority_and_then_the_higher_address() {
    let with = |node: &str, priority, source: Option<&str>| ClusterMemberItem {
        priority,
        source: source.map(str::to_owned),
        ..live(node, Backup)
    };
    let next = |others| check(If, Primary, others, Connected).instances[0].successors.clone();
    assert_eq!(next(vec![with("b", Some(90), None), with("c", Some(100), None)]), ["c"]);
    let sources = |b, c| vec![with("b", Some(90), b), with("c", Some(90), c)];
    assert_eq!(next(sources(Some("192.0.2.10"), Some("192.0.2.9"))), ["b"]);
    assert_eq!(next(sources(Some("192.0.2.10"), None)), ["b", "c"]);
    assert_eq!(next(vec![with("b", Some(90), None), with("c", None, None)]), ["b", "c"]);
    // The next one decides, although another one behind it is able.
    let unsure = ClusterMemberItem { keepalived: None, ..with("c", Some(100), None) };
    let check = check(If, Primary, vec![with("b", Some(90), None), unsure], Connected);
    assert_eq!(names(&check.uncertain), ["backup-not-certain"]);
}

#[test]
fn the_instances_of_a_sync_group_must_go_to_one_node() {
    let group = |id: &str, next: &str| {
        let member = |node: &str, role, priority| ClusterMemberItem {
            instance: id.to_owned(),
            priority: Some(priority),
            sync_group: Some("VG".to_owned()),
            ..live(node, role)
        };
        let priority = |node: &str| if node == next { 100 } else { 50 };
        let members = vec![
            member("a", Primary, 150),
            member("b", Backup, priority("b")),
            member("c", Backup, priority("c")),
        ];
        let group = cluster(Primary, Vec::new(), Connected).items.remove(0);
        ClusterGroupItem { id: format!("group:{id}"), members, ..group }
    };
    let check = |second: &str| {
        let items = vec![group("VI_1", "b"), group("VI_2", second)];
        let groups = ClusterGroupList { items, ..cluster(Primary, Vec::new(), Connected) };
        let instances = vec![instance("VI_1", Primary), instance("VI_2", Primary)];
        drain_check(If, DrainFacts { instances, cluster: Some(groups), ..facts() })
    };
    assert_eq!(check("b").verdict, DrainVerdict::Ready);
    let split = check("c");
    assert_eq!(names(&split.blocking), ["sync-group-split"]);
    assert!(split.blocking[0].text.contains("VG (VI_1, VI_2)"), "{}", split.blocking[0].text);
    assert_eq!(names(&check("nobody").uncertain), ["sync-group-split"]);
}

#[test]
fn another_node_is_checked_by_its_records() {
    let ask = |question, own, others, state| {
        let mut groups = cluster(own, others, Connected);
        groups.items[0].members[0].node_state = state;
        (groups.basis.node, groups.basis.scope) = (None, ClusterScope::Full);
        let node = ClusterNodeItem { state, ..sample::node("a") };
        drain_check_of_cluster(question, &groups, &node, Timestamp::UNIX_EPOCH)
    };
    let here = ask(Now, Primary, vec![live("b", Backup)], ClusterNodeState::Live);
    assert_eq!(names(&here.blocking), ["primary-here"]);
    let ready = ask(If, Primary, vec![live("b", Backup)], ClusterNodeState::Live);
    let found = (ready.verdict, ready.instances[0].successors[0].as_str());
    assert_eq!(found, (DrainVerdict::Ready, "b"));
    assert_eq!(names(&ready.not_known), ["deliveries", "track-scripts"]);
    let drained = ask(Now, Backup, vec![live("b", Primary)], ClusterNodeState::Live);
    assert_eq!(drained.verdict, DrainVerdict::Drained);
    for state in [ClusterNodeState::Lost, ClusterNodeState::Stopped] {
        let gone = ask(If, Backup, vec![live("b", Primary)], state);
        let found = (gone.verdict, gone.uncertain[0].name.as_str());
        assert_eq!(found, (DrainVerdict::Unknown, "node-not-live"));
    }
    // A node answers for its own groups only.
    let mut groups = cluster(Backup, vec![live("b", Primary)], Connected);
    groups.basis.node = Some("b".to_owned());
    let partial = drain_check_of_cluster(If, &groups, &sample::node("a"), Timestamp::UNIX_EPOCH);
    assert_eq!(names(&partial.uncertain), ["cluster-view"]);
}

#[test]
fn ten_thousand_instances_are_compared_in_one_pass() {
    // A list in place of a map would need minutes here.
    let items: Vec<ClusterGroupItem> = (0..10_000)
        .map(|number| {
            let id = format!("r{number}");
            let mut group = cluster(Backup, vec![live("b", Primary)], Connected).items.remove(0);
            group.members.iter_mut().for_each(|member| member.instance.clone_from(&id));
            ClusterGroupItem { id: format!("router:{id}"), ..group }
        })
        .collect();
    let instances = (0..10_000).map(|number| instance(&format!("r{number}"), Backup)).collect();
    let groups = ClusterGroupList { items, ..cluster(Backup, Vec::new(), Connected) };
    let check = drain_check(If, DrainFacts { instances, cluster: Some(groups), ..facts() });
    assert_eq!((check.verdict, check.instances.len()), (DrainVerdict::Drained, 10_000));
}
