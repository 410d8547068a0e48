// SPDX-License-Identifier: Apache-2.0
//! The event stream: live, resumed, reset, and with clients that do not read.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use vipwatch_api::{
    DeliveryEvent, DroppedEvent, FindingEvent, NodeEvent, NodeStatus, RemovedEvent, ResetEvent,
    ResetReason, TransitionEvent,
};
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::curl::{EventCurl, StreamEvent, curl, get};
use crate::http_server::HttpServer;
use crate::receiver_process::report;
use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, instance_conf, node_fixture, vi_1_conf, write,
};

fn is_transition_to(event: &StreamEvent, role: &str) -> bool {
    event.name == "transition"
        && serde_json::from_str::<TransitionEvent>(&event.data).unwrap().to.word() == role
}

/// The sequence numbers of the events, which have the epoch of the node.
fn seqs(events: &[StreamEvent], epoch: &str) -> Vec<i64> {
    let numbered = events.iter().filter_map(|event| event.id.as_ref());
    let seq = |id: &String| {
        let (of_event, seq) = id.rsplit_once('-').unwrap();
        assert_eq!(of_event, epoch);
        seq.parse().unwrap()
    };
    numbered.map(seq).collect()
}

/// Makes the instance primary and backup again, `count` times, and waits for each in the published state.
fn flap(netns: &TestNetns, fixture: &NodeFixture, count: usize) {
    let wait_for_primaries = |number: u64| {
        wait_for("the role", || {
            (get::<NodeStatus>(fixture, "/v1/status").roles.primary == number).then_some(())
        });
    };
    for _ in 0..count {
        netns.ip(ADD_VIP);
        wait_for_primaries(1);
        netns.ip(REMOVE_VIP);
        wait_for_primaries(0);
    }
}

#[test]
fn a_stream_has_live_events_and_a_resumed_stream_misses_and_repeats_none() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let states = lab.path().join("states");
    fixture.configure(&format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    let _node = fixture.start();
    let epoch = get::<NodeStatus>(&fixture, "/v1/status").epoch;
    let stream = EventCurl::open(&fixture, &lab.path().join("first"), &[], "");
    flap(&netns, &fixture, 1);
    stream.wait_for_event("the transition", |event| is_transition_to(event, "backup"));
    let first = stream.events();
    let last_id = first.last().unwrap().id.clone().unwrap();
    drop(stream);
    // These events are in the history only.
    flap(&netns, &fixture, 2);
    let header = format!("Last-Event-ID: {last_id}");
    let resumed = EventCurl::open(&fixture, &lab.path().join("second"), &["-H", &header], "");
    flap(&netns, &fixture, 1);
    let end = get::<NodeStatus>(&fixture, "/v1/status").seq;
    let is_last = |event: &StreamEvent| event.id == Some(format!("{epoch}-{end}"));
    resumed.wait_for_event("the last event", is_last);
    let all = seqs(&[first, resumed.events()].concat(), &epoch);
    let expected: Vec<i64> = (all[0]..=end).collect();
    assert_eq!(all, expected);
    // The same with the parameter, from the beginning, with a filter.
    let query = format!("?after={epoch}-0&id=VI_1");
    let from_start = EventCurl::open(&fixture, &lab.path().join("third"), &[], &query);
    from_start.wait_for_event("the last event", is_last);
    assert_eq!(seqs(&from_start.events(), &epoch), (1..=end).collect::<Vec<_>>());
    for event in from_start.events() {
        NodeEvent::from_data(&event.name, &event.data).unwrap().unwrap();
    }
    let none = EventCurl::open(&fixture, &lab.path().join("none"), &[], "?id=other");
    flap(&netns, &fixture, 1);
    assert_eq!(none.events(), []);
}

#[test]
fn a_stream_that_cannot_continue_begins_with_a_reset() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let NodeStatus { epoch, seq, .. } = get(&fixture, "/v1/status");
    let future = format!("{epoch}-{}", seq + 1000);
    for (after, reason) in [("0badc0de-1", ResetReason::OtherEpoch), (&future, ResetReason::Future)]
    {
        let file = lab.path().join(after);
        let stream = EventCurl::open(&fixture, &file, &[], &format!("?after={after}"));
        let reset = stream.wait_for_event("the reset", |event| event.name == "reset");
        assert_eq!(stream.events()[0], reset, "before any other event");
        let reset: ResetEvent = serde_json::from_str(&reset.data).unwrap();
        assert_eq!(reset.reason, reason);
        flap(&netns, &fixture, 1);
        stream.wait_for_event("a live event", |event| is_transition_to(event, "primary"));
        let live: Vec<i64> = seqs(&stream.events(), &epoch);
        let next_after: i64 = reset.next_after.rsplit_once('-').unwrap().1.parse().unwrap();
        assert_eq!(live[0], next_after + 1);
    }
}

#[test]
fn an_expired_position_gets_a_reset() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let epoch = get::<NodeStatus>(&fixture, "/v1/status").epoch;
    flap(&netns, &fixture, 3);
    assert!(node.stop().success());
    let database = fixture.state_dir().join("history.sqlite");
    let mut command = Command::new("sqlite3");
    let deleted = command.arg(database).arg("DELETE FROM transition WHERE seq <= 3").status();
    assert!(deleted.unwrap().success());
    let _node = fixture.start();
    let first_of = |after: i64| {
        let file = lab.path().join(format!("after-{after}"));
        let query = format!("?after={epoch}-{after}");
        let stream = EventCurl::open(&fixture, &file, &[], &query);
        wait_for("an event", || stream.events().into_iter().next())
    };
    let reset: ResetEvent = serde_json::from_str(&first_of(2).data).unwrap();
    assert_eq!(reset.reason, ResetReason::Expired);
    assert_eq!(first_of(3).id, Some(format!("{epoch}-4")));
}

#[test]
fn an_instance_that_is_no_longer_configured_is_reported_as_removed() {
    let lab = Lab::new();
    let instances = [vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.2/24"])];
    let (netns, fixture) = fixture_with(&lab, &instances);
    let _node = fixture.start();
    let stream = EventCurl::open(&fixture, &lab.path().join("events"), &[], "");
    let text = format!("net_namespace {}\n{}", netns.name(), vi_1_conf());
    write(&fixture.keepalived_conf(), &text);
    let removed = stream.wait_for_event("the removal", |event| event.name == "removed");
    let removed: RemovedEvent = serde_json::from_str(&removed.data).unwrap();
    assert_eq!((removed.id.as_str(), removed.from), ("DB", Some(vipwatch_api::RoleKind::Backup)));
}

#[test]
fn a_client_that_stops_reading_loses_events_for_itself_only_and_learns_how_many() {
    const INSTANCES: usize = 200;
    const ROUNDS: usize = 56;
    let lab = Lab::new();
    let instances: Vec<String> = (0..INSTANCES).map(conf_with_vrid).collect();
    let (netns, fixture) = fixture_with(&lab, &instances);
    let states = lab.path().join("states");
    fixture.configure(&format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    let _node = fixture.start();
    let mut slow = UnixStream::connect(fixture.socket()).unwrap();
    slow.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let reader = EventCurl::open(&fixture, &lab.path().join("reader"), &[], "");
    for round in 0..ROUNDS {
        let is_add = round % 2 == 0;
        change_all(&netns, INSTANCES, is_add);
        let expected = if is_add { INSTANCES as u64 } else { 0 };
        wait_for("all roles", || {
            (get::<NodeStatus>(&fixture, "/v1/status").roles.primary == expected).then_some(())
        });
    }
    let NodeStatus { epoch, seq, .. } = get(&fixture, "/v1/status");
    assert!(seq > 10_000, "more events than the ring has: {seq}");
    let is_last = |event: &StreamEvent| event.id == Some(format!("{epoch}-{seq}"));
    reader.wait_for_event("the last event", is_last);
    assert!(reader.events().iter().all(|event| event.name != "dropped"));
    // The slow client reads again.
    let mut lines = BufReader::new(slow).lines().map(Result::unwrap);
    let dropped = lines.by_ref().find(|line| line == "event: dropped").and_then(|_| lines.next());
    let dropped = dropped.unwrap();
    let dropped: DroppedEvent =
        serde_json::from_str(dropped.strip_prefix("data: ").unwrap()).unwrap();
    assert!(dropped.count > 0);
    lines.find(|line| *line == format!("id: {epoch}-{seq}")).unwrap();
}

/// Many instances on one link, each with an address and a router id of its own.
fn conf_with_vrid(number: usize) -> String {
    let vip = format!("198.51.100.{number}/32");
    instance_conf(&format!("VI_{number}"), "eth0", &[&vip])
}

/// Adds or removes the addresses of all instances with one process.
fn change_all(netns: &TestNetns, count: usize, is_add: bool) {
    let verb = if is_add { "add" } else { "del" };
    let lines = (0..count).map(|n| format!("address {verb} 198.51.100.{n}/32 dev eth0\n"));
    let mut command = netns.command("ip");
    let mut child = command.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let text: String = lines.collect();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The states and the names of the findings in the stream, for example `open vrid-clash`.
fn findings(stream: &EventCurl) -> Vec<String> {
    let events = stream.events().into_iter().filter(|event| event.name == "finding");
    let text = |event: StreamEvent| {
        let event: FindingEvent = serde_json::from_str(&event.data).unwrap();
        let state = serde_json::to_value(event.state).unwrap();
        format!("{} {}", state.as_str().unwrap(), event.finding.name)
    };
    events.map(text).collect()
}

#[test]
fn a_finding_about_configurations_is_closed_by_the_next_run_and_not_opened_again() {
    let lab = Lab::new();
    let clash = ["VI_1", "VI_2"].map(|id| instance_conf(id, "eth0", &["192.0.2.9/24"]));
    let (_netns, fixture) = fixture_with(&lab, &clash);
    let node = fixture.start();
    let status: NodeStatus = get(&fixture, "/v1/status");
    let after = format!("?after={}-0", status.epoch);
    let stream = EventCurl::open(&fixture, &lab.path().join("first"), &[], &after);
    let opened = "open address-configured-twice".to_owned();
    wait_for("the finding", || findings(&stream).contains(&opened).then_some(()));
    drop(stream);
    assert!(node.stop().success());
    // A restart with the same configuration keeps the finding open, and says nothing.
    let node = fixture.start();
    // The findings are compared before an audit is answered.
    assert_eq!(curl(&fixture, &["-X", "POST"], "/v1/audit").status, 200);
    assert!(node.stop().success());
    write(&fixture.keepalived_conf(), &vi_1_conf());
    let _node = fixture.start();
    let stream = EventCurl::open(&fixture, &lab.path().join("last"), &[], &after);
    let closed = "closed address-configured-twice".to_owned();
    wait_for("the end of the finding", || findings(&stream).contains(&closed).then_some(()));
    let count = findings(&stream).iter().filter(|text| **text == opened).count();
    assert_eq!(count, 1, "{:?}", findings(&stream));
}

/// The deliveries in the stream.
fn deliveries(stream: &EventCurl) -> Vec<DeliveryEvent> {
    let events = stream.events().into_iter().filter(|event| event.name == "delivery");
    events.map(|event| serde_json::from_str(&event.data).unwrap()).collect()
}

#[test]
fn deliveries_of_reports_are_events() {
    let lab = Lab::new();
    let server = HttpServer::new(&[503]);
    let fixture = node_fixture(&lab);
    fixture.configure(&format!(
        "[receiver]\ninterval = \"0s\"\n[receiver.upstream]\nurl = \"{}\"\ninterval = \"0s\"\n",
        server.url
    ));
    let _node = fixture.start();
    let stream = EventCurl::open(&fixture, &lab.path().join("stream"), &[], "?id=r1");
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    let events =
        wait_for("the deliveries", || Some(deliveries(&stream)).filter(|events| events.len() == 2));
    for event in &events {
        let of = (event.source.as_str(), event.stage.as_str(), event.id.as_deref());
        assert_eq!(of, ("receiver", "upstream", Some("r1")));
        assert_eq!((event.notification, &event.finding), (1, &None));
    }
    assert!(events[0].error.as_ref().unwrap().contains("503") && !events[0].is_final);
    assert!(events[1].error.is_none() && events[1].is_final);
}

#[test]
fn a_delivery_of_a_finding_is_an_event_that_names_the_finding() {
    let lab = Lab::new();
    let server = HttpServer::new(&[]);
    let clash = ["VI_1", "VI_2"].map(|id| instance_conf(id, "eth0", &["192.0.2.9/24"]));
    let (_netns, fixture) = fixture_with(&lab, &clash);
    fixture.configure(&format!(
        "[[notify]]\n[[notify.webhook]]\nname = \"chat\"\nurl = \"{}\"\non = \"finding\"\n",
        server.url
    ));
    let _node = fixture.start();
    let epoch = get::<NodeStatus>(&fixture, "/v1/status").epoch;
    let query = format!("?after={epoch}-0");
    let stream = EventCurl::open(&fixture, &lab.path().join("stream"), &[], &query);
    let name = "address-configured-twice";
    let event = wait_for("the delivery", || {
        deliveries(&stream).into_iter().find(|event| event.finding.as_deref() == Some(name))
    });
    assert_eq!((event.source.as_str(), event.target.as_str()), ("node", "chat"));
    assert!(event.id.is_some_and(|id| id.starts_with("VI_")) && event.error.is_none());
    let is_published = |event: StreamEvent| event.name == "finding" && event.data.contains(name);
    assert!(stream.events().into_iter().any(is_published));
}
