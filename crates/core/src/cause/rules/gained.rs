// SPDX-License-Identifier: Apache-2.0
//! The rules for transitions that give addresses to this node.

use std::time::Duration;

use super::{
    AdvertEvidence, CLOCK_SLACK, CauseQuestion, FIRST_LOAD_SPAN, START_MARGIN, TAKEOVER_SPAN,
    inferred,
};
use crate::cause::{Cause, CauseKind, UnknownReason};
use crate::witness::{AdvertOrigin, RouterWitness, SourceRecord, differences};
use crate::{Moment, RoleKind};

/// The priority of a virtual router that does not set one.
const DEFAULT_PRIORITY: u8 = 100;

impl CauseQuestion<'_> {
    pub(super) fn gained(&self) -> Option<Cause> {
        if let Some(reload) = self.by_reload() {
            // The adverts show whether the peer handed over, which is the stronger fact.
            let is_waiting = matches!(self.adverts, AdvertEvidence::NotRead) && !self.is_final;
            let hand_over = self.by_hand_over().filter(|_| self.is_first_step_after_hand_over());
            return (!is_waiting).then(|| hand_over.unwrap_or(reload));
        }
        self.by_start().or_else(|| self.by_adverts_of_peer())
    }

    /// The other node has just sent the priority 0.
    fn by_hand_over(&self) -> Option<Cause> {
        let peer = self.newest_foreign()?;
        let is_recent = self.is_recent(peer.at, self.down_interval + FIRST_LOAD_SPAN);
        let is_leaving = peer.priority == 0 && is_recent;
        is_leaving.then(|| self.with_peer(CauseKind::PeerHandedOver, Some(peer)))
    }

    /// Whether this is the first takeover after the newest advert of a peer, or the next step of it.
    fn is_first_step_after_hand_over(&self) -> bool {
        let is_next_step = self.from == Some(RoleKind::Partial)
            && self.at.since(self.from_since) < FIRST_LOAD_SPAN;
        is_next_step || self.newest_foreign().is_some_and(|peer| !self.is_older_than_role(peer))
    }

    /// Whether the newest advert of a peer is older than the role before the transition.
    fn is_older_than_role(&self, peer: &SourceRecord) -> bool {
        peer.at + CLOCK_SLACK < self.from_since
    }

    fn by_start(&self) -> Option<Cause> {
        // The adverts show whether a stronger node has left, which is the better answer.
        if matches!(self.adverts, AdvertEvidence::NotRead) && !self.is_final {
            return None;
        }
        let start = self.events()?.started?;
        let span = self.startup_delay + self.down_interval + START_MARGIN;
        let peer = self.newest_foreign();
        // A keepalived that starts takes over from weaker nodes only. A stronger one must have left.
        let is_weaker = peer.is_none_or(|peer| !self.was_stronger(peer, start.at));
        // A role that has changed since the start has another reason to change again.
        let is_first = self.from_since <= start.at + FIRST_LOAD_SPAN
            || self.continues(CauseKind::KeepalivedStarted)
                && self.at.since(self.from_since) < FIRST_LOAD_SPAN;
        let is_before = start.at <= self.at + CLOCK_SLACK;
        let is_start = is_before && self.is_recent(start.at, span) && is_first && is_weaker;
        is_start.then(|| self.start_of_keepalived(peer))
    }

    /// Whether another node advertised after `since` with a priority that keeps this node from taking over.
    fn was_stronger(&self, peer: &SourceRecord, since: Moment) -> bool {
        if self.has_just_begun(peer) {
            return false;
        }
        let before = peer.previous_priority.filter(|(_, changed)| *changed >= since);
        let highest = before.map_or(peer.priority, |(before, _)| before.max(peer.priority));
        peer.at >= since && highest >= self.known_priority().unwrap_or(DEFAULT_PRIORITY)
    }

    /// Whether another node took over at the same moment as this one. On a busy machine, keepalived takes the addresses
    /// although it could have received an advert by then.
    fn has_just_begun(&self, peer: &SourceRecord) -> bool {
        self.at.since(peer.steady_since) < TAKEOVER_SPAN.max(peer.interval / 3)
    }

    fn newest_foreign(&self) -> Option<&SourceRecord> {
        let (_, router) = self.router()?;
        self.foreign(router).max_by_key(|record| record.at)
    }

    /// The other hosts that advertise, or have advertised, to this instance, unless it ignores them.
    fn foreign<'r>(&self, router: &'r RouterWitness) -> impl Iterator<Item = &'r SourceRecord> {
        let is_wanted = |record: &&SourceRecord| {
            record.origin == AdvertOrigin::Foreign
                && !self.own.ignores_adverts
                && self.own.concerns(record)
                && !self.own.lacks_addresses(record)
        };
        router.sources().iter().filter(is_wanted)
    }

    fn by_adverts_of_peer(&self) -> Option<Cause> {
        if self.own.ignores_adverts {
            return None;
        }
        let (witness, router) = self.router()?;
        if self.awaits_processes() {
            return None;
        }
        let silent = |record: &SourceRecord| self.at.since(record.at);
        let Some(peer) = self.newest_foreign() else {
            let since = self.at.before(self.down_interval);
            let is_complete =
                !witness.is_incomplete_since(since) && router.undecoded().last <= Some(since);
            return Some(if is_complete {
                inferred(CauseKind::FaultEnded)
            } else {
                Cause::unknown(UnknownReason::CaptureIncomplete)
            });
        };
        if let Some(hand_over) = self.by_hand_over() {
            return Some(hand_over);
        }
        let is_silent = silent(peer) > self.silent_after(peer);
        if is_silent && router.undecoded().last > Some(peer.at) {
            return Some(Cause::unknown(UnknownReason::CaptureIncomplete));
        }
        if silent(peer) > (self.down_interval + START_MARGIN) * 2 {
            return Some(inferred(CauseKind::FaultEnded));
        }
        if is_silent {
            if witness.overrun().is_some_and(|overrun| overrun.to > peer.at) {
                return Some(Cause::unknown(UnknownReason::CaptureIncomplete));
            }
            // A peer that takes the addresses away from this node sends an advert at that moment. One that did not was a
            // backup, and a backup is silent.
            let was_backup = peer.at + peer.interval < self.from_since;
            return Some(if self.from == Some(RoleKind::Backup) && was_backup {
                inferred(CauseKind::FaultEnded)
            } else {
                self.with_peer(CauseKind::PeerSilent, Some(peer))
            });
        }
        // The peer has not advertised since this node gave up its addresses: no other node had taken them.
        if self.from == Some(RoleKind::Backup) && self.is_older_than_role(peer) {
            return Some(inferred(CauseKind::FaultEnded));
        }
        // A peer that was preempted stops. One that goes on was not: another process has added the address.
        if self.changer.is_none() && !self.has_weaker(router) && self.stranger(router).is_none() {
            let goes_on = self.is_later_advertising(peer)?;
            if goes_on {
                return Some(inferred(CauseKind::AddressAdded));
            }
        }
        Some(self.over_advertising_peer(router, peer))
    }

    /// The time without an advert that only a silent peer has. A backup usually waits for more than three intervals, with
    /// `down_timer_adverts` 1 or 2 for less. A node that is preempted may have lost an advert.
    fn silent_after(&self, peer: &SourceRecord) -> Duration {
        let usual = peer.interval * 5 / 2;
        if peer.interval != self.interval {
            return usual;
        }
        usual.min(self.down_interval.saturating_sub(peer.interval / 2).max(peer.interval))
    }

    /// The weakest other host that advertises, also one with other addresses.
    fn weakest_foreign<'r>(&self, router: &'r RouterWitness) -> Option<&'r SourceRecord> {
        let is_recent =
            |record: &&SourceRecord| self.at.since(record.at) <= record.interval * 3 / 2;
        self.foreign(router).filter(is_recent).min_by_key(|record| record.priority)
    }

    /// Whether one of several other hosts advertises with a lower priority than this node: keepalived begins an election
    /// because of it, whatever the others do.
    fn has_weaker(&self, router: &RouterWitness) -> bool {
        let own = self.known_priority().unwrap_or(DEFAULT_PRIORITY);
        let newest = self.newest_foreign().map(|newest| newest.source);
        let weakest = self.weakest_foreign(router);
        weakest.is_some_and(|one| one.priority < own && Some(one.source) != newest)
    }

    /// Another host that advertises with settings for which keepalived drops its adverts.
    fn stranger<'r>(&self, router: &'r RouterWitness) -> Option<&'r SourceRecord> {
        let is_recent =
            |record: &&SourceRecord| self.at.since(record.at) <= record.interval * 5 / 2;
        self.foreign(router).filter(is_recent).find(|record| {
            !differences(self.own, record).is_empty() || self.own.rejection(record).is_some()
        })
    }

    /// Whether another node still advertises at the deadline; `None` before it.
    fn is_later_advertising(&self, peer: &SourceRecord) -> Option<bool> {
        let AdvertEvidence::Read { key, later: Some(later), .. } = self.adverts else {
            return None;
        };
        let records = later.router(key)?.sources().iter();
        let mut same = records.filter(|one| one.source == peer.source && one.origin == peer.origin);
        let is_going_on = |record: &SourceRecord| {
            let end = self.at + record.interval / 2;
            record.priority > 0 && record.at > end && record.steady_since <= self.at
        };
        Some(same.any(is_going_on))
    }

    /// The other node that advertised last, of those that have become silent just now.
    fn last_silent<'r>(&self, router: &'r RouterWitness) -> Option<&'r SourceRecord> {
        let is_silent = |record: &&SourceRecord| {
            let silent = self.at.since(record.at);
            let is_silent =
                silent > self.silent_after(record) && silent < self.down_interval + START_MARGIN;
            record.priority > 0 && is_silent
        };
        self.foreign(router).filter(is_silent).max_by_key(|record| record.at)
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
        let own = own.or(self.known_priority());
        if own.is_some_and(|own| own < peer.priority) {
            // Keepalived begins an election when it receives a weaker advert, also beside a stronger one.
            let weakest = self.weakest_foreign(router);
            if let Some(weaker) = weakest.filter(|one| own.is_some_and(|own| one.priority < own)) {
                return self.with_peer(CauseKind::PreemptedPeer, Some(weaker));
            }
            // Two backups take over from a silent node at the same moment: the stronger one has just begun.
            let is_new = self.has_just_begun(peer);
            if let Some(silent) = self.last_silent(router).filter(|_| is_new) {
                return self.with_peer(CauseKind::PeerSilent, Some(silent));
            }
            let stranger = self.stranger(router);
            if is_new && peer.adverts > 1 && stranger.is_none() {
                // The peer was silent, and is back at this moment: how long it was silent is not known.
                let mut cause = self.with_peer(CauseKind::PeerSilent, Some(peer));
                cause.evidence.silent_ms = None;
                return cause;
            }
            if is_new && stranger.is_none() {
                return inferred(CauseKind::FaultEnded);
            }
            let mut cause = self.with_peer(CauseKind::Unknown, stranger.or(Some(peer)));
            cause.evidence.unknown = Some(UnknownReason::AdvertsIgnored);
            return cause;
        }
        self.with_peer(CauseKind::PreemptedPeer, Some(peer))
    }
}
