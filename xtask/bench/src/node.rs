// SPDX-License-Identifier: Apache-2.0
//! Measures one `vipwatch node` for all namespaces, and one script of Neutron 29.0.0 for each namespace.

pub mod streams;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use vipwatch_history::Reader;
use vipwatch_linux::clock::unix_millis_now;
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::release::MonitorCall;
use vipwatch_testkit::routers::{HaRouter, LINK, VIP, vip};
use vipwatch_testkit::{
    Behaviour, FakeAgent, Lab, NodeFixture, NodeProcess, Release, Routers, pause,
};

use self::streams::{ReaderDelay, event_to_client, open_stream, reader_delay};
use crate::measure::{Samples, cpu, families, fds, machine, memory, ms, slab, thread_cpu};
use crate::report::{BenchReport, BenchTarget, Row};

/// Maximum time for a start: enough for 1,000 scripts.
pub const START_TIMEOUT: Duration = Duration::from_mins(10);

/// Maximum number of scripts, and of routers that change at once.
const MAX_SCRIPTS: usize = 1000;

/// The measured programs and the number of repetitions.
pub struct NodeBench {
    pub subject: PathBuf,
    /// The Python environment with Neutron 29.0.0.
    pub script: PathBuf,
    pub is_quick: bool,
}

/// The results of the node or of the scripts; `None` if a value was not measured or not reached.
#[derive(Default)]
struct Figures {
    /// Resident memory, in KiB.
    rss: Option<f64>,
    /// The part of the resident memory that is not mapped from a file, in KiB.
    anonymous: Option<f64>,
    /// Open files.
    fds: Option<f64>,
    /// Growth of the kernel's slab memory at the start, in KiB.
    slab: Option<f64>,
    /// CPU time while nothing changes, in percent of one core.
    idle: Option<f64>,
    /// From the start to readiness, in ms.
    ready: Option<f64>,
    /// From a change to the state file, in ms.
    file: Option<Samples>,
    /// From a change to an event of the event stream, in ms.
    event: Option<Samples>,
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

impl NodeBench {
    /// Runs all measurements.
    pub fn run(&self) -> BenchReport {
        let counts: &[usize] = if self.is_quick { &[10, 100] } else { &[10, 1000, 5000] };
        let wanted = std::env::var("VIPWATCH_NAMESPACES").ok().and_then(|text| text.parse().ok());
        let counts = wanted.map_or_else(|| counts.to_vec(), |count| vec![count]);
        let mut rows = Vec::new();
        for count in &counts {
            eprintln!("bench: making {count} namespaces");
            let lab = Lab::new();
            let routers = Routers::new(lab.path(), &format!("b{count}"), *count, 0);
            let ours = self.ours(&lab, &routers);
            let theirs = match *count {
                count if count <= MAX_SCRIPTS => self.theirs(&lab, &routers),
                _ => Figures::default(),
            };
            report(*count, &ours, &theirs, &mut rows);
        }
        let title =
            if self.is_quick { "bench node (quick: no figures to quote)" } else { "bench node" };
        let peers = &["scripts 29.0.0, one for each namespace"];
        BenchReport { title: title.to_owned(), machine: machine(), peers, rows, notes: Vec::new() }
    }

    fn idle_span(&self) -> Duration {
        Duration::from_secs(if self.is_quick { 10 } else { 60 })
    }

    fn ours(&self, lab: &Lab, routers: &Routers) -> Figures {
        let count = routers.each.len();
        let progress = |what: &str| eprintln!("bench: {count} namespaces: vipwatch: {what}");
        let fixture = NodeFixture::new(&self.subject, lab.path()).with_processes();
        // The directory of the example configuration, in memory.
        let states = PathBuf::from("/run/vipwatch/state");
        fixture.configure(&format!(
            "[[notify]]\norigin = \"neutron\"\nstate_file = \"{}/{{id}}\"\n",
            states.display()
        ));
        let mut figures = Figures::default();
        progress("start");
        let before = slab();
        let began = Instant::now();
        let node = fixture.start_within(START_TIMEOUT);
        figures.ready = Some(ms(began.elapsed()));
        figures.slab = Some(slab() - before);
        wait_for_all(&states, routers, "backup");
        progress("idle");
        // Work that the node defers after its start is not part of the idle time.
        pause(Duration::from_secs(15));
        let (used, since) = (thread_cpu(node.pid()), Instant::now());
        pause(self.idle_span());
        figures.idle = Some((thread_cpu(node.pid()) - used) / ms(since.elapsed()) * 100.0);
        progress("changes");
        let samples = if self.is_quick { 50 } else { 400 };
        figures.file = event_to_file(&states, routers, samples);
        figures.event =
            open_stream(&fixture).and_then(|stream| event_to_client(stream, routers, samples));
        progress("all at once");
        let at = unix_millis_now();
        let began = Instant::now();
        figures.all_files = at_once(&states, routers);
        figures.all_records = recorded(&fixture, at, routers.each.len().min(MAX_SCRIPTS), began);
        let memory_use = memory(&[node.pid()]);
        figures.rss = Some(memory_use.rss);
        figures.anonymous = Some(memory_use.anonymous);
        figures.fds = Some(fds(node.pid()));
        figures.sockets = Some(event_sockets(node.pid()));
        progress("resync");
        figures.resync = resync(&node, &states, routers);
        for router in routers.each.iter().take(MAX_SCRIPTS) {
            router.give_up();
        }
        wait_for_all(&states, routers, "backup");
        progress("slow and dead readers");
        figures.readers = reader_delay(
            &|| open_stream(&fixture),
            &states,
            routers,
            if self.is_quick { 3 } else { 9 },
        );
        let _ = node.stop();
        figures
    }

    fn theirs(&self, lab: &Lab, routers: &Routers) -> Figures {
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
            scripts.0.push(Script::start(&self.script, lab, router));
        }
        let is_ready = wait_for_all(&confs, routers, "backup");
        figures.ready = is_ready.then(|| ms(began.elapsed()));
        figures.slab = Some(slab() - before);
        progress("idle");
        pause(Duration::from_secs(5));
        let pids = scripts.pids();
        let memory_use = memory(&pids);
        figures.rss = Some(memory_use.rss);
        figures.anonymous = Some(memory_use.anonymous);
        figures.fds = Some(pids.iter().map(|pid| fds(*pid)).sum());
        figures.sockets = Some(pids.iter().map(|pid| event_sockets(*pid)).sum());
        let (used, since) = (cpu(&pids), Instant::now());
        pause(self.idle_span());
        figures.idle = Some((cpu(&pids) - used) / ms(since.elapsed()) * 100.0);
        progress("changes");
        figures.file = event_to_file(&confs, routers, if self.is_quick { 10 } else { 40 });
        progress("all at once");
        figures.all_files = at_once(&confs, routers);
        for router in &routers.each {
            router.give_up();
        }
        drop(scripts);
        figures
    }
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
        for pid in self.pids().into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
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

/// Measures single changes, from the netlink request to the state file; `None` if one takes more than 20 s.
pub fn event_to_file(directory: &Path, routers: &Routers, count: usize) -> Option<Samples> {
    let mut samples = Vec::new();
    for (router, word) in changes(routers, count) {
        let began = Instant::now();
        change(router, word);
        let end = Instant::now() + Duration::from_secs(20);
        while !holds(directory, &router.id, word) {
            if Instant::now() > end {
                if word == "primary" {
                    change(router, "backup");
                }
                return None;
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
        let flaps = reader.flaps(since).ok()?;
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
    let inodes: Vec<&str> = text
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let groups = u32::from_str_radix(fields.get(3)?, 16).ok()?;
            (groups != 0).then_some(*fields.get(9)?)
        })
        .collect();
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let ours = links.filter_map(|link| std::fs::read_link(link.path()).ok()).filter(|target| {
        let name = target.to_string_lossy();
        let inode = name.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    });
    f64::from(u32::try_from(ours.count()).unwrap_or(0))
}

/// Adds the rows for `count` namespaces.
fn report(count: usize, ours: &Figures, theirs: &Figures, rows: &mut Vec<Row>) {
    let mut row = |name: &str, unit, of: &dyn Fn(&Figures) -> Option<f64>, target| {
        let mut row = Row::new(format!("{count} namespaces: {name}"), unit);
        row.ours = of(ours);
        row.set_peer(0, of(theirs));
        row.target = target;
        rows.push(row);
    };
    let at_most = |limit: f64| Some(BenchTarget::AtMost(limit));
    let large = count >= 5000;
    let kib = |value: Option<f64>| value.map(|value| value / 1024.0);
    row("resident memory", "MiB", &|f| kib(f.rss), if large { at_most(25.0) } else { None });
    row("of that anonymous memory", "MiB", &|f| kib(f.anonymous), None);
    row("netlink sockets that listen", "", &|f| f.sockets, if large { at_most(1.0) } else { None });
    row("open files", "", &|f| f.fds, None);
    row("kernel slab", "MiB", &|f| kib(f.slab), None);
    row("CPU while nothing happens", "%", &|f| f.idle, at_most(0.1));
    row("start → ready", "ms", &|f| f.ready, at_most(2000.0));
    let of =
        |samples: &Option<Samples>, share: f64| samples.as_ref().map(|one| one.quantile(share));
    row("change → state file, p50", "ms", &|f| of(&f.file, 0.5), None);
    row("change → state file, p99", "ms", &|f| of(&f.file, 0.99), None);
    row("change → event of the stream, p50", "ms", &|f| of(&f.event, 0.5), None);
    row("change → event of the stream, p99", "ms", &|f| of(&f.event, 0.99), None);
    let all = count.min(MAX_SCRIPTS);
    let target = if all >= 1000 { at_most(300.0) } else { None };
    row(&format!("{all} at once → every state file"), "ms", &|f| f.all_files, target);
    row(&format!("{all} at once → every record on the disk"), "ms", &|f| f.all_records, target);
    row("events lost → all namespaces read again", "ms", &|f| f.resync, None);
    let ratio = |f: &Figures| f.readers.map(|delay| delay.with / delay.without);
    let with = |f: &Figures| f.readers.map(|delay| delay.with);
    row(
        &format!("{all} at once with 500 slow and dead readers → every state file"),
        "ms",
        &with,
        None,
    );
    let target = if all >= 1000 { at_most(1.1) } else { None };
    row("the same with readers ÷ without", "", &ratio, target);
}
