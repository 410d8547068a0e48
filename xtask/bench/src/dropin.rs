//! Measures the drop-in, the shell script of Neutron 29.0.0 and the Python daemon of Neutron 28.0.2.
//!
//! `limit.c` is measured too: a C program that does only what every monitor must do. It shows the lower bound
//! on this machine.

mod cold;
mod limit;
mod memory;
mod processes;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{AddressEditor, Behaviour, FakeAgent, Lab, Release, Router, pause};

use crate::measure::{Samples, cpu, family, machine, ms};
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
    start(paths, pace(40), &mut rows);
    change(paths, pace(400), &mut rows);
    cold::run(paths, &cold::FREQUENT, pace(100), &mut rows);
    cold::run(paths, &cold::RARE, pace(12), &mut rows);
    agent_returns(paths, pace(20), &mut rows);
    stop(paths, pace(20), &mut rows);
    cost(paths, pace(1_000), &mut rows);
    processes::started(paths, pace(1_000), &mut rows);
    burst(paths, &mut rows);
    unrelated(paths, &mut rows);
    for count in [50, 200] {
        at_once(paths, if is_quick { count / 5 } else { count }, &mut rows);
    }
    for count in [1, 50, 200] {
        memory::footprint(paths, if is_quick { (count / 5).max(1) } else { count }, &mut rows);
    }
    memory::wrapped(paths, if is_quick { 2 } else { 10 }, &mut rows);
    let title = if is_quick { "bench dropin (quick: no figures to quote)" } else { "bench dropin" };
    let peers = &["script 29.0.0", "daemon 28.0.2", "limit"];
    Ok(BenchReport { title: title.to_owned(), machine: machine(), peers, rows })
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

/// Measures the time from the start of the monitor to its first state, in the file and at the agent.
fn start(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let mut written = Row::new("spawn → first state written, p50", "ms");
    let mut received = Row::new("spawn → first state received, p50", "ms");
    written.target = Some(BenchTarget::AtMost(3.0));
    for program in Program::ALL {
        progress("start", program);
        let mut files = Vec::new();
        let mut reports = Vec::new();
        for _ in 0..program.samples(count) {
            let lab = Lab::new();
            let router = router_for(program, &lab, 1);
            let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
            let state = router.conf_dir.join("state");
            let mut command = paths.command(program, &router);
            let began = Instant::now();
            let mut spawned = command.spawn().expect("the program starts");
            spin(Duration::from_secs(30), || state.exists().then_some(()));
            files.push(ms(began.elapsed()));
            let limit = Duration::from_secs(if program == Program::Ours { 10 } else { 2 });
            spin(limit, || agent.last());
            reports.extend(agent.last().map(|report| ms(report.at - began)));
            if let Some(pid) = read_pid(&router.pid_file()) {
                for pid in family(pid).into_iter().filter_map(Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
            let _ = spawned.kill();
            let _ = spawned.wait();
        }
        set(&mut written, program, Samples::of(files).map(|samples| samples.quantile(0.5)));
        set(&mut received, program, Samples::of(reports).map(|samples| samples.quantile(0.5)));
    }
    rows.extend([written, received]);
}

/// Measures the time from a change of the address to the state file and to the agent.
fn change(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let names = [
        "VIP change → file, p50",
        "VIP change → file, p99",
        "VIP change → agent, p50",
        "VIP change → agent, p99",
    ];
    let mut table = names.map(|name| Row::new(name, "ms"));
    table[2].target = Some(BenchTarget::TimesLess(50.0));
    for program in Program::ALL.into_iter().chain([Program::Limit]) {
        progress("change", program);
        let setup = setup(paths, program);
        let mut files = Vec::new();
        let mut reports = Vec::new();
        for turn in 0..program.samples(count) {
            let is_primary = turn % 2 == 0;
            let word = if is_primary { "primary" } else { "backup" };
            // The file and the agent are measured in separate changes: reading the file in a loop takes a core,
            // which would slow down the report to the agent.
            files.push(setup.time_to_file(is_primary));
            setup.settle(word);
            reports.extend(setup.time_to_agent(!is_primary));
            setup.change(is_primary);
            setup.settle(word);
        }
        for (samples, at) in [(Samples::of(files), 0), (Samples::of(reports), 2)] {
            set(&mut table[at], program, samples.as_ref().map(|samples| samples.quantile(0.5)));
            set(
                &mut table[at + 1],
                program,
                samples.as_ref().map(|samples| samples.quantile(0.99)),
            );
        }
    }
    let distances = [limit::distance(&table[0]), limit::distance(&table[2])];
    rows.extend(table);
    rows.extend(distances);
}

/// Measures the time from the return of the agent's socket, after 2 s of absence, to the report.
fn agent_returns(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let mut row = Row::new("agent back after 2 s → told, p50", "ms");
    progress("agent returns", Program::Ours);
    let mut setup = setup(paths, Program::Ours);
    let mut samples = Vec::new();
    for turn in 0..count {
        drop(std::mem::replace(&mut setup.agent, FakeAgent::nowhere()));
        setup.change(turn % 2 == 0);
        pause(Duration::from_secs(2));
        let began = Instant::now();
        setup.agent = FakeAgent::listen(&setup.router.state_path, Behaviour::Threaded);
        let word = if turn % 2 == 0 { "primary" } else { "backup" };
        let report = setup.agent.wait_for_next(word, Duration::from_secs(10));
        samples.extend(report.map(|report| ms(report.at - began)));
    }
    row.ours = Samples::of(samples).map(|samples| samples.quantile(0.5));
    rows.push(row);
}

/// Measures the time from SIGTERM to the end of the process.
fn stop(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let mut row = Row::new("SIGTERM → gone, max", "ms");
    row.target = Some(BenchTarget::AtMost(100.0));
    for program in [Program::Ours, Program::Script] {
        progress("stop", program);
        let mut samples = Vec::new();
        for _ in 0..program.samples(count) {
            let setup = setup(paths, program);
            let pid = setup.running.pid;
            let began = Instant::now();
            let _ = rustix::process::kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM);
            spin(Duration::from_secs(10), || {
                (!vipwatch_testkit::monitor::is_alive(pid)).then_some(())
            });
            samples.push(ms(began.elapsed()));
        }
        set(&mut row, program, Samples::of(samples).map(|samples| samples.max()));
    }
    rows.push(row);
}

/// Measures the CPU time of 1,000 changes, one after the other.
#[expect(clippy::cast_precision_loss, reason = "a count of changes")]
fn cost(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let mut time = Row::new("CPU per 1,000 changes", "ms");
    time.target = Some(BenchTarget::TimesLess(200.0));
    for program in Program::ALL {
        progress("cost", program);
        let setup = setup(paths, program);
        let changes = program.samples(count) / 2 * 2;
        let pids = setup.running.pids();
        let cpu_before = cpu(&pids);
        for turn in 0..changes {
            let word = if turn % 2 == 0 { "primary" } else { "backup" };
            setup.change(turn % 2 == 0);
            setup.agent.wait_for_next(word, Duration::from_secs(10));
        }
        let used = cpu(&pids) - cpu_before;
        let share = 1_000.0 / changes as f64;
        set(&mut time, program, Some(used * share));
    }
    rows.push(time);
}

/// Measures the time from the end of 1,000 changes, made as fast as the kernel allows, to the correct state.
fn burst(paths: &ProgramPaths, rows: &mut Vec<Row>) {
    let mut row = Row::new("1,000 changes in one burst → right", "ms");
    for program in Program::ALL {
        progress("burst", program);
        let setup = setup(paths, program);
        for turn in 0..999 {
            setup.change(turn % 2 == 0);
        }
        let began = Instant::now();
        set(&mut row, program, until_right(&setup, began, "primary"));
    }
    rows.push(row);
}

/// Measures the time to the correct state after 5,000 events of other addresses with 20 changes among them.
fn unrelated(paths: &ProgramPaths, rows: &mut Vec<Row>) {
    let mut row = Row::new("5,000 unrelated events, 20 changes → right", "ms");
    row.target = Some(BenchTarget::AtMost(100.0));
    for program in Program::ALL {
        progress("unrelated events", program);
        let setup = setup(paths, program);
        let mut is_held = false;
        for n in 0..2_500_u32 {
            let other: IpNet =
                format!("10.{}.{}.7/32", n / 250, n % 250).parse().expect("an address");
            setup.editor.add(setup.link, other);
            setup.editor.remove(setup.link, other);
            if n % 120 == 60 {
                is_held = !is_held;
                setup.change(is_held);
            }
        }
        if !is_held {
            setup.change(true);
        }
        let began = Instant::now();
        set(&mut row, program, until_right(&setup, began, "primary"));
    }
    rows.push(row);
}

/// The milliseconds until the file and the agent have the state `word` and keep it for one second; `None` if
/// that does not happen within 90 s.
fn until_right(setup: &Setup, began: Instant, word: &str) -> Option<f64> {
    let is_right = || setup.router.state().as_deref() == Some(word) && setup.is_reported(word);
    let end = began + Duration::from_secs(90);
    let mut since: Option<Instant> = None;
    while Instant::now() < end {
        match (is_right(), since) {
            (true, None) => since = Some(Instant::now()),
            // A monitor with a backlog passes through the right state several times.
            (true, Some(then)) if then.elapsed() > Duration::from_secs(1) => {
                return Some(ms(then - began));
            }
            (false, _) => since = None,
            (true, Some(_)) => {}
        }
        pause(Duration::from_micros(200));
    }
    None
}

/// Measures the reports after the address was added in many namespaces at once.
fn at_once(paths: &ProgramPaths, count: u32, rows: &mut Vec<Row>) {
    let mut half = Row::new(format!("VIP in {count} namespaces at once → told, p50"), "ms");
    let mut last = Row::new(format!("VIP in {count} namespaces at once → told, last"), "ms");
    let mut missing = Row::new(format!("VIP in {count} namespaces at once: never told"), "routers");
    if count >= 40 {
        half.target = (count >= 200).then_some(BenchTarget::TimesLess(20.0));
    }
    for program in [Program::Ours, Program::Script] {
        progress(&format!("{count} at once"), program);
        let lab = Lab::new();
        let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let routers: Vec<_> = (1..=count).map(|number| router_for(program, &lab, number)).collect();
        let editors: Vec<_> = routers.iter().map(Router::editor).collect();
        let running: Vec<_> =
            routers.iter().map(|router| Running::start(paths, program, router)).collect();
        for router in &routers {
            spin(Duration::from_secs(30), || router.state());
        }
        pause(Duration::from_secs(1));
        let began = Instant::now();
        for ((editor, link), router) in editors.iter().zip(&routers) {
            editor.add(*link, router.cidr.parse().expect("an address"));
        }
        let is_primary = |report: &vipwatch_testkit::agent::AgentRequest| {
            report.at >= began && report.word() == "primary"
        };
        let first_reports = || {
            let mut first = std::collections::HashMap::new();
            for report in agent.letters().into_iter().filter(&is_primary) {
                first.entry(report.router().to_owned()).or_insert(report.at);
            }
            first
        };
        let end = Instant::now() + Duration::from_secs(20);
        while first_reports().len() < routers.len() && Instant::now() < end {
            pause(Duration::from_millis(20));
        }
        let first = first_reports();
        let never = routers.len() - first.len();
        let samples = Samples::of(first.values().map(|at| ms(*at - began)).collect());
        set(&mut half, program, samples.as_ref().map(|samples| samples.quantile(0.5)));
        set(&mut last, program, samples.as_ref().map(Samples::max));
        set(&mut missing, program, u32::try_from(never).ok().map(f64::from));
        drop(running);
    }
    rows.extend([half, last, missing]);
}
