// SPDX-License-Identifier: Apache-2.0
//! The words that are right for a transition by an election, from the adverts that the switch delivered.

use std::net::IpAddr;

use super::Situation;
use super::expected::{CLOCK_MARGIN, REACTION, Words};
use crate::check::wire::WireAdvert;
use crate::moment::{Micros, SECOND};

impl<'a> Situation<'a> {
    /// The source of the foreign host's adverts, which decide nothing.
    fn foreign_source(self) -> Option<IpAddr> {
        let (run, facts) = (self.scene.run, self.scene.facts());
        run.sent(run.nodes.len(), facts).next().map(|advert| advert.source)
    }

    /// The delivered adverts of other nodes than the foreign host.
    fn peer_adverts(self) -> impl Iterator<Item = &'a WireAdvert> {
        let foreign = self.foreign_source();
        self.scene.delivered().filter(move |advert| Some(advert.source) != foreign)
    }

    /// The newest advert that the node received before the transition.
    fn newest_delivered(self) -> Option<&'a WireAdvert> {
        self.peer_adverts().take_while(|advert| self.age(advert.at) >= -CLOCK_MARGIN / 10).last()
    }

    /// The priority before the last one in the node's own adverts, if the last one is lower.
    fn own_earlier_priority(self) -> Option<u8> {
        let sent = self.scene.sent().filter(|advert| advert.priority != 0);
        let sent = sent.filter(|advert| (0..10 * SECOND).contains(&self.age(advert.at)));
        let sent: Vec<u8> = sent.map(|advert| advert.priority).collect();
        let last = sent.last()?;
        sent.iter()
            .rev()
            .copied()
            .find(|priority| priority != last)
            .filter(|earlier| last < earlier)
    }

    pub(super) fn lost(self) -> Words {
        let earlier = self.own_earlier_priority();
        let newest = self.newest_delivered().map(|newest| newest.priority);
        if earlier.zip(newest).is_some_and(|(earlier, newest)| newest < earlier) {
            return vec!["priority-dropped"];
        }
        if earlier.is_some() || self.fault("fault-begin", 2 * REACTION) == "priority-drop" {
            return vec!["priority-dropped", "preempted"];
        }
        if self.fault("recover-begin", REACTION) == "freeze-child" {
            return vec!["preempted", "keepalived-frozen"];
        }
        vec!["preempted"]
    }

    pub(super) fn gained(self) -> Words {
        let mut words = self.gained_from_peer();
        // A foreign host has a lower priority: keepalived preempts it as if it were a peer.
        let (foreign, limit) = (self.foreign_source(), self.recent());
        let mut delivered = self.scene.delivered();
        let is_foreign = |advert: &WireAdvert| {
            Some(advert.source) == foreign && (0..limit).contains(&self.age(advert.at))
        };
        if delivered.any(is_foreign) {
            // keepalived also follows the priority 0 that the foreign host sends at its end.
            words.splice(0..0, ["preempted-peer", "peer-handed-over"]);
        }
        words
    }

    /// A host still advertises if its newest advert is younger.
    fn recent(self) -> Micros {
        self.scene.run.interval() * 3 / 2 + CLOCK_MARGIN
    }

    fn gained_from_peer(self) -> Words {
        let (run, interval) = (self.scene.run, self.scene.run.interval());
        let Some(newest) = self.newest_delivered() else {
            return vec!["peer-silent", "fault-ended"];
        };
        let age = self.age(newest.at);
        if newest.priority == 0 {
            return vec!["peer-handed-over"];
        }
        if age < CLOCK_MARGIN.max(interval / 3) && self.is_silent_before(newest) {
            // Two backups took over from a silent node at the same moment.
            return vec!["peer-silent", "preempted-peer"];
        }
        if age < self.recent() {
            return if self.is_dropped(newest, 5 * SECOND) {
                vec!["peer-priority-dropped"]
            } else if self.is_dropped(newest, (10 * SECOND).max(run.down_interval(1) + SECOND)) {
                vec!["peer-priority-dropped", "preempted-peer"]
            } else {
                vec!["preempted-peer"]
            };
        }
        if self.was_backup(newest) {
            return vec!["fault-ended"];
        }
        if age > 2 * run.down_interval(1) {
            // The node itself could not be primary until now: no other node was there to be silent.
            return vec!["fault-ended", "peer-silent"];
        }
        vec!["peer-silent"]
    }

    /// Whether the sender of the newest advert was a backup when this node gave up its addresses: it is rightly silent.
    fn was_backup(self, newest: &WireAdvert) -> bool {
        let rows = self.scene.record().answers.rows.iter();
        let rows = rows.filter(|row| row.instance == self.row.instance && row.seq < self.row.seq);
        rows.max_by_key(|row| row.seq).is_some_and(|before| {
            before.from == "primary"
                && before.to == "backup"
                && before.at > newest.at + self.scene.run.interval() + CLOCK_MARGIN
        })
    }

    /// Whether no node had advertised for three intervals before this advert.
    fn is_silent_before(self, newest: &WireAdvert) -> bool {
        let span = 3 * self.scene.run.interval() - CLOCK_MARGIN;
        !self.peer_adverts().any(|advert| (1..span).contains(&(newest.at - advert.at)))
    }

    /// Whether the peers were silent for three intervals.
    pub(super) fn is_silent(self) -> bool {
        let newest = self.newest_delivered();
        newest.is_some_and(|newest| self.age(newest.at) >= 3 * self.scene.run.interval())
    }

    /// Whether the node received adverts with another number of addresses than its own, which keepalived drops.
    pub(super) fn has_other_addresses(self) -> bool {
        let own = self.scene.configured(self.row.at).filter(|_| self.scene.instance == 0);
        let Some(own) = own else { return false };
        self.scene.delivered().any(|advert| {
            (0..10 * SECOND).contains(&self.age(advert.at)) && advert.addresses.len() != own.len()
        })
    }

    /// Whether the priority of the peer that advertised last has just sunk.
    pub(super) fn is_peer_dropped(self) -> bool {
        self.newest_delivered().is_some_and(|newest| self.is_dropped(newest, 10 * SECOND))
    }

    /// Whether the sender of an advert had a higher priority within this time before.
    fn is_dropped(self, newest: &WireAdvert, within: Micros) -> bool {
        self.scene.delivered().any(|advert| {
            advert.source == newest.source
                && (1..within).contains(&(newest.at - advert.at))
                && advert.priority > newest.priority
        })
    }

    /// Whether the newest advert that the node received has the priority 0 and is not older than an election.
    pub(super) fn is_just_handed_over(self) -> bool {
        self.newest_delivered().is_some_and(|newest| {
            newest.priority == 0 && self.age(newest.at) < 2 * self.scene.run.interval()
        })
    }
}
