//! Findings about the work of keepalived: sync groups, virtual routes and rules, lost adverts, and fault. Each test runs
//! real keepalived.

use std::path::PathBuf;

use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns, run, wait_showing};

use crate::support::{PROGRAM, fixture_with, query_json, wait_for_role};

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

/// An instance with virtual routes and rules, of which keepalived tracks none.
fn routes_conf() -> String {
    let routes = "203.0.113.0/24 via 192.0.2.1 dev eth0 no_track\n\
                  src 192.0.2.100 to 10.1.0.0/16 via 192.0.2.1 table 100 metric 7 no_track protocol static\n\
                  blackhole 10.2.0.0/16 no_track\n\
                  2001:db8:5::/64 dev eth1 no_track";
    let rules =
        "from 192.0.2.100 table 100 priority 5000 no_track\nfwmark 0x10/0xff table 100 no_track";
    let statements = [
        list("virtual_ipaddress", "192.0.2.100/24 dev eth0"),
        list("virtual_routes", routes),
        list("virtual_rules", rules),
    ];
    instance("ROUTES", "eth0", 11, 100, &statements.concat())
}

#[test]
fn missing_virtual_routes_and_rules_of_a_primary_are_found_until_they_are_back() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let host = Host::new(&lab, &switch, 10);
    let (_keepalived, _node) = host.start(&routes_conf());
    wait_for_role(&host.fixture, "ROUTES", "primary");
    // The kernel has the last route of the file, so it has all.
    let show = || run(host.netns.command("ip").args(["-6", "route", "show", "dev", "eth1"]));
    wait_showing("the routes", show, || show().contains("2001:db8:5::/64").then_some(()));
    // Removed one after the other, and audited by `doctor`.
    host.netns.ip("route del 203.0.113.0/24");
    let text = host.wait_for_finding("routes-missing");
    let lacks = "the instance is primary, but the kernel lacks";
    assert_eq!(text, format!("{lacks} 1 virtual route: 203.0.113.0/24 via 192.0.2.1 dev eth0"));
    assert_eq!(host.findings("rules-missing"), [Value::Null; 0]);
    host.netns.ip("route del 10.1.0.0/16 table 100");
    host.netns.ip("route del blackhole 10.2.0.0/16");
    host.netns.ip("-6 route del 2001:db8:5::/64 dev eth1");
    let text = host.wait_for_finding("routes-missing");
    assert!(text.contains("4 virtual routes: "), "{text}");
    host.netns.ip("rule del priority 5000");
    let text = host.wait_for_finding("rules-missing");
    assert_eq!(
        text,
        format!("{lacks} 1 virtual rule: from 192.0.2.100/32 table 100 priority 5000")
    );
    host.wait_for_logged("audit finding", "routes-missing");
    host.netns.ip("route add 203.0.113.0/24 via 192.0.2.1");
    host.netns.ip("route add 10.1.0.0/16 via 192.0.2.1 table 100 metric 7");
    host.netns.ip("route add blackhole 10.2.0.0/16");
    host.netns.ip("-6 route add 2001:db8:5::/64 dev eth1");
    host.netns.ip("rule add from 192.0.2.100 table 100 priority 5000");
    host.wait_for_no_finding("routes-missing");
    host.wait_for_no_finding("rules-missing");
    host.wait_for_logged("finding is over", "rules-missing");
}

#[test]
fn only_a_primary_needs_its_virtual_routes_also_in_another_namespace() {
    let lab = Lab::new();
    // keepalived does not run: the address decides the role.
    let (netns, fixture) = fixture_with(&lab, &[routes_conf()]);
    let _node = fixture.start();
    wait_for_role(&fixture, "ROUTES", "backup");
    let host = Host { netns, directory: lab.path().to_owned(), fixture };
    assert_eq!(host.findings("routes-missing"), [Value::Null; 0]);
    host.netns.ip("address add 192.0.2.100/24 dev eth0");
    host.netns.ip("route add 203.0.113.0/24 via 192.0.2.1");
    let text = host.wait_for_finding("routes-missing");
    assert!(
        text.contains("3 virtual routes: 10.1.0.0/16 via 192.0.2.1 table 100 metric 7"),
        "{text}"
    );
    let text = host.wait_for_finding("rules-missing");
    assert!(text.contains("2 virtual rules"), "{text}");
    host.netns.ip("address del 192.0.2.100/24 dev eth0");
    host.wait_for_no_finding("routes-missing");
}
