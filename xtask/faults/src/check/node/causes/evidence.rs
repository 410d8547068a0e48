// SPDX-License-Identifier: Apache-2.0
//! Compares the evidence of a cause with the recorded adverts.

use std::net::IpAddr;

use super::Situation;
use crate::check::wire::WireAdvert;
use crate::moment::{Micros, SECOND};

/// Node times and capture times differ by less than this.
const TIME_MARGIN: Micros = SECOND / 4;
/// The priority in the evidence was in an advert so short before the transition.
const PRIORITY_AGE: Micros = 10 * SECOND;
const SIGKILL: u64 = 9;

impl Situation<'_> {
    /// The error in the evidence; `None` if it is right. Facts that are absent are not judged.
    pub(super) fn evidence_problem(self) -> Option<String> {
        let evidence = &self.row.evidence;
        let is_other = evidence["signal"].as_u64().is_some_and(|signal| signal != SIGKILL);
        if self.row.cause == "keepalived-killed" && is_other {
            return Some(format!("the signal was {SIGKILL}"));
        }
        let peer: IpAddr = evidence["peer"].as_str().and_then(|peer| peer.parse().ok())?;
        let silent = evidence["silent_ms"].as_i64().map(|millis| millis * 1000);
        let ages = 0..PRIORITY_AGE.max(silent.unwrap_or(0) + SECOND);
        // Sync group members change together: one member's adverts explain all changes.
        let instances = self.scene.run.setup.instances.iter();
        let problems = instances.map(|instance| {
            let all = self.scene.run.delivered(self.scene.node, instance);
            let age = |advert: &WireAdvert| self.row.at + TIME_MARGIN - advert.at;
            let before = all.filter(|advert| advert.source == peer && ages.contains(&age(advert)));
            self.peer_problem(peer, &before.collect::<Vec<_>>(), silent)
        });
        problems.collect::<Option<Vec<String>>>()?.into_iter().next()
    }

    /// Compares the priority and the age of the peer's newest advert of one virtual router.
    fn peer_problem(
        self,
        peer: IpAddr,
        before: &[&WireAdvert],
        silent: Option<Micros>,
    ) -> Option<String> {
        let at = self.row.at;
        let newest_until = |end| before.iter().rev().find(|advert| advert.at <= end);
        let Some(newest) = newest_until(at + TIME_MARGIN / 5) else {
            return Some(format!("the switch delivered no advert of {peer}"));
        };
        let is_seen = |priority| before.iter().any(|advert| u64::from(advert.priority) == priority);
        if self.row.evidence["peer_priority"].as_u64().is_some_and(|priority| !is_seen(priority)) {
            let priority = newest.priority;
            return Some(format!("the newest advert of {peer} had the priority {priority}"));
        }
        // An advert of the same moment as the transition may be read before or after it.
        let adverts = [Some(newest), newest_until(at - TIME_MARGIN / 5)];
        let is_right = |advert: &&WireAdvert| {
            silent.is_none_or(|silent| (silent - (at - advert.at)).abs() <= TIME_MARGIN)
        };
        let is_wrong = !adverts.into_iter().flatten().any(is_right);
        is_wrong.then(|| format!("{peer} was silent for {} ms", (at - newest.at) / 1000))
    }
}
