// SPDX-License-Identifier: Apache-2.0
//! Findings about the work of keepalived: sync groups, virtual routes and rules, lost adverts, and fault. Each test runs
//! real keepalived.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{
    Lab, NodeFixture, NodeProcess, TestNetns, run, wait_for, wait_showing, wait_within_showing,
};

use crate::support::{PROGRAM, fixture_with, query_json, wait_for_role, write};

/// A configuration of the witness that also captures the adverts which the host itself sends.
const WITNESS: &str = "[witness]\nenabled = true\nsent = [\"eth0\"]\n";

/// The longest time until a finding is over: adverts of the last minute count.
const LOSS_LIMIT: Duration = Duration::from_mins(2);

/// One host: a namespace on the switch with the links `eth0` and `eth1`, where keepalived and a node run.
struct Host {
    /// The instance that the test looks at. A node with processes follows those of other tests, too.
    id: String,
    netns: TestNetns,
    directory: PathBuf,
    fixture: NodeFixture,
}

impl Host {
    /// The host with this number in the networks 192.0.2.0/24 and 198.51.100.0/24.
    fn new(lab: &Lab, switch: &BridgeSwitch, number: u8, id: &str) -> Self {
        let netns = lab.netns(&number.to_string());
        for (link, network) in [("eth0", "192.0.2"), ("eth1", "198.51.100")] {
            switch.plug(&netns, link, &format!("p{number}-{link}"));
            netns.ip(&format!("address add {network}.{number}/24 dev {link}"));
        }
        let directory = lab.path().join(number.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        let fixture = NodeFixture::new(PROGRAM.as_ref(), &directory).on(&netns);
        fixture.configure(WITNESS);
        Self { id: id.to_owned(), netns, directory, fixture }
    }

    /// Starts keepalived with this configuration, and a node.
    fn start(&self, conf: &str) -> (Keepalived, NodeProcess) {
        let keepalived = Keepalived::start_with(&self.netns, &self.directory, conf);
        (keepalived, self.fixture.start())
    }

    /// The lines of the log about a finding that has appeared, or with `finding is over` about one that is over.
    fn logged(&self, text: &str, finding: &str) -> Vec<String> {
        let log = self.fixture.log();
        let instance = format!("instance=\"{}\"", self.id);
        let is_wanted =
            |line: &&str| line.contains(text) && line.contains(finding) && line.contains(&instance);
        log.lines().filter(is_wanted).map(str::to_owned).collect()
    }

    #[track_caller]
    fn wait_for_logged(&self, text: &str, finding: &str) {
        let what = format!("{text:?} with {finding} in the log");
        let is_logged = || (!self.logged(text, finding).is_empty()).then_some(());
        wait_showing(&what, || self.fixture.log(), is_logged);
    }

    /// Has the node look for processes of keepalived.
    fn with_processes(mut self) -> Self {
        self.fixture = self.fixture.with_processes();
        self.fixture.configure(WITNESS);
        self
    }

    /// The age of the newest captured advert that this host has sent, or that another one has sent.
    fn advert_age(&self, is_own: bool) -> Option<Duration> {
        let shown = query_json(&self.fixture, &["show", &self.id]);
        let sources = shown["adverts"]["sources"].as_array()?.iter();
        let ages = sources.filter(|source| source["own"] == is_own);
        ages.filter_map(|source| source["age_ms"].as_u64()).min().map(Duration::from_millis)
    }

    /// Waits for an advert that is sent from now on.
    #[track_caller]
    fn wait_for_advert(&self, is_own: bool) {
        let start = Instant::now();
        wait_for("an advert", || {
            let waited = start.elapsed();
            self.advert_age(is_own).filter(|age| *age < waited)
        });
    }

    /// The findings with this name that `doctor` prints after an audit.
    fn findings(&self, name: &str) -> Vec<Value> {
        let answer = query_json(&self.fixture, &["doctor"]);
        let items = answer["items"].as_array().unwrap().iter();
        items.filter(|item| item["name"] == name && item["id"] == *self.id).cloned().collect()
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
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, number, "ONE"));
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
    let shown = second.fixture.run_text(&["doctor"]);
    assert_eq!(shown.matches("sync-group-split").count(), 1, "{shown}");
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
    let host = Host::new(&lab, &switch, 10, "ROUTES");
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
    let (id, directory) = ("ROUTES".to_owned(), lab.path().to_owned());
    let host = Host { id, netns, directory, fixture };
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

#[test]
fn adverts_that_the_network_drops_are_found_until_the_loss_ends() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let id = "LOSS";
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, number, id));
    // A backup takes over after 9 s: the loss of one advert leads to no election.
    let statements = list("virtual_ipaddress", "192.0.2.100/24 dev eth0");
    let conf = |priority| {
        instance(id, "eth0", 11, priority, &statements).replace("advert_int 1", "advert_int 3")
    };
    let (_keepalived, _node) = first.start(&conf(150));
    wait_for_role(&first.fixture, id, "primary");
    let (_other_keepalived, _other_node) = second.start(&conf(100));
    second.wait_for_advert(false);
    assert_eq!(second.logged("audit finding", "adverts-lost"), [""; 0]);
    let is_found = || !second.logged("audit finding", "adverts-lost").is_empty();
    wait_showing(
        "adverts-lost",
        || second.fixture.run_text(&["show", id]) + &second.fixture.log(),
        || {
            switch.block("p10-eth0");
            first.wait_for_advert(true);
            switch.unblock("p10-eth0");
            second.wait_for_advert(false);
            is_found().then_some(())
        },
    );
    let text = second.wait_for_finding("adverts-lost");
    assert!(text.contains("adverts of 192.0.2.10 (priority 150) within the last 60 s"), "{text}");
    assert_eq!(first.logged("audit finding", "adverts-lost"), [""; 0], "it has sent all of them");
    wait_within_showing(
        LOSS_LIMIT,
        "the end",
        || second.fixture.log(),
        || (!second.logged("finding is over", "adverts-lost").is_empty()).then_some(()),
    );
}

/// An instance that keepalived keeps in fault, or with a lower priority, by the number in a file.
fn tracking_conf(id: &str, file: &Path, weight: &str) -> String {
    let statements = [
        list("virtual_ipaddress", "192.0.2.100/24 dev eth0"),
        list("track_file", &format!("NUMBER weight {weight}")),
    ];
    let file = list("track_file NUMBER", &format!("file {}\nweight {weight}", file.display()));
    file + &instance(id, "eth0", 11, 150, &statements.concat())
}

/// Writes a number of the same length into the file that keepalived follows.
fn set_number(file: &Path, number: &str) {
    let opened = std::fs::OpenOptions::new().write(true).open(file);
    opened.and_then(|mut file| file.write_all(number.as_bytes())).unwrap();
}

#[test]
fn a_keepalived_in_fault_is_inferred_from_silence_until_it_takes_over() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let id = format!("FAULT_{}", lab.number());
    let host = Host::new(&lab, &switch, 10, &id).with_processes();
    let file = lab.path().join("number");
    write(&file, "1\n");
    let (_keepalived, _node) = host.start(&tracking_conf(&id, &file, "0"));
    wait_for_role(&host.fixture, &id, "backup");
    host.wait_for_logged("audit finding", "keepalived-fault");
    host.wait_for_logged("audit finding", "no-primary");
    let text = host.wait_for_finding("keepalived-fault");
    assert!(text.starts_with("inferred: keepalived (pid "), "{text}");
    assert!(text.contains("master-down interval of 3.4 s, and it has not taken over"), "{text}");
    set_number(&file, "0\n");
    wait_for_role(&host.fixture, &id, "primary");
    host.wait_for_logged("finding is over", "keepalived-fault");
    host.wait_for_logged("finding is over", "no-primary");
}

#[test]
fn a_lowered_priority_of_the_primary_is_inferred_from_its_own_adverts() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let id = format!("LOWER_{}", lab.number());
    let host = Host::new(&lab, &switch, 10, &id).with_processes();
    let file = lab.path().join("number");
    write(&file, "00\n");
    let (_keepalived, _node) = host.start(&tracking_conf(&id, &file, "-1"));
    wait_for_role(&host.fixture, &id, "primary");
    host.wait_for_advert(true);
    assert_eq!(host.findings("keepalived-fault"), [Value::Null; 0]);
    set_number(&file, "50\n");
    host.wait_for_logged("audit finding", "keepalived-fault");
    let text = host.wait_for_finding("keepalived-fault");
    assert!(text.contains("advertises the priority 100 instead of 150"), "{text}");
    set_number(&file, "00\n");
    host.wait_for_logged("finding is over", "keepalived-fault");
}
