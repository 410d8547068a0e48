// SPDX-License-Identifier: Apache-2.0
//! Measures `vipwatch receiver` and the receiver of Neutron 29.0.0: 1,000 reports at once, and a minute of
//! continuous reports.

mod disk;
mod load;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::{Lab, pause, wait_for};

use self::disk::Disk;
use self::load::{Load, LoadOutcome};
use crate::measure::{Samples, machine, memory, ms, thread_cpu};
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

/// The measured programs and the number of repetitions.
pub struct ReceiverBench {
    pub subject: PathBuf,
    /// The Python environment with Neutron 29.0.0.
    pub neutron: PathBuf,
    pub is_quick: bool,
}

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

impl ReceiverBench {
    /// Runs all measurements.
    pub fn run(&self) -> BenchReport {
        let mut rows = Vec::new();
        let disk = Disk::measure(if self.is_quick { 50 } else { 500 });
        disk.report(&mut rows);
        for neighbour in [Neighbour::Idle, Neighbour::Busy] {
            let ours = self.measure("vipwatch receiver", neighbour, |directory| {
                self.ours(directory, neighbour)
            });
            let theirs = self.measure("Neutron 29.0.0", neighbour, |directory| {
                self.theirs(directory, neighbour)
            });
            report(neighbour, &ours, &theirs, &disk, &mut rows);
        }
        let quick = if self.is_quick { " (quick: no figures to quote)" } else { "" };
        let peers = &["receiver of Neutron 29.0.0"];
        BenchReport {
            title: format!("bench receiver{quick}"),
            machine: machine(),
            peers,
            rows,
            notes: Vec::new(),
        }
    }

    fn measure(
        &self,
        receiver: &str,
        neighbour: Neighbour,
        start: impl Fn(&Path) -> Running,
    ) -> Figures {
        let progress = |what: &str| eprintln!("bench: {receiver}, {}: {what}", neighbour.word());
        let lab = Lab::new();
        let running = start(lab.path());
        let mut load = Load::new(&lab.path().join("keepalived-state-change"));
        let rounds = if self.is_quick { 3 } else { 20 };
        progress("1,000 reports at once");
        let mut bursts = Vec::new();
        for _ in 0..rounds {
            bursts.push(load.burst(BURST_REPORTS));
            pause(Duration::from_millis(200));
        }
        let span = Duration::from_secs(if self.is_quick { 5 } else { 60 });
        progress("a minute of reports");
        let used = || [running.pid(), own_pid()].map(thread_cpu);
        let before = used();
        let minute = load.sustained(CONCURRENT_REPORTS, span);
        #[expect(clippy::cast_precision_loss, reason = "a few million")]
        let of_each = |ms: f64| ms * 1e3 / minute.latencies.len().max(1) as f64;
        let after = used();
        let [cpu, load_cpu] = [0, 1].map(|at| of_each(after[at] - before[at]));
        let rss = memory(&[running.pid()]).rss;
        Figures { bursts, minute, cpu, load_cpu, rss }
    }

    /// Starts vipwatch's receiver with its journal on the disk, and the computing interpreter if `neighbour` is busy.
    fn ours(&self, directory: &Path, neighbour: Neighbour) -> Running {
        let config = directory.join("vipwatch.toml");
        std::fs::File::create(&config).expect("a configuration");
        let child = Command::new(&self.subject)
            .args(["receiver", "--interval", "0s", "--config"])
            .arg(config)
            .arg("--state-path")
            .arg(directory)
            .arg("--state-dir")
            .arg(directory.join("receiver"))
            .arg("--status-socket")
            .arg(directory.join("agent.sock"))
            .stderr(Stdio::null())
            .spawn()
            .expect("vipwatch runs");
        let mut running = Running(vec![child]);
        let socket = directory.join("keepalived-state-change");
        wait_for("the receiver", || socket.exists().then_some(()));
        if neighbour == Neighbour::Busy {
            let mut python = Command::new(self.neutron.join("bin/python"));
            python.args(["-c", "while True: sum(range(10000))"]);
            running.0.push(python.spawn().expect("python runs"));
        }
        running
    }

    /// Starts Neutron's receiver.
    fn theirs(&self, directory: &Path, neighbour: Neighbour) -> Running {
        let mut child = Command::new(self.neutron.join("bin/python"))
            .args(["-c", PEER_SCRIPT])
            .arg(directory)
            .arg(neighbour.word())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python runs");
        let output = child.stdout.take().expect("a pipe");
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        assert!(read.is_ok() && line == "ready\n", "Neutron's receiver does not start: {line:?}");
        Running(vec![child])
    }
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
        let mut row = Row::new(format!("{neighbour}: {metric}"), unit);
        row.ours = of(ours);
        row.set_peer(0, of(theirs));
        row.target = target;
        rows.push(row);
    };
    let burst = |figures: &Figures, share: f64| {
        let all = figures.bursts.iter().flat_map(|burst| burst.latencies.iter().copied());
        Samples::of(all.collect()).map(|samples| samples.quantile(share))
    };
    let minute = |figures: &Figures, share: f64| {
        Samples::of(figures.minute.latencies.clone()).map(|samples| samples.quantile(share))
    };
    let lost =
        |figures: &Figures| figures.bursts.iter().map(|burst| f64::from(burst.lost)).sum::<f64>();
    #[expect(clippy::cast_precision_loss, reason = "a few million")]
    let rate = |figures: &Figures| {
        figures.minute.latencies.len() as f64 / figures.minute.span.as_secs_f64()
    };
    let rounds = |figures: &Figures| f64::from(u32::try_from(figures.bursts.len()).unwrap_or(1));
    add(
        "lost of 1,000 at once",
        "reports",
        &|f| Some(lost(f) / rounds(f)),
        Some(BenchTarget::AtMost(0.0)),
    );
    add("1,000 at once, p50", "ms", &|f| burst(f, 0.5), None);
    let target = Some(disk.multiple(BURST_FDATASYNCS));
    add("1,000 at once, p99", "ms", &|f| burst(f, 0.99), target);
    let longest = |f: &Figures| {
        Samples::of(f.bursts.iter().map(|burst| ms(burst.span)).collect()).map(|all| all.max())
    };
    add("1,000 at once, all answered, longest", "ms", &longest, None);
    add(
        "a minute: lost",
        "reports",
        &|f| Some(f64::from(f.minute.lost)),
        Some(BenchTarget::AtMost(0.0)),
    );
    add("a minute: reports", "1/s", &|f| Some(rate(f)), None);
    add(
        "a minute: time for one",
        "µs",
        &|f| Some(1e6 / rate(f)),
        Some(BenchTarget::TimesLess(20.0)),
    );
    add("a minute: p50", "ms", &|f| minute(f, 0.5), None);
    let target = Some(disk.multiple(MINUTE_FDATASYNCS));
    add("a minute: p99", "ms", &|f| minute(f, 0.99), target);
    add("a minute: CPU for one", "µs", &|f| Some(f.cpu), None);
    add("a minute: CPU of the reporter for one", "µs", &|f| Some(f.load_cpu), None);
    add("RSS afterwards", "MiB", &|f| Some(f.rss / 1024.0), None);
}
