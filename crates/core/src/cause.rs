// SPDX-License-Identifier: Apache-2.0
//! Why a role changed, in the words of an operator, with the evidence for it.
//!
//! A [`Trigger`](crate::Trigger) says why the node *read* the role. A [`Cause`] says why the role *changed*: keepalived
//! was stopped, another node preempted this one, the adverts of the peer stopped, and so on. It follows from facts of
//! four kinds, which [`rules`] compares:
//!
//! ```text
//!   process that changed the address ─┐
//!   processes of keepalived ──────────┼─▶ CauseQuestion::answer ──▶ a cause, or nothing yet
//!   adverts on the link ──────────────┤                             (at the deadline: a cause, or "not known" with a reason)
//!   links and namespaces ─────────────┘
//! ```
//!
//! Evidence for something concludes at once. The absence of evidence concludes only at the deadline. The crate has no
//! clock: the caller passes in the facts, and asks again when they change.

mod rules;
mod text;

use std::net::IpAddr;
use std::time::Duration;

use strum::{Display, EnumString, IntoStaticStr, VariantArray};

pub use self::rules::{
    AdvertEvidence, CauseQuestion, ChangeDirection, PreviousCause, ProcessEvidence,
};
use crate::Moment;

/// The kind of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum CauseKind {
    /// The first role of an instance that the last run did not know.
    Start,
    /// The role changed while the node did not run.
    WhileStopped,
    /// Keepalived of this node started.
    KeepalivedStarted,
    /// Keepalived of this node ended by itself or by a normal stop.
    KeepalivedStopped,
    /// A signal that cannot be caught, or a crash, ended a process of keepalived of this node.
    KeepalivedKilled,
    /// Keepalived of this node was stopped by a signal or frozen, and continued.
    KeepalivedFrozen,
    /// Keepalived of this node sent the priority 0 and runs on.
    HandedOver,
    /// The other node sent the priority 0.
    PeerHandedOver,
    /// Another node with a higher priority took over.
    Preempted,
    /// This node took over from a node with a lower priority.
    PreemptedPeer,
    /// The adverts of the other node stopped.
    PeerSilent,
    /// The priority of this node dropped, and another node took over.
    PriorityDropped,
    /// The priority of the other node dropped, and this node took over.
    PeerPriorityDropped,
    /// Keepalived of this node runs and gave up the addresses, without an advert that explains it.
    KeepalivedFault,
    /// Keepalived of this node took the addresses although no other node had advertised for long.
    FaultEnded,
    /// A link is missing or down.
    LinkLost,
    /// A link is back.
    LinkRestored,
    /// The namespace was removed.
    NamespaceRemoved,
    /// The namespace was created.
    NamespaceCreated,
    /// Another process than keepalived removed an address.
    AddressRemoved,
    /// Another process than keepalived added an address.
    AddressAdded,
    /// The configuration of keepalived or of vipwatch changed.
    ConfigurationChanged,
    /// It is not known; [`Evidence::unknown`] says why.
    Unknown,
}

impl CauseKind {
    /// The word for the kind in JSON, in logs and in the history.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Why a cause is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum UnknownReason {
    /// Adverts are not captured on the link of the instance.
    NotCaptured,
    /// The capture began too late, or adverts were lost or cannot be decoded.
    CaptureIncomplete,
    /// The processes of keepalived cannot be read, or are not looked for.
    ProcessesNotRead,
    /// Adverts of a higher priority arrive, and keepalived ignores them.
    AdvertsIgnored,
    /// The kernel does not name the process that changed the address: keepalived, or another one.
    ProcessNotNamed,
    /// Another transition followed before the evidence was complete.
    Superseded,
    /// The node stopped before the evidence was complete.
    NodeStopped,
    /// No fact explains the transition.
    NoEvidence,
}

/// The facts behind a cause. A fact that does not apply, or is not known, is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// The source address of the other node's adverts.
    pub peer: Option<IpAddr>,
    /// The priority in the newest advert of the other node.
    pub peer_priority: Option<u8>,
    /// The priority of the other node before it dropped.
    pub peer_priority_before: Option<u8>,
    /// The priority of this node: of its own adverts, else of its configuration.
    pub own_priority: Option<u8>,
    /// The priority of this node before it dropped.
    pub own_priority_before: Option<u8>,
    /// Time between the last advert of the other node and the transition, in milliseconds.
    pub silent_ms: Option<u32>,
    /// The process of keepalived that started or ended, or the process that changed the address.
    pub pid: Option<u32>,
    /// The program of that process, if it is not keepalived.
    pub program: Option<Box<str>>,
    /// The signal that ended the process.
    pub signal: Option<u8>,
    /// The exit code of the process.
    pub exit_code: Option<u8>,
    /// Time between the event of the process and the transition, in milliseconds.
    pub before_ms: Option<u32>,
    /// Whether the cause is inferred from absent evidence.
    pub is_inferred: bool,
    /// Why the cause is not known.
    pub unknown: Option<UnknownReason>,
}

/// Why a role changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The kind.
    pub kind: CauseKind,
    /// The facts behind it.
    pub evidence: Evidence,
}

impl Cause {
    /// A cause without evidence.
    pub fn new(kind: CauseKind) -> Self {
        Self { kind, evidence: Evidence::default() }
    }

    /// A cause that is not known.
    pub fn unknown(reason: UnknownReason) -> Self {
        let evidence = Evidence { unknown: Some(reason), ..Evidence::default() };
        Self { kind: CauseKind::Unknown, evidence }
    }
}

/// The process that changed an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressChanger {
    /// Keepalived of the instance.
    Keepalived,
    /// Another process.
    Other {
        /// Its pid; `None` if it is not known.
        pid: Option<u32>,
        /// Its program; `None` if the process has ended.
        program: Option<Box<str>>,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessExit {
    /// By itself, with this exit code.
    Code(u8),
    /// By this signal.
    Signal(u8),
    /// The kernel did not report it.
    Unknown,
}

/// The end of a process of keepalived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessEnd {
    /// The process.
    pub pid: u32,
    /// When the end was noticed.
    pub at: Moment,
    /// How it ended.
    pub exit: ProcessExit,
}

/// The start of a process of keepalived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStart {
    /// The process.
    pub pid: u32,
    /// When it started.
    pub at: Moment,
}

/// The last events of the processes of one keepalived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepalivedEvents {
    /// Whether its VRRP process exists and is not stopped or frozen.
    pub is_running: bool,
    /// The last start of the parent or of the VRRP process.
    pub started: Option<ProcessStart>,
    /// The last end of the parent or of the VRRP process.
    pub ended: Option<ProcessEnd>,
    /// When the VRRP process was seen to continue after it had been stopped or frozen.
    pub resumed: Option<Moment>,
    /// When keepalived last read its configuration again.
    pub reloaded: Option<Moment>,
    /// Whether it uses an older configuration than its file has now.
    pub is_outdated: bool,
}

/// Whole milliseconds; the largest number if there are more.
fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}
