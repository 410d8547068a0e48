// SPDX-License-Identifier: Apache-2.0
//! When each node could not reach etcd, and when etcd could not answer.

use super::{done, how, is_begin};
use crate::journal::JournalEntry;
use crate::moment::{Micros, SECOND};
use crate::setup::HOSTS;

/// etcd elects a leader within this time after a member was lost or came back.
const ELECTION: Micros = 4 * SECOND;

/// A period in which a node could not reach etcd, for a reason of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeBreak {
    /// The beginning of the act that caused it.
    pub from: Micros,
    /// The end of that act.
    pub done: Micros,
    /// The beginning of the act that ended it; the end of the run without one.
    pub heal: Micros,
    /// The end of that act.
    pub to: Micros,
    /// The node was stopped with SIGTERM.
    pub is_orderly: bool,
    /// The process ran, but without the network: its answers can be read, and are old.
    pub is_network: bool,
}

/// A period without a certain answer of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnstablePeriod {
    pub from: Micros,
    pub to: Micros,
    /// Fewer than two members could be reached in a part of it.
    pub is_quorum_lost: bool,
}

/// The periods in which a node could not reach etcd because of its process or its link.
pub fn breaks(journal: &[JournalEntry], host: usize, end: Micros) -> Vec<NodeBreak> {
    let mut breaks: Vec<NodeBreak> = Vec::new();
    let mut reasons: Vec<&str> = Vec::new();
    for entry in journal {
        let is_own = entry.node == Some(host) && matches!(entry.act.as_str(), "vipwatch" | "mgmt");
        if !is_own || !is_begin(entry) {
            continue;
        }
        let is_good = matches!(how(entry), "start" | "continue" | "heal");
        if is_good {
            reasons.retain(|reason| *reason != entry.act);
            if let Some(last) =
                breaks.last_mut().filter(|last| last.to == end && reasons.is_empty())
            {
                last.heal = entry.at;
                last.to = done(journal, entry, end);
            }
            continue;
        }
        if reasons.is_empty() {
            breaks.push(NodeBreak {
                from: entry.at,
                done: done(journal, entry, end),
                heal: end,
                to: end,
                is_orderly: how(entry) == "stop",
                is_network: entry.act == "mgmt",
            });
        } else if let Some(last) = breaks.last_mut() {
            last.is_network = false;
        }
        reasons.push(&entry.act);
    }
    breaks
}

/// The losses of members of etcd.
pub fn lost_members(journal: &[JournalEntry], end: Micros) -> Vec<(Micros, Micros)> {
    let is_loss = |entry: &&JournalEntry| {
        matches!(entry.act.as_str(), "etcd" | "mgmt")
            && is_begin(entry)
            && !matches!(how(entry), "start" | "continue" | "heal")
    };
    journal.iter().filter(is_loss).map(|entry| (entry.at, done(journal, entry, end))).collect()
}

/// The periods in which etcd may have no leader.
pub fn unstable(journal: &[JournalEntry], end: Micros) -> Vec<UnstablePeriod> {
    let mut periods: Vec<UnstablePeriod> = Vec::new();
    let mut leader = None;
    let mut is_up = [[true; 2]; HOSTS];
    for entry in journal {
        if entry.act == "observed" {
            leader = entry.details["leader"].as_u64().and_then(|host| usize::try_from(host).ok());
        }
        let Some(host) = entry.node.filter(|host| *host < HOSTS) else { continue };
        let reason = match entry.act.as_str() {
            "etcd" => 0,
            "mgmt" => 1,
            _ => continue,
        };
        if !is_begin(entry) {
            continue;
        }
        let is_good = matches!(how(entry), "start" | "continue" | "heal");
        is_up[host][reason] = is_good;
        let has_quorum = is_up.iter().filter(|up| **up == [true, true]).count() >= 2;
        let is_leader_lost = !is_good && leader.is_none_or(|leader| leader == host);
        if is_good || is_leader_lost || !has_quorum {
            let to = if has_quorum { done(journal, entry, end) + ELECTION } else { end };
            add_period(
                &mut periods,
                UnstablePeriod { from: entry.at, to, is_quorum_lost: !has_quorum },
            );
        }
        if is_leader_lost {
            leader = None;
        }
    }
    periods
}

/// Adds a period, which may continue the last one or end it.
fn add_period(periods: &mut Vec<UnstablePeriod>, period: UnstablePeriod) {
    match periods.last_mut().filter(|last| last.to >= period.from) {
        Some(last) => {
            last.to = period.to;
            last.is_quorum_lost |= period.is_quorum_lost;
        }
        None => periods.push(period),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: i64, act: &str, node: usize, how: &str, phase: &str) -> JournalEntry {
        let details = serde_json::json!({ "how": how, "phase": phase });
        JournalEntry {
            at: at * SECOND,
            act: act.to_owned(),
            node: Some(node),
            fault: String::new(),
            details,
        }
    }

    fn observed(at: i64, leader: usize) -> JournalEntry {
        let details = serde_json::json!({ "leader": leader, "reporter": 0 });
        JournalEntry {
            at: at * SECOND,
            act: "observed".to_owned(),
            node: None,
            fault: String::new(),
            details,
        }
    }

    #[test]
    fn a_break_lasts_until_all_of_its_reasons_have_ended() {
        let journal = [
            entry(1, "mgmt", 0, "cut", "begin"),
            entry(2, "vipwatch", 0, "freeze", "begin"),
            entry(5, "mgmt", 0, "heal", "begin"),
            entry(7, "vipwatch", 0, "continue", "begin"),
            entry(8, "vipwatch", 0, "continue", "done"),
        ];
        let breaks = breaks(&journal, 0, 100 * SECOND);
        assert_eq!(breaks.len(), 1);
        assert_eq!((breaks[0].heal, breaks[0].to), (7 * SECOND, 8 * SECOND));
        assert!(!breaks[0].is_network);
    }

    #[test]
    fn the_loss_of_a_member_that_is_not_the_leader_is_no_election() {
        let cut = entry(10, "mgmt", 1, "cut", "begin");
        assert!(unstable(&[observed(5, 0), cut.clone()], 100 * SECOND).is_empty());
        assert_eq!(unstable(&[observed(5, 1), cut], 100 * SECOND).len(), 1);
    }

    #[test]
    fn the_loss_of_the_quorum_lasts_until_a_second_member_is_back() {
        let journal = [
            observed(5, 0),
            entry(10, "etcd", 0, "kill", "begin"),
            entry(11, "etcd", 1, "kill", "begin"),
            entry(20, "etcd", 0, "start", "begin"),
            entry(20, "etcd", 0, "start", "done"),
        ];
        let periods = unstable(&journal, 100 * SECOND);
        let expected = UnstablePeriod { from: 10 * SECOND, to: 24 * SECOND, is_quorum_lost: true };
        assert_eq!(periods, [expected]);
    }
}
