// SPDX-License-Identifier: Apache-2.0
//! Another station holds an address of a primary: the finding, and the announcement after the end of the split.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vipwatch_api::FindingEvent;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::wire::mac_of;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, Wire, run, wait_for, wait_showing};

use crate::support::{node_fixture, read, wait_for_role, write, write_hook};
use crate::witness::{ADVERT, Host, conf, has_logged, wait_for_finding};

/// The addresses of the instance `web`.
const ADDRESSES: [&str; 2] = ["192.0.2.9/24", "2001:db8::9/64"];

/// A node with three instances, and another host on the link of each. A rule announces `web`. No rule announces `silent`,
/// nor a router of Neutron, because the rule does not name this origin.
struct SplitNetwork {
    lab: Lab,
    node: TestNetns,
    /// The namespace of Neutron's router, and its id.
    router: (TestNetns, String),
    /// Its links: `eth0` to `web`, `eth1` to `silent`, `eth2` to the router.
    other: TestNetns,
    /// Captures the announcements of `web`.
    wire: Wire,
    /// Captures all frames of `silent`, and of the router.
    quiet_wires: [Wire; 2],
    fixture: NodeFixture,
    _switch: BridgeSwitch,
    _station: TestNetns,
}

impl SplitNetwork {
    fn new() -> Self {
        let lab = Lab::new();
        let (node, other, station) = (lab.netns("n"), lab.netns("o"), lab.netns("s"));
        let switch = BridgeSwitch::new(&lab);
        for (host, port) in [(&node, "n"), (&other, "o"), (&station, "s")] {
            switch.plug(host, "eth0", &format!("port-{port}"));
        }
        let id = format!("q{}-{}", std::process::id(), lab.number());
        let router = TestNetns::create(&format!("qrouter-{id}"));
        connect(&node, &other, "eth1");
        connect(&router, &other, "eth2");
        let wire = Wire::tap(&station, "eth0");
        let quiet_wires = ["eth1", "eth2"].map(|link| Wire::tap_all(&other, link));
        let fixture = node_fixture(&lab);
        let conf = "vrrp_instance R {\n interface eth2\n virtual_router_id 1\n virtual_ipaddress {\n \
                    203.0.113.9/24 dev eth2\n }\n}\n";
        write(&lab.path().join("ha_confs").join(&id).join("keepalived.conf"), conf);
        let found = lab.path().join("found");
        let found = found.display();
        let hook = write_hook(&lab.path().join("hook"), &format!("cat >>{found}\necho >>{found}"));
        let netns = node.name();
        fixture.configure(&format!(
            "[[instance]]\nid = \"web\"\nnetns = {netns:?}\naddresses = [\"{} dev eth0\", \"{} dev eth0\"]\n\
             [[instance]]\nid = \"silent\"\nnetns = {netns:?}\naddresses = [\"198.51.100.9/24 dev eth1\"]\n\
             [[notify]]\ninstances = [\"web\", \"q*\"]\nannounce = {{ count = 1, second_burst = \"0s\" }}\n\
             [[notify.hook]]\nprogram = {:?}\non = [\"finding\"]\n",
            ADDRESSES[0],
            ADDRESSES[1],
            hook.display(),
        ));
        let router = (router, id);
        Self {
            lab,
            node,
            router,
            other,
            wire,
            quiet_wires,
            fixture,
            _switch: switch,
            _station: station,
        }
    }

    /// Adds or removes the addresses of all instances on the other host.
    fn change_other(&self, action: &str) {
        change_addresses(&self.other, action);
        self.other.ip(&format!("address {action} 203.0.113.9/24 dev eth2"));
    }

    /// Makes all instances primary.
    fn take_addresses(&self) {
        change_addresses(&self.node, "add");
        self.router.0.ip("address add 203.0.113.9/24 dev eth2");
        for id in ["web", "silent", &self.router.1] {
            wait_for_role(&self.fixture, id, "primary");
        }
    }

    /// The number of frames after `after` in which the node announces `ip`.
    fn announcements(&self, ip: &str, after: Duration) -> usize {
        let mac = mac_of(&self.node, "eth0");
        let sent = self.wire.announcements(ip).into_iter();
        sent.filter(|(_, frame)| frame.sender() == mac && frame.at > after).count()
    }

    #[track_caller]
    fn wait_for_log(&self, text: &str) {
        let is_logged = || {
            let log = self.fixture.log();
            log.lines().any(|line| line.contains(text) && line.contains("duplicate-holder"))
        };
        wait_showing(text, || self.fixture.log(), || is_logged().then_some(()));
    }

    /// Waits until the history has these events about duplicate holders, as `STATE ID`, oldest first.
    #[track_caller]
    fn wait_for_events(&self, expected: &[&str]) {
        let recorded = || -> Vec<String> {
            let mut sqlite = Command::new("sqlite3");
            let query = "SELECT body FROM event WHERE name = 'finding' ORDER BY seq";
            let rows = run(sqlite.arg(self.fixture.state_dir().join("history.sqlite")).arg(query));
            let events = rows.lines().map(|row| serde_json::from_str::<FindingEvent>(row).unwrap());
            let events = events.filter(|event| event.finding.name == "duplicate-holder");
            events.map(|event| format!("{:?} {}", event.state, event.id.unwrap())).collect()
        };
        let shown = || format!("{:?}", recorded());
        wait_showing("the events", shown, || (recorded() == expected).then_some(()));
    }
}

/// Connects two namespaces by a link with the same name in both. It has no link-local address, for which the kernel would
/// send packets.
fn connect(first: &TestNetns, second: &TestNetns, link: &str) {
    first.ip(&format!("link add {link} type veth peer name {link} netns {}", second.name()));
    for netns in [first, second] {
        netns.ip(&format!("link set {link} addrgenmode none"));
        netns.ip(&format!("link set {link} up"));
    }
}

/// Adds or removes the addresses of `web` and `silent` on one host.
fn change_addresses(host: &TestNetns, action: &str) {
    for address in ADDRESSES {
        let nodad = if address.contains(':') && action == "add" { " nodad" } else { "" };
        host.ip(&format!("address {action} {address} dev eth0{nodad}"));
    }
    host.ip(&format!("address {action} 198.51.100.9/24 dev eth1"));
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

#[test]
fn a_second_holder_is_found_and_the_survivor_announces_its_addresses_again() {
    let network = SplitNetwork::new();
    network.change_other("add");
    // The kernel joins the solicited-node group of the address a little later (RFC 4291, section 2.7.1). Until then, it
    // does not answer a probe.
    wait_for("the solicited-node group", || {
        let groups = run(network.other.command("ip").args(["maddress", "show", "eth0"]));
        groups.contains("ff02::1:ff00:9").then_some(())
    });
    let _node = network.fixture.start();
    network.take_addresses();
    network.wait_for_log("audit finding");
    let other_mac = mac_of(&network.other, "eth0");
    let doctor = network.fixture.run(&["doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout);
    for address in ["192.0.2.9", "2001:db8::9"] {
        let expected = format!("{address} is also at {other_mac}, seen on eth0");
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let is_also_at = |ip: &str| text.contains(&format!("{ip} is also at"));
    assert!(!is_also_at("198.51.100.9") && !is_also_at("203.0.113.9"), "{text}");
    assert_eq!(doctor.status.code(), Some(1), "{text}");
    network.wait_for_events(&["Open web"]);
    // Only the probes of the repeated check are sent while the other host holds the address.
    let sent = network.announcements("192.0.2.9", Duration::ZERO);
    assert_eq!(sent, 2, "one round, a request and a reply");

    let given_up = now();
    network.change_other("del");
    for (ip, frames) in [("192.0.2.9", 2), ("2001:db8::9", 1)] {
        wait_for(&format!("announcements of {ip} after the split"), || {
            (network.announcements(ip, given_up) >= frames).then_some(())
        });
    }
    network.wait_for_log("finding is over");
    network.wait_for_events(&["Open web", "Closed web"]);
    let log = network.fixture.log();
    let lines = log.lines().filter(|line| line.contains("duplicate-holder"));
    assert_eq!(lines.count(), 2, "it opens and closes once: {log}");
    wait_for("both notifications of the hook", || {
        let found = read(&network.lab.path().join("found"));
        (found.matches("duplicate-holder").count() >= 2).then_some(())
    });
    // The other instances went through the same, and no rule announces them.
    let macs = [mac_of(&network.node, "eth1"), mac_of(&network.router.0, "eth2")];
    for (wire, mac) in network.quiet_wires.iter().zip(macs) {
        let frames = wire.frames();
        let sent: Vec<_> = frames.iter().filter(|frame| frame.sender() == mac).collect();
        assert!(sent.is_empty(), "{sent:?}");
    }
}

#[test]
fn a_restarted_node_checks_an_address_with_a_second_holder_again() {
    let network = SplitNetwork::new();
    let address = "address add 192.0.2.9/24 dev eth0";
    network.other.ip(address);
    let rule = "[[notify]]\ninstances = \"web\"\nannounce = { count = 1, second_burst = \"0s\" }\n";
    let netns = network.node.name();
    network.fixture.configure(&format!(
        "[[instance]]\nid = \"web\"\nnetns = {netns:?}\naddresses = [\"192.0.2.9/24 dev eth0\"]\n{rule}"
    ));
    let node = network.fixture.start();
    network.node.ip(address);
    network.wait_for_log("audit finding");
    assert!(node.stop().success());
    let started = now();
    let _node = network.fixture.start();
    wait_showing(
        "the finding",
        || network.fixture.log(),
        || network.fixture.run_text(&["doctor"]).contains("192.0.2.9 is also at").then_some(()),
    );
    assert_eq!(network.announcements("192.0.2.9", started), 2, "one round of the new run");
    let given_up = now();
    network.other.ip("address del 192.0.2.9/24 dev eth0");
    wait_for("announcements after the split", || {
        (network.announcements("192.0.2.9", given_up) >= 2).then_some(())
    });
    network.wait_for_log("finding is over");
}

/// Two instances of keepalived: `VI` and `VQ`.
fn pair_conf(priority: u8) -> String {
    let instance = |name: &str, vrid: u8| {
        format!(
            "vrrp_instance {name} {{\nstate BACKUP\ninterface eth0\nvirtual_router_id {vrid}\n\
             priority {priority}\nvirtual_ipaddress {{\n192.0.2.{vrid}/24\n}}\n}}\n"
        )
    };
    [instance("VI", 100), instance("VQ", 101)].concat()
}

#[test]
fn when_the_adverts_of_a_second_primary_end_the_survivor_announces_its_addresses_again() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let station = lab.netns("s");
    switch.plug(&station, "eth0", "station");
    first.fixture.configure(
        "[witness]\nenabled = true\n[[notify]]\ninstances = \"VI\"\n\
         announce = { count = 1, second_burst = \"0s\", check = \"0s\" }\n",
    );
    let keepalived = Keepalived::start_with(&first.netns, &first.directory, &pair_conf(150));
    let _node = first.fixture.start();
    wait_for_role(&first.fixture, "VI", "primary");
    wait_for_role(&first.fixture, "VQ", "primary");
    let other = Keepalived::start_with(&second.netns, &second.directory, &pair_conf(100));
    // The addresses stay on the first host, and the second one takes over.
    keepalived.kill();
    let count = |text: &str| {
        let log = first.fixture.log();
        log.lines().filter(|line| line.contains(text) && line.contains("two-primaries")).count()
    };
    wait_showing(
        "two findings",
        || first.fixture.log(),
        || (count("audit finding") == 2).then_some(()),
    );
    let wire = Wire::tap(&station, "eth0");
    other.stop();
    let mac = mac_of(&first.netns, "eth0");
    let announced =
        |ip: &str| wire.announcements(ip).iter().filter(|(_, frame)| frame.sender() == mac).count();
    wait_showing(
        "the announcement",
        || first.fixture.log(),
        || (announced("192.0.2.100") >= 2).then_some(()),
    );
    wait_for("the end of both findings", || (count("finding is over") == 2).then_some(()));
    assert_eq!(announced("192.0.2.100"), 2, "one round");
    assert_eq!(announced("192.0.2.101"), 0, "no rule announces the second instance");
}

#[test]
fn a_holder_that_is_found_after_the_announcement_was_completed_is_checked_after_a_restart() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [other, host] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    host.fixture.configure(
        "[witness]\nenabled = true\n[[notify]]\nannounce = { count = 1, second_burst = \"0s\" }\n",
    );
    write(&host.fixture.keepalived_conf(), &conf("eth0", 100, "", "192.0.2.100/24"));
    let node = host.fixture.start();
    let address = "address add 192.0.2.100/24 dev eth0";
    host.netns.ip(address);
    wait_for("the completed announcement", || {
        let mut sqlite = Command::new("sqlite3");
        let query = "SELECT outcome FROM delivery WHERE target = 'announce'";
        let rows = run(sqlite.arg(host.fixture.state_dir().join("history.sqlite")).arg(query));
        (rows.trim() == "delivered").then_some(())
    });
    // A second primary, which stops to advertise and keeps the address: the survivor announces and checks again.
    other.netns.ip(address);
    wait_showing(
        "two primaries",
        || host.fixture.log(),
        || {
            other.netns.send_ipv4(&ADVERT, 1);
            has_logged(&host.fixture, "audit finding", "two-primaries").then_some(())
        },
    );
    wait_for_finding(&host.fixture, "audit finding", "duplicate-holder");
    assert!(node.stop().success());
    let _node = host.fixture.start();
    wait_showing(
        "the finding",
        || host.fixture.log(),
        || host.fixture.run_text(&["doctor"]).contains("192.0.2.100 is also at").then_some(()),
    );
}
