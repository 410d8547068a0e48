// SPDX-License-Identifier: Apache-2.0
//! A cause as a sentence.

use std::fmt;

use super::{Cause, CauseKind, Evidence, UnknownReason};

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let evidence = &self.evidence;
        let (peer, own) = (Peer(evidence), Own(evidence));
        match self.kind {
            CauseKind::Start => write!(f, "first role of a new instance"),
            CauseKind::WhileStopped => write!(f, "the role changed while the node did not run"),
            CauseKind::KeepalivedStarted => {
                write!(f, "{} started{}", Process(evidence), Before(evidence))
            }
            CauseKind::KeepalivedStopped => match evidence.exit_code {
                None | Some(0) => write!(f, "{} was stopped", Process(evidence)),
                Some(code) => write!(f, "{} ended with exit code {code}", Process(evidence)),
            },
            CauseKind::KeepalivedKilled => {
                write!(f, "{} was killed{}", Process(evidence), Signal(evidence.signal))
            }
            CauseKind::KeepalivedFrozen => {
                write!(f, "keepalived was stopped or frozen, and {peer} took over meanwhile")
            }
            CauseKind::HandedOver => {
                write!(f, "keepalived sent priority 0 and runs on: it gave up the addresses")
            }
            CauseKind::PeerHandedOver => {
                write!(f, "{} handed over (priority 0)", PeerName(evidence))
            }
            CauseKind::Preempted => write!(f, "{peer} preempted {own}"),
            CauseKind::PreemptedPeer => write!(f, "{own} preempted {peer}"),
            CauseKind::PeerSilent if evidence.silent_ms.is_none() => {
                write!(f, "{peer} sent no advert for a while")
            }
            CauseKind::PeerSilent => {
                write!(f, "{peer} sent no advert for {}", Seconds(evidence.silent_ms))
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
                write!(f, "the priority of {} dropped{before}{now}", PeerName(evidence))
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
            CauseKind::AddressRemoved => write!(f, "{} removed an address", Changer(evidence)),
            CauseKind::AddressAdded => write!(f, "{} added an address", Changer(evidence)),
            CauseKind::ConfigurationChanged => {
                write!(f, "the configuration was read again{}", Before(evidence))
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
            Peer(evidence)
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
struct PeerName<'a>(&'a Evidence);

impl fmt::Display for PeerName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.peer {
            Some(peer) => write!(f, "{peer}"),
            None => write!(f, "another node"),
        }
    }
}

/// The address of the other node with its priority.
struct Peer<'a>(&'a Evidence);

impl fmt::Display for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", PeerName(self.0))?;
        match self.0.peer_priority {
            Some(priority) => write!(f, " (priority {priority})"),
            None => Ok(()),
        }
    }
}

/// This node with its priority.
struct Own<'a>(&'a Evidence);

impl fmt::Display for Own<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.own_priority {
            Some(priority) => write!(f, "this node (priority {priority})"),
            None => write!(f, "this node"),
        }
    }
}

/// Keepalived with its pid.
struct Process<'a>(&'a Evidence);

impl fmt::Display for Process<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.pid {
            Some(pid) => write!(f, "keepalived (pid {pid})"),
            None => write!(f, "keepalived"),
        }
    }
}

/// The process that changed an address.
struct Changer<'a>(&'a Evidence);

impl fmt::Display for Changer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.pid, &self.0.program) {
            (Some(pid), Some(program)) => write!(f, "{program} (pid {pid})"),
            (Some(pid), None) => write!(f, "process {pid}, which is not keepalived,"),
            (None, _) => write!(f, "a process that is not keepalived"),
        }
    }
}

/// For example `, 3.6 s before`.
struct Before<'a>(&'a Evidence);

impl fmt::Display for Before<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.before_ms {
            Some(before) => write!(f, " {} before", Seconds(Some(before))),
            None => Ok(()),
        }
    }
}

/// Seconds with one decimal.
struct Seconds(Option<u32>);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(millis) => write!(f, "{:.1} s", f64::from(millis) / 1000.0),
            None => write!(f, "some time"),
        }
    }
}

/// For example ` by SIGKILL`.
struct Signal(Option<u8>);

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The numbers of these signals are the same on all architectures of Linux.
        match self.0 {
            None => Ok(()),
            Some(6) => write!(f, " by SIGABRT"),
            Some(9) => write!(f, " by SIGKILL"),
            Some(11) => write!(f, " by SIGSEGV"),
            Some(15) => write!(f, " by SIGTERM"),
            Some(number) => write!(f, " by signal {number}"),
        }
    }
}
