// SPDX-License-Identifier: Apache-2.0
//! Measures `vipwatch receiver` and the receiver of Neutron 29.0.0: 1,000 reports at once, and a minute of
//! continuous reports.

mod disk;
mod load;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::{Lab, pause, wait_for};

use self::disk::Disk;
use self::load::{Load, LoadOutcome};
use crate::args::{BenchArgs, neutron_29};
use crate::measure::{Samples, count, memory, ms, thread_cpu, write_file};
use crate::report::{BenchReport, BenchTarget, Row};

/// Number of reports in a burst.
const BURST_REPORTS: u32 = 1000;

/// Number of concurrent reports in the minute of continuous reports: a quarter of the routers.
const CONCURRENT_REPORTS: usize = 256;

/// The target for the p99 of a burst, as a multiple of one `fdatasync`: the reports arrive in at most 20 batches,
/// and the journal writes each batch and its results.
const BURST_FDATASYNCS: f64 = 40.0;

/// The same for the minute of continuous reports, where a quarter as many reports are concurrent.
const MINUTE_FDATASYNCS: f64 = 10.0;

/// Starts Neutron's receiver.
const PEER_SCRIPT: &str = include_str!("receiver/peer.py");

/// Whether a Python thread computes all the time: inside Neutron's process, or in a process beside vipwatch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    Idle,
    Busy,
}

impl Neighbour {
    fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

/// Started processes, the receiver first. They are killed when dropped.
struct Running(Vec<Child>);

impl Running {
    fn pid(&self) -> i32 {
        i32::try_from(self.0[0].id()).unwrap_or(0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The results of one receiver.
struct Figures {
    bursts: Vec<LoadOutcome>,
    minute: LoadOutcome,
    /// CPU time of the receiver for each report in the minute, in µs.
    cpu: f64,
    /// CPU time of the reporting thread for each report in the minute, in µs.
    load_cpu: f64,
    /// In KiB.
    rss: f64,
}

/// Runs all measurements.
pub fn run(args: &BenchArgs) -> BenchReport {
    let mut rows = Vec::new();
    let disk = Disk::measure(args.pick(50, 500));
    disk.report(&mut rows);
    for neighbour in [Neighbour::Idle, Neighbour::Busy] {
        let start_ours = |directory: &Path| ours(args, directory, neighbour);
        let start_theirs = |directory: &Path| theirs(directory, neighbour);
        let ours = measure(args, "vipwatch receiver", neighbour, start_ours);
        let theirs = measure(args, "Neutron 29.0.0", neighbour, start_theirs);
        report(neighbour, &ours, &theirs, &disk, &mut rows);
    }
    BenchReport::new("receiver", args, &["receiver of Neutron 29.0.0"], rows)
}

fn measure(
    args: &BenchArgs,
    receiver: &str,
    neighbour: Neighbour,
    start: impl Fn(&Path) -> Running,
) -> Figures {
    let progress = |what: &str| eprintln!("bench: {receiver}, {}: {what}", neighbour.word());
    let lab = Lab::new();
    let running = start(lab.path());
    let mut load = Load::new(&lab.path().join("keepalived-state-change"));
    progress("1,000 reports at once");
    let mut bursts = Vec::new();
    for _ in 0..args.pick(3, 20) {
        bursts.push(load.burst(BURST_REPORTS));
        pause(Duration::from_millis(200));
    }
    progress("a minute of reports");
    let used = || [running.pid(), own_pid()].map(thread_cpu);
    let before = used();
    let minute = load.sustained(CONCURRENT_REPORTS, Duration::from_secs(args.pick(5, 60)));
    let of_each = |ms: f64| ms * 1e3 / count(minute.latencies.len().max(1));
    let after = used();
    let [cpu, load_cpu] = [0, 1].map(|at| of_each(after[at] - before[at]));
    let rss = memory(&[running.pid()]).rss;
    Figures { bursts, minute, cpu, load_cpu, rss }
}

/// Starts vipwatch's receiver with its journal on the disk, and the computing interpreter if `neighbour` is busy.
fn ours(args: &BenchArgs, directory: &Path, neighbour: Neighbour) -> Running {
    let config = directory.join("vipwatch.toml");
    write_file(&config, "");
    let mut command = Command::new(&args.subject);
    command.args(["receiver", "--interval", "0s", "--config"]).arg(config);
    command.arg("--state-path").arg(directory);
    command.arg("--state-dir").arg(directory.join("receiver"));
    command.arg("--status-socket").arg(directory.join("agent.sock"));
    let child = command.stderr(Stdio::null()).spawn().expect("vipwatch runs");
    let mut running = Running(vec![child]);
    let socket = directory.join("keepalived-state-change");
    wait_for("the receiver", || socket.exists().then_some(()));
    if neighbour == Neighbour::Busy {
        let mut python = Command::new(neutron_29().join("bin/python"));
        python.args(["-c", "while True: sum(range(10000))"]);
        running.0.push(python.spawn().expect("python runs"));
    }
    running
}

/// Starts Neutron's receiver.
fn theirs(directory: &Path, neighbour: Neighbour) -> Running {
    let mut command = Command::new(neutron_29().join("bin/python"));
    command.args(["-c", PEER_SCRIPT]).arg(directory).arg(neighbour.word());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("python runs");
    let output = child.stdout.take().expect("a pipe");
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line);
    assert!(read.is_ok() && line == "ready\n", "Neutron's receiver does not start: {line:?}");
    Running(vec![child])
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(0)
}

/// Adds the rows of both receivers.
fn report(
    neighbour: Neighbour,
    ours: &Figures,
    theirs: &Figures,
    disk: &Disk,
    rows: &mut Vec<Row>,
) {
    let neighbour = neighbour.word();
    let mut add = |metric: &str, unit, of: &dyn Fn(&Figures) -> Option<f64>, target| {
        let row = Row::new(format!("{neighbour}: {metric}"), unit);
        rows.push(row.ours(of(ours)).peer(of(theirs)).target(target));
    };
    let burst = |figures: &Figures| {
        let all = figures.bursts.iter().flat_map(|burst| burst.latencies.iter().copied());
        Samples::of(all.collect())
    };
    let minute = |figures: &Figures| Samples::of(figures.minute.latencies.clone());
    let lost = |figures: &Figures| {
        let lost: f64 = figures.bursts.iter().map(|burst| f64::from(burst.lost)).sum();
        lost / count(figures.bursts.len())
    };
    let rate = |figures: &Figures| {
        count(figures.minute.latencies.len()) / figures.minute.span.as_secs_f64()
    };
    let longest = |figures: &Figures| {
        Samples::of(figures.bursts.iter().map(|burst| ms(burst.span)).collect()).max()
    };
    let none = Some(BenchTarget::AtMost(0.0));
    add("lost of 1,000 at once", "reports", &|f| Some(lost(f)), none);
    add("1,000 at once, p50", "ms", &|f| burst(f).p50(), None);
    let target = Some(disk.multiple(BURST_FDATASYNCS));
    add("1,000 at once, p99", "ms", &|f| burst(f).p99(), target);
    add("1,000 at once, all answered, longest", "ms", &longest, None);
    add("a minute: lost", "reports", &|f| Some(f64::from(f.minute.lost)), none);
    add("a minute: reports", "1/s", &|f| Some(rate(f)), None);
    let target = Some(BenchTarget::TimesLess(20.0));
    add("a minute: time for one", "µs", &|f| Some(1e6 / rate(f)), target);
    add("a minute: p50", "ms", &|f| minute(f).p50(), None);
    let target = Some(disk.multiple(MINUTE_FDATASYNCS));
    add("a minute: p99", "ms", &|f| minute(f).p99(), target);
    add("a minute: CPU for one", "µs", &|f| Some(f.cpu), None);
    add("a minute: CPU of the reporter for one", "µs", &|f| Some(f.load_cpu), None);
    add("RSS afterwards", "MiB", &|f| Some(f.rss / 1024.0), None);
}
