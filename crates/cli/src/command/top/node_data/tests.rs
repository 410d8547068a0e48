// SPDX-License-Identifier: Apache-2.0
//! Tests of the changes that events make.

use vipwatch_api::{
    CauseEvent, CauseItem, DeliveryEvent, FindingEvent, FindingScope, FindingState, LatencyMap,
    NodeEvent, RoleKind, Schema, Severity, TransitionEvent,
};

use super::super::tests::sample_snapshot;
use super::*;
use crate::samples::{self, at};

fn data() -> NodeData {
    NodeData::new(sample_snapshot())
}

/// The instance `VI_1` becomes backup.
pub(in crate::command::top) fn transition(seq: i64) -> NodeEvent {
    NodeEvent::Transition(Box::new(TransitionEvent {
        schema: Schema::Transition,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq,
        at: at("14:59:58"),
        id: "VI_1".to_owned(),
        netns: None,
        origin: "keepalived".to_owned(),
        from: Some(RoleKind::Primary),
        to: RoleKind::Backup,
        trigger: "address".to_owned(),
        cause: CauseItem::default(),
        reason: None,
        addresses: vec![vipwatch_api::AddressItem {
            cidr: "192.0.2.10/24".to_owned(),
            link: "eth0".to_owned(),
            held: Some(false),
            state: None,
            floating: false,
        }],
        latencies: LatencyMap::from([("file".to_owned(), 250)]),
        stages: vec!["file".to_owned(), "hook".to_owned()],
    }))
}

fn delivery(stage: &str, notification: i64, micros: Option<i64>, error: Option<&str>) -> NodeEvent {
    NodeEvent::Delivery(DeliveryEvent {
        schema: Schema::Delivery,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq: notification + 1,
        at: at("14:59:59"),
        id: Some("VI_1".to_owned()),
        finding: None,
        notification,
        stage: stage.to_owned(),
        target: "chat".to_owned(),
        micros,
        error: error.map(str::to_owned),
        is_final: error.is_none(),
    })
}

fn finding(state: FindingState, severity: Severity) -> NodeEvent {
    let mut finding = samples::findings().items.remove(0);
    finding.id = Some("db".to_owned());
    finding.severity = severity;
    NodeEvent::Finding(Box::new(FindingEvent {
        schema: Schema::Finding,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq: 50,
        at: at("14:59:59"),
        id: finding.id.clone(),
        state,
        finding,
        scope: FindingScope::Local,
        cluster: None,
    }))
}

#[test]
fn a_transition_changes_the_row_the_addresses_and_the_history() {
    let mut data = data();
    data.event(transition(45));
    let instance = &data.instances["VI_1"];
    assert_eq!((instance.role, instance.seq), (RoleKind::Backup, 45));
    assert_eq!(instance.since, Some(at("14:59:58")));
    assert_eq!(instance.addresses[0].held, Some(false));
    assert!(instance.addresses[1].floating, "other addresses stay");
    let Some(TimelineItem::Transition(item)) = data.history.front() else { panic!("no entry") };
    assert_eq!((item.seq, item.to.as_str()), (45, "backup"));
}

#[test]
fn an_event_that_is_older_than_the_document_changes_nothing() {
    let mut data = data();
    data.event(transition(41));
    assert_eq!(data.instances["VI_1"].role, RoleKind::Primary);
}

#[test]
fn the_cause_and_the_latencies_of_a_transition_follow_it() {
    let mut data = data();
    data.event(transition(45));
    let cause = CauseEvent {
        schema: Schema::Cause,
        node: "node-1".to_owned(),
        epoch: "5f3a9c21".to_owned(),
        source: "node".to_owned(),
        seq: 46,
        at: at("14:59:59"),
        id: "VI_1".to_owned(),
        transition: 45,
        from: None,
        to: RoleKind::Backup,
        cause: samples::cause("peer-silent"),
    };
    data.event(NodeEvent::Cause(Box::new(cause)));
    data.event(delivery("hook", 45, Some(9_000), None));
    data.event(delivery("hook", 45, Some(7_000), None));
    // A delivery of an earlier transition, and one of a stage that the stopwatch does not have.
    data.event(delivery("webhook", 44, Some(1), None));
    data.event(delivery("ipv6", 45, Some(1), None));
    let instance = &data.instances["VI_1"];
    assert_eq!(instance.cause.cause.as_deref(), Some("peer-silent"));
    let expected = [("file".to_owned(), 250), ("hook".to_owned(), 9_000)];
    assert_eq!(instance.latencies, LatencyMap::from(expected));
    let Some(TimelineItem::Transition(item)) = data.history.front() else { panic!("no entry") };
    assert_eq!(item.cause.cause.as_deref(), Some("peer-silent"));
}

#[test]
fn a_failed_delivery_is_shown_until_it_succeeds() {
    let mut data = data();
    data.event(delivery("webhook", 41, None, Some("HTTP 500")));
    let errors = |data: &NodeData| {
        let failures = data.instances["VI_1"].failures.iter();
        failures.map(|failure| failure.error.clone()).collect::<Vec<_>>()
    };
    assert_eq!(errors(&data), ["HTTP 500"], "it replaces the earlier error of this target");
    data.event(delivery("webhook", 41, Some(3), None));
    assert!(errors(&data).is_empty());
}

#[test]
fn a_finding_appears_changes_and_goes() {
    let mut data = data();
    let of_db = |data: &NodeData| {
        let findings = data.findings.iter().filter(|finding| finding.id.as_deref() == Some("db"));
        findings.map(|finding| finding.severity).collect::<Vec<_>>()
    };
    data.event(finding(FindingState::Open, Severity::Info));
    assert_eq!(of_db(&data), [Severity::Info]);
    assert_eq!(data.instances["db"].findings, ["link-fault"]);
    data.event(finding(FindingState::Changed, Severity::Critical));
    assert_eq!(of_db(&data), [Severity::Critical]);
    assert_eq!(data.findings[0].id.as_deref(), Some("db"), "the most serious are first");
    data.event(finding(FindingState::Closed, Severity::Critical));
    assert!(of_db(&data).is_empty() && data.instances["db"].findings.is_empty());
}

#[test]
fn an_unknown_instance_makes_the_list_be_read_and_newer_events_survive_it() {
    let mut data = data();
    let removed = data.instances.remove("VI_1").unwrap();
    data.event(transition(45));
    assert!(data.has_unknown_instance);
    data.answer(Answer::Instances(vec![removed.clone()]));
    assert!(!data.has_unknown_instance);
    assert_eq!(data.instances.len(), 1, "instances that are not in the list are gone");
    data.event(transition(46));
    data.answer(Answer::Instances(vec![removed]));
    assert_eq!(data.instances["VI_1"].seq, 46);
}

#[test]
fn a_status_with_another_number_of_instances_makes_the_list_be_read() {
    let mut data = data();
    data.status(samples::node_status());
    assert!(!data.has_unknown_instance);
    data.instances.remove("web");
    data.status(samples::node_status());
    assert!(data.has_unknown_instance);
}

#[test]
fn the_first_loss_of_a_connection_counts_until_the_next_one_begins() {
    let mut data = data();
    data.lose(at("14:00:00"), "closed".to_owned());
    data.lose(at("14:00:05"), "refused".to_owned());
    let since = at("14:00:00");
    assert_eq!(data.freshness, Freshness::Stale { since, reason: "closed".to_owned() });
    data.restart(sample_snapshot());
    assert_eq!(data.freshness, Freshness::Live);
}

#[test]
fn the_history_keeps_its_newest_entries() {
    let mut data = data();
    let entry =
        |seq| TimelineItem::Transition(samples::transition(seq, "12:00:00", "VI_1", "backup"));
    let entries = || Answer::History((1..=600).map(entry).collect());
    data.answer(entries());
    data.event(transition(601));
    // The node answers before it has written the transition.
    for _ in 0..2 {
        assert_eq!(data.history.len(), HISTORY_ENTRIES);
        let numbers: Vec<i64> = data.history.iter().take(2).map(number).collect();
        assert_eq!(numbers, [601, 600]);
        data.answer(entries());
    }
}

fn number(entry: &TimelineItem) -> i64 {
    let TimelineItem::Transition(item) = entry else { panic!("no transition") };
    item.seq
}

#[test]
fn the_timeline_of_the_detail_has_transitions_that_the_history_does_not_have_yet() {
    let mut data = data();
    data.answer(Answer::Detail(Box::new(samples::instance_detail())));
    let numbers = |data: &NodeData| {
        let timeline = data.detail.as_ref().unwrap().timeline.iter();
        timeline.map(|item| item.seq).collect::<Vec<_>>()
    };
    data.event(transition(45));
    assert_eq!(numbers(&data), [40, 41, 45]);
    assert!(data.needs_detail);
    // The node answers before it has written the transition.
    data.answer(Answer::Detail(Box::new(samples::instance_detail())));
    assert_eq!(numbers(&data), [40, 41, 45]);
    let mut later = sample_snapshot();
    later.status.epoch = "a".to_owned();
    data.restart(later);
    assert!(data.detail.is_none() && data.history.is_empty(), "another history has other numbers");
}
