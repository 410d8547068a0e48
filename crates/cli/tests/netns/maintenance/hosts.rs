// SPDX-License-Identifier: Apache-2.0
//! Three hosts for the maintenance guide: each has its own network, processes and `/run`, real keepalived and a node of one
//! cluster. Its commands are those of the guide, with stand-ins for `ssh`, `sudo` and `systemctl`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::{Etcd, EtcdPlace, Lab, TestNetns, script, wait_showing};

use crate::http_server::HttpServer;
use crate::support::{PROGRAM, read, write, write_hook};

/// The programs of the lab, by name.
const PROGRAMS: [(&str, &str); 5] = [
    ("ssh", include_str!("ssh.sh")),
    ("sudo", include_str!("sudo.sh")),
    ("systemctl", include_str!("systemctl.sh")),
    ("router", include_str!("router.sh")),
    ("openstack", include_str!("openstack.sh")),
];

/// The first process of a host: it ends processes whose parent has ended. `$1` is the directory of the host.
const INIT: &str = "mkdir -p /run/netns /run/vipwatch && mount -t tmpfs tmpfs /run/netns && \
                    mount -t tmpfs tmpfs /run/vipwatch && touch \"$1/ready\" && while :; do sleep 3600 & wait $!; done";

/// The addresses of all instances, which are in one sync group.
pub(super) const ADDRESSES: [&str; 2] = ["192.0.2.101/24", "192.0.2.102/24"];

/// The lab.
pub(super) struct Hosts {
    pub(super) lab: Lab,
    pub(super) server: HttpServer,
    pub(super) each: Vec<Host>,
    pub(super) etcd: Etcd,
    /// The namespace of etcd, the webhook and the operator.
    pub(super) laptop: TestNetns,
    _switch: BridgeSwitch,
}

/// One host.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) directory: PathBuf,
    init: Child,
    _netns: TestNetns,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

impl Hosts {
    /// Three hosts without keepalived and nodes.
    fn new() -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let laptop = lab.netns("laptop");
        switch.plug(&laptop, "eth0", "p9");
        laptop.ip("address add 192.0.2.9/24 dev eth0");
        let place = EtcdPlace::in_netns(&laptop, [192, 0, 2, 9].into());
        let etcd =
            Etcd::start(lab.path(), vec![place], vipwatch_testkit::EtcdProcessOptions::default());
        let server = laptop.visit(|| HttpServer::on("192.0.2.9", &[]));
        let programs = lab.path().join("bin");
        std::fs::create_dir_all(&programs).unwrap();
        for (name, text) in PROGRAMS {
            script(&programs.join(name), text);
        }
        std::os::unix::fs::symlink(PROGRAM, programs.join("vipwatch")).unwrap();
        let each = (1..=3).map(|number| Host::new(&lab, &switch, number)).collect();
        Self { lab, server, each, etcd, laptop, _switch: switch }
    }

    /// Each host has a keepalived with two instances in a sync group. The first host is primary.
    pub(super) fn with_keepalived() -> Self {
        let lab = Self::new();
        for (host, priority) in lab.each.iter().zip([150, 120, 90]) {
            write(&host.directory.join("keepalived.conf"), &keepalived_conf(priority));
            lab.succeed(&host.name, "systemctl start keepalived");
            lab.start_node(host);
        }
        lab.wait_for_holder("node-1");
        lab
    }

    /// Each host has the L3 agent of Neutron with these routers. The first host is primary of all.
    pub(super) fn with_routers(routers: &[String]) -> Self {
        let lab = Self::new();
        let server = lab.lab.path().join("server");
        let lines: Vec<String> = routers.iter().map(|router| format!("{router}\n")).collect();
        write(&server.join("routers"), &lines.concat());
        std::fs::create_dir_all(server.join("disabled")).unwrap();
        for host in &lab.each {
            for router in routers {
                write(&server.join(format!("bindings/agent-{}/{router}", host.name)), "");
            }
            let start: Vec<String> =
                routers.iter().map(|router| format!("router start {router} && ")).collect();
            lab.succeed(&host.name, &format!("{}:", start.concat()));
            lab.start_node(host);
            if host.name == "node-1" {
                lab.wait_for(
                    &host.name,
                    "all primaries",
                    "vipwatch status --role primary -o name",
                    |text| text.lines().count() == routers.len(),
                );
            }
        }
        lab
    }

    fn start_node(&self, host: &Host) {
        let directory = host.directory.display();
        let hook = write_hook(
            &host.directory.join("hook"),
            &format!("cat >> {directory}/hook.log; echo >> {directory}/hook.log"),
        );
        let (name, url) = (&host.name, &self.server.url);
        let endpoint = self.etcd.endpoint(0);
        let text = format!(
            "[node]\nname = \"{name}\"\n\
             [cluster]\nendpoints = [\"{endpoint}\"]\nallow_unencrypted = true\nheartbeat = \"1s\"\nlease = \"6s\"\nsettle = \"500ms\"\n\
         [[notify]]\norigin = [\"neutron\"]\nstate_file = \"{directory}/neutron/ha_confs/{{id}}\"\n\
             [[notify]]\norigin = [\"keepalived\", \"neutron\"]\n\
             [[notify.webhook]]\nname = \"chat\"\nurl = \"{url}\"\nallow_credentials_over_http = true\non = [\"primary\", \"backup\", \"finding\"]\n\
             [[notify.hook]]\nprogram = [\"{}\"]\non = [\"primary\", \"backup\", \"finding\"]\n",
            hook.display()
        );
        let config = host.directory.join("vipwatch.toml");
        crate::support::write_with_mode(&config, &text, 0o640);
        let node = format!(
            "setsid vipwatch node --config {} --state-dir {directory}/state --state-path {directory}/neutron \
             >> {directory}/log 2>&1 < /dev/null &",
            config.display()
        );
        self.succeed(name, &node);
        self.wait_for(name, "the node", "vipwatch targets", |_| true);
    }

    /// A command of the operator, who has the programs of the lab and works in the directory of the lab.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.laptop.command(program.as_ref());
        let programs = self.lab.path().join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display()));
        command.env("MAINTENANCE_LAB", self.lab.path());
        command.env("VIPWATCH_ETCD", self.etcd.endpoint(0));
        command.current_dir(self.lab.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command line on a host.
    pub(super) fn run(&self, host: &str, line: &str) -> Output {
        self.command("ssh").args([host, line]).output().unwrap()
    }

    /// Runs a command line on a host; panics if it fails. Returns its standard output.
    #[track_caller]
    pub(super) fn succeed(&self, host: &str, line: &str) -> String {
        let output = self.run(host, line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{host}: {line}: {}\n{text}{errors}", output.status);
        text
    }

    /// Waits until a command line succeeds on a host, and its output is as expected.
    #[track_caller]
    fn wait_for(&self, host: &str, what: &str, line: &str, expected: impl Fn(&str) -> bool) {
        let run = || {
            let output = self.run(host, line);
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let shown = || {
            let log = read(&self.lab.path().join(host).join("log"));
            format!("{host}: {line}: {}\n{log}", run().1)
        };
        let probe = || {
            let (succeeds, text) = run();
            (succeeds && expected(&text)).then_some(())
        };
        wait_showing(what, shown, probe);
    }

    /// The hosts that hold all addresses of the instances.
    pub(super) fn holders(&self) -> Vec<&str> {
        let holds = |host: &&Host| {
            let text = self.succeed(&host.name, "ip -o address show dev eth0");
            ADDRESSES.iter().all(|address| text.contains(&format!(" {address} ")))
        };
        self.each.iter().filter(holds).map(|host| host.name.as_str()).collect()
    }

    /// Waits until only this host holds the addresses, its node knows it, and no node has a finding.
    pub(super) fn wait_for_holder(&self, expected: &str) {
        let what = format!("{expected} to hold the addresses");
        wait_showing(
            &what,
            || format!("{:?}", self.holders()),
            || (self.holders() == [expected]).then_some(()),
        );
        self.wait_for(expected, &what, "vipwatch status --role primary -o name", |text| {
            text.lines().count() == ADDRESSES.len()
        });
        for host in &self.each {
            self.wait_for(&host.name, "no finding", "vipwatch doctor --fail-on warning", |_| true);
            self.wait_for(&host.name, "a clean failover", "vipwatch drain-check --if", |_| true);
        }
    }

    /// The notifications of one target: the webhook of all hosts, or the hook of one.
    pub(super) fn hook_notifications(&self, host: &str) -> Vec<Value> {
        let text = read(&self.lab.path().join(host).join("hook.log"));
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }
}

impl Host {
    fn new(lab: &Lab, switch: &BridgeSwitch, number: u8) -> Self {
        let name = format!("node-{number}");
        let directory = lab.path().join(&name);
        write(&directory.join("number"), &number.to_string());
        let netns = lab.netns(&name);
        switch.plug(&netns, "eth0", &format!("p{number}"));
        netns.ip(&format!("address add 192.0.2.{number}/24 dev eth0"));
        let mut command = netns.command("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            INIT,
            "sh",
        ]);
        let log = File::create(directory.join("init.log")).unwrap();
        command.arg(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let host = Self { init: command.spawn().unwrap(), name, directory, _netns: netns };
        let ready = host.directory.join("ready");
        let log = || read(&host.directory.join("init.log"));
        wait_showing("the host", log, || ready.exists().then_some(()));
        let unshare = host.init.id();
        let children = read(Path::new(&format!("/proc/{unshare}/task/{unshare}/children")));
        write(&host.directory.join("pid"), children.trim());
        host
    }
}

fn keepalived_conf(priority: u8) -> String {
    let instances = ADDRESSES.iter().zip(1..).map(|(address, number)| {
        format!(
            "vrrp_instance VI_{number} {{\n    state BACKUP\n    interface eth0\n    virtual_router_id {number}\n    \
             priority {priority}\n    advert_int 1\n    virtual_ipaddress {{\n        {address} dev eth0\n    }}\n}}\n"
        )
    });
    let instances: String = instances.collect();
    format!(
        "vrrp_sync_group both {{\n    group {{\n        VI_1\n        VI_2\n    }}\n}}\n{instances}"
    )
}
