//! `cargo xtask demo`: runs three nodes in temporary namespaces, each with real keepalived and `vipwatch node`.
//! Every few seconds a keepalived is stopped or a cable is cut. The screen shows the output of `vipwatch watch` of
//! all nodes.

mod screen;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns};

use self::screen::Screen;
use crate::{TaskError, TaskResult, build, provision, sandbox};

pub const HELP: &str = "\
Run three nodes with real keepalived in temporary namespaces, and let something fail every six seconds.

Usage: cargo xtask demo [--seconds N]

  --seconds N  Stop after N seconds; the default is Ctrl-C on a terminal and 25 seconds elsewhere

Three virtual addresses move between the nodes. In turn, a keepalived is stopped or a cable is cut on one node,
and repaired at the next failure. The lines are the output of `vipwatch watch` on all nodes. Everything runs in
its own namespaces and is removed at the end.
";

/// Time between two failures.
const FAILURE_INTERVAL: Duration = Duration::from_secs(6);

/// Time between two queries of the roles, which the table on the screen shows.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);

/// The names of the nodes.
const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// A VRRP instance that runs on all nodes.
pub struct DemoInstance {
    pub name: &'static str,
    vip: &'static str,
    vrid: u8,
}

/// The instances. Each prefers another node.
pub const INSTANCES: [DemoInstance; 3] = [
    DemoInstance { name: "web", vip: "192.0.2.80/24", vrid: 80 },
    DemoInstance { name: "db", vip: "192.0.2.54/24", vrid: 54 },
    DemoInstance { name: "mail", vip: "192.0.2.25/24", vrid: 25 },
];

/// Builds `vipwatch`, installs keepalived, and runs the demo in the sandbox.
pub fn prepare(args: &[&str]) -> TaskResult {
    // Ctrl-C ends the process in the sandbox, which cleans up. This process waits for it.
    let _held = Signals::block()?;
    provision::programs(&[provision::BASIC, provision::KEEPALIVED])?;
    sandbox::check_namespaces()?;
    let program = build::vipwatch("demo")?.display().to_string();
    let seconds = match args {
        [] => "",
        ["--seconds", seconds] => seconds,
        other => {
            return Err(TaskError(format!(
                "unknown arguments {other:?}\n  hint: `cargo xtask demo --help` lists the options"
            )));
        }
    };
    sandbox::enter(&["demo", &program, seconds], &[])
}

/// One node of the demo.
pub struct DemoNode {
    pub name: &'static str,
    port: String,
    fixture: NodeFixture,
    keepalived: Option<Keepalived>,
    config: String,
    _process: NodeProcess,
    watcher: Child,
    /// The role of each instance of [`INSTANCES`], as the node reports it; empty if the node does not report it.
    pub roles: Vec<String>,
    /// Whether its cable is cut.
    pub is_cut: bool,
    netns: TestNetns,
    lab: Lab,
}

/// The place of one node.
struct DemoSetup {
    number: usize,
    lab: Lab,
    /// The configuration files of the other nodes' keepaliveds.
    others: Vec<String>,
}

/// The number of a node and a line of its `vipwatch watch`.
type Line = (usize, String);

/// Runs the demo until Ctrl-C, or for the given number of seconds.
pub fn run(args: &[&str]) -> TaskResult {
    let [program, seconds] = args else {
        return Err(TaskError("arguments are missing: program and seconds".to_owned()));
    };
    // ORDER: before the first thread starts. All threads inherit the blocked signals, so that only `signals` gets them.
    let signals = Signals::block()?;
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let limit = match (seconds.parse::<u64>(), is_terminal) {
        (Ok(seconds), _) => Some(Duration::from_secs(seconds)),
        // Without a terminal, Ctrl-C cannot end the demo.
        (Err(_), false) => Some(Duration::from_secs(25)),
        (Err(_), true) => None,
    };
    let (sender, lines) = sync_channel(256);
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let labs: Vec<Lab> = NAMES.iter().map(|_| Lab::new()).collect();
    let files: Vec<String> =
        labs.iter().map(|lab| lab.path().join("keepalived.conf").display().to_string()).collect();
    let nodes = labs.into_iter().enumerate().map(|(number, lab)| {
        // All nodes of the demo share the processes of this machine. Each follows its own keepalived only.
        let mut others = files.clone();
        others.remove(number);
        let setup = DemoSetup { number, lab, others };
        DemoNode::start(setup, std::path::Path::new(program), &switch, &sender)
    });
    let mut nodes: Vec<DemoNode> = nodes.collect::<Result<_, TaskError>>()?;
    let mut screen = Screen::new(is_terminal);
    show(&mut nodes, &switch, &mut screen, &lines, &signals, limit);
    screen.end(&nodes);
    Ok(())
}

impl DemoNode {
    fn start(
        setup: DemoSetup,
        program: &std::path::Path,
        switch: &BridgeSwitch,
        lines: &SyncSender<Line>,
    ) -> Result<Self, TaskError> {
        let DemoSetup { number, lab, others } = setup;
        let name = NAMES[number];
        let netns = lab.netns(name);
        let port = format!("port-{number}");
        switch.plug(&netns, "eth0", &port);
        netns.ip(&format!("address add 192.0.2.{}/24 dev eth0", number + 1));
        let config = config(number);
        let fixture = NodeFixture::new(program, lab.path()).with_processes().on(&netns);
        let states = lab.path().join("states");
        fixture.configure(&format!(
            "[find]\nexclude = {others:?}\n[witness]\nenabled = true\n[[notify]]\nstate_file = \"{}/{{id}}\"\n\
             announce = {{ count = 1 }}\n",
            states.display()
        ));
        let keepalived = Some(Keepalived::start_with(&netns, lab.path(), &config));
        let process = fixture.start();
        let mut watcher = fixture
            .command()
            .args(["watch", "--socket"])
            .arg(fixture.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = watcher
            .stdout
            .take()
            .ok_or_else(|| TaskError("cannot read the output of `vipwatch watch`".to_owned()))?;
        let sender = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((number, line)).is_err() {
                    return;
                }
            }
        });
        let roles = vec![String::new(); INSTANCES.len()];
        Ok(Self {
            name,
            port,
            fixture,
            keepalived,
            config,
            _process: process,
            watcher,
            roles,
            is_cut: false,
            netns,
            lab,
        })
    }

    /// Reads the roles of all instances from the node.
    fn query_roles(&mut self) {
        let answer = self.fixture.run(&["status", "-o", "json"]);
        let Ok(answer) = serde_json::from_slice::<Value>(&answer.stdout) else { return };
        let instances = answer["instances"].as_array();
        for (demo, role) in INSTANCES.iter().zip(&mut self.roles) {
            let instance = instances.into_iter().flatten().find(|one| one["id"] == demo.name);
            let reported = instance.and_then(|one| one["role"].as_str());
            reported.unwrap_or_default().clone_into(role);
        }
    }

    /// Whether keepalived runs.
    pub fn is_keepalived_running(&self) -> bool {
        self.keepalived.is_some()
    }
}

impl Drop for DemoNode {
    fn drop(&mut self) {
        let _ = self.watcher.kill();
        let _ = self.watcher.wait();
    }
}

/// keepalived's configuration on node `number`. The instance with the same number has the highest priority here.
fn config(number: usize) -> String {
    let instances = INSTANCES.iter().enumerate().map(|(at, DemoInstance { name, vip, vrid })| {
        let priority = if at == number { 150 } else { 100 + number };
        format!(
            "vrrp_instance {name} {{\n  state BACKUP\n  interface eth0\n  virtual_router_id {vrid}\n  \
             priority {priority}\n  advert_int 1\n  track_interface {{\n    eth0\n  }}\n  \
             virtual_ipaddress {{\n    {vip} dev eth0\n  }}\n}}\n"
        )
    });
    format!("global_defs {{\n  router_id {}\n}}\n{}", NAMES[number], instances.collect::<String>())
}

/// Updates the screen and causes failures until Ctrl-C or `limit`.
fn show(
    nodes: &mut [DemoNode],
    switch: &BridgeSwitch,
    screen: &mut Screen,
    lines: &Receiver<Line>,
    signals: &Signals,
    limit: Option<Duration>,
) {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut next_failure = Instant::now() + FAILURE_INTERVAL;
    let mut next_query = Instant::now();
    let mut failures = 0;
    while end.is_none_or(|end| Instant::now() < end) {
        let mut waiting = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
        if signals.read() == Some(Signal::Stop) {
            break;
        }
        for (number, line) in lines.try_iter() {
            screen.add(nodes[number].name, &line);
        }
        let now = Instant::now();
        if now >= next_failure {
            next_failure = now + FAILURE_INTERVAL;
            cause_failure(nodes, switch, failures, screen);
            failures += 1;
        }
        if screen.is_terminal() && now >= next_query {
            next_query = now + QUERY_INTERVAL;
            nodes.iter_mut().for_each(DemoNode::query_roles);
        }
        screen.draw(nodes);
    }
    nodes.iter_mut().for_each(DemoNode::query_roles);
}

/// Repairs the last failure and causes the next one: in turn a stopped keepalived and a cut cable, on one node after
/// the other.
fn cause_failure(
    nodes: &mut [DemoNode],
    switch: &BridgeSwitch,
    failures: usize,
    screen: &mut Screen,
) {
    for node in nodes.iter_mut() {
        if node.keepalived.is_none() {
            screen.add_action(node.name, "keepalived is started again");
            let keepalived = Keepalived::start_with(&node.netns, node.lab.path(), &node.config);
            node.keepalived = Some(keepalived);
        }
        if std::mem::take(&mut node.is_cut) {
            screen.add_action(node.name, "the cable is plugged in again");
            switch.reconnect(&node.port);
        }
    }
    let node = &mut nodes[failures / 2 % NAMES.len()];
    if failures.is_multiple_of(2) {
        screen.add_action(node.name, "keepalived is stopped");
        if let Some(keepalived) = node.keepalived.take() {
            keepalived.stop();
        }
    } else {
        screen.add_action(node.name, "the cable is cut");
        switch.disconnect(&node.port);
        node.is_cut = true;
    }
}
