// SPDX-License-Identifier: Apache-2.0
//! The rules for transitions that take addresses away from this node.

use std::time::Duration;

use super::{CLOCK_SLACK, CauseQuestion, PROCESS_SPAN, TAKEOVER_SPAN, inferred};
use crate::RoleKind;
use crate::cause::{Cause, CauseKind, Evidence, ProcessEnd, ProcessExit};
use crate::witness::{AdvertOrigin, SourceRecord};

/// Keepalived reacts to an address that another process has removed within this time.
const REACTION_SPAN: Duration = Duration::from_millis(2_500);

/// Keepalived that continues after a freeze gives way to another node within this time.
const FREEZE_SPAN: Duration = Duration::from_secs(1);

/// The node notices the end of a process within this time.
const NOTICE_SPAN: Duration = Duration::from_millis(500);

impl CauseQuestion<'_> {
    pub(super) fn lost(&self) -> Option<Cause> {
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

    fn by_end_of_keepalived(&self) -> Option<Cause> {
        // A process that ended before the addresses were taken did not hold them.
        let is_holder = |end: &ProcessEnd| end.at + CLOCK_SLACK >= self.from_since;
        let is_recent = |end: &ProcessEnd| self.is_recent(end.at, PROCESS_SPAN);
        // Keepalived removes its addresses before it ends, unless a signal ends it: then another process removes them.
        let is_before = |end: &ProcessEnd| match end.exit {
            ProcessExit::Signal(_) => end.at <= self.at + NOTICE_SPAN,
            ProcessExit::Code(_) | ProcessExit::Unknown => true,
        };
        let is_cause = |end: &ProcessEnd| is_recent(end) && is_holder(end) && is_before(end);
        let ended = self.events()?.ended.filter(is_cause)?;
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
        // A role that it took afterwards has another end.
        let resumed = self.events()?.resumed.filter(|resumed| *resumed >= self.from_since)?;
        // Without a node that took over meanwhile, the pause is no reason to give up the addresses.
        let peer = self.strongest_foreign()?;
        // It reads the adverts that have arrived meanwhile at once.
        let is_recent = self.is_recent(resumed, FREEZE_SPAN);
        is_recent.then(|| self.with_peer(CauseKind::KeepalivedFrozen, Some(peer)))
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
        let priority = self.acting_priority(foreign);
        let configured = self.known_priority();
        let seen = own.map(|own| own.priority).filter(|priority| *priority > 0);
        if seen.is_some_and(|own| own > priority) {
            return None;
        }
        // A node that receives a stronger advert steps back at once. Adverts that went on for longer were not received
        // by keepalived: it was stopped or frozen.
        // Adverts with other settings than the own ones are ignored, until the settings are the same again.
        let heard_since = foreign.steady_since.max(foreign.settings_since);
        let overlap = self.at.since(heard_since.max(self.from_since));
        let is_advertising = own.is_some_and(|own| self.at.since(own.at) <= own.interval * 3 / 2);
        if overlap > foreign.interval * 3 / 2 && foreign.adverts > 1 && !is_advertising {
            let mut cause = self.with_peer(CauseKind::KeepalivedFrozen, Some(foreign));
            cause.evidence.is_inferred = true;
            return Some(cause);
        }
        let dropped = own_drop(own, configured, priority);
        let kind =
            if dropped.is_some() { CauseKind::PriorityDropped } else { CauseKind::Preempted };
        let mut cause = self.with_peer(kind, Some(foreign));
        (cause.evidence.own_priority, cause.evidence.peer_priority) = (seen, Some(priority));
        match dropped {
            Some(before) => cause.evidence.own_priority_before = Some(before),
            None => cause.evidence.own_priority = cause.evidence.own_priority.or(configured),
        }
        Some(cause)
    }

    /// The strongest other node that advertised before the loss.
    pub(super) fn strongest_foreign(&self) -> Option<&SourceRecord> {
        let (_, router) = self.router()?;
        let slack = |record: &SourceRecord| {
            let is_short = self.at.since(self.from_since) < record.interval;
            if is_short { TAKEOVER_SPAN } else { CLOCK_SLACK }
        };
        let is_candidate = |record: &&SourceRecord| {
            record.origin == AdvertOrigin::Foreign
                && !self.own.ignores_adverts
                && self.acting_priority(record) > 0
                && self.own.concerns(record)
                // keepalived drops them.
                && !self.own.is_other_service(record)
                && !self.own.lacks_addresses(record)
                && self.own.rejection(record).is_none()
                // Adverts that began after the loss are its consequence.
                && record.steady_since <= self.at + CLOCK_SLACK
                // A former primary that this node has replaced is no reason to step back.
                && record.at + slack(record) >= self.from_since
                && self.at.since(record.at) <= record.interval * 2
        };
        let candidates = router.sources().iter().filter(is_candidate);
        candidates.max_by_key(|record| (self.acting_priority(record), record.source))
    }

    /// The priority of a source, or the one before it handed over: a node that continues after a freeze may advertise and
    /// hand over within milliseconds. 0 if it had begun before this node took the addresses.
    fn acting_priority(&self, record: &SourceRecord) -> u8 {
        let before = record.previous_priority.filter(|_| record.since >= self.from_since);
        let before = before.map_or(0, |(before, _)| before);
        if record.priority > 0 { record.priority } else { before }
    }

    fn by_own_hand_over(&self) -> Option<Cause> {
        let (_, router) = self.router()?;
        let own = router.last_own(self.at)?.record;
        let is_hand_over = own.priority == 0 && self.at.since(own.at) <= own.interval;
        // Keepalived may be about to end: that is known at the deadline.
        (is_hand_over && self.is_final).then(|| Cause::new(CauseKind::HandedOver))
    }
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
fn own_drop(own: Option<&SourceRecord>, configured: Option<u8>, foreign: u8) -> Option<u8> {
    match own {
        Some(own) => {
            let before = own.previous_priority.map(|(before, _)| before).or(configured)?;
            let now = if own.priority == 0 { return None } else { own.priority };
            (now < before).then_some(before)
        }
        // Without own adverts: a weaker node than the configured priority took over.
        None => configured.filter(|configured| *configured > foreign),
    }
}
