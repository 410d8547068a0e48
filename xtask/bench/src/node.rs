// SPDX-License-Identifier: Apache-2.0
//! Measures one `vipwatch node` for all namespaces, and one script of Neutron 29.0.0 for each namespace.

pub mod streams;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vipwatch_history::Reader;
use vipwatch_linux::clock::unix_millis_now;
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::release::MonitorCall;
use vipwatch_testkit::routers::{HaRouter, LINK, VIP, vip};
use vipwatch_testkit::{
    Behaviour, FakeAgent, Lab, NodeFixture, NodeProcess, Release, Routers, pause,
};

use self::streams::{ReaderDelay, event_to_client, open_stream, reader_delay};
use crate::args::{BenchArgs, namespaces, neutron_29};
use crate::measure::{
    MemoryUse, Samples, count, cpu, families, fds, kill_all, memory, ms, slab, thread_cpu,
};
use crate::report::{BenchReport, BenchTarget, Row};

/// Maximum time for a start: enough for 1,000 scripts.
pub const START_TIMEOUT: Duration = Duration::from_mins(10);

/// The directory of the state files, in memory.
pub const STATES: &str = "/run/vipwatch/state";

/// Maximum number of scripts, and of routers that change at once.
const MAX_SCRIPTS: usize = 1000;

/// The results of the node or of the scripts; `None` if a value was not measured or not reached.
#[derive(Default)]
struct Figures {
    memory: Option<MemoryUse>,
    /// Open files.
    fds: Option<f64>,
    /// Growth of the kernel's slab memory at the start, in KiB.
    slab: Option<f64>,
    /// CPU time while nothing changes, in percent of one core.
    idle: Option<f64>,
    /// From the start to readiness, in ms.
    ready: Option<f64>,
    /// From a change to the state file, in ms.
    file: Samples,
    /// From a change to an event of the event stream, in ms.
    event: Samples,
    /// The delay that slow and dead readers of the event stream add.
    readers: Option<ReaderDelay>,
    /// From many changes at once to the last state file, in ms.
    all_files: Option<f64>,
    /// From many changes at once to the last row of the history, in ms.
    all_records: Option<f64>,
    /// From the loss of events to the correct state, in ms.
    resync: Option<f64>,
    /// Netlink sockets that have joined multicast groups.
    sockets: Option<f64>,
}

/// Runs all measurements.
pub fn run(args: &BenchArgs) -> BenchReport {
    let counts: &[usize] = args.pick(&[10, 100], &[10, 1000, 5000]);
    let wanted = namespaces(0);
    let counts = if wanted == 0 { counts } else { &[wanted] };
    let mut rows = Vec::new();
    for &count in counts {
        eprintln!("bench: making {count} namespaces");
        let lab = Lab::new();
        let routers = Routers::new(lab.path(), &format!("b{count}"), count, 0);
        let ours = ours(args, &lab, &routers);
        let theirs = (count <= MAX_SCRIPTS).then(|| theirs(args, &lab, &routers));
        report(count, &ours, &theirs.unwrap_or_default(), &mut rows);
    }
    BenchReport::new("node", args, &["scripts 29.0.0, one for each namespace"], rows)
}

/// The CPU time of a span in percent of one core; `used` reads the CPU time in ms.
fn cpu_percent(span: Duration, used: impl Fn() -> f64) -> f64 {
    let (before, since) = (used(), Instant::now());
    pause(span);
    (used() - before) / ms(since.elapsed()) * 100.0
}

fn idle_span(args: &BenchArgs) -> Duration {
    Duration::from_secs(args.pick(10, 60))
}

/// A configuration that writes the state of each router to the directory of the example configuration, in memory.
pub fn with_state_files(settings: &str) -> String {
    format!("{settings}[[notify]]\norigin = \"neutron\"\nstate_file = \"{STATES}/{{id}}\"\n")
}

fn ours(args: &BenchArgs, lab: &Lab, routers: &Routers) -> Figures {
    let count = routers.each.len();
    let progress = |what: &str| eprintln!("bench: {count} namespaces: vipwatch: {what}");
    let fixture = NodeFixture::new(&args.subject, lab.path()).with_processes();
    let states = Path::new(STATES);
    fixture.configure(&with_state_files(""));
    let mut figures = Figures::default();
    progress("start");
    let before = slab();
    let began = Instant::now();
    let node = fixture.start_within(START_TIMEOUT);
    figures.ready = Some(ms(began.elapsed()));
    figures.slab = Some(slab() - before);
    wait_for_all(states, routers, "backup");
    progress("idle");
    // Work that the node defers after its start is not part of the idle time.
    pause(Duration::from_secs(15));
    figures.idle = Some(cpu_percent(idle_span(args), || thread_cpu(node.pid())));
    progress("changes");
    let samples = args.pick(50, 400);
    figures.file = event_to_file(states, routers, samples);
    figures.event = event_to_client(open_stream(&fixture), routers, samples);
    progress("all at once");
    let at = unix_millis_now();
    let began = Instant::now();
    figures.all_files = at_once(states, routers);
    figures.all_records = recorded(&fixture, at, count.min(MAX_SCRIPTS), began);
    figures.memory = Some(memory(&[node.pid()]));
    figures.fds = Some(fds(node.pid()));
    figures.sockets = Some(event_sockets(node.pid()));
    progress("resync");
    figures.resync = resync(&node, states, routers);
    routers.each.iter().take(MAX_SCRIPTS).for_each(HaRouter::give_up);
    wait_for_all(states, routers, "backup");
    progress("slow and dead readers");
    let open = || open_stream(&fixture);
    figures.readers = reader_delay(&open, states, routers, args.pick(3, 9));
    let _ = node.stop();
    figures
}

fn theirs(args: &BenchArgs, lab: &Lab, routers: &Routers) -> Figures {
    let count = routers.each.len();
    let progress = |what: &str| eprintln!("bench: {count} namespaces: scripts: {what}");
    let confs = lab.path().join("ha_confs");
    // Without an agent, a script ends at the first change.
    let _agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    let mut figures = Figures::default();
    progress("start");
    let before = slab();
    let began = Instant::now();
    let mut scripts = Scripts(Vec::new());
    for router in &routers.each {
        scripts.0.push(Script::start(&neutron_29(), lab, router));
    }
    let is_ready = wait_for_all(&confs, routers, "backup");
    figures.ready = is_ready.then(|| ms(began.elapsed()));
    figures.slab = Some(slab() - before);
    progress("idle");
    pause(Duration::from_secs(5));
    let pids = scripts.pids();
    figures.memory = Some(memory(&pids));
    figures.fds = Some(pids.iter().map(|pid| fds(*pid)).sum());
    figures.sockets = Some(pids.iter().map(|pid| event_sockets(*pid)).sum());
    figures.idle = Some(cpu_percent(idle_span(args), || cpu(&pids)));
    progress("changes");
    figures.file = event_to_file(&confs, routers, args.pick(10, 40));
    progress("all at once");
    figures.all_files = at_once(&confs, routers);
    routers.each.iter().for_each(HaRouter::give_up);
    drop(scripts);
    figures
}

/// Neutron's script for one router.
struct Script {
    child: Child,
    /// From the script's pid file.
    pid: i32,
}

impl Script {
    fn start(neutron: &Path, lab: &Lab, router: &HaRouter) -> Self {
        let pids = lab.path().join("external/pids");
        std::fs::create_dir_all(&pids).expect("a directory");
        let conf_dir = lab.path().join("ha_confs").join(&router.id);
        let call = MonitorCall {
            router: &router.id,
            netns: router.netns.name(),
            conf_dir: &conf_dir,
            link: LINK,
            cidr: VIP,
            pids: &pids,
            state_path: lab.path(),
            user: 0,
            group: 0,
            conntrackd: false,
            debug: false,
        };
        let child = Command::new(neutron.join("bin/neutron-keepalived-state-change"))
            .args(Release::V29.arguments(&call))
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the script starts");
        let file = pids.join(Release::V29.pid_file(&router.id));
        let pid = until(START_TIMEOUT, || read_pid(&file)).expect("a pid file");
        Self { child, pid }
    }
}

/// The scripts of all routers. They are killed with their descendants when dropped.
struct Scripts(Vec<Script>);

impl Scripts {
    fn pids(&self) -> Vec<i32> {
        let pids: Vec<i32> = self.0.iter().map(|script| script.pid).collect();
        families(&pids)
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        kill_all(self.pids());
        for script in &mut self.0 {
            let _ = script.child.kill();
            let _ = script.child.wait();
        }
    }
}

/// Repeats `probe` every 200 µs until it returns a value; `None` after `limit`.
pub fn until<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(answer) = probe() {
            return Some(answer);
        }
        pause(Duration::from_micros(200));
    }
    None
}

/// Whether the state file of router `id` has the state `word`.
fn holds(directory: &Path, id: &str, word: &str) -> bool {
    std::fs::read(directory.join(id).join("state")).is_ok_and(|held| held == word.as_bytes())
}

/// Waits until every state file has the state `word`; false after `START_TIMEOUT`.
pub fn wait_for_all(directory: &Path, routers: &Routers, word: &str) -> bool {
    let mut left: Vec<&str> = routers.each.iter().map(|router| router.id.as_str()).collect();
    let all = until(START_TIMEOUT, || {
        left.retain(|id| !holds(directory, id, word));
        left.is_empty().then_some(())
    });
    all.is_some()
}

/// Adds the virtual address for `primary`, removes it otherwise.
pub fn change(router: &HaRouter, word: &str) {
    let (editor, link) = router.editor();
    match word {
        "primary" => editor.add(link, vip()),
        _ => editor.remove(link, vip()),
    }
}

/// `count` routers, spread over all, each once to primary and once to backup.
pub fn changes(routers: &Routers, count: usize) -> impl Iterator<Item = (&HaRouter, &'static str)> {
    let chosen = (0..count).map(|number| &routers.each[number * 7 % routers.each.len()]);
    chosen.flat_map(|router| [(router, "primary"), (router, "backup")])
}

/// Measures single changes, from the netlink request to the state file; no samples if one takes more than 20 s.
pub fn event_to_file(directory: &Path, routers: &Routers, count: usize) -> Samples {
    let mut samples = Vec::new();
    for (router, word) in changes(routers, count) {
        let began = Instant::now();
        change(router, word);
        while !holds(directory, &router.id, word) {
            if began.elapsed() > Duration::from_secs(20) {
                if word == "primary" {
                    change(router, "backup");
                }
                return Samples::default();
            }
            std::thread::yield_now();
        }
        samples.push(ms(began.elapsed()));
    }
    Samples::of(samples)
}

/// Makes all routers, at most `MAX_SCRIPTS`, primary at once; returns the milliseconds until the last state file.
fn at_once(directory: &Path, routers: &Routers) -> Option<f64> {
    let chosen = &routers.each[..routers.each.len().min(MAX_SCRIPTS)];
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| chosen.iter().for_each(HaRouter::take));
        let mut left: Vec<&str> = chosen.iter().map(|router| router.id.as_str()).collect();
        until(Duration::from_mins(2), || {
            left.retain(|id| !holds(directory, id, "primary"));
            // Reading 1,000 files without a pause would take the CPU from the measured program.
            pause(Duration::from_millis(10));
            left.is_empty().then_some(())
        })
    })?;
    Some(ms(began.elapsed()))
}

/// The milliseconds until the history on the disk has `count` transitions to primary since `since`.
fn recorded(fixture: &NodeFixture, since: i64, count: usize, began: Instant) -> Option<f64> {
    let reader = Reader::open(&fixture.state_dir()).ok()?;
    until(Duration::from_mins(1), || {
        let flaps = reader.flaps(since, i64::MAX).ok()?;
        let primary: i64 = flaps.iter().map(|flaps| flaps.primary).sum();
        (usize::try_from(primary).ok()? >= count).then_some(())
    })?;
    Some(ms(began.elapsed()))
}

/// Stops the node (SIGSTOP) while more events happen than its socket's buffer can hold, and continues it; returns
/// the milliseconds until the state file is correct.
fn resync(node: &NodeProcess, directory: &Path, routers: &Routers) -> Option<f64> {
    let (first, last) = (routers.each.first()?, routers.each.last()?);
    let other = "10.9.9.9/32".parse().expect("an address");
    node.signal(Signal::STOP);
    let (editor, link) = first.editor();
    for _ in 0..40_000 {
        editor.add(link, other);
        editor.remove(link, other);
    }
    let is_primary = holds(directory, &last.id, "primary");
    let (before, word) = if is_primary { ("primary", "backup") } else { ("backup", "primary") };
    change(last, word);
    let began = Instant::now();
    node.signal(Signal::CONT);
    let done = until(Duration::from_mins(1), || holds(directory, &last.id, word).then_some(()));
    let took = ms(began.elapsed());
    change(last, before);
    done.map(|()| took)
}

/// Number of netlink sockets of `pid` that have joined multicast groups.
fn event_sockets(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/netlink")).unwrap_or_default();
    let sockets = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let groups = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        let inode = fields.get(9)?;
        (groups != 0).then(|| PathBuf::from(format!("socket:[{inode}]")))
    });
    let sockets: Vec<PathBuf> = sockets.collect();
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    count(targets.filter(|target| sockets.contains(target)).count())
}

/// Adds the rows for `number` namespaces.
fn report(number: usize, ours: &Figures, theirs: &Figures, rows: &mut Vec<Row>) {
    let mut row = |name: &str, unit, of: &dyn Fn(&Figures) -> Option<f64>, limit: Option<f64>| {
        let row = Row::new(format!("{number} namespaces: {name}"), unit);
        rows.push(row.ours(of(ours)).peer(of(theirs)).target(limit.map(BenchTarget::AtMost)));
    };
    let is_large = number >= 5000;
    let rss = |f: &Figures| Some(f.memory?.rss / 1024.0);
    row("resident memory", "MiB", &rss, is_large.then_some(25.0));
    row("of that anonymous memory", "MiB", &|f| Some(f.memory?.anonymous / 1024.0), None);
    row("netlink sockets that listen", "", &|f| f.sockets, is_large.then_some(1.0));
    row("open files", "", &|f| f.fds, None);
    row("kernel slab", "MiB", &|f| Some(f.slab? / 1024.0), None);
    row("CPU while nothing happens", "%", &|f| f.idle, Some(0.1));
    row("start → ready", "ms", &|f| f.ready, Some(2000.0));
    row("change → state file, p50", "ms", &|f| f.file.p50(), None);
    row("change → state file, p99", "ms", &|f| f.file.p99(), None);
    row("change → event of the stream, p50", "ms", &|f| f.event.p50(), None);
    row("change → event of the stream, p99", "ms", &|f| f.event.p99(), None);
    let all = number.min(MAX_SCRIPTS);
    let limit = |limit: f64| (all >= 1000).then_some(limit);
    row(&format!("{all} at once → every state file"), "ms", &|f| f.all_files, limit(300.0));
    let name = format!("{all} at once → every record on the disk");
    row(&name, "ms", &|f| f.all_records, limit(300.0));
    row("events lost → all namespaces read again", "ms", &|f| f.resync, None);
    let name = format!("{all} at once with 500 slow and dead readers → every state file");
    row(&name, "ms", &|f| Some(f.readers?.with), None);
    row("the same with readers ÷ without", "", &|f| Some(f.readers?.ratio()), limit(1.1));
}
