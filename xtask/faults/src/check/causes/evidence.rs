// SPDX-License-Identifier: Apache-2.0
//! Compares the evidence of a cause with the recorded adverts.

use std::net::IpAddr;

use super::expected::Situation;
use crate::check::wire::WireAdvert;
use crate::moment::{Micros, SECOND};

/// The times of the node and of the capture differ by less than this.
const TIME_MARGIN: Micros = SECOND / 4;
/// The priority in the evidence was in an advert so short before the transition.
const PRIORITY_AGE: Micros = 10 * SECOND;
const SIGKILL: u64 = 9;

/// The error in the evidence; `None` if it is right. Facts that are absent are not judged.
pub fn problem(situation: &Situation<'_>) -> Option<String> {
    let evidence = &situation.row.evidence;
    let signal = evidence["signal"].as_u64();
    if situation.row.cause == "keepalived-killed" && signal.is_some_and(|signal| signal != SIGKILL)
    {
        return Some(format!("the signal was {SIGKILL}"));
    }
    let peer: Option<IpAddr> = evidence["peer"].as_str().and_then(|peer| peer.parse().ok());
    peer_problem(situation, peer?)
}

/// Compares the priority and the age of the peer's newest advert.
fn peer_problem(situation: &Situation<'_>, peer: IpAddr) -> Option<String> {
    let (evidence, at) = (&situation.row.evidence, situation.row.at);
    // The members of a sync group change together: the adverts of one member explain the change of all.
    let vrids = situation.record.run.setup.instances.iter().map(|instance| instance.vrid);
    let silent = evidence["silent_ms"].as_i64().map(|millis| millis * 1000);
    let span = PRIORITY_AGE.max(silent.unwrap_or(0) + SECOND);
    let delivered = vrids.map(|vrid| {
        let all = situation.record.delivered(situation.node, vrid);
        all.filter(|advert| {
            advert.source == peer && (0..span).contains(&(at + TIME_MARGIN - advert.at))
        })
        .collect::<Vec<_>>()
    });
    let problems: Vec<String> = delivered
        .map(|before| adverts_problem(situation, peer, &before, silent))
        .collect::<Option<_>>()?;
    problems.into_iter().next()
}

/// Compares the evidence with the adverts of one virtual router.
fn adverts_problem(
    situation: &Situation<'_>,
    peer: IpAddr,
    before: &[&WireAdvert],
    silent: Option<Micros>,
) -> Option<String> {
    let (evidence, at) = (&situation.row.evidence, situation.row.at);
    let newest_until = |end| before.iter().rev().find(|advert| advert.at <= end);
    let Some(newest) = newest_until(at + TIME_MARGIN / 5) else {
        return Some(format!("the switch delivered no advert of {peer}"));
    };
    let priority = evidence["peer_priority"].as_u64();
    let is_seen =
        |priority: u64| before.iter().any(|advert| u64::from(advert.priority) == priority);
    if priority.is_some_and(|priority| !is_seen(priority)) {
        return Some(format!("the newest advert of {peer} had the priority {}", newest.priority));
    }
    let silent = silent?;
    // An advert of the same moment as the transition may be read before or after it.
    let ages = [Some(newest), newest_until(at - TIME_MARGIN / 5)];
    let mut ages = ages.into_iter().flatten().map(|advert| at - advert.at);
    let is_right = ages.any(|age| (silent - age).abs() <= TIME_MARGIN);
    let age = (at - newest.at) / 1000;
    (!is_right).then(|| format!("{peer} was silent for {age} ms"))
}
