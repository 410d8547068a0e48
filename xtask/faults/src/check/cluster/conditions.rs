// SPDX-License-Identifier: Apache-2.0
//! Whether the condition of each finding held, over time. A condition is certain if it holds for every state that can stand
//! in etcd, and possible if it holds for at least one.

use super::groups::LabGroup;
use super::published::{NodeState, Presence, Published, SIMULATED_NODE};
use crate::check::periods::{Holds, Span, push};
use crate::moment::Micros;

/// A condition over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionTimeline {
    /// The name of its finding.
    pub name: &'static str,
    /// The group or node, as messages name it.
    pub subject: String,
    pub spans: Vec<Span<Holds>>,
}

const AMBIGUOUS: &str = "cluster-ambiguous-group";

/// The names of findings about a group.
const GROUP_FINDINGS: [&str; 6] = [
    AMBIGUOUS,
    "cluster-disagreement",
    "cluster-two-primaries",
    "cluster-no-primary",
    "cluster-too-few-backups",
    "cluster-different-configuration",
];

impl Published<'_> {
    /// The conditions of all groups and nodes.
    pub fn timelines(&self) -> Vec<ConditionTimeline> {
        let mut timelines = Vec::new();
        for group in LabGroup::all(self.facts) {
            let subject = group.text(self.facts);
            for name in GROUP_FINDINGS {
                let spans = self.spans(|at| self.group_holds(name, group, at));
                timelines.push(ConditionTimeline { name, subject: subject.clone(), spans });
            }
        }
        for node in 0..=SIMULATED_NODE {
            let holds = |at: Micros| {
                let presence = self.node_presence(node, at);
                Holds::of(presence.iter().map(|presence| *presence == Presence::Lost))
            };
            let (name, subject) = ("cluster-node-lost", format!("node {node}"));
            timelines.push(ConditionTimeline { name, subject, spans: self.spans(holds) });
        }
        timelines
    }

    /// The value of a condition between each two changes.
    fn spans(&self, holds: impl Fn(Micros) -> Holds) -> Vec<Span<Holds>> {
        let changes: Vec<Micros> = self.changes().into_iter().collect();
        let mut spans: Vec<Span<Holds>> = Vec::new();
        for pair in changes.windows(2) {
            let holds = holds(i64::midpoint(pair[0], pair[1]));
            push(&mut spans, pair[0], self.facts.run.end, holds);
        }
        spans
    }

    fn group_holds(&self, name: &str, group: LabGroup, at: Micros) -> Holds {
        // A group that is ambiguous has no other finding.
        match (name, self.ambiguity(group, at)) {
            (AMBIGUOUS, ambiguity) => ambiguity,
            (_, Holds::Yes) => Holds::No,
            (_, Holds::Maybe) => self.unambiguous_holds(name, group, at).min(Holds::Maybe),
            (_, Holds::No) => self.unambiguous_holds(name, group, at),
        }
    }

    fn unambiguous_holds(&self, name: &str, group: LabGroup, at: Micros) -> Holds {
        let nodes: Vec<Vec<NodeState>> =
            (0..=SIMULATED_NODE).map(|node| self.states(node, group, at)).collect();
        let combinations = combinations(&nodes);
        let holds = |nodes: &Vec<NodeState>| holds(name, nodes, self.facts.min_backups);
        let first = combinations.first().map(holds);
        let is_same = combinations.iter().map(holds).all(|holds| Some(holds) == first);
        first.filter(|_| is_same).unwrap_or(Holds::Maybe)
    }
}

/// All combinations of possible node states.
fn combinations(nodes: &[Vec<NodeState>]) -> Vec<Vec<NodeState>> {
    nodes.iter().fold(vec![Vec::new()], |all, states| {
        let with = |before: &Vec<NodeState>| {
            let before = before.clone();
            states.iter().map(move |state| [&before[..], &[*state]].concat())
        };
        all.iter().flat_map(with).collect()
    })
}

/// Whether the condition of a finding about a group holds in one state of all nodes.
fn holds(name: &str, nodes: &[NodeState], min_backups: usize) -> Holds {
    let known = nodes.iter().filter(|node| node.presence != Presence::Absent).count();
    let live: Vec<&NodeState> =
        nodes.iter().filter(|node| node.presence == Presence::Live).collect();
    let is_claim = |node: &&&NodeState| matches!(node.role, "primary" | "partial");
    let claims = live.iter().filter(is_claim).count();
    let backups: Vec<&&NodeState> = live.iter().filter(|node| node.role == "backup").collect();
    match name {
        "cluster-two-primaries" => Holds::of([claims >= 2]),
        // An open finding goes on for one lease while nobody can say that it is over.
        "cluster-no-primary" if live.is_empty() && known >= 2 => Holds::Maybe,
        "cluster-too-few-backups" if claims == 0 && is_primary_away(nodes) => Holds::Maybe,
        "cluster-no-primary" if claims == 0 && live.len() == known && known >= 2 => Holds::Yes,
        // Without all nodes, the adverts decide: a lost node, or one without vipwatch, may be primary. A backup that
        // receives adverts shows that it is, although they do not reach another backup.
        "cluster-no-primary" if claims == 0 => {
            backups.iter().map(|node| node.silence).min().unwrap_or(Holds::No)
        }
        // The domain has three nodes, also if the group has one member.
        "cluster-too-few-backups" => {
            let least = backups.iter().filter(|node| node.obstacle == Holds::No).count();
            let most = backups.iter().filter(|node| node.obstacle != Holds::Yes).count();
            Holds::of([least, most].map(|ready| claims == 1 && ready < min_backups))
        }
        "cluster-disagreement" => {
            live.iter().map(|node| node.difference).max().unwrap_or(Holds::No)
        }
        "cluster-different-configuration" => {
            let edited = live.iter().filter(|node| node.is_edited).count();
            Holds::of([(1..live.len()).contains(&edited)])
        }
        _ => Holds::No,
    }
}

/// Whether the node of the primary is stopped or lost.
fn is_primary_away(nodes: &[NodeState]) -> bool {
    nodes.iter().any(|node| {
        !matches!(node.presence, Presence::Live | Presence::Absent)
            && matches!(node.role, "primary" | "partial")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn node(presence: Presence, role: &'static str) -> NodeState {
        let (silence, difference, obstacle) = (Holds::No, Holds::No, Holds::No);
        NodeState { presence, role, is_edited: false, silence, difference, obstacle }
    }

    #[test]
    fn a_claim_of_a_lost_node_is_no_second_primary() {
        let live = node(Presence::Live, "primary");
        let two = |other: NodeState| holds("cluster-two-primaries", &[live, other], 1);
        assert_eq!(two(node(Presence::Live, "partial")), Holds::Yes);
        assert_eq!(two(node(Presence::Lost, "primary")), Holds::No);
    }

    #[test]
    fn a_missing_primary_is_certain_only_if_all_nodes_are_live() {
        let live = node(Presence::Live, "backup");
        let none = |other: NodeState| holds("cluster-no-primary", &[live, other], 1);
        assert_eq!(none(node(Presence::Live, "fault")), Holds::Yes);
        assert_eq!(none(node(Presence::Absent, "primary")), Holds::No, "a group of one node");
        assert_eq!(none(node(Presence::Lost, "primary")), Holds::No, "adverts are received");
        assert_eq!(none(node(Presence::Live, "primary")), Holds::No);
    }

    #[test]
    fn while_nobody_can_say_that_a_finding_is_over_both_answers_are_right() {
        let lost = |role| node(Presence::Lost, role);
        assert_eq!(holds("cluster-no-primary", &[lost("fault"), lost("backup")], 1), Holds::Maybe);
        let backup = node(Presence::Live, "backup");
        let few = |primary| holds("cluster-too-few-backups", &[primary, backup], 2);
        assert_eq!(few(lost("primary")), Holds::Maybe);
        assert_eq!(few(lost("fault")), Holds::No);
    }

    #[test]
    fn without_adverts_a_lost_primary_is_no_primary() {
        let lost = node(Presence::Lost, "primary");
        for silence in [Holds::Yes, Holds::Maybe] {
            let silent = NodeState { silence, ..node(Presence::Live, "backup") };
            assert_eq!(holds("cluster-no-primary", &[silent, lost], 1), silence);
            let stopped = NodeState { role: "fault", ..silent };
            assert_eq!(holds("cluster-no-primary", &[stopped, lost], 1), Holds::No);
        }
    }

    #[test]
    fn adverts_that_reach_one_backup_show_a_primary() {
        let lost = node(Presence::Lost, "primary");
        let backup = |silence| NodeState { silence, ..node(Presence::Live, "backup") };
        for other in [Holds::No, Holds::Maybe, Holds::Yes] {
            let nodes = [backup(Holds::Yes), backup(other), lost];
            assert_eq!(holds("cluster-no-primary", &nodes, 1), other);
        }
    }

    #[test]
    fn a_backup_without_keepalived_is_no_backup() {
        let primary = node(Presence::Live, "primary");
        for obstacle in [Holds::No, Holds::Maybe, Holds::Yes] {
            let backup = NodeState { obstacle, ..node(Presence::Live, "backup") };
            assert_eq!(holds("cluster-too-few-backups", &[primary, backup], 1), obstacle);
        }
    }

    #[test]
    fn a_state_that_is_only_possible_makes_a_condition_possible() {
        let lost = node(Presence::Lost, "primary");
        let live = node(Presence::Live, "primary");
        let nodes = [vec![live], vec![live, lost]];
        let values: BTreeSet<Holds> = combinations(&nodes)
            .iter()
            .map(|nodes| holds("cluster-two-primaries", nodes, 1))
            .collect();
        assert_eq!(values, BTreeSet::from([Holds::No, Holds::Yes]));
    }
}
