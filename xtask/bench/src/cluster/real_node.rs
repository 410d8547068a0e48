// SPDX-License-Identifier: Apache-2.0
//! A real `vipwatch node` with one namespace for each router: from the kernel to the view of another node, and its memory
//! with and without `[cluster]`.

use std::path::Path;
use std::time::{Duration, Instant};

use vipwatch_testkit::{Etcd, Lab, NodeFixture, NodeProcess, Routers, pause};

use super::MAX_MEMORY_KIB;
use super::simulated::{BenchNode, Changes};
use crate::measure::{Samples, memory};
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
    let without = start(subject, &lab, None);
    pause(REST);
    let alone = memory(&[without.pid()]);
    drop(without);
    eprintln!("bench: a node with {count} instances in the cluster");
    let etcd = Etcd::single(lab.path());
    let node = start(subject, &lab, Some(&etcd));
    let ids = routers.each.iter().map(|router| router.id.parse().expect("a valid id"));
    let watcher = BenchNode::start(&etcd, "watcher", ids);
    watcher.wait_for_roles(2 * count, START_TIMEOUT);
    pause(REST);
    let clustered = memory(&[node.pid()]);
    let mut row = Row::new(format!("{count} instances: growth of the node by [cluster]"), "KiB");
    row.ours = Some(clustered.rss - alone.rss);
    if count == 1_000 {
        row.target = Some(BenchTarget::AtMost(MAX_MEMORY_KIB));
    }
    rows.push(row);
    let mut row = Row::new(format!("{count} instances: resident memory with [cluster]"), "KiB");
    row.ours = Some(clustered.rss);
    rows.push(row);
    let mut times = Vec::new();
    for router in routers.each.iter().take(count.min(200)) {
        let changes = Changes::to_primary(NODE, [router.id.as_str()]);
        let began = Instant::now();
        router.take();
        times.extend(watcher.arrivals(began, vec![changes]));
    }
    push(rows, "one address added to the view of another node", Samples::of(times).as_ref());
    let rest = routers.each.iter().skip(count.min(200));
    let rest: Vec<_> = rest.collect();
    if !rest.is_empty() {
        let changes = Changes::to_primary(NODE, rest.iter().map(|router| router.id.as_str()));
        let began = Instant::now();
        for router in &rest {
            router.take();
        }
        let name = format!("{} addresses added at once, to the view of another node", rest.len());
        push(rows, &name, Samples::of(watcher.arrivals(began, vec![changes])).as_ref());
    }
}

fn push(rows: &mut Vec<Row>, what: &str, samples: Option<&Samples>) {
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let mut row = Row::new(format!("real node: {what}, {name}"), "ms");
        row.ours = samples.map(|samples| samples.quantile(share));
        rows.push(row);
    }
}

/// Starts the node, with `[cluster]` if there is an etcd.
fn start(subject: &Path, lab: &Lab, etcd: Option<&Etcd>) -> NodeProcess {
    let fixture = NodeFixture::new(subject, lab.path());
    let cluster = etcd.map_or_else(String::new, |etcd| {
        let endpoint = etcd.endpoint(0);
        format!(
            "[node]\nname = \"{NODE}\"\n[cluster]\nendpoints = [\"{endpoint}\"]\ndomain = \"bench\"\n"
        )
    });
    fixture.configure(&cluster);
    fixture.start_within(START_TIMEOUT)
}
