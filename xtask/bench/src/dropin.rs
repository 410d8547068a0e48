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
use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{AddressEditor, Behaviour, FakeAgent, Lab, Release, Router, pause};

use crate::measure::{family, machine, ms};
use crate::report::{BenchReport, BenchTarget, Row};

/// Where the measured programs are.
pub struct ProgramPaths {
    /// The executable of the drop-in.
    pub subject: PathBuf,
    /// The Python environment with Neutron 29.0.0, for the shell script.
    pub script: PathBuf,
    /// The Python environment with Neutron 28.0.2, for the Python daemon.
    pub daemon: PathBuf,
    /// The executable made from `dropin/limit.c`.
    pub limit: PathBuf,
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
        for pid in self.pids().into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
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
    setup.change(true);
    setup.settle("primary");
    setup.change(false);
    setup.settle("backup");
    setup
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
        let word = if is_primary { "primary" } else { "backup" };
        let began = Instant::now();
        self.change(is_primary);
        spin(Duration::from_secs(10), || {
            (self.router.state().as_deref() == Some(word)).then_some(())
        });
        ms(began.elapsed())
    }

    /// Changes the address and returns the milliseconds until the agent has received the report; `None` after 10 s.
    fn time_to_agent(&self, is_primary: bool) -> Option<f64> {
        let word = if is_primary { "primary" } else { "backup" };
        let began = Instant::now();
        self.change(is_primary);
        let report = self.agent.wait_for_next(word, Duration::from_secs(10));
        report.map(|report| ms(report.at - began))
    }

    /// Whether the last report to the agent has the state `word`.
    fn is_reported(&self, word: &str) -> bool {
        self.agent.last().is_some_and(|report| report.word() == word)
    }

    /// Waits until the state file and the agent have the state `word`; false after 10 s.
    fn settle(&self, word: &str) -> bool {
        spin(Duration::from_secs(10), || {
            (self.router.state().as_deref() == Some(word) && self.is_reported(word)).then_some(())
        })
        .is_some()
    }
}

/// Runs all measurements. An error is that of reading the size of the drop-in's executable.
pub fn run(paths: &ProgramPaths, is_quick: bool) -> std::io::Result<BenchReport> {
    let pace = |full: usize| if is_quick { (full / 5).max(2) } else { full };
    let mut rows = Vec::new();
    binary(paths, &mut rows)?;
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
        load::at_once(paths, if is_quick { count / 5 } else { count }, &mut rows);
    }
    for count in [1, 50, 200] {
        memory::footprint(paths, if is_quick { (count / 5).max(1) } else { count }, &mut rows);
    }
    memory::wrapped(paths, if is_quick { 2 } else { 10 }, &mut rows);
    let title = if is_quick { "bench dropin (quick: no figures to quote)" } else { "bench dropin" };
    let peers = &["script 29.0.0", "daemon 28.0.2", "limit"];
    Ok(BenchReport { title: title.to_owned(), machine: machine(), peers, rows, notes: Vec::new() })
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

#[expect(clippy::cast_precision_loss, reason = "a file size")]
fn binary(paths: &ProgramPaths, rows: &mut Vec<Row>) -> std::io::Result<()> {
    let mut row = Row::new("binary", "KiB");
    row.ours = Some(std::fs::metadata(&paths.subject)?.len() as f64 / 1024.0);
    row.target = Some(BenchTarget::AtMost(760.0));
    rows.push(row);
    Ok(())
}
