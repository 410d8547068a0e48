//! One node for all namespaces, beside one script of Neutron 29.0.0 for each.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
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

use super::measure::{Samples, cpu, families, fds, machine, memory, ms, slab, thread_cpu};
use super::report::{BenchReport, BenchTarget, Row};

/// Long enough for a thousand scripts to start.
const LIMIT: Duration = Duration::from_mins(10);

/// The most scripts that are started.
const SCRIPTS: usize = 1000;

/// The programs, and how thorough to be.
pub struct NodeBench {
    pub subject: PathBuf,
    pub script: PathBuf,
    pub is_quick: bool,
}

/// What one of both reached; `None` where it was not measured or never got there.
#[derive(Default)]
struct Figures {
    rss: Option<f64>,
    fds: Option<f64>,
    slab: Option<f64>,
    idle: Option<f64>,
    ready: Option<f64>,
    file: Option<Samples>,
    watch: Option<Samples>,
    all_files: Option<f64>,
    all_records: Option<f64>,
    resync: Option<f64>,
    sockets: Option<f64>,
}

impl NodeBench {
    /// Measures everything.
    pub fn run(&self) -> BenchReport {
        let counts: &[usize] = if self.is_quick { &[10, 100] } else { &[10, 1000, 5000] };
        let said = std::env::var("VIPWATCH_NAMESPACES").ok().and_then(|text| text.parse().ok());
        let counts = said.map_or_else(|| counts.to_vec(), |count| vec![count]);
        let mut rows = Vec::new();
        for count in &counts {
            eprintln!("bench: making {count} namespaces");
            let lab = Lab::new();
            let routers = Routers::new(lab.path(), &format!("b{count}"), *count, 0);
            let ours = self.ours(&lab, &routers);
            let theirs = match *count {
                count if count <= SCRIPTS => self.theirs(&lab, &routers),
                _ => Figures::default(),
            };
            report(*count, &ours, &theirs, &mut rows);
        }
        let title =
            if self.is_quick { "bench node (quick: no figures to quote)" } else { "bench node" };
        let peers = &["scripts 29.0.0, one for each namespace"];
        BenchReport { title: title.to_owned(), machine: machine(), peers, rows }
    }

    fn idle_span(&self) -> Duration {
        Duration::from_secs(if self.is_quick { 10 } else { 60 })
    }

    fn ours(&self, lab: &Lab, routers: &Routers) -> Figures {
        let count = routers.each.len();
        let say = |what: &str| eprintln!("bench: {count} namespaces: vipwatch: {what}");
        let place = NodeFixture::new(&self.subject, lab.path());
        // Where a node keeps them by its own example: in memory.
        let states = PathBuf::from("/run/vipwatch/state");
        place.configure(&format!(
            "[[outlet]]\norigin = \"neutron\"\nstate_file = \"{}/{{id}}\"\n",
            states.display()
        ));
        let mut figures = Figures::default();
        say("start");
        let before = slab();
        let began = Instant::now();
        let node = place.start_within(LIMIT);
        figures.ready = Some(ms(began.elapsed()));
        figures.slab = Some(slab() - before);
        wait_for_all(&states, routers, "backup");
        say("idle");
        // What starting leaves to be done, some seconds later, is no part of idling.
        pause(Duration::from_secs(15));
        let (used, since) = (thread_cpu(node.pid()), Instant::now());
        pause(self.idle_span());
        figures.idle = Some((thread_cpu(node.pid()) - used) / ms(since.elapsed()) * 100.0);
        say("changes");
        let samples = if self.is_quick { 50 } else { 400 };
        figures.file = event_to_file(&states, routers, samples);
        figures.watch = event_to_line(&place, routers, samples);
        say("all at once");
        let at = unix_millis_now();
        let began = Instant::now();
        figures.all_files = at_once(&states, routers);
        figures.all_records = recorded(&place, at, routers.each.len().min(SCRIPTS), began);
        figures.rss = Some(memory(&[node.pid()]).rss);
        figures.fds = Some(fds(node.pid()));
        figures.sockets = Some(event_sockets(node.pid()));
        say("resync");
        figures.resync = resync(&node, &states, routers);
        for router in routers.each.iter().take(SCRIPTS) {
            router.give_up();
        }
        let _ = node.stop();
        figures
    }

    fn theirs(&self, lab: &Lab, routers: &Routers) -> Figures {
        let count = routers.each.len();
        let say = |what: &str| eprintln!("bench: {count} namespaces: scripts: {what}");
        let confs = lab.path().join("ha_confs");
        // A script that finds no agent ends its work at the first change.
        let _agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let mut figures = Figures::default();
        say("start");
        let before = slab();
        let began = Instant::now();
        let mut scripts = Scripts(Vec::new());
        for router in &routers.each {
            scripts.0.push(Script::start(&self.script, lab, router));
        }
        let is_ready = wait_for_all(&confs, routers, "backup");
        figures.ready = is_ready.then(|| ms(began.elapsed()));
        figures.slab = Some(slab() - before);
        say("idle");
        pause(Duration::from_secs(5));
        let pids = scripts.pids();
        figures.rss = Some(memory(&pids).rss);
        figures.fds = Some(pids.iter().map(|pid| fds(*pid)).sum());
        figures.sockets = Some(pids.iter().map(|pid| event_sockets(*pid)).sum());
        let (used, since) = (cpu(&pids), Instant::now());
        pause(self.idle_span());
        figures.idle = Some((cpu(&pids) - used) / ms(since.elapsed()) * 100.0);
        say("changes");
        figures.file = event_to_file(&confs, routers, if self.is_quick { 10 } else { 40 });
        say("all at once");
        figures.all_files = at_once(&confs, routers);
        for router in &routers.each {
            router.give_up();
        }
        drop(scripts);
        figures
    }
}

/// Neutron's script for one router, and everything it has started.
struct Script {
    child: Child,
    pid: i32,
}

impl Script {
    fn start(home: &Path, lab: &Lab, router: &HaRouter) -> Self {
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
        let child = Command::new(home.join("bin/neutron-keepalived-state-change"))
            .args(Release::V29.arguments(&call))
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the script starts");
        let file = pids.join(Release::V29.pid_file(&router.id));
        let pid = until(LIMIT, || read_pid(&file)).expect("a pid file");
        Self { child, pid }
    }
}

/// All of them.
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

/// Asks again and again; what is measured is longer than the pause.
fn until<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(answer) = probe() {
            return Some(answer);
        }
        pause(Duration::from_micros(200));
    }
    None
}

fn holds(directory: &Path, id: &str, word: &str) -> bool {
    std::fs::read(directory.join(id).join("state")).is_ok_and(|held| held == word.as_bytes())
}

/// Waits until every state file holds `word`; false if some never do.
fn wait_for_all(directory: &Path, routers: &Routers, word: &str) -> bool {
    let mut left: Vec<&str> = routers.each.iter().map(|router| router.id.as_str()).collect();
    let all = until(LIMIT, || {
        left.retain(|id| !holds(directory, id, word));
        left.is_empty().then_some(())
    });
    all.is_some()
}

/// The address comes or goes.
fn change(router: &HaRouter, word: &str) {
    let (editor, link) = router.editor();
    match word {
        "primary" => editor.add(link, vip()),
        _ => editor.remove(link, vip()),
    }
}

/// So many routers, here and there, each to primary and back.
fn changes(routers: &Routers, count: usize) -> impl Iterator<Item = (&HaRouter, &'static str)> {
    let chosen = (0..count).map(|number| &routers.each[number * 7 % routers.each.len()]);
    chosen.flat_map(|router| [(router, "primary"), (router, "backup")])
}

/// One change after the other, from the kernel's call to the file.
fn event_to_file(directory: &Path, routers: &Routers, count: usize) -> Option<Samples> {
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

/// One change after the other, from the kernel's call to the line that a watcher reads.
fn event_to_line(place: &NodeFixture, routers: &Routers, count: usize) -> Option<Samples> {
    let mut stream = UnixStream::connect(place.socket()).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(b"{\"ask\":\"watch\"}\n").ok()?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    let mut next = |wanted: &str| -> Option<()> {
        loop {
            line.clear();
            lines.read_line(&mut line).ok().filter(|length| *length > 0)?;
            if line.contains(wanted) {
                return Some(());
            }
        }
    };
    next("vipwatch.live/1")?;
    let mut samples = Vec::new();
    for (router, word) in changes(routers, count) {
        let began = Instant::now();
        change(router, word);
        next("vipwatch.change/1")?;
        samples.push(ms(began.elapsed()));
    }
    Samples::of(samples)
}

/// Everybody, or a thousand, becomes primary at once; until the last file.
fn at_once(directory: &Path, routers: &Routers) -> Option<f64> {
    let chosen = &routers.each[..routers.each.len().min(SCRIPTS)];
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| chosen.iter().for_each(HaRouter::take));
        let mut left: Vec<&str> = chosen.iter().map(|router| router.id.as_str()).collect();
        until(Duration::from_mins(2), || {
            left.retain(|id| !holds(directory, id, "primary"));
            // Whoever looks at a thousand files all the time takes the CPU from those who write.
            pause(Duration::from_millis(10));
            left.is_empty().then_some(())
        })
    })?;
    Some(ms(began.elapsed()))
}

/// Until so many have become primary since `since`, by the history on the disk.
fn recorded(place: &NodeFixture, since: i64, count: usize, began: Instant) -> Option<f64> {
    let reader = Reader::open(&place.state_dir()).ok()?;
    until(Duration::from_mins(1), || {
        let flaps = reader.flaps(since).ok()?;
        let primary: i64 = flaps.iter().map(|flaps| flaps.primary).sum();
        (usize::try_from(primary).ok()? >= count).then_some(())
    })?;
    Some(ms(began.elapsed()))
}

/// The node sleeps while more happens than the kernel keeps; until it knows what is so.
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

/// Netlink sockets that listen to groups.
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
    row("resident memory", "MiB", &|f| kib(f.rss), if large { at_most(24.0) } else { None });
    row("netlink sockets that listen", "", &|f| f.sockets, if large { at_most(1.0) } else { None });
    row("open files", "", &|f| f.fds, None);
    row("kernel slab", "MiB", &|f| kib(f.slab), None);
    row("CPU while nothing happens", "%", &|f| f.idle, at_most(0.1));
    row("start → ready", "ms", &|f| f.ready, at_most(2000.0));
    let of =
        |samples: &Option<Samples>, share: f64| samples.as_ref().map(|one| one.quantile(share));
    row("change → state file, p50", "ms", &|f| of(&f.file, 0.5), None);
    row("change → state file, p99", "ms", &|f| of(&f.file, 0.99), None);
    row("change → line of `watch`, p50", "ms", &|f| of(&f.watch, 0.5), None);
    row("change → line of `watch`, p99", "ms", &|f| of(&f.watch, 0.99), None);
    let all = count.min(SCRIPTS);
    let soon = if all >= 1000 { at_most(300.0) } else { None };
    row(&format!("{all} at once → every state file"), "ms", &|f| f.all_files, soon);
    row(&format!("{all} at once → every record on the disk"), "ms", &|f| f.all_records, soon);
    row("events lost → everything asked again", "ms", &|f| f.resync, None);
}
