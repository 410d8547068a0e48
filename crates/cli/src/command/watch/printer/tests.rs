// SPDX-License-Identifier: Apache-2.0
//! Tests of the lines that `vipwatch watch` prints.

use clap::Parser;
use vipwatch_api::{DroppedEvent, FindingScope, LatencyMap, Schema};

use super::*;
use crate::args::{CliArgs, Command};
use crate::samples::{self, at};

fn printer(args: &[&str]) -> Printer {
    let args = CliArgs::try_parse_from(["vipwatch", "watch"].iter().chain(args)).unwrap();
    let Command::Watch(options) = args.command else { panic!("not watch") };
    Printer { style: Style::of_tests(), ..Printer::new(&options) }
}

pub(in crate::command::watch) fn transition(seq: i64, stages: &[&str]) -> TransitionEvent {
    TransitionEvent {
        schema: Schema::Transition,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq,
        at: at("15:00:00.25"),
        id: "VI_1".to_owned(),
        netns: None,
        origin: "keepalived".to_owned(),
        from: Some(RoleKind::Backup),
        to: RoleKind::Primary,
        trigger: "address".to_owned(),
        cause: samples::cause("preempted-peer"),
        reason: None,
        addresses: Vec::new(),
        latencies: LatencyMap::from([("file".to_owned(), 310)]),
        stages: stages.iter().map(|stage| (*stage).to_owned()).collect(),
    }
}

pub(in crate::command::watch) fn delivery(
    notification: i64,
    error: Option<&str>,
    is_final: bool,
) -> DeliveryEvent {
    DeliveryEvent {
        schema: Schema::Delivery,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq: 100,
        at: at("15:00:01"),
        id: Some("VI_1".to_owned()),
        finding: None,
        notification,
        stage: "hook".to_owned(),
        target: "mail".to_owned(),
        micros: Some(20_000),
        error: error.map(str::to_owned),
        is_final,
    }
}

#[test]
fn a_failure_that_is_repeated_before_the_line_is_printed_stands_there_once() {
    let style = Style::of_tests();
    let mut line = WaitingLine::new(&transition(5, &["file", "hook", "webhook"]));
    line.add(&delivery(5, Some("exit status 1"), false));
    let other = DeliveryEvent { target: "page".to_owned(), ..delivery(5, Some("exit 2"), false) };
    line.add(&other);
    line.add(&delivery(5, Some("exit status 3"), true));
    let text = line.text(&style);
    let failed = "hook mail failed: exit status 3, hook page failed: exit 2";
    assert!(text.ends_with(&format!("webhook pending, {failed}]")), "{text}");
    line.add(&delivery(5, None, true));
    let text = line.text(&style);
    assert!(!text.contains("mail failed") && text.contains("page failed"), "{text}");
}

#[test]
fn a_line_has_the_latencies_and_failures_of_its_deliveries() {
    let style = Style::of_tests();
    let mut line = WaitingLine::new(&transition(5, &["file", "hook"]));
    assert_eq!(line.pending, ["hook"]);
    assert_eq!(
        line.text(&style),
        "2026-11-16 16:00:00.250+01:00  VI_1  backup → primary  (this node (priority 100) preempted 192.0.2.12 (priority 50))  [file 0.31 ms, hook pending]"
    );
    line.add(&delivery(5, None, true));
    assert!(line.text(&style).ends_with("[file 0.31 ms, hook 20.00 ms]"), "{}", line.text(&style));
    let mut line = WaitingLine::new(&transition(5, &["hook"]));
    line.add(&delivery(5, Some("exit code 1"), false));
    assert_eq!(line.pending, [""; 0], "the line is printed with its first failure");
    assert!(line.text(&style).ends_with("[file 0.31 ms, hook mail failed: exit code 1]"));
}

#[test]
fn a_backup_does_not_wait_for_announcements() {
    let event = TransitionEvent { to: RoleKind::Backup, ..transition(5, &["announce"]) };
    assert_eq!(WaitingLine::new(&event).pending, [""; 0]);
    assert_eq!(WaitingLine::new(&transition(5, &["announce"])).pending, ["announce"]);
}

#[test]
fn failed_deliveries_are_printed_once_for_each_error_and_so_is_their_end() {
    let mut printer = printer(&[]);
    let first = printer.delivery(&delivery(5, Some("exit code 1"), false)).unwrap();
    assert_eq!(
        first,
        "2026-11-16 16:00:01.000+01:00  VI_1  delivery of 5 to hook mail failed: exit code 1; the node retries"
    );
    assert_eq!(printer.delivery(&delivery(5, Some("exit code 1"), false)), None);
    assert!(printer.delivery(&delivery(5, Some("exit code 2"), false)).is_some());
    assert!(printer.delivery(&delivery(5, None, true)).unwrap().ends_with("hook mail succeeded"));
    assert_eq!(printer.delivery(&delivery(6, None, true)), None, "a success without a failure");
    let given_up = printer.delivery(&delivery(7, Some("exit code 3"), true)).unwrap();
    assert!(given_up.ends_with("was given up: exit code 3"), "{given_up}");
}

#[test]
fn deliveries_of_reports_and_findings_name_what_was_delivered() {
    let mut printer = printer(&[]);
    printer.waiting.push_back(WaitingLine::new(&transition(5, &["hook"])));
    let report = DeliveryEvent {
        source: "receiver".to_owned(),
        stage: "upstream".to_owned(),
        ..delivery(5, Some("status 503"), false)
    };
    let line = printer.delivery(&report).unwrap();
    assert!(
        line.ends_with(
            "  VI_1  delivery of report 5 to upstream mail failed: status 503; the node retries"
        ),
        "it does not belong to transition 5: {line}"
    );
    let finding = DeliveryEvent {
        id: None,
        finding: Some("node-history".to_owned()),
        ..delivery(9, Some("exit code 1"), true)
    };
    let line = printer.delivery(&finding).unwrap();
    assert!(
        line.ends_with(
            "  node  delivery of finding node-history to hook mail was given up: exit code 1"
        ),
        "{line}"
    );
}

#[test]
fn a_transition_that_the_printed_role_includes_is_left_out() {
    let mut printer = printer(&["-n", "1"]);
    printer.role(&samples::instances()[1]);
    assert_eq!(printer.take(&NodeEvent::Transition(Box::new(transition(41, &[])))), Flow::Continue);
    assert_eq!(printer.take(&NodeEvent::Transition(Box::new(transition(42, &[])))), Flow::Stop);
}

#[test]
fn only_transitions_count() {
    for format in ["json", "yaml", "name", "table"] {
        let mut printer = printer(&["-n", "2", "-o", format, "-q"]);
        let transition = NodeEvent::Transition(Box::new(transition(5, &[])));
        assert_eq!(printer.initial(&transition), Flow::Continue);
        assert_eq!(printer.take(&transition), Flow::Continue);
        assert_eq!(printer.take(&NodeEvent::Delivery(delivery(5, None, true))), Flow::Continue);
        assert_eq!(
            printer.take(&NodeEvent::Dropped(DroppedEvent { schema: Schema::Dropped, count: 1 })),
            Flow::Continue
        );
        assert_eq!(printer.take(&transition), Flow::Stop);
    }
}

#[test]
fn removed_instances_and_findings_are_lines() {
    let style = Style::of_tests();
    let removed = RemovedEvent {
        schema: Schema::Removed,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq: 6,
        at: at("15:00:00"),
        id: "VI_1".to_owned(),
        netns: None,
        from: Some(RoleKind::Primary),
    };
    let finding = |state| FindingEvent {
        schema: Schema::Finding,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq: 7,
        at: at("15:00:00"),
        id: Some("web".to_owned()),
        state,
        finding: samples::findings().items.remove(0),
        scope: FindingScope::Local,
        cluster: None,
    };
    let lines = [
        removed_line(&removed, &style),
        finding_line(&finding(FindingState::Open), &style),
        finding_line(&finding(FindingState::Changed), &style),
        finding_line(&finding(FindingState::Closed), &style),
        role_line(&samples::instances()[3], &style),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}
