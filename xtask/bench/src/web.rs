// SPDX-License-Identifier: Apache-2.0
//! Measures a node that answers over TCP: the way of an event to a client, the cost of a request, 500 clients of the
//! event stream, and memory; beside the dump with which exporters read a keepalived.

mod browser;
mod keepalived;
mod requests;

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, Routers, pause};

use self::browser::browser_rows;
use self::keepalived::{DumpCost, dump_cost};
use self::requests::{RequestCost, open_stream, request, request_cost};
use crate::measure::{MemoryUse, Samples, machine, memory};
use crate::node::streams::{ReaderDelay, event_to_client, open_readers, read_slowly, reader_delay};
use crate::node::{START_TIMEOUT, event_to_file, wait_for_all};
use crate::report::{BenchReport, BenchTarget, Row};

/// The directory of the state files, in memory.
const STATES: &str = "/run/vipwatch/state";

/// Number of clients that show the dashboard.
const VIEWERS: usize = 10;

/// Why OpenStack's exporter is not measured.
const NO_OPENSTACK: &str = "OpenStack's exporter is not measured: it asks the API of a Neutron server once for each router, \
                            and a Neutron server with its database and message queue does not run here.";

/// The budgets of the node's memory in MiB, without the witness: without and with web.
const BUDGETS: [(usize, f64, f64); 2] = [(1000, 12.0, 14.0), (5000, 25.0, 29.0)];

/// The measured program and the number of repetitions.
pub struct WebBench {
    pub subject: PathBuf,
    pub is_quick: bool,
}

/// The results with one number of instances; `None` if a value was not measured or not reached.
#[derive(Default)]
struct Figures {
    memory_without: MemoryUse,
    memory_with: MemoryUse,
    /// From a change to the event that a client reads, in ms.
    event: Option<Samples>,
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
    file_without: Option<Samples>,
    file_with: Option<Samples>,
    /// From many changes at once to the last state file.
    at_once: Option<ReaderDelay>,
}

impl WebBench {
    /// Runs all measurements.
    pub fn run(&self) -> BenchReport {
        let mut notes = vec![NO_OPENSTACK.to_owned()];
        let progress = |what: &str| eprintln!("bench: {what}");
        progress("keepalived: dumps");
        let dump = dump_cost(self.pick(100, 1000), self.pick(5, 20));
        if dump.is_none() {
            notes.push("keepalived did not write its dump.".to_owned());
        }
        let mut rows = Vec::new();
        for count in self.pick([50, 200], [1000, 5000]) {
            progress(&format!("making {count} namespaces"));
            let lab = Lab::new();
            let routers = Routers::new(lab.path(), &format!("b{count}"), count, 0);
            let figures = self.figures(&lab, &routers, &mut notes);
            report(count, &figures, dump.as_ref(), &mut rows);
        }
        browser_rows(&mut rows, &mut notes);
        let quick = self.pick(" (quick: no figures to quote)", "");
        let peers = &["keepalived's JSON dump"];
        BenchReport { title: format!("bench web{quick}"), machine: machine(), peers, rows, notes }
    }

    fn pick<T>(&self, quick: T, full: T) -> T {
        if self.is_quick { quick } else { full }
    }

    fn figures(&self, lab: &Lab, routers: &Routers, notes: &mut Vec<String>) -> Figures {
        let count = routers.each.len();
        let progress = |what: &str| eprintln!("bench: {count} instances: {what}");
        let fixture = NodeFixture::new(&self.subject, lab.path()).with_processes();
        let mut figures = Figures::default();
        progress("memory without web");
        let node = start(&fixture, "", routers);
        figures.memory_without = self.settled_memory(&node, routers);
        let _ = node.stop();
        progress("memory with web and viewers");
        let address = requests::ADDRESS;
        let node = start(&fixture, &format!("[web]\nlisten = \"{address}\"\n"), routers);
        let viewers = viewers();
        figures.memory_with = self.settled_memory(&node, routers);
        drop(viewers);
        progress("events over TCP");
        let samples = self.pick(50, 400);
        figures.event = open_stream().and_then(|stream| event_to_client(stream, routers, samples));
        progress("requests");
        let mut cost = |path: &str| match request_cost(&node, path, self.pick(5, 30)) {
            Ok(cost) => Some(cost),
            Err(error) => {
                notes.push(format!("Error with {count} instances: {error}."));
                None
            }
        };
        figures.instances = cost("/v1/instances");
        figures.metrics = cost("/metrics");
        progress("500 clients");
        figures.clients = self.clients(&node, routers);
        let _ = node.stop();
        figures
    }

    /// The memory after some changes, when nothing happens any more.
    fn settled_memory(&self, node: &NodeProcess, routers: &Routers) -> MemoryUse {
        let _ = event_to_file(Path::new(STATES), routers, self.pick(20, 200));
        pause(Duration::from_secs(self.pick(2, 15)));
        memory(&[node.pid()])
    }

    fn clients(&self, node: &NodeProcess, routers: &Routers) -> ClientFigures {
        let states = Path::new(STATES);
        let samples = self.pick(50, 400);
        let rss = || memory(&[node.pid()]).rss;
        let file_without = event_to_file(states, routers, samples);
        let mut figures = ClientFigures { file_without, ..ClientFigures::default() };
        let before = rss();
        if let Some(clients) = open_readers(&open_stream) {
            figures.file_with = read_slowly(&clients, || event_to_file(states, routers, samples));
            figures.memory = Some(rss() - before);
        }
        figures.at_once = reader_delay(&open_stream, states, routers, self.pick(3, 9));
        figures
    }
}

/// Starts a node with further settings, and waits until all its instances are backup.
fn start(fixture: &NodeFixture, settings: &str, routers: &Routers) -> NodeProcess {
    fixture.configure(&format!(
        "{settings}[[notify]]\norigin = \"neutron\"\nstate_file = \"{STATES}/{{id}}\"\n"
    ));
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
    let mut row = |name: &str, unit, ours: Option<f64>, target: Option<f64>| {
        let mut row = Row::new(format!("{count} instances: {name}"), unit);
        row.ours = ours;
        row.target = target.map(BenchTarget::AtMost);
        rows.push(row);
    };
    let mib = |kib: f64| Some(kib / 1024.0);
    let budget = BUDGETS.iter().find(|(of, ..)| *of == count);
    let (without, with) = (figures.memory_without, figures.memory_with);
    row("memory without web", "MiB", mib(without.rss), budget.map(|(_, limit, _)| *limit));
    row("of that anonymous memory", "MiB", mib(without.anonymous), None);
    let name = format!("memory with web and {VIEWERS} viewers");
    row(&name, "MiB", mib(with.rss), budget.map(|(.., limit)| *limit));
    row("of that anonymous memory", "MiB", mib(with.anonymous), None);
    let of = |samples: &Option<Samples>, share| samples.as_ref().map(|one| one.quantile(share));
    let is_full = count >= 1000;
    row("change → event over TCP, p50", "ms", of(&figures.event, 0.5), None);
    row("change → event over TCP, p99", "ms", of(&figures.event, 0.99), is_full.then_some(5.0));
    let clients = &figures.clients;
    row("memory that 500 clients add", "MiB", clients.memory.and_then(mib), None);
    row("change → state file, p50", "ms", of(&clients.file_without, 0.5), None);
    row("the same with 500 clients", "ms", of(&clients.file_with, 0.5), None);
    let ratio = clients.at_once.map(|delay| delay.with / delay.without);
    let name = "changes at once → every state file, with 500 clients ÷ without";
    row(name, "", ratio, is_full.then_some(1.1));
    for (path, cost) in [("/v1/instances", &figures.instances), ("/metrics", &figures.metrics)] {
        requests::report(count, path, cost.as_ref(), dump, rows);
    }
}
