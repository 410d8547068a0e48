// SPDX-License-Identifier: Apache-2.0
//! Tests of the rules of the drain check.

use super::*;
use crate::{
    AnswerSource, CauseItem, DrainFailover, DrainPeer, FindingList, LatencyMap, ReportItem,
    Severity, TargetKind, Timestamp, timestamp_from_millis,
};

fn at() -> Timestamp {
    timestamp_from_millis(1_763_300_000_000)
}

pub(crate) fn instance(id: &str, role: RoleKind) -> InstanceItem {
    InstanceItem {
        id: id.to_owned(),
        name: id.to_owned(),
        group: id.to_owned(),
        role,
        reason: None,
        since: Some(timestamp_from_millis(1_763_200_000_000)),
        seq: 1,
        trigger: "address".to_owned(),
        cause: CauseItem::default(),
        origin: "keepalived".to_owned(),
        netns: None,
        interface: "eth0".to_owned(),
        vrid: Some(1),
        priority: Some(100),
        file: "/etc/keepalived/keepalived.conf".to_owned(),
        line: 1,
        addresses: Vec::new(),
        stages: Vec::new(),
        latencies: LatencyMap::new(),
        failures: Vec::new(),
        findings: Vec::new(),
        agent: None,
        report: None,
        silenced_until: None,
        advert_ms: None,
        hears_other: None,
    }
}

pub(crate) fn finding(id: Option<&str>, name: &str) -> FindingItem {
    FindingItem {
        cluster_id: None,
        id: id.map(str::to_owned),
        name: name.to_owned(),
        severity: Severity::Critical,
        text: format!("text of {name}"),
        hint: String::new(),
        since: None,
        silenced_until: None,
        harmless: false,
    }
}

fn target(pending: u64) -> TargetItem {
    TargetItem {
        name: "chat".to_owned(),
        kind: TargetKind::Webhook,
        source: "node".to_owned(),
        pending,
        silenced: 0,
        oldest_pending: None,
        delivered: 0,
        failures: 0,
        given_up: 0,
        superseded: 0,
        filtered: 0,
        dropped: 0,
        failing: Vec::new(),
    }
}

/// A node with one backup, and no finding.
pub(crate) fn facts() -> DrainFacts {
    DrainFacts {
        cluster: None,
        node: "node-1".to_owned(),
        at: at(),
        instances: vec![instance("a", RoleKind::Backup)],
        findings: FindingList {
            schema: Schema::Findings,
            node: "node-1".to_owned(),
            source: AnswerSource::Node,
            instances: 1,
            items: Vec::new(),
            too_young: 0,
            containers: Vec::new(),
            keepaliveds: Some(0),
        },
        targets: vec![target(0)],
        captures_adverts: true,
        peers: BTreeMap::new(),
        failovers: BTreeMap::new(),
        history_error: None,
        recent_instances: Some(0),
    }
}

fn names(reasons: &[DrainReason]) -> Vec<&str> {
    reasons.iter().map(|reason| reason.name.as_str()).collect()
}

fn with_finding(name: &str) -> DrainCheckDocument {
    let mut facts = facts();
    facts.findings.items.push(finding(Some("a"), name));
    drain_check(DrainQuestion::Now, facts)
}

#[test]
fn a_node_with_backups_only_is_drained_and_says_what_it_cannot_know() {
    let check = drain_check(DrainQuestion::Now, facts());
    assert_eq!(check.verdict, DrainVerdict::Drained);
    assert_eq!(names(&check.not_known), ["other-backups"]);
    assert!(check.instances[0].loses_backup && !check.instances[0].holds_addresses);
    let check = drain_check(DrainQuestion::Now, DrainFacts { captures_adverts: false, ..facts() });
    assert_eq!(check.verdict, DrainVerdict::Drained);
    assert_eq!(names(&check.not_known), ["other-backups", "primary-elsewhere"]);
}

#[test]
fn a_primary_or_a_part_of_its_addresses_is_not_drained() {
    for (role, reason) in
        [(RoleKind::Primary, "primary-here"), (RoleKind::Partial, "addresses-here")]
    {
        let mut facts = facts();
        facts.instances.push(instance("0", RoleKind::Backup));
        facts.instances[0].role = role;
        let check = drain_check(DrainQuestion::Now, facts);
        assert_eq!(check.verdict, DrainVerdict::NotDrained);
        assert_eq!(names(&check.blocking), [reason]);
        assert_eq!(names(&check.not_known)[0], "peer-readiness");
        assert!(check.instances[0].id == "a" && check.instances[0].holds_addresses);
    }
}

#[test]
fn addresses_that_are_left_and_an_instance_without_a_primary_are_not_drained() {
    for (name, reason) in [
        ("floating-left", "addresses-here"),
        ("address-misplaced", "addresses-here"),
        ("no-primary", "no-primary"),
    ] {
        let check = with_finding(name);
        assert_eq!(
            (check.verdict, names(&check.blocking)),
            (DrainVerdict::NotDrained, vec![reason])
        );
        assert_eq!(check.blocking[0].text, format!("text of {name}"));
    }
}

#[test]
fn a_pending_delivery_and_a_consumer_with_another_role_are_not_drained() {
    let check = drain_check(
        DrainQuestion::Now,
        DrainFacts { targets: vec![target(0), target(2)], ..facts() },
    );
    assert_eq!(check.verdict, DrainVerdict::NotDrained);
    assert_eq!(check.blocking[0].target.as_deref(), Some("chat"));
    assert_eq!(check.blocking[0].text, "2 deliveries are pending");
    assert_eq!(check.pending, [target(2)]);
    for name in ["agent-behind", "report-differs", "state-file-differs"] {
        assert_eq!(names(&with_finding(name).blocking), ["consumer-behind"], "{name}");
    }
    let mut facts = facts();
    facts.instances[0].report = Some(ReportItem {
        id: "a".to_owned(),
        reported: "backup".to_owned(),
        at: at(),
        settled: None,
        state: None,
        held: true,
        reports: 1,
    });
    assert_eq!(names(&drain_check(DrainQuestion::Now, facts).blocking), ["delivery-pending"]);
}

#[test]
fn a_role_that_is_not_certain_is_never_drained() {
    let mut unknown = facts();
    unknown.instances[0].role = RoleKind::Unknown;
    let check = drain_check(DrainQuestion::Now, unknown);
    let uncertain = (check.verdict, names(&check.uncertain));
    assert_eq!(uncertain, (DrainVerdict::Unknown, vec!["role-unknown"]));
    let findings = [
        "published-role-wrong",
        "kernel-not-read",
        "flapping",
        "configuration-problem",
        "node-configuration",
        "keepalived-not-readable",
        "receiver-journal",
        "cluster-ambiguous-group",
        "cluster-flapping",
    ];
    for name in findings {
        let check = with_finding(name);
        assert_eq!((check.verdict, names(&check.uncertain)), (DrainVerdict::Unknown, vec![name]));
    }
    let mut young = facts();
    young.findings.too_young = 1;
    assert_eq!(names(&drain_check(DrainQuestion::Now, young).uncertain), ["findings-too-young"]);
}

#[test]
fn an_address_here_outweighs_a_role_that_is_not_certain() {
    let mut facts = facts();
    facts.instances.push(instance("b", RoleKind::Primary));
    facts.findings.items.push(finding(None, "configuration-problem"));
    let check = drain_check(DrainQuestion::Now, facts);
    assert_eq!(check.verdict, DrainVerdict::NotDrained);
    assert_eq!(names(&check.uncertain), ["configuration-problem"]);
}

#[test]
fn a_node_that_cannot_take_over_is_no_loss() {
    let findings = [
        "keepalived-gone",
        "keepalived-frozen",
        "keepalived-vrrp-child-missing",
        "keepalived-crash-loop",
        "keepalived-fault",
    ];
    for name in findings {
        let check = with_finding(name);
        assert_eq!(check.verdict, DrainVerdict::Drained, "{name}");
        assert!(!check.instances[0].loses_backup && check.not_known.is_empty(), "{name}");
    }
    let mut fault = facts();
    fault.instances[0].role = RoleKind::Fault;
    let check = drain_check(DrainQuestion::Now, fault.clone());
    assert_eq!(names(&check.uncertain), ["primary-not-certain"], "no adverts show a primary");
    fault.instances[0].hears_other = Some(true);
    assert_eq!(drain_check(DrainQuestion::Now, fault).verdict, DrainVerdict::Drained);
}

#[test]
fn an_instance_has_the_last_advert_of_another_node_and_its_last_failover() {
    let peer = DrainPeer { source: "192.0.2.3".to_owned(), at: at(), advertising: false };
    let failover = DrainFailover {
        at: at(),
        from: RoleKind::Backup,
        to: "primary".to_owned(),
        cause: CauseItem::default(),
    };
    let facts = DrainFacts {
        peers: [("a".to_owned(), peer.clone())].into(),
        failovers: [("a".to_owned(), failover.clone())].into(),
        ..facts()
    };
    let instance = drain_check(DrainQuestion::Now, facts).instances.remove(0);
    assert_eq!((instance.peer, instance.last_failover), (Some(peer), Some(failover)));
}

#[test]
fn what_could_not_be_read_is_named() {
    let facts = DrainFacts {
        instances: Vec::new(),
        history_error: Some("no history".to_owned()),
        ..facts()
    };
    let check = drain_check(DrainQuestion::Now, facts);
    assert_eq!(check.verdict, DrainVerdict::Drained);
    assert_eq!(names(&check.not_known), ["last-failover", "no-instances"]);
}

#[test]
fn another_finding_and_one_of_a_later_release_change_nothing() {
    for name in ["link-fault", "hook-failed", "later"] {
        let check = with_finding(name);
        assert_eq!((check.verdict, check.instances[0].loses_backup), (DrainVerdict::Drained, true));
    }
}

#[test]
fn a_node_is_not_drained_in_the_moment_of_the_failover() {
    let after = |millis: i64, hears_other: Option<bool>| {
        let mut facts = facts();
        facts.instances[0].since = Some(timestamp_from_millis(1_763_300_000_000 - millis));
        facts.instances[0].hears_other = hears_other;
        let check = drain_check(DrainQuestion::Now, facts);
        (check.verdict, names(&check.uncertain).len())
    };
    assert_eq!(after(0, None), (DrainVerdict::Unknown, 1));
    // The notification still waits for its cause.
    assert_eq!(after(500, Some(true)), (DrainVerdict::Unknown, 1));
    assert_eq!(after(3500, Some(true)), (DrainVerdict::Drained, 0));
    // No other node has shown itself within the time that VRRP needs.
    assert_eq!(after(6900, Some(false)), (DrainVerdict::Unknown, 1));
    assert_eq!(after(7100, None), (DrainVerdict::Drained, 0));
    // The clock was set back by a moment since.
    assert_eq!(after(-30_000, None), (DrainVerdict::Unknown, 1));
}

#[test]
fn notifications_that_a_silence_holds_back_do_not_block() {
    let held = TargetItem { silenced: 2, ..target(0) };
    let check = drain_check(DrainQuestion::Now, DrainFacts { targets: vec![held], ..facts() });
    let found = (check.verdict, names(&check.notes));
    assert_eq!(found, (DrainVerdict::Drained, vec!["delivery-silenced"]));
}

#[test]
fn a_node_that_follows_nothing_is_drained_only_if_nothing_can_be_missing() {
    let mut empty = DrainFacts { instances: Vec::new(), ..facts() };
    let verdict = |facts: &DrainFacts| {
        let check = drain_check(DrainQuestion::Now, facts.clone());
        (check.verdict, names(&check.uncertain).first().map(|name| (*name).to_owned()))
    };
    assert_eq!(verdict(&empty), (DrainVerdict::Drained, None));
    empty.recent_instances = Some(3);
    let missing = (DrainVerdict::Unknown, Some("no-instances".to_owned()));
    assert_eq!(verdict(&empty), missing);
    empty.recent_instances = None;
    assert_eq!(verdict(&empty), missing);
    empty.recent_instances = Some(0);
    // A process table that was not read is not empty.
    for keepaliveds in [Some(1), None] {
        empty.findings.keepaliveds = keepaliveds;
        assert_eq!(verdict(&empty), missing);
    }
    let mut followed = facts();
    followed.findings.keepaliveds = None;
    assert_eq!(verdict(&followed), (DrainVerdict::Drained, None));
}

#[test]
fn a_clock_that_was_set_back_makes_no_role_young_for_hours() {
    let mut facts = facts();
    facts.instances[0].since = Some(timestamp_from_millis(1_763_300_000_000 + 3_600_000));
    let check = drain_check(DrainQuestion::Now, facts);
    assert_eq!(
        (check.verdict, names(&check.notes)),
        (DrainVerdict::Drained, vec!["clock-set-back"])
    );
}

#[test]
fn flapping_is_no_doubt_once_keepalived_is_gone_or_another_node_is_heard() {
    let check = |question, others: &[&str], hears_other| {
        let mut facts = facts();
        facts.instances[0].hears_other = hears_other;
        let names = ["flapping"].iter().chain(others);
        facts.findings.items = names.map(|name| finding(Some("a"), name)).collect();
        drain_check(question, facts).verdict
    };
    assert_eq!(check(DrainQuestion::Now, &[], None), DrainVerdict::Unknown);
    assert_eq!(check(DrainQuestion::Now, &["keepalived-gone"], None), DrainVerdict::Drained);
    assert_eq!(check(DrainQuestion::Now, &[], Some(true)), DrainVerdict::Drained);
    assert_eq!(check(DrainQuestion::If, &[], Some(true)), DrainVerdict::Unknown);
}

#[test]
fn a_note_about_a_file_is_no_missing_fact() {
    let mut facts = facts();
    let note = FindingItem { harmless: true, ..finding(None, "configuration-problem") };
    facts.findings.items.push(note);
    assert_eq!(drain_check(DrainQuestion::Now, facts).verdict, DrainVerdict::Drained);
}
