// SPDX-License-Identifier: Apache-2.0
//! Whether the condition of each finding held, over time. A condition is certain if it holds for every state that can stand
//! in etcd, and possible if it holds for at least one.

use std::collections::BTreeSet;

use super::groups::LabGroup;
use super::published::{PossibleStates, Presence, Published, SIMULATED_NODE};
use crate::moment::Micros;

/// The subject of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactSubject {
    Group(LabGroup),
    Node(usize),
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    No,
    Maybe,
    Yes,
}

impl Holds {
    /// `Yes` if all values are true, `No` if none is.
    pub fn of_all(values: impl Iterator<Item = bool>) -> Self {
        let values: BTreeSet<bool> = values.collect();
        match (values.contains(&true), values.contains(&false)) {
            (true, false) => Self::Yes,
            (true, true) => Self::Maybe,
            (false, _) => Self::No,
        }
    }
}

/// A period in which a condition has one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldsSpan {
    pub from: Micros,
    pub to: Micros,
    pub holds: Holds,
}

/// A condition over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionTimeline {
    /// The name of its finding.
    pub name: &'static str,
    pub subject: FactSubject,
    pub spans: Vec<HoldsSpan>,
}

/// One state of a node, out of the possible ones.
#[derive(Debug, Clone, Copy)]
struct NodeState {
    presence: Presence,
    role: &'static str,
    is_edited: bool,
    silence: Holds,
    difference: Holds,
}

impl NodeState {
    fn is_live(self) -> bool {
        self.presence == Presence::Live
    }

    fn is_claiming(self) -> bool {
        self.is_live() && matches!(self.role, "primary" | "partial")
    }
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

/// The conditions of all groups and nodes.
pub fn timelines(published: &Published<'_>) -> Vec<ConditionTimeline> {
    let mut timelines = Vec::new();
    for group in LabGroup::all(published.facts) {
        for name in GROUP_FINDINGS {
            let spans = spans(published, |at| group_holds(published, name, group, at));
            timelines.push(ConditionTimeline { name, subject: FactSubject::Group(group), spans });
        }
    }
    for node in 0..=SIMULATED_NODE {
        let holds = |at: Micros| {
            let presence = published.node_presence(node, at);
            Holds::of_all(presence.iter().map(|presence| *presence == Presence::Lost))
        };
        let subject = FactSubject::Node(node);
        timelines.push(ConditionTimeline {
            name: "cluster-node-lost",
            subject,
            spans: spans(published, holds),
        });
    }
    timelines
}

/// The value of a condition between each two changes.
fn spans(published: &Published<'_>, holds: impl Fn(Micros) -> Holds) -> Vec<HoldsSpan> {
    let changes: Vec<Micros> = published.changes().into_iter().collect();
    let mut spans: Vec<HoldsSpan> = Vec::new();
    for pair in changes.windows(2) {
        let holds = holds(i64::midpoint(pair[0], pair[1]));
        match spans.last_mut().filter(|last| last.holds == holds) {
            Some(last) => last.to = pair[1],
            None => spans.push(HoldsSpan { from: pair[0], to: pair[1], holds }),
        }
    }
    spans
}

fn group_holds(published: &Published<'_>, name: &str, group: LabGroup, at: Micros) -> Holds {
    // A group that is ambiguous has no other finding.
    match (name, published.ambiguity(group, at)) {
        (AMBIGUOUS, ambiguity) => ambiguity,
        (_, Holds::Yes) => Holds::No,
        (_, Holds::Maybe) => unambiguous_holds(published, name, group, at).min(Holds::Maybe),
        (_, Holds::No) => unambiguous_holds(published, name, group, at),
    }
}

fn unambiguous_holds(published: &Published<'_>, name: &str, group: LabGroup, at: Micros) -> Holds {
    let nodes: Vec<PossibleStates> =
        (0..=SIMULATED_NODE).map(|node| published.states(node, group, at)).collect();
    let min_backups = published.facts.min_backups;
    let combinations = combinations(&nodes);
    let values: BTreeSet<Holds> =
        combinations.iter().map(|nodes| holds(name, nodes, min_backups)).collect();
    match (values.first(), values.last()) {
        (Some(first), Some(last)) if first == last => *first,
        _ => Holds::Maybe,
    }
}

/// All combinations of the possible states.
fn combinations(nodes: &[PossibleStates]) -> Vec<Vec<NodeState>> {
    let mut all: Vec<Vec<NodeState>> = vec![Vec::new()];
    for node in nodes {
        let mut next = Vec::new();
        for before in &all {
            for presence in &node.presence {
                for role in &node.roles {
                    for is_edited in &node.is_edited {
                        let (presence, is_edited) = (*presence, *is_edited);
                        let mut states = before.clone();
                        let (silence, difference) = (node.silence, node.difference);
                        states.push(NodeState { presence, role, is_edited, silence, difference });
                        next.push(states);
                    }
                }
            }
        }
        all = next;
    }
    all
}

/// Whether the condition of a finding about a group holds in one state of all nodes.
fn holds(name: &str, nodes: &[NodeState], min_backups: usize) -> Holds {
    let known: Vec<NodeState> =
        nodes.iter().copied().filter(|node| node.presence != Presence::Absent).collect();
    let live: Vec<NodeState> = known.iter().copied().filter(|node| node.is_live()).collect();
    let claims = live.iter().filter(|node| node.is_claiming()).count();
    let backups = live.iter().filter(|node| node.role == "backup").count();
    let yes = |is_true: bool| if is_true { Holds::Yes } else { Holds::No };
    match name {
        "cluster-two-primaries" => yes(claims >= 2),
        "cluster-no-primary" if claims == 0 && live.len() == known.len() && known.len() >= 2 => {
            Holds::Yes
        }
        // Without all nodes, the adverts decide: a lost node, or one without vipwatch, may be primary. A backup that
        // receives adverts shows that it is, although they do not reach another backup.
        "cluster-no-primary" if claims == 0 => {
            let backups = live.iter().filter(|node| node.role == "backup");
            backups.map(|node| node.silence).min().unwrap_or(Holds::No)
        }
        // The domain has three nodes, also if the group has one member.
        "cluster-too-few-backups" => yes(claims == 1 && backups < min_backups),
        "cluster-disagreement" => {
            live.iter().map(|node| node.difference).max().unwrap_or(Holds::No)
        }
        "cluster-different-configuration" => {
            yes(live.iter().any(|node| node.is_edited) && live.iter().any(|node| !node.is_edited))
        }
        _ => Holds::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(presence: Presence, role: &'static str) -> NodeState {
        let (silence, difference) = (Holds::No, Holds::No);
        NodeState { presence, role, is_edited: false, silence, difference }
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
    fn a_state_that_is_only_possible_makes_a_condition_possible() {
        let states = |presence: &[Presence], role: &'static str| PossibleStates {
            presence: presence.iter().copied().collect(),
            roles: BTreeSet::from([role]),
            is_edited: BTreeSet::from([false]),
            silence: Holds::No,
            difference: Holds::No,
        };
        let nodes = [
            states(&[Presence::Live], "primary"),
            states(&[Presence::Live, Presence::Lost], "primary"),
        ];
        let values: BTreeSet<Holds> = combinations(&nodes)
            .iter()
            .map(|nodes| holds("cluster-two-primaries", nodes, 1))
            .collect();
        assert_eq!(values, BTreeSet::from([Holds::No, Holds::Yes]));
    }
}
