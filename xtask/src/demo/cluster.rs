// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask demo cluster`: the three nodes of the demo, each with a member of a real etcd. Faults are injected, and
//! `vipwatch cluster watch` shows the findings.
//!
//! ```text
//!   eth0 of each node ── switch for keepalived      192.0.2.0/24
//!   eth1 of each node ── switch for etcd            198.51.100.0/24
//! ```
//!
//! The networks are separate, so that a fault of one does not hide it from the other.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Etcd, EtcdPlace, EtcdProcessOptions, Lab, TestNetns};

use super::{DemoNode, NAMES};
use crate::TaskError;

/// The settings of the nodes. The times are shorter than the defaults, so that the demo is short.
const TIMES: &str = "heartbeat = \"1s\"\nlease = \"4s\"\nsettle = \"2s\"\nslow_settle = \"5s\"\n";

/// How long a fault lasts, and the time after its repair.
const FAULT_SPAN: Duration = Duration::from_secs(12);
const REPAIR_SPAN: Duration = Duration::from_secs(6);

/// The maximum number of lines of `vipwatch cluster watch` that wait to be printed.
const MAX_WAITING_LINES: usize = 256;

/// The address of a node for etcd.
fn address(number: usize) -> IpAddr {
    let last = u8::try_from(number + 1).unwrap_or(u8::MAX);
    Ipv4Addr::new(198, 51, 100, last).into()
}

/// The URLs of etcd's members for clients.
fn endpoints() -> Vec<String> {
    (0..NAMES.len()).map(|number| format!("http://{}:2379", address(number))).collect()
}

/// The lines for the configuration of a node.
pub fn settings(number: usize) -> String {
    let (name, endpoints) = (NAMES[number], endpoints());
    format!(
        "[node]\nname = {name:?}\n[cluster]\nendpoints = {endpoints:?}\nallow_unencrypted = true\n\
         view = \"full\"\n{TIMES}"
    )
}

/// Connects a node to the network of etcd.
pub fn connect(switch: &BridgeSwitch, netns: &TestNetns, number: usize) {
    switch.plug(netns, "eth1", &format!("etcd-{number}"));
    netns.ip(&format!("address add {}/24 dev eth1", address(number)));
}

/// A fault, with its sentence.
#[derive(Clone, Copy)]
enum ClusterFault {
    Split,
    StopAll,
    KillNode,
    KillLeader,
}

impl ClusterFault {
    const ALL: [Self; 4] = [Self::Split, Self::StopAll, Self::KillNode, Self::KillLeader];

    fn text(self) -> &'static str {
        match self {
            Self::Split => "the network of keepalived loses node-a: two primaries must be found",
            Self::StopAll => "keepalived is stopped on all nodes: no primary must be found",
            Self::KillNode => "vipwatch is killed on node-c: the node is lost, its address is not",
            Self::KillLeader => "the leader of etcd is killed: nothing must be found",
        }
    }
}

/// The running demo.
pub struct ClusterDemo<'a> {
    pub nodes: &'a mut [DemoNode],
    pub switch: &'a BridgeSwitch,
    pub signals: Signals,
    etcd: Etcd,
    watcher: Child,
    lines: Receiver<String>,
}

impl<'a> ClusterDemo<'a> {
    /// Starts etcd and `vipwatch cluster watch`, which reads etcd as an operator's machine does.
    pub fn start(
        nodes: &'a mut [DemoNode],
        switch: &'a BridgeSwitch,
        signals: Signals,
        lab: &Lab,
    ) -> Result<Self, TaskError> {
        println!("starting etcd with three members");
        let places = nodes.iter().enumerate();
        let places = places.map(|(number, node)| EtcdPlace::in_netns(&node.netns, address(number)));
        let etcd = Etcd::start(lab.path(), places.collect(), EtcdProcessOptions::default());
        let mut command = nodes[0].fixture.command();
        command.args(["cluster", "--etcd", &endpoints().join(","), "watch"]);
        let (sender, lines) = sync_channel(MAX_WAITING_LINES);
        let watcher = read_lines(&mut command, sender)?;
        Ok(Self { nodes, switch, signals, etcd, watcher, lines })
    }

    /// Injects the faults one after the other, until Ctrl-C or `limit`.
    pub fn run(&mut self, limit: Option<Duration>) {
        let end = limit.map(|limit| Instant::now() + limit);
        let is_over = || end.is_some_and(|end| Instant::now() >= end);
        if self.show(REPAIR_SPAN) {
            return;
        }
        for fault in ClusterFault::ALL.into_iter().cycle() {
            println!("\n── {}", fault.text());
            let undo = self.inject(fault);
            if self.show(FAULT_SPAN) {
                return;
            }
            println!("── repaired");
            self.repair(undo);
            let is_last = matches!(fault, ClusterFault::KillLeader) && end.is_none();
            if self.show(REPAIR_SPAN) || is_over() || is_last {
                return;
            }
        }
    }

    /// Prints what `vipwatch cluster` answers.
    pub fn summary(&self) {
        for word in ["nodes", "status", "findings", "history"] {
            println!("\n$ vipwatch cluster {word}");
            let output = self.nodes[0].fixture.run(&["cluster", word]);
            print!("{}{}", text(&output.stdout), text(&output.stderr));
        }
    }

    /// Prints the lines of `vipwatch cluster watch` for some time; returns whether the user ends the demo.
    fn show(&mut self, span: Duration) -> bool {
        let end = Instant::now() + span;
        while Instant::now() < end {
            let mut waiting = [PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
            let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
            self.lines.try_iter().for_each(|line| println!("{line}"));
            if self.signals.read() == Some(Signal::Stop) {
                return true;
            }
        }
        false
    }

    fn inject(&mut self, fault: ClusterFault) -> Repair {
        match fault {
            ClusterFault::Split => {
                self.switch.block(&self.nodes[0].port);
                Repair::Unblock
            }
            ClusterFault::StopAll => {
                for node in self.nodes.iter_mut() {
                    if let Some(keepalived) = node.keepalived.take() {
                        keepalived.stop();
                    }
                }
                Repair::StartKeepalived
            }
            ClusterFault::KillNode => {
                if let Some(process) = self.nodes[2].process.take() {
                    process.kill();
                }
                Repair::StartNode
            }
            ClusterFault::KillLeader => {
                let leader = self.etcd.leader();
                self.etcd.kill(leader);
                Repair::StartMember(leader)
            }
        }
    }

    fn repair(&mut self, repair: Repair) {
        match repair {
            Repair::Unblock => self.switch.unblock(&self.nodes[0].port),
            Repair::StartKeepalived => {
                for node in self.nodes.iter_mut() {
                    let started =
                        Keepalived::start_with(&node.netns, node.lab.path(), &node.config);
                    node.keepalived = Some(started);
                }
            }
            Repair::StartNode => self.nodes[2].process = Some(self.nodes[2].fixture.start()),
            Repair::StartMember(number) => self.etcd.restart(number),
        }
    }
}

/// The end of a fault.
#[derive(Clone, Copy)]
enum Repair {
    Unblock,
    StartKeepalived,
    StartNode,
    StartMember(usize),
}

impl Drop for ClusterDemo<'_> {
    fn drop(&mut self) {
        let _ = self.watcher.kill();
        let _ = self.watcher.wait();
    }
}

/// Starts a command, and passes on the lines of its output.
fn read_lines(command: &mut Command, sender: SyncSender<String>) -> Result<Child, TaskError> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = child.stdout.take().ok_or("cannot read the output of `vipwatch cluster watch`")?;
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(child)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
