// SPDX-License-Identifier: Apache-2.0
//! A cause as a sentence.

use std::fmt;

use super::{Cause, CauseKind, Evidence, UnknownReason};

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let evidence = &self.evidence;
        let (peer, own) = (peer(evidence), own(evidence));
        match self.kind {
            CauseKind::Start => write!(f, "first role of a new instance"),
            CauseKind::WhileStopped => write!(f, "the role changed while the node did not run"),
            CauseKind::KeepalivedStarted => {
                write!(f, "{} started{}", process(evidence), before(evidence))
            }
            CauseKind::KeepalivedStopped => match evidence.exit_code {
                None | Some(0) => write!(f, "{} was stopped", process(evidence)),
                Some(code) => write!(f, "{} ended with exit code {code}", process(evidence)),
            },
            CauseKind::KeepalivedKilled => {
                write!(f, "{} was killed{}", process(evidence), signal(evidence.signal))
            }
            CauseKind::KeepalivedFrozen => {
                write!(f, "keepalived was stopped or frozen, and {peer} took over meanwhile")
            }
            CauseKind::HandedOver => {
                write!(f, "keepalived sent priority 0 and runs on: it gave up the addresses")
            }
            CauseKind::PeerHandedOver => {
                write!(f, "{} handed over (priority 0)", peer_name(evidence))
            }
            CauseKind::Preempted => write!(f, "{peer} preempted {own}"),
            CauseKind::PreemptedPeer => write!(f, "{own} preempted {peer}"),
            CauseKind::PeerSilent => {
                let time = evidence.silent_ms.map_or_else(|| "a while".to_owned(), seconds);
                write!(f, "{peer} sent no advert for {time}")
            }
            CauseKind::PriorityDropped => {
                let before = evidence.own_priority_before.map(|before| format!(" from {before}"));
                let now = evidence.own_priority.map(|now| format!(" to {now}"));
                let (before, now) = (before.unwrap_or_default(), now.unwrap_or_default());
                write!(f, "the priority of this node dropped{before}{now}, and {peer} took over")
            }
            CauseKind::PeerPriorityDropped => {
                let before = evidence.peer_priority_before.map(|before| format!(" from {before}"));
                let now = evidence.peer_priority.map(|now| format!(" to {now}"));
                let (before, now) = (before.unwrap_or_default(), now.unwrap_or_default());
                write!(f, "the priority of {} dropped{before}{now}", peer_name(evidence))
            }
            CauseKind::KeepalivedFault => write!(
                f,
                "keepalived runs and gave up the addresses: probably a track script or a tracked interface failed"
            ),
            CauseKind::FaultEnded => {
                write!(f, "no node had advertised before: probably a fault of keepalived ended")
            }
            CauseKind::LinkLost => write!(f, "the link is missing or down"),
            CauseKind::LinkRestored => write!(f, "the link is back"),
            CauseKind::NamespaceRemoved => write!(f, "the namespace was removed"),
            CauseKind::NamespaceCreated => write!(f, "the namespace was created"),
            CauseKind::AddressRemoved => write!(f, "{} removed an address", changer(evidence)),
            CauseKind::AddressAdded => write!(f, "{} added an address", changer(evidence)),
            CauseKind::ConfigurationChanged => {
                write!(f, "the configuration was read again{}", before(evidence))
            }
            CauseKind::Unknown => write!(f, "not known: {}", unknown_text(evidence)),
        }
    }
}

fn unknown_text(evidence: &Evidence) -> String {
    match evidence.unknown.unwrap_or(UnknownReason::NoEvidence) {
        UnknownReason::NotCaptured => {
            "adverts are not captured on this link ([witness] in the configuration)".to_owned()
        }
        UnknownReason::CaptureIncomplete => {
            "the capture of adverts began too late, or adverts were lost or cannot be decoded".to_owned()
        }
        UnknownReason::ProcessesNotRead => "the processes of keepalived cannot be read".to_owned(),
        UnknownReason::AdvertsIgnored => format!(
            "keepalived ignores the adverts of {}: `vipwatch doctor` may name the reason; else check the firewall, authentication and unicast peers",
            peer(evidence)
        ),
        UnknownReason::ProcessNotNamed => {
            "keepalived gave up the address, or another program removed it: the kernel does not name the process".to_owned()
        }
        UnknownReason::Superseded => "another transition followed at once".to_owned(),
        UnknownReason::NodeStopped => {
            "the node stopped before the evidence was complete".to_owned()
        }
        UnknownReason::NoEvidence => "no process and no advert explains it".to_owned(),
    }
}

/// The address of the other node.
fn peer_name(evidence: &Evidence) -> String {
    evidence.peer.map_or_else(|| "another node".to_owned(), |peer| peer.to_string())
}

/// The address of the other node with its priority.
fn peer(evidence: &Evidence) -> String {
    let priority = evidence.peer_priority.map(|priority| format!(" (priority {priority})"));
    peer_name(evidence) + &priority.unwrap_or_default()
}

/// This node with its priority.
fn own(evidence: &Evidence) -> String {
    let priority = evidence.own_priority.map(|priority| format!(" (priority {priority})"));
    format!("this node{}", priority.unwrap_or_default())
}

/// Keepalived with its pid.
fn process(evidence: &Evidence) -> String {
    let pid = evidence.pid.map(|pid| format!(" (pid {pid})"));
    format!("keepalived{}", pid.unwrap_or_default())
}

/// The process that changed an address.
fn changer(evidence: &Evidence) -> String {
    match (evidence.pid, &evidence.program) {
        (Some(pid), Some(program)) => format!("{program} (pid {pid})"),
        (Some(pid), None) => format!("process {pid}, which is not keepalived,"),
        (None, _) => "a process that is not keepalived".to_owned(),
    }
}

/// For example `, 3.6 s before`.
fn before(evidence: &Evidence) -> String {
    let before = evidence.before_ms.map(|before| format!(" {} before", seconds(before)));
    before.unwrap_or_default()
}

/// Seconds with one decimal.
fn seconds(millis: u32) -> String {
    format!("{:.1} s", f64::from(millis) / 1000.0)
}

/// For example ` by SIGKILL`.
fn signal(number: Option<u8>) -> String {
    // The numbers of these signals are the same on all architectures of Linux.
    match number {
        None => String::new(),
        Some(6) => " by SIGABRT".to_owned(),
        Some(9) => " by SIGKILL".to_owned(),
        Some(11) => " by SIGSEGV".to_owned(),
        Some(15) => " by SIGTERM".to_owned(),
        Some(number) => format!(" by signal {number}"),
    }
}
