// SPDX-License-Identifier: Apache-2.0
//! Measures a node that answers over TCP: the way of an event to a client, the cost of a request, 500 clients of the
//! event stream, and memory; beside the dump with which exporters read a keepalived.

mod browser;
mod keepalived;
pub mod requests;

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, Routers, pause};

use self::browser::browser_rows;
use self::keepalived::{DumpCost, dump_cost};
use self::requests::{RequestCost, open_stream, request, request_cost};
use crate::args::BenchArgs;
use crate::measure::{MemoryUse, Samples, memory};
use crate::node::streams::{ReaderDelay, event_to_client, open_readers, read_slowly, reader_delay};
use crate::node::{START_TIMEOUT, STATES, event_to_file, wait_for_all, with_state_files};
use crate::report::{BenchReport, BenchTarget, Row};

/// Number of clients that show the dashboard.
const VIEWERS: usize = 10;

/// Why OpenStack's exporter is not measured.
const NO_OPENSTACK: &str = "OpenStack's exporter is not measured: it asks the API of a Neutron server once for each router, \
                            and a Neutron server with its database and message queue does not run here.";

/// The budgets of the node's memory in MiB, without the witness: without and with web.
const BUDGETS: [(usize, f64, f64); 2] = [(1000, 12.0, 14.0), (5000, 25.0, 29.0)];

/// The results with one number of instances; `None` if a value was not measured or not reached.
#[derive(Default)]
struct Figures {
    memory_without: MemoryUse,
    memory_with: MemoryUse,
    /// From a change to the event that a client reads, in ms.
    event: Samples,
    instances: Option<RequestCost>,
    metrics: Option<RequestCost>,
    clients: ClientFigures,
}

/// The effect of 500 clients of the event stream.
#[derive(Default)]
struct ClientFigures {
    /// Growth of the resident memory, in KiB.
    memory: Option<f64>,
    /// From a change to its state file, in ms.
    file_without: Samples,
    file_with: Samples,
    /// From many changes at once to the last state file.
    at_once: Option<ReaderDelay>,
}

/// Runs all measurements.
pub fn run(args: &BenchArgs) -> BenchReport {
    let mut notes = vec![NO_OPENSTACK.to_owned()];
    let progress = |what: &str| eprintln!("bench: {what}");
    progress("keepalived: dumps");
    let dump = dump_cost(args.pick(100, 1000), args.pick(5, 20));
    if dump.is_none() {
        notes.push("keepalived did not write its dump.".to_owned());
    }
    let mut rows = Vec::new();
    for count in args.pick([50, 200], [1000, 5000]) {
        progress(&format!("making {count} namespaces"));
        let lab = Lab::new();
        let routers = Routers::new(lab.path(), &format!("b{count}"), count, 0);
        let figures = figures(args, &lab, &routers, &mut notes);
        report(count, &figures, dump.as_ref(), &mut rows);
    }
    browser_rows(&mut rows, &mut notes);
    let mut report = BenchReport::new("web", args, &["keepalived's JSON dump"], rows);
    report.notes = notes;
    report
}

fn figures(args: &BenchArgs, lab: &Lab, routers: &Routers, notes: &mut Vec<String>) -> Figures {
    let count = routers.each.len();
    let progress = |what: &str| eprintln!("bench: {count} instances: {what}");
    let fixture = NodeFixture::new(&args.subject, lab.path()).with_processes();
    let mut figures = Figures::default();
    progress("memory without web");
    let node = start(&fixture, "", routers);
    figures.memory_without = settled_memory(args, &node, routers);
    let _ = node.stop();
    progress("memory with web and viewers");
    let address = requests::ADDRESS;
    let node = start(&fixture, &format!("[web]\nlisten = \"{address}\"\n"), routers);
    let viewers = viewers();
    figures.memory_with = settled_memory(args, &node, routers);
    drop(viewers);
    progress("events over TCP");
    figures.event = event_to_client(open_stream(), routers, args.pick(50, 400));
    progress("requests");
    let mut cost = |path: &str| {
        let cost = request_cost(&node, path, args.pick(5, 30));
        cost.map_err(|error| notes.push(format!("Error with {count} instances: {error}."))).ok()
    };
    figures.instances = cost("/v1/instances");
    figures.metrics = cost("/metrics");
    progress("500 clients");
    figures.clients = clients(args, &node, routers);
    let _ = node.stop();
    figures
}

/// The memory after some changes, when nothing happens any more.
fn settled_memory(args: &BenchArgs, node: &NodeProcess, routers: &Routers) -> MemoryUse {
    event_to_file(Path::new(STATES), routers, args.pick(20, 200));
    pause(Duration::from_secs(args.pick(2, 15)));
    memory(&[node.pid()])
}

fn clients(args: &BenchArgs, node: &NodeProcess, routers: &Routers) -> ClientFigures {
    let states = Path::new(STATES);
    let samples = args.pick(50, 400);
    let rss = || memory(&[node.pid()]).rss;
    let file_without = event_to_file(states, routers, samples);
    let mut figures = ClientFigures { file_without, ..ClientFigures::default() };
    let before = rss();
    if let Some(clients) = open_readers(&open_stream) {
        figures.file_with = read_slowly(&clients, || event_to_file(states, routers, samples));
        figures.memory = Some(rss() - before);
    }
    figures.at_once = reader_delay(&open_stream, states, routers, args.pick(3, 9));
    figures
}

/// Starts a node with further settings, and waits until all its instances are backup.
fn start(fixture: &NodeFixture, settings: &str, routers: &Routers) -> NodeProcess {
    fixture.configure(&with_state_files(settings));
    let node = fixture.start_within(START_TIMEOUT);
    assert!(wait_for_all(Path::new(STATES), routers, "backup"), "the node writes its state files");
    node
}

/// Clients that read what a dashboard reads when it begins, and then follow the events.
fn viewers() -> Vec<TcpStream> {
    let viewer = |_| {
        let read = request("/v1/instances");
        read.and_then(|_| open_stream().ok_or_else(|| "the stream is refused".to_owned()))
            .unwrap_or_else(|error| panic!("a viewer cannot connect: {error}"))
    };
    (0..VIEWERS).map(viewer).collect()
}

/// Adds the rows for `count` instances.
fn report(count: usize, figures: &Figures, dump: Option<&DumpCost>, rows: &mut Vec<Row>) {
    let mut row = |name: &str, unit, ours: Option<f64>, limit: Option<f64>| {
        let row = Row::new(format!("{count} instances: {name}"), unit);
        rows.push(row.ours(ours).target(limit.map(BenchTarget::AtMost)));
    };
    let mib = |kib: f64| Some(kib / 1024.0);
    let budget = BUDGETS.iter().find(|(of, ..)| *of == count);
    let (without, with) = (figures.memory_without, figures.memory_with);
    row("memory without web", "MiB", mib(without.rss), budget.map(|(_, limit, _)| *limit));
    row("of that anonymous memory", "MiB", mib(without.anonymous), None);
    let name = format!("memory with web and {VIEWERS} viewers");
    row(&name, "MiB", mib(with.rss), budget.map(|(.., limit)| *limit));
    row("of that anonymous memory", "MiB", mib(with.anonymous), None);
    let is_full = count >= 1000;
    row("change → event over TCP, p50", "ms", figures.event.p50(), None);
    row("change → event over TCP, p99", "ms", figures.event.p99(), is_full.then_some(5.0));
    let clients = &figures.clients;
    row("memory that 500 clients add", "MiB", clients.memory.and_then(mib), None);
    row("change → state file, p50", "ms", clients.file_without.p50(), None);
    row("the same with 500 clients", "ms", clients.file_with.p50(), None);
    let name = "changes at once → every state file, with 500 clients ÷ without";
    row(name, "", clients.at_once.map(ReaderDelay::ratio), is_full.then_some(1.1));
    for (path, cost) in [("/v1/instances", &figures.instances), ("/metrics", &figures.metrics)] {
        requests::report(count, path, cost.as_ref(), dump, rows);
    }
}
