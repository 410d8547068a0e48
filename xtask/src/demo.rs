// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask demo`: runs three nodes in temporary namespaces, each with real keepalived and `vipwatch node`.
//! Every few seconds a keepalived is stopped or a cable is cut. The screen shows the output of `vipwatch watch` of
//! all nodes.

mod cluster;
mod failures;
mod options;
mod relay;
mod screen;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use serde_json::Value;
use vipwatch_linux::signal::Signals;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns};

use self::cluster::ClusterDemo;
use self::failures::Demo;
use self::options::DemoOptions;
use self::relay::{HostPorts, NODE_ADDRESS};
use self::screen::Screen;
use crate::{TaskError, TaskResult, build, provision, sandbox};

pub const HELP: &str = "\
Run three nodes with real keepalived in temporary namespaces, and let something fail every six seconds.

Usage: cargo xtask demo [cluster] [--seconds N] [--keep]

  cluster      Run a real etcd with three members too, and inject four faults, one after the other: a split network of
               keepalived, keepalived stopped on all nodes, a killed node, a killed leader of etcd. The lines are the output
               of `vipwatch cluster watch`; a round takes about 80 seconds
  --seconds N  Stop after N seconds; the default is Ctrl-C on a terminal and 25 seconds elsewhere
  --keep       After N seconds (the default is 25), repair everything and cause no more failures, but keep the nodes
               running until Enter or Ctrl-C

Each node has a dashboard on a loopback port of this machine, and answers `vipwatch top --socket PATH`; the demo prints
both.

Three virtual addresses move between the nodes. In turn, a keepalived is stopped or a cable is cut on one node,
and repaired at the next failure. The lines are the output of `vipwatch watch` on all nodes. Everything runs in
its own namespaces and is removed at the end.
";

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
    // The process in the sandbox uses the options; errors are reported before anything is built.
    if DemoOptions::parse(args)?.is_cluster {
        provision::programs(&[provision::ETCD])?;
    }
    let program = build::debug_programs(&["vipwatch"])?.join("vipwatch").display().to_string();
    let ports = HostPorts::open(u16::try_from(NAMES.len())?)?;
    let directory = ports.directory.display().to_string();
    let addresses: Vec<String> = ports.addresses.iter().map(ToString::to_string).collect();
    let mut line = vec!["demo", &program, &directory];
    line.extend(addresses.iter().map(String::as_str));
    line.extend(args);
    sandbox::enter(&line, &[])
}

/// One node of the demo.
pub struct DemoNode {
    pub name: &'static str,
    port: String,
    fixture: NodeFixture,
    keepalived: Option<Keepalived>,
    config: String,
    /// `None` while the node is killed.
    process: Option<NodeProcess>,
    /// The address of its dashboard on this machine.
    pub dashboard: String,
    watcher: Child,
    /// The role of each instance of [`INSTANCES`], as the node reports it; empty if the node does not report it.
    pub roles: Vec<String>,
    /// Whether its cable is cut.
    pub is_cut: bool,
    netns: Arc<TestNetns>,
    lab: Lab,
}

/// The place of one node.
struct DemoSetup<'a> {
    number: usize,
    lab: Lab,
    /// The directory of the unix sockets that lead out of the sandbox.
    directory: &'a Path,
    /// The address of its dashboard on this machine.
    address: &'a str,
    /// The configuration files of the other nodes' keepaliveds.
    others: Vec<String>,
    /// The switch for etcd; `None` without a cluster.
    etcd_switch: Option<&'a BridgeSwitch>,
}

/// The number of a node and a line of its `vipwatch watch`.
type Line = (usize, String);

/// Runs the demo until Ctrl-C, or for the given number of seconds.
pub fn run(args: &[&str]) -> TaskResult {
    let [program, directory, rest @ ..] = args else {
        return Err(TaskError("arguments are missing: program and directory".to_owned()));
    };
    let (addresses, options) = rest.split_at_checked(NAMES.len()).ok_or("addresses are missing")?;
    let options = DemoOptions::parse(options)?;
    // ORDER: before the first thread starts. All threads inherit the blocked signals, so that only `signals` gets them.
    let signals = Signals::block()?;
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let (sender, lines) = sync_channel(256);
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let etcd_lab = Lab::new();
    let etcd_switch = options.is_cluster.then(|| BridgeSwitch::new(&etcd_lab));
    let labs: Vec<Lab> = NAMES.iter().map(|_| Lab::new()).collect();
    let files: Vec<String> =
        labs.iter().map(|lab| lab.path().join("keepalived.conf").display().to_string()).collect();
    let nodes = labs.into_iter().enumerate().map(|(number, lab)| {
        // All nodes of the demo share the processes of this machine. Each follows its own keepalived only.
        let mut others = files.clone();
        others.remove(number);
        let (directory, address) = (Path::new(directory), addresses[number]);
        let etcd_switch = etcd_switch.as_ref();
        let setup = DemoSetup { number, lab, directory, address, others, etcd_switch };
        DemoNode::start(setup, Path::new(program), &switch, &sender)
    });
    let mut nodes: Vec<DemoNode> = nodes.collect::<Result<_, TaskError>>()?;
    let limit = options.limit(is_terminal);
    if options.is_cluster {
        drop(lines);
        for link in links(&nodes, Path::new(program)) {
            println!("{link}");
        }
        let mut demo = ClusterDemo::start(&mut nodes, &switch, signals, &etcd_lab)?;
        demo.run(limit);
        demo.summary();
        return Ok(());
    }
    let mut screen = Screen::new(is_terminal, links(&nodes, Path::new(program)));
    let mut demo = Demo { nodes: &mut nodes, switch: &switch, screen: &mut screen, lines, signals };
    let is_stopped = demo.cause_failures(limit);
    if options.keep && !is_stopped {
        demo.keep();
    }
    nodes.iter_mut().for_each(DemoNode::query_roles);
    screen.end(&nodes);
    Ok(())
}

impl DemoNode {
    fn start(
        setup: DemoSetup<'_>,
        program: &Path,
        switch: &BridgeSwitch,
        lines: &SyncSender<Line>,
    ) -> Result<Self, TaskError> {
        let DemoSetup { number, lab, directory, address, others, etcd_switch } = setup;
        let name = NAMES[number];
        let netns = Arc::new(lab.netns(name));
        let port = format!("port-{number}");
        switch.plug(&netns, "eth0", &port);
        netns.ip(&format!("address add 192.0.2.{}/24 dev eth0", number + 1));
        if let Some(switch) = etcd_switch {
            cluster::connect(switch, &netns, number);
        }
        let config = config(number);
        let fixture = NodeFixture::new(program, lab.path()).with_processes().on(&netns);
        let states = lab.path().join("states");
        let cluster = etcd_switch.map_or_else(String::new, |_| cluster::settings(number));
        fixture.configure(&format!(
            "{cluster}[web]\nlisten = \"{NODE_ADDRESS}\"\n[find]\nexclude = {others:?}\n[witness]\nenabled = true\n[[notify]]\nstate_file = \"{}/{{id}}\"\n\
             announce = {{ count = 1 }}\n",
            states.display()
        ));
        let keepalived = Some(Keepalived::start_with(&netns, lab.path(), &config));
        let process = fixture.start();
        relay::serve(directory, number, Arc::clone(&netns))?;
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
            process: Some(process),
            dashboard: format!("http://{address}/"),
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

/// How each node can be reached from outside the demo, one line for each.
fn links(nodes: &[DemoNode], program: &Path) -> Vec<String> {
    let program = program.strip_prefix(build::root()).unwrap_or(program).display();
    let link = |node: &DemoNode| {
        let socket = node.fixture.socket();
        format!("{}  {}  {program} top --socket {}", node.name, node.dashboard, socket.display())
    };
    nodes.iter().map(link).collect()
}
