// SPDX-License-Identifier: Apache-2.0
//! `vipwatch watch` and a server that answers as a node in trouble does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde::Serialize;
use vipwatch_api::{
    AnswerSource, CauseItem, ErrorCode, InstanceItem, InstanceList, NodeStatus, ProblemDocument,
    ResetEvent, ResetReason, RoleSummary, Schema, SeveritySummary, TransitionEvent,
    timestamp_from_millis,
};
use vipwatch_testkit::monitor::end_of;
use vipwatch_testkit::{Lab, wait_for};

use crate::curl::get;
use crate::support::{ADD_VIP, fixture_with, node_fixture, vi_1_conf, wait_for_role, write};
use crate::watch_command::WatchCommand;

const EPOCH: &str = "abcd";

/// Answers the requests with the results of `answer`, until it returns `None`; then the socket is closed and removed.
fn serve(socket: &Path, mut answer: impl FnMut(&str) -> Option<String> + Send + 'static) {
    let listener = UnixListener::bind(socket).unwrap();
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            // The command may end after it has connected.
            let Some(path) = request_path(&client) else { continue };
            let Some(answer) = answer(&path) else { break };
            // The client may have gone.
            let _ = client.write_all(answer.as_bytes());
        }
        std::fs::remove_file(socket).unwrap();
    });
}

/// The path of the request; `None` if the client has sent none.
fn request_path(client: &UnixStream) -> Option<String> {
    let mut lines = BufReader::new(client).lines().map_while(Result::ok);
    let first = lines.next()?;
    while lines.next().is_some_and(|line| !line.is_empty()) {}
    first.split(' ').nth(1).map(str::to_owned)
}

fn document(status: &str, document: &impl Serialize) -> String {
    let text = serde_json::to_string(document).unwrap();
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )
}

/// The beginning of a stream with one event, after which the connection is closed.
fn stream(name: &str, event: &impl Serialize) -> String {
    let data = serde_json::to_string(event).unwrap();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
         event: {name}\ndata: {data}\n\n"
    )
}

fn status() -> NodeStatus {
    NodeStatus {
        schema: Schema::Status,
        node: "n".to_owned(),
        source: AnswerSource::Node,
        epoch: EPOCH.to_owned(),
        seq: 1,
        roles: RoleSummary::default(),
        findings: SeveritySummary::default(),
        health: Vec::new(),
        problems: Vec::new(),
        silences: Vec::new(),
        metrics: std::collections::BTreeMap::new(),
    }
}

fn instances(items: Vec<InstanceItem>) -> InstanceList {
    let (schema, source) = (Schema::Instances, AnswerSource::Node);
    InstanceList { schema, node: "n".to_owned(), source, items }
}

/// A transition with a hook that has not ended.
fn transition() -> TransitionEvent {
    TransitionEvent {
        schema: Schema::Transition,
        node: "n".to_owned(),
        epoch: EPOCH.to_owned(),
        source: "node".to_owned(),
        seq: 2,
        at: timestamp_from_millis(1),
        id: "VI_1".to_owned(),
        netns: None,
        origin: "keepalived".to_owned(),
        from: Some(vipwatch_api::RoleKind::Backup),
        to: vipwatch_api::RoleKind::Primary,
        trigger: "address".to_owned(),
        cause: CauseItem::default(),
        reason: None,
        addresses: Vec::new(),
        latencies: vipwatch_api::LatencyMap::new(),
        stages: vec!["hook".to_owned()],
    }
}

#[test]
fn a_watch_prints_a_transition_with_a_pending_delivery_although_the_node_is_gone() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let mut has_streamed = false;
    serve(&fixture.socket(), move |path| match path {
        _ if has_streamed => None,
        "/v1/status" => Some(document("200 OK", &status())),
        "/v1/instances" => Some(document("200 OK", &instances(Vec::new()))),
        _ => {
            has_streamed = true;
            Some(stream("transition", &transition()))
        }
    });
    let mut watch = WatchCommand::new(&fixture, &["-n", "1"]);
    let line = watch.read_line_with("VI_1  backup → primary");
    assert!(line.contains("hook pending"), "{line}");
    assert!(end_of(&mut watch.child).is_some_and(|status| status.success()));
}

#[test]
fn a_watch_repeats_a_failed_read_of_the_roles_after_a_reset() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    let known: InstanceList = get(&fixture, "/v1/instances");
    assert!(node.stop().success());
    let mut reads = 0;
    serve(&fixture.socket(), move |path| {
        Some(match path {
            "/v1/status" => document("200 OK", &status()),
            "/v1/instances" => {
                reads += 1;
                match reads {
                    1 => document("200 OK", &instances(Vec::new())),
                    2 => {
                        let problem =
                            ProblemDocument::new(ErrorCode::NotReady, "the main loop hangs");
                        document("503 Service Unavailable", &problem)
                    }
                    _ => document("200 OK", &instances(known.items.clone())),
                }
            }
            _ => {
                let (schema, reason) = (Schema::Reset, ResetReason::OtherEpoch);
                stream("reset", &ResetEvent { schema, reason, next_after: format!("{EPOCH}-1") })
            }
        })
    });
    let mut watch = WatchCommand::new(&fixture, &[]);
    watch.read_line_with("VI_1  backup");
}

#[test]
fn a_watch_goes_on_when_its_instance_is_unknown_after_a_reset() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let (mut reads, mut streams) = (0, 0);
    serve(&fixture.socket(), move |path| {
        Some(match path.split('?').next() {
            Some("/v1/status") => document("200 OK", &status()),
            Some("/v1/instances") => {
                reads += 1;
                if reads == 1 {
                    document("200 OK", &instances(Vec::new()))
                } else {
                    let detail = "there is no instance \"VI_1\" on this node";
                    let problem = ProblemDocument::new(ErrorCode::UnknownInstance, detail);
                    document("404 Not Found", &problem)
                }
            }
            _ => {
                streams += 1;
                if streams == 1 {
                    let (schema, reason) = (Schema::Reset, ResetReason::OtherEpoch);
                    let next_after = format!("{EPOCH}-1");
                    stream("reset", &ResetEvent { schema, reason, next_after })
                } else {
                    stream("transition", &transition())
                }
            }
        })
    });
    let mut watch = WatchCommand::new(&fixture, &["VI_1", "-n", "1"]);
    watch.read_line_with("VI_1  backup → primary");
    assert!(end_of(&mut watch.child).is_some_and(|status| status.success()));
    assert!(watch.errors().contains("there is no instance \"VI_1\""), "{}", watch.errors());
}

#[test]
fn a_watch_of_an_address_shows_the_removal_of_its_instance_after_a_restart() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    netns.ip(ADD_VIP);
    let mut watch = WatchCommand::new(&fixture, &["192.0.2.9"]);
    watch.read_line_with("VI_1  ");
    wait_for_role(&fixture, "VI_1", "primary");
    assert!(node.stop().success());
    wait_for("the message", || watch.errors().contains("connecting again").then_some(()));
    write(&fixture.keepalived_conf(), "");
    let _node = fixture.start();
    watch.read_line_with("VI_1  primary → removed");
}
