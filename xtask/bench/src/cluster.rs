// SPDX-License-Identifier: Apache-2.0
//! Measures the cluster view with a real etcd: from a role change to the view of another node, the cost for etcd, the
//! memory of a node, and 100 simulated nodes at once.

mod etcd_metrics;
mod many_groups;
mod plain;
mod real_node;
mod scale;
mod simulated;

use std::time::{Duration, Instant};

use vipwatch_testkit::{Etcd, Lab, pause};

use self::etcd_metrics::EtcdMetrics;
use self::simulated::{BenchNode, router};
use crate::args::BenchArgs;
use crate::measure::{Samples, count};
use crate::report::{BenchReport, BenchTarget, Row};

/// The maximum p99 from 1,000 changes at once to the view of another node, in ms.
const MAX_P99_MS: f64 = 250.0;

/// The maximum growth of a node by the cluster view, with 1,000 instances, in KiB.
const MAX_MEMORY_KIB: f64 = 2048.0;

/// The time between two changes of an idle cluster. A view reports changes that follow each other faster together, every
/// 50 ms; the further changes of the same failover, for example its cause, are to be over.
const BETWEEN_CHANGES: Duration = Duration::from_millis(250);

/// Runs all measurements.
pub fn run(args: &BenchArgs) -> BenchReport {
    let mut rows = Vec::new();
    one_by_one(args.pick(20, 200), &mut rows);
    for count in args.pick(vec![200], vec![1_000, 10_000]) {
        at_once(count, &mut rows);
    }
    real_node::measure(&args.subject, args.pick(50, 1_000), &mut rows);
    many_groups::one_vrid(&args.subject, args.pick(50, 1_000), &mut rows);
    many_groups::many_findings(&args.subject, args.pick(100, 5_000), &mut rows);
    let (nodes, instances) = args.pick((10, 20), (100, 100));
    let note = scale::Scale { nodes, instances }.measure(&mut rows);
    let mut report = BenchReport::new("cluster", args, &["plain client of etcd"], rows);
    report.notes.push(note);
    report
}

/// One change after the other, between two nodes.
fn one_by_one(changes: usize, rows: &mut Vec<Row>) {
    let instances = 100;
    eprintln!("bench: {changes} changes, one after the other");
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let (publisher, watcher) = two_nodes(&etcd, instances);
    let before = EtcdMetrics::read(&etcd.endpoint(0));
    let counters = publisher.counters();
    let mut times = Vec::new();
    for number in 0..changes {
        pause(BETWEEN_CHANGES);
        // Each role changes twice in succession, so that its group is without a primary for a short time only.
        let routers = [router(number / 2 % instances)];
        let changes = publisher.prepare(routers.clone());
        let began = Instant::now();
        publisher.publish(routers);
        times.extend(watcher.arrivals(began, vec![changes]));
    }
    let ours = Samples::of(times);
    let plain = Samples::of(plain::one_by_one(&etcd.endpoint(0), changes));
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let row = Row::new(format!("idle: role change to the other view, {name}"), "ms");
        rows.push(row.ours(ours.quantile(share)).peer(plain.quantile(share)));
    }
    let used = EtcdMetrics::read(&etcd.endpoint(0)).since(&before);
    let after = publisher.counters();
    let keys = growth(counters.writes, after.writes);
    let bytes = growth(counters.written_bytes, after.written_bytes);
    for (metric, unit, value) in [
        ("keys written for each change, with heartbeats", "keys", keys),
        ("bytes of values for each change, with heartbeats", "bytes", bytes),
        ("bytes that etcd sends for each change", "bytes", used.sent_bytes),
    ] {
        rows.push(Row::new(format!("idle: {metric}"), unit).ours(value / count(changes)));
    }
}

/// The growth of a counter.
fn growth(before: u64, after: u64) -> f64 {
    f64::from(u32::try_from(after - before).unwrap_or(u32::MAX))
}

/// Many changes at once, between two nodes.
fn at_once(count: usize, rows: &mut Vec<Row>) {
    eprintln!("bench: {count} changes at once");
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let (publisher, watcher) = two_nodes(&etcd, count);
    let before = publisher.counters().transactions;
    let changes = publisher.prepare((0..count).map(router));
    let began = Instant::now();
    publisher.publish((0..count).map(router));
    let ours = Samples::of(watcher.arrivals(began, vec![changes]));
    let transactions = growth(before, publisher.counters().transactions);
    let plain = Samples::of(plain::at_once(&etcd.endpoint(0), count));
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("last", 1.0)] {
        let row = Row::new(format!("{count} at once: change to the other view, {name}"), "ms");
        let has_target = count == 1_000 && name == "p99";
        let target = has_target.then_some(BenchTarget::AtMost(MAX_P99_MS));
        rows.push(row.ours(ours.quantile(share)).peer(plain.quantile(share)).target(target));
    }
    let row = Row::new(format!("{count} at once: transactions"), "count");
    rows.push(row.ours(transactions));
}

/// Two nodes that have the same instances, and know each other. The first one is primary of all.
fn two_nodes(etcd: &Etcd, instances: usize) -> (BenchNode, BenchNode) {
    let routers = || (0..instances).map(router);
    let publisher = BenchNode::start(etcd, "publisher", routers(), |_| true);
    let watcher = BenchNode::start(etcd, "watcher", routers(), |_| false);
    for node in [&publisher, &watcher] {
        node.wait_for_roles(2 * instances, Duration::from_mins(2));
    }
    (publisher, watcher)
}
