// SPDX-License-Identifier: Apache-2.0
//! Tests of the rules with examples: the node has got the addresses.

use super::*;

#[test]
fn a_peer_with_adverts_that_cannot_be_decoded_is_not_silent() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 23_600, AT - 3_600);
    let mut future = packet(2, 150);
    future[20] = 0x71;
    let (origin, clock) = (AdvertOrigin::Foreign, Duration::ZERO);
    witness.observe(WitnessedPacket { bytes: &future, origin, at: at(AT - 2_600), clock });
    let text = Facts::gained(witness).text();
    assert!(text.contains("cannot be decoded"), "{text}");
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
fn a_start_explains_no_takeover_from_a_stronger_peer() {
    let started = Some(ProcessStart { pid: 11, at: at(AT - 5_000) });
    let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
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
fn a_start_explains_no_second_takeover() {
    let started = Some(ProcessStart { pid: 11, at: at(AT - 6_000) });
    let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
    let facts = Facts { processes, from_since: AT - 200, ..Facts::gained(witness()) };
    assert_eq!(facts.kind(), Some(CauseKind::FaultEnded));
}

#[test]
fn a_start_after_a_takeover_does_not_explain_it() {
    let started = Some(ProcessStart { pid: 11, at: at(AT + 1_800) });
    let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
    let mut weaker = witness();
    advertise(&mut weaker, AdvertOrigin::Foreign, 50, AT - 20_000, AT - 700);
    let facts = Facts { processes, ..Facts::gained(weaker) };
    assert_eq!(facts.kind(), Some(CauseKind::PreemptedPeer));
}

#[test]
fn a_takeover_after_the_startup_delay_is_an_effect_of_the_start() {
    let started = Some(ProcessStart { pid: 11, at: at(AT - 24_000) });
    let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
    let facts = Facts { processes, ..Facts::gained(witness()) };
    assert_eq!(facts.kind(), Some(CauseKind::FaultEnded));
    let delayed = Facts { startup_delay: Duration::from_secs(20), ..facts };
    assert_eq!(delayed.kind(), Some(CauseKind::KeepalivedStarted));
}

#[test]
fn the_last_step_of_a_later_takeover_is_no_effect_of_the_start() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 50, AT - 20_000, AT - 900);
    let started = Some(ProcessStart { pid: 11, at: at(AT - 3_800) });
    let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
    let previous = |kind| Some(PreviousCause { kind, at: at(AT - 10) });
    let step = |kind| Facts {
        from: RoleKind::Partial,
        from_since: AT - 10,
        previous: previous(kind),
        processes,
        ..Facts::gained(witness.clone())
    };
    let kind = |previous| step(previous).kind();
    assert_eq!(kind(CauseKind::KeepalivedStarted), Some(CauseKind::KeepalivedStarted));
    assert_eq!(kind(CauseKind::PreemptedPeer), Some(CauseKind::PreemptedPeer));
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
fn a_peer_that_takes_over_beside_this_node_from_one_with_other_addresses_was_not_silent() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 30_000, AT - 25_000);
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 2, AT - 2);
    let facts = Facts { is_final: true, ..Facts::gained(witness) };
    assert_eq!(facts.kind(), Some(CauseKind::PeerSilent));
    let facts = Facts { own_address: "192.0.2.77", ..facts };
    assert_eq!(facts.answer().unwrap().evidence.unknown, Some(UnknownReason::AdvertsIgnored));
}

#[test]
fn a_start_or_a_reload_of_keepalived_comes_before_adverts() {
    let mut weaker = witness();
    advertise(&mut weaker, AdvertOrigin::Foreign, 50, AT - 20_000, AT - 700);
    let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
    let events = KeepalivedEvents { started, ..running() };
    let processes = ProcessEvidence::Read(events);
    let facts = Facts { processes, ..Facts::gained(weaker.clone()) };
    assert_eq!(facts.text(), "keepalived (pid 11) started 4.0 s before");
    // The first read of the configuration is no reload.
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_900)), ..events };
    let facts = Facts { processes: ProcessEvidence::Read(events), ..Facts::gained(weaker.clone()) };
    assert_eq!(facts.kind(), Some(CauseKind::KeepalivedStarted));
    let events = KeepalivedEvents { reloaded: Some(at(AT - 200)), ..running() };
    let facts = Facts { processes: ProcessEvidence::Read(events), ..Facts::gained(weaker) };
    assert_eq!(facts.text(), "the configuration was read again 0.2 s before");
}

#[test]
fn a_weaker_host_beside_a_primary_that_goes_on_is_an_election_and_no_added_address() {
    let mut both = witness();
    advertise(&mut both, AdvertOrigin::Foreign, 150, AT - 20_100, AT - 100);
    let weaker = packet(9, 1);
    let origin = AdvertOrigin::Foreign;
    both.observe(WitnessedPacket {
        bytes: &weaker,
        origin,
        at: at(AT - 500),
        clock: Duration::ZERO,
    });
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
    let facts = Facts { processes: ProcessEvidence::Read(events), ..written };
    let cause = facts.answer().unwrap();
    assert_eq!((cause.kind, cause.evidence.own_priority), (CauseKind::PreemptedPeer, None));
}

#[test]
fn a_reload_explains_the_first_change_of_the_role_only() {
    let mut silent = witness();
    advertise(&mut silent, AdvertOrigin::Foreign, 150, AT - 23_600, AT - 3_600);
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_900)), ..running() };
    let processes = ProcessEvidence::Read(events);
    let gained = |from_since| Facts { processes, from_since, ..Facts::gained(silent.clone()) };
    assert_eq!(gained(AT - 60_000).kind(), Some(CauseKind::ConfigurationChanged));
    assert_eq!(gained(AT - 500).kind(), Some(CauseKind::FaultEnded));
}

#[test]
fn a_hand_over_of_the_peer_explains_more_than_a_reload_before() {
    let mut leaving = witness();
    advertise(&mut leaving, AdvertOrigin::Foreign, 150, AT - 20_600, AT - 1_600);
    advertise(&mut leaving, AdvertOrigin::Foreign, 0, AT - 600, AT - 600);
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_700)), ..running() };
    let processes = ProcessEvidence::Read(events);
    let facts = Facts { processes, ..Facts::gained(leaving.clone()) };
    assert_eq!(facts.text(), "192.0.2.2 handed over (priority 0)");
    assert_eq!(
        facts.answer_with(AdvertEvidence::NotRead),
        None,
        "the adverts may show a hand-over"
    );
    let without = facts.answer_with(AdvertEvidence::NotCaptured).unwrap();
    assert_eq!(without.kind, CauseKind::ConfigurationChanged);
    // The node has taken over since then, and its reload changes its addresses.
    let events = KeepalivedEvents { reloaded: Some(at(AT - 100)), ..running() };
    let processes = ProcessEvidence::Read(events);
    let again = Facts { processes, from_since: AT - 200, ..Facts::gained(leaving) };
    assert_eq!(again.kind(), Some(CauseKind::ConfigurationChanged));
}

#[test]
fn with_few_down_timer_adverts_a_peer_is_silent_sooner() {
    for (adverts, silent) in [(1, 1_620), (2, 2_620), (3, 3_620)] {
        let mut witness = witness();
        advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 20_000 - silent, AT - silent);
        let down_interval = Duration::from_millis(600 + adverts * 1_000);
        let facts = Facts { down_interval, ..Facts::gained(witness) };
        assert_eq!(facts.kind(), Some(CauseKind::PeerSilent), "{adverts}");
    }
}

#[test]
fn a_peer_that_was_a_backup_is_not_silent() {
    let mut preempted = witness();
    advertise(&mut preempted, AdvertOrigin::Foreign, 50, AT - 19_900, AT - 9_900);
    // The address was removed by hand, and keepalived took it back.
    let back = Facts { from_since: AT - 400, ..Facts::gained(preempted) };
    assert_eq!(back.kind(), Some(CauseKind::FaultEnded));
    let mut stronger = witness();
    advertise(&mut stronger, AdvertOrigin::Foreign, 150, AT - 3_620, AT - 3_620);
    // The peer preempted this node with its first advert, and then ended.
    let from_since = AT - 3_600;
    let silent = Facts { from_since, ..Facts::gained(stronger) };
    assert_eq!(silent.kind(), Some(CauseKind::PeerSilent));
}

#[test]
fn two_nodes_that_start_and_take_over_at_the_same_moment_have_started() {
    let mut stronger = witness();
    advertise(&mut stronger, AdvertOrigin::Foreign, 150, AT - 20, AT - 20);
    let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
    let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
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
fn a_start_waits_for_the_adverts_which_may_show_that_the_peer_dropped() {
    let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
    let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
    let facts = Facts { processes, ..Facts::gained(witness()) };
    assert_eq!(facts.answer_with(AdvertEvidence::NotRead), None);
    let without = facts.answer_with(AdvertEvidence::NotCaptured).unwrap();
    assert_eq!(without.kind, CauseKind::KeepalivedStarted);
}
