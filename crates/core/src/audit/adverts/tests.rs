// SPDX-License-Identifier: Apache-2.0
//! Findings from captured adverts: which evidence leads to which finding.

use std::collections::BTreeSet;

use super::*;
use crate::audit::AuditFacts;
use crate::keepalived::{AuthHmac, AuthHmacMode};
use crate::vrrp::{AdvertKind, VrrpAuthentication, VrrpFamily, VrrpVersion};
use crate::witness::{RoutedAdverts, WitnessedPacket};

const KEY: RouterKey = RouterKey { vrid: 7, family: VrrpFamily::V4, kind: AdvertKind::Multicast };

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

/// An advert of version 2 from 192.0.2.11 with one address, 192.0.2.`address`.
fn packet(priority: u8, address: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 255, 112, 0, 0, 192, 0, 2, 11, 224, 0, 0, 18];
    packet.extend([0x21, 7, priority, 1, 0, 1, 0, 0, 192, 0, 2, address, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (from, to, place) in [(0, 20, 10), (20, 40, 26)] {
        let words = packet[from..to].chunks(2);
        let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let check = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        packet[place..place + 2].copy_from_slice(&check.to_be_bytes());
    }
    packet
}

/// A witness with an advert every second from `first` to `last`, which was read until `drained`.
fn witness(first: u64, last: u64, address: u8, drained: u64) -> LinkWitness {
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(KEY, RoutedAdverts::Refused)]);
    for second in first..=last {
        let bytes = packet(100, address);
        let origin = AdvertOrigin::Foreign;
        witness.observe(WitnessedPacket {
            bytes: &bytes,
            origin,
            at: at(second * 1_000),
            clock: Duration::ZERO,
        });
    }
    witness.drained(at(drained), 0);
    witness
}

fn own() -> OwnSettings {
    OwnSettings {
        version: Some(VrrpVersion::V2),
        interval: Some(Duration::from_secs(1)),
        authentication: Some(VrrpAuthentication::None),
        addresses: Some(BTreeSet::from(["192.0.2.50".parse().unwrap()])),
        ..OwnSettings::default()
    }
}

/// The names of the findings about an instance with this role since `role_since`.
fn names(witness: &LinkWitness, role: &Role, role_since: u64, now: u64) -> Vec<&'static str> {
    let own = &own();
    names_of(&AdvertQuestion { role, role_since: at(role_since), ..question(witness, own, now) })
}

/// A question about a backup that has always been one.
fn question<'a>(witness: &'a LinkWitness, own: &'a OwnSettings, now: u64) -> AdvertQuestion<'a> {
    AdvertQuestion {
        witness,
        key: KEY,
        own,
        priority: Some(100),
        down_interval: Duration::from_millis(3_600),
        role: &Role::Backup,
        role_since: at(0),
        now: at(now),
    }
}

fn names_of(question: &AdvertQuestion<'_>) -> Vec<&'static str> {
    let role = question.role;
    let mut facts = AuditFacts::new(role.clone());
    facts.adverts = Some(AdvertFacts::of(question));
    facts.findings().iter().map(|finding| finding.kind.name()).collect()
}

/// Adverts in each of these seconds, from the host 192.0.2.11 or another one.
fn observe(witness: &mut LinkWitness, bytes: &[u8], seconds: std::ops::RangeInclusive<u64>) {
    for second in seconds {
        let (origin, clock) = (AdvertOrigin::Foreign, Duration::ZERO);
        witness.observe(WitnessedPacket { bytes, origin, at: at(second * 1_000), clock });
        witness.drained(at(second * 1_000), 0);
    }
}

/// The packet from 192.0.2.`source` to the host 192.0.2.10.
fn unicast(mut packet: Vec<u8>, source: u8) -> Vec<u8> {
    packet[15] = source;
    packet[16..20].copy_from_slice(&[192, 0, 2, 10]);
    packet[10..12].fill(0);
    let words = packet[..20].chunks(2);
    let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let check = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}

const UNICAST: RouterKey = RouterKey { kind: AdvertKind::Unicast, ..KEY };

/// The settings of a unicast instance with the peer 192.0.2.11.
fn own_unicast() -> OwnSettings {
    OwnSettings { unicast_peers: [[192, 0, 2, 11].into()].into(), ..own() }
}

#[test]
fn an_advert_that_cannot_be_decoded_is_neither_a_primary_nor_silence() {
    let mut witness = witness(1, 5, 50, 5_000);
    let mut future = packet(100, 50);
    future[20] = 0x71;
    observe(&mut witness, &future, 6..=20);
    let own = own();
    for second in 6..=23 {
        witness.drained(at(second.max(20) * 1_000), 0);
        let silence = witness.silence(KEY, &own, Duration::from_millis(3_600), at(23_500));
        assert_eq!(silence, Silence::Unknown, "{second} s");
    }
    assert_eq!(names(&witness, &Role::Backup, 0, 23_500), [""; 0]);
    assert_eq!(names(&witness, &Role::Primary, 0, 20_500), [""; 0], "no second primary");
    // Three intervals after the last one there is silence, as far as that can be known.
    witness.drained(at(24_700), 0);
    let facts = AdvertFacts::of(&question(&witness, &own, 24_700));
    let finding = facts.findings(false).next().unwrap();
    assert_eq!(finding.kind, FindingKind::NoPrimary);
    let text = "probable: no node has advertised for the master-down interval of 3.6 s, after adverts that cannot be \
                decoded (15 in all)";
    assert_eq!(finding.text, text);
    assert!(finding.hint.contains("could not read the last adverts"), "{}", finding.hint);
    // An advert that is understood counts again.
    observe(&mut witness, &packet(100, 50), 25..=26);
    witness.drained(at(31_000), 0);
    let facts = AdvertFacts::of(&question(&witness, &own, 31_000));
    assert!(facts.findings(false).next().unwrap().text.starts_with("no node has advertised"));
}

#[test]
fn undecodable_adverts_of_another_virtual_router_do_not_hide_a_silence() {
    let mut witness = witness(1, 5, 50, 5_000);
    let mut future = packet(100, 50);
    future[20] = 0x71;
    let mut other_vrid = future.clone();
    other_vrid[21] = 8;
    let mut routed = future.clone();
    routed[8] = 254;
    for packet in [other_vrid, routed, unicast(future, 11), vec![0; 40]] {
        observe(&mut witness, &packet, 6..=20);
    }
    assert_eq!(names(&witness, &Role::Backup, 0, 20_000), ["no-primary"]);
    let facts = AdvertFacts::of(&question(&witness, &own(), 20_000));
    assert_eq!(facts.silence.unwrap().undecoded, 0);
}

#[test]
fn multicast_adverts_of_another_service_with_the_vrid_are_no_matter_of_a_unicast_instance() {
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(UNICAST, RoutedAdverts::Accepted)]);
    let own = own_unicast();
    let names = |witness: &LinkWitness, now| {
        names_of(&AdvertQuestion { key: UNICAST, ..question(witness, &own, now) })
    };
    // The peer and the other service, then the other service alone.
    for second in 1..=10 {
        observe(&mut witness, &packet(100, 99), second..=second);
        observe(&mut witness, &unicast(packet(100, 50), 11), second..=second);
    }
    assert_eq!(names(&witness, 10_500), [""; 0]);
    observe(&mut witness, &packet(100, 99), 11..=20);
    assert_eq!(names(&witness, 20_000), ["no-primary"]);
    // A host with the addresses of the instance is a second primary, however it advertises.
    observe(&mut witness, &packet(100, 50), 21..=30);
    let role = &Role::Primary;
    let question = AdvertQuestion { key: UNICAST, role, ..question(&witness, &own, 30_000) };
    assert_eq!(names_of(&question), ["two-primaries"]);
}

#[test]
fn unicast_adverts_of_another_service_with_the_vrid_are_no_matter_of_a_multicast_instance() {
    let mut witness = witness(1, 5, 50, 5_000);
    observe(&mut witness, &unicast(packet(100, 99), 12), 1..=20);
    assert_eq!(names(&witness, &Role::Backup, 0, 20_000), ["no-primary"]);
}

#[test]
fn each_of_two_unicast_instances_with_one_vrid_has_its_own_peers() {
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(UNICAST, RoutedAdverts::Accepted)]);
    observe(&mut witness, &unicast(packet(100, 99), 12), 1..=10);
    let own = own_unicast();
    let ask = |witness: &LinkWitness| {
        names_of(&AdvertQuestion { key: UNICAST, ..question(witness, &own, 10_000) })
    };
    assert_eq!(ask(&witness), ["no-primary"], "the peer of the other instance advertises");
    // A peer with other addresses is a clash. A host that is not in the list, but has the addresses, is a primary.
    observe(&mut witness, &unicast(packet(100, 99), 11), 1..=10);
    assert_eq!(ask(&witness), ["vrid-clash-on-link"]);
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(UNICAST, RoutedAdverts::Accepted)]);
    observe(&mut witness, &unicast(packet(100, 50), 13), 1..=10);
    assert_eq!(ask(&witness), [""; 0]);
}

/// Adverts of keepalived 2.4.3 with VRID 51, two addresses and the key id 7, signed at `SIGNED_AT`.
const SIGNED: &str = "45c0004800010000ff701871c0000201e0000012213396020001c4b2c000020ac000020b0000000000000000010700006afd570496a100001dcb04ed48aa913777cd95a19efe66dc";
const SIGNED_AT: u64 = 0x6afd_5704;

/// The finding about adverts that were signed `offset` seconds before they are received.
fn rejected(auth_hmac: Option<AuthHmac>, is_signed: bool, offset: i64) -> Option<String> {
    let byte = |at: usize| u8::from_str_radix(&SIGNED[at..at + 2], 16).unwrap();
    let mut bytes: Vec<u8> = (0..SIGNED.len()).step_by(2).map(byte).collect();
    if !is_signed {
        bytes.truncate(44);
        // The length is 28 less, and the checksum 28 more.
        (bytes[3], bytes[11]) = (0x2c, 0x8d);
    }
    let key = RouterKey { vrid: 51, ..KEY };
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(key, RoutedAdverts::Refused)]);
    let clock = Duration::from_secs(SIGNED_AT.saturating_add_signed(offset));
    for second in 1..=5 {
        let (bytes, origin) = (&bytes, AdvertOrigin::Foreign);
        witness.observe(WitnessedPacket { bytes, origin, at: at(second * 1_000), clock });
    }
    witness.drained(at(5_500), 0);
    let addresses = ["192.0.2.10", "192.0.2.11"].map(|text| text.parse().unwrap());
    let auth_hmac = auth_hmac.map(Box::new);
    let own = OwnSettings { addresses: Some(addresses.into()), auth_hmac, ..own() };
    let question = AdvertQuestion { key, ..question(&witness, &own, 5_500) };
    let silence = witness.silence(key, &own, question.down_interval, at(5_500));
    assert_eq!(silence, Silence::Advertised, "a dropped advert is no silence");
    let facts = AdvertFacts::of(&question);
    let mut findings = facts.findings(false).map(|finding| (finding.kind, finding.text));
    let first = findings.next();
    assert_eq!(findings.next(), None);
    first.map(|(kind, text)| {
        assert_eq!((kind, facts.kinds()), (FindingKind::AdvertRejected, 1 << 7));
        let start = "keepalived here does not accept the adverts of 192.0.2.1 (priority 150): ";
        text.strip_prefix(start).unwrap().to_owned()
    })
}

#[test]
fn adverts_are_rejected_exactly_where_the_own_keepalived_drops_them() {
    use AuthHmacMode::{Enforce, Permissive, ReceiveOnly};
    let block = |mode, key_ids: &[u8], window: Option<u64>| AuthHmac {
        mode,
        key_ids: key_ids.into(),
        active_key: key_ids[0],
        time_window: window.map(Duration::from_secs),
    };
    let with = |mode| Some(block(mode, &[1, 7], Some(5)));
    // Migration: everything that each mode accepts.
    for (mode, is_signed) in [
        (Enforce, true),
        (Permissive, true),
        (Permissive, false),
        (ReceiveOnly, true),
        (ReceiveOnly, false),
    ] {
        assert_eq!(rejected(with(mode), is_signed, 0), None, "{mode:?}, signed: {is_signed}");
    }
    assert_eq!(rejected(None, false, 0), None);
    let text = |auth_hmac, is_signed, offset| rejected(auth_hmac, is_signed, offset).unwrap();
    assert!(text(None, true, 0).contains("the instance has no `auth_hmac`"));
    assert!(
        text(with(Enforce), false, 0).contains("not signed, and `auth_hmac` has the mode enforce")
    );
    for mode in [Enforce, Permissive, ReceiveOnly] {
        assert!(text(Some(block(mode, &[1, 8], Some(5))), true, 0).contains("signed with key 7"));
        for offset in [5, -5] {
            assert_eq!(rejected(with(mode), true, offset), None, "{offset} s");
        }
        assert!(
            text(with(mode), true, 6).contains("clock is behind this node's by more than the 5 s")
        );
        assert!(
            text(with(mode), true, -6)
                .contains("clock is ahead of this node's by more than the 5 s")
        );
        // `anti_replay monotonic`
        assert_eq!(rejected(Some(block(mode, &[7], None)), true, 100_000), None);
    }
}

#[test]
fn a_backup_with_an_advertising_primary_has_no_finding() {
    let witness = witness(1, 20, 50, 20_500);
    assert_eq!(names(&witness, &Role::Backup, 0, 20_500), [""; 0]);
}

#[test]
fn two_primaries_are_found_only_after_an_election() {
    let mut witness = witness(1, 20, 50, 20_500);
    assert_eq!(names(&witness, &Role::Primary, 0, 20_500), ["two-primaries"]);
    assert_eq!(
        names(&witness, &Role::Partial { held: 1, total: 2 }, 0, 20_500)[1],
        "two-primaries"
    );
    // This node became primary 1.5 s before the last advert of the other one.
    assert_eq!(names(&witness, &Role::Primary, 18_500, 20_500), [""; 0]);
    // The other host has stopped.
    witness.drained(at(25_000), 0);
    assert_eq!(names(&witness, &Role::Primary, 0, 25_000), [""; 0]);
}

#[test]
fn a_source_with_a_short_interval_does_not_end_between_two_reads_of_the_queue() {
    // The master-down interval of 3.6 s has passed now, but not when the queue was read.
    let witness = witness(1, 20, 77, 23_500);
    assert_eq!(names(&witness, &Role::Primary, 0, 24_400), ["vrid-clash-on-link"]);
    let silence = witness.silence(KEY, &own(), Duration::from_millis(3_600), at(24_400));
    assert_eq!(silence, Silence::Advertised);
    // The queue was not read for long.
    assert_eq!(names(&witness, &Role::Primary, 0, 60_000), [""; 0]);
}

#[test]
fn settings_of_a_source_that_yielded_to_this_node_are_not_compared() {
    let witness = witness(1, 20, 50, 22_500);
    let own = OwnSettings { interval: Some(Duration::from_secs(2)), ..own() };
    let differs = |role: &Role, role_since| {
        let question = AdvertQuestion {
            witness: &witness,
            key: KEY,
            own: &own,
            priority: Some(100),
            down_interval: Duration::from_millis(3_600),
            role,
            role_since: at(role_since),
            now: at(22_500),
        };
        AdvertFacts::of(&question).differing.is_some()
    };
    assert!(!differs(&Role::Primary, 20_500));
    assert!(differs(&Role::Primary, 10_000), "it advertised beside this node");
    assert!(differs(&Role::Backup, 20_500));
}

#[test]
fn an_owner_that_ignores_adverts_has_a_second_primary_and_no_other_finding_about_them() {
    let witness = witness(1, 20, 50, 20_500);
    let interval = Some(Duration::from_secs(2));
    let names = |ignores_adverts| {
        let own = OwnSettings { interval, ignores_adverts, ..own() };
        let role = &Role::Primary;
        names_of(&AdvertQuestion { role, ..question(&witness, &own, 20_500) })
    };
    assert_eq!(names(false), ["two-primaries", "peer-configuration-differs"]);
    assert_eq!(names(true), ["two-primaries"]);
}

#[test]
fn a_backup_without_adverts_has_no_primary() {
    let witness = witness(1, 5, 50, 9_000);
    assert_eq!(names(&witness, &Role::Backup, 0, 9_000), [""; 0], "4 s after the last advert");
    let mut witness = witness;
    witness.drained(at(10_000), 0);
    assert_eq!(names(&witness, &Role::Backup, 0, 10_000), ["no-primary"]);
    assert_eq!(names(&witness, &Role::Primary, 0, 10_000), [""; 0]);
    assert_eq!(names(&witness, &Role::Backup, 8_000, 10_000), [""; 0], "it was primary until 8 s");
    witness.drained(at(11_000), 1);
    assert_eq!(names(&witness, &Role::Backup, 0, 11_000), [""; 0], "adverts were lost");
}

#[test]
fn adverts_without_an_address_are_no_primary_of_an_instance_that_has_one() {
    let mut witness = witness(1, 5, 50, 5_000);
    let mut empty = packet(100, 50);
    empty[23] = 0;
    empty.drain(28..32);
    empty[3] = 36;
    empty[10..12].fill(0);
    empty[26..28].fill(0);
    for (from, to, place) in [(0, 20, 10), (20, 36, 26)] {
        let words = empty[from..to].chunks(2);
        let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let check = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        empty[place..place + 2].copy_from_slice(&check.to_be_bytes());
    }
    observe(&mut witness, &empty, 6..=6);
    // keepalived waits for the master-down interval after the last advert that it accepted.
    assert_eq!(names(&witness, &Role::Backup, 0, 7_000), ["peer-configuration-differs"]);
    observe(&mut witness, &empty, 7..=20);
    assert_eq!(witness.bad().total(), 0);
    let backup = names(&witness, &Role::Backup, 0, 20_000);
    assert_eq!(backup, ["no-primary", "peer-configuration-differs"]);
    let primary = names(&witness, &Role::Primary, 0, 20_000);
    assert_eq!(primary, ["peer-configuration-differs"]);
}

#[test]
fn many_sources_of_the_other_kind_may_hide_a_second_primary_too() {
    let mut witness = witness(1, 1, 50, 1_000);
    for source in 20..32 {
        observe(&mut witness, &unicast(packet(100, 99), source), 2..=2);
    }
    assert_eq!(names(&witness, &Role::Primary, 0, 2_000), ["too-many-advert-sources"]);
}

#[test]
fn adverts_that_are_lost_for_long_are_found() {
    let mut witness = witness(1, 1, 50, 1_000);
    for second in 2..=30 {
        witness.drained(at(second * 1_000), 100);
    }
    let facts = AdvertFacts::of(&question(&witness, &own(), 30_000));
    let finding = facts.findings(false).next().unwrap();
    assert_eq!(finding.kind, FindingKind::TooManyAdvertSources);
    assert!(finding.text.starts_with("packets of VRRP arrive"), "{}", finding.text);
}

#[test]
fn a_host_with_other_addresses_is_a_stranger() {
    let witness = witness(1, 20, 99, 20_500);
    for role in [Role::Primary, Role::Backup] {
        assert_eq!(names(&witness, &role, 0, 20_500), ["vrid-clash-on-link"]);
    }
}

#[test]
fn settings_of_a_peer_that_differ_are_found() {
    let witness = witness(1, 20, 50, 20_500);
    let mut own = own();
    own.interval = Some(Duration::from_secs(2));
    own.authentication = Some(VrrpAuthentication::Password);
    let question = AdvertQuestion {
        witness: &witness,
        key: KEY,
        own: &own,
        priority: Some(100),
        down_interval: Duration::from_secs(7),
        role: &Role::Backup,
        role_since: at(0),
        now: at(20_500),
    };
    let facts = AdvertFacts::of(&question);
    assert_eq!(facts.kinds(), 8);
    let texts: Vec<String> = facts.findings(false).map(|finding| finding.text).collect();
    assert_eq!(
        texts,
        [
            "192.0.2.11 (priority 100) advertises with advert interval 1 s instead of 2 s, authentication none instead of pass"
        ]
    );
}

#[test]
fn adverts_of_the_primary_that_are_missing_are_found_until_the_loss_ends() {
    let mut witness = witness(1, 20, 50, 20_500);
    // Each second advert is missing.
    for second in [22, 24, 26] {
        let bytes = packet(100, 50);
        let origin = AdvertOrigin::Foreign;
        witness.observe(WitnessedPacket {
            bytes: &bytes,
            origin,
            at: at(second * 1_000),
            clock: Duration::ZERO,
        });
    }
    witness.drained(at(26_500), 0);
    assert_eq!(names(&witness, &Role::Backup, 0, 26_500), ["adverts-lost"]);
    let own = own();
    let question = AdvertQuestion {
        witness: &witness,
        key: KEY,
        own: &own,
        priority: None,
        down_interval: Duration::from_millis(3_600),
        role: &Role::Backup,
        role_since: at(0),
        now: at(26_500),
    };
    let facts = AdvertFacts::of(&question);
    assert_eq!(facts.kinds(), 16);
    let text = "3 of 25 adverts of 192.0.2.11 (priority 100) within the last 60 s are missing";
    assert_eq!(facts.findings(false).next().unwrap().text, text);
    let mut overrun = witness.clone();
    overrun.drained(at(27_000), 1);
    assert_eq!(names(&overrun, &Role::Backup, 0, 27_000), [""; 0], "the capture lost adverts");
    for second in 27..=60 {
        let bytes = packet(100, 50);
        let origin = AdvertOrigin::Foreign;
        witness.observe(WitnessedPacket {
            bytes: &bytes,
            origin,
            at: at(second * 1_000),
            clock: Duration::ZERO,
        });
    }
    witness.drained(at(60_500), 0);
    assert_eq!(names(&witness, &Role::Backup, 0, 60_500), [""; 0], "the loss has ended");
}

#[test]
fn irregular_adverts_have_the_severity_info() {
    let mut witness = witness(1, 1, 50, 1_500);
    let mut time = 1_000;
    for step in 0..80 {
        time += if step % 2 == 0 { 1_450 } else { 550 };
        let bytes = packet(100, 50);
        let origin = AdvertOrigin::Foreign;
        witness.observe(WitnessedPacket {
            bytes: &bytes,
            origin,
            at: at(time),
            clock: Duration::ZERO,
        });
    }
    witness.drained(at(time + 100), 0);
    assert_eq!(names(&witness, &Role::Backup, 0, time + 100), ["adverts-lost"]);
}

#[test]
fn own_adverts_with_a_lower_priority_are_a_fact_after_an_interval() {
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(KEY, RoutedAdverts::Refused)]);
    let own = own();
    let mut lowered = |second: u64, priority| {
        let bytes = packet(priority, 50);
        let origin = AdvertOrigin::Own;
        witness.observe(WitnessedPacket {
            bytes: &bytes,
            origin,
            at: at(second * 1_000),
            clock: Duration::ZERO,
        });
        let question = AdvertQuestion {
            witness: &witness,
            key: KEY,
            own: &own,
            priority: Some(150),
            down_interval: Duration::from_millis(3_600),
            role: &Role::Primary,
            role_since: at(0),
            now: at(second * 1_000),
        };
        AdvertFacts::of(&question).lowered.is_some()
    };
    let expected =
        [(1, 150, false), (2, 100, false), (3, 100, false), (4, 100, true), (5, 150, false)];
    for (second, priority, is_lowered) in expected {
        assert_eq!(lowered(second, priority), is_lowered, "{second} s");
    }
}
