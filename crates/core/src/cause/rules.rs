// SPDX-License-Identifier: Apache-2.0
//! The rules: from the facts around a transition to its cause.
//!
//! ```text
//!   start, link, namespace, configuration ──▶ the trigger is the cause
//!   addresses lost:    another process removed them ▸ keepalived ended ▸ it was frozen ▸ it was reloaded ▸
//!                      a stronger advert before the loss ▸ own priority 0 ▸ (deadline) fault or not known
//!   addresses gained:  another process added them ▸ keepalived was reloaded, without priority 0 of the peer ▸
//!                      it has just started ▸ priority 0 of the peer ▸ the peer is silent, and was no backup ▸
//!                      the peer is weaker ▸ (deadline) not known
//! ```

mod gained;
mod lost;

use std::time::Duration;

use super::{AddressChanger, Cause, CauseKind, Evidence, KeepalivedEvents, UnknownReason, millis};
use crate::witness::{LinkWitness, OwnSettings, RouterKey, RouterWitness, SourceRecord};
use crate::{Fault, Moment, Role, RoleKind, Trigger};

/// An event of keepalived's processes explains a transition that follows within this time.
const PROCESS_SPAN: Duration = Duration::from_secs(5);

/// A keepalived that starts waits for its master-down interval, and needs so much longer to read its configuration.
const START_MARGIN: Duration = Duration::from_secs(4);

/// A reload that is younger than the start by less than this is the first read of the configuration.
const FIRST_LOAD_SPAN: Duration = Duration::from_secs(1);

/// Keepalived receives an advert before it changes addresses, but the node may read the change with an earlier time
/// than the kernel gives the advert: both clocks are read on different processors.
const CLOCK_SLACK: Duration = Duration::from_millis(5);

/// Keepalived may receive an advert while it takes the addresses, and step back at once: the advert is older than the
/// addresses by less than this.
const TAKEOVER_SPAN: Duration = Duration::from_millis(100);

/// The adverts of an instance, as far as they can be seen.
#[derive(Debug, Clone, Copy)]
pub enum AdvertEvidence<'a> {
    /// Adverts are not captured on the link.
    NotCaptured,
    /// Adverts are captured, and their queue has not been read since the transition.
    NotRead,
    /// Adverts are captured, and their queue was read after the transition.
    Read {
        /// The adverts of the link.
        witness: &'a LinkWitness,
        /// The virtual router of the instance.
        key: RouterKey,
        /// The adverts of the link at the deadline; `None` before it.
        later: Option<&'a LinkWitness>,
    },
}

/// The processes of keepalived, as far as they can be seen.
#[derive(Debug, Clone, Copy)]
pub enum ProcessEvidence {
    /// They cannot be read, or are not looked for.
    NotExamined,
    /// They have not been read since the transition.
    NotRead,
    /// No process uses the configuration of the instance, and none has used it.
    NotFound,
    /// They were read after the transition.
    Read(KeepalivedEvents),
}

/// The cause of the transition before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousCause {
    /// Its kind.
    pub kind: CauseKind,
    /// When that transition was.
    pub at: Moment,
}

/// The facts around one transition.
#[derive(Debug)]
pub struct CauseQuestion<'a> {
    /// The role before; `None` if it is not known.
    pub from: Option<RoleKind>,
    /// The role after.
    pub to: &'a Role,
    /// Whether the node has more addresses than before, or fewer.
    pub direction: ChangeDirection,
    /// Why the node read the role.
    pub trigger: Trigger,
    /// When the node read the role.
    pub at: Moment,
    /// When the instance took the role before, or its first address if it held some.
    pub from_since: Moment,
    /// The transition before; `None` if its cause is not known.
    pub previous: Option<PreviousCause>,
    /// The process that changed the address; `None` if it is not known. For an IPv6 address, the kernel says only which kind of
    /// program added it, if that program says so itself.
    pub changer: Option<&'a AddressChanger>,
    /// The processes of keepalived.
    pub processes: ProcessEvidence,
    /// The adverts.
    pub adverts: AdvertEvidence<'a>,
    /// The settings of the instance, as far as adverts show them.
    pub own: &'a OwnSettings,
    /// The priority in the configuration; `None` if it is not set.
    pub configured_priority: Option<u8>,
    /// The advert interval of the configuration.
    pub interval: Duration,
    /// The master-down interval of the configuration.
    pub down_interval: Duration,
    /// For how long keepalived holds its instances back after its start.
    pub startup_delay: Duration,
    /// Whether the deadline has passed: absent evidence counts now.
    pub is_final: bool,
}

/// Whether a transition gives this node addresses or takes some away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeDirection {
    /// The node has more addresses than before.
    Gained,
    /// The node has fewer addresses than before, or none.
    Lost,
}

impl ChangeDirection {
    /// The direction of a transition between these roles. `held_before` is the number of addresses of a role `partial`
    /// before; `None` for another role, or if it is not known.
    pub fn of(from: Option<RoleKind>, held_before: Option<usize>, to: &Role) -> Self {
        match (from, to) {
            (_, Role::Backup | Role::Fault(_) | Role::Unknown(_))
            | (Some(RoleKind::Primary), Role::Partial { .. }) => Self::Lost,
            (_, Role::Partial { held, .. }) if held_before.is_some_and(|before| *held < before) => {
                Self::Lost
            }
            (_, Role::Primary | Role::Partial { .. }) => Self::Gained,
        }
    }
}

impl CauseQuestion<'_> {
    /// The cause; `None` if more evidence may come.
    pub fn answer(&self) -> Option<Cause> {
        if let Some(kind) = self.kind_of_trigger() {
            return Some(Cause::new(kind));
        }
        self.by_other_process()
            .or_else(|| match self.direction {
                ChangeDirection::Lost => self.lost(),
                ChangeDirection::Gained => self.gained(),
            })
            .or_else(|| self.is_final.then(|| self.without_evidence()))
    }

    /// A cause that the trigger and the roles alone decide.
    fn kind_of_trigger(&self) -> Option<CauseKind> {
        match (self.from, self.to, self.trigger) {
            (None, _, _) => Some(CauseKind::Start),
            (Some(_), _, Trigger::Start) => Some(CauseKind::WhileStopped),
            (_, Role::Fault(Fault::NoNetns), _) => Some(CauseKind::NamespaceRemoved),
            (_, Role::Fault(_), _) => Some(CauseKind::LinkLost),
            (Some(RoleKind::Fault), _, Trigger::Namespace) => Some(CauseKind::NamespaceCreated),
            (Some(RoleKind::Fault), _, _) => Some(CauseKind::LinkRestored),
            (_, _, Trigger::Config) => Some(CauseKind::ConfigurationChanged),
            _ => None,
        }
    }

    fn by_other_process(&self) -> Option<Cause> {
        let Some(AddressChanger::Other { pid, program }) = self.changer else { return None };
        let kind = match self.direction {
            ChangeDirection::Gained => CauseKind::AddressAdded,
            ChangeDirection::Lost => CauseKind::AddressRemoved,
        };
        let evidence = Evidence { pid: *pid, program: program.clone(), ..Evidence::default() };
        Some(Cause { kind, evidence })
    }

    fn events(&self) -> Option<&KeepalivedEvents> {
        match &self.processes {
            ProcessEvidence::Read(events) => Some(events),
            ProcessEvidence::NotExamined | ProcessEvidence::NotRead | ProcessEvidence::NotFound => {
                None
            }
        }
    }

    /// The priority that keepalived has read; `None` if it is not known.
    fn known_priority(&self) -> Option<u8> {
        let is_outdated = self.events().is_some_and(|events| events.is_outdated);
        self.configured_priority.filter(|_| !is_outdated)
    }

    fn router(&self) -> Option<(&LinkWitness, &RouterWitness)> {
        match self.adverts {
            AdvertEvidence::Read { witness, key, .. } => Some((witness, witness.router(key)?)),
            AdvertEvidence::NotCaptured | AdvertEvidence::NotRead => None,
        }
    }

    /// Whether something happened at most `span` before the transition, or after it.
    fn is_recent(&self, at: Moment, span: Duration) -> bool {
        self.at.since(at) <= span
    }

    /// Whether the processes will be read, and may show the cause.
    fn awaits_processes(&self) -> bool {
        matches!(self.processes, ProcessEvidence::NotRead) && !self.is_final
    }

    fn by_reload(&self) -> Option<Cause> {
        let events = self.events()?;
        let reloaded = events.reloaded?;
        let started = events.started.map(|start| start.at);
        let is_first = started.is_some_and(|started| reloaded.since(started) < FIRST_LOAD_SPAN);
        let is_recent = self.is_recent(reloaded, self.down_interval + FIRST_LOAD_SPAN);
        if is_first || !is_recent || !self.is_effect_of_reload(reloaded) {
            return None;
        }
        let mut cause = Cause::new(CauseKind::ConfigurationChanged);
        cause.evidence.before_ms = Some(millis(self.at.since(reloaded)));
        Some(cause)
    }

    /// Whether the step before this one of the same change has this cause.
    fn continues(&self, kind: CauseKind) -> bool {
        self.from == Some(RoleKind::Partial) && self.previous.is_some_and(|step| step.kind == kind)
    }

    /// Whether a reload may have caused the transition. What happens more than a moment after it has another cause if the
    /// reload had its effect before. A loss without a stronger node may have another cause too, which is known at the
    /// deadline: keepalived ends, or a process that the kernel does not name removed the address.
    fn is_effect_of_reload(&self, reloaded: Moment) -> bool {
        if self.is_recent(reloaded, FIRST_LOAD_SPAN) {
            return true;
        }
        let is_first_effect = self.from_since <= reloaded + FIRST_LOAD_SPAN
            || self.continues(CauseKind::ConfigurationChanged);
        let is_gained = self.direction == ChangeDirection::Gained;
        let is_by_election = self.strongest_foreign().is_some();
        let is_by_keepalived = self.changer.is_some() && self.is_final;
        is_first_effect && (is_gained || is_by_election || is_by_keepalived)
    }

    fn start_of_keepalived(&self, peer: Option<&SourceRecord>) -> Cause {
        // Adverts that began after the transition are no evidence for it.
        let peer = peer.filter(|peer| peer.steady_since <= self.at + CLOCK_SLACK);
        let mut cause = self.with_peer(CauseKind::KeepalivedStarted, peer);
        let start = self.events().and_then(|events| events.started);
        cause.evidence.pid = start.map(|start| start.pid);
        cause.evidence.before_ms = start.map(|start| millis(self.at.since(start.at)));
        cause
    }

    /// A cause with the facts about the other node and the priority of this one.
    fn with_peer(&self, kind: CauseKind, peer: Option<&SourceRecord>) -> Cause {
        let own = self.router().and_then(|(_, router)| router.last_own(self.at));
        let own = own.map(|own| own.record.priority).filter(|own| *own > 0);
        let evidence = Evidence {
            peer: peer.map(|peer| peer.source),
            peer_priority: peer.map(|peer| peer.priority),
            own_priority: own.or(self.known_priority()),
            // Of adverts after the transition, the one before it is not known.
            silent_ms: peer
                .filter(|peer| peer.at <= self.at + CLOCK_SLACK)
                .map(|peer| millis(self.at.since(peer.at))),
            ..Evidence::default()
        };
        Cause { kind, evidence }
    }

    /// The cause at the deadline, where no evidence has come.
    fn without_evidence(&self) -> Cause {
        let is_captured = match self.adverts {
            AdvertEvidence::NotCaptured => false,
            AdvertEvidence::NotRead | AdvertEvidence::Read { .. } => true,
        };
        let begin = self.at.before(self.interval * 2);
        let is_incomplete = match self.adverts {
            AdvertEvidence::NotCaptured => false,
            AdvertEvidence::NotRead => true,
            AdvertEvidence::Read { witness, .. } => witness.is_incomplete_since(begin),
        };
        if is_incomplete {
            return Cause::unknown(UnknownReason::CaptureIncomplete);
        }
        let reason = match (&self.processes, self.direction) {
            (ProcessEvidence::NotFound, ChangeDirection::Gained) => {
                return inferred(CauseKind::AddressAdded);
            }
            (ProcessEvidence::NotFound, ChangeDirection::Lost) => {
                return inferred(CauseKind::AddressRemoved);
            }
            (ProcessEvidence::Read(events), ChangeDirection::Lost)
                if events.is_running && is_captured && self.changer.is_some() =>
            {
                return inferred(CauseKind::KeepalivedFault);
            }
            _ if !is_captured => UnknownReason::NotCaptured,
            (ProcessEvidence::Read(events), ChangeDirection::Lost) if events.is_running => {
                UnknownReason::ProcessNotNamed
            }
            (ProcessEvidence::NotExamined | ProcessEvidence::NotRead, _) => {
                UnknownReason::ProcessesNotRead
            }
            (ProcessEvidence::Read(_), _) => UnknownReason::NoEvidence,
        };
        Cause::unknown(reason)
    }
}

fn inferred(kind: CauseKind) -> Cause {
    Cause { kind, evidence: Evidence { is_inferred: true, ..Evidence::default() } }
}

#[cfg(test)]
mod tests;
