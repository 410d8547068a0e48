// SPDX-License-Identifier: Apache-2.0
//! Hosts that send very many packets or forge their sources.

use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{AdvertSender, Lab, NodeProcess, TestAdvert, wait_for};

use super::{ADVERT, Host, SignedPair, foreign, has_logged, signed, wait_for_finding};
use crate::support::wait_for_role;

/// Two primaries with the finding about them: the keepalived of the first host was killed. A third host is on the link.
struct Split {
    _nodes: [NodeProcess; 2],
    other: Keepalived,
    first: Host,
    _second: Host,
    attacker: Host,
    _switch: BridgeSwitch,
    _lab: Lab,
}

impl Split {
    fn new() -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let [first, second, attacker] =
            [10, 11, 12].map(|number| Host::new(&lab, &switch, "eth0", number));
        let (keepalived, node) = first.start("eth0", 150, "", "192.0.2.100/24");
        wait_for_role(&first.fixture, "VI", "primary");
        let (other, other_node) = second.start("eth0", 100, "", "192.0.2.100/24");
        second.wait_for_adverts("adverts of the primary", |adverts| foreign(adverts).is_some());
        keepalived.kill();
        wait_for_finding(&first.fixture, "audit finding", "two-primaries");
        Self {
            _nodes: [node, other_node],
            other,
            first,
            _second: second,
            attacker,
            _switch: switch,
            _lab: lab,
        }
    }
}

/// The third host forges the sources of its adverts. Their priority is 1, so that keepalived does not give way.
#[test]
fn adverts_with_forged_sources_are_found_and_do_not_end_the_finding_of_two_primaries() {
    let split = Split::new();
    let Split { first, attacker, .. } = &split;
    let mut forged = ADVERT;
    forged[12..15].copy_from_slice(&[198, 51, 100]);
    (forged[22], forged[26], forged[27]) = (1, 0x59, 0x27);
    let mut forge = || {
        for _ in 0..12 {
            forged[15] = forged[15].wrapping_add(1).max(100);
            attacker.netns.send_ipv4(&forged, 1);
        }
    };
    let adverts_of_second = || {
        let adverts = first.adverts();
        let second = adverts.sources.into_iter().find(|source| source.source == "192.0.2.11");
        second.map_or(0, |source| source.adverts)
    };
    forge();
    wait_for_finding(&first.fixture, "audit finding", "too-many-advert-sources");
    let before = adverts_of_second();
    // More than 8 sources between two adverts of the second host, and so few that no advert is lost.
    let mut last = 0;
    wait_for("five more adverts of the second host", || {
        let adverts = adverts_of_second();
        if std::mem::replace(&mut last, adverts) != adverts {
            forge();
        }
        (adverts >= before + 5).then_some(())
    });
    let text = first.fixture.run_text(&["doctor"]);
    assert!(text.contains("192.0.2.11 (priority 100) advertises them too"), "{text}");
    assert!(!has_logged(&first.fixture, "finding is over", "two-primaries"));
}

/// The third host sends packets that fill the queue of the capture again and again, so that adverts are lost.
#[test]
fn findings_about_adverts_stay_while_a_flood_hides_them() {
    let split = Split::new();
    let Split { first, attacker, .. } = &split;
    flood_until_found(first, attacker, |doctor| {
        let state = || first.fixture.run_text(&["show", "VI"]) + &first.fixture.log();
        assert!(doctor.contains("two-primaries"), "{doctor}{}", state());
    });
    assert!(!has_logged(&first.fixture, "finding is over", "two-primaries"));
}

/// Each of the backup's adverts is as expected, so that only the flood itself can lead to the finding.
#[test]
fn a_flood_that_reaches_a_healthy_backup_is_found() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [primary, backup, attacker] =
        [10, 11, 12].map(|number| Host::new(&lab, &switch, "eth0", number));
    let _first = primary.start("eth0", 150, "", "192.0.2.100/24");
    let _second = backup.start("eth0", 100, "", "192.0.2.100/24");
    backup.wait_for_adverts("adverts for longer than new sources are looked at", |adverts| {
        foreign(adverts).is_some_and(|source| source.adverts > 15)
    });
    assert!(!has_logged(&backup.fixture, "audit finding", ""));
    flood_until_found(&backup, &attacker, |_| {});
}

#[test]
fn a_primary_that_advertises_ends_no_primary_during_a_flood() {
    let advert = || TestAdvert { key: None, ..signed() };
    let SignedPair { sender, primary, backup, _node, _switch, _lab } =
        SignedPair::start("", advert());
    backup.wait_for_adverts("adverts", |adverts| foreign(adverts).is_some());
    drop(sender);
    wait_for_finding(&backup.fixture, "audit finding", "no-primary");
    let mut flood = Flood::default();
    wait_for("lost packets", || {
        flood.go_on(&backup, &primary);
        (flood.dropped > 0).then_some(())
    });
    assert!(!has_logged(&backup.fixture, "finding is over", "no-primary"));
    let _sender = AdvertSender::start(&primary.netns, "eth0", advert());
    wait_for("the end of the finding", || {
        flood.go_on(&backup, &primary);
        has_logged(&backup.fixture, "finding is over", "no-primary").then_some(())
    });
}

#[test]
fn packets_that_cannot_be_decoded_keep_no_ended_two_primaries_open() {
    let Split { other, first, attacker, _nodes, _second, _switch, _lab } = Split::new();
    let future = TestAdvert { version: 4, ..signed() };
    let _packets = AdvertSender::start(&attacker.netns, "eth0", future);
    first.wait_for_adverts("undecodable adverts", |adverts| adverts.undecoded > 3);
    other.kill();
    wait_for_finding(&first.fixture, "finding is over", "two-primaries");
}

/// Packets that fill the queue of the capture on a host again and again.
#[derive(Default)]
struct Flood {
    /// The packets that the queue had no place for.
    dropped: u64,
}

impl Flood {
    fn go_on(&mut self, host: &Host, attacker: &Host) {
        let mut junk = ADVERT;
        junk[20] = 0x71;
        let dropped = host.adverts().dropped;
        if std::mem::replace(&mut self.dropped, dropped) == dropped {
            attacker.netns.send_ipv4(&junk, 500);
        }
    }
}

/// Sends until the finding about the flood is there. `check` is called with the output of `doctor`.
fn flood_until_found(host: &Host, attacker: &Host, check: impl Fn(&str)) {
    let mut flood = Flood::default();
    wait_for("the finding about the flood", || {
        flood.go_on(host, attacker);
        let doctor = host.fixture.run_text(&["doctor"]);
        check(&doctor);
        doctor.contains("packets of VRRP arrive on the link faster").then_some(())
    });
}
