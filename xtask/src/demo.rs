//! `cargo xtask demo`: two nodes with real keepalived in throw-away namespaces, our monitor
//! on each, and an agent that hears them. The primary fails every few seconds; kernel, state
//! file and notification are shown side by side, with the latency of each.

mod screen;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_testkit::keepalived::{Keepalived, Switch};
use vipwatch_testkit::{Agent, Lab, Manner, Monitor, Recorder, Release, Router};

use self::screen::Screen;
use crate::{Stop, Task, build, enclosure, provision};

const VIP: &str = "169.254.0.1/24";

/// How long a primary lasts.
const REIGN: Duration = Duration::from_secs(6);

/// Name, port of the switch, and VRRP priority of each node.
const NODES: [(&str, &str, u8); 2] = [("node-a", "port-a", 60), ("node-b", "port-b", 50)];

/// Builds, installs keepalived, and goes inside.
pub fn outside(words: &[&str]) -> Task {
    // Ctrl-C is for the inside, which then cleans up; we wait for it.
    let _held = Signals::hold()?;
    provision::programs(&[provision::BASIC, provision::KEEPALIVED])?;
    enclosure::probe()?;
    let program = build::dropin()?.display().to_string();
    let seconds = match words {
        [] => "",
        ["--seconds", seconds] => seconds,
        other => return Err(Stop(format!("unknown words {other:?}; there is --seconds N"))),
    };
    enclosure::enter(&["demo", &program, seconds], &[])
}

/// A change, as the witness of a node saw it.
pub struct Change {
    node: usize,
    /// When, for people.
    clock: String,
    /// The kernel's news.
    is_held: bool,
    /// After it: the state file said so, the agent was told so.
    file: Option<Duration>,
    agent: Option<Duration>,
}

/// One node of the pair.
pub struct Node {
    pub name: &'static str,
    pub keepalived: Option<Keepalived>,
    port: &'static str,
    priority: u8,
    _monitor: Monitor,
    pub agent: Arc<Agent>,
    pub router: Router,
    _lab: Lab,
}

/// Shows it until Ctrl-C, or for as many seconds as asked.
pub fn inside(words: &[&str]) -> Task {
    let [program, seconds] = words else {
        return Err(Stop("the demo is started from outside".to_owned()));
    };
    // ORDER: before any thread starts, so that all of them leave the signals to us.
    let signals = Signals::hold()?;
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let limit = match (seconds.parse::<u64>(), is_terminal) {
        (Ok(seconds), _) => Some(Duration::from_secs(seconds)),
        // Nobody is there to press Ctrl-C.
        (Err(_), false) => Some(Duration::from_secs(20)),
        (Err(_), true) => None,
    };
    let (sender, changes) = sync_channel(64);
    let lab = Lab::new();
    let switch = Switch::new(&lab);
    let mut nodes = nodes(std::path::Path::new(program), &switch, &sender);
    let screen = Screen::new(is_terminal);
    show(&mut nodes, &switch, screen, &changes, &signals, limit);
    Ok(())
}

fn nodes(program: &std::path::Path, switch: &Switch, changes: &SyncSender<Change>) -> [Node; 2] {
    let labs = [Lab::new(), Lab::new()];
    let routers = labs.each_ref().map(|lab| {
        let router = Router::new(lab, Release::V29);
        // Its link is to be one end of the pair.
        router.netns.ip(&format!("link del {}", router.link));
        router
    });
    for (router, (_, port, _)) in routers.iter().zip(NODES) {
        switch.plug(&router.netns, &router.link, port);
    }
    let mut parts = labs.into_iter().zip(NODES).enumerate();
    routers.map(|router| {
        let (index, (lab, (name, port, priority))) = parts.next().expect("two of each");
        let number = index + 1;
        router.netns.ip(&format!("address add 192.168.7.{number}/24 dev {}", router.link));
        let agent = Arc::new(Agent::listen(lab.path(), Manner::Threaded));
        let monitor = router.start(program);
        agent.wait_for_words(&["backup"]);
        watch(index, &router, &agent, changes.clone());
        let keepalived = start_keepalived(&router, priority);
        Node {
            name,
            keepalived: Some(keepalived),
            port,
            priority,
            _monitor: monitor,
            agent,
            router,
            _lab: lab,
        }
    })
}

fn start_keepalived(router: &Router, priority: u8) -> Keepalived {
    Keepalived::start(&router.netns, &router.conf_dir, &router.link, VIP, priority)
}

/// Starts the witness of a node: a listener of its own that, when the kernel moves the
/// address, looks when the file and the agent know.
fn watch(node: usize, router: &Router, agent: &Arc<Agent>, changes: SyncSender<Change>) {
    let vip = VIP.parse().expect("an address");
    let mut recorder = Recorder::start(&router.netns, &router.link, vip);
    let state = router.conf_dir.join("state");
    let agent = Arc::clone(agent);
    std::thread::spawn(move || {
        let mut is_held = false;
        loop {
            recorder.wait();
            let seen = Instant::now();
            if recorder.catch_up() == is_held {
                continue;
            }
            is_held = !is_held;
            let clock = screen::clock();
            let word = if is_held { "primary" } else { "backup" };
            let limit = seen + Duration::from_secs(1);
            let mut file = None;
            while file.is_none() && Instant::now() < limit {
                let is_there = std::fs::read(&state).is_ok_and(|held| held == word.as_bytes());
                file = is_there.then(|| seen.elapsed());
            }
            let letter = agent.wait_for_next(word, Duration::from_secs(1));
            let agent = letter.map(|letter| letter.at.saturating_duration_since(seen));
            if changes.send(Change { node, clock, is_held, file, agent }).is_err() {
                return;
            }
        }
    });
}

fn show(
    nodes: &mut [Node; 2],
    switch: &Switch,
    mut screen: Screen,
    changes: &Receiver<Change>,
    signals: &Signals,
    limit: Option<Duration>,
) {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut next_blow = Instant::now() + REIGN;
    let mut is_link_cut = false;
    screen.draw(nodes);
    while end.is_none_or(|end| Instant::now() < end) {
        let mut waiting = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
        if signals.read() == Some(Signal::Stop) {
            break;
        }
        for change in changes.try_iter() {
            screen.add(&change, nodes);
        }
        if Instant::now() >= next_blow {
            next_blow = Instant::now() + REIGN;
            is_link_cut = strike(nodes, switch, is_link_cut, &mut screen);
        }
        screen.draw(nodes);
    }
    screen.end();
}

/// The primary fails, in turns by a stopped keepalived and by a cut link; what failed last
/// time is mended first. Returns whether the next blow is to the link.
fn strike(nodes: &mut [Node; 2], switch: &Switch, is_link: bool, screen: &mut Screen) -> bool {
    for node in nodes.iter_mut() {
        if node.keepalived.is_none() {
            node.keepalived = Some(start_keepalived(&node.router, node.priority));
        }
        switch.mend(node.port);
    }
    let Some(primary) =
        nodes.iter_mut().find(|node| node.router.state().as_deref() == Some("primary"))
    else {
        return is_link;
    };
    if is_link {
        screen.say(&format!("{}: the link is cut", primary.name));
        switch.cut(primary.port);
    } else if let Some(keepalived) = primary.keepalived.take() {
        screen.say(&format!("{}: keepalived is stopped", primary.name));
        keepalived.stop();
    }
    !is_link
}
