// SPDX-License-Identifier: Apache-2.0
//! The monitor with Neutron's own agent code from PyPI: releases 28 and 29.
//!
//! The tests check the states that the agent *applied*, not those that were sent: the agent may
//! drop a state that follows another too closely. In every test the applied state of each router
//! must at the end be equal to the state in the kernel.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::neutron::{Neutron, NeutronAgent};
use vipwatch_testkit::wait::{wait_within, wait_within_showing};
use vipwatch_testkit::{AddressEditor, Lab, MonitorProcess, Release, Router};

/// Maximum time until the agent applies a state. The agent waits for an advert interval and collects batches, and its
/// interpreter may be busy.
const APPLY_TIMEOUT: Duration = Duration::from_mins(1);

/// The program under test.
fn subject() -> PathBuf {
    std::env::var_os("VIPWATCH_SUBJECT")
        .map_or_else(|| env!("CARGO_BIN_EXE_neutron-keepalived-state-change").into(), PathBuf::from)
}

/// Many routers of one agent, each with its monitor.
struct MonitoredRouters {
    _monitors: Vec<MonitorProcess>,
    editors: Vec<(AddressEditor, u32)>,
    routers: Vec<Router>,
}

impl MonitoredRouters {
    fn start(lab: &Lab, count: u32, program: &std::path::Path) -> Self {
        let routers: Vec<_> =
            (1..=count).map(|number| Router::numbered(lab, Release::V29, number)).collect();
        let editors = routers.iter().map(Router::editor).collect();
        let monitors = routers.iter().map(|router| router.start(program)).collect();
        Self { _monitors: monitors, editors, routers }
    }

    /// Makes all routers primary or backup, as fast as the kernel allows.
    fn change_all(&self, is_primary: bool) {
        for ((editor, link), router) in self.editors.iter().zip(&self.routers) {
            let vip = router.cidr.parse().unwrap();
            if is_primary { editor.add(*link, vip) } else { editor.remove(*link, vip) }
        }
    }

    fn all(&self) -> Vec<&Router> {
        self.routers.iter().collect()
    }

    /// Waits until the agent has applied `state` to all routers, or until `timeout`. Returns to how many it has.
    fn count_applied(&self, agent: &mut NeutronAgent, state: &str, timeout: Duration) -> usize {
        let deadline = std::time::Instant::now() + timeout;
        loop {
            let applied = agent.applied();
            let count = self
                .routers
                .iter()
                .filter(|router| applied.get(&router.id).is_some_and(|held| held == state))
                .count();
            if count == self.routers.len() || std::time::Instant::now() > deadline {
                return count;
            }
            vipwatch_testkit::pause(Duration::from_millis(50));
        }
    }
}

#[track_caller]
fn wait_until_applied(agent: &mut NeutronAgent, router: &Router, state: &str) {
    let what = format!("the agent to apply {state}");
    let log = || format!("log of the monitor:\n{}", router.log());
    wait_within_showing(APPLY_TIMEOUT, &what, log, || {
        (agent.applied().get(&router.id).map(String::as_str) == Some(state)).then_some(())
    });
}

fn starts_finds_and_stops(neutron: Neutron) {
    let lab = Lab::new();
    let router = Router::new(&lab, Release::V29);
    let mut agent = NeutronAgent::start(&lab, neutron, &subject(), &[&router]);
    agent.send("enable", &router);
    wait_within(APPLY_TIMEOUT, "the agent to find the monitor active", || {
        (agent.send("active", &router) == true).then_some(())
    });
    wait_until_applied(&mut agent, &router, "backup");
    router.take_vip();
    wait_until_applied(&mut agent, &router, "primary");
    wait_within(APPLY_TIMEOUT, "the report to neutron-server", || {
        (agent.reported().get(&router.id).map(String::as_str) == Some("active")).then_some(())
    });

    let pid = read_pid(&router.pid_file()).unwrap();
    assert_eq!(agent.send("pid", &router), pid);
    agent.send("disable", &router);
    assert_eq!(agent.send("active", &router), false);
    wait_within(APPLY_TIMEOUT, "the monitor to end", || {
        (!vipwatch_testkit::monitor::is_alive(pid)).then_some(())
    });
    wait_within(APPLY_TIMEOUT, "no process to be left in the namespace", || {
        router.netns.pids().is_empty().then_some(())
    });

    // A second start, as after a crash: the agent starts a monitor that it does not find.
    agent.send("enable", &router);
    wait_within(APPLY_TIMEOUT, "the second monitor", || {
        (agent.send("active", &router) == true).then_some(())
    });
    agent.send("disable", &router);
}

#[test]
fn release_28_starts_finds_and_stops_the_monitor() {
    starts_finds_and_stops(Neutron::V28);
}

#[test]
fn release_29_starts_finds_and_stops_the_monitor() {
    starts_finds_and_stops(Neutron::V29);
}

/// The Python daemon does not take the lock of this program: only its pid file and its command line show that it runs.
#[test]
fn the_monitor_does_not_start_beside_the_python_daemon_of_release_28() {
    let lab = Lab::new();
    let router = Router::new(&lab, Release::V28);
    let _agent = NeutronAgent::start(&lab, Neutron::V28, &subject(), &[&router]);
    let python = router.start(&Neutron::V28.monitor());
    router.wait_for_state("backup");
    let output = router.attempt(&subject(), |_| {});
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("already"), "{output:?}");
    assert!(python.is_alive());
}

fn has_the_state_after_restarts(neutron: Neutron) {
    let lab = Lab::new();
    let router = Router::new(&lab, Release::V29);
    let mut agent = NeutronAgent::start(&lab, neutron, &subject(), &[&router]);
    let _monitor = router.start(&subject());
    router.take_vip();
    wait_until_applied(&mut agent, &router, "primary");

    // A restarted agent must be notified again, because it remembers nothing.
    drop(agent);
    let mut agent = NeutronAgent::start(&lab, neutron, &subject(), &[&router]);
    wait_until_applied(&mut agent, &router, "primary");

    // The state changes while no agent runs.
    drop(agent);
    router.drop_vip();
    router.wait_for_state("backup");
    let mut agent = NeutronAgent::start(&lab, neutron, &subject(), &[&router]);
    wait_until_applied(&mut agent, &router, "backup");
}

#[test]
fn release_28_has_the_current_state_after_a_restart() {
    has_the_state_after_restarts(Neutron::V28);
}

#[test]
fn release_29_has_the_current_state_after_a_restart() {
    has_the_state_after_restarts(Neutron::V29);
}

/// Neutron's agent drops a backup that follows a repeated primary too closely. With a monitor that
/// sends each change only once, the agent would stay on primary.
fn applies_a_change_after_a_respawn(neutron: Neutron) {
    let lab = Lab::new();
    let router = Router::new(&lab, Release::V29);
    let mut agent = NeutronAgent::start(&lab, neutron, &subject(), &[&router]);
    for _ in 0..3 {
        router.take_vip();
        let mut monitor = router.start(&subject());
        wait_until_applied(&mut agent, &router, "primary");
        monitor.signal(Signal::KILL);
        monitor.wait_until_gone();
        let monitor = router.start(&subject());
        router.wait_for_state("primary");
        router.drop_vip();
        wait_until_applied(&mut agent, &router, "backup");
        drop(monitor);
    }
}

#[test]
fn release_28_applies_a_change_right_after_a_respawn() {
    applies_a_change_after_a_respawn(Neutron::V28);
}

#[test]
fn release_29_applies_a_change_right_after_a_respawn() {
    applies_a_change_after_a_respawn(Neutron::V29);
}

/// Makes all routers primary at once. Returns to how many of them the agent has applied it.
fn mass_failover(
    neutron: Neutron,
    count: u32,
    program: &std::path::Path,
    timeout: Duration,
) -> usize {
    let lab = Lab::new();
    let routers = MonitoredRouters::start(&lab, count, program);
    let mut agent = NeutronAgent::start(&lab, neutron, program, &routers.all());
    routers.change_all(true);
    routers.count_applied(&mut agent, "primary", timeout)
}

#[test]
fn release_28_applies_40_changes_at_once() {
    assert_eq!(mass_failover(Neutron::V28, 40, &subject(), APPLY_TIMEOUT), 40);
}

#[test]
fn release_29_applies_40_changes_at_once() {
    assert_eq!(mass_failover(Neutron::V29, 40, &subject(), APPLY_TIMEOUT), 40);
}

#[test]
fn release_29_applies_300_changes_at_once() {
    assert_eq!(mass_failover(Neutron::V29, 300, &subject(), APPLY_TIMEOUT), 300);
}

/// How many routers had the correct state in the agent, before and after its restart.
#[derive(Debug, PartialEq, Eq)]
struct RestartCounts {
    before: usize,
    after: usize,
}

/// Makes all routers primary, then all backup while the agent restarts.
fn mass_failover_during_restart(
    neutron: Neutron,
    count: u32,
    program: &std::path::Path,
    timeout: Duration,
) -> RestartCounts {
    let lab = Lab::new();
    let routers = MonitoredRouters::start(&lab, count, program);
    let mut agent = NeutronAgent::start(&lab, neutron, program, &routers.all());
    routers.change_all(true);
    let before = routers.count_applied(&mut agent, "primary", timeout);
    drop(agent);
    routers.change_all(false);
    let mut agent = NeutronAgent::start(&lab, neutron, program, &routers.all());
    RestartCounts { before, after: routers.count_applied(&mut agent, "backup", timeout) }
}

#[test]
fn release_28_applies_40_changes_during_its_restart() {
    let counts = mass_failover_during_restart(Neutron::V28, 40, &subject(), APPLY_TIMEOUT);
    assert_eq!(counts, RestartCounts { before: 40, after: 40 });
}

#[test]
fn release_29_applies_300_changes_during_its_restart() {
    let counts = mass_failover_during_restart(Neutron::V29, 300, &subject(), APPLY_TIMEOUT);
    assert_eq!(counts, RestartCounts { before: 300, after: 300 });
}

/// Runs the mass failovers with the script of 29.0.0 as the monitor. It must fail at least one of them, which shows that
/// the cases are hard enough.
#[test]
fn the_script_of_release_29_fails_some_of_these_cases() {
    let script = Neutron::V29.monitor();
    let timeout = Duration::from_secs(15);
    let at_once = mass_failover(Neutron::V29, 40, &script, timeout);
    let during = mass_failover_during_restart(Neutron::V29, 40, &script, timeout);
    println!("the script: {at_once} of 40 at once; of 40 during a restart: {during:?}");
    assert!(at_once < 40 || during.after < 40, "the script passes: the cases are not hard enough");
}
