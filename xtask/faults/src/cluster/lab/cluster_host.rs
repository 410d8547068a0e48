// SPDX-License-Identifier: Apache-2.0
//! One host: its links in the three networks, keepalived, a member of etcd, and `vipwatch node`.

use std::path::{Path, PathBuf};

use super::super::setup::{ClusterRunSetup, NodeFiles, etcd_address, group_conf};
use super::{clock, recorders, spawn_recorder};
use crate::FaultsError;
use crate::lab::host::{KeepalivedPids, LabHost};
use crate::lab::{output, run, wait_for, write_file};
use crate::setup::ConfigEdit;

/// A network of the lab that has faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabNetwork {
    Data,
    Management,
}

impl LabNetwork {
    /// The name of the port at the bridge.
    fn port(self, host: usize) -> String {
        match self {
            Self::Data => format!("p{host}"),
            Self::Management => format!("m{host}"),
        }
    }

    fn bridge(self) -> &'static str {
        match self {
            Self::Data => "br0",
            Self::Management => "br1",
        }
    }

    /// The link of the host.
    fn link(self) -> &'static str {
        match self {
            Self::Data => "eth0",
            Self::Management => "mgmt0",
        }
    }

    /// The word in the log of the injector.
    pub fn word(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Management => "mgmt",
        }
    }
}

/// A host.
pub struct ClusterHost {
    pub base: LabHost,
    directory: PathBuf,
    vipwatch: PathBuf,
}

impl ClusterHost {
    /// Creates the namespaces and the links.
    pub fn create(
        index: usize,
        directory: &Path,
        setup: &ClusterRunSetup,
    ) -> Result<Self, FaultsError> {
        let base = LabHost::create(index, directory)?;
        base.plug(&setup.keepalived)?;
        base.connect("br1", &format!("m{index}"), "mgmt0")?;
        base.connect("br2", &format!("o{index}"), "out0")?;
        base.run(&format!("ip address add {}/24 dev mgmt0", etcd_address(index)))?;
        base.run(&format!("ip address add 10.7.0.{}/24 dev out0", index + 1))?;
        Ok(Self { base, directory: directory.to_owned(), vipwatch: PathBuf::new() })
    }

    pub fn index(&self) -> usize {
        self.base.index
    }

    /// Starts a program of the host as a daemon, and writes its pid to `NAME.pid` and its output to `NAME.log`.
    pub fn start_service(&self, name: &str, line: &str) -> Result<(), FaultsError> {
        // The shell ends at once, so that the program is a child of the host's first process.
        let script = format!("{line} >> \"$1\" 2>&1 < /dev/null & echo $! > \"$2\"");
        let mut command = self.base.command("setsid");
        command.args(["sh", "-c", &script, "sh"]).arg(self.directory.join(format!("{name}.log")));
        output(command.arg(self.pid_file(name))).map(drop)
    }

    /// A recording of the host.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.pid"))
    }

    fn pid(&self, name: &str) -> Result<u32, FaultsError> {
        Ok(std::fs::read_to_string(self.pid_file(name))?.trim().parse()?)
    }

    /// Sends a signal to a daemon of the host.
    pub fn signal_service(&self, name: &str, signal: &str) -> Result<(), FaultsError> {
        self.base.signal(&[(signal, self.pid(name)?)])
    }

    /// Ends a daemon with a signal, and waits for its end.
    pub fn end_service(&self, name: &str, signal: &str) -> Result<(), FaultsError> {
        let pid = self.pid(name)?;
        self.base.signal(&[(signal, pid)])?;
        wait_for(&format!("the end of {name}"), || Ok((!self.base.is_alive(pid)).then_some(())))
    }

    /// Whether a daemon of the host runs or is stopped by a signal.
    pub fn is_service_alive(&self, name: &str) -> bool {
        self.pid(name).is_ok_and(|pid| self.base.is_alive(pid))
    }

    /// Sends signals that end keepalived, and waits for the end of both processes.
    pub fn end_keepalived(
        &self,
        signals: impl Fn(KeepalivedPids) -> Vec<(&'static str, u32)>,
    ) -> Result<(), FaultsError> {
        let pids = self.base.keepalived_pids();
        let pids = pids.ok_or_else(|| FaultsError("keepalived does not run".to_owned()))?;
        self.base.signal(&signals(pids))?;
        wait_for("the end of keepalived", || {
            Ok((!self.base.is_alive(pids.parent) && !self.base.is_alive(pids.child)).then_some(()))
        })
    }

    pub fn configure(&self, setup: &ClusterRunSetup, has_extra: bool) -> Result<(), FaultsError> {
        let edit = ConfigEdit { priority: None, has_extra_address: has_extra };
        self.base.configure(&setup.keepalived, edit)
    }

    pub fn start_keepalived(&self) -> Result<(), FaultsError> {
        self.base.start_keepalived()
    }

    /// Records the changes of links and addresses.
    pub fn record_kernel(&mut self) -> Result<(), FaultsError> {
        self.base.start_monitor()
    }

    /// Starts the node.
    pub fn start_vipwatch(&self, setup: &ClusterRunSetup) -> Result<(), FaultsError> {
        let files = NodeFiles::of_host(self.index(), &self.directory);
        write_file(&files.config, &setup.node_conf(self.index(), &self.directory, &files))?;
        let prefix =
            if setup.has_own_clocks { clock::prefix(&self.clock_file())? } else { String::new() };
        self.start_service("vipwatch", &format!("{prefix}{}", self.node_line(&files)))
    }

    fn node_line(&self, files: &NodeFiles) -> String {
        format!("{} node --config {}", self.vipwatch.display(), files.config.display())
    }

    /// Starts a second node on this host, with the name of the node of another host.
    pub fn start_twin(&self, setup: &ClusterRunSetup, name: String) -> Result<(), FaultsError> {
        let files = NodeFiles::of_twin(name, &self.directory);
        write_file(&files.config, &setup.node_conf(self.index(), &self.directory, &files))?;
        self.start_service("twin", &self.node_line(&files))?;
        wait_for("the second node of a host", || {
            Ok(recorders::get(&files.socket, "/v1/instances").ok())
        })?;
        recorders::record_documents(&files.socket, &self.file("twin.jsonl"), &["/v1/findings"])
    }

    /// Puts the first instance into a configured group, or takes it out, and lets the node read its configuration.
    pub fn set_group(&self, setup: &ClusterRunSetup, has_group: bool) -> Result<(), FaultsError> {
        let files = NodeFiles::of_host(self.index(), &self.directory);
        let mut text = setup.node_conf(self.index(), &self.directory, &files);
        text.push_str(&if has_group { group_conf() } else { String::new() });
        write_file(&files.config, &text)?;
        self.signal_service("vipwatch", "HUP")
    }

    /// Sets the wall clock of the node: seconds after that of the machine.
    pub fn set_clock(&self, seconds: i64) -> Result<(), FaultsError> {
        write_file(&self.clock_file(), &format!("{seconds:+}\n"))
    }

    fn clock_file(&self) -> PathBuf {
        self.directory.join("clock")
    }

    pub fn socket(&self) -> PathBuf {
        NodeFiles::of_host(self.index(), &self.directory).socket
    }

    /// Waits until the node answers; an error if it ends.
    pub fn wait_for_vipwatch(&self) -> Result<(), FaultsError> {
        wait_for(&format!("the node on host {}", self.index()), || {
            if !self.is_service_alive("vipwatch") {
                let log = std::fs::read_to_string(self.directory.join("vipwatch.log"))?;
                let text = format!("the node of host {} has ended: {log}", self.index());
                return Err(FaultsError(text));
            }
            let answer = recorders::get(&self.socket(), "/v1/instances");
            Ok(answer.ok().filter(|text| text.contains("VI_1")))
        })
        .map(drop)
    }

    /// Records the answers of the node: its events, and its documents about the cluster.
    pub fn record_answers(&mut self) -> Result<(), FaultsError> {
        recorders::record_documents(
            &self.socket(),
            &self.file("documents.jsonl"),
            &["/v1/cluster/groups", "/v1/cluster/nodes", "/v1/cluster/findings"],
        )?;
        let mut watch = self.base.command(&self.vipwatch.display().to_string());
        watch.args(["watch", "-o", "json", "--after", "0", "--config"]);
        watch.arg(self.directory.join("vipwatch.toml"));
        self.base.adopt(spawn_recorder(&mut watch, &self.directory.join("events.jsonl"))?);
        Ok(())
    }

    pub fn set_program(&mut self, vipwatch: &Path) {
        vipwatch.clone_into(&mut self.vipwatch);
    }

    /// Takes the port of the host out of the bridge, or puts it back. Both sides stay up.
    pub fn set_plugged(&self, network: LabNetwork, is_plugged: bool) -> Result<(), FaultsError> {
        let (port, bridge) = (network.port(self.index()), network.bridge());
        let master = if is_plugged { format!("master {bridge}") } else { "nomaster".to_owned() };
        run("ip", &format!("link set {port} {master}")).map(drop)
    }

    /// Lets the host receive nothing.
    pub fn block_received(&self, network: LabNetwork) -> Result<(), FaultsError> {
        let port = network.port(self.index());
        block(&port, |line| run("tc", line))
    }

    /// Lets the host send nothing.
    pub fn block_sent(&self, network: LabNetwork) -> Result<(), FaultsError> {
        block(network.link(), |line| self.base.run(&format!("tc {line}")))
    }

    pub fn unblock_received(&self, network: LabNetwork) -> Result<(), FaultsError> {
        run("tc", &format!("qdisc del dev {} root", network.port(self.index()))).map(drop)
    }

    pub fn unblock_sent(&self, network: LabNetwork) -> Result<(), FaultsError> {
        self.base.run(&format!("tc qdisc del dev {} root", network.link())).map(drop)
    }
}

/// Drops all frames that leave a link. A token bucket that is smaller than every frame exists in kernels without `netem`.
fn block(link: &str, tc: impl Fn(&str) -> Result<String, FaultsError>) -> Result<(), FaultsError> {
    tc(&format!("qdisc replace dev {link} root netem loss 100%"))
        .or_else(|_| tc(&format!("qdisc replace dev {link} root tbf rate 8bit burst 1 limit 1")))
        .map(drop)
}
