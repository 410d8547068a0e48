// SPDX-License-Identifier: Apache-2.0
//! Tests of the rules with examples: adverts, processes and roles around one transition.

use super::*;
use crate::cause::{ProcessEnd, ProcessExit, ProcessStart};
use crate::vrrp::VrrpFamily;
use crate::witness::{AdvertOrigin, RoutedAdverts, WitnessedPacket};

const KEY: RouterKey = RouterKey { vrid: 7, family: VrrpFamily::V4 };

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
        witness.observe(WitnessedPacket { bytes: &bytes, origin, at: at(millis) });
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
    processes: ProcessSight,
    witness: Option<LinkWitness>,
    /// At the deadline.
    later: Option<LinkWitness>,
    priority: u8,
    from_since: u64,
    own_address: &'static str,
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
            processes: ProcessSight::Read(running()),
            witness: Some(witness),
            later: None,
            priority: 100,
            from_since: AT - 60_000,
            own_address: "192.0.2.50",
            is_final: false,
        }
    }

    fn gained(witness: LinkWitness) -> Self {
        Self { from: RoleKind::Backup, to: Role::Primary, ..Self::lost(witness) }
    }

    fn answer(&self) -> Option<Cause> {
        let adverts = self.witness.as_ref();
        self.answer_with(adverts.map_or(AdvertSight::NotCaptured, |witness| AdvertSight::Read {
            witness,
            key: KEY,
            later: self.later.as_ref(),
        }))
    }

    fn answer_with(&self, adverts: AdvertSight<'_>) -> Option<Cause> {
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
                version: None,
                interval: None,
                authentication: None,
                addresses: Some([self.own_address.parse().unwrap()].into()),
            },
            configured_priority: Some(self.priority),
            interval: Duration::from_secs(1),
            down_interval: Duration::from_millis(3_600),
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
fn a_stronger_advert_before_the_loss_is_a_preemption() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 2, AT - 2);
    let facts = Facts::lost(witness);
    assert_eq!(facts.kind(), Some(CauseKind::Preempted));
    assert_eq!(facts.text(), "192.0.2.2 (priority 150) preempted this node (priority 100)");
}

#[test]
fn adverts_after_the_loss_are_its_consequence() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT + 600, AT + 600);
    let mut facts = Facts::lost(witness);
    assert_eq!(facts.kind(), None, "keepalived may be about to end");
    facts.is_final = true;
    assert_eq!(facts.kind(), Some(CauseKind::KeepalivedFault));
}

#[test]
fn a_former_primary_that_takes_over_again_after_the_loss_is_its_consequence() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 50, AT - 9_000, AT - 2_200);
    advertise(&mut witness, AdvertOrigin::Foreign, 50, AT + 900, AT + 900);
    let facts = Facts { is_final: true, ..Facts::lost(witness) };
    assert_eq!(facts.kind(), Some(CauseKind::KeepalivedFault));
}

#[test]
fn a_weaker_node_takes_over_only_after_the_own_priority_has_dropped() {
    let mut unseen = witness();
    advertise(&mut unseen, AdvertOrigin::Foreign, 100, AT - 2, AT - 2);
    let facts = Facts { priority: 150, ..Facts::lost(unseen) };
    let expected =
        "the priority of this node dropped from 150, and 192.0.2.2 (priority 100) took over";
    assert_eq!(facts.text(), expected);
    let mut seen = witness();
    advertise(&mut seen, AdvertOrigin::Own, 150, AT - 9_000, AT - 2_000);
    advertise(&mut seen, AdvertOrigin::Own, 40, AT - 1_000, AT - 1_000);
    advertise(&mut seen, AdvertOrigin::Foreign, 100, AT - 2, AT - 2);
    let facts = Facts { priority: 150, ..Facts::lost(seen) };
    let cause = facts.answer().unwrap();
    assert_eq!(cause.kind, CauseKind::PriorityDropped);
    let evidence = cause.evidence;
    assert_eq!((evidence.own_priority, evidence.own_priority_before), (Some(40), Some(150)));
}

#[test]
fn a_node_that_ignored_stronger_adverts_for_long_was_frozen() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 8_000, AT - 500);
    assert_eq!(Facts::lost(witness).kind(), Some(CauseKind::KeepalivedFrozen));
}

#[test]
fn the_end_of_keepalived_is_a_stop_or_a_kill() {
    let ended = |exit| {
        let delay = if matches!(exit, ProcessExit::Signal(_)) { 100 } else { 900 };
        let end = ProcessEnd { pid: 10, at: at(AT + delay), exit };
        let events = KeepalivedEvents { is_running: false, ended: Some(end), ..running() };
        Facts { processes: ProcessSight::Read(events), ..Facts::lost(witness()) }.text()
    };
    assert_eq!(ended(ProcessExit::Code(0)), "keepalived (pid 10) was stopped");
    assert_eq!(ended(ProcessExit::Unknown), "keepalived (pid 10) was stopped");
    assert_eq!(ended(ProcessExit::Code(3)), "keepalived (pid 10) ended with exit code 3");
    assert_eq!(ended(ProcessExit::Signal(9)), "keepalived (pid 10) was killed by SIGKILL");
    assert_eq!(ended(ProcessExit::Signal(7)), "keepalived (pid 10) was killed by signal 7");
    // An end long before explains nothing.
    let end = ProcessEnd { pid: 9, at: at(AT - 60_000), exit: ProcessExit::Signal(9) };
    let events = KeepalivedEvents { ended: Some(end), ..running() };
    let facts = Facts { processes: ProcessSight::Read(events), ..Facts::lost(witness()) };
    assert_eq!(facts.kind(), None);
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
fn a_backup_takes_over_from_a_silent_a_leaving_or_a_weaker_peer() {
    let mut silent = witness();
    advertise(&mut silent, AdvertOrigin::Foreign, 150, AT - 23_600, AT - 3_600);
    let facts = Facts::gained(silent);
    assert_eq!(facts.text(), "192.0.2.2 (priority 150) sent no advert for 3.6 s");
    let mut leaving = witness();
    advertise(&mut leaving, AdvertOrigin::Foreign, 150, AT - 20_600, AT - 1_600);
    advertise(&mut leaving, AdvertOrigin::Foreign, 0, AT - 600, AT - 600);
    let facts = Facts::gained(leaving);
    assert_eq!(facts.text(), "192.0.2.2 handed over (priority 0)");
    let mut weaker = witness();
    advertise(&mut weaker, AdvertOrigin::Foreign, 50, AT - 20_000, AT - 700);
    let facts = Facts::gained(weaker);
    assert_eq!(facts.text(), "this node (priority 100) preempted 192.0.2.2 (priority 50)");
    let mut dropped = witness();
    advertise(&mut dropped, AdvertOrigin::Foreign, 150, AT - 20_000, AT - 2_000);
    advertise(&mut dropped, AdvertOrigin::Foreign, 40, AT - 1_000, AT - 1_000);
    let facts = Facts::gained(dropped);
    assert_eq!(facts.text(), "the priority of 192.0.2.2 dropped from 150 to 40");
}

#[test]
fn a_start_explains_the_loss_of_addresses_that_were_left_behind_only() {
    let lost = |from_since: u64| {
        let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
        let processes = ProcessSight::Read(KeepalivedEvents { started, ..running() });
        let facts = Facts { processes, from_since, ..Facts::lost(witness()) };
        facts.kind()
    };
    assert_eq!(lost(AT - 60_000), Some(CauseKind::KeepalivedStarted));
    assert_eq!(lost(AT - 500), None, "the process itself had taken them");
}

#[test]
fn a_start_explains_no_takeover_from_a_stronger_peer() {
    let started = Some(ProcessStart { pid: 11, at: at(AT - 5_000) });
    let processes = ProcessSight::Read(KeepalivedEvents { started, ..running() });
    let mut dropped = witness();
    advertise(&mut dropped, AdvertOrigin::Foreign, 150, AT - 20_000, AT - 2_000);
    advertise(&mut dropped, AdvertOrigin::Foreign, 40, AT - 1_000, AT - 1_000);
    let facts = Facts { processes, ..Facts::gained(dropped) };
    assert_eq!(facts.kind(), Some(CauseKind::PeerPriorityDropped));
    let mut silent = witness();
    advertise(&mut silent, AdvertOrigin::Foreign, 150, AT - 23_600, AT - 3_600);
    let facts = Facts { processes, ..Facts::gained(silent) };
    assert_eq!(facts.kind(), Some(CauseKind::PeerSilent));
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
fn an_advert_that_arrives_while_the_addresses_are_taken_ends_the_role_at_once() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 9_030, AT - 30);
    let facts = Facts { from_since: AT - 15, ..Facts::lost(witness) };
    assert_eq!(facts.kind(), Some(CauseKind::Preempted));
}

#[test]
fn keepalived_that_gives_up_the_rest_after_one_address_was_removed_by_hand_reacts() {
    let kind = |millis: u64| {
        let previous = PreviousCause { kind: CauseKind::AddressRemoved, at: at(AT - millis) };
        let from = RoleKind::Partial;
        Facts { from, previous: Some(previous), ..Facts::lost(witness()) }.kind()
    };
    assert_eq!(kind(1_000), Some(CauseKind::AddressRemoved));
    assert_eq!(kind(60_000), None);
}

#[test]
fn a_stranger_with_the_same_virtual_router_id_preempts_no_node() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 1, AT - 900, AT - 900);
    let mut facts = Facts::lost(witness);
    assert_eq!(facts.kind(), Some(CauseKind::PriorityDropped), "a peer");
    facts.own_address = "192.0.2.77";
    assert_eq!(facts.kind(), None, "a stranger");
}

#[test]
fn a_start_explains_no_second_takeover() {
    let started = Some(ProcessStart { pid: 11, at: at(AT - 6_000) });
    let processes = ProcessSight::Read(KeepalivedEvents { started, ..running() });
    let facts = Facts { processes, from_since: AT - 200, ..Facts::gained(witness()) };
    assert_eq!(facts.kind(), Some(CauseKind::FaultEnded));
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
fn adverts_that_were_not_read_until_the_deadline_prove_nothing() {
    let facts = Facts::lost(witness());
    let question = |adverts| {
        let own =
            OwnSettings { version: None, interval: None, authentication: None, addresses: None };
        let question = CauseQuestion {
            from: Some(facts.from),
            to: &facts.to,
            direction: ChangeDirection::Lost,
            trigger: facts.trigger,
            at: at(AT),
            from_since: at(0),
            previous: None,
            changer: facts.changer.as_ref(),
            processes: facts.processes,
            adverts,
            own: &own,
            configured_priority: None,
            interval: Duration::from_secs(1),
            down_interval: Duration::from_secs(4),
            is_final: true,
        };
        question.answer().unwrap().evidence.unknown
    };
    assert_eq!(question(AdvertSight::NotRead), Some(UnknownReason::CaptureIncomplete));
    assert_eq!(question(AdvertSight::NotCaptured), Some(UnknownReason::NotCaptured));
}

#[test]
fn the_end_of_an_earlier_process_explains_no_later_loss() {
    let end = ProcessEnd { pid: 9, at: at(AT - 4_000), exit: ProcessExit::Code(0) };
    let events = KeepalivedEvents { ended: Some(end), ..running() };
    let processes = ProcessSight::Read(events);
    let facts = Facts { processes, from_since: AT - 1_000, ..Facts::lost(witness()) };
    assert_eq!(facts.kind(), None);
}

#[test]
fn a_loss_shortly_after_the_capture_began_is_not_known() {
    let mut witness = LinkWitness::new(at(AT - 100));
    witness.follow([(KEY, RoutedAdverts::Refused)]);
    let facts = Facts { is_final: true, ..Facts::lost(witness) };
    let unknown = facts.answer().unwrap().evidence.unknown;
    assert_eq!(unknown, Some(UnknownReason::CaptureIncomplete));
}

#[test]
fn adverts_that_keepalived_ignores_are_named() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 20_000, AT - 500);
    let cause = Facts::gained(witness).answer().unwrap();
    assert_eq!(cause.evidence.unknown, Some(UnknownReason::AdvertsIgnored));
    assert!(cause.to_string().contains("ignores the adverts of 192.0.2.2 (priority 150)"));
}

#[test]
fn a_start_or_a_reload_of_keepalived_comes_before_adverts() {
    let mut weaker = witness();
    advertise(&mut weaker, AdvertOrigin::Foreign, 50, AT - 20_000, AT - 700);
    let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
    let events = KeepalivedEvents { started, ..running() };
    let processes = ProcessSight::Read(events);
    let facts = Facts { processes, ..Facts::gained(weaker.clone()) };
    assert_eq!(facts.text(), "keepalived (pid 11) started 4.0 s before");
    // The first read of the configuration is no reload.
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_900)), ..events };
    let facts = Facts { processes: ProcessSight::Read(events), ..Facts::gained(weaker.clone()) };
    assert_eq!(facts.kind(), Some(CauseKind::KeepalivedStarted));
    let events = KeepalivedEvents { reloaded: Some(at(AT - 200)), ..running() };
    let facts = Facts { processes: ProcessSight::Read(events), ..Facts::gained(weaker) };
    assert_eq!(facts.text(), "the configuration was read again 0.2 s before");
}

#[test]
fn a_reload_hides_no_ipv6_address_that_was_removed_by_hand() {
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_500)), ..running() };
    let processes = ProcessSight::Read(events);
    let lost = || Facts { processes, changer: None, is_final: true, ..Facts::lost(witness()) };
    assert_eq!(lost().answer().unwrap().evidence.unknown, Some(UnknownReason::ProcessNotNamed));
    // Another node took over after the reload.
    let mut stronger = witness();
    advertise(&mut stronger, AdvertOrigin::Foreign, 150, AT - 100, AT - 100);
    let facts = Facts { witness: Some(stronger), ..lost() };
    assert_eq!(facts.kind(), Some(CauseKind::ConfigurationChanged));
    // The kernel names the process that removes an IPv4 address.
    let facts = Facts { changer: Some(AddressChanger::Keepalived), ..lost() };
    assert_eq!(facts.kind(), Some(CauseKind::ConfigurationChanged));
}

#[test]
fn a_reload_hides_no_stop_of_keepalived_that_follows() {
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_000)), ..running() };
    let facts = Facts { processes: ProcessSight::Read(events), ..Facts::lost(witness()) };
    assert_eq!(facts.kind(), None, "keepalived needs a second to end");
    let end = ProcessEnd { pid: 9, at: at(AT + 1_000), exit: ProcessExit::Code(0) };
    let ended = KeepalivedEvents { ended: Some(end), ..events };
    let stopped = Facts { processes: ProcessSight::Read(ended), ..Facts::lost(witness()) };
    assert_eq!(stopped.kind(), Some(CauseKind::KeepalivedStopped));
    let facts = Facts { is_final: true, ..facts };
    assert_eq!(facts.kind(), Some(CauseKind::ConfigurationChanged));
}

#[test]
fn a_weaker_host_beside_a_primary_that_goes_on_is_an_election_and_no_added_address() {
    let mut both = witness();
    advertise(&mut both, AdvertOrigin::Foreign, 150, AT - 20_100, AT - 100);
    let weaker = packet(9, 1);
    let origin = AdvertOrigin::Foreign;
    both.observe(WitnessedPacket { bytes: &weaker, origin, at: at(AT - 500) });
    let mut later = both.clone();
    advertise(&mut later, AdvertOrigin::Foreign, 150, AT + 900, AT + 1_900);
    let facts = Facts { changer: None, later: Some(later), is_final: true, ..Facts::gained(both) };
    assert_eq!(facts.kind(), Some(CauseKind::PreemptedPeer));
}

#[test]
fn a_peer_with_other_addresses_that_goes_on_is_ignored_and_no_sign_of_an_added_address() {
    let mut peer = witness();
    advertise(&mut peer, AdvertOrigin::Foreign, 150, AT - 20_100, AT - 100);
    let mut later = peer.clone();
    advertise(&mut later, AdvertOrigin::Foreign, 150, AT + 900, AT + 1_900);
    let facts = Facts { changer: None, later: Some(later), is_final: true, ..Facts::gained(peer) };
    assert_eq!(facts.kind(), Some(CauseKind::AddressAdded));
    let facts = Facts { own_address: "192.0.2.77", ..facts };
    assert_eq!(facts.answer().unwrap().evidence.unknown, Some(UnknownReason::AdvertsIgnored));
}

#[test]
fn a_node_that_takes_its_addresses_back_has_preempted_no_peer() {
    let mut weaker = witness();
    advertise(&mut weaker, AdvertOrigin::Foreign, 50, AT - 20_200, AT - 2_200);
    let back = Facts { from_since: AT - 400, ..Facts::gained(weaker.clone()) };
    assert_eq!(back.kind(), Some(CauseKind::FaultEnded));
    let mut advertising = weaker;
    advertise(&mut advertising, AdvertOrigin::Foreign, 50, AT - 300, AT - 300);
    let taken = Facts { from_since: AT - 400, ..Facts::gained(advertising) };
    assert_eq!(taken.kind(), Some(CauseKind::PreemptedPeer));
}

#[test]
fn a_priority_that_keepalived_has_not_read_yet_does_not_count() {
    let mut weaker = witness();
    advertise(&mut weaker, AdvertOrigin::Foreign, 120, AT - 20_000, AT - 700);
    let written = Facts { priority: 61, ..Facts::gained(weaker.clone()) };
    assert_eq!(written.kind(), Some(CauseKind::Unknown), "it ignores the stronger peer");
    let events = KeepalivedEvents { is_outdated: true, ..running() };
    let facts = Facts { processes: ProcessSight::Read(events), ..written };
    let cause = facts.answer().unwrap();
    assert_eq!((cause.kind, cause.evidence.own_priority), (CauseKind::PreemptedPeer, None));
}

#[test]
fn a_kill_after_the_loss_is_not_its_cause() {
    let mut stronger = witness();
    advertise(&mut stronger, AdvertOrigin::Foreign, 150, AT - 2, AT - 2);
    let end = ProcessEnd { pid: 9, at: at(AT + 1_500), exit: ProcessExit::Signal(9) };
    let events = KeepalivedEvents { ended: Some(end), ..running() };
    let facts = Facts { processes: ProcessSight::Read(events), ..Facts::lost(stronger) };
    assert_eq!(facts.kind(), Some(CauseKind::Preempted));
}

#[test]
fn a_reload_explains_the_first_change_of_the_role_only() {
    let mut silent = witness();
    advertise(&mut silent, AdvertOrigin::Foreign, 150, AT - 23_600, AT - 3_600);
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_900)), ..running() };
    let processes = ProcessSight::Read(events);
    let gained = |from_since| Facts { processes, from_since, ..Facts::gained(silent.clone()) };
    assert_eq!(gained(AT - 60_000).kind(), Some(CauseKind::ConfigurationChanged));
    assert_eq!(gained(AT - 500).kind(), Some(CauseKind::PeerSilent));
}

#[test]
fn two_nodes_that_start_and_take_over_at_the_same_moment_have_started() {
    let mut stronger = witness();
    advertise(&mut stronger, AdvertOrigin::Foreign, 150, AT - 20, AT - 20);
    let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
    let processes = ProcessSight::Read(KeepalivedEvents { started, ..running() });
    let facts = Facts { processes, ..Facts::gained(stronger.clone()) };
    assert_eq!(facts.kind(), Some(CauseKind::KeepalivedStarted));
    let mut later = witness();
    advertise(&mut later, AdvertOrigin::Foreign, 150, AT + 80, AT + 80);
    let cause = Facts { processes, ..Facts::gained(later) }.answer().unwrap();
    assert_eq!((cause.kind, cause.evidence.peer), (CauseKind::KeepalivedStarted, None));
    // Without a start, both have become able to take over.
    assert_eq!(Facts::gained(stronger).kind(), Some(CauseKind::FaultEnded));
}

#[test]
fn a_peer_that_is_back_at_the_moment_of_the_takeover_was_silent() {
    let mut back = witness();
    advertise(&mut back, AdvertOrigin::Foreign, 150, AT - 30_000, AT - 4_000);
    advertise(&mut back, AdvertOrigin::Foreign, 150, AT - 40, AT - 40);
    let cause = Facts::gained(back).answer().unwrap();
    assert_eq!((cause.kind, cause.evidence.silent_ms), (CauseKind::PeerSilent, None));
    assert_eq!(cause.to_string(), "192.0.2.2 (priority 150) sent no advert for a while");
}

#[test]
fn a_node_that_advertises_beside_a_stronger_one_was_not_frozen() {
    let mut both = witness();
    advertise(&mut both, AdvertOrigin::Own, 150, AT - 20_400, AT - 3_400);
    advertise(&mut both, AdvertOrigin::Own, 80, AT - 2_400, AT - 400);
    advertise(&mut both, AdvertOrigin::Foreign, 120, AT - 2_010, AT - 10);
    let facts = Facts { priority: 150, ..Facts::lost(both) };
    assert_eq!(facts.kind(), Some(CauseKind::PriorityDropped));
}

#[test]
fn a_start_waits_for_the_adverts_which_may_show_that_the_peer_dropped() {
    let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
    let processes = ProcessSight::Read(KeepalivedEvents { started, ..running() });
    let facts = Facts { processes, ..Facts::gained(witness()) };
    assert_eq!(facts.answer_with(AdvertSight::NotRead), None);
    let without = facts.answer_with(AdvertSight::NotCaptured).unwrap();
    assert_eq!(without.kind, CauseKind::KeepalivedStarted);
}

#[test]
fn links_namespaces_and_starts_explain_themselves() {
    let link: crate::LinkName = "eth0".parse().unwrap();
    let kind = |from, to: Role, trigger| {
        Facts { from, to, trigger, ..Facts::lost(witness()) }.kind().unwrap()
    };
    let down = || Role::Fault(Fault::LinkDown(link));
    assert_eq!(kind(RoleKind::Primary, down(), Trigger::Link), CauseKind::LinkLost);
    assert_eq!(kind(RoleKind::Fault, Role::Backup, Trigger::Link), CauseKind::LinkRestored);
    let gone = Role::Fault(Fault::NoNetns);
    assert_eq!(kind(RoleKind::Backup, gone, Trigger::Namespace), CauseKind::NamespaceRemoved);
    let created = kind(RoleKind::Fault, Role::Backup, Trigger::Namespace);
    assert_eq!(created, CauseKind::NamespaceCreated);
    let stopped = kind(RoleKind::Primary, Role::Backup, Trigger::Start);
    assert_eq!(stopped, CauseKind::WhileStopped);
    let config = kind(RoleKind::Primary, Role::Backup, Trigger::Config);
    assert_eq!(config, CauseKind::ConfigurationChanged);
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
    let processes = ProcessSight::NotExamined;
    let not_read = Facts { processes, ..Facts::lost(witness()) };
    assert_eq!(unknown(not_read), Some(UnknownReason::ProcessesNotRead));
    // An overrun between the last advert and the transition: silence proves nothing.
    let mut overrun = witness();
    advertise(&mut overrun, AdvertOrigin::Foreign, 150, AT - 23_600, AT - 3_600);
    overrun.drained(at(AT - 100), 5);
    let cause = Facts::gained(overrun).answer().unwrap();
    assert_eq!(cause.evidence.unknown, Some(UnknownReason::CaptureIncomplete));
    // Without any keepalived, another program has changed the address.
    let processes = ProcessSight::NotFound;
    let by_hand = Facts { processes, changer: None, is_final: true, ..Facts::lost(witness()) };
    assert_eq!(by_hand.kind(), Some(CauseKind::AddressRemoved));
}

#[test]
fn every_kind_and_reason_has_a_word_of_its_own() {
    for kind in CauseKind::ALL {
        assert_eq!(CauseKind::from_word(kind.as_str()), Some(kind));
        assert!(!Cause::new(kind).to_string().is_empty());
    }
    for reason in UnknownReason::ALL {
        assert_eq!(UnknownReason::from_word(reason.as_str()), Some(reason));
        assert!(Cause::unknown(reason).to_string().starts_with("not known: "));
    }
    assert_eq!(CauseKind::from_word("later"), None);
}
