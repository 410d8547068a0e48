// SPDX-License-Identifier: Apache-2.0
//! Tests of the rules with examples: adverts, processes and roles around one transition. [`lost`] and [`gained`] have the
//! tests of one direction, this file those of both.

use strum::VariantArray;

use super::*;
use crate::cause::{ProcessEnd, ProcessExit, ProcessStart};
use crate::vrrp::{AdvertKind, VrrpFamily};
use crate::witness::{AdvertOrigin, RoutedAdverts, WitnessedPacket};

mod gained;
mod lost;

const KEY: RouterKey = RouterKey { vrid: 7, family: VrrpFamily::V4, kind: AdvertKind::Multicast };

/// The transitions of these tests happen at this time.
const AT: u64 = 100_000;

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

/// An advert of version 2 with an interval of one second.
fn packet(last_octet: u8, priority: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 255, 112, 0, 0];
    packet.extend([192, 0, 2, last_octet, 224, 0, 0, 18]);
    packet.extend([0x21, KEY.vrid, priority, 1, 0, 1, 0, 0]);
    packet.extend([192, 0, 2, 50, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (from, to, at) in [(0, 20, 10), (20, 40, 26)] {
        let words = packet[from..to].chunks(2);
        let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let check = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        packet[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }
    packet
}

fn witness() -> LinkWitness {
    let mut witness = LinkWitness::new(at(0));
    witness.follow([(KEY, RoutedAdverts::Refused)]);
    witness
}

/// Adverts of one source, one in each second, the last one at `last`.
fn advertise(witness: &mut LinkWitness, origin: AdvertOrigin, priority: u8, first: u64, last: u64) {
    let octet = if origin == AdvertOrigin::Own { 1 } else { 2 };
    let bytes = packet(octet, priority);
    let mut millis = first;
    while millis <= last {
        witness.observe(WitnessedPacket {
            bytes: &bytes,
            origin,
            at: at(millis),
            clock: Duration::ZERO,
        });
        millis += 1_000;
    }
}

/// A keepalived that has been running for long.
fn running() -> KeepalivedEvents {
    let started = Some(ProcessStart { pid: 10, at: at(1) });
    KeepalivedEvents { is_running: true, started, ..KeepalivedEvents::default() }
}

struct Facts {
    from: RoleKind,
    to: Role,
    trigger: Trigger,
    previous: Option<PreviousCause>,
    changer: Option<AddressChanger>,
    processes: ProcessEvidence,
    witness: Option<LinkWitness>,
    /// At the deadline.
    later: Option<LinkWitness>,
    priority: u8,
    from_since: u64,
    startup_delay: Duration,
    down_interval: Duration,
    own_address: &'static str,
    ignores_adverts: bool,
    is_final: bool,
}

impl Facts {
    fn lost(witness: LinkWitness) -> Self {
        Self {
            from: RoleKind::Primary,
            to: Role::Backup,
            trigger: Trigger::Address,
            previous: None,
            changer: Some(AddressChanger::Keepalived),
            processes: ProcessEvidence::Read(running()),
            witness: Some(witness),
            later: None,
            priority: 100,
            from_since: AT - 60_000,
            startup_delay: Duration::ZERO,
            down_interval: Duration::from_millis(3_600),
            own_address: "192.0.2.50",
            ignores_adverts: false,
            is_final: false,
        }
    }

    fn gained(witness: LinkWitness) -> Self {
        Self { from: RoleKind::Backup, to: Role::Primary, ..Self::lost(witness) }
    }

    fn answer(&self) -> Option<Cause> {
        let adverts = self.witness.as_ref();
        self.answer_with(adverts.map_or(AdvertEvidence::NotCaptured, |witness| {
            AdvertEvidence::Read { witness, key: KEY, later: self.later.as_ref() }
        }))
    }

    fn answer_with(&self, adverts: AdvertEvidence<'_>) -> Option<Cause> {
        CauseQuestion {
            from: Some(self.from),
            to: &self.to,
            direction: ChangeDirection::of(Some(self.from), None, &self.to),
            trigger: self.trigger,
            at: at(AT),
            from_since: at(self.from_since),
            previous: self.previous,
            changer: self.changer.as_ref(),
            processes: self.processes,
            adverts,
            own: &OwnSettings {
                addresses: Some([self.own_address.parse().unwrap()].into()),
                ignores_adverts: self.ignores_adverts,
                ..OwnSettings::default()
            },
            configured_priority: Some(self.priority),
            interval: Duration::from_secs(1),
            down_interval: self.down_interval,
            startup_delay: self.startup_delay,
            is_final: self.is_final,
        }
        .answer()
    }

    fn kind(&self) -> Option<CauseKind> {
        self.answer().map(|cause| cause.kind)
    }

    fn text(&self) -> String {
        self.answer().map(|cause| cause.to_string()).unwrap_or_default()
    }
}

#[test]
fn an_address_that_another_process_changed_is_named_with_the_process() {
    let other =
        |pid, program: Option<&str>| AddressChanger::Other { pid, program: program.map(Box::from) };
    let mut facts = Facts::lost(witness());
    facts.changer = Some(other(Some(33), Some("ip")));
    assert_eq!(facts.text(), "ip (pid 33) removed an address");
    let mut facts = Facts::gained(witness());
    facts.changer = Some(other(None, None));
    assert_eq!(facts.text(), "a process that is not keepalived added an address");
}

#[test]
fn an_ipv6_address_that_was_added_by_hand_is_known_by_a_peer_that_goes_on() {
    let mut peer = witness();
    advertise(&mut peer, AdvertOrigin::Foreign, 50, AT - 20_500, AT - 500);
    let mut later = peer.clone();
    let facts = Facts { changer: None, ..Facts::gained(peer.clone()) };
    assert_eq!(facts.kind(), None, "the peer may stop");
    let stopped = Facts { later: Some(later.clone()), ..facts };
    assert_eq!(stopped.kind(), Some(CauseKind::PreemptedPeer));
    advertise(&mut later, AdvertOrigin::Foreign, 50, AT + 500, AT + 1_500);
    let goes_on = Facts { later: Some(later), ..stopped };
    assert_eq!(goes_on.kind(), Some(CauseKind::AddressAdded));
    // Its removal has nothing to do with the stronger peer that has advertised all the time.
    let mut stronger = witness();
    advertise(&mut stronger, AdvertOrigin::Foreign, 150, AT - 20_500, AT - 500);
    let previous = PreviousCause { kind: CauseKind::AddressAdded, at: at(AT - 9_000) };
    let previous = Some(previous);
    let removed = Facts { changer: None, previous, ..Facts::lost(stronger) };
    assert_eq!(removed.kind(), Some(CauseKind::AddressRemoved));
}

#[test]
fn a_step_from_partial_to_partial_with_fewer_addresses_is_a_loss() {
    let direction = |before, held| {
        let to = Role::Partial { held, total: 19 };
        ChangeDirection::of(Some(RoleKind::Partial), Some(before), &to)
    };
    assert_eq!(direction(18, 10), ChangeDirection::Lost);
    assert_eq!(direction(10, 18), ChangeDirection::Gained);
}

#[test]
fn without_evidence_the_deadline_says_why_the_cause_is_not_known() {
    let unknown = |facts: Facts| {
        assert_eq!(facts.kind(), None, "before the deadline");
        Facts { is_final: true, ..facts }.answer().unwrap().evidence.unknown
    };
    let not_captured = Facts { witness: None, ..Facts::lost(witness()) };
    assert_eq!(unknown(not_captured), Some(UnknownReason::NotCaptured));
    let not_captured = Facts { witness: None, ..Facts::gained(witness()) };
    assert_eq!(unknown(not_captured), Some(UnknownReason::NotCaptured));
    let processes = ProcessEvidence::NotExamined;
    let not_read = Facts { processes, ..Facts::lost(witness()) };
    assert_eq!(unknown(not_read), Some(UnknownReason::ProcessesNotRead));
    // An overrun between the last advert and the transition: silence proves nothing.
    let mut overrun = witness();
    advertise(&mut overrun, AdvertOrigin::Foreign, 150, AT - 23_600, AT - 3_600);
    overrun.drained(at(AT - 100), 5);
    let cause = Facts::gained(overrun).answer().unwrap();
    assert_eq!(cause.evidence.unknown, Some(UnknownReason::CaptureIncomplete));
    // Without any keepalived, another program has changed the address.
    let processes = ProcessEvidence::NotFound;
    let by_hand = Facts { processes, changer: None, is_final: true, ..Facts::lost(witness()) };
    assert_eq!(by_hand.kind(), Some(CauseKind::AddressRemoved));
}

#[test]
fn every_kind_and_reason_has_a_word_of_its_own() {
    for &kind in CauseKind::VARIANTS {
        assert_eq!(kind.as_str().parse(), Ok(kind));
        assert!(!Cause::new(kind).to_string().is_empty());
    }
    for &reason in UnknownReason::VARIANTS {
        assert_eq!(reason.to_string().parse(), Ok(reason));
        assert!(Cause::unknown(reason).to_string().starts_with("not known: "));
    }
    assert!("later".parse::<CauseKind>().is_err());
}
