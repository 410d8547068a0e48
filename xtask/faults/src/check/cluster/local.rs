// SPDX-License-Identifier: Apache-2.0
//! The findings of each node: those of the witnesses agree with the findings of the cluster, or a recorded fact explains the
//! difference; and `node-cluster` says that the node cannot publish.

use super::answers::{RecordedAnswers, RecordedDocument};
use super::facts::RecordedFacts;
use super::groups::LabGroup;
use super::published::Published;
use crate::check::findings::FindingSpan;
use crate::check::periods::{ActPeriod, Holds};
use crate::check::verdict::RunVerdict;
use crate::moment::{Micros, SECOND};
use crate::setup::HOSTS;

/// A witness finding and the cluster finding about the same fact.
const PAIRS: [(&str, &str); 2] =
    [("two-primaries", "cluster-two-primaries"), ("no-primary", "cluster-no-primary")];
/// A finding that is open for less than this need not have a partner.
const SHORT: Micros = 10 * SECOND;
/// The finding of a node that cannot publish.
const NAME: &str = "node-cluster";
/// A node that starts under the name of another one says so within this time: it connects, finds the name, and audits
/// itself.
const NAME_WITHIN: Micros = 10 * SECOND;
/// Clocks of nodes differ by less than this, unless the injector has stepped them.
const PLAUSIBLE: Micros = 60 * SECOND;

/// Judges the findings of all nodes, and of the second nodes with the name of another one.
pub fn judge(published: &Published<'_>, answers: &RecordedAnswers, verdict: &mut RunVerdict) {
    let facts = published.facts;
    let local: Vec<(usize, &FindingSpan)> = (0..HOSTS)
        .flat_map(|host| plausible(facts, host).map(move |finding| (host, finding)))
        .collect();
    for (witness, cluster) in PAIRS {
        for (host, span) in local.iter().filter(|(_, span)| span.name == witness) {
            let has_partner = has_partner(facts, span, cluster, answers.findings.iter());
            if !has_partner && !is_explained(published, span) {
                let (at, name) = (facts.run.clock(span.open), &span.subject);
                let text = format!("node {host} {name}: {witness} at {at} s, without {cluster}");
                verdict.fail("witness-disagrees", text);
            }
        }
        for finding in answers.findings.iter().filter(|finding| finding.name == cluster) {
            let local = local.iter().map(|(_, span)| *span);
            let has_partner = has_partner(facts, finding, witness, local);
            if !has_partner && !are_adverts_missing(facts, finding.open) {
                let (at, name) = (facts.run.clock(finding.open), &finding.subject);
                let text = format!("{name}: {cluster} at {at} s, without {witness}");
                verdict.fail("witness-disagrees", text);
            }
        }
    }
    for (host, span) in local.iter().filter(|(_, span)| span.name == NAME) {
        // The node can reach etcd, and has its name.
        if published.has_published(*host, span.open) {
            let at = facts.run.clock(span.open);
            let text = format!("node {host}: {NAME} at {at} s ({})", span.text);
            verdict.unexpected_finding(NAME, text);
        } else {
            verdict.finding(NAME).true_positive += 1;
        }
    }
    for (host, (own, documents)) in facts.hosts.iter().zip(&answers.twins).enumerate() {
        own.twins.iter().for_each(|twin| judge_twin(facts, host, twin, documents, verdict));
    }
}

/// A node's findings, with times of the machine's clock.
fn plausible(facts: &RecordedFacts, host: usize) -> impl Iterator<Item = &FindingSpan> {
    let (start, end) = (facts.run.start - PLAUSIBLE, facts.run.end + PLAUSIBLE);
    let stepped = &facts.hosts[host].stepped;
    facts.run.nodes[host].answers.findings.iter().filter(move |span| {
        let close = span.close.unwrap_or(facts.run.end);
        let is_inside = |at: Micros| start < at && at < end;
        let is_stepped = |step: &ActPeriod| step.from <= close && span.open <= step.to + SECOND;
        is_inside(span.open) && is_inside(close) && !stepped.iter().any(is_stepped)
    })
}

/// Whether a finding about an instance has a partner with this name, or need not have one.
fn has_partner<'a>(
    facts: &RecordedFacts,
    finding: &FindingSpan,
    partner: &str,
    mut others: impl Iterator<Item = &'a FindingSpan>,
) -> bool {
    let close = finding.close.unwrap_or(facts.run.end);
    let mut instances = facts.run.setup.instances.iter();
    close - finding.open < SHORT
        || !instances.any(|instance| instance.name == finding.subject)
        || others.any(|other| {
            other.is_about(partner, &finding.subject) && other.is_open_in(finding.open, close)
        })
}

/// Whether a node could not publish, or the group was ambiguous, when a finding of a witness opened or closed.
fn is_explained(published: &Published<'_>, span: &FindingSpan) -> bool {
    let facts = published.facts;
    let group = LabGroup::all(facts).into_iter().find(|group| group.text(facts) == span.subject);
    [span.open, span.close.unwrap_or(facts.run.end)].into_iter().any(|at| {
        (0..HOSTS).any(|node| !published.has_published(node, at))
            || group.is_some_and(|group| published.ambiguity(group, at) != Holds::No)
    })
}

/// Whether adverts of a node did not reach the others: its link was cut, its keepalived sent none, or it is simulated.
fn are_adverts_missing(facts: &RecordedFacts, at: Micros) -> bool {
    let is_simulated = facts.simulated.iter().any(|life| life.begin <= at && at <= life.gone);
    let last = |act: &str, host: usize| {
        let entry = facts.run.acts(host, &[act]).rev().find(|entry| entry.at <= at);
        entry.map_or("heal", |entry| entry.how.as_str())
    };
    let is_missing = |host: usize| {
        last("data", host) != "heal"
            || matches!(last("keepalived", host), "kill" | "freeze" | "stop")
    };
    is_simulated || (0..HOSTS).any(is_missing)
}

/// A node with the name of another one has the finding until its end.
fn judge_twin(
    facts: &RecordedFacts,
    host: usize,
    twin: &ActPeriod,
    documents: &[RecordedDocument],
    verdict: &mut RunVerdict,
) {
    if twin.done + NAME_WITHIN + 2 * SECOND > twin.heal {
        return;
    }
    let is_judged = |document: &&RecordedDocument| {
        document.asked > twin.done + NAME_WITHIN && document.until < twin.heal
    };
    let judged: Vec<&RecordedDocument> = documents.iter().filter(is_judged).collect();
    let has_finding =
        |document: &&RecordedDocument| document.items().any(|item| item["name"] == NAME);
    if !judged.is_empty() && judged.iter().all(has_finding) {
        verdict.finding(NAME).true_positive += 1;
        return;
    }
    let at = facts.run.clock(judged.first().map_or(twin.heal, |document| document.asked));
    let text =
        format!("second node on host {host}, with the name of another one: no {NAME} at {at} s");
    verdict.missing_finding(NAME, text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::cluster::findings::tests::facts;
    use serde_json::json;

    /// The kinds of failure of a second node from 10 s to 40 s that has the finding from a second on.
    fn failures(since: i64) -> Vec<&'static str> {
        let document = |second: i64| RecordedDocument {
            asked: second * SECOND,
            until: second * SECOND + 1,
            name: "findings".to_owned(),
            document: if second >= since {
                json!({ "items": [{ "name": NAME }] })
            } else {
                json!({ "items": [] })
            },
        };
        let documents: Vec<RecordedDocument> = (11..40).map(document).collect();
        let (from, to) = (10 * SECOND, 40 * SECOND);
        let twin = ActPeriod { from, done: from, heal: to, to };
        let mut verdict = RunVerdict::default();
        judge_twin(&facts(), 1, &twin, &documents, &mut verdict);
        verdict.failures.iter().map(|failure| failure.kind).collect()
    }

    #[test]
    fn a_second_node_with_one_name_must_say_so() {
        assert_eq!(failures(15), [""; 0]);
        assert_eq!(failures(30), ["finding-missing"]);
        assert_eq!(failures(60), ["finding-missing"]);
    }
}
