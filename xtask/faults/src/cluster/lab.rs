// SPDX-License-Identifier: Apache-2.0
//! The lab of one run: three hosts that are connected by three bridges in the namespace of this process.
//!
//! ```text
//!   br0  data         eth0   keepalived's adverts and the virtual addresses
//!   br1  management   mgmt0  etcd
//!   br2  notification out0   webhooks to the recorder; it has no faults
//! ```

mod clock;
pub mod cluster_host;
pub mod etcd;
pub mod recorders;
pub mod router;
pub mod simulated;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::cluster_host::ClusterHost;
use self::simulated::SimulatedNode;
use super::setup::{ClusterRunSetup, HOSTS, PREFIX, RECORDER};
use crate::FaultsError;
use crate::journal::InjectorLog;
use crate::lab::{run, wait_for, write_file};
use crate::moment::pause;

/// Limit of the wait for one primary of each instance.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);

/// A running lab.
pub struct ClusterLab {
    pub setup: ClusterRunSetup,
    pub journal: InjectorLog,
    pub hosts: Vec<ClusterHost>,
    /// A node that exists only as records in etcd; `None` before the injector has created it.
    pub simulated: Option<SimulatedNode>,
    pub directory: PathBuf,
    /// Recording processes, which end with the sandbox.
    recorders: Vec<Child>,
}

impl ClusterLab {
    /// Creates the hosts and starts etcd, keepalived and `vipwatch` on each of them.
    pub fn start(
        setup: ClusterRunSetup,
        directory: &Path,
        vipwatch: &Path,
    ) -> Result<Self, FaultsError> {
        let journal = InjectorLog::create(&directory.join("injector.jsonl"))?;
        prepare_switches()?;
        let mut hosts = Vec::new();
        for index in 0..HOSTS {
            hosts.push(ClusterHost::create(
                index,
                &directory.join(format!("node{index}")),
                &setup,
            )?);
        }
        let mut lab = Self {
            setup,
            journal,
            hosts,
            simulated: None,
            directory: directory.to_owned(),
            recorders: Vec::new(),
        };
        lab.record_wire()?;
        recorders::record_notifications(RECORDER, &directory.join("notifications.jsonl"))?;
        for host in &lab.hosts {
            host.start_etcd()?;
        }
        wait_for("a leader of etcd", || Ok(lab.leader()))?;
        for host in &mut lab.hosts {
            host.record_kernel()?;
            host.configure(&lab.setup, false)?;
            host.start_keepalived()?;
            recorders::record_etcd(host, PREFIX, &host.file("etcd.jsonl"))?;
        }
        for host in &mut lab.hosts {
            host.set_program(vipwatch);
            std::fs::create_dir_all(host.router_directory())?;
            host.start_vipwatch(&lab.setup)?;
        }
        for host in &mut lab.hosts {
            host.wait_for_vipwatch()?;
            host.record_answers()?;
            lab.journal.write("node-ready", &json!({ "node": host.index() }))?;
        }
        Ok(lab)
    }

    /// Records the adverts of all ports of the data network.
    fn record_wire(&mut self) -> Result<(), FaultsError> {
        let mut document = self.setup.document();
        let ports = self.hosts.iter().map(|host| host.base.port_index());
        document["ports"] = json!(ports.collect::<Result<Vec<u32>, FaultsError>>()?);
        write_file(&self.directory.join("setup.json"), &document.to_string())?;
        self.recorders.push(crate::lab::record_wire(&self.directory.join("wire.pcap"))?);
        Ok(())
    }

    /// Writes an act to the log, does it, and writes its end.
    pub fn act(
        &self,
        act: &str,
        host: usize,
        how: &str,
        work: impl FnOnce(&ClusterHost) -> Result<(), FaultsError>,
    ) -> Result<(), FaultsError> {
        let entry = |phase: &str| json!({ "node": host, "how": how, "phase": phase });
        self.journal.write(act, &entry("begin"))?;
        work(&self.hosts[host])?;
        self.journal.write(act, &entry("done"))
    }

    /// Starts the node of a host again.
    pub fn start_vipwatch(&self, host: usize) -> Result<(), FaultsError> {
        self.act("vipwatch", host, "start", |host| {
            host.start_vipwatch(&self.setup)?;
            host.wait_for_vipwatch()
        })
    }

    /// The host of the leader of etcd; `None` if there is none.
    pub fn leader(&self) -> Option<usize> {
        self.hosts.iter().find(|host| host.is_leader()).map(ClusterHost::index)
    }

    /// The host of the node that reports findings; `None` if etcd names none.
    pub fn reporter(&self) -> Option<usize> {
        let record =
            self.hosts.iter().find_map(|host| host.etcd_value(&format!("{PREFIX}reporter")))?;
        let record: Value = serde_json::from_str(&record).ok()?;
        let name = record["node"].as_str()?.strip_prefix("node")?;
        name.parse().ok().filter(|host| *host < HOSTS)
    }

    /// The first host that holds all addresses of the first instance.
    pub fn primary(&self) -> Result<Option<usize>, FaultsError> {
        let all = self.setup.keepalived.addresses(0).len();
        Ok(self.held(0)?.iter().position(|held| *held == all))
    }

    /// How many addresses of an instance each host holds.
    pub fn held(&self, instance: usize) -> Result<Vec<usize>, FaultsError> {
        let addresses = self.setup.keepalived.addresses(instance);
        let link = self.setup.keepalived.address_link(instance);
        self.hosts.iter().map(|host| host.base.held(&link, &addresses)).collect()
    }

    fn is_settled(&self) -> Result<bool, FaultsError> {
        for instance in 0..self.setup.keepalived.instances().len() {
            let all = self.setup.keepalived.addresses(instance).len();
            let held = self.held(instance)?;
            if held.iter().sum::<usize>() != all || !held.contains(&all) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until exactly one host holds each instance, and writes the result to the log.
    pub fn wait_until_settled(&self) -> Result<(), FaultsError> {
        let end = Instant::now() + SETTLE_LIMIT;
        let mut is_settled = self.is_settled()?;
        while !is_settled && Instant::now() < end {
            pause(Duration::from_millis(40));
            is_settled = self.is_settled()?;
        }
        self.journal.write("settled", &json!({ "is_settled": is_settled }))
    }

    /// Ends the recordings of answers.
    pub fn finish(&self) -> Result<(), FaultsError> {
        self.journal.write("end", &json!({}))
    }
}

/// An empty `/run`, and the bridges.
fn prepare_switches() -> Result<(), FaultsError> {
    run("mount", "--make-rprivate /")?;
    run("mount", "-t tmpfs tmpfs /run")?;
    run("ip", "link set lo up")?;
    for bridge in ["br0", "br1", "br2"] {
        run("ip", &format!("link add {bridge} type bridge forward_delay 0 mcast_snooping 0"))?;
        run("ip", &format!("link set {bridge} up"))?;
    }
    run("ip", "address add 10.7.0.254/24 dev br2").map(drop)
}

/// Starts a program of the lab without input; its output goes to a file.
pub fn spawn_recorder(command: &mut Command, file: &Path) -> Result<Child, FaultsError> {
    let file = std::fs::File::create(file)?;
    Ok(command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null()).spawn()?)
}
