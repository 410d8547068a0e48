// SPDX-License-Identifier: Apache-2.0
//! The lab of one run: hosts with their own network, mount and pid namespaces, connected by bridges in the namespace of
//! this process. The process runs in a sandbox of its own, which the kernel removes at its end.

mod etcd;
pub mod host;
pub mod keepalived;
pub mod network;
mod recorders;
mod router;
pub mod set_up_lock;
pub mod simulated;
mod vipwatch;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::host::LabHost;
use self::network::{Disturbance, LabNetwork};
use self::simulated::SimulatedNode;
use crate::journal::InjectorLog;
use crate::moment::pause;
use crate::setup::{ConfigEdit, LINK, LabSetup, PREFIX, RECORDER};
use crate::{FaultsError, LabResult};

/// Time between two looks at a fact.
const POLL: Duration = Duration::from_millis(40);
/// Limit of a wait. It is not a deadline of the product.
const WAIT_LIMIT: Duration = Duration::from_mins(1);
/// Time limit for one primary per instance.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);

/// A running lab.
pub struct FaultLab {
    pub setup: LabSetup,
    pub journal: InjectorLog,
    pub hosts: Vec<LabHost>,
    /// The host with the foreign keepalived of a VRID clash; a lab with a cluster has none.
    pub foreign: Option<LabHost>,
    /// A node that exists only as records in etcd; `None` before the injector has created it.
    pub simulated: Option<SimulatedNode>,
    /// Recording processes, which end with the sandbox.
    recorders: Vec<Child>,
}

impl FaultLab {
    /// Creates the hosts and starts their programs.
    pub fn start(setup: LabSetup, directory: &Path, vipwatch: &Path) -> LabResult<Self> {
        network::prepare()?;
        let count = setup.nodes() + usize::from(setup.cluster.is_none());
        let hosts = (0..count).map(|index| LabHost::create(index, directory, &setup, vipwatch));
        let mut hosts = hosts.collect::<LabResult<Vec<LabHost>>>()?;
        let foreign = if setup.cluster.is_none() { hosts.pop() } else { None };
        let journal = InjectorLog::create(&directory.join("injector.jsonl"))?;
        let mut lab =
            Self { setup, journal, hosts, foreign, simulated: None, recorders: Vec::new() };
        lab.record_wire(directory)?;
        if lab.setup.cluster.is_some() {
            recorders::record_notifications(RECORDER, &directory.join("notifications.jsonl"))?;
            lab.start_etcd()?;
        }
        for index in 0..lab.hosts.len() {
            lab.hosts[index].record_kernel()?;
            lab.configure(index, ConfigEdit::default())?;
            lab.start_keepalived(index)?;
        }
        let is_observed = |host: &usize| lab.setup.unobserved != Some(*host);
        let observed: Vec<usize> = (0..lab.hosts.len()).filter(is_observed).collect();
        for host in &observed {
            lab.hosts[*host].start_vipwatch(&lab.setup)?;
        }
        for host in observed {
            let host = &mut lab.hosts[host];
            host.wait_for_vipwatch()?;
            host.record_answers(lab.setup.cluster.is_some())?;
            lab.journal.write("node-ready", &json!({ "node": host.index }))?;
        }
        Ok(lab)
    }

    /// Records the adverts of all ports of the data network, with the port and the direction of each.
    fn record_wire(&mut self, directory: &Path) -> LabResult {
        let ports = self.hosts.iter().chain(&self.foreign);
        let ports = ports.map(|host| host.port_index(&self.setup));
        let document = self.setup.document(ports.collect::<LabResult<Vec<u32>>>()?);
        write_file(&directory.join("setup.json"), &serde_json::to_string(&document)?)?;
        let file = directory.join("wire.pcap");
        let mut command = Command::new("tcpdump");
        command.args(["-Z", "root", "-i", "any", "-y", "LINUX_SLL2", "-U", "-w"]).arg(&file);
        command.arg("ip proto 112 or ip6 proto 112 or ip proto 51");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.recorders.push(command.spawn()?);
        wait_for("tcpdump to write its file", || {
            Ok(std::fs::metadata(&file).is_ok_and(|data| data.len() >= 24).then_some(()))
        })
    }

    /// Starts all members of etcd, and records the changes that each of them shows.
    fn start_etcd(&self) -> LabResult {
        self.hosts.iter().try_for_each(LabHost::start_etcd)?;
        wait_for("a leader of etcd", || Ok(self.leader()))?;
        for host in &self.hosts {
            recorders::record_etcd(host.etcd(), PREFIX, &host.file("etcd.jsonl"))?;
        }
        Ok(())
    }

    /// Writes an act to the log, does it, and writes its end.
    pub fn act(
        &self,
        act: &str,
        host: usize,
        how: impl serde::Serialize,
        work: impl FnOnce(&LabHost) -> LabResult,
    ) -> LabResult {
        let entry = |phase: &str| json!({ "node": host, "how": how, "phase": phase });
        self.journal.write(act, &entry("begin"))?;
        work(&self.hosts[host])?;
        self.journal.write(act, &entry("done"))
    }

    /// Writes the configuration of keepalived on a host.
    pub fn configure(&self, host: usize, edit: ConfigEdit) -> LabResult {
        let mut addresses = self.setup.instance(0).addresses;
        addresses.extend(edit.has_extra_address.then(|| self.setup.extra_address()));
        let details = json!({ "node": host, "addresses": addresses, "is_edited": edit != ConfigEdit::default() });
        self.journal.write("configure", &details)?;
        self.hosts[host].configure(&self.setup, edit)?;
        self.journal.write("configured", &details)
    }

    /// Starts keepalived on a host and waits for its processes.
    pub fn start_keepalived(&self, host: usize) -> LabResult {
        let details = json!({ "node": host });
        self.journal.write("keepalived-start", &details)?;
        self.hosts[host].start_keepalived()?;
        self.journal.write("keepalived-started", &details)
    }

    /// The foreign host.
    pub fn foreign(&self) -> LabResult<&LabHost> {
        self.foreign.as_ref().ok_or_else(|| FaultsError("the lab has no foreign host".to_owned()))
    }

    /// Starts the foreign keepalived. It receives nothing, so it advertises with the lowest priority.
    pub fn start_foreign(&self) -> LabResult {
        let foreign = self.foreign()?;
        // A host that receives nothing cannot ask for link-layer addresses.
        for host in self.hosts.iter().filter(|_| self.setup.is_unicast) {
            let (address, mac) = (self.setup.own_address(host.index), host.link_address()?);
            let entry = format!("{address} lladdr {mac} dev {LINK} nud permanent");
            foreign.run(&format!("ip neighbour replace {entry}"))?;
        }
        foreign.disturb(LabNetwork::Data, Disturbance::ReceiveLoss)?;
        write_file(&foreign.file("keepalived.conf"), &self.setup.foreign_conf())?;
        foreign.start_keepalived()
    }

    /// The etcd leader's host; `None` without a leader.
    pub fn leader(&self) -> Option<usize> {
        self.hosts.iter().find(|host| host.etcd().is_leader()).map(|host| host.index)
    }

    /// The host of the node that reports findings; `None` if etcd names none.
    pub fn reporter(&self) -> Option<usize> {
        let key = format!("{PREFIX}reporter");
        let record = self.hosts.iter().find_map(|host| host.etcd().value(&key))?;
        let record: Value = serde_json::from_str(&record).ok()?;
        let name = record["node"].as_str()?.strip_prefix("node")?;
        name.parse().ok().filter(|host| *host < self.hosts.len())
    }

    /// How many addresses of an instance each host holds.
    pub fn held(&self, instance: usize) -> LabResult<Vec<usize>> {
        let instance = self.setup.instance(instance);
        self.hosts.iter().map(|host| host.held(&instance)).collect()
    }

    /// The first host that holds all addresses of the first instance.
    pub fn primary(&self) -> LabResult<Option<usize>> {
        let all = self.setup.instance(0).addresses.len();
        Ok(self.held(0)?.iter().position(|held| *held == all))
    }

    fn is_settled(&self) -> LabResult<bool> {
        for instance in 0..self.setup.instances() {
            let all = self.setup.instance(instance).addresses.len();
            let held = self.held(instance)?;
            if held.iter().sum::<usize>() != all || !held.contains(&all) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until exactly one host holds each instance, and writes to the log whether that has happened.
    pub fn wait_until_settled(&self) -> LabResult {
        let end = Instant::now() + SETTLE_LIMIT;
        let mut is_settled = self.is_settled()?;
        while !is_settled && Instant::now() < end {
            pause(POLL);
            is_settled = self.is_settled()?;
        }
        self.journal.write("settled", &json!({ "is_settled": is_settled }))
    }

    /// Writes the end to the log, and collects the histories of the nodes.
    pub fn finish(&self) -> LabResult {
        self.journal.write("end", &json!({}))?;
        let mut observed =
            self.hosts.iter().filter(|host| self.setup.unobserved != Some(host.index));
        observed.try_for_each(LabHost::collect_history)
    }
}

/// Runs a program to its end; `words` are its arguments, separated by spaces.
pub fn run(program: &str, words: &str) -> LabResult<String> {
    output(Command::new(program).args(words.split_whitespace()))
}

/// Runs a command to its end and returns its output.
pub fn output(command: &mut Command) -> LabResult<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| FaultsError(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(FaultsError(format!("{command:?}: {}: {reason}", output.status)))
}

/// Replaces a file as a whole.
pub fn write_file(path: &Path, text: &str) -> LabResult {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let staged: PathBuf = path.with_extension("new");
    let mut options = std::fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o640).open(&staged);
    file?.write_all(text.as_bytes())?;
    Ok(std::fs::rename(&staged, path)?)
}

/// Calls `probe` until it returns a value.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> LabResult<Option<T>>) -> LabResult<T> {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if Instant::now() > end {
            return Err(FaultsError(format!("waited {WAIT_LIMIT:?} in vain for {what}")));
        }
        pause(POLL);
    }
}
