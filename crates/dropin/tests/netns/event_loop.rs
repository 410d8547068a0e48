// SPDX-License-Identifier: Apache-2.0
//! The event loop when snapshots fail, events are lost, or an answer never ends.
//!
//! The test causes these faults through a second descriptor of the monitor's own socket. It connects the socket to a
//! port without a receiver, so that requests fail, or reads the queued events, so that the monitor never gets them. A
//! real kernel can cause both.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, connect, recv};
use vipwatch_core::{ChangeCause, NeutronState, WatchedAddress};
use vipwatch_dropin::{Event, EventLog, EventLoop, LoopSettings, OptionalOutlets};
use vipwatch_linux::monitor::{Monitor, Scope};
use vipwatch_linux::netns::NetnsId;
use vipwatch_outlets::agent::{AgentSettings, AgentTrust};
use vipwatch_testkit::{AddressEditor, Lab, TestNetns, wait_for};

const VIP: &str = "169.254.0.1/24";

/// A timeout or interval that never expires during a test.
const NEVER: Duration = Duration::from_hours(1);

/// The recorded events that the tests compare.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Recorded {
    StateChanged(NeutronState, ChangeCause),
    SnapshotFailed(String),
    AuditDisagreed(u32),
}

#[derive(Clone, Default)]
struct RecordingLog(Rc<RefCell<Vec<Recorded>>>);

impl EventLog for RecordingLog {
    fn record(&mut self, event: &Event<'_>) {
        let recorded = match event {
            Event::StateChanged(change) => Recorded::StateChanged(change.to, change.cause),
            Event::SnapshotFailed(error) => Recorded::SnapshotFailed(error.to_string()),
            Event::AuditDisagreed(count) => Recorded::AuditDisagreed(*count),
            _ => return,
        };
        self.0.borrow_mut().push(recorded);
    }
}

/// An event loop in a namespace, and a second descriptor of its netlink socket.
struct Fixture {
    lab: Lab,
    _netns: TestNetns,
    editor: AddressEditor,
    link: u32,
    socket: OwnedFd,
    log: RecordingLog,
    event_loop: EventLoop<RecordingLog>,
}

impl Fixture {
    fn new(first_snapshot_timeout: Duration, audit_interval: Duration) -> Self {
        let lab = Lab::new();
        let netns = lab.netns("s");
        netns.add_link("ha-1");
        let editor = netns.editor();
        let vip = VIP.parse().unwrap();
        let monitor = netns.visit(|| Monitor::open(vip, Scope::Vip).unwrap());
        let socket = monitor.as_fd().try_clone_to_owned().unwrap();
        let name = netns.name().parse().unwrap();
        let settings = LoopSettings {
            watch: Some(WatchedAddress { link: "ha-1".parse().unwrap(), vip }),
            netns: (netns.name().parse().unwrap(), NetnsId::of_name(&name).unwrap().unwrap()),
            state_dir: lab.path().to_owned(),
            agent: AgentSettings {
                instance: "r1".parse().unwrap(),
                path: lab.path().join("no-agent"),
                keepalived_conf: lab.path().join("keepalived.conf"),
                trust: AgentTrust::User(0),
                words: |state| if state == NeutronState::Primary { "primary" } else { "backup" },
            },
            first_snapshot_timeout,
            audit_interval,
            seed: 1,
        };
        let log = RecordingLog::default();
        let event_loop =
            EventLoop::new(settings, Some(monitor), OptionalOutlets::default(), log.clone())
                .unwrap();
        let link = netns.editor().link("ha-1");
        Self { lab, editor, link, _netns: netns, socket, log, event_loop }
    }

    /// Makes the monitor's requests reach the kernel, or fail.
    fn set_requests_reach_kernel(&self, is_reached: bool) {
        let port = if is_reached { 0 } else { u32::MAX };
        connect(&self.socket, &SocketAddrNetlink::new(port, 0)).unwrap();
    }

    /// Reads the queued messages before the monitor can. Returns whether there was a message, and whether one of them
    /// was part of an answer.
    fn steal_messages(&self) -> (bool, bool) {
        // No larger than the monitor's own buffer: the kernel sizes its answers by the largest buffer it has seen.
        let mut buffer = [0_u8; 4096];
        let (mut has_stolen, mut is_answer) = (false, false);
        while recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()).is_ok() {
            has_stolen = true;
            // `NLM_F_MULTI` in the first header marks one of many parts of an answer.
            is_answer |= u16::from_ne_bytes([buffer[6], buffer[7]]) & 2 != 0;
        }
        (has_stolen, is_answer)
    }

    fn iterate(&mut self) {
        self.event_loop.wait_and_read(&[]).unwrap();
        self.event_loop.tick();
    }

    fn iterate_until(&mut self, what: &str, is_done: impl Fn(&[Recorded]) -> bool) {
        wait_for(what, || {
            self.iterate();
            is_done(&self.log.0.borrow()).then_some(())
        });
    }

    fn recorded(&self) -> Vec<Recorded> {
        self.log.0.borrow().clone()
    }

    fn state(&self) -> String {
        std::fs::read_to_string(self.lab.path().join("state")).unwrap_or_default()
    }
}

#[test]
fn a_failed_snapshot_is_retried_and_recorded_once() {
    let mut fixture = Fixture::new(NEVER, NEVER);
    fixture.editor.add(fixture.link, VIP.parse().unwrap());
    fixture.set_requests_reach_kernel(false);
    for _ in 0..5 {
        fixture.iterate();
    }
    let failed =
        Recorded::SnapshotFailed("cannot request the list of addresses from the kernel".to_owned());
    assert_eq!(fixture.recorded(), std::slice::from_ref(&failed), "one record for all retries");
    assert_eq!(fixture.state(), "", "no state is published before a snapshot was read");
    fixture.set_requests_reach_kernel(true);
    fixture.iterate_until("the first snapshot", |recorded| recorded.len() > 1);
    assert_eq!(
        fixture.recorded(),
        [failed, Recorded::StateChanged(NeutronState::Primary, ChangeCause::FirstSnapshot)]
    );
    assert_eq!(fixture.state(), "primary");
}

#[test]
fn backup_is_assumed_without_a_first_snapshot_and_corrected_by_a_later_one() {
    let mut fixture = Fixture::new(Duration::from_millis(30), NEVER);
    fixture.editor.add(fixture.link, VIP.parse().unwrap());
    fixture.set_requests_reach_kernel(false);
    fixture.iterate_until("the assumed state", |recorded| recorded.len() > 1);
    assert_eq!(
        fixture.recorded()[1..],
        [Recorded::StateChanged(NeutronState::Backup, ChangeCause::Assumed)]
    );
    assert_eq!(fixture.state(), "backup");
    fixture.set_requests_reach_kernel(true);
    fixture.iterate_until("the real state", |recorded| recorded.len() > 2);
    assert_eq!(
        fixture.recorded()[2..],
        [Recorded::StateChanged(NeutronState::Primary, ChangeCause::FirstSnapshot)]
    );
    assert_eq!(fixture.state(), "primary");
}

#[test]
fn an_audit_finds_a_change_whose_event_was_lost_and_counts_it() {
    let mut fixture = Fixture::new(NEVER, Duration::from_millis(20));
    fixture.iterate_until("the first snapshot", |recorded| !recorded.is_empty());
    fixture.editor.add(fixture.link, VIP.parse().unwrap());
    assert!(fixture.steal_messages().0);
    fixture.iterate_until("the audit", |recorded| recorded.len() > 2);
    let found = [
        Recorded::StateChanged(NeutronState::Backup, ChangeCause::FirstSnapshot),
        Recorded::AuditDisagreed(1),
        Recorded::StateChanged(NeutronState::Primary, ChangeCause::Audit),
    ];
    assert_eq!(fixture.recorded(), found);
    assert_eq!(fixture.state(), "primary");
}

#[test]
fn an_audit_that_agrees_records_nothing() {
    let mut fixture = Fixture::new(NEVER, Duration::from_millis(5));
    fixture.iterate_until("the first snapshot", |recorded| !recorded.is_empty());
    fixture.editor.add(fixture.link, VIP.parse().unwrap());
    for _ in 0..50 {
        fixture.iterate();
    }
    let found = [
        Recorded::StateChanged(NeutronState::Backup, ChangeCause::FirstSnapshot),
        Recorded::StateChanged(NeutronState::Primary, ChangeCause::AddressAdded),
    ];
    assert_eq!(fixture.recorded(), found, "no audit disagreed");
}

#[test]
fn a_snapshot_that_never_ends_is_given_up_and_requested_again() {
    let mut fixture = Fixture::new(NEVER, Duration::from_millis(20));
    fixture.iterate_until("the first snapshot", |recorded| !recorded.is_empty());
    // The audit requests a snapshot in `tick`, and the kernel queues the answer at once: the test reads it first.
    wait_for("an audit", || {
        fixture.iterate();
        fixture.steal_messages().1.then_some(())
    });
    fixture.iterate_until("the snapshot timeout", |recorded| recorded.len() > 1);
    let endless = "the kernel's list of addresses is incomplete".to_owned();
    assert_eq!(fixture.recorded()[1..], [Recorded::SnapshotFailed(endless)]);
    fixture.editor.add(fixture.link, VIP.parse().unwrap());
    fixture.iterate_until("the next state", |recorded| recorded.len() > 2);
    assert!(
        matches!(fixture.recorded()[2], Recorded::StateChanged(NeutronState::Primary, _)),
        "{:?}",
        fixture.recorded()
    );
}
