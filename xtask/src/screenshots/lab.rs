// SPDX-License-Identifier: Apache-2.0
//! The lab of the pictures: two nodes with real keepalived, a failover, and a link without carrier.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns, wait_for};

/// The address of the dashboard in the namespace of the first node.
pub const ADDRESS: &str = "127.0.0.1:9650";

/// An instance that all pictures show.
pub const INSTANCE: &str = "web-1";

/// The services; each has [`COPIES`] instances.
const SERVICES: [&str; 8] = ["web", "db", "mail", "dns", "proxy", "cache", "ldap", "ntp"];
const COPIES: usize = 3;

/// An instance on a link of its own, which loses its carrier.
const STORAGE: &str = "storage";

/// The nodes.
const NODES: usize = 2;

/// A running lab, in the state of the pictures.
pub struct PictureLab {
    fixture: NodeFixture,
    _process: NodeProcess,
    _keepalived: [Keepalived; NODES],
    netns: [TestNetns; NODES],
    _labs: [Lab; NODES],
    _switch: BridgeSwitch,
    _lab: Lab,
}

impl PictureLab {
    /// Starts the nodes, and causes a failover and a fault. Returns when the first node has reported both.
    pub fn start(program: &Path) -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let labs = [Lab::new(), Lab::new()];
        let netns = [labs[0].netns("net-1"), labs[1].netns("net-2")];
        for (number, netns) in netns.iter().enumerate() {
            switch.plug(netns, "eth0", &format!("port-{number}"));
            netns.ip(&format!("address add 192.0.2.{}/24 dev eth0", number + 1));
            netns.add_link("eth1");
        }
        let start = |number: usize| {
            Keepalived::start_with(&netns[number], labs[number].path(), &config(number))
        };
        let keepalived = [start(0), start(1)];
        let fixture = NodeFixture::new(program, labs[0].path()).with_processes().on(&netns[0]);
        let other = labs[1].path().join("keepalived.conf").display().to_string();
        fixture.configure(&format!(
            "[web]\nlisten = \"{ADDRESS}\"\n[find]\nexclude = [{other:?}]\n[witness]\nenabled = true\n\
             [[notify]]\nstate_file = \"{}/{{id}}\"\nannounce = {{ count = 1 }}\n\
             [[notify.hook]]\nname = \"log\"\nprogram = [\"/bin/true\"]\n",
            labs[0].path().join("states").display()
        ));
        let process = fixture.start();
        let all = SERVICES.len() * COPIES;
        let wait_for_primaries = |wanted: usize| {
            wait_for(&format!("{wanted} primaries"), || {
                (primaries(&fixture) == wanted).then_some(())
            });
        };
        wait_for_primaries(all / 2);
        let [first, second] = keepalived;
        second.stop();
        wait_for_primaries(all);
        let second = start(1);
        wait_for_primaries(all / 2);
        first.stop();
        wait_for_primaries(0);
        let keepalived = [start(0), second];
        wait_for_primaries(all / 2);
        netns[0].ip(&format!("link set {} down", vipwatch_testkit::peer_of("eth1")));
        wait_for("the finding", || has_finding(&fixture, "link-fault").then_some(()));
        Self {
            fixture,
            _process: process,
            _keepalived: keepalived,
            netns,
            _labs: labs,
            _switch: switch,
            _lab: lab,
        }
    }

    /// The namespace of the first node.
    pub fn netns(&self) -> &TestNetns {
        &self.netns[0]
    }

    /// `vipwatch top` for the first node.
    pub fn top_command(&self) -> Command {
        let mut command = self.fixture.command();
        command.args(["top", "--socket"]).arg(self.fixture.socket());
        command
    }
}

/// The answer of a command of the first node.
fn query(fixture: &NodeFixture, command: &str) -> Value {
    let output = fixture.run(&[command, "-o", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn primaries(fixture: &NodeFixture) -> usize {
    let answer = query(fixture, "status");
    let instances = answer["instances"].as_array().into_iter().flatten();
    let is_primary = |instance: &&Value| instance["role"] == "primary";
    instances.filter(|instance| instance["id"] != STORAGE).filter(is_primary).count()
}

fn has_finding(fixture: &NodeFixture, name: &str) -> bool {
    let answer = query(fixture, "findings");
    answer["items"].as_array().into_iter().flatten().any(|finding| finding["name"] == name)
}

/// keepalived's configuration on node `number`. Every second instance prefers the first node. [`STORAGE`] is on a
/// link of its own.
fn config(number: usize) -> String {
    let mut config = format!("global_defs {{\n  router_id net-{}\n}}\n", number + 1);
    let names = (1..=COPIES).flat_map(|copy| SERVICES.map(|service| format!("{service}-{copy}")));
    for (at, name) in names.enumerate() {
        let priority = if at % NODES == number { 150 } else { 100 };
        push_instance(&mut config, &name, "eth0", at + 1, priority);
    }
    push_instance(&mut config, STORAGE, "eth1", 200, if number == 0 { 100 } else { 50 });
    config
}

fn push_instance(config: &mut String, name: &str, link: &str, vrid: usize, priority: u8) {
    let _ = write!(
        config,
        "vrrp_instance {name} {{\n  state BACKUP\n  interface {link}\n  virtual_router_id {vrid}\n  \
         priority {priority}\n  advert_int 1\n  track_interface {{\n    {link}\n  }}\n  \
         virtual_ipaddress {{\n    192.0.2.{}/24 dev {link}\n  }}\n}}\n",
        vrid + 20
    );
}
