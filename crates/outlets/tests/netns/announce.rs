// SPDX-License-Identifier: Apache-2.0
//! Announcements on a real network: the frames on the wire, and the neighbour table of a peer.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use vipwatch_core::RateLimit;
use vipwatch_core::announce::AnnounceRefusal;
use vipwatch_core::snapshot::Mac;
use vipwatch_core::{AnnouncePlan, LinkIndex};
use vipwatch_linux::announce::arp::{Operation, gratuitous};
use vipwatch_linux::announce::packet_socket::{PacketSocket, ReceiveMode};
use vipwatch_outlets::announce::once::{
    AddressSelection, AnnounceError, AnnounceReport, AnnounceRequest, RefusedAddress, announce,
};
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::wire::{AnnounceKind, mac_of};
use vipwatch_testkit::{Lab, TestNetns, Wire, wait_for};

/// A plan with one round.
const ONCE: AnnouncePlan = AnnouncePlan { count: 1, second_burst: None, ..AnnouncePlan::PRIMARY };

/// A router and a peer, connected by a switch.
struct Network {
    router: TestNetns,
    peer: TestNetns,
    switch: BridgeSwitch,
    lab: Lab,
}

impl Network {
    fn new() -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let network = Self { router: lab.netns("r"), peer: lab.netns("p"), switch, lab };
        network.switch.plug(&network.router, "qg-1", "port-r");
        // Without the link-local address that the kernel adds by itself: the end of its duplicate address detection
        // would change the results.
        network.router.ip("link set qg-1 addrgenmode none");
        network.router.ip("-6 address flush dev qg-1");
        network.switch.plug(&network.peer, "eth0", "port-p");
        network.peer.ip("address add 192.0.2.1/24 dev eth0");
        network.peer.ip("address add 2001:db8::1/64 dev eth0 nodad");
        network
    }

    fn hold(&self, cidrs: &[&str]) {
        hold(&self.router, "qg-1", cidrs);
    }

    fn request(&self, plan: AnnouncePlan) -> AnnounceRequest {
        let netns = Some(self.router.name().parse().unwrap());
        AnnounceRequest { netns, which: AddressSelection::All, link: None, watched: None, plan }
    }

    fn announce(&self, plan: AnnouncePlan) -> AnnounceReport {
        announce(&self.request(plan)).unwrap()
    }

    fn mac(&self) -> String {
        mac_of(&self.router, "qg-1")
    }
}

fn hold(netns: &TestNetns, link: &str, cidrs: &[&str]) {
    let editor = netns.editor();
    let index = editor.link(link);
    let cidrs = cidrs.iter().map(|cidr| cidr.parse::<IpNet>().unwrap());
    for cidr in cidrs {
        editor.add(index, cidr);
        if let IpAddr::V6(ip) = cidr.addr() {
            wait_until_solicitable(netns, link, ip);
        }
    }
}

/// Waits until the kernel receives solicitations of `ip`. Also without duplicate address detection, it joins the
/// solicited-node group (RFC 4291 §2.7.1) on a worker of its own (`addrconf_dad_work`), which waits for the lock of all
/// links. On a busy machine that is some time after the address was added, and until then a probe gets no answer.
fn wait_until_solicitable(netns: &TestNetns, link: &str, ip: Ipv6Addr) {
    let [.., a, b, c] = ip.octets();
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    let name = group.to_string();
    wait_for(&format!("{link} to join {name}"), || {
        let groups = vipwatch_testkit::run(netns.command("ip").args(["maddress", "show", link]));
        groups.split_whitespace().any(|word| word == name).then_some(())
    });
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The entry for `ip` in the neighbour table of the peer.
fn neighbour_entry(peer: &TestNetns, ip: &str) -> String {
    vipwatch_testkit::run(peer.command("ip").args(["neigh", "show", ip]))
}

#[test]
fn a_peer_that_has_just_learned_another_mac_learns_the_announced_one() {
    let network = Network::new();
    network.hold(&["192.0.2.9/24", "2001:db8::9/64"]);
    for ip in ["192.0.2.9", "2001:db8::9"] {
        // The entry is new: within the kernel's lock time of one second (`locktime` in arp(7)).
        let learned = format!("neigh replace {ip} lladdr 02:00:00:00:00:66 dev eth0 nud reachable");
        network.peer.ip(&learned);
        assert!(neighbour_entry(&network.peer, ip).contains("02:00:00:00:00:66"));
    }
    let report = network.announce(ONCE);
    let mac = network.mac();
    for ip in ["192.0.2.9", "2001:db8::9"] {
        wait_for(&format!("the peer's neighbour table to have {mac} for {ip}"), || {
            neighbour_entry(&network.peer, ip).contains(&mac).then_some(())
        });
        assert!(report.announced.iter().any(|sent| sent.ip.to_string() == ip), "{report:?}");
    }
    assert!(report.announced.iter().all(|sent| sent.mac.to_string() == mac && sent.rounds == 1));
}

#[test]
fn each_round_is_complete_and_rounds_are_further_apart_than_the_lock_time() {
    let network = Network::new();
    network.hold(&["192.0.2.9/24", "2001:db8::9/64"]);
    let wire = Wire::tap(&network.peer, "eth0");
    let plan = AnnouncePlan { second_burst: None, ..AnnouncePlan::PRIMARY };
    let report = network.announce(plan);
    let four = wire.wait_for("192.0.2.9", 6);
    let six = wire.wait_for("2001:db8::9", 3);
    let means: Vec<AnnounceKind> = four.iter().map(|(means, _)| *means).collect();
    assert_eq!(means, [AnnounceKind::Request, AnnounceKind::Reply].repeat(3));
    assert_eq!(six.len(), 3);
    let mac = network.mac();
    assert!(four.iter().chain(&six).all(|(_, frame)| frame.sender() == mac));
    for rounds in [four.iter().step_by(2).collect::<Vec<_>>(), six.iter().collect()] {
        for pair in rounds.windows(2) {
            let apart = pair[1].1.at.saturating_sub(pair[0].1.at);
            // The gap of the plan, less the time that the first batch may have needed to reach the wire.
            assert!(apart > Duration::from_secs(1), "{apart:?}");
        }
    }
    assert_eq!((report.counts.announcements, report.counts.frames), (6, 9), "{report:?}");
    assert_eq!((report.counts.failed, report.counts.refusals().count()), (0, 0));
}

#[test]
fn the_router_flag_of_an_advertisement_follows_the_forwarding_setting() {
    for (forwarding, flag) in [("0", 0x20), ("1", 0xa0)] {
        let network = Network::new();
        network.hold(&["2001:db8::9/64"]);
        let setting = format!("net.ipv6.conf.all.forwarding={forwarding}");
        vipwatch_testkit::run(network.router.command("sysctl").args(["-qw", &setting]));
        let wire = Wire::tap(&network.peer, "eth0");
        network.announce(ONCE);
        let frame = wire.wait_for("2001:db8::9", 1).remove(0).1;
        assert_eq!(frame.bytes[14 + 40 + 4], flag);
    }
}

#[test]
fn an_address_that_cannot_be_announced_is_refused_with_the_reason() {
    let network = Network::new();
    network.hold(&["192.0.2.9/24", "192.0.2.10/24", "240.0.0.1/32"]);
    for (link, cidr) in
        [("idle", "198.51.100.1/24"), ("dark", "198.51.100.2/24"), ("mute", "198.51.100.3/24")]
    {
        network.router.add_link(link);
        hold(&network.router, link, &[cidr]);
    }
    network.router.ip("link set idle down");
    network.router.ip("link set darkp down");
    network.router.ip("link set mute arp off");
    let wanted = [
        "192.0.2.9",
        "192.0.2.77",
        "240.0.0.1",
        "127.0.0.1",
        "198.51.100.1",
        "198.51.100.2",
        "198.51.100.3",
    ];
    let which = AddressSelection::These(wanted.map(ip).to_vec());
    let report = announce(&AnnounceRequest { which, ..network.request(ONCE) }).unwrap();
    let sent: Vec<IpAddr> = report.announced.iter().map(|sent| sent.ip).collect();
    assert_eq!(sent, [ip("192.0.2.9")], "only requested addresses are announced");
    let mut refused: Vec<(String, AnnounceRefusal)> =
        report.refused.iter().map(|refused| (refused.ip.to_string(), refused.reason)).collect();
    refused.sort();
    let expected = [
        ("127.0.0.1", AnnounceRefusal::Loopback),
        ("192.0.2.77", AnnounceRefusal::NotHeld),
        ("198.51.100.1", AnnounceRefusal::LinkDown),
        ("198.51.100.2", AnnounceRefusal::NoCarrier),
        ("198.51.100.3", AnnounceRefusal::NoMac),
        ("240.0.0.1", AnnounceRefusal::NotUnicast),
    ];
    assert_eq!(refused, expected.map(|(ip, reason)| (ip.to_owned(), reason)));
}

#[test]
fn an_address_that_failed_duplicate_address_detection_is_not_announced() {
    let network = Network::new();
    network.router.ip("address add 2001:db8::1/64 dev qg-1");
    wait_for("duplicate address detection to fail", || {
        network.router.addresses("qg-1").contains("dadfailed").then_some(())
    });
    let which = AddressSelection::These(vec![ip("2001:db8::1")]);
    let report = announce(&AnnounceRequest { which, ..network.request(ONCE) }).unwrap();
    assert_eq!(report.refused[0].reason, AnnounceRefusal::Duplicate, "{report:?}");
    assert!(report.announced.is_empty());
}

#[test]
fn the_watched_link_is_left_out_and_a_link_can_be_selected() {
    let network = Network::new();
    network.hold(&["192.0.2.9/24"]);
    network.switch.plug(&network.router, "ha-1", "port-h");
    hold(&network.router, "ha-1", &["169.254.0.1/24"]);
    let watched = Some("ha-1".parse().unwrap());
    let report = announce(&AnnounceRequest { watched, ..network.request(ONCE) }).unwrap();
    assert!(report.announced.iter().all(|sent| sent.link.to_string() == "qg-1"), "{report:?}");
    let link = Some("ha-1".parse().unwrap());
    let report = announce(&AnnounceRequest { link, ..network.request(ONCE) }).unwrap();
    assert!(report.announced.iter().all(|sent| sent.link.to_string() == "ha-1"), "{report:?}");
    assert!(report.announced.iter().any(|sent| sent.ip == ip("169.254.0.1")));
}

#[test]
fn an_address_removed_between_two_rounds_is_not_announced_again() {
    let network = Network::new();
    network.hold(&["192.0.2.9/32", "192.0.2.10/32"]);
    let wire = Wire::tap(&network.peer, "eth0");
    let plan = AnnouncePlan { count: 8, gap: Duration::from_millis(300), ..ONCE };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| network.announce(plan));
        wire.wait_for("192.0.2.9", 2);
        network.router.ip("address del 192.0.2.9/32 dev qg-1");
        let report = work.join().unwrap();
        assert_eq!(
            wire.wait_for("192.0.2.10", 16).len(),
            16,
            "the other address is still announced"
        );
        let sent = wire.announcements("192.0.2.9").len();
        assert!(sent < 16, "{sent} frames");
        let counted = report.announced.iter().find(|sent| sent.ip == ip("192.0.2.9")).unwrap();
        assert_eq!(usize::from(counted.rounds) * 2, sent, "{report:?}");
        assert!(report.refused.contains(&RefusedAddress {
            ip: ip("192.0.2.9"),
            link: Some("qg-1".parse().unwrap()),
            reason: AnnounceRefusal::NotHeld,
        }));
    });
}

#[test]
fn announcing_ends_when_the_link_is_deleted() {
    let network = Network::new();
    network.hold(&["192.0.2.9/24"]);
    let wire = Wire::tap(&network.peer, "eth0");
    let plan = AnnouncePlan { count: 50, gap: Duration::from_millis(100), ..ONCE };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| network.announce(plan));
        wire.wait_for("192.0.2.9", 4);
        network.router.ip("link del qg-1");
        let report = work.join().unwrap();
        let last = report.announced.iter().map(|sent| sent.rounds).max().unwrap();
        assert!(last < 50, "{report:?}");
        // The deletion and the query overlap: the query misses either the addresses or the link.
        let refusal = &report.refused[0].reason;
        assert!(
            matches!(refusal, AnnounceRefusal::NoLink | AnnounceRefusal::NotHeld),
            "{report:?}"
        );
    });
}

#[test]
fn two_thousand_addresses_are_announced_within_the_rate_limit() {
    let network = Network::new();
    let cidrs: Vec<String> =
        (0..2000).map(|n| format!("10.7.{}.{}/32", n / 200, n % 200 + 1)).collect();
    network.hold(&cidrs.iter().map(String::as_str).collect::<Vec<_>>());
    let wire = Wire::tap(&network.peer, "eth0");
    let rate = RateLimit { per_second: 2000, burst: 500 };
    // The rate limit counts from before the first query of the kernel, which takes time too.
    let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let report = network.announce(AnnouncePlan { rate, ..ONCE });
    assert_eq!(report.counts.announcements, 2000);
    wait_for("every address", || (wire.frames().len() >= 4000).then_some(()));
    let times: Vec<Duration> = wire.frames().iter().map(|frame| frame.at).collect();
    for (frames, time) in (1_u32..).zip(&times) {
        // The limit is 2,000 per second after a burst of 500; 50 % more are allowed for a batch that came late.
        let since = time.saturating_sub(first);
        let allowed = 2 * 500 + 2 * 3000 * u32::try_from(since.as_millis() + 20).unwrap() / 1000;
        assert!(frames <= allowed, "{frames} frames after {since:?}");
    }
}

#[test]
fn the_check_finds_another_holder_of_an_address_and_no_other() {
    let network = Network::new();
    network.hold(&["192.0.2.9/24", "2001:db8::9/64", "192.0.2.10/24", "2001:db8::10/64"]);
    let other = network.lab.netns("o");
    network.switch.plug(&other, "eth0", "port-o");
    hold(&other, "eth0", &["192.0.2.9/24", "2001:db8::9/64"]);
    let check = Some(Duration::from_secs(3));
    let report = network.announce(AnnouncePlan { check, ..ONCE });
    let mac = mac_of(&other, "eth0");
    let mut found: Vec<(String, String)> = report
        .duplicates
        .iter()
        .map(|other| (other.ip.to_string(), other.mac.to_string()))
        .collect();
    found.sort();
    let expected = [("192.0.2.9".to_owned(), mac.clone()), ("2001:db8::9".to_owned(), mac)];
    assert_eq!(found, expected, "these two, once each, and no other");
    assert_eq!(report.counts.duplicates, 2);
}

#[test]
fn a_station_that_answers_with_random_macs_is_listed_four_times_and_then_counted() {
    let network = Network::new();
    network.hold(&["192.0.2.9/32"]);
    let wire = Wire::tap(&network.peer, "eth0");
    let link = LinkIndex(network.peer.editor().link("eth0"));
    // The check has a limit of answers, which the neighbour reaches long before this timeout.
    let check = Some(Duration::from_mins(1));
    let (report, sent) = std::thread::scope(|scope| {
        let work = scope.spawn(|| network.announce(AnnouncePlan { check, ..ONCE }));
        wire.wait_for("192.0.2.9", 2);
        let sent = network.peer.visit(|| {
            let port = PacketSocket::open(ReceiveMode::SendOnly).unwrap();
            let mut sent = 0_u32;
            while !work.is_finished() && sent < 1_000_000 {
                sent += 1;
                let [a, b, c, d] = sent.to_be_bytes();
                let frame = gratuitous(
                    Operation::Reply,
                    Mac([2, 0, a, b, c, d]),
                    "192.0.2.9".parse().unwrap(),
                );
                port.send(&[(link, frame)]);
            }
            sent
        });
        (work.join().unwrap(), sent)
    });
    assert!(sent > 4, "{sent}");
    assert_eq!(report.duplicates.len(), 4, "{report:?}");
    assert_eq!(report.counts.duplicates, 4, "{report:?}");
    assert!(report.counts.unlisted_answers > 0, "{report:?}");
}

#[test]
fn another_holder_with_the_same_mac_is_found() {
    let network = Network::new();
    network.hold(&["192.0.2.9/32"]);
    let other = network.lab.netns("o");
    network.switch.plug(&other, "eth0", "port-o");
    // As the port of a Neutron router: the same MAC on every node.
    other.ip("link set eth0 down");
    other.ip(&format!("link set eth0 address {}", network.mac()));
    other.ip("link set eth0 up");
    hold(&other, "eth0", &["192.0.2.9/32"]);
    let wire = Wire::tap(&other, "eth0");
    std::thread::scope(|scope| {
        let check = Some(Duration::from_secs(3));
        let work = scope.spawn(move || network.announce(AnnouncePlan { check, ..ONCE }));
        // Its answer to a probe would go to its own MAC, so it announces the address itself.
        wire.wait_for("192.0.2.9", 2);
        let request = AnnounceRequest {
            netns: Some(other.name().parse().unwrap()),
            which: AddressSelection::All,
            link: None,
            watched: None,
            plan: ONCE,
        };
        announce(&request).unwrap();
        let report = work.join().unwrap();
        assert_eq!(report.duplicates.len(), 1, "{report:?}");
    });
}

#[test]
fn answers_from_other_links_of_the_same_namespace_are_no_duplicates() {
    let network = Network::new();
    network.hold(&["192.0.2.9/32"]);
    network.switch.plug(&network.router, "qr-1", "port-q");
    let check = Some(Duration::from_millis(300));
    let which = AddressSelection::These(vec![ip("192.0.2.9")]);
    let plan = AnnouncePlan { check, ..ONCE };
    let report = announce(&AnnounceRequest { which, ..network.request(plan) }).unwrap();
    assert!(report.duplicates.is_empty(), "{report:?}");
}

#[test]
fn an_error_names_the_namespace_that_does_not_exist() {
    let network = Network::new();
    let netns = Some("no-such-namespace".parse().unwrap());
    let error = announce(&AnnounceRequest { netns, ..network.request(ONCE) }).unwrap_err();
    assert!(matches!(error, AnnounceError::Netns(_)), "{error}");
    assert!(error.to_string().contains("no-such-namespace"));
}
