//! The rules: from the facts around a transition to its cause.
//!
//! ```text
//!   start, link, namespace, configuration ──▶ the trigger is the cause
//!   addresses lost:    another process removed them ▸ keepalived ended ▸ it was frozen ▸ it was reloaded ▸
//!                      a stronger advert before the loss ▸ own priority 0 ▸ (deadline) fault or not known
//!   addresses gained:  another process added them ▸ keepalived was reloaded ▸ it has just started ▸
//!                      priority 0 of the peer ▸ the peer is silent ▸ the peer is weaker ▸ (deadline) not known
//! ```

use std::time::Duration;

use super::{
    AddressChanger, Cause, CauseKind, Evidence, KeepalivedEvents, ProcessEnd, ProcessExit,
    UnknownReason, millis,
};
use crate::witness::{
    AdvertOrigin, LinkWitness, OwnSettings, RouterKey, RouterWitness, SourceRecord, differences,
};
use crate::{Fault, Moment, Role, RoleKind, Trigger};

/// An event of keepalived's processes explains a transition that follows within this time.
const PROCESS_SPAN: Duration = Duration::from_secs(5);

/// A keepalived that starts waits for its master-down interval, and needs so much longer to read its configuration.
const START_MARGIN: Duration = Duration::from_secs(3);

/// A reload that is younger than the start by less than this is the first read of the configuration.
const FIRST_LOAD_SPAN: Duration = Duration::from_secs(1);

/// The priority of a virtual router that does not set one.
const DEFAULT_PRIORITY: u8 = 100;

/// Keepalived receives an advert before it changes addresses, but the node may read the change with an earlier time
/// than the kernel gives the advert: both clocks are read on different processors.
const CLOCK_SLACK: Duration = Duration::from_millis(5);

/// Keepalived reacts to an address that another process has removed within this time.
const REACTION_SPAN: Duration = Duration::from_millis(2_500);

/// Keepalived may receive an advert while it takes the addresses, and step back at once: the advert is older than the
/// addresses by less than this.
const TAKEOVER_SPAN: Duration = Duration::from_millis(100);

/// The adverts of an instance, as far as they can be seen.
#[derive(Debug, Clone, Copy)]
pub enum AdvertSight<'a> {
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
pub enum ProcessSight {
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
    /// Why the node read the role.
    pub trigger: Trigger,
    /// When the node read the role.
    pub at: Moment,
    /// When the instance took the role before, or its first address if it held some.
    pub from_since: Moment,
    /// The transition before; `None` if its cause is not known.
    pub previous: Option<PreviousCause>,
    /// The process that changed the address; `None` if it is not known. The kernel does not name it for IPv6 addresses.
    pub changer: Option<&'a AddressChanger>,
    /// The processes of keepalived.
    pub processes: ProcessSight,
    /// The adverts.
    pub adverts: AdvertSight<'a>,
    /// The settings of the instance, as far as adverts show them.
    pub own: &'a OwnSettings,
    /// The priority in the configuration; `None` if it is not set.
    pub configured_priority: Option<u8>,
    /// The advert interval of the configuration.
    pub interval: Duration,
    /// The master-down interval of the configuration.
    pub down_interval: Duration,
    /// Whether the deadline has passed: absent evidence counts now.
    pub is_final: bool,
}

/// Whether a transition gives this node addresses or takes some away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Gained,
    Lost,
}

impl CauseQuestion<'_> {
    /// The cause; `None` if more evidence may come.
    pub fn answer(&self) -> Option<Cause> {
        if let Some(kind) = self.kind_of_trigger() {
            return Some(Cause::new(kind));
        }
        let direction = self.direction();
        self.by_other_process(direction)
            .or_else(|| match direction {
                Direction::Lost => self.lost(),
                Direction::Gained => self.gained(),
            })
            .or_else(|| self.is_final.then(|| self.without_evidence(direction)))
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

    fn direction(&self) -> Direction {
        let is_lost = match (self.from, self.to) {
            (_, Role::Backup | Role::Fault(_) | Role::Unknown(_))
            | (Some(RoleKind::Primary), Role::Partial { .. }) => true,
            (_, Role::Primary | Role::Partial { .. }) => false,
        };
        if is_lost { Direction::Lost } else { Direction::Gained }
    }

    fn by_other_process(&self, direction: Direction) -> Option<Cause> {
        let Some(AddressChanger::Other { pid, program }) = self.changer else { return None };
        let kind = match direction {
            Direction::Gained => CauseKind::AddressAdded,
            Direction::Lost => CauseKind::AddressRemoved,
        };
        let evidence = Evidence { pid: *pid, program: program.clone(), ..Evidence::default() };
        Some(Cause { kind, evidence })
    }

    fn events(&self) -> Option<&KeepalivedEvents> {
        match &self.processes {
            ProcessSight::Read(events) => Some(events),
            ProcessSight::NotExamined | ProcessSight::NotRead | ProcessSight::NotFound => None,
        }
    }

    fn router(&self) -> Option<(&LinkWitness, &RouterWitness)> {
        match self.adverts {
            AdvertSight::Read { witness, key, .. } => Some((witness, witness.router(key)?)),
            AdvertSight::NotCaptured | AdvertSight::NotRead => None,
        }
    }

    /// Whether something happened at most `span` before the transition, or after it.
    fn is_recent(&self, at: Moment, span: Duration) -> bool {
        self.at.since(at) <= span
    }

    // ------------------------------------------------------------------------------------------ addresses lost

    fn lost(&self) -> Option<Cause> {
        self.by_end_of_keepalived()
            .or_else(|| self.by_removal_of_added_address())
            .or_else(|| self.by_known_freeze())
            .or_else(|| self.by_reload())
            .or_else(|| self.by_start_after_loss())
            .or_else(|| self.by_adverts_before_loss())
    }

    /// The cause that adverts show, once it is known that the processes do not show another one.
    fn by_adverts_before_loss(&self) -> Option<Cause> {
        if self.awaits_processes() {
            return None;
        }
        self.by_stronger_advert().or_else(|| self.by_own_hand_over())
    }

    /// Whether the processes will be read, and may show the cause.
    fn awaits_processes(&self) -> bool {
        matches!(self.processes, ProcessSight::NotRead) && !self.is_final
    }

    fn by_end_of_keepalived(&self) -> Option<Cause> {
        // A process that ended before the addresses were taken did not hold them.
        let is_holder = |end: &ProcessEnd| end.at + CLOCK_SLACK >= self.from_since;
        let is_recent = |end: &ProcessEnd| self.is_recent(end.at, PROCESS_SPAN);
        let ended = self.events()?.ended.filter(|end| is_recent(end) && is_holder(end))?;
        Some(end_of_process(&ended))
    }

    /// An address that another process had added is gone again, and keepalived had nothing to do with it; or another
    /// process has removed one address, and keepalived gives up the others because of that.
    fn by_removal_of_added_address(&self) -> Option<Cause> {
        let previous = self.previous?;
        let is_reaction = self.from == Some(RoleKind::Partial)
            && previous.kind == CauseKind::AddressRemoved
            && self.is_recent(previous.at, REACTION_SPAN);
        let is_added = previous.kind == CauseKind::AddressAdded && self.changer.is_none();
        let is_removed = (is_added || is_reaction) && !self.awaits_processes();
        is_removed.then(|| inferred(CauseKind::AddressRemoved))
    }

    /// A keepalived that was seen stopped or frozen has continued.
    fn by_known_freeze(&self) -> Option<Cause> {
        let resumed = self.events()?.resumed?;
        // Without a node that took over meanwhile, the pause is no reason to give up the addresses.
        let peer = self.strongest_foreign()?;
        let is_recent = self.is_recent(resumed, PROCESS_SPAN);
        is_recent.then(|| self.with_peer(CauseKind::KeepalivedFrozen, Some(peer)))
    }

    fn by_reload(&self) -> Option<Cause> {
        let events = self.events()?;
        let reloaded = events.reloaded?;
        let started = events.started.map(|start| start.at);
        let is_first = started.is_some_and(|started| reloaded.since(started) < FIRST_LOAD_SPAN);
        if is_first || !self.is_recent(reloaded, self.down_interval + FIRST_LOAD_SPAN) {
            return None;
        }
        let mut cause = Cause::new(CauseKind::ConfigurationChanged);
        cause.evidence.before_ms = Some(millis(self.at.since(reloaded)));
        Some(cause)
    }

    /// Keepalived removes addresses at its start that an earlier process has left.
    fn by_start_after_loss(&self) -> Option<Cause> {
        let start = self.events()?.started?;
        let is_between = start.at >= self.from_since && start.at <= self.at + CLOCK_SLACK;
        let is_recent = self.is_recent(start.at, PROCESS_SPAN);
        (is_recent && is_between).then(|| self.start_of_keepalived(None))
    }

    /// Another node advertised before the loss, with a priority that makes this node step back.
    fn by_stronger_advert(&self) -> Option<Cause> {
        let (_, router) = self.router()?;
        let foreign = self.strongest_foreign()?;
        let own = router.last_own(self.at).map(|own| own.record);
        let configured = self.configured_priority;
        let seen = own.map(|own| own.priority).filter(|priority| *priority > 0);
        if seen.is_some_and(|own| own > foreign.priority) {
            return None;
        }
        // A node that receives a stronger advert steps back at once. Adverts that went on for longer were not received
        // by keepalived: it was stopped or frozen.
        // Adverts with other settings than the own ones are ignored, until the settings are the same again.
        let heard_since = foreign.steady_since.max(foreign.settings_since);
        let overlap = self.at.since(heard_since.max(self.from_since));
        if overlap > foreign.interval * 3 / 2 && foreign.adverts > 1 {
            let mut cause = self.with_peer(CauseKind::KeepalivedFrozen, Some(foreign));
            cause.evidence.is_inferred = true;
            return Some(cause);
        }
        let dropped = own_drop(own, configured, foreign);
        let kind =
            if dropped.is_some() { CauseKind::PriorityDropped } else { CauseKind::Preempted };
        let mut cause = self.with_peer(kind, Some(foreign));
        cause.evidence.own_priority = seen;
        match dropped {
            Some(before) => cause.evidence.own_priority_before = Some(before),
            None => cause.evidence.own_priority = cause.evidence.own_priority.or(configured),
        }
        Some(cause)
    }

    /// The strongest other node that advertised before the loss.
    fn strongest_foreign(&self) -> Option<&SourceRecord> {
        let (_, router) = self.router()?;
        let slack = |record: &SourceRecord| {
            let is_short = self.at.since(self.from_since) < record.interval;
            if is_short { TAKEOVER_SPAN } else { CLOCK_SLACK }
        };
        let is_candidate = |record: &&SourceRecord| {
            record.origin == AdvertOrigin::Foreign
                && record.priority > 0
                && !self.is_stranger(record)
                // Adverts that began after the loss are its consequence.
                && record.steady_since <= self.at + CLOCK_SLACK
                // A former primary that this node has replaced is no reason to step back.
                && record.at + slack(record) >= self.from_since
                && self.at.since(record.at) <= record.interval * 2
        };
        let candidates = router.sources().iter().filter(is_candidate);
        candidates.max_by_key(|record| (record.priority, record.source))
    }

    /// Whether a host advertises entirely other addresses under the same virtual router id. Keepalived drops its adverts.
    fn is_stranger(&self, record: &SourceRecord) -> bool {
        let own = self.own.addresses.as_ref().filter(|own| !own.is_empty());
        own.is_some_and(|own| {
            record.addresses().next().is_some() && !record.addresses().any(|ip| own.contains(&ip))
        })
    }

    fn by_own_hand_over(&self) -> Option<Cause> {
        let (_, router) = self.router()?;
        let own = router.last_own(self.at)?.record;
        let is_hand_over = own.priority == 0 && self.at.since(own.at) <= own.interval;
        // Keepalived may be about to end: that is known at the deadline.
        (is_hand_over && self.is_final).then(|| Cause::new(CauseKind::HandedOver))
    }

    // ---------------------------------------------------------------------------------------- addresses gained

    fn gained(&self) -> Option<Cause> {
        self.by_reload().or_else(|| self.by_start()).or_else(|| self.by_adverts_of_peer())
    }

    fn by_start(&self) -> Option<Cause> {
        let start = self.events()?.started?;
        let span = self.down_interval + START_MARGIN;
        let peer = self.newest_foreign();
        // A keepalived that starts takes over from weaker nodes only. A stronger one must have left.
        let is_weaker = peer.is_none_or(|peer| !self.was_stronger(peer, start.at));
        // A role that has changed since the start has another reason to change again.
        let is_first = self.from_since <= start.at + FIRST_LOAD_SPAN
            || self.from == Some(RoleKind::Partial)
                && self.at.since(self.from_since) < FIRST_LOAD_SPAN;
        let is_start = self.is_recent(start.at, span) && is_first && is_weaker;
        is_start.then(|| self.start_of_keepalived(peer))
    }

    /// Whether another node advertised after `since` with a priority that keeps this node from taking over.
    fn was_stronger(&self, peer: &SourceRecord, since: Moment) -> bool {
        let before = peer.previous_priority.filter(|(_, changed)| *changed >= since);
        let highest = before.map_or(peer.priority, |(before, _)| before.max(peer.priority));
        peer.at >= since && highest >= self.configured_priority.unwrap_or(DEFAULT_PRIORITY)
    }

    fn start_of_keepalived(&self, peer: Option<&SourceRecord>) -> Cause {
        let mut cause = self.with_peer(CauseKind::KeepalivedStarted, peer);
        let start = self.events().and_then(|events| events.started);
        cause.evidence.pid = start.map(|start| start.pid);
        cause.evidence.before_ms = start.map(|start| millis(self.at.since(start.at)));
        cause
    }

    fn newest_foreign(&self) -> Option<&SourceRecord> {
        let (_, router) = self.router()?;
        let foreign =
            router.sources().iter().filter(|record| record.origin == AdvertOrigin::Foreign);
        foreign.max_by_key(|record| record.at)
    }

    fn by_adverts_of_peer(&self) -> Option<Cause> {
        let (witness, router) = self.router()?;
        if self.awaits_processes() {
            return None;
        }
        let silent = |record: &SourceRecord| self.at.since(record.at);
        let Some(peer) = self.newest_foreign() else {
            let since = self.at.before(self.down_interval);
            let is_complete = !witness.is_incomplete_since(since);
            return Some(if is_complete {
                inferred(CauseKind::FaultEnded)
            } else {
                Cause::unknown(UnknownReason::CaptureIncomplete)
            });
        };
        if peer.priority == 0 && silent(peer) <= self.down_interval + FIRST_LOAD_SPAN {
            return Some(self.with_peer(CauseKind::PeerHandedOver, Some(peer)));
        }
        if silent(peer) > (self.down_interval + START_MARGIN) * 2 {
            return Some(inferred(CauseKind::FaultEnded));
        }
        // A backup waits for more than three intervals. A node that is preempted may have lost an advert.
        if silent(peer) > peer.interval * 5 / 2 {
            if witness.overrun().is_some_and(|overrun| overrun.to > peer.at) {
                return Some(Cause::unknown(UnknownReason::CaptureIncomplete));
            }
            return Some(self.with_peer(CauseKind::PeerSilent, Some(peer)));
        }
        // A peer that was preempted stops. One that goes on was not: another process has added the address.
        if self.changer.is_none() {
            let goes_on = self.is_later_advertising(peer)?;
            if goes_on && differences(self.own, peer).is_empty() {
                return Some(inferred(CauseKind::AddressAdded));
            }
        }
        Some(self.over_advertising_peer(router, peer))
    }

    /// Whether another node still advertises at the deadline; `None` before it.
    fn is_later_advertising(&self, peer: &SourceRecord) -> Option<bool> {
        let AdvertSight::Read { key, later: Some(later), .. } = self.adverts else { return None };
        let records = later.router(key)?.sources().iter();
        let mut same = records.filter(|one| one.source == peer.source && one.origin == peer.origin);
        let is_going_on = |record: &SourceRecord| {
            let end = self.at + record.interval / 2;
            record.priority > 0 && record.at > end && record.steady_since <= self.at
        };
        Some(same.any(is_going_on))
    }

    /// The other node that advertised last, of those that are silent.
    fn last_silent<'r>(&self, router: &'r RouterWitness) -> Option<&'r SourceRecord> {
        let is_silent = |record: &&SourceRecord| {
            let silent = self.at.since(record.at);
            record.origin == AdvertOrigin::Foreign && silent > record.interval * 5 / 2
        };
        router.sources().iter().filter(is_silent).max_by_key(|record| record.at)
    }

    /// The cause where the peer still advertises.
    fn over_advertising_peer(&self, router: &RouterWitness, peer: &SourceRecord) -> Cause {
        if let Some((before, at)) = peer.previous_priority
            && before > peer.priority
            && self.is_recent(at, self.down_interval + START_MARGIN)
        {
            let mut cause = self.with_peer(CauseKind::PeerPriorityDropped, Some(peer));
            cause.evidence.peer_priority_before = Some(before);
            return cause;
        }
        let own = router.last_own(self.at).map(|own| own.record.priority).filter(|own| *own > 0);
        let own = own.or(self.configured_priority);
        if own.is_some_and(|own| own < peer.priority) {
            // Keepalived begins an election when it receives a weaker advert, also beside a stronger one.
            let is_recent = |record: &&SourceRecord| {
                record.origin == AdvertOrigin::Foreign
                    && self.at.since(record.at) <= record.interval * 3 / 2
            };
            let others = router.sources().iter().filter(is_recent);
            let weakest = others.min_by_key(|record| record.priority);
            if let Some(weaker) = weakest.filter(|one| own.is_some_and(|own| one.priority < own)) {
                return self.with_peer(CauseKind::PreemptedPeer, Some(weaker));
            }
            // Two backups take over from a silent node at the same moment: the stronger one has just begun.
            if self.at.since(peer.steady_since) < TAKEOVER_SPAN {
                return self.with_peer(CauseKind::PeerSilent, self.last_silent(router));
            }
            let mut cause = self.with_peer(CauseKind::Unknown, Some(peer));
            cause.evidence.unknown = Some(UnknownReason::AdvertsIgnored);
            return cause;
        }
        self.with_peer(CauseKind::PreemptedPeer, Some(peer))
    }

    // ------------------------------------------------------------------------------------------------- both

    /// A cause with the facts about the other node and the priority of this one.
    fn with_peer(&self, kind: CauseKind, peer: Option<&SourceRecord>) -> Cause {
        let own = self.router().and_then(|(_, router)| router.last_own(self.at));
        let own = own.map(|own| own.record.priority).filter(|own| *own > 0);
        let evidence = Evidence {
            peer: peer.map(|peer| peer.source),
            peer_priority: peer.map(|peer| peer.priority),
            own_priority: own.or(self.configured_priority),
            silent_ms: peer.map(|peer| millis(self.at.since(peer.at))),
            ..Evidence::default()
        };
        Cause { kind, evidence }
    }

    /// The cause at the deadline, where no evidence has come.
    fn without_evidence(&self, direction: Direction) -> Cause {
        let is_captured = match self.adverts {
            AdvertSight::NotCaptured => false,
            AdvertSight::NotRead | AdvertSight::Read { .. } => true,
        };
        let begin = self.at.before(self.interval * 2);
        let is_incomplete = match self.adverts {
            AdvertSight::NotCaptured => false,
            AdvertSight::NotRead => true,
            AdvertSight::Read { witness, .. } => witness.is_incomplete_since(begin),
        };
        if is_incomplete {
            return Cause::unknown(UnknownReason::CaptureIncomplete);
        }
        let reason = match (&self.processes, direction) {
            (ProcessSight::NotFound, Direction::Gained) => {
                return inferred(CauseKind::AddressAdded);
            }
            (ProcessSight::NotFound, Direction::Lost) => {
                return inferred(CauseKind::AddressRemoved);
            }
            (ProcessSight::Read(events), Direction::Lost)
                if events.is_running && is_captured && self.changer.is_some() =>
            {
                return inferred(CauseKind::KeepalivedFault);
            }
            _ if !is_captured => UnknownReason::NotCaptured,
            (ProcessSight::NotExamined | ProcessSight::NotRead, _) => {
                UnknownReason::ProcessesNotRead
            }
            (ProcessSight::Read(_), _) => UnknownReason::NoEvidence,
        };
        Cause::unknown(reason)
    }
}

fn inferred(kind: CauseKind) -> Cause {
    Cause { kind, evidence: Evidence { is_inferred: true, ..Evidence::default() } }
}

fn end_of_process(end: &ProcessEnd) -> Cause {
    let mut evidence = Evidence { pid: Some(end.pid), ..Evidence::default() };
    let kind = match end.exit {
        // Keepalived catches SIGTERM. A process that it ends by its default action had not begun to work yet.
        ProcessExit::Signal(signal) => {
            evidence.signal = Some(signal);
            CauseKind::KeepalivedKilled
        }
        ProcessExit::Code(code) => {
            evidence.exit_code = Some(code);
            CauseKind::KeepalivedStopped
        }
        ProcessExit::Unknown => CauseKind::KeepalivedStopped,
    };
    Cause { kind, evidence }
}

/// The priority of this node before it dropped; `None` if it has not dropped.
fn own_drop(
    own: Option<&SourceRecord>,
    configured: Option<u8>,
    foreign: &SourceRecord,
) -> Option<u8> {
    match own {
        Some(own) => {
            let before = own.previous_priority.map(|(before, _)| before).or(configured)?;
            let now = if own.priority == 0 { return None } else { own.priority };
            (now < before).then_some(before)
        }
        // Without own adverts: a weaker node than the configured priority took over.
        None => configured.filter(|configured| *configured > foreign.priority),
    }
}

#[cfg(test)]
mod tests;
