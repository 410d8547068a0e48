//! Findings about the work of keepalived: sync groups, virtual routes and rules, lost adverts, and fault. Each test runs
//! real keepalived.

use std::path::PathBuf;

use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns, wait_showing};

use crate::support::{PROGRAM, query_json, wait_for_role};

/// One host: a namespace on the switch with the links `eth0` and `eth1`, where keepalived and a node run.
struct Host {
    netns: TestNetns,
    directory: PathBuf,
    fixture: NodeFixture,
}

impl Host {
    /// The host with this number in the networks 192.0.2.0/24 and 198.51.100.0/24.
    fn new(lab: &Lab, switch: &BridgeSwitch, number: u8) -> Self {
        let netns = lab.netns(&number.to_string());
        for (link, network) in [("eth0", "192.0.2"), ("eth1", "198.51.100")] {
            switch.plug(&netns, link, &format!("p{number}-{link}"));
            netns.ip(&format!("address add {network}.{number}/24 dev {link}"));
        }
        let directory = lab.path().join(number.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        let fixture = NodeFixture::new(PROGRAM.as_ref(), &directory).on(&netns);
        Self { netns, directory, fixture }
    }

    /// Starts keepalived with this configuration, and a node.
    fn start(&self, conf: &str) -> (Keepalived, NodeProcess) {
        let keepalived = Keepalived::start_with(&self.netns, &self.directory, conf);
        (keepalived, self.fixture.start())
    }

    /// The lines of the log about a finding that has appeared, or with `finding is over` about one that is over.
    fn logged(&self, text: &str, finding: &str) -> Vec<String> {
        let log = self.fixture.log();
        let lines = log.lines().filter(|line| line.contains(text) && line.contains(finding));
        lines.map(str::to_owned).collect()
    }

    #[track_caller]
    fn wait_for_logged(&self, text: &str, finding: &str) {
        let what = format!("{text:?} with {finding} in the log");
        let is_logged = || (!self.logged(text, finding).is_empty()).then_some(());
        wait_showing(&what, || self.fixture.log(), is_logged);
    }

    /// The findings with this name that `doctor` prints after an audit.
    fn findings(&self, name: &str) -> Vec<Value> {
        let answer = query_json(&self.fixture, &["doctor"]);
        let items = answer["items"].as_array().unwrap().iter();
        items.filter(|item| item["name"] == name).cloned().collect()
    }

    /// Waits until `doctor` prints a finding with this name; returns its text.
    #[track_caller]
    fn wait_for_finding(&self, name: &str) -> String {
        let shown = || format!("{}\n{}", self.fixture.run_text(&["doctor"]), self.fixture.log());
        let text = || Some(self.findings(name).first()?["text"].as_str()?.to_owned());
        wait_showing(name, shown, text)
    }

    #[track_caller]
    fn wait_for_no_finding(&self, name: &str) {
        let shown = || self.fixture.run_text(&["doctor"]);
        wait_showing(&format!("no {name}"), shown, || self.findings(name).is_empty().then_some(()));
    }
}

/// An instance with the virtual router id `vrid` and these statements.
fn instance(name: &str, link: &str, vrid: u8, priority: u8, statements: &str) -> String {
    format!(
        "vrrp_instance {name} {{\nstate BACKUP\ninterface {link}\nvirtual_router_id {vrid}\n\
         priority {priority}\nadvert_int 1\n{statements}\n}}\n"
    )
}

/// A list of lines in braces.
fn list(keyword: &str, lines: &str) -> String {
    format!("{keyword} {{\n{lines}\n}}\n")
}

/// Two instances in one sync group. keepalived does not notice if the address of the second one is removed.
fn group_conf(priority: u8) -> String {
    let first = list("virtual_ipaddress", "192.0.2.100/24 dev eth0");
    let second = list("virtual_ipaddress", "198.51.100.100/24 dev eth1 no_track");
    format!(
        "vrrp_sync_group G {{\ngroup {{\nONE\nTWO\n}}\n}}\n{}{}",
        instance("ONE", "eth0", 11, priority, &first),
        instance("TWO", "eth1", 12, priority, &second)
    )
}

#[test]
fn a_split_sync_group_is_one_finding_and_a_failover_of_the_group_is_none() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, number));
    let (keepalived, _node) = first.start(&group_conf(150));
    let (_other_keepalived, _other_node) = second.start(&group_conf(100));
    for (host, role) in [(&first, "primary"), (&second, "backup")] {
        for id in ["ONE", "TWO"] {
            wait_for_role(&host.fixture, id, role);
        }
    }
    keepalived.stop();
    for id in ["ONE", "TWO"] {
        wait_for_role(&second.fixture, id, "primary");
    }
    assert_eq!(second.logged("audit finding", "sync-group-split"), [""; 0]);
    second.netns.ip("address del 198.51.100.100/24 dev eth1");
    second.wait_for_logged("audit finding", "sync-group-split");
    let items = second.findings("sync-group-split");
    assert_eq!(items.len(), 1, "{items:?}");
    assert_eq!(items[0]["id"], "ONE");
    let text = "the members of vrrp_sync_group G have different roles: primary are ONE; not primary are TWO (backup)";
    assert_eq!(items[0]["text"], text);
    second.netns.ip("address add 198.51.100.100/24 dev eth1");
    second.wait_for_logged("finding is over", "sync-group-split");
    assert_eq!(second.logged("audit finding", "sync-group-split").len(), 1);
    assert_eq!(first.logged("audit finding", "sync-group-split"), [""; 0]);
}
