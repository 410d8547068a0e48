// SPDX-License-Identifier: Apache-2.0
//! The words that are right for a transition by an election, from the adverts that the switch delivered.

use super::expected::{CLOCK_MARGIN, REACTION, Situation};
use crate::check::wire::WireAdvert;
use crate::moment::{Micros, SECOND};

impl Situation<'_> {
    /// The newest advert that the node received before the transition.
    pub fn newest_delivered(&self) -> Option<&WireAdvert> {
        let vrid = self.record.run.setup.instances[self.instance].vrid;
        let foreign = self.foreign_source();
        let before = self.record.delivered(self.node, vrid);
        before
            .take_while(|advert| advert.at <= self.row.at + CLOCK_MARGIN / 10)
            .filter(|advert| Some(advert.source) != foreign)
            .last()
    }

    /// The source of the foreign host's adverts, which decide nothing.
    fn foreign_source(&self) -> Option<std::net::IpAddr> {
        let vrid = self.record.run.setup.instances[self.instance].vrid;
        self.record.sent(self.record.nodes.len(), vrid).next().map(|advert| advert.source)
    }

    /// The priorities of a host's last two different adverts before the transition, the newer one first.
    fn own_priorities(&self) -> (Option<u8>, Option<u8>) {
        let vrid = self.record.run.setup.instances[self.instance].vrid;
        let sent: Vec<u8> = self
            .record
            .sent(self.node, vrid)
            .take_while(|advert| advert.at <= self.row.at)
            .filter(|advert| advert.priority != 0 && self.row.at - advert.at < 10 * SECOND)
            .map(|advert| advert.priority)
            .collect();
        let last = sent.last().copied();
        (last, sent.iter().rev().copied().find(|priority| Some(*priority) != last))
    }

    pub fn lost(&self) -> Vec<&'static str> {
        let has_failed_script = self.fault("fault-begin", 2 * REACTION) == Some("priority-drop");
        let (last, earlier) = self.own_priorities();
        let earlier = earlier.filter(|earlier| last.is_some_and(|last| last < *earlier));
        let newest = self.newest_delivered().map(|newest| newest.priority);
        if let (Some(earlier), Some(newest)) = (earlier, newest)
            && newest < earlier
        {
            return vec!["priority-dropped"];
        }
        if has_failed_script || earlier.is_some() {
            return vec!["priority-dropped", "preempted"];
        }
        if self.fault("recover-begin", REACTION) == Some("freeze-child") {
            return vec!["preempted", "keepalived-frozen"];
        }
        vec!["preempted"]
    }

    pub fn gained(&self) -> Vec<&'static str> {
        let mut words = self.gained_from_peer();
        if self.is_stranger_lower() {
            // keepalived also follows the priority 0 that the foreign host sends at its end.
            words.splice(0..0, ["preempted-peer", "peer-handed-over"]);
        }
        words
    }

    /// Whether a foreign host with a lower priority advertises: keepalived preempts it as if it were a peer.
    fn is_stranger_lower(&self) -> bool {
        let vrid = self.record.run.setup.instances[self.instance].vrid;
        let foreign = self.foreign_source();
        let limit = self.record.interval * 3 / 2 + CLOCK_MARGIN;
        self.record.delivered(self.node, vrid).any(|advert| {
            Some(advert.source) == foreign && (0..limit).contains(&(self.row.at - advert.at))
        })
    }

    /// Whether the peers were silent for three intervals.
    pub fn is_silent(&self) -> bool {
        let newest = self.newest_delivered();
        newest.is_some_and(|newest| self.row.at - newest.at >= 3 * self.record.interval)
    }

    /// Whether the node received adverts with another number of addresses than its own, which keepalived drops.
    pub fn has_other_addresses(&self) -> bool {
        let vrid = self.record.run.setup.instances[self.instance].vrid;
        let configured = &self.record.nodes[self.node].configured;
        let own = configured.iter().rev().find(|(at, _)| *at <= self.row.at);
        let Some((_, own)) = own.filter(|_| self.instance == 0) else { return false };
        self.record.delivered(self.node, vrid).any(|advert| {
            (0..10 * SECOND).contains(&(self.row.at - advert.at))
                && advert.addresses.len() != own.len()
        })
    }

    fn gained_from_peer(&self) -> Vec<&'static str> {
        let Some(newest) = self.newest_delivered() else {
            return vec!["peer-silent", "fault-ended"];
        };
        let age = self.row.at - newest.at;
        if newest.priority == 0 {
            return vec!["peer-handed-over"];
        }
        if age < CLOCK_MARGIN.max(self.record.interval / 3) && self.is_silent_before(newest) {
            // Two backups took over from a silent node at the same moment.
            return vec!["peer-silent", "preempted-peer"];
        }
        if age < self.record.interval * 3 / 2 + CLOCK_MARGIN {
            return if self.peer_dropped(newest, 5 * SECOND) {
                vec!["peer-priority-dropped"]
            } else if self.peer_dropped(newest, 10 * SECOND) {
                vec!["peer-priority-dropped", "preempted-peer"]
            } else {
                vec!["preempted-peer"]
            };
        }
        if self.was_backup(newest) {
            return vec!["fault-ended"];
        }
        if age > 2 * self.record.down_interval(1) {
            // The node itself could not be primary until now: no other node was there to be silent.
            return vec!["fault-ended", "peer-silent"];
        }
        vec!["peer-silent"]
    }

    /// Whether the sender of the newest advert was a backup when this node gave up its addresses: it is rightly silent.
    fn was_backup(&self, newest: &WireAdvert) -> bool {
        let rows = self.record.nodes[self.node].answers.rows.iter();
        let before = rows
            .filter(|row| row.instance == self.row.instance && row.seq < self.row.seq)
            .max_by_key(|row| row.seq);
        before.is_some_and(|before| {
            before.from == "primary"
                && before.to == "backup"
                && before.at > newest.at + self.record.interval + CLOCK_MARGIN
        })
    }

    /// Whether no node had advertised for three intervals before this advert.
    fn is_silent_before(&self, newest: &WireAdvert) -> bool {
        let vrid = self.record.run.setup.instances[self.instance].vrid;
        let span = 3 * self.record.interval - CLOCK_MARGIN;
        let foreign = self.foreign_source();
        !self.record.delivered(self.node, vrid).any(|advert| {
            Some(advert.source) != foreign && advert.at < newest.at && newest.at - advert.at < span
        })
    }

    /// Whether the priority of the peer that advertised last has just sunk.
    pub fn is_peer_dropped(&self) -> bool {
        self.newest_delivered().is_some_and(|newest| self.peer_dropped(newest, 10 * SECOND))
    }

    /// Whether the sender of an advert had a higher priority within this time before.
    fn peer_dropped(&self, newest: &WireAdvert, within: Micros) -> bool {
        let vrid = self.record.run.setup.instances[self.instance].vrid;
        self.record.delivered(self.node, vrid).any(|advert| {
            advert.source == newest.source
                && advert.at < newest.at
                && newest.at - advert.at < within
                && advert.priority > newest.priority
        })
    }

    /// Whether the newest advert that the node received has the priority 0 and is not older than an election.
    pub fn is_just_handed_over(&self) -> bool {
        self.newest_delivered().is_some_and(|newest| {
            newest.priority == 0 && self.row.at - newest.at < 2 * self.record.interval
        })
    }
}
