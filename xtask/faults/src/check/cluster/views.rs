// SPDX-License-Identifier: Apache-2.0
//! Compares the documents of each node with the states that can stand in etcd: a node that reaches etcd shows the truth, and
//! a node that does not says so.

use std::collections::BTreeSet;

use serde_json::Value;

use super::answers::{RecordedAnswers, RecordedDocument, node_number, subject};
use super::facts::RecordedFacts;
use super::findings::CLOCK_MARGIN;
use super::groups::LabGroup;
use super::published::{Presence, Published, SIMULATED_NODE};
use crate::check::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// A node shows a change of etcd within this time.
const VIEW_LAG: Micros = SECOND;
/// A node that cannot reach etcd says so within this time after its lease.
const STALE_WITHIN: Micros = 5 * SECOND;
/// The last documents of the run that are judged as its result.
const RESULT: Micros = 5 * SECOND;

/// Judges the documents of all nodes.
pub fn judge(
    published: &Published<'_>,
    answers: &RecordedAnswers,
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let (facts, run) = (published.facts, &published.facts.run);
    let changes = published.changes();
    for (host, documents) in answers.documents.iter().enumerate() {
        let judge = ViewJudge { published, changes: &changes, host, strictness };
        let mut has_result = false;
        let is_inside =
            |document: &&RecordedDocument| document.asked >= run.start && document.until <= run.end;
        for document in documents.iter().filter(is_inside) {
            if let Some((kind, text)) = judge.document(document) {
                let (at, context) = (run.clock(document.asked), run.context(document.asked));
                verdict.fail(kind, format!("node {host} at {at} s: {text}; {context}"));
                // One failure of a node is enough: the next documents have the same.
                break;
            }
            let is_late = document.asked > run.end - RESULT;
            has_result |= document.name == "groups" && is_late && judge.is_published(document);
        }
        // On a machine of unknown speed, the last documents may be too early.
        if !has_result && strictness == Strictness::Deadlines {
            let text = format!("node {host} has no document at the end of the run");
            verdict.fail("view-not-converged", text);
        }
    }
    for problem in without_quorum(facts, answers) {
        verdict.fail("finding-without-quorum", problem);
    }
}

struct ViewJudge<'a> {
    published: &'a Published<'a>,
    /// The times at which a possible state may change.
    changes: &'a BTreeSet<Micros>,
    host: usize,
    strictness: Strictness,
}

impl ViewJudge<'_> {
    /// Whether the node had reached etcd for a while.
    fn is_published(&self, document: &RecordedDocument) -> bool {
        let first = self.published.facts.run.start + self.published.times.reconnect;
        self.published.has_published(self.host, document.until) && document.asked >= first
    }

    /// The kind and the text of the difference between a document and the facts; `None` without one.
    fn document(&self, document: &RecordedDocument) -> Option<(&'static str, String)> {
        let connection = document.document["connection"].as_str().unwrap_or_default();
        let has_answer = !document.document.is_null();
        Some(if has_answer && self.is_cut_off(document) && connection == "connected" {
            let text = "the node cannot reach etcd, and its view is not stale";
            ("view-not-stale", text.to_owned())
        } else if !self.is_published(document) {
            return None;
        } else if !has_answer {
            ("view-missing", format!("no answer to /v1/cluster/{}", document.name))
        } else if connection != "connected" {
            ("view-stale", format!("the node can reach etcd, and its view is {connection:?}"))
        } else {
            let wrong = match document.name.as_str() {
                "groups" => self.groups(document),
                "nodes" => self.nodes(document),
                _ => None,
            };
            ("view-wrong", wrong?)
        })
    }

    /// Whether the node has been without etcd for longer than its lease.
    fn is_cut_off(&self, document: &RecordedDocument) -> bool {
        let facts = self.published.facts;
        let limit = facts.times.lease + self.strictness.limit(STALE_WITHIN);
        let mut own = facts.hosts[self.host].breaks.iter().filter(|broken| broken.is_network);
        own.any(|broken| {
            broken.period.done + limit < document.asked && document.until < broken.period.heal
        })
    }

    /// The times with all states that the document can have.
    fn moments(&self, document: &RecordedDocument) -> Vec<Micros> {
        let lag = self.strictness.limit(VIEW_LAG);
        let (from, to) = (document.asked - lag, document.until + CLOCK_MARGIN);
        let inside = self.changes.range(from..to).flat_map(|at| [*at, *at + 1]);
        inside.chain([from, to]).collect()
    }

    /// The problem if a node has none of the possible states.
    fn state_problem(node: usize, state: &str, possible: &BTreeSet<Presence>) -> Option<String> {
        let is_possible = possible.iter().any(|presence| presence.is_named(state));
        (!is_possible).then(|| format!("node {node} is {state:?}, expected {possible:?}"))
    }

    fn nodes(&self, document: &RecordedDocument) -> Option<String> {
        let moments = self.moments(document);
        (0..=SIMULATED_NODE).find_map(|node| {
            let possible = moments.iter().flat_map(|at| self.published.node_presence(node, *at));
            let item = document.items().find(|item| node_number(&item["node"]) == Some(node));
            let state = item.map_or("absent", |item| item["state"].as_str().unwrap_or_default());
            Self::state_problem(node, state, &possible.collect())
        })
    }

    fn groups(&self, document: &RecordedDocument) -> Option<String> {
        let facts = self.published.facts;
        LabGroup::all(facts).into_iter().find_map(|group| {
            let is_group = |item: &&Value| {
                item["id"].as_str().and_then(|id| LabGroup::of_id(id, facts)) == Some(group)
            };
            let found: Vec<&Value> = document.items().filter(is_group).collect();
            let name = group.text(facts);
            match found.as_slice() {
                [] => {
                    // The view of a node may have only the groups of its own instances.
                    let mut moments = self.moments(document).into_iter();
                    let is_absent = moments.any(|at| {
                        let mut states = self.published.states(self.host, group, at).into_iter();
                        states.any(|state| state.presence == Presence::Absent)
                    });
                    (!is_absent).then(|| format!("{name} is missing"))
                }
                [item] => {
                    (0..=SIMULATED_NODE).find_map(|node| self.member(node, group, item, document))
                }
                _ => Some(format!("{name} is in two groups")),
            }
        })
    }

    /// Compares a member of a group.
    fn member(
        &self,
        node: usize,
        group: LabGroup,
        item: &Value,
        document: &RecordedDocument,
    ) -> Option<String> {
        let (mut presence, mut roles) = (BTreeSet::new(), BTreeSet::new());
        for at in self.moments(document) {
            for state in self.published.states(node, group, at) {
                presence.insert(state.presence);
                roles.insert(state.role);
            }
        }
        let mut members = item["members"].as_array()?.iter();
        let Some(member) = members.find(|member| node_number(&member["node"]) == Some(node)) else {
            let is_expected = !presence.contains(&Presence::Absent);
            return is_expected.then(|| format!("the group has no member on node {node}"));
        };
        let state = member["node_state"].as_str().unwrap_or_default();
        let role = member["role"].as_str().unwrap_or_default();
        let problem = Self::state_problem(node, state, &presence);
        // The role of a node that is not live is its last known one.
        let is_wrong = state == "live" && !roles.contains(role);
        let name = group.text(self.published.facts);
        let wrong =
            is_wrong.then(|| format!("{name} on node {node} is {role:?}, expected {roles:?}"));
        problem.or(wrong)
    }
}

/// Findings that a node began to show while etcd had no quorum.
fn without_quorum(facts: &RecordedFacts, answers: &RecordedAnswers) -> Vec<String> {
    let mut problems = Vec::new();
    for period in facts.unstable.iter().filter(|period| period.is_quorum_lost) {
        for (host, documents) in answers.documents.iter().enumerate() {
            let documents = || documents.iter().filter(|document| document.name == "findings");
            let shown = |document: &RecordedDocument| -> BTreeSet<String> {
                let open = document.items().filter(|item| item["closed"].is_null());
                open.map(|item| format!("{} {}", item["name"], subject(item, facts))).collect()
            };
            let before = documents().rev().find(|document| document.until < period.from).map(shown);
            let before = before.unwrap_or_default();
            // The quorum may be back in the last seconds of the period.
            let inside = |document: &&RecordedDocument| {
                document.asked > period.from + 2 * SECOND && document.until < period.to - 4 * SECOND
            };
            let mut shown = documents().filter(inside).flat_map(shown);
            if let Some(new) = shown.find(|item| !before.contains(item)) {
                let at = facts.run.clock(period.from);
                problems
                    .push(format!("node {host}: {new} after etcd had lost its quorum at {at} s"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::cluster::findings::tests::{broken, facts};
    use crate::check::cluster::published::PublishTimes;
    use serde_json::json;

    /// The document `groups` of node 0 at a second, with the roles of the three nodes.
    fn groups(second: i64, connection: &str, roles: [&str; 3]) -> RecordedDocument {
        let members: Vec<Value> = (0..3)
            .map(|node| json!({ "node": format!("node{node}"), "node_state": "live", "role": roles[node] }))
            .collect();
        let items = json!([{ "id": "vrrp:ipv4:51:10.9.0.101", "members": members }]);
        RecordedDocument {
            asked: second * SECOND,
            until: second * SECOND + 1000,
            name: "groups".to_owned(),
            document: json!({ "connection": connection, "items": items }),
        }
    }

    /// The kind of the problem of a document; empty if there is none.
    fn problem(facts: &RecordedFacts, document: &RecordedDocument) -> &'static str {
        let published = Published { facts, times: PublishTimes::EXACT };
        let changes = published.changes();
        let strictness = Strictness::Deadlines;
        let judge = ViewJudge { published: &published, changes: &changes, host: 0, strictness };
        judge.document(document).map_or("", |(kind, _)| kind)
    }

    #[test]
    fn the_roles_of_the_kernels_are_the_truth() {
        let right = groups(50, "connected", ["primary", "backup", "backup"]);
        assert_eq!(problem(&facts(), &right), "");
        let wrong = groups(50, "connected", ["primary", "primary", "backup"]);
        assert_eq!(problem(&facts(), &wrong), "view-wrong");
        let stale = groups(50, "stale", ["primary", "backup", "backup"]);
        assert_eq!(problem(&facts(), &stale), "view-stale");
    }

    #[test]
    fn a_node_without_etcd_must_say_so() {
        let mut facts = facts();
        facts.hosts[0].breaks = vec![broken(30, 60)];
        let roles = ["primary", "backup", "backup"];
        assert_eq!(problem(&facts, &groups(50, "connected", roles)), "view-not-stale");
        assert_eq!(problem(&facts, &groups(50, "stale", roles)), "");
        assert_eq!(
            problem(&facts, &groups(32, "connected", roles)),
            "",
            "the node may not know it yet"
        );
    }
}
