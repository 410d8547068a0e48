// SPDX-License-Identifier: Apache-2.0
//! The local findings of the witnesses and the findings of the cluster agree, or a recorded fact explains the difference.

use super::conditions::{FactSubject, Holds};
use super::facts::RecordedFacts;
use super::groups::LabGroup;
use super::published::Published;
use super::recorded::ClusterFinding;
use crate::check::answers::FindingSpan;
use crate::check::verdict::RunVerdict;
use crate::moment::{Micros, SECOND};
use crate::setup::HOSTS;

/// Pairs of a finding of a witness and the finding of the cluster about the same fact.
const PAIRS: [(&str, &str); 2] =
    [("two-primaries", "cluster-two-primaries"), ("no-primary", "cluster-no-primary")];
/// A finding that is open for less than this need not have a partner.
const SHORT: Micros = 10 * SECOND;

/// Compares the findings of all witnesses with those of the cluster.
pub fn judge(
    published: &Published<'_>,
    local: &[Vec<FindingSpan>],
    findings: &[ClusterFinding],
    verdict: &mut RunVerdict,
) {
    let facts = published.facts;
    for (witness, cluster) in PAIRS {
        for (host, spans) in local.iter().enumerate() {
            for span in spans.iter().filter(|span| span.name == witness) {
                judge_local(published, host, span, cluster, findings, verdict);
            }
        }
        for finding in findings.iter().filter(|finding| finding.name == cluster) {
            judge_cluster(facts, finding, witness, local, verdict);
        }
    }
}

/// A finding of a witness has its partner, unless a node could not reach etcd, or etcd did not answer.
fn judge_local(
    published: &Published<'_>,
    host: usize,
    span: &FindingSpan,
    name: &str,
    findings: &[ClusterFinding],
    verdict: &mut RunVerdict,
) {
    let facts = published.facts;
    let close = span.close.unwrap_or(facts.run.end);
    let instance =
        facts.run.setup.instances.iter().position(|instance| instance.name == span.instance);
    let (Some(group), true) = (instance.map(LabGroup::Instance), close - span.open >= SHORT) else {
        return;
    };
    let has_partner = findings.iter().any(|finding| {
        finding.name == name
            && finding.subject == Some(FactSubject::Group(group))
            && finding.open < close
            && finding.close.is_none_or(|close| close > span.open)
    });
    // Any node that could not publish explains it.
    let is_explained = (0..HOSTS)
        .any(|node| published.unpublished_since(node, close) < close.min(facts.run.end))
        || (0..HOSTS).any(|node| published.unpublished_since(node, span.open) < span.open)
        || [span.open, close].iter().any(|at| published.ambiguity(group, *at) != Holds::No);
    if !has_partner && !is_explained {
        let at = facts.run.clock(span.open);
        let text =
            format!("node {host} {}: {} at {at} s, without {name}", span.instance, span.name);
        verdict.fail("witness-disagrees", text);
    }
}

/// A finding of the cluster has its partner, unless the nodes could not receive adverts of each other.
fn judge_cluster(
    facts: &RecordedFacts,
    finding: &ClusterFinding,
    witness: &str,
    local: &[Vec<FindingSpan>],
    verdict: &mut RunVerdict,
) {
    let close = finding.close.unwrap_or(facts.run.end);
    let Some(FactSubject::Group(LabGroup::Instance(instance))) = finding.subject else { return };
    if close - finding.open < SHORT {
        return;
    }
    let name = &facts.run.setup.instances[instance].name;
    let has_partner = local.iter().flatten().any(|span| {
        span.name == witness
            && span.instance == *name
            && span.open < close
            && span.close.is_none_or(|close| close > finding.open)
    });
    if !has_partner && !are_adverts_missing(facts, finding.open) {
        let at = facts.run.clock(finding.open);
        verdict.fail(
            "witness-disagrees",
            format!("{name}: {} at {at} s, without {witness}", finding.name),
        );
    }
}

/// Whether adverts of a node did not reach the others: its link was cut, its keepalived sent none, or it is simulated.
fn are_adverts_missing(facts: &RecordedFacts, at: Micros) -> bool {
    let is_simulated = facts.simulated.iter().any(|life| life.begin <= at && at <= life.gone);
    let last = |act: &str, host: usize| {
        let mut before = facts.run.journal.iter().rev().filter(|entry| entry.at <= at);
        let entry = before.find(|entry| entry.act == act && entry.node == Some(host));
        entry.and_then(|entry| entry.details["how"].as_str()).unwrap_or("heal")
    };
    is_simulated
        || (0..HOSTS).any(|host| {
            last("data", host) != "heal"
                || matches!(last("keepalived", host), "kill" | "freeze" | "stop")
        })
}
