// SPDX-License-Identifier: Apache-2.0
//! When each node could not reach etcd, and when etcd could not answer.

use crate::check::periods::ActPeriod;
use crate::check::recording::RecordedRun;
use crate::journal::JournalEntry;
use crate::moment::{Micros, SECOND};
use crate::setup::HOSTS;

/// etcd elects a leader within this time after a member was lost or came back.
const ELECTION: Micros = 4 * SECOND;

/// A period in which a node could not reach etcd, for a reason of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeBreak {
    pub period: ActPeriod,
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

/// Whether an act ends a fault.
fn is_good(entry: &JournalEntry) -> bool {
    matches!(entry.how.as_str(), "start" | "continue" | "heal")
}

/// Whether an act changes which members of etcd can be reached.
fn is_member_act(entry: &JournalEntry) -> bool {
    matches!(entry.act.as_str(), "etcd" | "mgmt") && entry.phase == "begin"
}

impl RecordedRun {
    /// The periods in which a node could not reach etcd because of its process or its link.
    pub(super) fn breaks(&self, host: usize) -> Vec<NodeBreak> {
        let mut breaks: Vec<NodeBreak> = Vec::new();
        let mut reasons: Vec<&str> = Vec::new();
        let acts = self.acts(host, &["vipwatch", "mgmt"]);
        for entry in acts.filter(|entry| entry.phase == "begin") {
            let (from, done, end) = (entry.at, self.done(entry), self.end);
            if is_good(entry) {
                reasons.retain(|reason| *reason != entry.act);
                let open = breaks.last_mut().map(|last| &mut last.period);
                if let Some(last) = open.filter(|last| last.to == end && reasons.is_empty()) {
                    last.heal = from;
                    last.to = done;
                }
                continue;
            }
            if reasons.is_empty() {
                breaks.push(NodeBreak {
                    period: ActPeriod { from, done, heal: end, to: end },
                    is_orderly: entry.how == "stop",
                    is_network: entry.act == "mgmt",
                });
            } else if let Some(last) = breaks.last_mut() {
                last.is_network = false;
            }
            reasons.push(&entry.act);
        }
        breaks
    }

    /// The lost etcd members.
    pub(super) fn lost_members(&self) -> Vec<(Micros, Micros)> {
        let losses = self.journal.iter().filter(|entry| is_member_act(entry) && !is_good(entry));
        losses.map(|entry| (entry.at, self.done(entry))).collect()
    }

    /// The periods in which etcd may have no leader.
    pub(super) fn unstable(&self) -> Vec<UnstablePeriod> {
        let mut periods: Vec<UnstablePeriod> = Vec::new();
        let mut leader = None;
        let mut is_up = [[true; 2]; HOSTS];
        for entry in &self.journal {
            if entry.act == "observed" {
                leader = entry.leader;
            }
            let host = entry.node.filter(|host| *host < HOSTS && is_member_act(entry));
            let Some(host) = host else { continue };
            is_up[host][usize::from(entry.act == "mgmt")] = is_good(entry);
            let has_quorum = is_up.iter().filter(|up| **up == [true, true]).count() >= 2;
            let is_leader_lost = !is_good(entry) && leader.is_none_or(|leader| leader == host);
            // Another leader is known when the injector looks again.
            leader = leader.filter(|_| !is_leader_lost);
            if !is_good(entry) && !is_leader_lost && has_quorum {
                continue;
            }
            let to = if has_quorum { self.done(entry) + ELECTION } else { self.end };
            if let Some(last) = periods.last_mut().filter(|last| last.to >= entry.at) {
                last.to = to;
                last.is_quorum_lost |= !has_quorum;
            } else {
                let (from, is_quorum_lost) = (entry.at, !has_quorum);
                periods.push(UnstablePeriod { from, to, is_quorum_lost });
            }
        }
        periods
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::recording::examples;

    fn entry(at: i64, act: &str, node: usize, how: &str, phase: &str) -> JournalEntry {
        JournalEntry {
            at: at * SECOND,
            act: act.to_owned(),
            node: Some(node),
            how: how.to_owned(),
            phase: phase.to_owned(),
            ..JournalEntry::default()
        }
    }

    fn observed(at: i64, leader: usize) -> JournalEntry {
        let act = "observed".to_owned();
        let (leader, reporter) = (Some(leader), Some(0));
        JournalEntry { at: at * SECOND, act, leader, reporter, ..JournalEntry::default() }
    }

    fn run(journal: Vec<JournalEntry>) -> RecordedRun {
        RecordedRun { journal, ..examples::run() }
    }

    #[test]
    fn a_break_lasts_until_all_of_its_reasons_have_ended() {
        let breaks = run(vec![
            entry(1, "mgmt", 0, "cut", "begin"),
            entry(2, "vipwatch", 0, "freeze", "begin"),
            entry(5, "mgmt", 0, "heal", "begin"),
            entry(7, "vipwatch", 0, "continue", "begin"),
            entry(8, "vipwatch", 0, "continue", "done"),
        ])
        .breaks(0);
        assert_eq!(breaks.len(), 1);
        assert_eq!((breaks[0].period.heal, breaks[0].period.to), (7 * SECOND, 8 * SECOND));
        assert!(!breaks[0].is_network);
    }

    #[test]
    fn the_loss_of_a_member_that_is_not_the_leader_is_no_election() {
        let cut = entry(10, "mgmt", 1, "cut", "begin");
        assert!(run(vec![observed(5, 0), cut.clone()]).unstable().is_empty());
        assert_eq!(run(vec![observed(5, 1), cut]).unstable().len(), 1);
    }

    #[test]
    fn after_the_loss_of_the_leader_each_loss_may_be_that_of_the_next_leader() {
        let kill = entry(10, "etcd", 0, "kill", "begin");
        let start = [entry(11, "etcd", 0, "start", "begin"), entry(11, "etcd", 0, "start", "done")];
        let cut = entry(30, "mgmt", 1, "cut", "begin");
        let mut journal = vec![observed(5, 0), kill];
        journal.extend(start);
        journal.push(cut.clone());
        assert_eq!(run(journal.clone()).unstable().len(), 2);
        journal.insert(4, observed(20, 2));
        assert_eq!(run(journal).unstable().len(), 1);
    }

    #[test]
    fn the_loss_of_the_quorum_lasts_until_a_second_member_is_back() {
        let periods = run(vec![
            observed(5, 0),
            entry(10, "etcd", 0, "kill", "begin"),
            entry(11, "etcd", 1, "kill", "begin"),
            entry(20, "etcd", 0, "start", "begin"),
            entry(20, "etcd", 0, "start", "done"),
        ])
        .unstable();
        let expected = UnstablePeriod { from: 10 * SECOND, to: 24 * SECOND, is_quorum_lost: true };
        assert_eq!(periods, [expected]);
    }
}
