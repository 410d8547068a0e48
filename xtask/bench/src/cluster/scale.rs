// SPDX-License-Identifier: Apache-2.0
//! Many nodes at once on one etcd: each has its own connection, leases and watches, and follows its own groups.

use std::time::{Duration, Instant};

use vipwatch_core::InstanceId;
use vipwatch_testkit::{Etcd, Lab, pause};

use super::etcd_metrics::EtcdMetrics;
use super::simulated::{BenchNode, BenchNodeSettings, Changes, InstanceKind, router};
use crate::measure::{Samples, count, ms, thread_cpu};
use crate::report::Row;

/// Maximum time until all nodes know each other.
const START_TIMEOUT: Duration = Duration::from_mins(5);

/// The time in which the cost of an idle cluster is measured.
const IDLE_SPAN: Duration = Duration::from_secs(20);

/// The time between two comparisons that are measured.
const BETWEEN_COMPARISONS: Duration = Duration::from_secs(2);

/// What an idle cluster costs in [`IDLE_SPAN`].
struct IdleCost {
    sent_bytes: f64,
    /// The CPU time of all simulated nodes, and of etcd.
    node_ms: f64,
    etcd_ms: f64,
}

/// The CPU time of this process, in ms.
fn own_cpu() -> f64 {
    thread_cpu(i32::try_from(std::process::id()).expect("a process id"))
}

/// The number of nodes, and of the instances of each. Every instance is on two nodes.
pub struct Scale {
    pub nodes: usize,
    pub instances: usize,
}

impl Scale {
    /// Starts the nodes, lets all instances change their role at once, and adds the figures. Returns a note on them.
    pub fn measure(&self, rows: &mut Vec<Row>) -> String {
        let Self { nodes, instances } = self;
        let total = nodes * instances;
        eprintln!("bench: {nodes} nodes with {instances} instances each");
        let lab = Lab::new();
        let etcd = Etcd::single(lab.path());
        let endpoint = etcd.endpoint(0);
        let began = Instant::now();
        let all = self.start(&etcd);
        let started = ms(began.elapsed());
        let at_rest = EtcdMetrics::read(&endpoint);
        pause(IDLE_SPAN);
        let idle = EtcdMetrics::read(&endpoint).since(&at_rest);
        eprintln!("bench: {total} changes at once on {nodes} nodes");
        let before = EtcdMetrics::read(&endpoint);
        let times = self.fail_over(&all);
        let used = EtcdMetrics::read(&endpoint).since(&before);
        let seconds = IDLE_SPAN.as_secs_f64();
        let mut push = |what: &str, unit, value: Option<f64>| {
            let name = format!("{nodes} nodes, {total} instances: {what}");
            rows.push(Row::new(name, unit).ours(value));
        };
        push("start of all until all know each other", "ms", Some(started));
        push("size of the database at the start", "KiB", Some(at_rest.database_bytes / 1024.0));
        push("idle: proposals for each second", "1/s", Some(idle.proposals / seconds));
        let sent = idle.sent_bytes / 1024.0 / seconds;
        push("idle: sent by etcd for each second", "KiB/s", Some(sent));
        let samples = Samples::of(times);
        push("all change at once, p50", "ms", samples.p50());
        push("all change at once, p99", "ms", samples.p99());
        push("all change at once, slowest view", "ms", samples.max());
        push("all change at once: proposals", "count", Some(used.proposals));
        let sent = used.sent_bytes / count(total);
        push("all change at once: sent by etcd for each change", "bytes", Some(sent));
        push("all change at once: fsync of etcd, p99", "ms", used.fsync_p99_ms());
        push("size of the database after it", "KiB", Some(used.database_bytes / 1024.0));
        eprintln!("bench: comparisons with {total} instances");
        let [without, with] =
            [None, Some(BETWEEN_COMPARISONS)].map(|compare| self.idle(&etcd, compare));
        let comparisons = IDLE_SPAN.as_secs_f64() / BETWEEN_COMPARISONS.as_secs_f64();
        let each = |of: fn(&IdleCost) -> f64| Some((of(&with) - of(&without)) / comparisons);
        let sent = each(|cost| cost.sent_bytes / 1024.0);
        push("one comparison of a node that follows all: sent by etcd", "KiB", sent);
        push(
            "one comparison of a node that follows all: CPU of the node",
            "ms",
            each(|cost| cost.node_ms),
        );
        push(
            "one comparison of a node that follows all: CPU of etcd",
            "ms",
            each(|cost| cost.etcd_ms),
        );
        format!(
            "The {nodes} simulated nodes run in one process, which shares the processors with etcd: the times of \"all \
             change at once\" contain the work of all nodes on this machine. A fsync is the upper limit of a bucket of \
             etcd's own histogram."
        )
    }

    /// What the idle cluster and a further node cost, which is a backup of each instance and so follows all of them.
    fn idle(&self, etcd: &Etcd, compare: Option<Duration>) -> IdleCost {
        let (name, kind) = ("follower", InstanceKind::Router);
        let settings = BenchNodeSettings { etcd, name, kind, notifies: true, compare };
        let groups = self.nodes * self.instances / 2;
        let node = BenchNode::start_with(&settings, (0..groups).map(router), |_| false);
        node.wait_for_roles(3 * groups, START_TIMEOUT);
        pause(IDLE_SPAN);
        let (before, cpu) = (EtcdMetrics::read(&etcd.endpoint(0)), own_cpu());
        pause(IDLE_SPAN);
        let (node_ms, used) =
            (own_cpu() - cpu, EtcdMetrics::read(&etcd.endpoint(0)).since(&before));
        node.stop();
        IdleCost { sent_bytes: used.sent_bytes, node_ms, etcd_ms: used.cpu * 1000.0 }
    }

    /// The instances of a node, with those that it is primary of first. Neighbours share them.
    fn routers(&self, node: usize) -> Vec<InstanceId> {
        let half = self.instances / 2;
        let count = self.nodes * half;
        (0..2 * half).map(|index| router((node * half + index) % count)).collect()
    }

    fn start(&self, etcd: &Etcd) -> Vec<BenchNode> {
        let start = |node| {
            BenchNode::start(etcd, &format!("node-{node:03}"), self.routers(node), |id| {
                self.routers(node)[..self.instances / 2].contains(id)
            })
        };
        let all: Vec<BenchNode> = (0..self.nodes).map(start).collect();
        for node in &all {
            // Its own roles, and those of its neighbours for the same instances.
            node.wait_for_roles(2 * self.instances, START_TIMEOUT);
        }
        all
    }

    /// Changes all roles, primaries to backups and the reverse, and waits until the neighbours know them.
    fn fail_over(&self, all: &[BenchNode]) -> Vec<f64> {
        let mut expected: Vec<Vec<Changes>> = all.iter().map(|_| Vec::new()).collect();
        for (number, node) in all.iter().enumerate() {
            // The first half of a node's instances is also on the node before, the second half on the node after.
            let (first, second) = node.prepare(self.routers(number)).halves();
            expected[(number + self.nodes - 1) % self.nodes].push(first);
            expected[(number + 1) % self.nodes].push(second);
        }
        let began = Instant::now();
        std::thread::scope(|scope| {
            let views = all.iter().zip(expected);
            let waiting: Vec<_> = views
                .map(|(node, changes)| scope.spawn(move || node.arrivals(began, changes)))
                .collect();
            for (number, node) in all.iter().enumerate() {
                node.publish(self.routers(number));
            }
            let times = waiting.into_iter().map(|thread| thread.join().expect("a view"));
            times.flatten().collect()
        })
    }
}
