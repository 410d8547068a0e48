// SPDX-License-Identifier: Apache-2.0
//! Compares the documents of each node with the states that can stand in etcd: a node that reaches etcd shows the truth, and
//! a node that does not says so.

use std::collections::BTreeSet;

use serde_json::Value;

use super::facts::RecordedFacts;
use super::findings::CLOCK_MARGIN;
use super::groups::LabGroup;
use super::published::{Presence, Published, SIMULATED_NODE};
use super::recorded::{RecordedAnswers, RecordedDocument, node_number, subject};
use crate::check::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};
use crate::setup::HOSTS;

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
    let changes = published.changes();
    for host in 0..HOSTS {
        let judge = ViewJudge { published, changes: &changes, host, strictness };
        let mut has_result = false;
        for document in &answers.documents[host] {
            if document.asked < published.facts.run.start
                || document.until > published.facts.run.end
            {
                continue;
            }
            if let Some(problem) = judge.document(document) {
                let at = published.facts.run.clock(document.asked);
                let context = published.facts.run.context(document.asked);
                verdict.fail(
                    problem.kind,
                    format!("node {host} at {at} s: {}; {context}", problem.text),
                );
                // One failure of a node is enough: the next documents have the same.
                break;
            }
            let is_late = document.asked > published.facts.run.end - RESULT;
            has_result |= document.name == "groups" && is_late && judge.is_published(document);
        }
        // On a machine of unknown speed, the last documents may be too early.
        if !has_result && strictness == Strictness::Deadlines {
            verdict.fail(
                "view-not-converged",
                format!("node {host} has no document at the end of the run"),
            );
        }
    }
    for problem in without_quorum(published.facts, answers) {
        verdict.fail("finding-without-quorum", problem);
    }
}

/// A difference between a document and the facts.
struct ViewProblem {
    kind: &'static str,
    text: String,
}

impl ViewProblem {
    fn wrong(text: String) -> Self {
        Self { kind: "view-wrong", text }
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
        let since = self.published.unpublished_since(self.host, document.until);
        since == document.until
            && document.asked >= self.published.facts.run.start + self.published.times.reconnect
    }

    fn document(&self, document: &RecordedDocument) -> Option<ViewProblem> {
        if document.document.is_null() {
            return self.is_published(document).then(|| ViewProblem {
                kind: "view-missing",
                text: format!("no answer to /v1/cluster/{}", document.name),
            });
        }
        let connection = document.document["connection"].as_str().unwrap_or_default();
        if self.is_cut_off(document) && connection == "connected" {
            let text = "the node cannot reach etcd, and its view is not stale".to_owned();
            return Some(ViewProblem { kind: "view-not-stale", text });
        }
        if !self.is_published(document) {
            return None;
        }
        if connection != "connected" {
            let text = format!("the node can reach etcd, and its view is {connection:?}");
            return Some(ViewProblem { kind: "view-stale", text });
        }
        match document.name.as_str() {
            "groups" => self.groups(document),
            "nodes" => self.nodes(document),
            _ => None,
        }
    }

    /// Whether the node has been without etcd for longer than its lease.
    fn is_cut_off(&self, document: &RecordedDocument) -> bool {
        let facts = self.published.facts;
        let limit = facts.times.lease + self.strictness.limit(STALE_WITHIN);
        let own = facts.hosts[self.host].breaks.iter().filter(|broken| broken.is_network);
        own.into_iter()
            .any(|broken| broken.done + limit < document.asked && document.until < broken.heal)
    }

    /// The times with all states that the document can have.
    fn moments(&self, document: &RecordedDocument) -> Vec<Micros> {
        let lag = self.strictness.limit(VIEW_LAG);
        let (from, to) = (document.asked - lag, document.until + CLOCK_MARGIN);
        let inside = self.changes.range(from..to).flat_map(|at| [*at, *at + 1]);
        inside.chain([from, to]).collect()
    }

    /// The possible presences and roles of a member of a group while the document was made.
    fn possible(
        &self,
        node: usize,
        group: LabGroup,
        document: &RecordedDocument,
    ) -> (BTreeSet<Presence>, BTreeSet<&'static str>) {
        let (mut presence, mut roles) = (BTreeSet::new(), BTreeSet::new());
        for at in self.moments(document) {
            let states = self.published.states(node, group, at);
            presence.extend(states.presence);
            roles.extend(states.roles);
        }
        (presence, roles)
    }

    fn nodes(&self, document: &RecordedDocument) -> Option<ViewProblem> {
        let items = document.document["items"].as_array()?;
        for node in 0..=SIMULATED_NODE {
            let moments = self.moments(document);
            let possible: BTreeSet<Presence> =
                moments.iter().flat_map(|at| self.published.node_presence(node, *at)).collect();
            let item = items.iter().find(|item| named(&item["node"]) == Some(node));
            let state = item.map_or("absent", |item| item["state"].as_str().unwrap_or_default());
            if !possible.iter().any(|presence| presence.word() == state) {
                return Some(ViewProblem::wrong(format!(
                    "node {node} is {state:?}, expected {possible:?}"
                )));
            }
        }
        None
    }

    fn groups(&self, document: &RecordedDocument) -> Option<ViewProblem> {
        let items = document.document["items"].as_array()?;
        let facts = self.published.facts;
        for group in LabGroup::all(facts) {
            let is_group = |item: &&Value| {
                item["id"].as_str().and_then(|id| LabGroup::of_id(id, facts)) == Some(group)
            };
            let mut found = items.iter().filter(is_group);
            let (first, second) = (found.next(), found.next());
            let name = group.text(facts);
            if second.is_some() {
                return Some(ViewProblem::wrong(format!("{name} is in two groups")));
            }
            let Some(first) = first else {
                // The view of a node may have only the groups of its own instances.
                let (own, _) = self.possible(self.host, group, document);
                if own.contains(&Presence::Absent) {
                    continue;
                }
                return Some(ViewProblem::wrong(format!("{name} is missing")));
            };
            let problem =
                (0..=SIMULATED_NODE).find_map(|node| self.member(node, group, first, document));
            if problem.is_some() {
                return problem;
            }
        }
        None
    }

    /// Compares a member of a group.
    fn member(
        &self,
        node: usize,
        group: LabGroup,
        item: &Value,
        document: &RecordedDocument,
    ) -> Option<ViewProblem> {
        let (presence, roles) = self.possible(node, group, document);
        let members = item["members"].as_array()?;
        let member = members.iter().find(|member| named(&member["node"]) == Some(node));
        let Some(member) = member else {
            let is_expected = !presence.contains(&Presence::Absent);
            return is_expected
                .then(|| ViewProblem::wrong(format!("the group has no member on node {node}")));
        };
        let text = |key: &str| member[key].as_str().unwrap_or_default();
        let (state, role) = (text("node_state"), text("role"));
        if !presence.iter().any(|presence| presence.word() == state) {
            return Some(ViewProblem::wrong(format!(
                "node {node} is {state:?}, expected {presence:?}"
            )));
        }
        // The role of a node that is not live is its last known one.
        if state == "live" && !roles.contains(role) {
            return Some(ViewProblem::wrong(format!(
                "{} on node {node} is {role:?}, expected {roles:?}",
                group.text(self.published.facts)
            )));
        }
        None
    }
}

fn named(name: &Value) -> Option<usize> {
    name.as_str().and_then(node_number)
}

/// Findings that a node began to show while etcd had no quorum.
fn without_quorum(facts: &RecordedFacts, answers: &RecordedAnswers) -> Vec<String> {
    let mut problems = Vec::new();
    for period in facts.unstable.iter().filter(|period| period.is_quorum_lost) {
        for (host, documents) in answers.documents.iter().enumerate() {
            let documents = || documents.iter().filter(|document| document.name == "findings");
            let shown = |document: &RecordedDocument| -> BTreeSet<String> {
                let items = document.document["items"].as_array().into_iter().flatten();
                let open = items.filter(|item| item["closed"].is_null());
                open.map(|item| format!("{} {:?}", item["name"], subject(item, facts))).collect()
            };
            let before = documents().rev().find(|document| document.until < period.from).map(shown);
            let before = before.unwrap_or_default();
            // The quorum may be back in the last seconds of the period.
            let inside = |document: &&RecordedDocument| {
                document.asked > period.from + 2 * SECOND && document.until < period.to - 4 * SECOND
            };
            let new =
                documents().filter(inside).flat_map(shown).find(|item| !before.contains(item));
            if let Some(new) = new {
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
    use crate::check::cluster::facts::NodeBreak;
    use crate::check::cluster::findings::tests::facts;
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
        judge.document(document).map_or("", |problem| problem.kind)
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
        let (from, heal) = (30 * SECOND, 60 * SECOND);
        facts.hosts[0].breaks = vec![NodeBreak {
            from,
            done: from,
            heal,
            to: heal,
            is_orderly: false,
            is_network: true,
        }];
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
