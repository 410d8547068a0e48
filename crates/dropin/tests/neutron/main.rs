//! The monitor under Neutron's own agent code, from PyPI: releases 28 and 29.
//!
//! What counts here is not what was sent but what the agent *applied*: its receiver may
//! swallow a state that follows another too closely. Whatever happens, every router's
//! applied state ends equal to the kernel's.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod receiver;

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::wait::{wait_within, wait_within_showing};
use vipwatch_testkit::{AddressEditor, Lab, MonitorProcess, Release, Router};

use crate::receiver::{Neutron, QueryServer};

/// Agents have seconds of their own: advert intervals, batches, busy interpreters.
const PATIENCE: Duration = Duration::from_mins(1);

/// The program under test.
fn subject() -> PathBuf {
    std::env::var_os("VIPWATCH_SUBJECT")
        .map_or_else(|| env!("CARGO_BIN_EXE_neutron-keepalived-state-change").into(), PathBuf::from)
}

/// Many routers of one agent, each with its monitor.
struct NetnsWatcher {
    _monitors: Vec<MonitorProcess>,
    hands: Vec<(AddressEditor, u32)>,
    routers: Vec<Router>,
}

impl NetnsWatcher {
    fn start(lab: &Lab, count: u32, program: &std::path::Path) -> Self {
        let routers: Vec<_> =
            (1..=count).map(|number| Router::numbered(lab, Release::V29, number)).collect();
        let hands = routers.iter().map(Router::editor).collect();
        let monitors = routers.iter().map(|router| router.start(program)).collect();
        Self { _monitors: monitors, hands, routers }
    }

    /// All of them become primary, or backup, as fast as the kernel goes.
    fn change(&self, is_primary: bool) {
        for ((editor, link), router) in self.hands.iter().zip(&self.routers) {
            let vip = router.cidr.parse().unwrap();
            if is_primary { editor.add(*link, vip) } else { editor.remove(*link, vip) }
        }
    }

    fn all(&self) -> Vec<&Router> {
        self.routers.iter().collect()
    }

    /// How many the agent has applied `word` to, in the end.
    fn applied(&self, desk: &mut QueryServer, word: &str, patience: Duration) -> usize {
        let end = std::time::Instant::now() + patience;
        loop {
            let applied = desk.applied();
            let right = self
                .routers
                .iter()
                .filter(|router| applied.get(&router.id).is_some_and(|held| held == word))
                .count();
            if right == self.routers.len() || std::time::Instant::now() > end {
                return right;
            }
            vipwatch_testkit::pause(Duration::from_millis(50));
        }
    }
}

#[track_caller]
fn wait_until_applied(desk: &mut QueryServer, router: &Router, word: &str) {
    let what = format!("the agent to apply {word}");
    let log = || format!("log of the monitor:\n{}", router.log());
    wait_within_showing(PATIENCE, &what, log, || {
        (desk.applied().get(&router.id).map(String::as_str) == Some(word)).then_some(())
    });
}

fn is_started_found_and_stopped(neutron: Neutron) {
    let lab = Lab::new();
    let router = Router::new(&lab, Release::V29);
    let mut desk = QueryServer::open(&lab, neutron, &subject(), &[&router]);
    desk.ask("enable", &router);
    wait_within(PATIENCE, "the agent to find it active", || {
        (desk.ask("active", &router) == true).then_some(())
    });
    wait_until_applied(&mut desk, &router, "backup");
    router.take_vip();
    wait_until_applied(&mut desk, &router, "primary");
    wait_within(PATIENCE, "neutron-server to hear of it", || {
        (desk.reported().get(&router.id).map(String::as_str) == Some("active")).then_some(())
    });

    let pid = read_pid(&router.pid_file()).unwrap();
    assert_eq!(desk.ask("pid", &router), pid);
    desk.ask("disable", &router);
    assert_eq!(desk.ask("active", &router), false);
    wait_within(PATIENCE, "its end", || (!vipwatch_testkit::monitor::is_alive(pid)).then_some(()));
    wait_within(PATIENCE, "nobody to be left", || router.netns.pids().is_empty().then_some(()));

    // And again, as after a crash: the agent respawns what it does not find.
    desk.ask("enable", &router);
    wait_within(PATIENCE, "the second one", || (desk.ask("active", &router) == true).then_some(()));
    desk.ask("disable", &router);
}

#[test]
fn release_28_starts_finds_and_stops_it() {
    is_started_found_and_stopped(Neutron::V28);
}

#[test]
fn release_29_starts_finds_and_stops_it() {
    is_started_found_and_stopped(Neutron::V29);
}

fn survives_restarts(neutron: Neutron) {
    let lab = Lab::new();
    let router = Router::new(&lab, Release::V29);
    let mut desk = QueryServer::open(&lab, neutron, &subject(), &[&router]);
    let _monitor = router.start(&subject());
    router.take_vip();
    wait_until_applied(&mut desk, &router, "primary");

    // Restarted: it must be told again, because it remembers nothing.
    drop(desk);
    let mut desk = QueryServer::open(&lab, neutron, &subject(), &[&router]);
    wait_until_applied(&mut desk, &router, "primary");

    // Away while things change.
    drop(desk);
    router.drop_vip();
    router.wait_for_state("backup");
    let mut desk = QueryServer::open(&lab, neutron, &subject(), &[&router]);
    wait_until_applied(&mut desk, &router, "backup");
}

#[test]
fn release_28_learns_after_a_restart_what_happened() {
    survives_restarts(Neutron::V28);
}

#[test]
fn release_29_learns_after_a_restart_what_happened() {
    survives_restarts(Neutron::V29);
}

/// Upstream's receiver swallows a backup that follows a repeated primary; a monitor that
/// only sends what changed leaves the agent on primary for good.
fn survives_a_respawn(neutron: Neutron) {
    let lab = Lab::new();
    let router = Router::new(&lab, Release::V29);
    let mut desk = QueryServer::open(&lab, neutron, &subject(), &[&router]);
    for _ in 0..3 {
        router.take_vip();
        let mut monitor = router.start(&subject());
        wait_until_applied(&mut desk, &router, "primary");
        monitor.signal(Signal::KILL);
        monitor.wait_until_gone();
        let monitor = router.start(&subject());
        router.wait_for_state("primary");
        router.drop_vip();
        wait_until_applied(&mut desk, &router, "backup");
        drop(monitor);
    }
}

#[test]
fn release_28_applies_a_change_right_after_a_respawn() {
    survives_a_respawn(Neutron::V28);
}

#[test]
fn release_29_applies_a_change_right_after_a_respawn() {
    survives_a_respawn(Neutron::V29);
}

/// All change at once; returns how many the agent got right.
fn mass_failover(
    neutron: Neutron,
    count: u32,
    program: &std::path::Path,
    patience: Duration,
) -> usize {
    let lab = Lab::new();
    let watcher = NetnsWatcher::start(&lab, count, program);
    let mut desk = QueryServer::open(&lab, neutron, program, &watcher.all());
    watcher.change(true);
    watcher.applied(&mut desk, "primary", patience)
}

#[test]
fn release_28_applies_40_changes_at_once() {
    assert_eq!(mass_failover(Neutron::V28, 40, &subject(), PATIENCE), 40);
}

#[test]
fn release_29_applies_40_changes_at_once() {
    assert_eq!(mass_failover(Neutron::V29, 40, &subject(), PATIENCE), 40);
}

#[test]
fn release_29_applies_300_changes_at_once() {
    assert_eq!(mass_failover(Neutron::V29, 300, &subject(), PATIENCE), 300);
}

/// How many routers the agent got right in the end of each phase.
#[derive(Debug, PartialEq, Eq)]
struct Restart {
    before: usize,
    after: usize,
}

/// All become primary; then all become backup while the agent restarts.
fn mass_failover_during_restart(
    neutron: Neutron,
    count: u32,
    program: &std::path::Path,
    patience: Duration,
) -> Restart {
    let lab = Lab::new();
    let watcher = NetnsWatcher::start(&lab, count, program);
    let mut desk = QueryServer::open(&lab, neutron, program, &watcher.all());
    watcher.change(true);
    let before = watcher.applied(&mut desk, "primary", patience);
    drop(desk);
    watcher.change(false);
    let mut desk = QueryServer::open(&lab, neutron, program, &watcher.all());
    Restart { before, after: watcher.applied(&mut desk, "backup", patience) }
}

#[test]
fn release_28_applies_40_changes_during_its_restart() {
    let right = mass_failover_during_restart(Neutron::V28, 40, &subject(), PATIENCE);
    assert_eq!(right, Restart { before: 40, after: 40 });
}

#[test]
fn release_29_applies_300_changes_during_its_restart() {
    let right = mass_failover_during_restart(Neutron::V29, 300, &subject(), PATIENCE);
    assert_eq!(right, Restart { before: 300, after: 300 });
}

/// The script of 29.0.0 in the same places: without it nobody would know whether these cases
/// are hard.
#[test]
fn the_script_of_29_beside_it() {
    let script = Neutron::V29.home().join("bin/neutron-keepalived-state-change");
    let patience = Duration::from_secs(15);
    let at_once = mass_failover(Neutron::V29, 40, &script, patience);
    let during = mass_failover_during_restart(Neutron::V29, 40, &script, patience);
    println!("the script: {at_once} of 40 at once; of 40 around a restart: {during:?}");
    assert!(at_once < 40 || during.after < 40, "the cases prove nothing");
}
