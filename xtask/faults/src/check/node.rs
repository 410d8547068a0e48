// SPDX-License-Identifier: Apache-2.0
//! The rules of the nodes: transitions, causes, and the findings of each node.

mod causes;
mod conditions;
pub mod deliveries;
mod transitions;

pub(super) use conditions::obstacles;

use super::findings::{Condition, FindingJudge, FindingSpan};
use super::periods::Span;
use super::recording::{RecordedNode, RecordedRun};
use super::verdict::{RunVerdict, Strictness};
use super::wire::WireAdvert;
use crate::moment::{Micros, SECOND};
use crate::setup::{HealthyShape, InstanceFacts};

/// Recordings of one moment differ by less than this.
const CLOCK_MARGIN: Micros = SECOND / 5;
/// A finding may open so long after its fact has ended: the node publishes findings at most once a second.
const OPEN_LAG: Micros = 3 * SECOND / 2;

/// Judges the answers of all nodes.
pub fn judge(run: &RecordedRun, strictness: Strictness, verdict: &mut RunVerdict) {
    let nodes = run.nodes.iter().enumerate();
    for (node, record) in nodes.filter(|(node, _)| run.is_observed(*node)) {
        for problem in &record.answers.problems {
            verdict.fail("answers", format!("node {node}: {problem}"));
        }
        for instance in 0..run.setup.instances.len() {
            transitions::judge(NodeInstance { run, node, instance }, strictness, verdict);
        }
        causes::judge(run, node, strictness, verdict);
        deliveries::judge(run, node, strictness, verdict);
        let conditions = conditions::of_node(run, node);
        judge_findings(&mut FindingJudge { run, strictness, verdict }, node, &conditions);
    }
}

/// One instance on one node.
#[derive(Clone, Copy)]
struct NodeInstance<'a> {
    run: &'a RecordedRun,
    node: usize,
    instance: usize,
}

impl<'a> NodeInstance<'a> {
    fn record(self) -> &'a RecordedNode {
        &self.run.nodes[self.node]
    }

    fn facts(self) -> &'a InstanceFacts {
        &self.run.setup.instances[self.instance]
    }

    fn roles(self) -> &'a [Span<&'static str>] {
        &self.record().timeline.roles[self.instance]
    }

    /// The adverts that the switch delivered to the node.
    fn delivered(self) -> impl Iterator<Item = &'a WireAdvert> {
        self.run.delivered(self.node, self.facts())
    }

    /// The adverts that the node has sent.
    fn sent(self) -> impl Iterator<Item = &'a WireAdvert> {
        self.run.sent(self.node, self.facts())
    }

    /// The addresses that keepalived has read at a time. Only those of the first instance change.
    fn configured(self, at: Micros) -> Option<&'a Vec<String>> {
        let mut changes = self.record().configured.iter().rev();
        changes.find(|(since, _)| *since <= at).map(|(_, addresses)| addresses)
    }

    /// The addresses that an advert has: without those of `virtual_ipaddress_excluded`.
    fn advertised(self, addresses: &[String]) -> &[String] {
        let is_floating = self.run.setup.shape == Some(HealthyShape::FloatingAddress);
        &addresses[..if is_floating { addresses.len().min(1) } else { addresses.len() }]
    }

    /// The times at which keepalived got SIGHUP.
    fn reloads(self) -> impl DoubleEndedIterator<Item = Micros> {
        let signals = self.run.acts(self.node, &["signal"]);
        signals.filter(|entry| entry.signals.iter().any(|name| name == "HUP")).map(|entry| entry.at)
    }

    /// The name in messages.
    fn subject(self) -> String {
        format!("node {} {}", self.node, self.facts().name)
    }
}

/// Whether a lab can have a finding. Where all is healthy, a failover justifies none; adverts may come late on a busy
/// machine.
fn is_possible(run: &RecordedRun, finding: &str) -> bool {
    match run.setup.shape {
        None => true,
        Some(HealthyShape::ReloadedLater) if finding == "keepalived-reload-pending" => true,
        Some(_) => finding == "adverts-lost",
    }
}

/// Compares the findings of a node with the conditions under which they are right.
fn judge_findings(judge: &mut FindingJudge<'_>, node: usize, conditions: &[Condition]) {
    let own = |finding: &FindingSpan| FindingSpan {
        subject: format!("node {node} {}", finding.subject),
        ..finding.clone()
    };
    let findings: Vec<FindingSpan> =
        judge.run.nodes[node].answers.findings.iter().map(own).collect();
    for finding in &findings {
        let is_same = |condition: &&Condition| finding.is_about(condition.name, &condition.subject);
        let same: Vec<&Condition> = conditions.iter().filter(is_same).collect();
        let lag = judge.strictness.limit(OPEN_LAG);
        let is_right = same.iter().any(|condition| {
            (condition.start - CLOCK_MARGIN..=condition.end + lag).contains(&finding.open)
        });
        let is_right = is_right && is_possible(judge.run, &finding.name);
        if !judge.opened(finding, is_right) {
            continue;
        }
        // Conditions that began while the finding was open keep it open.
        let closed = finding.close.unwrap_or(judge.run.end);
        let open = same.iter().filter(|condition| condition.start - CLOCK_MARGIN <= closed);
        let last = open.max_by_key(|condition| condition.close_by.unwrap_or(Micros::MAX));
        let late = last.filter(|last| last.close_by.is_some_and(|limit| closed > limit));
        if let Some(last) = late {
            judge.not_closed(finding, last.end);
        }
    }
    for condition in conditions {
        judge.required(condition, &findings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::recording::examples::run;

    /// The kinds of failure for findings that are open in these periods, in seconds. Their condition lasts from 10 s to
    /// 40 s; the finding must be open at 18 s and closed at 48 s.
    fn failures(periods: &[(i64, Option<i64>)], strictness: Strictness) -> Vec<&'static str> {
        let mut run = run();
        let finding = |(open, close): &(i64, Option<i64>)| FindingSpan {
            id: String::new(),
            subject: "VI_1".to_owned(),
            name: "no-primary".to_owned(),
            open: open * SECOND,
            close: close.map(|close| close * SECOND),
            text: String::new(),
        };
        run.nodes[1].answers.findings = periods.iter().map(finding).collect();
        let condition = Condition {
            name: "no-primary",
            subject: "node 1 VI_1".to_owned(),
            start: 10 * SECOND,
            end: 40 * SECOND,
            deadline: Some(18 * SECOND),
            close_by: Some(48 * SECOND),
        };
        let mut verdict = RunVerdict::default();
        let mut judge = FindingJudge { run: &run, strictness, verdict: &mut verdict };
        judge_findings(&mut judge, 1, &[condition]);
        verdict.failures.iter().map(|failure| failure.kind).collect()
    }

    #[test]
    fn a_finding_in_time_is_right() {
        assert_eq!(failures(&[(15, Some(45))], Strictness::Deadlines), [""; 0]);
    }

    #[test]
    fn a_missing_finding_is_a_failure_in_every_run() {
        assert_eq!(failures(&[], Strictness::Deadlines), ["finding-missing"]);
        assert_eq!(failures(&[], Strictness::Presence), ["finding-missing"]);
    }

    #[test]
    fn a_late_finding_is_a_failure_only_where_deadlines_are_judged() {
        assert_eq!(failures(&[(25, Some(45))], Strictness::Deadlines), ["finding-late"]);
        assert_eq!(failures(&[(25, Some(45))], Strictness::Presence), [""; 0]);
        assert_eq!(failures(&[(15, Some(60))], Strictness::Deadlines), ["finding-not-closed"]);
        assert_eq!(failures(&[(15, None)], Strictness::Deadlines), ["finding-not-closed"]);
    }

    #[test]
    fn a_finding_before_its_fact_is_a_failure() {
        let kinds = failures(&[(5, Some(8)), (15, Some(45))], Strictness::Deadlines);
        assert_eq!(kinds, ["finding-without-fault"]);
    }
}
