// SPDX-License-Identifier: Apache-2.0
//! When the adverts of another host show the end of a split.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::Moment;
use crate::vrrp::{AdvertKind, VrrpFamily};
use crate::witness::{LinkWitness, OwnSettings, RoutedAdverts, RouterKey, WitnessedPacket};

const KEY: RouterKey = RouterKey { vrid: 7, family: VrrpFamily::V4, kind: AdvertKind::Multicast };

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

/// An advert of version 2 from 192.0.2.11 with the address 192.0.2.`address`.
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

/// One instance with the address 192.0.2.50 that is primary since second 100, and the adverts on its link.
struct Case {
    witness: LinkWitness,
    watch: SplitWatch,
}

impl Case {
    fn new() -> Self {
        let mut witness = LinkWitness::new(at(0));
        witness.follow([(KEY, RoutedAdverts::Refused)]);
        Self { witness, watch: SplitWatch::default() }
    }

    fn advert(&mut self, priority: u8, address: u8, millis: u64) {
        let bytes = packet(priority, address);
        let packet = WitnessedPacket {
            bytes: &bytes,
            origin: AdvertOrigin::Foreign,
            at: at(millis),
            clock: Duration::ZERO,
        };
        self.witness.observe(packet).unwrap();
    }

    fn has_ended(&mut self, role: &Role, role_number: i64, millis: u64) -> bool {
        self.witness.drained(at(millis), 0);
        let addresses = Some(BTreeSet::from(["192.0.2.50".parse().unwrap()]));
        let own = OwnSettings { addresses, ..OwnSettings::default() };
        let question = AdvertQuestion {
            witness: &self.witness,
            key: KEY,
            priority: None,
            own: &own,
            down_interval: Duration::from_millis(3_600),
            role,
            role_since: at(100_000),
            now: at(millis),
        };
        self.watch.has_ended(&question, role_number)
    }
}

#[test]
fn a_host_that_advertised_beside_the_primary_and_stopped_ends_a_split_once() {
    let mut case = Case::new();
    case.advert(90, 50, 200_000);
    assert!(!case.has_ended(&Role::Primary, 1, 200_500));
    assert!(!case.has_ended(&Role::Primary, 1, 203_000), "the host may advertise again");
    assert!(case.watch.has_other_primary());
    assert!(case.has_ended(&Role::Primary, 1, 204_000));
    assert!(!case.has_ended(&Role::Primary, 1, 205_000));
    case.advert(90, 50, 210_000);
    assert!(!case.has_ended(&Role::Primary, 1, 210_500));
    case.advert(0, 50, 211_000);
    assert!(case.has_ended(&Role::Primary, 1, 211_500), "the host has handed over");
}

#[test]
fn adverts_of_the_election_and_of_another_service_are_no_split() {
    let mut case = Case::new();
    case.advert(90, 50, 101_900);
    assert!(!case.has_ended(&Role::Primary, 1, 102_000));
    assert!(!case.has_ended(&Role::Primary, 1, 110_000));
    case.advert(90, 77, 200_000);
    assert!(!case.has_ended(&Role::Primary, 1, 200_500));
    assert!(!case.has_ended(&Role::Primary, 1, 210_000));
}

#[test]
fn the_loser_of_a_split_is_no_survivor() {
    let mut case = Case::new();
    case.advert(90, 50, 200_000);
    assert!(!case.has_ended(&Role::Primary, 1, 200_500));
    assert!(!case.has_ended(&Role::Backup, 2, 201_000));
    assert!(!case.has_ended(&Role::Primary, 3, 210_000), "primary again, by another role");
}

#[test]
fn after_lost_packets_the_end_is_known_one_master_down_interval_later() {
    let mut case = Case::new();
    case.advert(90, 50, 200_000);
    assert!(!case.has_ended(&Role::Primary, 1, 200_500));
    case.witness.drained(at(203_000), 0);
    case.witness.drained(at(204_000), 9);
    assert!(!case.has_ended(&Role::Primary, 1, 204_100));
    assert!(case.has_ended(&Role::Primary, 1, 207_800));
}
