// SPDX-License-Identifier: Apache-2.0
//! One host of a lab: its namespaces, its services, and the recording of its kernel.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::network::LabNetwork;
use super::{keepalived, output, wait_for, write_file};
use crate::LabResult;
use crate::moment::now;
use crate::setup::{HealthyShape, InstanceFacts, LINK, LabSetup, etcd_address, heartbeat_address};

/// A host.
pub struct LabHost {
    pub index: usize,
    pub(super) directory: PathBuf,
    /// The first process of the pid namespace, by its pid in the sandbox.
    pub(super) init: u32,
    /// The address in the data network, with its prefix length.
    pub(super) own_address: String,
    pub(super) vipwatch: PathBuf,
    /// The command that runs keepalived.
    pub(super) keepalived: String,
    /// `unshare` and the recorders; they end with the sandbox.
    pub(super) processes: Vec<Child>,
}

impl LabHost {
    /// Creates the namespaces and the links.
    pub fn create(
        index: usize,
        directory: &Path,
        setup: &LabSetup,
        vipwatch: &Path,
    ) -> LabResult<Self> {
        let directory = directory.join(format!("node{index}"));
        std::fs::create_dir_all(&directory)?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command.arg(std::env::current_exe()?).arg("init");
        let unshare = command.stdin(Stdio::null()).spawn()?;
        let own = setup.own_address(index);
        let host = Self {
            index,
            directory,
            init: first_process(unshare.id())?,
            own_address: format!("{own}/{}", if setup.is_ipv6 { 64 } else { 24 }),
            vipwatch: vipwatch.to_owned(),
            keepalived: keepalived::command(setup, index)?,
            processes: vec![unshare],
        };
        host.run("mount -t tmpfs tmpfs /run")?;
        host.run("ip link set lo up")?;
        // Without duplicate address detection an address is usable at once.
        let settings = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; \
                        echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad";
        output(host.command("sh").args(["-c", settings]))?;
        host.connect_data(setup.data_link, &host.own_address)?;
        if setup.has_heartbeat {
            host.connect(LabNetwork::Heartbeat, &format!("{}/24", heartbeat_address(index)))?;
        }
        if setup.shape == Some(HealthyShape::AddressOnLo) {
            let address = setup.instance(0).addresses[0].replace("/24", "/32");
            host.run(&format!("ip address add {address} dev lo"))?;
        }
        if setup.cluster.is_some() {
            host.connect(LabNetwork::Management, &format!("{}/24", etcd_address(index)))?;
            host.connect(LabNetwork::Notification, &format!("10.7.0.{}/24", index + 1))?;
        }
        Ok(host)
    }

    /// A file of the host.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A command in the namespaces of the host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-n", "-m", "-p", "--", program]);
        command
    }

    /// Runs a command line in the namespaces of the host.
    pub fn run(&self, line: &str) -> LabResult<String> {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap_or_default();
        output(self.command(program).args(words))
    }

    /// How many addresses of an instance the host holds.
    pub fn held(&self, instance: &InstanceFacts) -> LabResult<usize> {
        let text = self.run("ip -o address show")?;
        let is_held = |address: &&String| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                words.next() == Some(&instance.address_link)
                    && words.nth(1) == Some(address.as_str())
            })
        };
        Ok(instance.addresses.iter().filter(is_held).count())
    }

    /// Records the changes of links and addresses, beginning with the present ones.
    pub fn record_kernel(&mut self) -> LabResult {
        let mut command = self.command("ip");
        command.args(["-ts", "-o", "monitor", "link", "address"]).env("TZ", "UTC");
        self.record(&mut command, "monitor.log")?;
        // `ip monitor` prints the setting of an alias only after it has subscribed: a visible fact that it records.
        wait_for("ip monitor", || {
            self.run(&format!("ip link set {LINK} alias {}", now()))?;
            let log = std::fs::read_to_string(self.file("monitor.log"))?;
            Ok(log.contains(LINK).then_some(()))
        })?;
        let text = self.run("ip -o link show")? + &self.run("ip -o address show")?;
        write_file(&self.file("initial.log"), &text)
    }

    /// Starts a recording process; its output goes to a file of the host.
    pub fn record(&mut self, command: &mut Command, file: &str) -> LabResult {
        let file = File::create(self.file(file))?;
        command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null());
        self.processes.push(command.spawn()?);
        Ok(())
    }

    /// Starts a program of the host as a daemon, and writes its pid to `NAME.pid` and its output to `NAME.log`.
    pub fn start_service(&self, name: &str, line: &str) -> LabResult {
        // The shell ends at once, so that the program is a child of the host's first process.
        let script = format!("{line} >> \"$1\" 2>&1 < /dev/null & echo $! > \"$2\"");
        let mut command = self.command("setsid");
        command.args(["sh", "-c", &script, "sh"]).arg(self.file(&format!("{name}.log")));
        output(command.arg(self.file(&format!("{name}.pid")))).map(drop)
    }

    /// The pid in a pid file.
    pub fn pid(&self, name: &str) -> LabResult<u32> {
        let text = std::fs::read_to_string(self.file(&format!("{name}.pid")))?;
        Ok(text.trim().parse()?)
    }

    /// Sends a signal to a daemon of the host.
    pub fn signal_service(&self, name: &str, signal: &str) -> LabResult {
        self.signal(&[(signal, self.pid(name)?)])
    }

    /// Ends a daemon with a signal, and waits for its end.
    pub fn end_service(&self, name: &str, signal: &str) -> LabResult {
        let pid = self.pid(name)?;
        self.signal(&[(signal, pid)])?;
        self.wait_for_end(name, &[pid])
    }

    /// Whether a daemon of the host runs or is stopped by a signal.
    pub fn is_service_alive(&self, name: &str) -> bool {
        self.pid(name).is_ok_and(|pid| self.is_alive(pid))
    }

    /// Waits for the end of processes.
    pub fn wait_for_end(&self, name: &str, pids: &[u32]) -> LabResult {
        wait_for(&format!("the end of {name}"), || {
            Ok((!pids.iter().any(|pid| self.is_alive(*pid))).then_some(()))
        })
    }

    /// Sends signals in this order: pairs of a name and a pid.
    pub fn signal(&self, signals: &[(&str, u32)]) -> LabResult {
        let lines: Vec<String> =
            signals.iter().map(|(name, pid)| format!("kill -{name} {pid}")).collect();
        output(self.command("sh").args(["-c", &lines.join(" && ")])).map(drop)
    }

    /// Whether a process of the host exists, and at least one of its threads has not ended.
    pub fn is_alive(&self, pid: u32) -> bool {
        let root = PathBuf::from(format!("/proc/{}/root", self.init));
        let process = root.join(format!("proc/{pid}"));
        // A process that ends meanwhile has no directory of threads.
        let threads = std::fs::read_dir(process.join("task")).map_or(0, Iterator::count);
        std::fs::read_to_string(process.join("stat")).is_ok_and(|stat| has_thread(&stat, threads))
    }
}

/// Waits for the first process of a new pid namespace.
fn first_process(unshare: u32) -> LabResult<u32> {
    wait_for("the first process of a host", || {
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"))?;
        let is_running = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.ends_with("init\0") && !line.starts_with("unshare"))
        };
        Ok(children.trim().parse().ok().filter(is_running))
    })
}

/// Whether a process with this line in `/proc/PID/stat` has a thread that has not ended. The first thread of a killed
/// process can be a zombie while others still run, with the open files and locks of the process.
fn has_thread(stat: &str, threads: usize) -> bool {
    let is_zombie = stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['Z', 'X']));
    threads > usize::from(is_zombie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_with_its_last_thread() {
        let stat = |state: char| format!("7 (a) b) {state} 1 7 7 0");
        assert!(has_thread(&stat('S'), 1));
        assert!(has_thread(&stat('Z'), 2), "another thread still runs");
        assert!(!has_thread(&stat('Z'), 1));
        assert!(!has_thread(&stat('S'), 0), "the process has gone meanwhile");
    }
}
