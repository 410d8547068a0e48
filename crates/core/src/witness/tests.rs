// SPDX-License-Identifier: Apache-2.0
//! Sources, silence, loss and differences, from adverts with known times.

use std::collections::BTreeSet;

use super::*;
use crate::Role;
use crate::vrrp::tests::{V2_IPV6_SIGNED, V2_SIGNED, V3_IPV6, V3_IPV6_SIGNED, V3_SIGNED, bytes};
use crate::vrrp::{VrrpAuthentication, VrrpVersion};

const KEY: RouterKey = RouterKey { vrid: 7, family: VrrpFamily::V4, kind: AdvertKind::Multicast };

/// An IPv4 advert of version 2 without authentication.
#[derive(Clone, Copy)]
struct Sender {
    last_octet: u8,
    vrid: u8,
    priority: u8,
    seconds: u8,
    address: u8,
    ttl: u8,
    destination: [u8; 4],
}

const PEER: Sender = Sender {
    last_octet: 11,
    vrid: 7,
    priority: 100,
    seconds: 1,
    address: 50,
    ttl: 255,
    destination: [224, 0, 0, 18],
};

impl Sender {
    fn packet(self) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 1, 0, 0, self.ttl, 112, 0, 0];
        packet.extend([192, 0, 2, self.last_octet]);
        packet.extend(self.destination);
        packet.extend([0x21, self.vrid, self.priority, 1, 0, self.seconds, 0, 0]);
        packet.extend([192, 0, 2, self.address, 0, 0, 0, 0, 0, 0, 0, 0]);
        set_ip_checksum(&mut packet);
        let check = checksum(&packet[20..40]);
        packet[26..28].copy_from_slice(&check);
        packet
    }
}

fn set_ip_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let check = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&check);
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()).to_be_bytes()
}

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

fn witness() -> LinkWitness {
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(KEY, RoutedAdverts::Refused)]);
    witness
}

fn observe(witness: &mut LinkWitness, sender: Sender, millis: u64) -> Option<RouterKey> {
    observe_from(witness, sender, AdvertOrigin::Foreign, millis)
}

fn observe_from(
    witness: &mut LinkWitness,
    sender: Sender,
    origin: AdvertOrigin,
    millis: u64,
) -> Option<RouterKey> {
    let packet = sender.packet();
    witness.observe(WitnessedPacket {
        bytes: &packet,
        origin,
        at: at(millis),
        clock: Duration::ZERO,
    })
}

fn router(witness: &LinkWitness) -> &RouterWitness {
    witness.router(KEY).unwrap()
}

#[test]
fn the_newest_advert_of_a_peer_has_an_age() {
    let mut witness = witness();
    assert_eq!(observe(&mut witness, PEER, 1_000), Some(KEY));
    assert_eq!(observe(&mut witness, Sender { priority: 90, ..PEER }, 2_000), Some(KEY));
    let peer = router(&witness).last_foreign(at(2_300)).unwrap();
    assert_eq!((peer.record.priority, peer.age), (90, Duration::from_millis(300)));
    assert_eq!(peer.record.previous_priority, Some((100, at(2_000))));
    assert_eq!((peer.record.adverts, peer.record.since), (2, at(1_000)));
    let ip = "192.0.2.11".parse().unwrap();
    assert_eq!(router(&witness).last_of(ip, at(2_300)).unwrap().age, peer.age);
    assert!(router(&witness).last_own(at(2_300)).is_none());
}

#[test]
fn bad_adverts_are_counted_and_change_no_record() {
    let mut witness = witness();
    observe(&mut witness, PEER, 1_000);
    let before = router(&witness).sources().to_vec();
    let mut broken = Sender { priority: 255, ..PEER }.packet();
    broken[26] ^= 1;
    let packet = WitnessedPacket {
        bytes: &broken,
        origin: AdvertOrigin::Foreign,
        at: at(1_500),
        clock: Duration::ZERO,
    };
    assert_eq!(witness.observe(packet), None);
    assert_eq!(observe(&mut witness, Sender { ttl: 254, priority: 255, ..PEER }, 1_600), None);
    let routed = Sender { ttl: 60, destination: [192, 0, 2, 10], priority: 255, ..PEER };
    assert_eq!(observe(&mut witness, routed, 1_700), None);
    assert_eq!(router(&witness).sources(), before);
    let errors: Vec<_> = witness.bad().by_error().collect();
    assert_eq!(errors, [(AdvertError::HopLimit, 1), (AdvertError::Checksum, 1)]);
    assert_eq!((witness.bad().routed, witness.bad().total()), (1, 3));
    assert_eq!(witness.bad().last, Some(LastBadAdvert { at: at(1_700), error: None }));
    let unicast = KEY.of_other_kind();
    witness.follow([(KEY, RoutedAdverts::Refused), (unicast, RoutedAdverts::Accepted)]);
    assert_eq!(observe(&mut witness, routed, 1_800), Some(unicast));
    assert_eq!(witness.router(unicast).unwrap().sources()[0].priority, 255);
    assert_eq!(router(&witness).sources(), before);
}

/// When the advert of version 2 was signed.
const SIGNED_AT: Duration = Duration::from_millis(0x6afd_5704 * 1_000 + 588);

/// An advert of keepalived 2.4.3 with the key id 7.
fn signed() -> Vec<u8> {
    bytes(V2_SIGNED)
}

#[test]
fn a_signed_advert_has_a_key_id_and_a_clock_difference() {
    let mut witness = LinkWitness::new(at(0));
    let key = RouterKey { vrid: 51, ..KEY };
    witness.follow([(key, RoutedAdverts::Refused)]);
    let mut observe = |bytes: &[u8], millis, clock| {
        let origin = AdvertOrigin::Foreign;
        witness.observe(WitnessedPacket { bytes, origin, at: at(millis), clock });
        witness.router(key).unwrap().sources()[0].clone()
    };
    let difference = |record: &SourceRecord| record.signature.unwrap().difference;
    let packet = signed();
    let record = observe(&packet, 1_000, SIGNED_AT + Duration::from_millis(1_200));
    assert_eq!(record.signature.unwrap().key_id, 7);
    assert_eq!((difference(&record).seconds, difference(&record).as_millis()), (1, 1_200));
    let record = observe(&packet, 2_000, SIGNED_AT.saturating_sub(Duration::from_mins(5)));
    assert_eq!((difference(&record).seconds, difference(&record).as_millis()), (-300, -300_000));
    assert_eq!(record.settings_since, at(1_000));
    // After 2^32 seconds the counter begins again.
    let wrapped = SIGNED_AT + Duration::from_secs(1 << 32);
    assert_eq!(difference(&observe(&packet, 3_000, wrapped)).as_millis(), 0);
    let mut other_key = packet.clone();
    other_key[45] = 8;
    assert_eq!(observe(&other_key, 4_000, SIGNED_AT).settings_since, at(4_000));
    let unsigned = Sender { vrid: 51, last_octet: 1, ..PEER }.packet();
    let record = observe(&unsigned, 5_000, SIGNED_AT);
    assert_eq!((record.signature, record.settings_since), (None, at(5_000)));
}

#[test]
fn wrong_trailers_of_many_forged_sources_leave_the_records_as_they_are() {
    let mut witness = LinkWitness::new(at(0));
    let key = RouterKey { vrid: 51, ..KEY };
    witness.follow([(key, RoutedAdverts::Refused)]);
    let mut observe = |bytes: &[u8], millis| {
        let (origin, clock) = (AdvertOrigin::Foreign, SIGNED_AT);
        witness.observe(WitnessedPacket { bytes, origin, at: at(millis), clock })
    };
    let primary = signed();
    for second in 1..=30 {
        assert_eq!(observe(&primary, second * 1_000), Some(key));
        for (number, source) in (2..=250).enumerate() {
            let mut forged = primary.clone();
            forged[15] = source;
            // Type, reserved byte, length, version of VRRP.
            match number % 4 {
                0 => forged[44] = 9,
                1 => forged[46] = 1,
                2 => forged.truncate(71),
                _ => forged[20] = 0x41,
            }
            forged[3] = u8::try_from(forged.len()).unwrap();
            set_ip_checksum(&mut forged);
            assert_eq!(observe(&forged, second * 1_000 + 1), None);
        }
    }
    let router = witness.router(key).unwrap();
    assert_eq!(router.sources().len(), 1);
    assert_eq!((router.sources()[0].adverts, router.is_crowded(at(30_002))), (30, false));
    let undecoded = UndecodedAdverts { count: 30 * 249, last: Some(at(30_001)) };
    assert_eq!(router.undecoded(), undecoded);
    let errors: Vec<_> = witness.bad().by_error().map(|(error, _)| error).collect();
    assert_eq!(errors, [AdvertError::Version, AdvertError::Length, AdvertError::Trailer]);
}

#[test]
fn adverts_of_all_versions_and_families_on_one_link_are_separate_sources() {
    use VrrpVersion::{V2, V3};
    let v4 = RouterKey { vrid: 51, ..KEY };
    let v6 = RouterKey { family: VrrpFamily::V6, ..v4 };
    let other = RouterKey { vrid: 15, ..v6 };
    let keys = [v4, v6, other];
    let mut witness = LinkWitness::new(at(0));
    witness.follow(keys.map(|key| (key, RoutedAdverts::Refused)));
    // Another source than that of version 3.
    let mut v2_signed = signed();
    v2_signed[15] = 3;
    set_ip_checksum(&mut v2_signed);
    let packets = [
        (v4, V2, Some(7), v2_signed),
        (v4, V2, None, Sender { vrid: 51, last_octet: 2, ..PEER }.packet()),
        (v4, V3, Some(7), bytes(V3_SIGNED)),
        (v6, V3, Some(7), bytes(V3_IPV6_SIGNED)),
        (v6, V2, Some(7), bytes(V2_IPV6_SIGNED)),
        (other, V3, None, bytes(V3_IPV6)),
    ];
    let mut observe = |bytes: &[u8], millis| {
        let (origin, clock) = (AdvertOrigin::Foreign, SIGNED_AT);
        witness.observe(WitnessedPacket { bytes, origin, at: at(millis), clock })
    };
    for second in 1..=10 {
        for (number, (key, _, _, packet)) in packets.iter().enumerate() {
            assert_eq!(observe(packet, second * 1_000), Some(*key), "packet {number}");
            for length in 0..packet.len() {
                let cut = observe(&packet[..length], second * 1_000);
                assert_eq!(cut, None, "{length} bytes of packet {number}");
            }
        }
    }
    let found = |key| {
        let sources = witness.router(key).unwrap().sources().iter();
        let facts = sources.map(|record| {
            assert_eq!(record.adverts, 10, "{record:?}");
            (record.version, record.signature.map(|signature| signature.key_id))
        });
        facts.collect::<BTreeSet<_>>()
    };
    for key in keys {
        let sent = packets.iter().filter(|packet| packet.0 == key);
        assert_eq!(found(key), sent.map(|packet| (packet.1, packet.2)).collect());
        assert_eq!(witness.router(key).unwrap().undecoded().count, 0);
    }
    let errors: Vec<_> = witness.bad().by_error().map(|(error, _)| error).collect();
    assert_eq!(errors, [AdvertError::Truncated]);
}

#[test]
fn packets_of_carp_leave_no_silence_open() {
    let mut witness = witness();
    // Version 2, type 1, the virtual host id, and the length of the authentication; a counter and a digest follow.
    let mut carp = PEER.packet()[..20].to_vec();
    carp.extend([0x21, KEY.vrid, 0, 7, 0, 1, 0, 0]);
    carp.extend([0x5a; 28]);
    carp[3] = 56;
    let undecoded = [7, 6].map(|authentication| {
        carp[23] = authentication;
        set_ip_checksum(&mut carp);
        let (origin, clock) = (AdvertOrigin::Foreign, Duration::ZERO);
        let packet = WitnessedPacket { bytes: &carp, origin, at: at(1_000), clock };
        assert_eq!(witness.observe(packet), None);
        router(&witness).undecoded().count
    });
    assert_eq!(undecoded, [0, 1]);
}

#[test]
fn other_virtual_routers_are_counted_only() {
    let mut witness = witness();
    for vrid in (1..=255).filter(|vrid| *vrid != KEY.vrid) {
        for millis in [1, 2] {
            assert_eq!(observe(&mut witness, Sender { vrid, ..PEER }, millis), None);
        }
    }
    assert_eq!((witness.other_adverts(), witness.other_vrids()), (508, 254));
    assert!(router(&witness).sources().is_empty());
    // A virtual router that is followed later begins without a record.
    let other = RouterKey { vrid: 9, ..KEY };
    witness.follow([(KEY, RoutedAdverts::Refused), (other, RoutedAdverts::Refused)]);
    assert!(witness.router(other).unwrap().sources().is_empty());
}

#[test]
fn the_number_of_sources_is_bounded_and_the_oldest_is_replaced() {
    let mut witness = witness();
    for last_octet in 1..=250 {
        observe(&mut witness, Sender { last_octet, ..PEER }, u64::from(last_octet));
    }
    let sources = router(&witness).sources();
    assert_eq!(sources.len(), MAX_SOURCES);
    assert!(sources.iter().all(|record| record.at > at(250 - 9)));
}

#[test]
fn forged_sources_replace_neither_the_own_record_nor_that_of_another_primary() {
    let mut witness = witness();
    let own = Sender { last_octet: 10, ..PEER };
    for second in 1..=60 {
        observe_from(&mut witness, own, AdvertOrigin::Own, second * 1_000);
        observe(&mut witness, PEER, second * 1_000);
        let is_flooded = second > 2;
        for last_octet in (20..=250).filter(|_| is_flooded) {
            let at = second * 1_000 + u64::from(last_octet);
            observe(&mut witness, Sender { last_octet, priority: 1, ..PEER }, at);
        }
        assert_eq!(router(&witness).is_crowded(at(second * 1_000 + 900)), is_flooded, "{second} s");
    }
    let router = router(&witness);
    assert_eq!(router.sources().len(), MAX_SOURCES);
    assert_eq!(router.last_own(at(60_900)).unwrap().record.since, at(1_000));
    let peer = router.last_of("192.0.2.11".parse().unwrap(), at(60_900)).unwrap();
    assert_eq!((peer.record.since, peer.record.adverts), (at(1_000), 60));
    assert!(router.is_crowded(at(120_000)) && !router.is_crowded(at(121_000)));
}

#[test]
fn a_source_that_has_ended_is_replaced_first_and_does_not_crowd_the_others() {
    let mut witness = witness();
    for second in 1..=10 {
        observe(&mut witness, PEER, second * 1_000);
    }
    // Seven short-lived primaries, one after the other, then a new one. The first has the most adverts and ended long ago.
    for (second, last_octet) in (20..).step_by(5).zip(20..=28) {
        observe(&mut witness, Sender { last_octet, ..PEER }, second * 1_000);
    }
    let router = router(&witness);
    assert_eq!(router.sources().len(), MAX_SOURCES);
    assert!(router.last_of("192.0.2.28".parse().unwrap(), at(61_000)).is_some());
    assert!(!router.is_crowded(at(61_000)));
}

#[test]
fn the_master_down_interval_has_a_skew_that_depends_on_the_version() {
    let second = Duration::from_secs(1);
    let of = |version, interval, priority| master_down_interval(version, interval, priority, 3);
    assert_eq!(of(VrrpVersion::V2, second, 128), Duration::from_millis(3_500));
    assert_eq!(of(VrrpVersion::V2, second * 10, 128), Duration::from_millis(30_500));
    assert_eq!(of(VrrpVersion::V3, second / 2, 128), Duration::from_millis(1_750));
    assert_eq!(of(VrrpVersion::V2, second, 0), second * 4);
    assert!(of(VrrpVersion::V3, Duration::from_millis(40_950), 255) > second * 122);
}

#[test]
fn a_source_advertises_until_it_hands_over_or_is_silent() {
    let mut witness = witness();
    observe(&mut witness, PEER, 1_000);
    let count = |witness: &LinkWitness, millis| router(witness).advertising(at(millis)).count();
    assert_eq!(count(&witness, 4_600), 1);
    assert_eq!(count(&witness, 4_700), 0, "3 s and 156/256 s after the advert");
    observe(&mut witness, PEER, 5_000);
    assert_eq!(router(&witness).sources()[0].since, at(5_000), "a new series");
    observe(&mut witness, Sender { priority: 0, ..PEER }, 5_500);
    assert_eq!(count(&witness, 5_501), 0);
}

#[test]
fn own_and_foreign_adverts_with_the_same_address_are_two_sources() {
    let mut witness = witness();
    for second in 0..4 {
        observe_from(&mut witness, PEER, AdvertOrigin::Own, second * 1_000);
        observe_from(&mut witness, PEER, AdvertOrigin::Foreign, second * 1_000 + 1);
    }
    assert_eq!(router(&witness).sources().len(), 2);
    assert!(router(&witness).last_own(at(3_002)).is_some());
}

#[test]
fn a_late_own_advert_is_noticed_before_the_series_ends() {
    let mut witness = witness();
    for second in 0..3 {
        observe_from(&mut witness, PEER, AdvertOrigin::Own, second * 1_000);
    }
    witness.drained(at(3_040), 0);
    let calm = witness.signature(at(3_040));
    assert!(!router(&witness).is_own_late(at(3_040)));
    assert!(router(&witness).is_own_late(at(3_060)));
    assert_eq!(witness.signature(at(3_060)), calm, "the queue may have the advert");
    witness.drained(at(3_060), 0);
    assert_ne!(witness.signature(at(3_060)), calm);
    // A foreign source that is late says nothing about this host.
    let mut foreign = self::witness();
    observe(&mut foreign, PEER, 0);
    assert!(!router(&foreign).is_own_late(at(2_000)));
}

#[test]
fn silence_is_known_only_after_the_master_down_interval_and_without_an_overrun() {
    let expected = Duration::from_millis(3_600);
    let mut witness = witness();
    witness.drained(at(3_000), 0);
    assert_eq!(
        witness.silence(KEY, &OwnSettings::default(), expected, at(3_000)),
        Silence::Unknown
    );
    witness.drained(at(4_000), 0);
    assert_eq!(
        witness.silence(KEY, &OwnSettings::default(), expected, at(4_500)),
        Silence::Silent { time: Duration::from_secs(4), is_probable: false }
    );
    observe(&mut witness, PEER, 5_000);
    witness.drained(at(5_000), 0);
    assert_eq!(
        witness.silence(KEY, &OwnSettings::default(), expected, at(5_500)),
        Silence::Advertised
    );
    witness.drained(at(9_000), 3);
    assert_eq!(witness.overrun().map(|overrun| overrun.total_dropped), Some(3));
    assert_eq!(
        witness.silence(KEY, &OwnSettings::default(), expected, at(9_000)),
        Silence::Unknown
    );
    assert!(witness.is_incomplete_since(at(8_000)) && !witness.is_incomplete_since(at(9_000)));
    witness.drained(at(13_000), 0);
    assert_eq!(
        witness.silence(KEY, &OwnSettings::default(), expected, at(13_000)),
        Silence::Silent { time: Duration::from_secs(4), is_probable: false },
        "it is known again after the overrun"
    );
    // The queue was not read for long: that is no silence of the peer.
    let mut stalled = self::witness();
    observe(&mut stalled, PEER, 1_000);
    stalled.drained(at(1_500), 0);
    assert_eq!(
        stalled.silence(KEY, &OwnSettings::default(), expected, at(60_000)),
        Silence::Unknown
    );
    stalled.restart(at(60_000));
    stalled.drained(at(61_000), 0);
    assert_eq!(
        stalled.silence(KEY, &OwnSettings::default(), expected, at(61_000)),
        Silence::Unknown
    );
}

#[test]
fn missing_adverts_and_jitter_are_measured_within_a_series() {
    let mut witness = witness();
    for millis in [0, 1_000, 2_160, 5_000] {
        observe(&mut witness, PEER, millis);
    }
    let record = router(&witness).sources()[0].clone();
    assert_eq!(record.lost, 2, "between 2.16 s and 5 s");
    assert_eq!(record.jitter, Duration::from_millis(10), "160 ms / 16");
    // A pause that ends the series is no loss, and neither is a gap with an overrun.
    observe(&mut witness, PEER, 60_000);
    witness.drained(at(60_500), 7);
    observe(&mut witness, PEER, 63_000);
    assert_eq!(router(&witness).sources()[0].lost, 2);
}

#[test]
fn the_role_of_an_instance_without_addresses_is_that_of_the_sender_of_its_adverts() {
    let mut witness = witness();
    let role = |witness: &mut LinkWitness, now| {
        witness.drained(at(now), 0);
        witness.role(KEY, &OwnSettings::default(), Duration::from_millis(3_600), at(now))
    };
    let unknown = Some(Role::Unknown(UNHEARD.to_owned()));
    assert_eq!(role(&mut witness, 4_500), None, "an advert may still come");
    assert_eq!(role(&mut witness, 4_600), unknown);
    observe(&mut witness, PEER, 5_000);
    assert_eq!(role(&mut witness, 6_000), Some(Role::Backup));
    let own = Sender { last_octet: 10, priority: 150, ..PEER };
    observe_from(&mut witness, own, AdvertOrigin::Own, 6_100);
    assert_eq!(role(&mut witness, 6_200), Some(Role::Primary), "it preempted the peer");
    observe(&mut witness, PEER, 6_300);
    assert_eq!(role(&mut witness, 7_400), Some(Role::Primary), "both advertise");
    observe(&mut witness, PEER, 7_300);
    assert_eq!(role(&mut witness, 7_700), Some(Role::Backup), "it has stepped back");
    observe(&mut witness, Sender { priority: 0, ..PEER }, 8_000);
    observe_from(&mut witness, Sender { priority: 0, ..own }, AdvertOrigin::Own, 8_000);
    assert_eq!(role(&mut witness, 12_500), None, "the election");
    assert_eq!(role(&mut witness, 12_700), unknown);
    witness.drained(at(13_000), 1);
    assert_eq!(role(&mut witness, 17_500), None, "adverts were lost");
    assert_eq!(role(&mut witness, 17_600), unknown);
}

#[test]
fn a_primary_without_addresses_is_no_backup_while_its_own_adverts_are_lost() {
    let mut witness = witness();
    let own = Sender { last_octet: 10, priority: 150, ..PEER };
    observe_from(&mut witness, own, AdvertOrigin::Own, 1_000);
    // A neighbour floods the queue, and advertises with a low priority.
    for second in 2..20_u64 {
        observe(&mut witness, Sender { priority: 1, ..PEER }, second * 1_000);
        witness.drained(at(second * 1_000 + 500), 900);
        let now = at(second * 1_000 + 500);
        let role = witness.role(KEY, &OwnSettings::default(), Duration::from_millis(3_600), now);
        assert!(matches!(role, None | Some(Role::Primary)), "{second} s: {role:?}");
    }
    for second in 20..25 {
        observe(&mut witness, Sender { priority: 1, ..PEER }, second * 1_000);
        witness.drained(at(second * 1_000 + 500), 0);
    }
    let expected = Duration::from_millis(3_600);
    let role = witness.role(KEY, &OwnSettings::default(), expected, at(24_500));
    assert_eq!(role, Some(Role::Backup), "nothing is lost any more");
}

#[test]
fn a_flood_is_a_series_of_losses_that_lasts() {
    let mut witness = witness();
    witness.drained(at(1_000), 5);
    witness.drained(at(20_000), 5);
    assert!(!witness.is_flooded(at(20_000)), "two losses apart");
    for second in 21..=30 {
        witness.drained(at(second * 1_000), 5);
    }
    assert!(witness.is_flooded(at(30_000)) && witness.is_flooded(at(80_000)));
    assert!(!witness.is_flooded(at(91_000)), "it is over");
}

/// Each loss hides the adverts of a long interval, and there is time between two losses.
#[test]
fn losses_that_come_again_and_again_are_a_flood_too() {
    let mut witness = witness();
    for millis in (1_000..40_000).step_by(10_500) {
        assert!(!witness.is_flooded(at(millis)));
        witness.drained(at(millis), 5);
    }
    assert!(witness.is_flooded(at(40_000)));
}

#[test]
fn an_advert_that_keepalived_drops_is_waited_for_no_longer_than_the_own_interval() {
    let mut witness = witness();
    observe(&mut witness, Sender { seconds: 255, ..PEER }, 1_000);
    let record = &router(&witness).sources()[0];
    let expected = Duration::from_millis(3_600);
    let second = Some(Duration::from_secs(1));
    let version = Some(VrrpVersion::V2);
    let own = |interval, version| OwnSettings { version, interval, ..OwnSettings::default() };
    for version in [VrrpVersion::V2, VrrpVersion::V3] {
        let own = own(second, Some(version));
        assert!(own.waits_for(record, expected, at(4_500)));
        assert!(!own.waits_for(record, expected, at(10_000)), "{version:?}");
    }
    let same = own(Some(Duration::from_secs(255)), version);
    assert!(same.waits_for(record, Duration::from_secs(766), at(10_000)));
    let advertised = record.addresses().collect();
    let own_addresses =
        |addresses| OwnSettings { addresses: Some(addresses), ..own(None, version) };
    assert!(own_addresses(advertised).waits_for(record, expected, at(10_000)));
    let other = ["192.0.2.100", "192.0.2.101"].map(|ip| ip.parse().unwrap());
    assert!(!own_addresses(other.into()).waits_for(record, expected, at(10_000)));
    witness.drained(at(10_000), 0);
    let silence = witness.silence(KEY, &own(second, version), expected, at(10_000));
    assert!(matches!(silence, Silence::Silent { .. }), "{silence:?}");
}

#[test]
fn with_one_down_timer_advert_the_silence_begins_after_one_interval() {
    let mut witness = witness();
    observe(&mut witness, PEER, 1_000);
    witness.drained(at(3_000), 0);
    let interval = Some(Duration::from_secs(1));
    let own = OwnSettings { version: Some(VrrpVersion::V2), interval, ..OwnSettings::default() };
    let silence = |expected| witness.silence(KEY, &own, Duration::from_millis(expected), at(3_000));
    assert!(matches!(silence(1_600), Silence::Silent { .. }));
    assert_eq!(silence(3_600), Silence::Advertised);
}

#[test]
fn settings_that_differ_are_named() {
    let mut witness = witness();
    observe(&mut witness, PEER, 0);
    let record = &router(&witness).sources()[0];
    let mut own = OwnSettings {
        version: Some(record.version),
        interval: Some(record.interval),
        authentication: Some(record.authentication),
        addresses: Some(record.addresses().collect()),
        ..OwnSettings::default()
    };
    assert_eq!(differences(&own, record), [""; 0]);
    own.version = Some(VrrpVersion::V3);
    own.interval = Some(Duration::from_millis(500));
    own.authentication = Some(VrrpAuthentication::Password);
    let ips = ["192.0.2.51", "192.0.2.52", "192.0.2.53", "192.0.2.54"];
    own.addresses = Some(ips.iter().map(|ip| ip.parse().unwrap()).collect::<BTreeSet<_>>());
    assert_eq!(
        differences(&own, record),
        [
            "VRRP version 2 instead of 3",
            "advert interval 1 s instead of 0.5 s",
            "authentication none instead of pass",
            "addresses without 192.0.2.51, 192.0.2.52, 192.0.2.53 and 1 more and with 192.0.2.50",
        ]
    );
    let unknown = OwnSettings::default();
    assert_eq!(differences(&unknown, record), [""; 0]);
}
