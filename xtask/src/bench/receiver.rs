//! `vipwatch agent` beside the receiver of Neutron 29.0.0: a thousand reports at once, and a minute of them.

mod disk;
mod load;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::{Lab, pause, wait_for};

use self::disk::Disk;
use self::load::{Load, LoadOutcome};
use super::measure::{Samples, machine, memory, ms, thread_cpu};
use super::report::{BenchReport, BenchTarget, Row};

/// Reports at the same time.
const ALL: u32 = 1000;

/// Reports under way in the sustained minute: a quarter of what a node has.
const AT_ONCE: usize = 256;

/// The p99 of 1,000 at once, in times of one `fdatasync`: they arrive in at most 20 bundles, and what comes of
/// each bundle is written as well.
const AT_ONCE_FDATASYNCS: f64 = 40.0;

/// The same in the sustained minute, where a quarter as many are under way.
const MINUTE_FDATASYNCS: f64 = 10.0;

const PEER: &str = include_str!("receiver/peer.py");

/// The programs, and how thorough to be.
pub struct ReceiverBench {
    pub subject: PathBuf,
    /// Where Neutron is installed.
    pub neutron: PathBuf,
    pub is_quick: bool,
}

/// Whether somebody keeps the interpreter busy; or, beside ours, a processor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CurrentBehaviour {
    Idle,
    Busy,
}

impl CurrentBehaviour {
    fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

/// Processes that are killed when dropped.
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

/// What one of both reached.
struct Figures {
    bursts: Vec<LoadOutcome>,
    minute: LoadOutcome,
    /// In the minute, in microseconds of processor time for each report.
    cpu: f64,
    /// The same, of those who report.
    load_cpu: f64,
    rss: f64,
}

impl ReceiverBench {
    /// Measures everything.
    pub fn run(&self) -> BenchReport {
        let mut rows = Vec::new();
        let disk = Disk::measure(if self.is_quick { 50 } else { 500 });
        disk.report(&mut rows);
        for mood in [CurrentBehaviour::Idle, CurrentBehaviour::Busy] {
            let ours = self.measure("vipwatch agent", mood, |directory| self.ours(directory, mood));
            let theirs =
                self.measure("Neutron 29.0.0", mood, |directory| self.theirs(directory, mood));
            report(mood, &ours, &theirs, &disk, &mut rows);
        }
        let quick = if self.is_quick { " (quick: no figures to quote)" } else { "" };
        let peers = &["receiver of Neutron 29.0.0"];
        BenchReport { title: format!("bench receiver{quick}"), machine: machine(), peers, rows }
    }

    fn measure(
        &self,
        who: &str,
        mood: CurrentBehaviour,
        start: impl Fn(&Path) -> Running,
    ) -> Figures {
        let say = |what: &str| eprintln!("bench: {who}, {}: {what}", mood.word());
        let lab = Lab::new();
        let running = start(lab.path());
        let mut load = Load::new(&lab.path().join("keepalived-state-change"));
        let rounds = if self.is_quick { 3 } else { 20 };
        say("1,000 reports at once");
        let mut bursts = Vec::new();
        for _ in 0..rounds {
            bursts.push(load.burst(ALL));
            pause(Duration::from_millis(200));
        }
        let span = Duration::from_secs(if self.is_quick { 5 } else { 60 });
        say("a minute of reports");
        let used = || [running.pid(), own_pid()].map(thread_cpu);
        let before = used();
        let minute = load.sustained(AT_ONCE, span);
        #[expect(clippy::cast_precision_loss, reason = "a few million")]
        let of_each = |ms: f64| ms * 1e3 / minute.latencies.len().max(1) as f64;
        let after = used();
        let [cpu, load_cpu] = [0, 1].map(|whose| of_each(after[whose] - before[whose]));
        let rss = memory(&[running.pid()]).rss;
        Figures { bursts, minute, cpu, load_cpu, rss }
    }

    /// Ours, with its journal on the disk; and beside it, if it shall be busy, an interpreter that is.
    fn ours(&self, directory: &Path, mood: CurrentBehaviour) -> Running {
        let config = directory.join("vipwatch.toml");
        std::fs::File::create(&config).expect("a configuration");
        let child = Command::new(&self.subject)
            .args(["agent", "--interval", "0s", "--config"])
            .arg(config)
            .arg("--state-path")
            .arg(directory)
            .arg("--state-dir")
            .arg(directory.join("claims"))
            .arg("--status-socket")
            .arg(directory.join("agent.sock"))
            .stderr(Stdio::null())
            .spawn()
            .expect("vipwatch runs");
        let mut running = Running(vec![child]);
        let socket = directory.join("keepalived-state-change");
        wait_for("the receiver", || socket.exists().then_some(()));
        if mood == CurrentBehaviour::Busy {
            let mut python = Command::new(self.neutron.join("bin/python"));
            python.args(["-c", "while True: sum(range(10000))"]);
            running.0.push(python.spawn().expect("python runs"));
        }
        running
    }

    fn theirs(&self, directory: &Path, mood: CurrentBehaviour) -> Running {
        let mut child = Command::new(self.neutron.join("bin/python"))
            .args(["-c", PEER])
            .arg(directory)
            .arg(mood.word())
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

fn report(
    mood: CurrentBehaviour,
    ours: &Figures,
    theirs: &Figures,
    disk: &Disk,
    rows: &mut Vec<Row>,
) {
    let mood = mood.word();
    let mut add = |metric: &str, unit, of: &dyn Fn(&Figures) -> Option<f64>, target| {
        let mut row = Row::new(format!("{mood}: {metric}"), unit);
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
    let target = Some(disk.multiple(AT_ONCE_FDATASYNCS));
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
