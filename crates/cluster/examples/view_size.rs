// SPDX-License-Identifier: Apache-2.0
//! Measures the memory of a view, and the time of an evaluation.
//!
//! ```console
//! $ cargo run --release -p vipwatch-cluster --example view_size -- 5000
//! ```

#![expect(clippy::print_stdout, reason = "a program for developers that prints its measurements")]

use std::time::{Duration, Instant};

use vipwatch_api::{RoleKind, Timestamp};
use vipwatch_cluster::findings::{EvaluationTime, Evaluator, EvaluatorSettings};
use vipwatch_cluster::key::{Bucket, ClusterKey, ClusterName, KeySpace, RoleKey};
use vipwatch_cluster::record::{
    FORMAT, MemberRecord, MemberState, NodeRecord, ReceivedAdverts, RecentTransition, RoleRecord,
    encode,
};
use vipwatch_cluster::view::{ClusterView, StoredValue, ViewChange};
use vipwatch_core::Moment;

const NODES: [&str; 3] =
    ["network-1.example.net", "network-2.example.net", "network-3.example.net"];

fn main() {
    let groups = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5000);
    let recent = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(4);
    let mut lab = Lab { view: ClusterView::new(KeySpace::new(&name("prod"))), revision: 0 };
    for node in NODES {
        lab.start(node);
    }
    let before = anonymous_memory();
    for number in 0..groups {
        for node in 0..NODES.len() {
            lab.publish(number, node, node == number % 3, recent);
        }
    }
    let bytes = anonymous_memory().saturating_sub(before);
    let records = groups * NODES.len();
    println!("{groups} groups, {records} records with {recent} transitions each");
    println!("view: {} KiB, {} bytes for each record", bytes / 1024, bytes / records.max(1));
    measure_evaluator(&mut lab, groups, recent);
}

fn measure_evaluator(lab: &mut Lab, groups: usize, recent: usize) {
    let before = anonymous_memory();
    let mut evaluator = Evaluator::new(EvaluatorSettings::default(), &name(NODES[0]), None, []);
    let mut evaluate = |lab: &Lab, second| {
        let begin = Instant::now();
        let now = Moment::new(Duration::from_secs(second));
        let changes = evaluator.evaluate(&lab.view, EvaluationTime { now, at: time(0) });
        println!("  evaluation: {:?}, {} changes", begin.elapsed(), changes.len());
    };
    println!("first evaluation:");
    evaluate(lab, 100);
    println!("after a heartbeat:");
    lab.heartbeat(NODES[1]);
    evaluate(lab, 101);
    println!("after one role:");
    lab.publish(groups / 2, 0, true, recent);
    evaluate(lab, 102);
    println!("after the loss of a node, and later:");
    lab.delete(&ClusterKey::Node(name(NODES[2])));
    evaluate(lab, 200);
    evaluate(lab, 300);
    println!("evaluator: {} KiB", anonymous_memory().saturating_sub(before) / 1024);
}

struct Lab {
    view: ClusterView,
    revision: i64,
}

impl Lab {
    fn start(&mut self, node: &str) {
        self.heartbeat(node);
        let member = MemberRecord {
            schema: FORMAT,
            node: node.to_owned(),
            epoch: epoch(node),
            state: MemberState::Running,
            lease: 1,
            at: time(0),
        };
        self.put(&ClusterKey::Member(name(node)), encode(&member));
    }

    fn heartbeat(&mut self, node: &str) {
        let record = NodeRecord {
            schema: FORMAT,
            node: node.to_owned(),
            epoch: epoch(node),
            process: "5f3a9c21".to_owned(),
            version: "0.1.0".to_owned(),
            heartbeat: 1,
            seen: self.revision,
            seq: 1,
            instances: 1,
            at: time(0),
            started: time(0),
            heartbeat_ms: 5000,
            lease_s: 15,
            notifies: true,
        };
        self.put(&ClusterKey::Node(name(node)), encode(&record));
    }

    fn publish(&mut self, number: usize, node: usize, is_primary: bool, recent: usize) {
        let record = router(number, node, is_primary, recent);
        let id: vipwatch_core::InstanceId = record.instance.parse().expect("an id");
        let (bucket, node) = (Bucket::Router(id.clone()), name(NODES[node]));
        self.put(&ClusterKey::Role(RoleKey { bucket, node, instance: id }), encode(&record));
    }

    fn put(&mut self, key: &ClusterKey, value: Vec<u8>) {
        self.revision += 1;
        let (mod_revision, key) = (self.revision, self.view.keys().text(key));
        let (create_revision, lease) = (mod_revision, 1);
        let value = StoredValue { key, value, mod_revision, create_revision, lease };
        self.view.apply(ViewChange::Put(value));
    }

    fn delete(&mut self, key: &ClusterKey) {
        self.revision += 1;
        let (mod_revision, key) = (self.revision, self.view.keys().text(key));
        self.view.apply(ViewChange::Deleted { key, mod_revision });
    }
}

/// A Neutron router as a node publishes it.
fn router(number: usize, node: usize, is_primary: bool, recent: usize) -> RoleRecord {
    let id = format!("{number:08x}-7a8f-4a52-9d3e-1c2b3a4d5e6f");
    let role = if is_primary { RoleKind::Primary } else { RoleKind::Backup };
    let seq = i64::try_from(number * 7 + node).unwrap_or_default();
    let transition = |back: usize| {
        let back = i64::try_from(back).unwrap_or_default();
        let (cause, from) = (Some("peer-silent".to_owned()), Some(RoleKind::Fault));
        RecentTransition { seq: seq - 3 * back, at: time(-86_400 * back), from, to: role, cause }
    };
    RoleRecord {
        schema: FORMAT,
        node: NODES[node].to_owned(),
        instance: id.clone(),
        name: "VR_1".to_owned(),
        epoch: epoch(NODES[node]),
        seq,
        role,
        reason: None,
        since: Some(time(0)),
        cause: Some("peer-silent".to_owned()),
        origin: "neutron".to_owned(),
        netns: Some(format!("qrouter-{id}")),
        interface: format!("ha-{number:08x}-{node:02x}"),
        vrid: Some(1),
        priority: Some(50),
        advert_ms: Some(2000),
        vrrp_version: Some(2),
        addresses: vec!["169.254.0.1/24".parse().expect("an address")],
        adverts: ReceivedAdverts::Other,
        keepalived: Some(true),
        source: None,
        sync_group: None,
        findings: Vec::new(),
        recent: (0..recent).rev().map(transition).collect(),
    }
}

fn epoch(node: &str) -> String {
    format!("{node:.9}5f3a9c21")
}

fn name(text: &str) -> ClusterName {
    text.parse().expect("a name")
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_123 + second * 1000).expect("a time")
}

/// The anonymous memory of this process in bytes.
fn anonymous_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok());
    kib.map_or(0, |kib: usize| kib * 1024)
}
