// SPDX-License-Identifier: Apache-2.0
//! One host of a lab: its namespaces, keepalived, `vipwatch node`, and the recordings of both.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{output, run, wait_for, write_file};
use crate::FaultsError;
use crate::moment::now;
use crate::setup::{ConfigEdit, LINK, LabSetup, keepalived_conf};

/// The pids of keepalived, in the pid namespace of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepalivedPids {
    pub parent: u32,
    pub child: u32,
}

/// A host.
pub struct LabHost {
    pub index: usize,
    directory: PathBuf,
    /// The first process of the pid namespace, by its pid in the sandbox.
    init: u32,
    vipwatch: PathBuf,
    /// `unshare`, the node and the recorders; they end with the sandbox.
    processes: Vec<Child>,
}

impl LabHost {
    /// Creates the namespaces.
    pub fn create(index: usize, directory: &Path) -> Result<Self, FaultsError> {
        std::fs::create_dir_all(directory)?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command.arg(std::env::current_exe()?).arg("init");
        let unshare = command.stdin(Stdio::null()).spawn()?;
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let init = wait_for("the first process of a host", || {
            let pid = std::fs::read_to_string(&children)?.trim().parse::<u32>().ok();
            let is_running = |pid: &u32| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.ends_with("init\0") && !line.starts_with("unshare"))
            };
            Ok(pid.filter(is_running))
        })?;
        let host = Self {
            index,
            directory: directory.to_owned(),
            init,
            vipwatch: PathBuf::new(),
            processes: vec![unshare],
        };
        host.run("mount -t tmpfs tmpfs /run")?;
        host.run("ip link set lo up")?;
        // Without duplicate address detection an address is usable at once.
        let settings = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; \
                        echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad";
        output(host.command("sh").args(["-c", settings]))?;
        Ok(host)
    }

    /// Connects the host with the switch.
    pub fn plug(&self, setup: &LabSetup) -> Result<(), FaultsError> {
        self.connect("br0", &self.port(), LINK)?;
        self.link_up(setup)
    }

    /// Connects a new link of the host with a bridge.
    pub fn connect(&self, bridge: &str, port: &str, link: &str) -> Result<(), FaultsError> {
        let init = self.init;
        run("ip", &format!("link add {port} type veth peer name {link} netns {init}"))?;
        run("ip", &format!("link set {port} master {bridge}"))?;
        run("ip", &format!("link set {port} up"))?;
        self.run(&format!("ip link set {link} up")).map(drop)
    }

    /// Keeps a process of the host until the end of the sandbox.
    pub fn adopt(&mut self, process: Child) {
        self.processes.push(process);
    }

    /// Sets the link up and gives it the own address, which the kernel removes when an IPv6 link is set down.
    pub fn link_up(&self, setup: &LabSetup) -> Result<(), FaultsError> {
        self.run(&format!("ip link set {LINK} up"))?;
        let own = setup.own_address(self.index);
        let (length, flag) = if setup.is_ipv6 { (64, "nodad") } else { (24, "") };
        self.run(&format!("ip address replace {own}/{length} dev {LINK} {flag}")).map(drop)
    }

    /// The name of the port at the switch.
    pub fn port(&self) -> String {
        format!("p{}", self.index)
    }

    /// The index of the port at the switch.
    pub fn port_index(&self) -> Result<u32, FaultsError> {
        // `/sys` may be that of another network namespace.
        let line = run("ip", &format!("-o link show dev {}", self.port()))?;
        let index = line.split(':').next().and_then(|index| index.trim().parse().ok());
        index.ok_or_else(|| FaultsError(format!("no index in {line:?}")))
    }

    /// The link-layer address of the host's link.
    pub fn link_address(&self) -> Result<String, FaultsError> {
        let line = self.run(&format!("ip -o link show dev {LINK}"))?;
        let mut words = line.split_whitespace().skip_while(|word| *word != "link/ether");
        let address = words.nth(1).map(str::to_owned);
        address.ok_or_else(|| FaultsError(format!("no link-layer address in {line:?}")))
    }

    /// A command in the namespaces of the host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-n", "-m", "-p", "--", program]);
        command
    }

    /// Runs a command line in the namespaces of the host.
    pub fn run(&self, line: &str) -> Result<String, FaultsError> {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap_or_default();
        output(self.command(program).args(words))
    }

    /// Lets the host receive nothing. A token bucket that is smaller than every frame drops all frames; it exists in
    /// kernels without `netem`.
    pub fn block_received(&self) -> Result<(), FaultsError> {
        let port = self.port();
        let netem = run("tc", &format!("qdisc replace dev {port} root netem loss 100%"));
        netem.or_else(|_| {
            run("tc", &format!("qdisc replace dev {port} root tbf rate 8bit burst 1 limit 1"))
        })?;
        Ok(())
    }

    /// Lets the host receive again.
    pub fn unblock_received(&self) -> Result<(), FaultsError> {
        run("tc", &format!("qdisc del dev {} root", self.port())).map(drop)
    }

    /// How many of the addresses are on the link.
    pub fn held(&self, link: &str, addresses: &[String]) -> Result<usize, FaultsError> {
        let text = self.run("ip -o address show")?;
        let is_held = |address: &&String| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                words.next() == Some(link) && words.nth(1) == Some(address.as_str())
            })
        };
        Ok(addresses.iter().filter(is_held).count())
    }

    pub fn keepalived_conf(&self) -> PathBuf {
        self.directory.join("keepalived.conf")
    }

    /// The track script fails while this file exists.
    pub fn script_file(&self) -> PathBuf {
        self.directory.join("script-fails")
    }

    pub fn configure(&self, setup: &LabSetup, edit: ConfigEdit) -> Result<(), FaultsError> {
        let script = self.script_file().display().to_string();
        write_file(&self.keepalived_conf(), &keepalived_conf(setup, self.index, edit, &script))
    }

    /// Starts keepalived in the background and waits for both processes.
    pub fn start_keepalived(&self) -> Result<(), FaultsError> {
        // The shell ends at once, so that keepalived is a child of the host's first process, as a daemon is.
        let line =
            "keepalived -n -P -l -D -f \"$1\" -p \"$2\" -r \"$3\" >> \"$4\" 2>&1 < /dev/null &";
        let mut command = self.command("setsid");
        command.args(["sh", "-c", line, "sh"]).arg(self.keepalived_conf());
        command.arg(self.pid_file("parent")).arg(self.pid_file("child"));
        output(command.arg(self.directory.join("keepalived.log")))?;
        wait_for("keepalived's processes", || Ok(self.keepalived_pids())).map(drop)
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.pid"))
    }

    /// The pids in the pid files, if both processes exist.
    pub fn keepalived_pids(&self) -> Option<KeepalivedPids> {
        let read = |name: &str| -> Option<u32> {
            let text = std::fs::read_to_string(self.pid_file(name)).ok()?;
            text.trim().parse().ok().filter(|pid| self.is_alive(*pid))
        };
        Some(KeepalivedPids { parent: read("parent")?, child: read("child")? })
    }

    /// A file in `/proc` of the host, with the host's own pids.
    fn proc_file(&self, pid: u32, name: &str) -> PathBuf {
        let host = Path::new("/proc").join(self.init.to_string()).join("root");
        host.join("proc").join(pid.to_string()).join(name)
    }

    /// Whether a process of the host exists, and at least one of its threads has not ended.
    pub fn is_alive(&self, pid: u32) -> bool {
        let stat = std::fs::read_to_string(self.proc_file(pid, "stat"));
        // A process that ends meanwhile has no directory of threads.
        let threads = std::fs::read_dir(self.proc_file(pid, "task")).map_or(0, Iterator::count);
        stat.is_ok_and(|stat| has_thread(&stat, threads))
    }

    /// Sends signals in this order: pairs of a name and a pid.
    pub fn signal(&self, signals: &[(&str, u32)]) -> Result<(), FaultsError> {
        let lines: Vec<String> =
            signals.iter().map(|(name, pid)| format!("kill -{name} {pid}")).collect();
        output(self.command("sh").args(["-c", &lines.join(" && ")])).map(drop)
    }

    /// Records the changes of links and addresses, beginning with the present ones.
    pub fn start_monitor(&mut self) -> Result<(), FaultsError> {
        let file = File::create(self.directory.join("monitor.log"))?;
        let mut command = self.command("ip");
        command.args(["-ts", "-o", "monitor", "link", "address"]).env("TZ", "UTC");
        command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null());
        self.processes.push(command.spawn()?);
        // `ip monitor` prints the setting of an alias only after it has subscribed: a visible fact that it records.
        wait_for("ip monitor", || {
            self.run(&format!("ip link set {LINK} alias {}", now()))?;
            let log = std::fs::read_to_string(self.directory.join("monitor.log"))?;
            Ok(log.contains(LINK).then_some(()))
        })?;
        let text = self.run("ip -o link show")? + &self.run("ip -o address show")?;
        write_file(&self.directory.join("initial.log"), &text)
    }

    /// Starts the node and the recording of its events.
    pub fn start_vipwatch(&mut self, setup: &LabSetup, vipwatch: &Path) -> Result<(), FaultsError> {
        vipwatch.clone_into(&mut self.vipwatch);
        let directory = self.directory.display();
        let sent = if setup.captures_sent { "sent = [\"*\"]\n" } else { "sent = []\n" };
        let text = format!(
            "[node]\nstate_dir = \"{directory}/state\"\nsocket = \"{directory}/node.sock\"\nlog = \"text\"\n\
             [find]\nkeepalived_conf = \"{directory}/keepalived.conf\"\n\
             neutron_state_path = \"{directory}/neutron\"\n[witness]\nenabled = true\n{sent}"
        );
        write_file(&self.directory.join("vipwatch.toml"), &text)?;
        let log = File::create(self.directory.join("node.log"))?;
        let mut node = self.vipwatch_command(&["node"]);
        self.processes
            .push(node.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?);
        wait_for("the node to answer", || {
            Ok(output(&mut self.vipwatch_command(&["status", "-o", "json"]))
                .ok()
                .filter(|text| text.contains("\"source\": \"node\"") && text.contains("\"VI_1\"")))
        })?;
        let events = File::create(self.directory.join("events.jsonl"))?;
        let mut watch = self.vipwatch_command(&["watch", "-o", "json", "--after", "0"]);
        watch.stdin(Stdio::null()).stdout(events).stderr(Stdio::null());
        self.processes.push(watch.spawn()?);
        Ok(())
    }

    fn vipwatch_command(&self, words: &[&str]) -> Command {
        let mut command = self.command(&self.vipwatch.display().to_string());
        command.args(words).arg("--config").arg(self.directory.join("vipwatch.toml"));
        command
    }

    /// The names of the findings that the recorded events have opened.
    pub fn has_opened(&self, name: &str) -> bool {
        let text = std::fs::read_to_string(self.directory.join("events.jsonl")).unwrap_or_default();
        let (open, name) = ("\"state\":\"open\"", format!("\"name\":\"{name}\""));
        text.lines().any(|line| line.contains(open) && line.contains(&name))
    }

    /// Writes the answers of the node to files.
    pub fn collect(&self) -> Result<(), FaultsError> {
        for (name, words) in [
            ("history.json", &["history", "-n", "10000", "-o", "json"][..]),
            ("findings.json", &["findings", "-o", "json"][..]),
        ] {
            // `findings` ends with 1 if there are findings.
            let output = self.vipwatch_command(words).stdin(Stdio::null()).output()?;
            write_file(&self.directory.join(name), &String::from_utf8_lossy(&output.stdout))?;
        }
        Ok(())
    }
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
