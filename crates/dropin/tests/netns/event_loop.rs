//! The spine when the kernel cannot be asked, does not tell, or tells late.
//!
//! A second descriptor of the monitor's own socket makes it so: sent to nobody, requests
//! fail; read from here, events never reach the monitor. Both are things that a real kernel
//! does to a real socket.

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
const LATER: Duration = Duration::from_hours(1);

/// What the spine had to say, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    NeutronState(NeutronState, ChangeCause),
    LookFailed(String),
    Disagreed(u32),
}

#[derive(Clone, Default)]
struct DeliveryLog(Rc<RefCell<Vec<Said>>>);

impl EventLog for DeliveryLog {
    fn note(&mut self, event: &Event<'_>) {
        let said = match event {
            Event::RoleChanged(change) => Said::NeutronState(change.to, change.cause),
            Event::LookFailed(error) => Said::LookFailed(error.to_string()),
            Event::AuditDisagreed(count) => Said::Disagreed(*count),
            _ => return,
        };
        self.0.borrow_mut().push(said);
    }
}

/// A spine in a namespace, and a second door to its socket.
struct Stage {
    lab: Lab,
    _netns: TestNetns,
    editor: AddressEditor,
    link: u32,
    door: OwnedFd,
    notes: DeliveryLog,
    spine: EventLoop<DeliveryLog>,
}

impl Stage {
    fn new(first_look_limit: Duration, audit_interval: Duration) -> Self {
        let lab = Lab::new();
        let netns = lab.netns("s");
        netns.add_link("ha-1");
        let editor = netns.editor();
        let vip = VIP.parse().unwrap();
        let monitor = netns.visit(|| Monitor::open(vip, Scope::Vip).unwrap());
        let door = monitor.as_fd().try_clone_to_owned().unwrap();
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
                words: |role| if role == NeutronState::Primary { "primary" } else { "backup" },
            },
            first_look_limit,
            audit_interval,
            seed: 1,
        };
        let notes = DeliveryLog::default();
        let spine =
            EventLoop::new(settings, Some(monitor), OptionalOutlets::default(), notes.clone())
                .unwrap();
        Self { lab, editor, link: netns.editor().link("ha-1"), _netns: netns, door, notes, spine }
    }

    /// Whether requests of the monitor reach the kernel, or nobody.
    fn let_it_ask(&self, is_heard: bool) {
        let port = if is_heard { 0 } else { u32::MAX };
        connect(&self.door, &SocketAddrNetlink::new(port, 0)).unwrap();
    }

    /// Takes away what is queued before the monitor sees it; tells whether there was anything, and whether
    /// that was of an answer.
    fn steal(&self) -> (bool, bool) {
        // No larger than the monitor's own: the kernel makes its answers fit the largest.
        let mut buffer = [0_u8; 4096];
        let (mut has_stolen, mut is_answer) = (false, false);
        while recv(&self.door, buffer.as_mut_slice(), RecvFlags::empty()).is_ok() {
            has_stolen = true;
            // `NLM_F_MULTI` in the first header: one of many parts.
            is_answer |= u16::from_ne_bytes([buffer[6], buffer[7]]) & 2 != 0;
        }
        (has_stolen, is_answer)
    }

    fn turn_until(&mut self, what: &str, is_done: impl Fn(&[Said]) -> bool) {
        wait_for(what, || {
            self.spine.turn(&[]).unwrap();
            self.spine.tick();
            is_done(&self.notes.0.borrow()).then_some(())
        });
    }

    fn said(&self) -> Vec<Said> {
        self.notes.0.borrow().clone()
    }

    fn state(&self) -> String {
        std::fs::read_to_string(self.lab.path().join("state")).unwrap_or_default()
    }
}

#[test]
fn a_kernel_that_cannot_be_asked_is_asked_again_and_said_once() {
    let mut stage = Stage::new(LATER, LATER);
    stage.editor.add(stage.link, VIP.parse().unwrap());
    stage.let_it_ask(false);
    for _ in 0..5 {
        stage.spine.turn(&[]).unwrap();
        stage.spine.tick();
    }
    let failed =
        Said::LookFailed("cannot request the list of addresses from the kernel".to_owned());
    assert_eq!(stage.said(), std::slice::from_ref(&failed), "one line, however often it is tried");
    assert_eq!(stage.state(), "", "nothing is claimed that nobody has seen");
    stage.let_it_ask(true);
    stage.turn_until("the first look", |said| said.len() > 1);
    assert_eq!(
        stage.said(),
        [failed, Said::NeutronState(NeutronState::Primary, ChangeCause::FirstSnapshot)]
    );
    assert_eq!(stage.state(), "primary");
}

#[test]
fn without_a_first_look_in_time_it_is_backup_until_the_truth_is_known() {
    let mut stage = Stage::new(Duration::from_millis(30), LATER);
    stage.editor.add(stage.link, VIP.parse().unwrap());
    stage.let_it_ask(false);
    stage.turn_until("an assumption", |said| said.len() > 1);
    assert_eq!(stage.said()[1..], [Said::NeutronState(NeutronState::Backup, ChangeCause::Assumed)]);
    assert_eq!(stage.state(), "backup");
    stage.let_it_ask(true);
    stage.turn_until("the truth", |said| said.len() > 2);
    assert_eq!(
        stage.said()[2..],
        [Said::NeutronState(NeutronState::Primary, ChangeCause::FirstSnapshot)]
    );
    assert_eq!(stage.state(), "primary");
}

#[test]
fn an_audit_finds_what_no_event_told_and_counts_it() {
    let mut stage = Stage::new(LATER, Duration::from_millis(20));
    stage.turn_until("the first look", |said| !said.is_empty());
    stage.editor.add(stage.link, VIP.parse().unwrap());
    assert!(stage.steal().0);
    stage.turn_until("the audit", |said| said.len() > 2);
    let found = [
        Said::NeutronState(NeutronState::Backup, ChangeCause::FirstSnapshot),
        Said::Disagreed(1),
        Said::NeutronState(NeutronState::Primary, ChangeCause::Audit),
    ];
    assert_eq!(stage.said(), found);
    assert_eq!(stage.state(), "primary");
}

#[test]
fn an_audit_that_agrees_says_nothing() {
    let mut stage = Stage::new(LATER, Duration::from_millis(5));
    stage.turn_until("the first look", |said| !said.is_empty());
    stage.editor.add(stage.link, VIP.parse().unwrap());
    for _ in 0..50 {
        stage.spine.turn(&[]).unwrap();
        stage.spine.tick();
    }
    let found = [
        Said::NeutronState(NeutronState::Backup, ChangeCause::FirstSnapshot),
        Said::NeutronState(NeutronState::Primary, ChangeCause::AddressAdded),
    ];
    assert_eq!(stage.said(), found, "no disagreement, however often it is asked");
}

#[test]
fn a_look_that_never_ends_is_given_up_and_begun_again() {
    let mut stage = Stage::new(LATER, Duration::from_millis(20));
    stage.turn_until("the first look", |said| !said.is_empty());
    // The audit asks at the end of a turn, and its answer is queued at once: it is ours.
    wait_for("an audit", || {
        stage.spine.turn(&[]).unwrap();
        stage.spine.tick();
        stage.steal().1.then_some(())
    });
    stage.turn_until("the end of patience", |said| said.len() > 1);
    let endless = "the kernel's list of addresses is incomplete".to_owned();
    assert_eq!(stage.said()[1..], [Said::LookFailed(endless)]);
    stage.editor.add(stage.link, VIP.parse().unwrap());
    stage.turn_until("it goes on", |said| said.len() > 2);
    assert!(
        matches!(stage.said()[2], Said::NeutronState(NeutronState::Primary, _)),
        "{:?}",
        stage.said()
    );
}
