// SPDX-License-Identifier: Apache-2.0
//! Tests of the rules with examples: the node has lost its addresses.

use super::*;

#[test]
fn a_stronger_advert_before_the_loss_is_a_preemption() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 2, AT - 2);
    let facts = Facts::lost(witness);
    assert_eq!(facts.kind(), Some(CauseKind::Preempted));
    assert_eq!(facts.text(), "192.0.2.2 (priority 150) preempted this node (priority 100)");
}

#[test]
fn a_node_that_continues_and_hands_over_at_once_has_preempted_this_one() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 20_000, AT - 15_000);
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 4, AT - 4);
    advertise(&mut witness, AdvertOrigin::Foreign, 0, AT - 1, AT - 1);
    let facts = Facts { from_since: AT - 11_000, is_final: true, ..Facts::lost(witness) };
    assert_eq!(facts.kind(), Some(CauseKind::Preempted));
    assert_eq!(facts.text(), "192.0.2.2 (priority 150) preempted this node (priority 100)");
    // It handed over before this node took the addresses.
    let facts = Facts { from_since: AT, ..facts };
    assert_eq!(facts.kind(), Some(CauseKind::KeepalivedFault));
}

#[test]
fn a_role_that_began_after_a_freeze_has_not_ended_because_of_it() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 150, AT - 2, AT - 2);
    let kind = |resumed: u64, from_since| {
        let events = KeepalivedEvents { resumed: Some(at(AT - resumed)), ..running() };
        let processes = ProcessEvidence::Read(events);
        Facts { processes, from_since, ..Facts::lost(witness.clone()) }.kind()
    };
    assert_eq!(kind(300, AT - 60_000), Some(CauseKind::KeepalivedFrozen));
    assert_eq!(kind(300, AT - 200), Some(CauseKind::Preempted));
    assert_eq!(kind(3_000, AT - 60_000), Some(CauseKind::Preempted), "it would have ended at once");
}

#[test]
fn an_owner_that_ignores_adverts_is_preempted_by_no_node() {
    let mut witness = witness();
    advertise(&mut witness, AdvertOrigin::Foreign, 255, AT - 9_000, AT - 2);
    let lost = Facts { ignores_adverts: true, is_final: true, ..Facts::lost(witness.clone()) };
    assert_eq!(lost.kind(), Some(CauseKind::KeepalivedFault));
    let gained = Facts { ignores_adverts: true, is_final: true, ..Facts::gained(witness) };
    assert_eq!(gained.kind(), Some(CauseKind::Unknown));
    assert_eq!(gained.answer().unwrap().evidence.peer, None);
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
        Facts { processes: ProcessEvidence::Read(events), ..Facts::lost(witness()) }.text()
    };
    assert_eq!(ended(ProcessExit::Code(0)), "keepalived (pid 10) was stopped");
    assert_eq!(ended(ProcessExit::Unknown), "keepalived (pid 10) was stopped");
    assert_eq!(ended(ProcessExit::Code(3)), "keepalived (pid 10) ended with exit code 3");
    assert_eq!(ended(ProcessExit::Signal(9)), "keepalived (pid 10) was killed by SIGKILL");
    assert_eq!(ended(ProcessExit::Signal(7)), "keepalived (pid 10) was killed by signal 7");
    // An end long before explains nothing.
    let end = ProcessEnd { pid: 9, at: at(AT - 60_000), exit: ProcessExit::Signal(9) };
    let events = KeepalivedEvents { ended: Some(end), ..running() };
    let facts = Facts { processes: ProcessEvidence::Read(events), ..Facts::lost(witness()) };
    assert_eq!(facts.kind(), None);
}

#[test]
fn a_start_explains_the_loss_of_addresses_that_were_left_behind_only() {
    let lost = |from_since: u64| {
        let started = Some(ProcessStart { pid: 11, at: at(AT - 4_000) });
        let processes = ProcessEvidence::Read(KeepalivedEvents { started, ..running() });
        let facts = Facts { processes, from_since, ..Facts::lost(witness()) };
        facts.kind()
    };
    assert_eq!(lost(AT - 60_000), Some(CauseKind::KeepalivedStarted));
    assert_eq!(lost(AT - 500), None, "the process itself had taken them");
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
fn adverts_that_were_not_read_until_the_deadline_prove_nothing() {
    let facts = Facts::lost(witness());
    let question = |adverts| {
        let own = OwnSettings::default();
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
            startup_delay: Duration::ZERO,
            is_final: true,
        };
        question.answer().unwrap().evidence.unknown
    };
    assert_eq!(question(AdvertEvidence::NotRead), Some(UnknownReason::CaptureIncomplete));
    assert_eq!(question(AdvertEvidence::NotCaptured), Some(UnknownReason::NotCaptured));
}

#[test]
fn the_end_of_an_earlier_process_explains_no_later_loss() {
    let end = ProcessEnd { pid: 9, at: at(AT - 4_000), exit: ProcessExit::Code(0) };
    let events = KeepalivedEvents { ended: Some(end), ..running() };
    let processes = ProcessEvidence::Read(events);
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
fn a_reload_hides_no_ipv6_address_that_was_removed_by_hand() {
    let events = KeepalivedEvents { reloaded: Some(at(AT - 3_500)), ..running() };
    let processes = ProcessEvidence::Read(events);
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
    let facts = Facts { processes: ProcessEvidence::Read(events), ..Facts::lost(witness()) };
    assert_eq!(facts.kind(), None, "keepalived needs a second to end");
    let end = ProcessEnd { pid: 9, at: at(AT + 1_000), exit: ProcessExit::Code(0) };
    let ended = KeepalivedEvents { ended: Some(end), ..events };
    let stopped = Facts { processes: ProcessEvidence::Read(ended), ..Facts::lost(witness()) };
    assert_eq!(stopped.kind(), Some(CauseKind::KeepalivedStopped));
    let facts = Facts { is_final: true, ..facts };
    assert_eq!(facts.kind(), Some(CauseKind::ConfigurationChanged));
}

#[test]
fn a_kill_after_the_loss_is_not_its_cause() {
    let mut stronger = witness();
    advertise(&mut stronger, AdvertOrigin::Foreign, 150, AT - 2, AT - 2);
    let end = ProcessEnd { pid: 9, at: at(AT + 1_500), exit: ProcessExit::Signal(9) };
    let events = KeepalivedEvents { ended: Some(end), ..running() };
    let facts = Facts { processes: ProcessEvidence::Read(events), ..Facts::lost(stronger) };
    assert_eq!(facts.kind(), Some(CauseKind::Preempted));
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
