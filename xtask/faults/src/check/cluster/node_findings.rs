// SPDX-License-Identifier: Apache-2.0
//! The findings of each node about itself: `node-cluster` says that the node cannot publish.

use std::path::Path;

use serde_json::Value;

use super::facts::{ActPeriod, RecordedFacts};
use super::published::Published;
use super::recorded::{RecordedDocument, document, lines};
use crate::FaultsError;
use crate::check::answers::{self, FindingSpan};
use crate::check::verdict::RunVerdict;
use crate::moment::{Micros, SECOND};
use crate::setup::HOSTS;

const NAME: &str = "node-cluster";
/// A node that starts under the name of another one says so within this time: it connects, finds the name, and audits
/// itself.
const NAME_WITHIN: Micros = 10 * SECOND;
/// Clocks of nodes differ by less than this, unless the injector has stepped them.
const PLAUSIBLE: Micros = 60 * SECOND;

/// The findings in the events of each node. Those with times of a stepped clock are left out.
pub fn read(directory: &Path, facts: &RecordedFacts) -> Result<Vec<Vec<FindingSpan>>, FaultsError> {
    let mut all = Vec::new();
    for host in 0..HOSTS {
        let mut spans = answers::read_events(&directory.join(format!("node{host}")))?;
        spans.retain(|span| is_plausible(facts, host, span));
        all.push(spans);
    }
    Ok(all)
}

/// Whether the times of a finding are those of the clock of the machine.
fn is_plausible(facts: &RecordedFacts, host: usize, span: &FindingSpan) -> bool {
    let end = facts.run.end;
    let is_inside = |at: Micros| facts.run.start - PLAUSIBLE < at && at < end + PLAUSIBLE;
    let close = span.close.unwrap_or(end);
    let stepped = &facts.hosts[host].stepped;
    is_inside(span.open)
        && is_inside(close)
        && !stepped.iter().any(|step| step.from <= close && span.open <= step.to + SECOND)
}

/// Judges `node-cluster` of all nodes, and of the second nodes with the name of another one.
pub fn judge(
    directory: &Path,
    published: &Published<'_>,
    local: &[Vec<FindingSpan>],
    verdict: &mut RunVerdict,
) -> Result<(), FaultsError> {
    let facts = published.facts;
    for (host, spans) in local.iter().enumerate() {
        for span in spans.iter().filter(|span| span.name == NAME) {
            // The node can reach etcd, and has its name.
            if published.unpublished_since(host, span.open) < span.open {
                verdict.finding(NAME).true_positive += 1;
                continue;
            }
            verdict.finding(NAME).false_positive += 1;
            let at = facts.run.clock(span.open);
            let text = format!("node {host}: {NAME} at {at} s ({})", span.text);
            verdict.fail("finding-without-fault", text);
        }
    }
    for (host, facts) in facts.hosts.iter().enumerate() {
        let file = directory.join(format!("node{host}")).join("twin.jsonl");
        for twin in &facts.twins {
            let documents: Vec<RecordedDocument> = lines(&file)?.iter().map(document).collect();
            judge_twin(published.facts, host, twin, &documents, verdict);
        }
    }
    Ok(())
}

/// A node with the name of another one has the finding until its end.
fn judge_twin(
    facts: &RecordedFacts,
    host: usize,
    twin: &ActPeriod,
    documents: &[RecordedDocument],
    verdict: &mut RunVerdict,
) {
    let is_judged = |document: &&RecordedDocument| {
        document.asked > twin.done + NAME_WITHIN && document.until < twin.heal
    };
    let mut judged = documents.iter().filter(is_judged);
    let has_finding = |document: &RecordedDocument| {
        let items = document.document["items"].as_array().into_iter().flatten();
        items.into_iter().any(|item: &Value| item["name"] == NAME)
    };
    if twin.done + NAME_WITHIN + 2 * SECOND > twin.heal {
        return;
    }
    match (judged.clone().next(), judged.find(|document| !has_finding(document))) {
        (Some(_), None) => verdict.finding(NAME).true_positive += 1,
        (first, _) => {
            verdict.finding(NAME).false_negative += 1;
            let at = facts.run.clock(first.map_or(twin.heal, |document| document.asked));
            let text = format!(
                "second node on host {host}, with the name of another one: no {NAME} at {at} s"
            );
            verdict.fail("finding-missing", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::cluster::findings::tests::facts;
    use serde_json::json;

    /// The kinds of failure of a second node from 10 s to 40 s that has the finding from a second on.
    fn failures(since: i64) -> Vec<&'static str> {
        let documents: Vec<RecordedDocument> = (11..40)
            .map(|second| RecordedDocument {
                asked: second * SECOND,
                until: second * SECOND + 1,
                name: "findings".to_owned(),
                document: if second >= since {
                    json!({ "items": [{ "name": NAME }] })
                } else {
                    json!({ "items": [] })
                },
            })
            .collect();
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
