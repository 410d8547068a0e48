// SPDX-License-Identifier: Apache-2.0
//! A client of etcd that writes more than a node keeps.

use std::time::Duration;

use vipwatch_api::RoleKind::{Backup, Primary};
use vipwatch_cluster::etcd::messages::RequestOp;
use vipwatch_cluster::reader::EtcdReader;
use vipwatch_cluster::record::encode;
use vipwatch_cluster::session::{ClusterEvent, SessionSettings};
use vipwatch_cluster::view::{ClusterView, ViewLimits};
use vipwatch_testkit::{Etcd, Lab, wait_for, wait_showing, wait_within};

use crate::node::{TestNode, is_live, lasting_session, role_of, wanted};
use crate::support::{block_on, connect, settings};

const PREFIX: &str = "/vipwatch/v1/test/";

/// Limits that a test can exceed.
const LIMITS: ViewLimits = ViewLimits {
    nodes: 20,
    roles: 400,
    role_bytes: 1 << 20,
    bucket_roles: 40,
    findings: 50,
    closed_findings: 50,
    finding_bytes: 1 << 20,
    silences: 4,
};

fn limited(settings: SessionSettings) -> SessionSettings {
    SessionSettings { limits: LIMITS, ..settings }
}

fn put_all(etcd: &Etcd, entries: &[(String, Vec<u8>)]) {
    block_on(async {
        let connection = connect(etcd).await;
        for batch in entries.chunks(100) {
            let puts = batch
                .iter()
                .map(|(key, value)| RequestOp::put(&format!("{PREFIX}{key}"), value.clone(), None));
            assert!(connection.commit(Vec::new(), puts.collect(), PREFIX).await.unwrap().is_done);
        }
    });
}

/// A finding that no node has found.
fn finding(id: &str, text: &str) -> Vec<u8> {
    let record = serde_json::json!({
        "schema": 1, "id": id, "name": "cluster-no-primary", "severity": "critical", "confidence": "certain",
        "group": format!("router:{id}"), "nodes": ["a"], "text": text, "hint": "",
        "opened": "2026-01-01T00:00:00Z", "changed": "2026-01-01T00:00:00Z", "reporter": "x",
    });
    encode(&record)
}

fn member(name: &str) -> Vec<u8> {
    let record = serde_json::json!({
        "schema": 1, "node": name, "epoch": "x", "state": "stopped", "lease": 1, "at": "2026-01-01T00:00:00Z",
    });
    encode(&record)
}

fn role(node: &str, router: &str) -> Vec<u8> {
    let mut record = wanted(router, Primary).record;
    node.clone_into(&mut record.node);
    encode(&record)
}

/// Records of every kind. Their keys come before those of the nodes `a` and `b`.
fn flood() -> Vec<(String, Vec<u8>)> {
    let mut entries = Vec::new();
    for number in 0..300 {
        let id = format!("0{number:03}");
        entries.push((format!("finding/{id}"), finding(&id, "x")));
        entries.push((format!("closed/{id}"), finding(&id, "x")));
        entries.push((format!("member/{id}"), member(&id)));
        // A crowd in the group of the nodes, and many groups that sort before it.
        entries.push((format!("role/router:r1/{id}/r1"), role(&id, "r1")));
        for group in 0..3 {
            let router = format!("{group}-{id}");
            entries.push((format!("role/router:{router}/0/{router}"), role("0", &router)));
        }
    }
    entries.extend(
        (0..3).map(|number| (format!("colour/{number}{}", "x".repeat(100_000)), Vec::new())),
    );
    entries
}

fn surplus(view: &ClusterView) -> u64 {
    view.ignored().surplus_records
}

#[track_caller]
fn assert_within_limits(view: &ClusterView) {
    // Own records have room beyond the limits.
    assert!(view.nodes().count() <= LIMITS.nodes + 1, "{}", view.nodes().count());
    assert!(view.findings().count() <= LIMITS.findings, "{}", view.findings().count());
    assert!(view.closed_findings().count() <= LIMITS.closed_findings);
    assert!(view.role_count() <= LIMITS.roles + LIMITS.roles / 4, "{}", view.role_count());
}

#[test]
fn a_writer_of_etcd_cannot_make_a_node_keep_more_than_its_limits() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    put_all(&etcd, &flood());
    let start = |name: &str, role| {
        TestNode::start(limited(lasting_session(&settings(&etcd), name)), &[("r1", role)])
    };
    // One of them is the reporter, which reads the roles of all groups.
    let (a, b) = (start("a", Primary), start("b", Backup));
    for node in [&a, &b] {
        let own = node.name.to_string();
        node.wait("its own records, and the surplus", |view| {
            is_live(view, &own) && role_of(view, "r1", &own).is_some() && surplus(view) > 0
        });
        assert_within_limits(&node.handle.view());
        let events = || node.side.events().contains(&ClusterEvent::SurplusChanged);
        wait_for("the event", || events().then_some(()));
    }
    // More of it arrives by watches. The node publishes nevertheless.
    let more = flood().into_iter().map(|(key, value)| (key.replacen("/0", "/00", 1), value));
    let more: Vec<_> = more.filter(|(key, _)| !key.starts_with("finding")).collect();
    put_all(&etcd, &more);
    a.set("r1", Backup);
    a.wait("its own change", |view| role_of(view, "r1", "a") == Some(Backup));
    wait_for("the change in etcd", || {
        let entries = etcd.entries(&format!("{PREFIX}role/router:r1/a/r1"));
        entries.first().filter(|(_, value)| value.contains("backup")).map(|_| ())
    });
    for node in [&a, &b] {
        assert_within_limits(&node.handle.view());
    }
    // Deleted records make room.
    for range in [
        "finding/0",
        "closed/0",
        "member/0",
        "role/router:r1/0",
        "role/router:0",
        "role/router:1",
        "role/router:2",
        "colour/",
        "role/router:00",
    ] {
        etcd.ctl(&["del", "--prefix", &format!("{PREFIX}{range}")]);
    }
    for node in [&a, &b] {
        let show = || format!("{:#?}", node.handle.view().ignored());
        wait_showing("a complete view", show, || {
            let view = node.handle.view();
            let is_complete = ["a", "b"]
                .iter()
                .all(|name| is_live(&view, name) && role_of(&view, "r1", name).is_some());
            (surplus(&view) == 0 && is_complete).then_some(())
        });
    }
}

#[test]
fn twelve_thousand_findings_leave_a_node_with_ten_thousand_and_a_command_too() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let all = (0..12_000).map(|number| {
        let id = format!("f-{number:05}");
        (format!("finding/{id}"), finding(&id, "x"))
    });
    put_all(&etcd, &all.collect::<Vec<_>>());
    // Another process is the reporter, so that no node closes them.
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    let other = r#"{"schema":1,"node":"x","process":"x","at":"2026-01-01T00:00:00Z"}"#;
    etcd.ctl(&["put", &format!("{PREFIX}reporter"), other, "--lease", lease]);
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let is_limited =
        |view: &ClusterView| view.findings().count() == 10_000 && surplus(view) == 2_000;
    a.wait("the limit", is_limited);
    let reader = EtcdReader::open(settings(&etcd), "test".parse().unwrap()).unwrap();
    assert!(is_limited(&reader.view()), "{:?}", reader.view().ignored());
    drop(reader);
    // A long text is refused before its number counts.
    let long = (0..3_000).map(|number| {
        let id = format!("a-{number:05}");
        (format!("finding/{id}"), finding(&id, &"x".repeat(15_000)))
    });
    put_all(&etcd, &long.collect::<Vec<_>>());
    let reader = EtcdReader::open(settings(&etcd), "test".parse().unwrap()).unwrap();
    let bytes: usize = reader.view().findings().map(|finding| finding.text.len()).sum();
    assert!(bytes < 24 << 20, "{bytes}");
    assert!(surplus(&reader.view()) > 10_000, "{:?}", reader.view().ignored());
    etcd.ctl(&["del", "--prefix", &format!("{PREFIX}finding/")]);
    // The node reads 45 MB first.
    wait_within(Duration::from_mins(5), "the end of the surplus", || {
        let view = a.handle.view();
        (view.findings().count() == 0 && surplus(&view) == 0).then_some(())
    });
}
