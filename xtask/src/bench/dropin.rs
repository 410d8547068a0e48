//! The drop-in beside the script of Neutron 29.0.0 and the Python daemon of 28.0.2, and beside the limit on
//! this machine: a C program that does the least that any monitor must do.

mod cold;
pub mod limit;
mod memory;
mod processes;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{AddressEditor, Behaviour, FakeAgent, Lab, Release, Router, pause};

use super::measure::{Samples, cpu, family, machine, ms};
use super::report::{BenchReport, BenchTarget, Row};
use crate::Stop;

/// Where the programs are.
pub struct PeerPrograms {
    pub subject: PathBuf,
    pub script: PathBuf,
    pub daemon: PathBuf,
}

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Ours,
    Script,
    Daemon,
    /// `dropin/limit.c`
    Limit,
}

impl Who {
    /// Ours and those it replaces.
    const ALL: [Self; 3] = [Self::Ours, Self::Script, Self::Daemon];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "vipwatch",
            Self::Script => "script",
            Self::Daemon => "daemon",
            Self::Limit => "limit",
        }
    }

    /// Fewer samples of those who take longer.
    fn samples(self, of_ours: usize) -> usize {
        match self {
            Self::Ours | Self::Limit => of_ours,
            Self::Script => (of_ours / 4).max(4),
            Self::Daemon => (of_ours / 10).max(3),
        }
    }
}

impl PeerPrograms {
    fn command(&self, who: Who, router: &Router) -> Command {
        let (program, extra): (PathBuf, &[&str]) = match who {
            Who::Ours => (self.subject.clone(), &[]),
            Who::Script => (self.script.join("bin/neutron-keepalived-state-change"), &[]),
            // Without a configuration of its own it would read the machine's.
            Who::Daemon => (
                self.daemon.join("bin/neutron-keepalived-state-change"),
                &["--config-file=/dev/null"],
            ),
            Who::Limit => return limit::command(router),
        };
        let mut command = router.command(&program);
        command.args(extra);
        as_service(&mut command);
        command
    }
}

/// An agent is a service: its environment is not a developer's, which is pages larger.
fn as_service(command: &mut Command) {
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}

/// A program that was started, and everything it keeps alive.
struct Running {
    spawned: Child,
    pid: i32,
}

impl Running {
    fn start(homes: &PeerPrograms, who: Who, router: &Router) -> Self {
        let spawned = homes.command(who, router).spawn().expect("the program starts");
        let pid =
            spin(Duration::from_mins(1), || read_pid(&router.pid_file())).expect("a pid file");
        Self { spawned, pid }
    }

    /// The monitor's processes, without those that only started it.
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

/// Asks again and again, without sleeping: what is measured here is shorter than any sleep.
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

/// One router with an agent and a program that runs.
struct Stage {
    running: Running,
    agent: FakeAgent,
    editor: AddressEditor,
    link: u32,
    vip: IpNet,
    router: Router,
    _lab: Lab,
}

fn router_for(who: Who, lab: &Lab, number: u32) -> Router {
    // The daemon knows the equals form only; both forms mean the same to ours.
    let release = if who == Who::Daemon { Release::V26 } else { Release::V29 };
    let mut router = Router::numbered(lab, release, number);
    router.debug = false;
    router
}

fn stage(homes: &PeerPrograms, who: Who) -> Stage {
    stage_with(who, |router| Running::start(homes, who, router))
}

fn stage_with(who: Who, start: impl FnOnce(&Router) -> Running) -> Stage {
    let lab = Lab::new();
    let router = router_for(who, &lab, 1);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    let running = start(&router);
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().expect("an address");
    let stage = Stage { running, agent, editor, link, vip, router, _lab: lab };
    // The script says nothing until something happens, so something happens; and what it
    // says first is no part of any figure.
    spin(Duration::from_secs(30), || stage.router.state());
    pause(Duration::from_millis(300));
    stage.change(true);
    stage.settle("primary");
    stage.change(false);
    stage.settle("backup");
    stage
}

impl Stage {
    fn change(&self, is_primary: bool) {
        if is_primary {
            self.editor.add(self.link, self.vip);
        } else {
            self.editor.remove(self.link, self.vip);
        }
    }

    /// Changes the address; how long until the file says so, in milliseconds.
    fn time_to_file(&self, is_primary: bool) -> f64 {
        let word = if is_primary { "primary" } else { "backup" };
        let began = Instant::now();
        self.change(is_primary);
        spin(Duration::from_secs(10), || {
            (self.router.state().as_deref() == Some(word)).then_some(())
        });
        ms(began.elapsed())
    }

    /// Changes the address; how long until the agent has read of it, in milliseconds.
    fn time_to_agent(&self, is_primary: bool) -> Option<f64> {
        let word = if is_primary { "primary" } else { "backup" };
        let began = Instant::now();
        self.change(is_primary);
        let letter = self.agent.wait_for_next(word, Duration::from_secs(10));
        letter.map(|letter| ms(letter.at - began))
    }

    fn is_told(&self, word: &str) -> bool {
        self.agent.last().is_some_and(|letter| letter.word() == word)
    }

    fn settle(&self, word: &str) -> bool {
        spin(Duration::from_secs(10), || {
            (self.router.state().as_deref() == Some(word) && self.is_told(word)).then_some(())
        })
        .is_some()
    }
}

/// Measures everything.
pub fn run(homes: &PeerPrograms, is_quick: bool) -> Result<BenchReport, Stop> {
    let pace = |full: usize| if is_quick { (full / 5).max(2) } else { full };
    let mut rows = Vec::new();
    binary(homes, &mut rows)?;
    start(homes, pace(40), &mut rows);
    change(homes, pace(400), &mut rows);
    cold::run(homes, &cold::FREQUENT, pace(100), &mut rows);
    cold::run(homes, &cold::RARE, pace(12), &mut rows);
    agent_returns(homes, pace(20), &mut rows);
    stop(homes, pace(20), &mut rows);
    cost(homes, pace(1_000), &mut rows);
    processes::started(homes, pace(1_000), &mut rows);
    burst(homes, &mut rows);
    unrelated(homes, &mut rows);
    for count in [50, 200] {
        at_once(homes, if is_quick { count / 5 } else { count }, &mut rows);
    }
    for count in [1, 50, 200] {
        memory::footprint(homes, if is_quick { (count / 5).max(1) } else { count }, &mut rows);
    }
    memory::wrapped(homes, if is_quick { 2 } else { 10 }, &mut rows);
    let title = if is_quick { "bench dropin (quick: no figures to quote)" } else { "bench dropin" };
    let peers = &["script 29.0.0", "daemon 28.0.2", "limit"];
    Ok(BenchReport { title: title.to_owned(), machine: machine(), peers, rows })
}

fn say(what: &str, who: Who) {
    eprintln!("bench: {what}: {}", who.name());
}

fn set(row: &mut Row, who: Who, value: Option<f64>) {
    match who {
        Who::Ours => row.ours = value,
        Who::Script => row.set_peer(0, value),
        Who::Daemon => row.set_peer(1, value),
        Who::Limit => row.set_peer(2, value),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a file size")]
fn binary(homes: &PeerPrograms, rows: &mut Vec<Row>) -> Result<(), Stop> {
    let mut row = Row::new("binary", "KiB");
    row.ours = Some(std::fs::metadata(&homes.subject)?.len() as f64 / 1024.0);
    row.target = Some(BenchTarget::AtMost(760.0));
    rows.push(row);
    Ok(())
}

/// Spawn to the first state, in the file and at the agent.
fn start(homes: &PeerPrograms, count: usize, rows: &mut Vec<Row>) {
    let mut written = Row::new("spawn → first state written, p50", "ms");
    let mut told = Row::new("spawn → first state received, p50", "ms");
    written.target = Some(BenchTarget::AtMost(3.0));
    for who in Who::ALL {
        say("start", who);
        let mut files = Vec::new();
        let mut letters = Vec::new();
        for _ in 0..who.samples(count) {
            let lab = Lab::new();
            let router = router_for(who, &lab, 1);
            let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
            let state = router.conf_dir.join("state");
            let mut command = homes.command(who, &router);
            let began = Instant::now();
            let mut spawned = command.spawn().expect("the program starts");
            spin(Duration::from_secs(30), || state.exists().then_some(()));
            files.push(ms(began.elapsed()));
            let patience = if who == Who::Ours { 10 } else { 2 };
            spin(Duration::from_secs(patience), || agent.last());
            letters.extend(agent.last().map(|letter| ms(letter.at - began)));
            if let Some(pid) = read_pid(&router.pid_file()) {
                for pid in family(pid).into_iter().filter_map(Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
            let _ = spawned.kill();
            let _ = spawned.wait();
        }
        set(&mut written, who, Samples::of(files).map(|samples| samples.quantile(0.5)));
        set(&mut told, who, Samples::of(letters).map(|samples| samples.quantile(0.5)));
    }
    rows.extend([written, told]);
}

/// A change of the address to the file and to the agent.
fn change(homes: &PeerPrograms, count: usize, rows: &mut Vec<Row>) {
    let names = [
        "VIP change → file, p50",
        "VIP change → file, p99",
        "VIP change → agent, p50",
        "VIP change → agent, p99",
    ];
    let mut table = names.map(|name| Row::new(name, "ms"));
    table[2].target = Some(BenchTarget::TimesLess(50.0));
    for who in Who::ALL.into_iter().chain([Who::Limit]) {
        say("change", who);
        let stage = stage(homes, who);
        let mut files = Vec::new();
        let mut letters = Vec::new();
        for turn in 0..who.samples(count) {
            let is_primary = turn % 2 == 0;
            let word = if is_primary { "primary" } else { "backup" };
            // First the file, by looking at it all the time; then the agent, by waiting for
            // it: looking takes a core that the other would have.
            files.push(stage.time_to_file(is_primary));
            stage.settle(word);
            letters.extend(stage.time_to_agent(!is_primary));
            stage.change(is_primary);
            stage.settle(word);
        }
        for (samples, at) in [(Samples::of(files), 0), (Samples::of(letters), 2)] {
            set(&mut table[at], who, samples.as_ref().map(|samples| samples.quantile(0.5)));
            set(&mut table[at + 1], who, samples.as_ref().map(|samples| samples.quantile(0.99)));
        }
    }
    let distances = [limit::distance(&table[0]), limit::distance(&table[2])];
    rows.extend(table);
    rows.extend(distances);
}

/// The agent's socket comes back after a while: how long until it is told.
fn agent_returns(homes: &PeerPrograms, count: usize, rows: &mut Vec<Row>) {
    let mut row = Row::new("agent back after 2 s → told, p50", "ms");
    say("agent returns", Who::Ours);
    let mut stage = stage(homes, Who::Ours);
    let mut samples = Vec::new();
    for turn in 0..count {
        let gone = std::mem::replace(&mut stage.agent, FakeAgent::nowhere());
        drop(gone);
        stage.change(turn % 2 == 0);
        pause(Duration::from_secs(2));
        let began = Instant::now();
        stage.agent = FakeAgent::listen(&stage.router.state_path, Behaviour::Threaded);
        let word = if turn % 2 == 0 { "primary" } else { "backup" };
        let letter = stage.agent.wait_for_next(word, Duration::from_secs(10));
        samples.extend(letter.map(|letter| ms(letter.at - began)));
    }
    row.ours = Samples::of(samples).map(|samples| samples.quantile(0.5));
    rows.push(row);
}

fn stop(homes: &PeerPrograms, count: usize, rows: &mut Vec<Row>) {
    let mut row = Row::new("SIGTERM → gone, max", "ms");
    row.target = Some(BenchTarget::AtMost(100.0));
    for who in [Who::Ours, Who::Script] {
        say("stop", who);
        let mut samples = Vec::new();
        for _ in 0..who.samples(count) {
            let stage = stage(homes, who);
            let pid = stage.running.pid;
            let began = Instant::now();
            let _ = rustix::process::kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM);
            spin(Duration::from_secs(10), || {
                (!vipwatch_testkit::monitor::is_alive(pid)).then_some(())
            });
            samples.push(ms(began.elapsed()));
        }
        set(&mut row, who, Samples::of(samples).map(|samples| samples.max()));
    }
    rows.push(row);
}

/// CPU time for a thousand changes, one after the other.
#[expect(clippy::cast_precision_loss, reason = "a count of changes")]
fn cost(homes: &PeerPrograms, count: usize, rows: &mut Vec<Row>) {
    let mut time = Row::new("CPU per 1,000 changes", "ms");
    time.target = Some(BenchTarget::TimesLess(200.0));
    for who in Who::ALL {
        say("cost", who);
        let stage = stage(homes, who);
        let changes = who.samples(count) / 2 * 2;
        let pids = stage.running.pids();
        let cpu_before = cpu(&pids);
        for turn in 0..changes {
            let word = if turn % 2 == 0 { "primary" } else { "backup" };
            stage.change(turn % 2 == 0);
            stage.agent.wait_for_next(word, Duration::from_secs(10));
        }
        let used = cpu(&pids) - cpu_before;
        let share = 1_000.0 / changes as f64;
        set(&mut time, who, Some(used * share));
    }
    rows.push(time);
}

/// A thousand changes as fast as the kernel takes them.
fn burst(homes: &PeerPrograms, rows: &mut Vec<Row>) {
    let mut row = Row::new("1,000 changes in one burst → right", "ms");
    for who in Who::ALL {
        say("burst", who);
        let stage = stage(homes, who);
        for turn in 0..999 {
            stage.change(turn % 2 == 0);
        }
        let began = Instant::now();
        set(&mut row, who, until_right(&stage, began, "primary"));
    }
    rows.push(row);
}

/// Five thousand events of other addresses, with twenty changes among them.
fn unrelated(homes: &PeerPrograms, rows: &mut Vec<Row>) {
    let mut row = Row::new("5,000 unrelated events, 20 changes → right", "ms");
    row.target = Some(BenchTarget::AtMost(100.0));
    for who in Who::ALL {
        say("unrelated events", who);
        let stage = stage(homes, who);
        let mut is_held = false;
        for n in 0..2_500_u32 {
            let other: IpNet =
                format!("10.{}.{}.7/32", n / 250, n % 250).parse().expect("an address");
            stage.editor.add(stage.link, other);
            stage.editor.remove(stage.link, other);
            if n % 120 == 60 {
                is_held = !is_held;
                stage.change(is_held);
            }
        }
        if !is_held {
            stage.change(true);
        }
        let began = Instant::now();
        set(&mut row, who, until_right(&stage, began, "primary"));
    }
    rows.push(row);
}

/// Time until file and agent say `word` and go on saying it; `None` if they never do.
fn until_right(stage: &Stage, began: Instant, word: &str) -> Option<f64> {
    let is_right = || stage.router.state().as_deref() == Some(word) && stage.is_told(word);
    let end = began + Duration::from_secs(90);
    let mut since: Option<Instant> = None;
    while Instant::now() < end {
        match (is_right(), since) {
            (true, None) => since = Some(Instant::now()),
            // A second of it, for those who work off a backlog.
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

/// The address appears in many namespaces at once.
fn at_once(homes: &PeerPrograms, count: u32, rows: &mut Vec<Row>) {
    let mut half = Row::new(format!("VIP in {count} namespaces at once → told, p50"), "ms");
    let mut last = Row::new(format!("VIP in {count} namespaces at once → told, last"), "ms");
    let mut missing = Row::new(format!("VIP in {count} namespaces at once: never told"), "routers");
    if count >= 40 {
        half.target = (count >= 200).then_some(BenchTarget::TimesLess(20.0));
    }
    for who in [Who::Ours, Who::Script] {
        say(&format!("{count} at once"), who);
        let lab = Lab::new();
        let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let routers: Vec<_> = (1..=count).map(|number| router_for(who, &lab, number)).collect();
        let hands: Vec<_> = routers.iter().map(Router::editor).collect();
        let running: Vec<_> =
            routers.iter().map(|router| Running::start(homes, who, router)).collect();
        for router in &routers {
            spin(Duration::from_secs(30), || router.state());
        }
        pause(Duration::from_secs(1));
        let began = Instant::now();
        for ((editor, link), router) in hands.iter().zip(&routers) {
            editor.add(*link, router.cidr.parse().expect("an address"));
        }
        let is_primary = |letter: &vipwatch_testkit::agent::AgentRequest| {
            letter.at >= began && letter.word() == "primary"
        };
        let first_words = || {
            let mut first = std::collections::HashMap::new();
            for letter in agent.letters().into_iter().filter(&is_primary) {
                first.entry(letter.router().to_owned()).or_insert(letter.at);
            }
            first
        };
        let end = Instant::now() + Duration::from_secs(20);
        while first_words().len() < routers.len() && Instant::now() < end {
            pause(Duration::from_millis(20));
        }
        let first = first_words();
        let never = routers.len() - first.len();
        let samples = Samples::of(first.values().map(|at| ms(*at - began)).collect());
        set(&mut half, who, samples.as_ref().map(|samples| samples.quantile(0.5)));
        set(&mut last, who, samples.as_ref().map(Samples::max));
        set(&mut missing, who, u32::try_from(never).ok().map(f64::from));
        drop(running);
    }
    rows.extend([half, last, missing]);
}
