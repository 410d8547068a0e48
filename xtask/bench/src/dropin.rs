// SPDX-License-Identifier: Apache-2.0
//! Measures the drop-in, the shell script of Neutron 29.0.0 and the Python daemon of Neutron 28.0.2.
//!
//! `limit.c` is measured too: a C program that does only what every monitor must do. It shows the lower bound
//! on this machine.

mod cold;
mod latency;
mod limit;
mod load;
mod memory;
mod processes;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{AddressEditor, Behaviour, FakeAgent, Lab, Release, Router, pause};

use crate::args::{BenchArgs, neutron_29, path};
use crate::measure::{Samples, family, kill_all, ms};
use crate::report::{BenchReport, BenchTarget, Row};

/// Where the measured programs are.
struct ProgramPaths {
    /// The executable of the drop-in.
    subject: PathBuf,
    /// The Python environment with Neutron 29.0.0, for the shell script.
    script: PathBuf,
    /// The Python environment with Neutron 28.0.2, for the Python daemon.
    daemon: PathBuf,
    /// The executable made from `dropin/limit.c`.
    limit: PathBuf,
}

/// A measured program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Ours,
    Script,
    Daemon,
    /// `dropin/limit.c`
    Limit,
}

impl Program {
    /// The drop-in and the programs it replaces.
    const ALL: [Self; 3] = [Self::Ours, Self::Script, Self::Daemon];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "vipwatch",
            Self::Script => "script",
            Self::Daemon => "daemon",
            Self::Limit => "limit",
        }
    }

    /// The number of samples: fewer for the programs that need more time for each.
    fn samples(self, of_ours: usize) -> usize {
        match self {
            Self::Ours | Self::Limit => of_ours,
            Self::Script => (of_ours / 4).max(4),
            Self::Daemon => (of_ours / 10).max(3),
        }
    }
}

impl ProgramPaths {
    fn command(&self, program: Program, router: &Router) -> Command {
        let (path, extra): (PathBuf, &[&str]) = match program {
            Program::Ours => (self.subject.clone(), &[]),
            Program::Script => (self.script.join("bin/neutron-keepalived-state-change"), &[]),
            // Without this option the daemon reads the configuration of the machine.
            Program::Daemon => (
                self.daemon.join("bin/neutron-keepalived-state-change"),
                &["--config-file=/dev/null"],
            ),
            Program::Limit => return limit::command(&self.limit, router),
        };
        let mut command = router.command(&path);
        command.args(extra);
        as_service(&mut command);
        command
    }
}

/// Gives the command the environment of a service. A developer's environment is several pages larger and would
/// count as memory of the monitor.
fn as_service(command: &mut Command) {
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}

/// A started monitor. It is killed with all its descendants when dropped.
struct Running {
    /// The process that was spawned; it may end when the monitor runs in the background.
    spawned: Child,
    /// The monitor's pid, from its pid file.
    pid: i32,
}

impl Running {
    fn start(paths: &ProgramPaths, program: Program, router: &Router) -> Self {
        let spawned = paths.command(program, router).spawn().expect("the program starts");
        let pid =
            spin(Duration::from_mins(1), || read_pid(&router.pid_file())).expect("a pid file");
        Self { spawned, pid }
    }

    /// The monitor's processes, without the processes that only started it.
    fn pids(&self) -> Vec<i32> {
        family(self.pid)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        kill_all(self.pids());
        let _ = self.spawned.kill();
        let _ = self.spawned.wait();
    }
}

/// Repeats `probe` without sleeping until it returns a value: the measured times are shorter than any sleep.
/// `None` after `limit`.
fn spin<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = probe() {
            return Some(answer);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::yield_now();
    }
}

/// One router, a fake agent and a running monitor.
struct Setup {
    running: Running,
    agent: FakeAgent,
    editor: AddressEditor,
    link: u32,
    vip: IpNet,
    router: Router,
    _lab: Lab,
}

fn router_for(program: Program, lab: &Lab, number: u32) -> Router {
    // The daemon accepts options in the form `--name=value` only; the drop-in accepts both forms.
    let release = if program == Program::Daemon { Release::V26 } else { Release::V29 };
    let mut router = Router::numbered(lab, release, number);
    router.debug = false;
    router
}

/// Starts monitors for `count` routers, and waits for their first states.
fn start_many(
    paths: &ProgramPaths,
    program: Program,
    lab: &Lab,
    count: u32,
) -> (Vec<Router>, Vec<Running>) {
    let routers: Vec<_> = (1..=count).map(|number| router_for(program, lab, number)).collect();
    let start = |router| Running::start(paths, program, router);
    let running = routers.iter().map(start).collect();
    for router in &routers {
        spin(Duration::from_mins(1), || router.state());
    }
    (routers, running)
}

fn setup(paths: &ProgramPaths, program: Program) -> Setup {
    setup_with(program, |router| Running::start(paths, program, router))
}

fn setup_with(program: Program, start: impl FnOnce(&Router) -> Running) -> Setup {
    let lab = Lab::new();
    let router = router_for(program, &lab, 1);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    let running = start(&router);
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().expect("an address");
    let setup = Setup { running, agent, editor, link, vip, router, _lab: lab };
    // The script sends its first report only after a change of an address. The first two changes are made here
    // and are not measured.
    spin(Duration::from_secs(30), || setup.router.state());
    pause(Duration::from_millis(300));
    for is_primary in [true, false] {
        setup.change(is_primary);
        setup.settle(is_primary);
    }
    setup
}

/// The word for a state.
fn word(is_primary: bool) -> &'static str {
    if is_primary { "primary" } else { "backup" }
}

impl Setup {
    fn change(&self, is_primary: bool) {
        if is_primary {
            self.editor.add(self.link, self.vip);
        } else {
            self.editor.remove(self.link, self.vip);
        }
    }

    /// Changes the address and returns the milliseconds until the state file has the new state.
    fn time_to_file(&self, is_primary: bool) -> f64 {
        let began = Instant::now();
        self.change(is_primary);
        spin(Duration::from_secs(10), || self.is_written(is_primary).then_some(()));
        ms(began.elapsed())
    }

    /// Changes the address and returns the milliseconds until the agent has received the report; `None` after 10 s.
    fn time_to_agent(&self, is_primary: bool) -> Option<f64> {
        let began = Instant::now();
        self.change(is_primary);
        let report = self.agent.wait_for_next(word(is_primary), Duration::from_secs(10));
        report.map(|report| ms(report.at - began))
    }

    /// Whether the state file has this state.
    fn is_written(&self, is_primary: bool) -> bool {
        self.router.state().as_deref() == Some(word(is_primary))
    }

    /// Whether the state file and the last report to the agent have this state.
    fn is_right(&self, is_primary: bool) -> bool {
        let report = self.agent.last();
        self.is_written(is_primary)
            && report.is_some_and(|report| report.word() == word(is_primary))
    }

    /// Waits until the state file and the agent have this state, at most 10 s.
    fn settle(&self, is_primary: bool) {
        spin(Duration::from_secs(10), || self.is_right(is_primary).then_some(()));
    }

    /// Measures one change to the state file and one to the agent; the second sample may be missing. They are separate
    /// changes: reading the file in a loop takes a core, which would slow down the report to the agent.
    fn sample(&self, is_primary: bool, wait: &mut dyn FnMut(), times: &mut ChangeTimes) {
        wait();
        times.files.push(self.time_to_file(is_primary));
        self.settle(is_primary);
        wait();
        times.reports.extend(self.time_to_agent(!is_primary));
        self.change(is_primary);
        self.settle(is_primary);
    }

    /// Makes `count` changes, one after the other, each reported to the agent before the next one.
    fn make_changes(&self, count: usize) {
        for turn in 0..count {
            self.time_to_agent(turn % 2 == 0);
        }
    }
}

/// The samples of changes to the state file and to the agent, in ms.
#[derive(Default)]
struct ChangeTimes {
    files: Vec<f64>,
    reports: Vec<f64>,
}

/// Runs all measurements.
pub fn run(args: &BenchArgs) -> BenchReport {
    let paths = &ProgramPaths {
        subject: args.subject.clone(),
        script: neutron_29(),
        daemon: path("VIPWATCH_NEUTRON_28"),
        limit: path("VIPWATCH_LIMIT"),
    };
    let pace = |full: usize| args.pick((full / 5).max(2), full);
    let mut rows = Vec::new();
    let size = std::fs::metadata(&paths.subject).expect("the drop-in").len();
    let size = f64::from(u32::try_from(size).expect("less than 4 GiB")) / 1024.0;
    rows.push(Row::new("binary", "KiB").ours(size).target(BenchTarget::AtMost(760.0)));
    latency::start(paths, pace(40), &mut rows);
    latency::change(paths, pace(400), &mut rows);
    cold::run(paths, &cold::FREQUENT, pace(100), &mut rows);
    cold::run(paths, &cold::RARE, pace(12), &mut rows);
    latency::agent_returns(paths, pace(20), &mut rows);
    latency::stop(paths, pace(20), &mut rows);
    load::cost(paths, pace(1_000), &mut rows);
    processes::started(paths, pace(1_000), &mut rows);
    load::burst(paths, &mut rows);
    load::unrelated(paths, &mut rows);
    for count in [50, 200] {
        load::at_once(paths, args.pick(count / 5, count), &mut rows);
    }
    for count in [1, 50, 200] {
        memory::footprint(paths, args.pick((count / 5).max(1), count), &mut rows);
    }
    memory::wrapped(paths, args.pick(2, 10), &mut rows);
    BenchReport::new("dropin", args, &["script 29.0.0", "daemon 28.0.2", "limit"], rows)
}

/// Prints which measurement begins.
fn progress(what: &str, program: Program) {
    eprintln!("bench: {what}: {}", program.name());
}

/// Puts `value` into the column of `program`.
fn set(row: &mut Row, program: Program, value: Option<f64>) {
    match program {
        Program::Ours => row.ours = value,
        Program::Script => row.set_peer(0, value),
        Program::Daemon => row.set_peer(1, value),
        Program::Limit => row.set_peer(2, value),
    }
}

/// The rows for the median and the 99th percentile.
fn quantile_rows(name: &str) -> [Row; 2] {
    ["p50", "p99"].map(|share| Row::new(format!("{name}, {share}"), "ms"))
}

/// Puts median and 99th percentile into the column of `program`.
fn set_quantiles(rows: &mut [Row; 2], program: Program, samples: Vec<f64>) {
    let samples = Samples::of(samples);
    set(&mut rows[0], program, samples.p50());
    set(&mut rows[1], program, samples.p99());
}
