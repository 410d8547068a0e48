// SPDX-License-Identifier: Apache-2.0
//! Tests of the answer of `vipwatch drain-check`.

use vipwatch_api::{DrainFacts, DrainFailover, DrainPeer, RoleKind};

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
fn text_of_other_programs_is_escaped() {
    let mut facts = facts(true);
    "\u{1b}[2J\u{202e}x".clone_into(&mut facts.instances[0].id);
    let text = drain_check(DrainQuestion::Now, facts).text(&Style::of_tests());
    assert!(text.contains(r"\u{1b}[2J\u{202e}x"), "{text}");
}
