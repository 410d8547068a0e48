// SPDX-License-Identifier: Apache-2.0
//! How real keepalived reads a configuration: it dumps its data structures when it starts.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::keepalived::signal;
use crate::monitor::read_pid;
use crate::{Lab, TestNetns, run};

/// Maximum time for keepalived to dump its configuration.
const DUMP_TIMEOUT: Duration = crate::wait::LIMIT;

/// Length of the date before each line of keepalived's log.
const DATE_BYTES: usize = 26;

/// The options that name pid files: one process of each kind would otherwise be alone on the machine.
const PID_FILES: [(&str, &str); 4] = [
    ("-p", "dump.pid"),
    ("-r", "dump-vrrp.pid"),
    ("-c", "dump-checkers.pid"),
    ("-b", "dump-bfd.pid"),
];

/// The links that exist in the namespace of a [`DumpLab`].
pub const LINKS: [&str; 4] = ["eth0", "eth1", "eth2", "bond0"];

/// A namespace with [`LINKS`], in which keepalived reads configurations.
#[derive(Debug)]
pub struct DumpLab {
    lab: Lab,
    netns: TestNetns,
    program: PathBuf,
}

/// The result of one start of keepalived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dump {
    /// keepalived runs these instances, in this order.
    Instances(Vec<DumpInstance>),
    /// keepalived has rejected the configuration; the last lines of its log.
    Refused(String),
    /// keepalived has crashed, or has neither dumped nor ended in time; the last lines of its log.
    Broken(String),
}

/// An instance that keepalived runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DumpInstance {
    /// Name of the instance.
    pub name: String,
    /// Virtual router id, as printed.
    pub vrid: String,
    /// Priority at the start, as printed.
    pub priority: String,
    /// The link that `interface` names.
    pub interface: String,
    /// `ADDRESS/PREFIX dev LINK`, with ` excluded` for addresses that are not in adverts.
    pub addresses: Vec<String>,
}

impl fmt::Display for DumpInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, vrid, priority, interface, addresses } = self;
        write!(f, "{name:?} vrid {vrid} priority {priority} on {interface}")?;
        addresses.iter().try_for_each(|address| write!(f, "\n    {address}"))
    }
}

impl DumpLab {
    /// Creates a namespace with [`LINKS`].
    pub fn new() -> Self {
        Self::running(crate::keepalived::program())
    }

    /// The same, for a certain keepalived.
    pub fn running(program: PathBuf) -> Self {
        let lab = Lab::new();
        let netns = lab.netns("dump");
        for (number, link) in LINKS.into_iter().enumerate() {
            netns.add_link(link);
            netns.ip(&format!("address add 198.18.{number}.1/24 dev {link}"));
        }
        Self { lab, netns, program }
    }

    /// A temporary directory.
    pub fn path(&self) -> &Path {
        self.lab.path()
    }

    /// Starts keepalived with `file`, reads its dump and stops it.
    pub fn dump(&self, file: &Path, config_id: Option<&str>) -> Dump {
        let mut command = self.netns.command(&self.program);
        command.args(["-n", "-R", "-P", "-l", "-d", "-G", "-D", "-f"]).arg(file);
        command.args(config_id.iter().flat_map(|id| ["-i", id]));
        for (option, file) in PID_FILES {
            command.arg(option).arg(self.path().join(file));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("keepalived; hint: `cargo xtask test` installs it");
        let lines = lines(&mut child);
        let mut log: Vec<String> = Vec::new();
        let deadline = Instant::now() + DUMP_TIMEOUT;
        let dump = loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains("------< Interfaces >------") => {
                    break Dump::Instances(instances(&log));
                }
                Ok(line) if line.ends_with("keepalived has no configuration to run") => {
                    break Dump::Instances(Vec::new());
                }
                Ok(line) if line.contains("exited due to") => break Dump::Broken(line),
                Ok(line) => log.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    break Dump::Refused(log.split_off(log.len().saturating_sub(8)).join("\n"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    break Dump::Broken(log.split_off(log.len().saturating_sub(8)).join("\n"));
                }
            }
        };
        self.stop(child);
        dump
    }

    /// Kills keepalived, which takes a second or more to end by itself, and removes the links it made.
    fn stop(&self, mut child: Child) {
        // A running parent would start another child.
        signal(child.id(), "STOP");
        if let Some(pid) = read_pid(&self.path().join("dump-vrrp.pid")) {
            signal(pid, "KILL");
        }
        let _ = child.kill();
        let _ = child.wait();
        // keepalived does not start if a pid file has the pid of a running process.
        for (_, file) in PID_FILES {
            let _ = std::fs::remove_file(self.path().join(file));
        }
        for kind in ["macvlan", "ipvlan"] {
            let name = self.netns.name();
            let links =
                run(Command::new("ip").args(["-n", name, "-o", "link", "show", "type", kind]));
            for link in links.lines().filter_map(|line| line.split(['@', ' ']).nth(1)) {
                self.netns.ip(&format!("link delete dev {link}"));
            }
        }
    }
}

impl Default for DumpLab {
    fn default() -> Self {
        Self::new()
    }
}

/// The lines that `child` writes to standard error, without their dates.
fn lines(child: &mut Child) -> mpsc::Receiver<String> {
    let output = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
    let (sender, receiver) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        for line in output.split(b'\n').map_while(Result::ok) {
            let line =
                String::from_utf8_lossy(line.get(DATE_BYTES..).unwrap_or_default()).into_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Parses the instances of a dump.
fn instances(log: &[String]) -> Vec<DumpInstance> {
    let mut instances: Vec<DumpInstance> = Vec::new();
    let mut list = None;
    // Lines of the dump are indented. The parent process writes into the same log, for example the pid of the child.
    for line in log.iter().filter(|line| line.starts_with(' ')) {
        if let Some(name) = line.strip_prefix(" VRRP Instance = ") {
            instances.push(DumpInstance { name: name.to_owned(), ..DumpInstance::default() });
            list = None;
            continue;
        }
        let Some(instance) = instances.last_mut() else { continue };
        if let Some(address) = line.strip_prefix("     ") {
            instance.addresses.extend(list.map(|excluded| address_of(address, excluded)));
            continue;
        }
        let Some((key, value)) = line.trim_start().split_once(['=', ':']) else { continue };
        list = None;
        match key.trim_end() {
            "Virtual Router ID" => value.trim().clone_into(&mut instance.vrid),
            "Priority" => value.trim().clone_into(&mut instance.priority),
            "Interface" => {
                // `vrrp.51, vmac on eth0`, sometimes followed by `, xmit base i/f`.
                let base = value.split_once(" on ").map_or(value, |(_, base)| base);
                base.split(',').next().unwrap_or(base).trim().clone_into(&mut instance.interface);
            }
            "Virtual IP Excluded" => list = Some(true),
            // `Virtual IP (2)`; 2.1 prints no number.
            key if key.starts_with("Virtual IP") => list = Some(false),
            _ => {}
        }
    }
    instances
}

/// Parses an address such as `10.0.0.1/24 dev vrrp.51@eth0 scope global`.
fn address_of(text: &str, is_excluded: bool) -> String {
    let mut words = text.split_whitespace();
    let ip = words.next().unwrap_or_default();
    let length = match (ip.contains('/'), ip.contains(':')) {
        (true, _) => "",
        (false, true) => "/128",
        (false, false) => "/32",
    };
    let link = words.skip_while(|word| *word != "dev").nth(1).unwrap_or_default();
    let link = link.split('@').next().unwrap_or(link);
    format!("{ip}{length} dev {link}{}", if is_excluded { " excluded" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_parent_process_between_two_addresses_hides_none() {
        let log = [
            " VRRP Instance = A",
            "   Virtual IP (2):",
            "     fd00::1/128 dev eth0 scope global",
            "Starting VRRP child process, pid=36",
            "     fd00::2/128 dev eth0 scope global",
        ];
        let instances = instances(&log.map(str::to_owned));
        assert_eq!(instances[0].addresses, ["fd00::1/128 dev eth0", "fd00::2/128 dev eth0"]);
    }
}
