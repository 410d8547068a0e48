// SPDX-License-Identifier: Apache-2.0
//! The lab of one run: hosts with their own network, mount and pid namespaces, connected by a bridge in the namespace of
//! this process. The process runs in a sandbox of its own, which the kernel removes at its end.

pub mod host;
pub mod set_up_lock;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use self::host::LabHost;
use crate::FaultsError;
use crate::journal::InjectorLog;
use crate::moment::pause;
use crate::setup::{ConfigEdit, LINK, LabSetup, foreign_conf};

/// Time between two looks at a fact.
const POLL: Duration = Duration::from_millis(40);
/// Limit of a wait. It is not a deadline of the product.
const WAIT_LIMIT: Duration = Duration::from_mins(1);

/// A running lab.
pub struct FaultLab {
    pub setup: LabSetup,
    pub journal: InjectorLog,
    pub hosts: Vec<LabHost>,
    /// The host with the foreign keepalived of a VRID clash.
    pub foreign: LabHost,
    pub directory: PathBuf,
    /// Recording processes, which end with the sandbox.
    recorders: Vec<Child>,
}

impl FaultLab {
    /// Creates the hosts and starts keepalived and `vipwatch` on each of them.
    pub fn start(setup: LabSetup, directory: &Path, vipwatch: &Path) -> Result<Self, FaultsError> {
        let journal = InjectorLog::create(&directory.join("injector.jsonl"))?;
        prepare_switch()?;
        let mut hosts = Vec::new();
        for index in 0..=setup.nodes() {
            let host = LabHost::create(index, &directory.join(format!("node{index}")))?;
            host.plug(&setup)?;
            hosts.push(host);
        }
        let foreign = hosts.pop().ok_or_else(|| FaultsError("a lab has hosts".to_owned()))?;
        let mut lab = Self {
            setup,
            journal,
            hosts,
            foreign,
            directory: directory.to_owned(),
            recorders: Vec::new(),
        };
        lab.record_wire()?;
        for index in 0..lab.hosts.len() {
            lab.hosts[index].start_monitor()?;
            lab.configure(index, ConfigEdit::default())?;
            lab.start_keepalived(index)?;
        }
        for host in &mut lab.hosts {
            host.start_vipwatch(&lab.setup, vipwatch)?;
            lab.journal.write("node-ready", &json!({ "node": host.index }))?;
        }
        Ok(lab)
    }

    /// Records the adverts of all ports of the switch, with the port and the direction of each.
    fn record_wire(&mut self) -> Result<(), FaultsError> {
        let mut document = self.setup.document();
        let ports = self.hosts.iter().chain([&self.foreign]).map(LabHost::port_index);
        document["ports"] = json!(ports.collect::<Result<Vec<u32>, FaultsError>>()?);
        write_file(&self.directory.join("setup.json"), &document.to_string())?;
        self.recorders.push(record_wire(&self.directory.join("wire.pcap"))?);
        Ok(())
    }

    /// Writes the configuration of keepalived on a node.
    pub fn configure(&mut self, index: usize, edit: ConfigEdit) -> Result<(), FaultsError> {
        let mut addresses = self.setup.addresses(0);
        addresses.extend(
            edit.has_extra_address.then(|| crate::setup::extra_address(&self.setup).to_owned()),
        );
        let details = json!({ "node": index, "addresses": addresses, "is_edited": edit != ConfigEdit::default() });
        self.journal.write("configure", &details)?;
        self.hosts[index].configure(&self.setup, edit)?;
        self.journal.write("configured", &details)
    }

    /// Starts keepalived on a node and waits for its processes.
    pub fn start_keepalived(&mut self, index: usize) -> Result<(), FaultsError> {
        let details = json!({ "node": index });
        self.journal.write("keepalived-start", &details)?;
        self.hosts[index].start_keepalived()?;
        self.journal.write("keepalived-started", &details)
    }

    /// Starts the foreign keepalived. It receives nothing, so it advertises with the lowest priority.
    pub fn start_foreign(&self) -> Result<(), FaultsError> {
        if self.setup.is_unicast {
            // A host that receives nothing cannot ask for link-layer addresses.
            for host in &self.hosts {
                let (address, mac) = (self.setup.own_address(host.index), host.link_address()?);
                let line =
                    format!("ip neighbour replace {address} lladdr {mac} dev {LINK} nud permanent");
                self.foreign.run(&line)?;
            }
        }
        self.foreign.block_received()?;
        write_file(&self.foreign.keepalived_conf(), &foreign_conf(&self.setup))?;
        self.foreign.start_keepalived()
    }

    /// The role of each node for an instance: how many of its addresses the kernel holds.
    pub fn held(&self, instance: usize) -> Result<Vec<usize>, FaultsError> {
        let addresses = self.setup.addresses(instance);
        let link = self.setup.address_link(instance);
        self.hosts.iter().map(|host| host.held(&link, &addresses)).collect()
    }

    /// The first node that holds all addresses of the first instance.
    pub fn primary(&self) -> Result<Option<usize>, FaultsError> {
        let all = self.setup.addresses(0).len();
        Ok(self.held(0)?.iter().position(|held| *held == all))
    }

    /// Waits until exactly one node holds each instance. Returns false if that does not happen within the limit.
    pub fn wait_until_settled(&self) -> Result<bool, FaultsError> {
        let is_settled = || -> Result<bool, FaultsError> {
            for instance in 0..self.setup.instances().len() {
                let all = self.setup.addresses(instance).len();
                let held = self.held(instance)?;
                let primaries = held.iter().filter(|held| **held == all).count();
                if primaries != 1 || held.iter().sum::<usize>() != all {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if is_settled()? {
                return Ok(true);
            }
            pause(POLL);
        }
        Ok(false)
    }

    /// Collects the answers of the nodes.
    pub fn collect(&self) -> Result<(), FaultsError> {
        self.journal.write("end", &json!({}))?;
        self.hosts.iter().try_for_each(LabHost::collect)
    }
}

/// Records the adverts of all ports in the namespace of this process, with the port and the direction of each.
pub fn record_wire(file: &Path) -> Result<Child, FaultsError> {
    let mut command = Command::new("tcpdump");
    command.args(["-Z", "root", "-i", "any", "-y", "LINUX_SLL2", "-U", "-w"]).arg(file);
    command.arg("ip proto 112 or ip6 proto 112 or ip proto 51");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let recorder = command.spawn()?;
    wait_for("tcpdump to write its file", || {
        Ok(std::fs::metadata(file).is_ok_and(|data| data.len() >= 24).then_some(()))
    })?;
    Ok(recorder)
}

/// An empty `/run`, and the bridge.
fn prepare_switch() -> Result<(), FaultsError> {
    run("mount", "--make-rprivate /")?;
    run("mount", "-t tmpfs tmpfs /run")?;
    run("ip", "link set lo up")?;
    run("ip", "link add br0 type bridge forward_delay 0 mcast_snooping 0")?;
    run("ip", "link set br0 up").map(drop)
}

/// Runs a program to its end; `words` are its arguments, separated by spaces.
pub fn run(program: &str, words: &str) -> Result<String, FaultsError> {
    output(Command::new(program).args(words.split_whitespace()))
}

/// Runs a command to its end and returns its output.
pub fn output(command: &mut Command) -> Result<String, FaultsError> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| FaultsError(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(FaultsError(format!("{command:?}: {}: {reason}", output.status)))
}

/// Replaces a file as a whole.
pub fn write_file(path: &Path, text: &str) -> Result<(), FaultsError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let staged = path.with_extension("new");
    let mut options = std::fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o640).open(&staged);
    file?.write_all(text.as_bytes())?;
    Ok(std::fs::rename(&staged, path)?)
}

/// Calls `probe` until it returns a value.
pub fn wait_for<T>(
    what: &str,
    mut probe: impl FnMut() -> Result<Option<T>, FaultsError>,
) -> Result<T, FaultsError> {
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
