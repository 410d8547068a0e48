//! Real keepalived, and a switch between its nodes.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{Lab, TestNetns, run, wait_for};

/// One keepalived process, with the configuration Neutron's agent would write; killed with
/// its children when dropped.
#[derive(Debug)]
pub struct Keepalived {
    child: Child,
    directory: PathBuf,
}

impl Keepalived {
    /// Writes `keepalived.conf` for `vip` on `link` into `directory` and starts keepalived.
    pub fn start(netns: &TestNetns, directory: &Path, link: &str, vip: &str, priority: u8) -> Self {
        Self::start_with(netns, directory, &Self::router(link, vip, priority))
    }

    /// What Neutron's agent would write.
    fn router(link: &str, vip: &str, priority: u8) -> String {
        format!(
            "global_defs {{\n    router_id neutron\n}}\nvrrp_instance VR_1 {{\n    state BACKUP\n    \
             interface {link}\n    virtual_router_id 1\n    priority {priority}\n    \
             garp_master_delay 60\n    nopreempt\n    advert_int 1\n    track_interface {{\n        \
             {link}\n    }}\n    virtual_ipaddress {{\n        {vip} dev {link}\n    }}\n}}\n"
        )
    }

    /// Writes `config` into `directory` and starts keepalived with it. What it says is in
    /// `keepalived.log`, for whoever wonders why a test failed.
    pub fn start_with(netns: &TestNetns, directory: &Path, config: &str) -> Self {
        let path = directory.join("keepalived.conf");
        let staged = directory.join("keepalived.conf.new");
        std::fs::File::create(&staged)
            .and_then(|mut file| std::io::Write::write_all(&mut file, config.as_bytes()))
            .and_then(|()| std::fs::rename(&staged, &path))
            .expect("keepalived.conf");
        let mut command = netns.command("keepalived");
        command.arg("-n").arg("-P").arg("-l").arg("-D").arg("-f").arg(&path);
        command.arg("-p").arg(directory.join("keepalived.pid"));
        command.arg("-r").arg(directory.join("keepalived-vrrp.pid"));
        let log = std::fs::File::create(directory.join("keepalived.log")).expect("keepalived.log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("keepalived.log")).stderr(log);
        let child = command.spawn().expect("keepalived; hint: `cargo xtask test` installs it");
        Self { child, directory: directory.to_owned() }
    }

    /// Stops it in good order: it gives up the address.
    pub fn stop(mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }

    /// Kills it, as dropping it does: the address stays where it is.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Keepalived {
    /// The parent is held first: it would start a child anew that dies before it, and a child
    /// whose parent dies first gives up the address.
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

/// A bridge in a namespace of its own, into which nodes are plugged: cutting one node off
/// leaves the others connected.
#[derive(Debug)]
pub struct BridgeSwitch {
    netns: TestNetns,
}

impl BridgeSwitch {
    /// A switch with nothing plugged in.
    pub fn new(lab: &Lab) -> Self {
        let netns = lab.netns("switch");
        netns.ip("link add br0 type bridge forward_delay 0");
        netns.ip("link set br0 up");
        Self { netns }
    }

    /// Gives `node` a link called `link` that leads to `port`.
    pub fn plug(&self, node: &TestNetns, link: &str, port: &str) {
        let switch = self.netns.name();
        node.ip(&format!("link add {link} type veth peer name {port} netns {switch}"));
        self.netns.ip(&format!("link set {port} master br0"));
        self.mend(port);
        node.ip(&format!("link set {link} up"));
        // The kernel sees that both ends are up a little later; until then, frames are dropped.
        let state = format!("/sys/class/net/{port}/brport/state");
        wait_for("the port to forward", || {
            (run(self.netns.command("cat").arg(&state)).trim() == "3").then_some(())
        });
    }

    /// Cuts the cable at `port`.
    pub fn cut(&self, port: &str) {
        self.netns.ip(&format!("link set {port} down"));
    }

    /// Plugs it in again.
    pub fn mend(&self, port: &str) {
        self.netns.ip(&format!("link set {port} up"));
    }
}
