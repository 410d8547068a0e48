//! Announcements on a real network: what goes over the wire, and what a peer makes of it.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use vipwatch_core::RateLimit;
use vipwatch_core::announce::AnnounceRefusal;
use vipwatch_core::snapshot::Mac;
use vipwatch_core::{AnnouncePlan, LinkIndex};
use vipwatch_linux::announce::arp::{Operation, gratuitous};
use vipwatch_linux::announce::port::{ClaimFilter, PacketSocket};
use vipwatch_outlets::announce::once::{
    AddressSelection, AnnounceError, AnnounceReport, AnnounceRequest, announce,
};
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::wire::{AnnounceKind, mac_of};
use vipwatch_testkit::{Lab, TestNetns, Wire, wait_for};

/// One round.
const ONCE: AnnouncePlan = AnnouncePlan { count: 1, second_burst: None, ..AnnouncePlan::PRIMARY };

/// A router and a peer on a switch.
struct Stage {
    router: TestNetns,
    peer: TestNetns,
    switch: BridgeSwitch,
    lab: Lab,
}

impl Stage {
    fn new() -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let stage = Self { router: lab.netns("r"), peer: lab.netns("p"), switch, lab };
        stage.switch.plug(&stage.router, "qg-1", "port-r");
        // What the kernel adds by itself, and when its detection of duplicates has ended, is
        // no part of any test.
        stage.router.ip("link set qg-1 addrgenmode none");
        stage.router.ip("-6 address flush dev qg-1");
        stage.switch.plug(&stage.peer, "eth0", "port-p");
        stage.peer.ip("address add 192.0.2.1/24 dev eth0");
        stage.peer.ip("address add 2001:db8::1/64 dev eth0 nodad");
        stage
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
    let link = editor.link(link);
    for cidr in cidrs {
        editor.add(link, cidr.parse::<IpNet>().unwrap());
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Where the peer believes `ip` to be.
fn believed(peer: &TestNetns, ip: &str) -> String {
    vipwatch_testkit::run(peer.command("ip").args(["neigh", "show", ip]))
}

#[test]
fn a_peer_that_just_learned_another_station_learns_ours() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/24", "2001:db8::9/64"]);
    for ip in ["192.0.2.9", "2001:db8::9"] {
        // Fresh: well within the lock time of one second.
        let learned = format!("neigh replace {ip} lladdr 02:00:00:00:00:66 dev eth0 nud reachable");
        stage.peer.ip(&learned);
        assert!(believed(&stage.peer, ip).contains("02:00:00:00:00:66"));
    }
    let report = stage.announce(ONCE);
    let mac = stage.mac();
    for ip in ["192.0.2.9", "2001:db8::9"] {
        wait_for(&format!("the peer to believe that {ip} is at {mac}"), || {
            believed(&stage.peer, ip).contains(&mac).then_some(())
        });
        assert!(report.announced.iter().any(|said| said.ip.to_string() == ip), "{report:?}");
    }
    assert!(report.announced.iter().all(|said| said.mac.to_string() == mac && said.rounds == 1));
}

#[test]
fn each_round_is_on_the_wire_whole_and_they_are_above_the_lock_time_apart() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/24", "2001:db8::9/64"]);
    let wire = Wire::tap(&stage.peer, "eth0");
    let plan = AnnouncePlan { second_burst: None, ..AnnouncePlan::PRIMARY };
    let report = stage.announce(plan);
    let four = wire.wait_for("192.0.2.9", 6);
    let six = wire.wait_for("2001:db8::9", 3);
    let means: Vec<AnnounceKind> = four.iter().map(|(means, _)| *means).collect();
    assert_eq!(means, [AnnounceKind::Request, AnnounceKind::Reply].repeat(3));
    assert_eq!(six.len(), 3);
    let mac = stage.mac();
    assert!(four.iter().chain(&six).all(|(_, frame)| frame.sender() == mac));
    for rounds in [four.iter().step_by(2).collect::<Vec<_>>(), six.iter().collect()] {
        for pair in rounds.windows(2) {
            let apart = pair[1].1.at.saturating_sub(pair[0].1.at);
            // The gap, less what the first batch may have spent on its way to the wire.
            assert!(apart > Duration::from_secs(1), "{apart:?}");
        }
    }
    assert_eq!((report.tally.announcements, report.tally.frames), (6, 9), "{report:?}");
    assert_eq!((report.tally.failed, report.tally.refusals().count()), (0, 0));
}

#[test]
fn a_router_says_that_it_is_one() {
    for (forwarding, flag) in [("0", 0x20), ("1", 0xa0)] {
        let stage = Stage::new();
        stage.hold(&["2001:db8::9/64"]);
        let setting = format!("net.ipv6.conf.all.forwarding={forwarding}");
        vipwatch_testkit::run(stage.router.command("sysctl").args(["-qw", &setting]));
        let wire = Wire::tap(&stage.peer, "eth0");
        stage.announce(ONCE);
        let frame = wire.wait_for("2001:db8::9", 1).remove(0).1;
        assert_eq!(frame.bytes[14 + 40 + 4], flag);
    }
}

#[test]
fn what_is_not_ours_to_announce_is_refused_with_the_reason() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/24", "192.0.2.10/24", "240.0.0.1/32"]);
    for (link, cidr) in
        [("idle", "198.51.100.1/24"), ("dark", "198.51.100.2/24"), ("mute", "198.51.100.3/24")]
    {
        stage.router.add_link(link);
        hold(&stage.router, link, &[cidr]);
    }
    stage.router.ip("link set idle down");
    stage.router.ip("link set darkp down");
    stage.router.ip("link set mute arp off");
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
    let report = announce(&AnnounceRequest { which, ..stage.request(ONCE) }).unwrap();
    let said: Vec<IpAddr> = report.announced.iter().map(|said| said.ip).collect();
    assert_eq!(said, [ip("192.0.2.9")], "what was not asked for is not announced");
    let mut refused: Vec<(String, AnnounceRefusal)> =
        report.refused.iter().map(|(ip, _, reason)| (ip.to_string(), *reason)).collect();
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
fn an_address_that_another_station_has_is_not_announced() {
    let stage = Stage::new();
    stage.router.ip("address add 2001:db8::1/64 dev qg-1");
    wait_for("duplicate address detection to fail", || {
        stage.router.addresses("qg-1").contains("dadfailed").then_some(())
    });
    let which = AddressSelection::These(vec![ip("2001:db8::1")]);
    let report = announce(&AnnounceRequest { which, ..stage.request(ONCE) }).unwrap();
    assert_eq!(report.refused[0].2, AnnounceRefusal::Duplicate, "{report:?}");
    assert!(report.announced.is_empty());
}

#[test]
fn the_watched_link_is_left_out_and_another_may_be_chosen() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/24"]);
    stage.switch.plug(&stage.router, "ha-1", "port-h");
    hold(&stage.router, "ha-1", &["169.254.0.1/24"]);
    let watched = Some("ha-1".parse().unwrap());
    let report = announce(&AnnounceRequest { watched, ..stage.request(ONCE) }).unwrap();
    assert!(report.announced.iter().all(|said| said.link.to_string() == "qg-1"), "{report:?}");
    let link = Some("ha-1".parse().unwrap());
    let report = announce(&AnnounceRequest { link, ..stage.request(ONCE) }).unwrap();
    assert!(report.announced.iter().all(|said| said.link.to_string() == "ha-1"), "{report:?}");
    assert!(report.announced.iter().any(|said| said.ip == ip("169.254.0.1")));
}

#[test]
fn an_address_removed_in_the_middle_is_not_announced_any_more() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/32", "192.0.2.10/32"]);
    let wire = Wire::tap(&stage.peer, "eth0");
    let plan = AnnouncePlan { count: 8, gap: Duration::from_millis(300), ..ONCE };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| stage.announce(plan));
        wire.wait_for("192.0.2.9", 2);
        stage.router.ip("address del 192.0.2.9/32 dev qg-1");
        let report = work.join().unwrap();
        assert_eq!(wire.wait_for("192.0.2.10", 16).len(), 16, "the other one goes on");
        let said = wire.announcements("192.0.2.9").len();
        assert!(said < 16, "{said} frames");
        let counted = report.announced.iter().find(|said| said.ip == ip("192.0.2.9")).unwrap();
        assert_eq!(usize::from(counted.rounds) * 2, said, "{report:?}");
        assert!(report.refused.contains(&(
            ip("192.0.2.9"),
            Some("qg-1".parse().unwrap()),
            AnnounceRefusal::NotHeld
        )));
    });
}

#[test]
fn a_link_deleted_in_the_middle_ends_it() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/24"]);
    let wire = Wire::tap(&stage.peer, "eth0");
    let plan = AnnouncePlan { count: 50, gap: Duration::from_millis(100), ..ONCE };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| stage.announce(plan));
        wire.wait_for("192.0.2.9", 4);
        stage.router.ip("link del qg-1");
        let report = work.join().unwrap();
        let last = report.announced.iter().map(|said| said.rounds).max().unwrap();
        assert!(last < 50, "{report:?}");
        // It may go while it is looked for: first its addresses, or first itself.
        let refusal = &report.refused[0].2;
        assert!(
            matches!(refusal, AnnounceRefusal::NoLink | AnnounceRefusal::NotHeld),
            "{report:?}"
        );
    });
}

#[test]
fn two_thousand_addresses_keep_to_the_rate() {
    let stage = Stage::new();
    let cidrs: Vec<String> =
        (0..2000).map(|n| format!("10.7.{}.{}/32", n / 200, n % 200 + 1)).collect();
    stage.hold(&cidrs.iter().map(String::as_str).collect::<Vec<_>>());
    let wire = Wire::tap(&stage.peer, "eth0");
    let rate = RateLimit { per_second: 2000, burst: 500 };
    // The allowance counts from before the first look, which takes time itself.
    let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let report = stage.announce(AnnouncePlan { rate, ..ONCE });
    assert_eq!(report.tally.announcements, 2000);
    wait_for("every address", || (wire.frames().len() >= 4000).then_some(()));
    let times: Vec<Duration> = wire.frames().iter().map(|frame| frame.at).collect();
    for (frames, time) in (1_u32..).zip(&times) {
        // At 2,000 a second after a burst of 500; half again for a batch that came late.
        let since = time.saturating_sub(first);
        let allowed = 2 * 500 + 2 * 3000 * u32::try_from(since.as_millis() + 20).unwrap() / 1000;
        assert!(frames <= allowed, "{frames} frames after {since:?}");
    }
}

#[test]
fn another_holder_is_found_and_silence_is_good_news() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/24", "2001:db8::9/64", "192.0.2.10/24", "2001:db8::10/64"]);
    let other = stage.lab.netns("o");
    stage.switch.plug(&other, "eth0", "port-o");
    hold(&other, "eth0", &["192.0.2.9/24", "2001:db8::9/64"]);
    let check = Some(Duration::from_secs(3));
    let report = stage.announce(AnnouncePlan { check, ..ONCE });
    let mac = mac_of(&other, "eth0");
    let mut found: Vec<(String, String)> =
        report.duplicates.iter().map(|(ip, _, mac)| (ip.to_string(), mac.to_string())).collect();
    found.sort();
    let expected = [("192.0.2.9".to_owned(), mac.clone()), ("2001:db8::9".to_owned(), mac)];
    assert_eq!(found, expected, "these two, once each, and no other");
    assert_eq!(report.tally.duplicates, 2);
}

#[test]
fn a_neighbour_that_answers_with_random_macs_is_listed_a_few_times_and_counted() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/32"]);
    let wire = Wire::tap(&stage.peer, "eth0");
    let link = LinkIndex(stage.peer.editor().link("eth0"));
    // The flood ends the check long before.
    let check = Some(Duration::from_mins(1));
    let (report, sent) = std::thread::scope(|scope| {
        let work = scope.spawn(|| stage.announce(AnnouncePlan { check, ..ONCE }));
        wire.wait_for("192.0.2.9", 2);
        let sent = stage.peer.visit(|| {
            let port = PacketSocket::open(ClaimFilter::Never).unwrap();
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
    assert_eq!(report.tally.duplicates, 4, "{report:?}");
    assert!(report.tally.unlisted_answers > 0, "{report:?}");
}

#[test]
fn a_holder_with_our_own_mac_is_one_too() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/32"]);
    let other = stage.lab.netns("o");
    stage.switch.plug(&other, "eth0", "port-o");
    // As a Neutron router's port: one MAC on every node.
    other.ip("link set eth0 down");
    other.ip(&format!("link set eth0 address {}", stage.mac()));
    other.ip("link set eth0 up");
    hold(&other, "eth0", &["192.0.2.9/32"]);
    let wire = Wire::tap(&other, "eth0");
    std::thread::scope(|scope| {
        let check = Some(Duration::from_secs(3));
        let work = scope.spawn(move || stage.announce(AnnouncePlan { check, ..ONCE }));
        // Its answer would go to its own MAC; but it speaks up like anybody else.
        wire.wait_for("192.0.2.9", 2);
        let theirs = AnnounceRequest {
            netns: Some(other.name().parse().unwrap()),
            which: AddressSelection::All,
            link: None,
            watched: None,
            plan: ONCE,
        };
        announce(&theirs).unwrap();
        let report = work.join().unwrap();
        assert_eq!(report.duplicates.len(), 1, "{report:?}");
    });
}

#[test]
fn our_own_other_links_in_the_same_network_are_no_duplicates() {
    let stage = Stage::new();
    stage.hold(&["192.0.2.9/32"]);
    stage.switch.plug(&stage.router, "qr-1", "port-q");
    let check = Some(Duration::from_millis(300));
    let which = AddressSelection::These(vec![ip("192.0.2.9")]);
    let plan = AnnouncePlan { check, ..ONCE };
    let report = announce(&AnnounceRequest { which, ..stage.request(plan) }).unwrap();
    assert!(report.duplicates.is_empty(), "{report:?}");
}

#[test]
fn a_namespace_that_does_not_exist_is_named() {
    let stage = Stage::new();
    let netns = Some("no-such-namespace".parse().unwrap());
    let error = announce(&AnnounceRequest { netns, ..stage.request(ONCE) }).unwrap_err();
    assert!(matches!(error, AnnounceError::Netns(_)), "{error}");
    assert!(error.to_string().contains("no-such-namespace"));
}
