// SPDX-License-Identifier: Apache-2.0
//! A real `vipwatch node` with one namespace for each router: from the kernel to the view of another node, and its memory
//! with and without `[cluster]`.

use std::path::Path;
use std::time::{Duration, Instant};

use vipwatch_core::InstanceId;
use vipwatch_testkit::{Etcd, HaRouter, Lab, NodeFixture, NodeProcess, Routers, pause};

use super::simulated::{BenchNode, Changes, DOMAIN};
use super::{BETWEEN_CHANGES, MAX_MEMORY_KIB};
use crate::measure::{MemoryUse, Samples, memory};
use crate::node::START_TIMEOUT;
use crate::report::{BenchTarget, Row};

/// The name of the real node.
const NODE: &str = "real";

/// Time for work that a node defers after its start.
const REST: Duration = Duration::from_secs(15);

/// Measures a node that follows `count` routers.
pub fn measure(subject: &Path, count: usize, rows: &mut Vec<Row>) {
    eprintln!("bench: making {count} namespaces");
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), "bc", count, 0);
    let ids = || routers.each.iter().map(id_of);
    // The first process writes the first state of each instance to its history, and keeps pages of it in memory. All measured
    // processes find the history as it is.
    drop(start(subject, &lab, None));
    let without = start(subject, &lab, None);
    pause(REST);
    let alone = memory(&[without.pid()]);
    drop(without);

    eprintln!("bench: a node with {count} instances is the reporter of the cluster");
    let etcd = Etcd::single(lab.path());
    let node = start(subject, &lab, Some(&etcd));
    let watcher = BenchNode::start(&etcd, "watcher", ids(), |_| true);
    watcher.wait_for_roles(2 * count, START_TIMEOUT);
    pause(REST);
    let reporter = memory(&[node.pid()]);
    drop(node);

    eprintln!("bench: a node with {count} instances in the cluster");
    // The other node becomes the reporter when the lease of the first process has ended.
    pause(Duration::from_secs(20));
    let node = start(subject, &lab, Some(&etcd));
    pause(REST);
    let member = memory(&[node.pid()]);
    push_memory(rows, count, &alone, &[("a node", member), ("the reporter", reporter)]);
    measure_changes(&routers, &watcher, rows);
}

fn id_of(router: &HaRouter) -> InstanceId {
    router.id.parse().expect("a valid id")
}

fn push_memory(
    rows: &mut Vec<Row>,
    count: usize,
    alone: &MemoryUse,
    clustered: &[(&str, MemoryUse)],
) {
    for (index, (who, used)) in clustered.iter().enumerate() {
        let name = |what: &str| format!("{count} instances: growth of {who} by [cluster], {what}");
        let has_target = count == 1_000 && index == 0;
        let target = has_target.then_some(BenchTarget::AtMost(MAX_MEMORY_KIB));
        let total = Row::new(format!("{count} instances: resident memory of {who}"), "KiB");
        let heap = used.anonymous - alone.anonymous;
        rows.extend([
            Row::new(name("resident"), "KiB").ours(used.rss - alone.rss).target(target),
            Row::new(name("heap and stacks"), "KiB").ours(heap),
            total.ours(used.rss),
        ]);
    }
}

/// From an address that the kernel adds to the view of another node, which was primary until then.
fn measure_changes(routers: &Routers, watcher: &BenchNode, rows: &mut Vec<Row>) {
    let (one_by_one, at_once) = routers.each.split_at(routers.each.len().min(200));
    let mut times = Vec::new();
    for router in one_by_one {
        watcher.change(&[id_of(router)]);
        pause(BETWEEN_CHANGES);
        let changes = Changes::to_primary(NODE, [router.id.as_str()]);
        let began = Instant::now();
        router.take();
        times.extend(watcher.arrivals(began, vec![changes]));
    }
    push(rows, "one address added to the view of another node", &Samples::of(times));
    if !at_once.is_empty() {
        let changes = Changes::to_primary(NODE, at_once.iter().map(|router| router.id.as_str()));
        watcher.change(&at_once.iter().map(id_of).collect::<Vec<_>>());
        pause(Duration::from_secs(2));
        let began = Instant::now();
        for router in at_once {
            router.take();
        }
        let name =
            format!("{} addresses added at once, to the view of another node", at_once.len());
        push(rows, &name, &Samples::of(watcher.arrivals(began, vec![changes])));
    }
}

fn push(rows: &mut Vec<Row>, what: &str, samples: &Samples) {
    for (name, value) in [("p50", samples.p50()), ("p99", samples.p99())] {
        rows.push(Row::new(format!("real node: {what}, {name}"), "ms").ours(value));
    }
}

/// Starts the node, with `[cluster]` if there is an etcd.
fn start(subject: &Path, lab: &Lab, etcd: Option<&Etcd>) -> NodeProcess {
    let fixture = NodeFixture::new(subject, lab.path());
    let cluster = etcd.map_or_else(String::new, |etcd| {
        let endpoint = etcd.endpoint(0);
        format!(
            "[node]\nname = \"{NODE}\"\n[cluster]\nendpoints = [\"{endpoint}\"]\ndomain = \"{DOMAIN}\"\n"
        )
    });
    fixture.configure(&cluster);
    fixture.start_within(START_TIMEOUT)
}
