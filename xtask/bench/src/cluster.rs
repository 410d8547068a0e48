// SPDX-License-Identifier: Apache-2.0
//! Measures the cluster view with a real etcd: from a role change to the view of another node, the cost for etcd, the
//! memory of a node, and 100 simulated nodes at once.

mod etcd_metrics;
mod plain;
mod real_node;
mod scale;
mod simulated;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use vipwatch_testkit::{Etcd, Lab, pause};

use self::etcd_metrics::EtcdMetrics;
use self::simulated::{BenchNode, router};
use crate::measure::{Samples, machine};
use crate::report::{BenchReport, BenchTarget, Row};

/// The maximum p99 from 1,000 changes at once to the view of another node, in ms.
const MAX_P99_MS: f64 = 250.0;

/// The maximum growth of a node by the cluster view, with 1,000 instances, in KiB.
const MAX_MEMORY_KIB: f64 = 2048.0;

/// The time between two changes of an idle cluster. A view reports changes that follow each other faster together, every
/// 50 ms; the further changes of the same failover, for example its cause, are to be over.
const BETWEEN_CHANGES: Duration = Duration::from_millis(250);

/// The measured program and the number of repetitions.
pub struct ClusterBench {
    pub subject: PathBuf,
    pub is_quick: bool,
}

impl ClusterBench {
    /// Runs all measurements.
    pub fn run(&self) -> BenchReport {
        let mut rows = Vec::new();
        let many = if self.is_quick { vec![200] } else { vec![1_000, 10_000] };
        self.one_by_one(&mut rows);
        for count in many {
            at_once(count, &mut rows);
        }
        let instances = if self.is_quick { 50 } else { 1_000 };
        real_node::measure(&self.subject, instances, &mut rows);
        let scale = if self.is_quick {
            scale::Scale { nodes: 10, instances: 20 }
        } else {
            scale::Scale { nodes: 100, instances: 100 }
        };
        let notes = scale.measure(&mut rows);
        let title = if self.is_quick {
            "bench cluster (quick: no figures to quote)"
        } else {
            "bench cluster"
        };
        let peers = &["plain client of etcd"];
        BenchReport { title: title.to_owned(), machine: machine(), peers, rows, notes }
    }

    /// One change after the other, between two nodes.
    fn one_by_one(&self, rows: &mut Vec<Row>) {
        let (instances, count) = (100, if self.is_quick { 20 } else { 200 });
        eprintln!("bench: {count} changes, one after the other");
        let lab = Lab::new();
        let etcd = Etcd::single(lab.path());
        let (publisher, watcher) = two_nodes(&etcd, instances);
        let before = EtcdMetrics::read(&etcd.endpoint(0));
        let written = publisher.written();
        let mut times = Vec::new();
        for number in 0..count {
            pause(BETWEEN_CHANGES);
            // Each role changes twice in succession, so that its group is without a primary for a short time only.
            let routers = [router(number / 2 % instances)];
            let changes = publisher.prepare(routers.clone());
            let began = Instant::now();
            publisher.publish(routers);
            times.extend(watcher.arrivals(began, vec![changes]));
        }
        let ours = Samples::of(times);
        let plain = Samples::of(plain::one_by_one(&etcd.endpoint(0), count));
        let pairs = [("p50", 0.5), ("p99", 0.99)];
        for (name, share) in pairs {
            let mut row = Row::new(format!("idle: role change to the other view, {name}"), "ms");
            row.ours = ours.as_ref().map(|samples| samples.quantile(share));
            row.set_peer(0, plain.as_ref().map(|samples| samples.quantile(share)));
            rows.push(row);
        }
        let used = EtcdMetrics::read(&etcd.endpoint(0)).since(&before);
        let written = publisher.written().since(written);
        let changes = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let mut push = |metric: &str, unit, value: f64| {
            let mut row = Row::new(metric, unit);
            row.ours = Some(value / changes);
            rows.push(row);
        };
        push("idle: keys written for each change, with heartbeats", "keys", written.keys);
        push("idle: bytes of values for each change, with heartbeats", "bytes", written.bytes);
        push("idle: bytes that etcd sends for each change", "bytes", used.sent_bytes);
    }
}

/// Many changes at once, between two nodes.
fn at_once(count: usize, rows: &mut Vec<Row>) {
    eprintln!("bench: {count} changes at once");
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let (publisher, watcher) = two_nodes(&etcd, count);
    let before = publisher.written();
    let changes = publisher.prepare((0..count).map(router));
    let began = Instant::now();
    publisher.publish((0..count).map(router));
    let times = watcher.arrivals(began, vec![changes]);
    let written = publisher.written().since(before);
    let ours = Samples::of(times);
    let plain = Samples::of(plain::at_once(&etcd.endpoint(0), count));
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("last", 1.0)] {
        let mut row = Row::new(format!("{count} at once: change to the other view, {name}"), "ms");
        row.ours = ours.as_ref().map(|samples| samples.quantile(share));
        row.set_peer(0, plain.as_ref().map(|samples| samples.quantile(share)));
        if count == 1_000 && name == "p99" {
            row.target = Some(BenchTarget::AtMost(MAX_P99_MS));
        }
        rows.push(row);
    }
    let mut row = Row::new(format!("{count} at once: transactions"), "count");
    row.ours = Some(written.transactions);
    rows.push(row);
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
