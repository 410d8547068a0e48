// SPDX-License-Identifier: Apache-2.0
//! Recordings that are written by hand: 100 seconds with three nodes, node 0 primary; a fault from 30 s to 50 s.

use super::*;
use crate::check::cluster::facts::{HostFacts, KnownPeriod, SimulatedLife};
use crate::check::cluster::published::PublishTimes;
use crate::check::cluster::reach::{NodeBreak, UnstablePeriod};
use crate::check::periods::ActPeriod;
use crate::check::recording::RecordedRun;
use crate::check::recording::examples::{node, run};
use crate::setup::ClusterTimes;

fn span(start: i64, end: i64, value: &'static str) -> Span<&'static str> {
    Span { start: start * SECOND, end: end * SECOND, value }
}

/// Facts without a fault.
pub fn facts() -> RecordedFacts {
    RecordedFacts {
        run: RecordedRun {
            end: 100 * SECOND,
            nodes: vec![node("primary"), node("backup"), node("backup")],
            ..run()
        },
        times: ClusterTimes {
            heartbeat: SECOND,
            lease: 3 * SECOND,
            settle: 2 * SECOND,
            slow_settle: 4 * SECOND,
            audit: 10 * SECOND,
        },
        min_backups: 1,
        hosts: vec![HostFacts::default(), HostFacts::default(), HostFacts::default()],
        simulated: Vec::new(),
        unstable: Vec::new(),
        lost_members: Vec::new(),
        reporters: vec![(0, Some(2))],
    }
}

/// A node cannot reach etcd in this period, in seconds.
pub fn broken(from: i64, to: i64) -> NodeBreak {
    let (from, to) = (from * SECOND, to * SECOND);
    let period = ActPeriod { from, done: from, heal: to, to };
    NodeBreak { period, is_orderly: false, is_network: true }
}

/// Node 1 is primary too, from 30 s to 50 s.
fn two_primaries() -> RecordedFacts {
    let mut facts = facts();
    facts.run.nodes[1].timeline.roles =
        vec![vec![span(-10, 30, "backup"), span(30, 50, "primary"), span(50, 100, "backup")]];
    facts
}

/// A node cannot reach etcd from 30 s to 50 s.
fn cut_off(node: usize) -> RecordedFacts {
    let mut facts = facts();
    facts.hosts[node].breaks = vec![broken(30, 50)];
    facts
}

/// The kinds of failure for findings of one name and subject that are open in these periods, in seconds.
fn failures(
    facts: &RecordedFacts,
    name: &str,
    subject: &str,
    periods: &[(f64, Option<f64>)],
) -> Vec<&'static str> {
    #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
    let micros = |seconds: f64| (seconds * 1_000_000.0) as Micros;
    let findings: Vec<FindingSpan> = periods
        .iter()
        .map(|(open, close)| FindingSpan {
            id: format!("{open}"),
            subject: subject.to_owned(),
            name: name.to_owned(),
            open: micros(*open),
            close: close.map(micros),
            text: String::new(),
        })
        .collect();
    let published = Published { facts, times: PublishTimes::EXACT };
    let mut verdict = RunVerdict::default();
    judge(&published, &published, &findings, Strictness::Deadlines, &mut verdict);
    verdict.failures.iter().map(|failure| failure.kind).collect()
}

const GROUP: &str = "VI_1";
const TWO: &str = "cluster-two-primaries";
const LOST: &str = "cluster-node-lost";

#[test]
fn a_run_without_faults_needs_no_finding() {
    assert_eq!(failures(&facts(), TWO, GROUP, &[]), [""; 0]);
}

#[test]
fn two_primaries_are_reported_between_their_settling_and_the_deadline() {
    let facts = two_primaries();
    assert_eq!(failures(&facts, TWO, GROUP, &[(33.5, Some(50.5))]), [""; 0]);
    assert_eq!(failures(&facts, TWO, GROUP, &[]), ["finding-missing"]);
    assert_eq!(failures(&facts, TWO, GROUP, &[(31.0, Some(50.5))]), ["finding-without-fault"]);
    assert_eq!(failures(&facts, TWO, GROUP, &[(45.0, Some(50.5))]), ["finding-late"]);
    assert_eq!(failures(&facts, TWO, GROUP, &[(33.5, Some(60.0))]), ["finding-not-closed"]);
    assert_eq!(failures(&facts, TWO, GROUP, &[(33.5, None)]), ["finding-not-closed"]);
    assert_eq!(failures(&facts, TWO, GROUP, &[(33.5, Some(40.0))]), ["finding-closed-early"]);
}

#[test]
fn a_finding_about_another_subject_or_with_another_name_is_without_reason() {
    let facts = two_primaries();
    let other = failures(&facts, TWO, "node 1", &[(33.5, Some(50.5))]);
    assert_eq!(other, ["finding-without-fault", "finding-missing"]);
    let name = failures(&facts, "cluster-ambiguous-group", GROUP, &[(33.5, Some(50.5))]);
    assert_eq!(name, ["finding-without-fault", "finding-missing"]);
}

#[test]
fn the_claim_of_a_node_without_etcd_is_no_second_primary() {
    let mut facts = cut_off(1);
    facts.run.nodes[1].timeline.roles = two_primaries().run.nodes[1].timeline.roles.clone();
    let node = "node 1";
    assert_eq!(failures(&facts, LOST, node, &[(36.0, Some(51.0))]), [""; 0]);
    let two = failures(&facts, TWO, GROUP, &[(40.0, Some(50.5))]);
    assert_eq!(two, ["finding-without-fault", "finding-missing"]);
}

#[test]
fn a_lost_node_is_reported_after_its_lease() {
    let (facts, node) = (cut_off(1), "node 1");
    assert_eq!(failures(&facts, LOST, node, &[(35.5, Some(52.0))]), [""; 0]);
    assert_eq!(failures(&facts, LOST, node, &[(31.0, Some(52.0))]), ["finding-without-fault"]);
    assert_eq!(failures(&facts, LOST, node, &[]), ["finding-missing"]);
    assert_eq!(failures(&facts, LOST, node, &[(35.5, Some(70.0))]), ["finding-not-closed"]);
}

#[test]
fn a_lost_reporter_puts_off_the_deadline() {
    let (facts, node) = (cut_off(2), "node 2");
    assert_eq!(failures(&facts, LOST, node, &[(43.0, Some(52.0))]), [""; 0]);
    assert_eq!(failures(&facts, LOST, node, &[(49.0, Some(52.0))]), ["finding-late"]);
}

#[test]
fn nothing_is_required_without_a_quorum() {
    let mut facts = two_primaries();
    let period = |from: i64, to: i64| UnstablePeriod {
        from: from * SECOND,
        to: to * SECOND,
        is_quorum_lost: true,
    };
    facts.unstable = vec![period(28, 48)];
    assert_eq!(failures(&facts, TWO, GROUP, &[]), [""; 0]);
    facts.unstable = vec![period(10, 20)];
    assert_eq!(failures(&facts, TWO, GROUP, &[]), ["finding-missing"]);
}

#[test]
fn no_primary_needs_all_nodes() {
    let mut facts = facts();
    facts.run.nodes[0].timeline.roles =
        vec![vec![span(-10, 30, "primary"), span(30, 50, "backup"), span(50, 100, "primary")]];
    let name = "cluster-no-primary";
    assert_eq!(failures(&facts, name, GROUP, &[(36.5, Some(50.5))]), [""; 0]);
    assert_eq!(failures(&facts, name, GROUP, &[(33.0, Some(50.5))]), ["finding-without-fault"]);
    assert_eq!(failures(&facts, name, GROUP, &[]), ["finding-missing"]);
}

#[test]
fn few_backups_depend_on_the_setting() {
    let mut facts = cut_off(1);
    let name = "cluster-too-few-backups";
    let node = "node 1";
    assert_eq!(failures(&facts, LOST, node, &[(35.5, Some(52.0))]), [""; 0]);
    facts.min_backups = 2;
    let missing = failures(&facts, LOST, node, &[(35.5, Some(52.0))]);
    assert_eq!(missing, ["finding-missing"]);
    let both = failures(&facts, name, GROUP, &[(38.5, Some(51.0))]);
    assert_eq!(both, ["finding-missing"], "the lost node has no finding");
}

/// From 30 s to 50 s.
fn period() -> ActPeriod {
    let (from, heal) = (30 * SECOND, 50 * SECOND);
    ActPeriod { from, done: from, heal, to: heal }
}

const AMBIGUOUS: &str = "cluster-ambiguous-group";

#[test]
fn a_node_with_two_instances_makes_its_group_ambiguous() {
    let mut facts = two_primaries();
    let (begin, stop) = (25 * SECOND, 60 * SECOND);
    facts.simulated = vec![SimulatedLife {
        begin,
        ready: begin,
        role: "backup",
        is_twice: true,
        silent: None,
        stop,
        gone: stop,
    }];
    assert_eq!(failures(&facts, AMBIGUOUS, GROUP, &[(27.5, Some(61.0))]), [""; 0]);
    assert_eq!(failures(&facts, AMBIGUOUS, GROUP, &[]), ["finding-missing"]);
    assert_eq!(
        failures(&facts, AMBIGUOUS, GROUP, &[(26.0, Some(61.0))]),
        ["finding-without-fault"]
    );
    let other = failures(&facts, TWO, GROUP, &[(33.5, Some(50.5))]);
    assert_eq!(other, ["finding-without-fault", "finding-missing"], "it has no other finding");
}

#[test]
fn a_group_that_one_node_has_is_ambiguous_and_so_is_the_other_part() {
    let mut facts = facts();
    facts.hosts[0].grouped = vec![period()];
    let configured = "group lab";
    let one = failures(&facts, AMBIGUOUS, GROUP, &[(34.0, Some(51.0))]);
    assert_eq!(one, ["finding-missing"], "that of the configured group");
    let other = failures(&facts, AMBIGUOUS, configured, &[(34.0, Some(51.0))]);
    assert_eq!(other, ["finding-missing"]);
    facts.hosts.iter_mut().for_each(|host| host.grouped = vec![period()]);
    let all = failures(&facts, AMBIGUOUS, configured, &[(36.0, Some(51.0))]);
    assert_eq!(all, ["finding-without-fault"], "all nodes have the same group");
}

#[test]
fn a_state_file_that_differs_is_reported_after_the_audit() {
    let mut facts = facts();
    facts.min_backups = 0;
    let exists = ActPeriod { from: 20 * SECOND, done: 20 * SECOND, ..period() };
    facts.hosts[1].routers = vec![ActPeriod { heal: 90 * SECOND, to: 90 * SECOND, ..exists }];
    facts.hosts[1].differs = vec![period()];
    let router = "router 5d3c1f6e-0000-4000-8000-000000000001";
    let name = "cluster-disagreement";
    assert_eq!(failures(&facts, name, router, &[(34.5, Some(51.0))]), [""; 0]);
    assert_eq!(failures(&facts, name, router, &[(47.0, Some(60.0))]), [""; 0]);
    assert_eq!(failures(&facts, name, router, &[(49.0, Some(60.0))]), ["finding-late"]);
    assert_eq!(failures(&facts, name, router, &[(31.0, Some(51.0))]), ["finding-without-fault"]);
    assert_eq!(failures(&facts, name, router, &[(47.0, Some(70.0))]), ["finding-not-closed"]);
    assert_eq!(failures(&facts, name, router, &[]), ["finding-missing"]);
}

#[test]
fn a_lost_primary_is_no_primary_if_no_backup_receives_adverts() {
    let name = "cluster-no-primary";
    let mut facts = cut_off(0);
    facts.min_backups = 0;
    let lost = |facts: &RecordedFacts, periods: &[(f64, Option<f64>)]| {
        let mut kinds = failures(facts, name, GROUP, periods);
        kinds.pop_if(|kind| *kind == "finding-missing").expect("the lost node has no finding");
        kinds
    };
    assert_eq!(lost(&facts, &[]), [""; 0]);
    assert_eq!(lost(&facts, &[(45.0, Some(50.5))]), ["finding-without-fault"], "it may advertise");
    let silent = KnownPeriod {
        possible: 33 * SECOND,
        certain: 37 * SECOND,
        end: 50 * SECOND,
        gone: 53 * SECOND,
    };
    facts.hosts[1].silences = vec![vec![silent]];
    assert_eq!(lost(&facts, &[]), [""; 0]);
    let open = lost(&facts, &[(43.5, Some(51.0))]);
    assert_eq!(open, ["finding-without-fault"], "node 2 receives adverts");
    facts.hosts[2].silences = vec![vec![silent]];
    assert_eq!(lost(&facts, &[(43.5, Some(51.0))]), [""; 0]);
    assert_eq!(lost(&facts, &[]), ["finding-missing"]);
    assert_eq!(lost(&facts, &[(47.0, Some(51.0))]), ["finding-late"]);
}
