// SPDX-License-Identifier: Apache-2.0
//! Tests of the answer of `vipwatch drain-check`.

use std::collections::BTreeSet;

use vipwatch_api::{DrainFacts, DrainFailover, DrainPeer, RoleKind, TransitionItem};

use super::facts::update_missed;
use super::*;
use crate::output::{Page, Style};
use crate::samples;

/// The sample instances, or only those with the role `backup`, without findings and pending deliveries.
fn facts(is_drained: bool) -> DrainFacts {
    let mut facts = DrainFacts {
        cluster: None,
        node: "node-1".to_owned(),
        at: samples::at("15:00:00"),
        instances: samples::instances(),
        findings: samples::findings(),
        targets: samples::targets().items,
        captures_adverts: true,
        peers: [(
            "VI_1".to_owned(),
            DrainPeer {
                source: "192.0.2.3".to_owned(),
                at: samples::at("13:00:00"),
                advertising: false,
            },
        )]
        .into(),
        failovers: [(
            "VI_1".to_owned(),
            DrainFailover {
                at: samples::at("13:00:00"),
                from: RoleKind::Backup,
                to: "primary".to_owned(),
                cause: samples::cause("preempted-peer"),
            },
        )]
        .into(),
        history_error: None,
        recent_instances: Some(0),
    };
    if is_drained {
        facts.instances.retain(|instance| instance.role == RoleKind::Backup);
        facts.findings.items.clear();
        facts.findings.too_young = 0;
        facts.targets.clear();
    }
    facts
}

#[test]
fn a_node_that_is_not_drained_shows_what_is_here_and_what_it_cannot_know() {
    let check = drain_check(DrainQuestion::Now, facts(false));
    let text = check.text(&Style::of_tests());
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!("not_safe", text);
    insta::assert_snapshot!("not_safe_json", output::json_line(&check));
    assert_eq!(check.names(), ["VI_1", "db"]);
}

#[test]
fn a_drained_node_is_a_success() {
    let check = drain_check(DrainQuestion::Now, facts(true));
    insta::assert_snapshot!("safe", check.text(&Style::of_tests()));
    assert!(result(&check).is_ok());
}

#[test]
fn the_exit_code_follows_from_the_verdict() {
    let error = result(&drain_check(DrainQuestion::Now, facts(false))).unwrap_err();
    assert_eq!(error.code, ExitStatus::No);
    let expected = "not drained: 1 primary-here, 1 addresses-here, 1 delivery-pending";
    assert_eq!(error.message, expected);
    let mut uncertain = facts(true);
    uncertain.findings.too_young = 1;
    let error = result(&drain_check(DrainQuestion::Now, uncertain)).unwrap_err();
    assert_eq!(error.code, ExitStatus::NotKnown);
    assert!(error.message.ends_with(": a failover may still be going on"), "{}", error.message);
}

#[test]
fn an_instance_is_missed_unless_the_running_node_saw_its_removal_without_addresses() {
    let is_missed = |trigger: &str, from| {
        let mut missed = BTreeSet::from(["VI_1".to_owned()]);
        let removal = samples::transition(42, "13:00:00", "VI_1", "removed");
        let trigger = trigger.to_owned();
        update_missed(&mut missed, TransitionItem { trigger, from: Some(from), ..removal });
        !missed.is_empty()
    };
    assert!(!is_missed("config", RoleKind::Backup));
    assert!(is_missed("config", RoleKind::Primary));
    // The node has not found it when it started: its file may be elsewhere.
    assert!(is_missed("start", RoleKind::Backup));
    let mut missed = BTreeSet::new();
    let trigger = "start".to_owned();
    let removal = samples::transition(42, "13:00:00", "VI_1", "removed");
    update_missed(&mut missed, TransitionItem { trigger, ..removal });
    assert_eq!(missed.len(), 1, "its last transition was more than a day ago");
}

#[test]
fn text_of_other_programs_is_escaped() {
    let mut facts = facts(true);
    "\u{1b}[2J\u{202e}x".clone_into(&mut facts.instances[0].id);
    let text = drain_check(DrainQuestion::Now, facts).text(&Style::of_tests());
    assert!(text.contains(r"\u{1b}[2J\u{202e}x"), "{text}");
}
