// SPDX-License-Identifier: Apache-2.0
//! Real keepalived processes, and a switch that connects their namespaces.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{Lab, TestNetns, run, wait_for};

/// The program that labs run: `VIPWATCH_KEEPALIVED`, or the one of the system.
pub fn program() -> PathBuf {
    std::env::var_os("VIPWATCH_KEEPALIVED").unwrap_or_else(|| "keepalived".into()).into()
}

/// [`program`] and those of `VIPWATCH_KEEPALIVED_VERSIONS`, with which discovery is compared.
pub fn programs() -> Vec<PathBuf> {
    let versions = std::env::var_os("VIPWATCH_KEEPALIVED_VERSIONS").unwrap_or_default();
    let others = std::env::split_paths(&versions).filter(|path| !path.as_os_str().is_empty());
    std::iter::once(program()).chain(others).collect()
}

/// The version of a program, for example `2.2.7`.
#[track_caller]
pub fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().expect("keepalived --version");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let version = text.split_whitespace().nth(1).and_then(|word| word.strip_prefix('v'));
    version.unwrap_or_else(|| panic!("{}: no version in {text:?}", program.display())).to_owned()
}

/// A keepalived process. Dropping it kills the process and its children.
#[derive(Debug)]
pub struct Keepalived {
    child: Child,
    directory: PathBuf,
}

impl Keepalived {
    /// Starts keepalived with the configuration that Neutron's agent writes for `vip` on `link`. Its files are
    /// in `directory`.
    pub fn start(netns: &TestNetns, directory: &Path, link: &str, vip: &str, priority: u8) -> Self {
        Self::start_with(netns, directory, &Self::router(link, vip, priority))
    }

    /// The configuration that Neutron's agent writes.
    fn router(link: &str, vip: &str, priority: u8) -> String {
        format!(
            "global_defs {{\n    router_id neutron\n}}\nvrrp_instance VR_1 {{\n    state BACKUP\n    \
             interface {link}\n    virtual_router_id 1\n    priority {priority}\n    \
             garp_master_delay 60\n    nopreempt\n    advert_int 1\n    track_interface {{\n        \
             {link}\n    }}\n    virtual_ipaddress {{\n        {vip} dev {link}\n    }}\n}}\n"
        )
    }

    /// Writes `config` into `directory` and starts keepalived with it. Its output is in `keepalived.log`, to
    /// explain a failed test.
    pub fn start_with(netns: &TestNetns, directory: &Path, config: &str) -> Self {
        let path = directory.join("keepalived.conf");
        let staged = directory.join("keepalived.conf.new");
        std::fs::File::create(&staged)
            .and_then(|mut file| std::io::Write::write_all(&mut file, config.as_bytes()))
            .and_then(|()| std::fs::rename(&staged, &path))
            .expect("keepalived.conf");
        let mut command = netns.command(program());
        command.arg("-n").arg("-P").arg("-l").arg("-D").arg("-f").arg(&path);
        command.arg("-p").arg(directory.join("keepalived.pid"));
        command.arg("-r").arg(directory.join("keepalived-vrrp.pid"));
        let log = std::fs::File::create(directory.join("keepalived.log")).expect("keepalived.log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("keepalived.log")).stderr(log);
        let child = command.spawn().expect("keepalived; hint: `cargo xtask test` installs it");
        Self { child, directory: directory.to_owned() }
    }

    /// Stops keepalived with SIGTERM. It removes the virtual address.
    pub fn stop(mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }

    /// Kills keepalived, as dropping it does. The virtual address stays on the link.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Keepalived {
    /// Stops the parent process before it kills the child: a running parent would start a new child. If the
    /// parent were killed first, the child would remove the address.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        signal(self.child.id(), "STOP");
        let child = crate::monitor::read_pid(&self.directory.join("keepalived-vrrp.pid"));
        if let Some(pid) = child {
            signal(pid, "KILL");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(pid: impl Display, name: &str) {
    let (name, pid) = (format!("-{name}"), pid.to_string());
    let _ = Command::new("kill").args([name, pid]).stderr(Stdio::null()).status();
}

/// A bridge in a namespace of its own that connects the namespaces of several nodes. One node can be disconnected
/// while the others stay connected.
#[derive(Debug)]
pub struct BridgeSwitch {
    netns: TestNetns,
}

impl BridgeSwitch {
    /// A switch without ports.
    pub fn new(lab: &Lab) -> Self {
        let netns = lab.netns("switch");
        netns.ip("link add br0 type bridge forward_delay 0");
        netns.ip("link set br0 up");
        Self { netns }
    }

    /// Creates `link` in the namespace `node`, connected to `port` of the switch.
    pub fn plug(&self, node: &TestNetns, link: &str, port: &str) {
        let switch = self.netns.name();
        node.ip(&format!("link add {link} type veth peer name {port} netns {switch}"));
        self.netns.ip(&format!("link set {port} master br0"));
        self.reconnect(port);
        node.ip(&format!("link set {link} up"));
        self.wait_until_forwarding(port);
    }

    /// The port forwards frames a little after both ends are up; until then, the bridge drops them.
    fn wait_until_forwarding(&self, port: &str) {
        let state = format!("/sys/class/net/{port}/brport/state");
        wait_for("the port to forward", || {
            (run(self.netns.command("cat").arg(&state)).trim() == "3").then_some(())
        });
    }

    /// Sets `port` down, which takes the carrier from the node's link.
    pub fn disconnect(&self, port: &str) {
        self.netns.ip(&format!("link set {port} down"));
    }

    /// Has the switch drop all frames from and to `port`; the node's link keeps its carrier.
    pub fn block(&self, port: &str) {
        self.netns.ip(&format!("link set {port} nomaster"));
    }

    /// Has the switch forward the frames of `port` again.
    pub fn unblock(&self, port: &str) {
        self.netns.ip(&format!("link set {port} master br0"));
        self.wait_until_forwarding(port);
    }

    /// Sets `port` up again.
    pub fn reconnect(&self, port: &str) {
        self.netns.ip(&format!("link set {port} up"));
    }
}
