// SPDX-License-Identifier: Apache-2.0
//! The witness of a node: the adverts of real keepalived, of other routers and of attackers.

mod floods;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use vipwatch_api::{AdvertPresence, AdvertSourceItem, AdvertsItem, CaptureState, InstanceDetail};
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{
    AdvertSender, Lab, NodeFixture, NodeProcess, SigningKey, TestAdvert, TestNetns, script,
    wait_for, wait_showing,
};

use crate::support::{PROGRAM, fixture_with, instance_conf, vi_1_conf, wait_for_role};

/// An advert of version 2 for the virtual router 11, from 192.0.2.10, with the priority 150, of keepalived 2.2.7.
pub(crate) const ADVERT: [u8; 44] = [
    0x45, 0xc0, 0x00, 0x2c, 0x00, 0x01, 0x00, 0x00, 0xff, 0x70, 0x18, 0x84, 0xc0, 0x00, 0x02, 0x0a,
    0xe0, 0x00, 0x00, 0x12, 0x21, 0x0b, 0x96, 0x02, 0x00, 0x01, 0xc4, 0x26, 0xc0, 0x00, 0x02, 0x64,
    0xc0, 0x00, 0x02, 0x65, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

/// A configuration with the defaults of the witness.
const WITNESS: &str = "[witness]\n";

/// One host: a namespace on the switch, with a directory for keepalived and for the node that runs in the namespace.
pub(crate) struct Host {
    pub(crate) netns: TestNetns,
    pub(crate) directory: PathBuf,
    pub(crate) fixture: NodeFixture,
}

impl Host {
    /// The host with this number in the networks 192.0.2.0/24 and `fd00::/64` on `link`.
    pub(crate) fn new(lab: &Lab, switch: &BridgeSwitch, link: &str, number: u8) -> Self {
        let netns = lab.netns(&number.to_string());
        switch.plug(&netns, link, &format!("p{number}"));
        netns.ip(&format!("address add 192.0.2.{number}/24 dev {link}"));
        netns.ip(&format!("address add fd00::{number}/64 dev {link} nodad"));
        netns.ip(&format!("route add 224.0.0.0/4 dev {link}"));
        let directory = lab.path().join(number.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        let fixture = NodeFixture::new(PROGRAM.as_ref(), &directory).on(&netns);
        fixture.configure(WITNESS);
        Self { netns, directory, fixture }
    }

    /// Starts keepalived with the instance `VI`, virtual router 11, and a node.
    fn start(
        &self,
        link: &str,
        priority: u8,
        statements: &str,
        addresses: &str,
    ) -> (Keepalived, NodeProcess) {
        let conf = conf(link, priority, statements, addresses);
        let keepalived = Keepalived::start_with(&self.netns, &self.directory, &conf);
        (keepalived, self.fixture.start())
    }

    fn adverts(&self) -> AdvertsItem {
        adverts(&self.fixture, "VI")
    }

    /// Waits for adverts with a property.
    #[track_caller]
    fn wait_for_adverts(
        &self,
        what: &str,
        is_wanted: impl Fn(&AdvertsItem) -> bool,
    ) -> AdvertsItem {
        let shown = || self.fixture.run_text(&["show", "VI"]);
        wait_showing(what, shown, || Some(self.adverts()).filter(&is_wanted))
    }
}

/// The instance `VI` with the virtual router 11.
pub(crate) fn conf(link: &str, priority: u8, statements: &str, addresses: &str) -> String {
    format!(
        "vrrp_instance VI {{\nstate BACKUP\ninterface {link}\nvirtual_router_id 11\npriority {priority}\n\
         {statements}\nvirtual_ipaddress {{\n{addresses}\n}}\n}}\n"
    )
}

fn adverts(fixture: &NodeFixture, id: &str) -> AdvertsItem {
    let output = fixture.run(&["show", id, "-o", "json"]);
    let detail: Result<InstanceDetail, _> = serde_json::from_slice(&output.stdout);
    let detail = detail.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    detail.adverts.expect("the adverts are captured")
}

fn foreign(adverts: &AdvertsItem) -> Option<&AdvertSourceItem> {
    adverts.sources.iter().find(|source| !source.own)
}

/// Two hosts with keepalived and a node each: the backup sees the adverts of the primary, and the other way round after
/// the primary has stopped.
fn check_pair(statements: [&str; 2], addresses: &str, check: impl Fn(&AdvertSourceItem)) {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let (keepalived, _node) = first.start("eth0", 150, statements[0], addresses);
    wait_for_role(&first.fixture, "VI", "primary");
    let (_other_keepalived, _other_node) = second.start("eth0", 100, statements[1], addresses);
    let seen = second.wait_for_adverts("adverts of the primary", |adverts| {
        foreign(adverts).is_some_and(|source| source.advertising && source.adverts > 1)
    });
    assert_eq!((seen.presence, seen.capture), (AdvertPresence::Advertised, CaptureState::Running));
    assert_eq!(seen.sources.len(), 1, "{seen:?}");
    let source = foreign(&seen).unwrap();
    assert_eq!(
        (source.priority, source.differences.as_slice()),
        (150, [].as_slice()),
        "{source:?}"
    );
    check(source);
    assert!(seen.bad.is_empty(), "{seen:?}");
    keepalived.stop();
    second.wait_for_adverts("the hand-over", |adverts| {
        foreign(adverts).is_some_and(|source| source.priority == 0 && !source.advertising)
    });
    wait_for_role(&second.fixture, "VI", "primary");
    let seen = first.wait_for_adverts("adverts of the new primary", |adverts| {
        foreign(adverts).is_some_and(|source| source.advertising)
    });
    assert_eq!(foreign(&seen).unwrap().priority, 100);
    let text = second.fixture.run_text(&["show", "VI"]);
    assert!(text.contains("peer, priority 0") && text.contains("has handed over"), "{text}");
}

#[test]
fn two_nodes_see_each_others_adverts_of_version_2() {
    check_pair(["", ""], "192.0.2.100/24", |source| {
        assert_eq!(
            (source.version, source.interval_ms, source.source.as_str()),
            (2, 1_000, "192.0.2.10")
        );
        assert_eq!(
            (source.addresses.as_slice(), source.authentication.as_str()),
            (["192.0.2.100".to_owned()].as_slice(), "none")
        );
    });
}

#[test]
fn two_nodes_see_each_others_adverts_of_version_3_over_ipv6() {
    let statements = "version 3\nadvert_int 0.5";
    check_pair([statements; 2], "fe80::1:2\nfd00::100/64", |source| {
        assert_eq!((source.version, source.interval_ms), (3, 500));
        assert_eq!(source.addresses, ["fe80::1:2", "fd00::100"]);
    });
}

#[test]
fn two_nodes_see_each_others_unicast_adverts() {
    let statements = [("10", "11"), ("11", "10")].map(|(own, other)| {
        format!("unicast_src_ip 192.0.2.{own}\nunicast_peer {{\n192.0.2.{other}\n}}")
    });
    check_pair(statements.each_ref().map(String::as_str), "192.0.2.100/24", |_| {});
}

#[test]
fn two_nodes_see_each_others_adverts_below_a_vmac() {
    check_pair(["use_vmac"; 2], "192.0.2.100/24", |_| {});
}

#[test]
fn two_nodes_see_each_others_authenticated_adverts() {
    let password = "authentication {\nauth_type PASS\nauth_pass secret12\n}";
    check_pair([password; 2], "192.0.2.100/24", |source| {
        assert_eq!(source.authentication, "pass");
    });
    let header = "authentication {\nauth_type AH\nauth_pass secret12\n}";
    check_pair([header; 2], "192.0.2.100/24", |source| assert_eq!(source.authentication, "ah"));
}

#[test]
fn own_adverts_are_captured_on_a_link_that_a_pattern_selects() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let host = Host::new(&lab, &switch, "ha-1", 10);
    let (_keepalived, node) = host.start("ha-1", 150, "", "192.0.2.100/24");
    let seen = host.wait_for_adverts("own adverts", |adverts| !adverts.sources.is_empty());
    assert!(seen.sent && seen.sources[0].own && seen.sources[0].priority == 150, "{seen:?}");
    // A reload turns the witness off for the link, and on again for received adverts.
    host.fixture.configure("[witness]\nexclude = [\"ha-*\"]\n");
    node.reload();
    wait_for("no adverts", || {
        let output = host.fixture.run(&["show", "VI", "-o", "json"]);
        let detail: InstanceDetail = serde_json::from_slice(&output.stdout).unwrap();
        detail.adverts.is_none().then_some(())
    });
    host.fixture.configure("[witness]\nsent = []\n");
    node.reload();
    wait_for("a capture of received adverts", || {
        let output = host.fixture.run(&["show", "VI", "-o", "json"]);
        let detail: InstanceDetail = serde_json::from_slice(&output.stdout).unwrap();
        detail.adverts.filter(|adverts| !adverts.sent && adverts.capture == CaptureState::Running)
    });
}

#[test]
fn malformed_and_foreign_adverts_are_counted_and_not_believed() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [attacker, host] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let (_keepalived, _node) = host.start("eth0", 100, "", "192.0.2.100/24");
    host.wait_for_adverts("the capture", |adverts| adverts.capture == CaptureState::Running);
    let send = |at: usize, value: u8| {
        let mut packet = ADVERT;
        packet[at] = value;
        attacker.netns.send_ipv4(&packet, 3);
    };
    // A wrong TTL, a wrong checksum, a wrong number of addresses, an unknown version.
    send(8, 1);
    send(22, 255);
    send(23, 77);
    send(20, 0x71);
    // A valid advert of another virtual router: 12 instead of 11, with its checksum.
    let mut other = ADVERT;
    (other[21], other[27]) = (12, 0x25);
    attacker.netns.send_ipv4(&other, 1);
    let seen = host.wait_for_adverts("the counters", |adverts| {
        adverts.bad.values().sum::<u64>() == 12 && adverts.other_vrids == 1
    });
    for error in ["hop-limit", "checksum", "length", "version"] {
        assert_eq!(seen.bad.get(error), Some(&3), "{seen:?}");
    }
    assert!(seen.sources.is_empty() && seen.last_bad_at.is_some(), "{seen:?}");
    let text = host.fixture.run_text(&["show", "VI"]);
    assert!(text.contains("bad adverts"), "{text}");
}

#[test]
fn an_overrun_is_marked() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [sender, host] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let (_keepalived, _node) = host.start("eth0", 100, "", "192.0.2.100/24");
    host.wait_for_adverts("the capture", |adverts| adverts.capture == CaptureState::Running);
    // 3,000 adverts between two reads do not fit into the queue, even after it has grown.
    let seen = wait_for("an overrun", || {
        sender.netns.send_ipv4(&ADVERT, 3_000);
        Some(host.adverts()).filter(|adverts| adverts.dropped > 0)
    });
    assert!(seen.overrun_at.is_some(), "{seen:?}");
    let text = host.fixture.run_text(&["show", "VI"]);
    assert!(text.contains("overruns"), "{text}");
}

#[test]
fn a_deleted_namespace_disappears_although_the_witness_watched_it() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure(WITNESS);
    // The other end of this link disappears with the namespace.
    let outside = lab.netns("outside");
    netns.ip(&format!("link add inside type veth peer name other netns {}", outside.name()));
    let _node = fixture.start();
    wait_for("the capture", || {
        (adverts(&fixture, "VI_1").capture == CaptureState::Running).then_some(())
    });
    netns.delete();
    wait_for("the end of the namespace", || {
        let mut show = Command::new("ip");
        show.args(["-n", outside.name(), "link", "show", "dev", "other"]);
        (!show.output().unwrap().status.success()).then_some(())
    });
    assert_eq!(adverts(&fixture, "VI_1").capture, CaptureState::NoNamespace);
}

#[test]
fn a_link_or_a_namespace_that_is_created_again_is_captured_again() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let sender = Host::new(&lab, &switch, "eth0", 10);
    let netns = lab.netns("k");
    let name = netns.name().to_owned();
    switch.plug(&netns, "eth0", "p1");
    let fixture = NodeFixture::new(PROGRAM.as_ref(), lab.path());
    fixture.configure(WITNESS);
    // The name VI_11 would have another virtual router id.
    let conf = instance_conf("VI_11", "eth0", &["192.0.2.100/24"]);
    let conf = conf.lines().map(|line| match line.trim_start().split_once(' ') {
        Some(("virtual_router_id", _)) => "virtual_router_id 11\n".to_owned(),
        _ => format!("{line}\n"),
    });
    let conf = format!("net_namespace {name}\n{}", conf.collect::<String>());
    crate::support::write(&fixture.keepalived_conf(), &conf);
    let _node = fixture.start();
    let count = || adverts(&fixture, "VI_11").sources.first().map_or(0, |source| source.adverts);
    let wait_for_advert = |what: &str| {
        let before = count();
        wait_for(what, || {
            sender.netns.send_ipv4(&ADVERT, 1);
            (count() > before).then_some(())
        });
    };
    wait_for_advert("an advert");
    netns.ip("link delete eth0");
    wait_for("the missing link", || {
        (adverts(&fixture, "VI_11").capture == CaptureState::NoLink).then_some(())
    });
    switch.plug(&netns, "eth0", "p2");
    wait_for_advert("an advert on the new link");
    netns.delete();
    wait_for("the missing namespace", || {
        (adverts(&fixture, "VI_11").capture == CaptureState::NoNamespace).then_some(())
    });
    let netns = TestNetns::create(&name);
    switch.plug(&netns, "eth0", "p3");
    wait_for_advert("an advert in the new namespace");
}

#[test]
fn a_node_that_may_not_open_packet_sockets_reports_that_once() {
    let lab = Lab::new();
    let program = lab.path().join("without-net-raw");
    script(
        &program,
        &format!("exec setpriv --bounding-set -net_raw --inh-caps -net_raw {PROGRAM} \"$@\""),
    );
    let netns = lab.netns("k");
    netns.add_link("eth0");
    let fixture = NodeFixture::new(&program, lab.path());
    fixture.configure(WITNESS);
    let instances = [vi_1_conf(), instance_conf("VI_2", "eth0", &["192.0.2.8/24"])].concat();
    let conf = format!("net_namespace {}\n{instances}", netns.name());
    crate::support::write(&fixture.keepalived_conf(), &conf);
    let node = fixture.start();
    wait_for("the refusal", || {
        let seen = adverts(&fixture, "VI_1");
        (seen.capture == CaptureState::Refused && seen.error.is_some()).then_some(())
    });
    let doctor = fixture.run_text(&["doctor"]);
    assert!(doctor.contains("node-witness") && doctor.contains("CAP_NET_RAW"), "{doctor}");
    let warnings = || fixture.log().matches("witness is incomplete").count();
    wait_for("the warning", || (warnings() > 0).then_some(()));
    node.reload();
    fixture.configure("[witness]\nenabled = false\n");
    node.reload();
    wait_for("no finding", || {
        (!fixture.run_text(&["doctor"]).contains("node-witness")).then_some(())
    });
    assert_eq!(warnings(), 1);
}

/// Whether the log has a line about a finding that has appeared, or that is over.
pub(crate) fn has_logged(fixture: &NodeFixture, text: &str, finding: &str) -> bool {
    fixture.log().lines().any(|line| line.contains(text) && line.contains(finding))
}

#[track_caller]
pub(crate) fn wait_for_finding(fixture: &NodeFixture, text: &str, finding: &str) {
    let what = format!("{text:?} with {finding} in the log");
    wait_showing(&what, || fixture.log(), || has_logged(fixture, text, finding).then_some(()));
}

#[test]
fn a_killed_keepalived_leaves_two_primaries_which_the_node_finds() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let (keepalived, _node) = first.start("eth0", 150, "", "192.0.2.100/24");
    wait_for_role(&first.fixture, "VI", "primary");
    let (other, _other_node) = second.start("eth0", 100, "", "192.0.2.100/24");
    second.wait_for_adverts("adverts of the primary", |adverts| foreign(adverts).is_some());
    // The address stays on the first host, and the second one takes over.
    keepalived.kill();
    wait_for_finding(&first.fixture, "audit finding", "two-primaries");
    let text = first.fixture.run_text(&["doctor"]);
    assert!(text.contains("192.0.2.11 (priority 100) advertises them too"), "{text}");
    assert!(!has_logged(&second.fixture, "audit finding", "two-primaries"));
    other.stop();
    wait_for_finding(&first.fixture, "finding is over", "two-primaries");
}

#[test]
fn a_backup_without_a_primary_is_found_until_a_host_advertises() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    // keepalived does not run on the second host.
    let text = conf("eth0", 100, "", "192.0.2.100/24");
    crate::support::write(&second.fixture.keepalived_conf(), &text);
    let _node = second.fixture.start();
    wait_for_finding(&second.fixture, "audit finding", "no-primary");
    assert_eq!(second.adverts().presence, AdvertPresence::Silent);
    let _keepalived = Keepalived::start_with(&first.netns, &first.directory, &text);
    wait_for_finding(&second.fixture, "finding is over", "no-primary");
    assert_eq!(second.adverts().presence, AdvertPresence::Advertised);
}

/// A host with the instance in its file, without a keepalived, and a primary that signs its adverts.
struct SignedPair {
    sender: AdvertSender,
    _node: NodeProcess,
    backup: Host,
    primary: Host,
    _switch: BridgeSwitch,
    _lab: Lab,
}

impl SignedPair {
    fn start(statements: &str, advert: TestAdvert) -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let [primary, backup] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
        let text = conf("eth0", 100, statements, "192.0.2.100/24");
        crate::support::write(&backup.fixture.keepalived_conf(), &text);
        let node = backup.fixture.start();
        let sender = AdvertSender::start(&primary.netns, "eth0", advert);
        Self { sender, _node: node, backup, primary, _switch: switch, _lab: lab }
    }
}

/// A signed advert of the virtual router 11 with the key id 7.
fn signed() -> TestAdvert {
    TestAdvert::multicast(11, 150, [192, 0, 2, 10], [192, 0, 2, 100])
}

/// The block of an instance with the key id 7 and another one.
fn auth_hmac(statements: &str) -> String {
    let key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    format!("auth_hmac {{\nkey 7 0x{key}\nkey 8 0x{key}\nactive_key 8\n{statements}\n}}")
}

#[test]
fn a_backup_with_a_peer_that_signs_its_adverts_has_no_finding_and_shows_the_key() {
    let SignedPair { sender, backup, .. } = &SignedPair::start(&auth_hmac(""), signed());
    // The master-down interval is over, and a finding would be there.
    let seen = backup.wait_for_adverts("signed adverts", |adverts| {
        foreign(adverts).is_some_and(|source| source.advertising && source.adverts > 8)
    });
    let signature = foreign(&seen).unwrap().signature.unwrap();
    assert_eq!(signature.key_id, 7);
    // A loaded host receives an advert late.
    assert!((0..60_000).contains(&signature.clock_difference_ms), "{signature:?}");
    assert_eq!((seen.presence, seen.undecoded), (AdvertPresence::Advertised, 0));
    assert!(seen.bad.is_empty(), "{seen:?}");
    let log = backup.fixture.log();
    assert!(!log.contains("audit finding"), "{log}");
    let text = backup.fixture.run_text(&["show", "VI"]);
    assert!(text.contains("signed with key 7 (its clock: "), "{text}");
    sender.change(TestAdvert { priority: 0, ..signed() });
    backup.wait_for_adverts("the hand-over", |adverts| {
        foreign(adverts).is_some_and(|source| source.priority == 0 && !source.advertising)
    });
}

#[test]
fn signed_adverts_that_the_own_keepalived_drops_are_found() {
    let SignedPair { sender, backup, .. } = &SignedPair::start(&auth_hmac(""), signed());
    let signed_with = |id| TestAdvert { key: Some(SigningKey::numbered(id)), ..signed() };
    let doctor = || backup.fixture.run_text(&["doctor"]);
    let found = |text: &str| {
        wait_showing(text, doctor, || doctor().contains(text).then_some(()));
    };
    let over = |count: usize| {
        wait_showing(
            "the end of the finding",
            || backup.fixture.log(),
            || {
                let log = backup.fixture.log();
                let over = log.lines().filter(|line| {
                    line.contains("finding is over") && line.contains("advert-rejected")
                });
                (over.count() == count).then_some(())
            },
        );
    };
    sender.change(signed_with(9));
    found("signed with key 9, which `auth_hmac` does not have");
    sender.change(signed_with(8));
    over(1);
    sender.change(TestAdvert { key: None, ..signed() });
    found("not signed, and `auth_hmac` has the mode enforce");
    sender.change(signed());
    over(2);
    sender.change(TestAdvert { clock_offset: -600, ..signed() });
    found("more than the 5 s of `time_window`");
    sender.change(signed());
    over(3);
    assert!(!has_logged(&backup.fixture, "audit finding", "no-primary"));
}

/// Two hosts of one virtual router, each with the instance in its file and a node. No packaged keepalived signs adverts, so
/// the test holds the address and sends the adverts of the primary.
struct Migration {
    sender: Option<AdvertSender>,
    key: Option<SigningKey>,
    primary: usize,
    _nodes: Vec<NodeProcess>,
    hosts: [Host; 2],
    _switch: BridgeSwitch,
    _lab: Lab,
}

impl Migration {
    fn start() -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let hosts = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
        let migration = Self {
            sender: None,
            key: None,
            primary: 0,
            _nodes: Vec::new(),
            hosts,
            _switch: switch,
            _lab: lab,
        };
        migration.configure("");
        let nodes = migration.hosts.iter().map(|host| host.fixture.start()).collect();
        let mut migration = Self { _nodes: nodes, ..migration };
        migration.take_over(0);
        migration
    }

    /// Edits the file of each host, one after the other.
    fn configure(&self, statements: &str) {
        for (host, priority) in self.hosts.iter().zip([150, 100]) {
            let text = conf(
                "eth0",
                priority,
                &format!("version 3\nadvert_int 0.5\n{statements}"),
                "192.0.2.100/32",
            );
            crate::support::write(&host.fixture.keepalived_conf(), &text);
            self.watch();
        }
    }

    fn advert(&self) -> TestAdvert {
        let (version, interval) = (3, Duration::from_millis(500));
        let (priority, number) = if self.primary == 0 { (150, 10) } else { (100, 11) };
        let multicast = TestAdvert::multicast(11, priority, [192, 0, 2, number], [192, 0, 2, 100]);
        TestAdvert { version, interval, key: self.key.clone(), ..multicast }
    }

    /// The primary signs with this key from now on.
    fn sign_with(&mut self, id: u8) {
        self.key = Some(SigningKey::numbered(id));
        self.sender.as_ref().unwrap().change(self.advert());
        self.watch();
    }

    /// A failover: the primary hands over, and the address moves.
    fn take_over(&mut self, host: usize) {
        if let Some(sender) = self.sender.take() {
            sender.change(TestAdvert { priority: 0, ..self.advert() });
            self.hosts[self.primary].netns.ip("address del 192.0.2.100/32 dev eth0");
        }
        self.primary = host;
        let next = &self.hosts[host];
        next.netns.ip("address add 192.0.2.100/32 dev eth0");
        self.sender = Some(AdvertSender::start(&next.netns, "eth0", self.advert()));
        wait_for_role(&next.fixture, "VI", "primary");
        self.watch();
    }

    /// Waits until the backup has received so many more adverts that a finding would be open.
    fn watch(&self) {
        if self.sender.is_none() {
            return;
        }
        let backup = &self.hosts[1 - self.primary];
        let count = |adverts: &AdvertsItem| foreign(adverts).map_or(0, |one| one.adverts);
        let before = count(&backup.adverts());
        let seen =
            backup.wait_for_adverts("further adverts", |adverts| count(adverts) > before + 7);
        assert_eq!((seen.presence, seen.undecoded), (AdvertPresence::Advertised, 0), "{seen:?}");
        let key_id = foreign(&seen).unwrap().signature.map(|signature| signature.key_id);
        assert_eq!(key_id, self.key.as_ref().map(|key| key.id));
    }
}

#[test]
fn a_migration_to_signed_adverts_with_three_failovers_has_no_finding() {
    let mut migration = Migration::start();
    migration.configure(&auth_hmac("mode receive-only"));
    migration.take_over(1);
    migration.configure(&auth_hmac("mode permissive"));
    migration.sign_with(7);
    migration.take_over(0);
    migration.configure(&auth_hmac("mode enforce"));
    migration.sign_with(8);
    migration.take_over(1);
    for host in &migration.hosts {
        let log = host.fixture.log();
        assert!(!log.contains("audit finding"), "{log}");
        assert!(log.contains("primary"), "the node followed the failovers: {log}");
    }
}

#[test]
fn a_signed_advert_for_an_instance_without_a_block_is_found() {
    let SignedPair { backup, .. } = &SignedPair::start("", signed());
    wait_for_finding(&backup.fixture, "audit finding", "advert-rejected");
    assert!(!has_logged(&backup.fixture, "audit finding", "no-primary"));
}

#[test]
fn adverts_that_cannot_be_decoded_are_no_silence_and_make_a_later_one_probable() {
    let future = TestAdvert { version: 4, ..signed() };
    let SignedPair { sender, backup, _node, _switch, _lab, .. } = SignedPair::start("", future);
    let seen = backup.wait_for_adverts("undecodable adverts", |adverts| adverts.undecoded > 8);
    assert_eq!(seen.presence, AdvertPresence::Unknown);
    assert!(!has_logged(&backup.fixture, "audit finding", "no-primary"));
    let text = backup.fixture.run_text(&["show", "VI"]);
    assert!(text.contains("undecodable"), "{text}");
    drop(sender);
    wait_for_finding(&backup.fixture, "audit finding", "no-primary");
    let text = backup.fixture.run_text(&["doctor"]);
    assert!(text.contains("probable: no node has advertised"), "{text}");
}

#[test]
fn adverts_that_cannot_be_decoded_do_not_end_an_open_finding() {
    let SignedPair { sender, primary, backup, _node, _switch, _lab } =
        SignedPair::start("", TestAdvert { key: None, ..signed() });
    backup.wait_for_adverts("adverts", |adverts| foreign(adverts).is_some());
    drop(sender);
    wait_for_finding(&backup.fixture, "audit finding", "no-primary");
    let future = TestAdvert { version: 4, ..signed() };
    let others = AdvertSender::start(&primary.netns, "eth0", future);
    backup.wait_for_adverts("undecodable adverts", |adverts| adverts.undecoded > 3);
    assert!(!has_logged(&backup.fixture, "finding is over", "no-primary"));
    // A primary ends it, although they still come.
    let _sender = AdvertSender::start(&primary.netns, "eth0", TestAdvert { key: None, ..signed() });
    wait_for_finding(&backup.fixture, "finding is over", "no-primary");
    drop(others);
}

#[test]
fn a_multicast_service_with_the_vrid_of_a_unicast_instance_is_no_clash_and_hides_no_silence() {
    let unicast = "unicast_src_ip 192.0.2.11\nunicast_peer {\n192.0.2.10\n}";
    let other = TestAdvert { addresses: vec![[192, 0, 2, 200].into()], key: None, ..signed() };
    let SignedPair { primary, backup, .. } = &SignedPair::start(unicast, other);
    let peer = TestAdvert { destination: [192, 0, 2, 11].into(), key: None, ..signed() };
    let peer = AdvertSender::start(&primary.netns, "eth0", peer);
    wait_for("no finding while both advertise", || {
        let adverts = backup.adverts();
        let count = |unicast: bool| {
            let mut sources = adverts.sources.iter().filter(|one| one.unicast == unicast);
            sources.next().map_or(0, |one| one.adverts)
        };
        (count(true) > 8 && count(false) > 8).then_some(())
    });
    assert!(!has_logged(&backup.fixture, "audit finding", "vrid-clash-on-link"));
    drop(peer);
    wait_for_finding(&backup.fixture, "audit finding", "no-primary");
}

#[test]
fn another_service_with_the_same_virtual_router_id_is_found() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let (_keepalived, _node) = first.start("eth0", 150, "", "192.0.2.100/24");
    wait_for_role(&first.fixture, "VI", "primary");
    let (_other, _other_node) = second.start("eth0", 100, "", "192.0.2.200/24");
    wait_for_finding(&second.fixture, "audit finding", "vrid-clash-on-link");
    assert!(!has_logged(&second.fixture, "audit finding", "peer-configuration-differs"));
}

#[test]
fn settings_that_differ_between_two_nodes_are_found() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let (_keepalived, _node) = first.start("eth0", 150, "", "192.0.2.100/24\n192.0.2.101/24");
    wait_for_role(&first.fixture, "VI", "primary");
    let (_other, _other_node) = second.start("eth0", 100, "", "192.0.2.100/24");
    wait_for_finding(&second.fixture, "audit finding", "peer-configuration-differs");
    // An advert that is late ends the finding for a moment.
    let doctor = || second.fixture.run_text(&["doctor"]);
    wait_showing("the difference in doctor", doctor, || {
        doctor().contains("addresses with 192.0.2.101").then_some(())
    });
    second.wait_for_adverts("the difference in the adverts", |adverts| {
        foreign(adverts).is_some_and(|host| host.differences == ["addresses with 192.0.2.101"])
    });
}

#[test]
fn a_restart_of_the_node_does_not_repeat_the_findings_of_the_witness() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [first, second] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let (keepalived, node) = first.start("eth0", 150, "", "192.0.2.100/24");
    wait_for_role(&first.fixture, "VI", "primary");
    let (_other, _other_node) = second.start("eth0", 100, "", "192.0.2.100/24");
    second.wait_for_adverts("adverts of the primary", |adverts| foreign(adverts).is_some());
    keepalived.kill();
    wait_for_finding(&first.fixture, "audit finding", "two-primaries");
    let since = || {
        let items = crate::support::query_json(&first.fixture, &["doctor"])["items"].clone();
        let mut items = items.as_array().unwrap().clone().into_iter();
        items.find(|item| item["name"] == "two-primaries").map(|item| item["since"].clone())
    };
    assert!(since().is_some());
    // A stop waits until the event is recorded.
    assert!(node.stop().success());
    let _node = first.fixture.start();
    // The first audit of this run has too little evidence.
    since();
    wait_for("the finding of this run", since);
    let lines = |text: &str| {
        let log = first.fixture.log();
        log.lines().filter(|line| line.contains(text) && line.contains("two-primaries")).count()
    };
    assert_eq!(
        (lines("audit finding"), lines("finding is over")),
        (1, 0),
        "{}",
        first.fixture.log()
    );
}
