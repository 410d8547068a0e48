// SPDX-License-Identifier: Apache-2.0
//! A real node that reports the findings of many groups of simulated nodes: a failover of all groups of one VRID, a lost
//! node, and thousands of open findings.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use vipwatch_api::RoleKind;
use vipwatch_core::InstanceId;
use vipwatch_testkit::{Etcd, Lab, NodeFixture, NodeProcess, pause};

use super::simulated::{BenchNode, BenchNodeSettings, DOMAIN, InstanceKind};
use crate::measure::{Samples, count, ms};
use crate::report::{BenchTarget, Row};
use crate::web::requests::{ADDRESS, body, request_cost};

/// The maximum turn of the main loop, and the maximum wait for the view, in ms.
const MAX_WAIT_MS: f64 = 20.0;

/// The maximum time of an answer with all findings, in ms.
const MAX_ANSWER_MS: f64 = 100.0;

/// Maximum time until the reporter has opened all findings.
const REPORT_TIMEOUT: Duration = Duration::from_mins(5);

/// The time after the last event in which more messages could follow: longer than a lease and all settle times.
const QUIET: Duration = Duration::from_secs(30);

/// The reporter: a real node without instances.
struct Reporter {
    fixture: NodeFixture,
    node: NodeProcess,
}

impl Reporter {
    fn start(subject: &Path, lab: &Lab, etcd: &Etcd, target: &str) -> Self {
        let fixture = NodeFixture::new(subject, lab.path());
        let endpoint = etcd.endpoint(0);
        fixture.configure(&format!(
            "[node]\nname = \"reporter\"\n[web]\nlisten = \"{ADDRESS}\"\n[cluster]\nendpoints = [\"{endpoint}\"]\n\
             domain = \"{DOMAIN}\"\n{target}"
        ));
        let reporter = Self { node: fixture.start(), fixture };
        reporter.wait("the reporter", || {
            metric(&reporter.metrics(), "vipwatch_cluster_reporter ").is_some_and(|is| is > 0.5)
        });
        reporter
    }

    fn metrics(&self) -> String {
        body("/metrics").unwrap_or_else(|error| panic!("{error}; {}", self.fixture.log()))
    }

    /// The open findings.
    fn findings() -> Vec<Value> {
        let text = body("/v1/cluster/findings").expect("the findings of the cluster");
        let document: Value = serde_json::from_str(&text).expect("a document");
        let items = document["items"].as_array().expect("a list").iter();
        items.filter(|item| item["closed"].is_null()).cloned().collect()
    }

    #[track_caller]
    fn wait(&self, what: &str, is_there: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_there() {
            assert!(began.elapsed() < REPORT_TIMEOUT, "no {what}; {}", self.fixture.log());
            pause(Duration::from_millis(200));
        }
    }
}

/// The value of the metric whose line begins with this text.
fn metric(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The upper limits of the turns of the main loop in ms, and how many turns were at most so long.
fn turns(metrics: &str) -> Vec<(f64, f64)> {
    let prefix = "vipwatch_main_loop_turn_seconds_bucket{le=\"";
    let buckets = metrics.lines().filter_map(|line| line.strip_prefix(prefix)?.split_once("\"} "));
    let buckets = buckets.filter_map(|(limit, turns)| {
        let limit = limit.parse::<f64>().unwrap_or(f64::INFINITY);
        Some((limit * 1000.0, turns.parse().ok()?))
    });
    buckets.collect()
}

/// The upper limit of the longest turn between two readings in ms.
fn longest_turn(before: &[(f64, f64)], after: &[(f64, f64)]) -> Option<f64> {
    let grown = before.iter().zip(after).map(|(before, after)| (before.0, after.1 - before.1));
    let grown: Vec<(f64, f64)> = grown.collect();
    let all = grown.last()?.1;
    grown.iter().find(|(_, turns)| *turns >= all).map(|(limit, _)| *limit)
}

/// A server that accepts every notification, and counts them.
struct Target {
    url: String,
    messages: Arc<AtomicUsize>,
}

impl Target {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let messages = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&messages);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(&stream);
                let (mut line, mut length) = (String::new(), 0);
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    let lower = line.to_ascii_lowercase();
                    let value = lower.strip_prefix("content-length:");
                    length = value.and_then(|value| value.trim().parse().ok()).unwrap_or(length);
                    line.clear();
                }
                let mut body = vec![0; length];
                if reader.read_exact(&mut body).is_ok() {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let answer =
                        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    let _ = (&stream).write_all(answer);
                }
            }
        });
        Self { url, messages }
    }

    fn count(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }
}

/// A failover of all groups of one VRID, and the loss of the node that is primary of all.
pub fn one_vrid(subject: &Path, groups: usize, rows: &mut Vec<Row>) {
    eprintln!("bench: {groups} groups of one VRID");
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let target = Target::start();
    let webhook = format!(
        "[[notify]]\n[[notify.webhook]]\nname = \"ops\"\nurl = \"{}\"\non = [\"finding\"]\n",
        target.url
    );
    let reporter = Reporter::start(subject, &lab, &etcd, &webhook);
    let kind = InstanceKind::OneVrid;
    let ids: Vec<InstanceId> = (0..groups).map(|number| kind.id(number)).collect();
    let node = |name, is_primary: bool| {
        let settings =
            BenchNodeSettings { etcd: &etcd, name, kind, notifies: false, compare: None };
        BenchNode::start_with(&settings, ids.iter().cloned(), |_| is_primary)
    };
    let (first, second) = (node("first", true), node("second", false));
    for node in [&first, &second] {
        node.wait_for_roles(2 * groups, Duration::from_mins(2));
    }
    reporter.wait("view of all groups", || {
        let healthy = metric(&reporter.metrics(), "vipwatch_cluster_groups{state=\"one-primary\"}");
        healthy.is_some_and(|healthy| healthy >= count(groups))
    });

    let before = turns(&reporter.metrics());
    let mut last = 0.0;
    let waited = second.longest_view_wait(|| {
        let began = Instant::now();
        first.change(&ids);
        second.change(&ids);
        second.wait_for_role("first", RoleKind::Backup, groups);
        first.wait_for_role("second", RoleKind::Primary, groups);
        last = ms(began.elapsed());
    });
    pause(QUIET);
    let turn = longest_turn(&before, &turns(&reporter.metrics()));
    let mut push = |what: &str, unit, value: Option<f64>, limit: Option<f64>| {
        let row = Row::new(format!("{groups} groups of one VRID: {what}"), unit);
        rows.push(row.ours(value).target(limit.map(BenchTarget::AtMost)));
    };
    push("all fail over, last change in the other view", "ms", Some(last), None);
    push("longest wait for a view", "ms", Some(waited), Some(MAX_WAIT_MS));
    push("longest turn of the reporter's main loop, upper limit", "ms", turn, Some(MAX_WAIT_MS));
    let messages = count(target.count());
    push("messages of the failover", "count", Some(messages), Some(0.0));

    eprintln!("bench: a node with {groups} primaries is lost");
    drop(second);
    first.wait_until_lost("second");
    first.change(&ids);
    let is_part = |item: &Value| !item["part_of"].is_null();
    reporter.wait("finding for each group", || {
        Reporter::findings().iter().filter(|item| is_part(item)).count() >= groups
    });
    pause(QUIET);
    let messages = count(target.count()) - messages;
    push("messages to one target about a lost node", "count", Some(messages), Some(1.0));
    let _ = reporter.node.stop();
}

/// The time of an answer with many open findings.
pub fn many_findings(subject: &Path, findings: usize, rows: &mut Vec<Row>) {
    eprintln!("bench: {findings} open findings");
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let reporter = Reporter::start(subject, &lab, &etcd, "");
    let kind = InstanceKind::Router;
    let ids: Vec<InstanceId> = (0..findings).map(|number| kind.id(number)).collect();
    let node = |name| {
        let settings =
            BenchNodeSettings { etcd: &etcd, name, kind, notifies: false, compare: None };
        BenchNode::start_with(&settings, ids.iter().cloned(), |_| true)
    };
    let began = Instant::now();
    let nodes = [node("first"), node("second")];
    reporter.wait("finding for each group", || Reporter::findings().len() >= findings);
    let opened = ms(began.elapsed());
    let cost = request_cost(&reporter.node, "/v1/cluster/findings", 20);
    let cost = cost.map_err(|error| eprintln!("bench: {error}")).ok();
    let mut push = |what: &str, unit, value: Option<f64>, limit: Option<f64>| {
        let row = Row::new(format!("{findings} open findings: {what}"), unit);
        rows.push(row.ours(value).target(limit.map(BenchTarget::AtMost)));
    };
    push("from the start of two nodes until all are open", "ms", Some(opened), None);
    let times = cost.as_ref().map(|cost| &cost.time);
    push("answer, p50", "ms", times.and_then(Samples::p50), None);
    push("answer, slowest of 20", "ms", times.and_then(Samples::max), Some(MAX_ANSWER_MS));
    push("answer, size", "KiB", cost.as_ref().map(|cost| cost.bytes / 1024.0), None);
    push("answer, CPU of the node", "ms", cost.as_ref().map(|cost| cost.cpu), None);
    drop(nodes);
    let _ = reporter.node.stop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_is_the_last_bucket_that_has_grown() {
        let name = "vipwatch_main_loop_turn_seconds_bucket";
        let text = |counts: [u32; 3]| {
            let [first, second, all] = counts;
            format!(
                "{name}{{le=\"0.001\"}} {first}\n{name}{{le=\"0.01\"}} {second}\n{name}{{le=\"+Inf\"}} {all}\n"
            )
        };
        let before = turns(&text([10, 20, 21]));
        assert_eq!(longest_turn(&before, &turns(&text([15, 26, 27]))), Some(10.0));
        assert_eq!(longest_turn(&before, &turns(&text([15, 25, 26]))), Some(1.0));
        assert_eq!(longest_turn(&before, &turns(&text([15, 25, 27]))), Some(f64::INFINITY));
    }
}
