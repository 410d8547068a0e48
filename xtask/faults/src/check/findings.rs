// SPDX-License-Identifier: Apache-2.0
//! Compares the findings of a node with the conditions under which they are right.

use super::answers::FindingSpan;
use super::conditions::Condition;
use super::run_record::RunRecord;
use super::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// Recordings of one moment differ by less than this.
const CLOCK_MARGIN: Micros = SECOND / 5;

/// A finding may open so long after its fact has ended: the node publishes findings at most once a second.
const OPEN_LAG: Micros = 3 * SECOND / 2;

pub fn judge(
    record: &RunRecord,
    node: usize,
    conditions: &[Condition],
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let findings = &record.nodes[node].answers.findings;
    for finding in findings {
        judge_finding(record, node, finding, conditions, strictness, verdict);
    }
    for condition in conditions {
        judge_condition(record, node, condition, findings, strictness, verdict);
    }
}

/// A finding is right if a condition was true when it opened, and if it closes soon after the last one.
fn judge_finding(
    record: &RunRecord,
    node: usize,
    finding: &FindingSpan,
    conditions: &[Condition],
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let FindingSpan { instance, name, open, text, .. } = finding;
    let same: Vec<&Condition> = conditions
        .iter()
        .filter(|condition| {
            condition.name == name
                && record.run.setup.instances[condition.instance].name == *instance
        })
        .collect();
    let is_right = |condition: &&&Condition| {
        condition.start - CLOCK_MARGIN <= *open
            && *open <= condition.end + strictness.limit(OPEN_LAG)
    };
    let place = format!("node {node} {instance}: {name} at {} s", record.run.clock(*open));
    if !same.iter().any(|condition| is_right(&condition)) {
        verdict.finding(name).false_positive += 1;
        verdict.fail(
            "finding-without-fault",
            format!("{place} ({text}); {}", record.run.context(*open)),
        );
        return;
    }
    verdict.finding(name).true_positive += 1;
    if strictness == Strictness::Deadlines {
        judge_end(record, finding, &place, &same, verdict);
    }
}

/// A finding closes soon after the end of its last condition.
fn judge_end(
    record: &RunRecord,
    finding: &FindingSpan,
    place: &str,
    same: &[&Condition],
    verdict: &mut RunVerdict,
) {
    let closed = finding.close.unwrap_or(record.run.end);
    // Conditions that began while the finding was open keep it open.
    let last = same
        .iter()
        .filter(|condition| condition.start - CLOCK_MARGIN <= closed)
        .max_by_key(|condition| condition.close_by.unwrap_or(Micros::MAX));
    let Some(last) = last else { return };
    if last.close_by.is_some_and(|limit| closed > limit) {
        verdict.finding(&finding.name).late += 1;
        let (ended, closed) = (record.run.clock(last.end), record.run.clock(closed));
        verdict.fail(
            "finding-not-closed",
            format!("{place}: the fact ended at {ended} s, the finding at {closed} s or later"),
        );
    }
}

/// A condition that lasted until its deadline has a finding.
fn judge_condition(
    record: &RunRecord,
    node: usize,
    condition: &Condition,
    findings: &[FindingSpan],
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let Some(deadline) = condition.deadline else { return };
    let instance = &record.run.setup.instances[condition.instance].name;
    let is_seen = |finding: &&FindingSpan| {
        finding.name == condition.name
            && finding.instance == *instance
            && finding.open <= condition.end
            && finding.close.is_none_or(|close| close > condition.start)
    };
    let place = format!(
        "node {node} {instance}: {} since {} s",
        condition.name,
        record.run.clock(condition.start)
    );
    let Some(finding) = findings.iter().find(is_seen) else {
        verdict.finding(condition.name).false_negative += 1;
        verdict
            .fail("finding-missing", format!("{place}; {}", record.run.context(condition.start)));
        return;
    };
    if strictness == Strictness::Deadlines && finding.open > deadline {
        verdict.finding(condition.name).late += 1;
        let (open, deadline) = (record.run.clock(finding.open), record.run.clock(deadline));
        verdict.fail(
            "finding-late",
            format!("{place}: opened at {open} s, the deadline was {deadline} s"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::run_record::examples::record;

    fn condition() -> Condition {
        Condition {
            name: "no-primary",
            instance: 0,
            start: 10 * SECOND,
            end: 40 * SECOND,
            deadline: Some(18 * SECOND),
            close_by: Some(48 * SECOND),
        }
    }

    /// The kinds of failure for findings that are open in these periods, in seconds.
    fn failures(periods: &[(i64, Option<i64>)], strictness: Strictness) -> Vec<&'static str> {
        let mut record = record();
        record.nodes[1].answers.findings = periods
            .iter()
            .map(|(open, close)| FindingSpan {
                instance: "VI_1".to_owned(),
                name: "no-primary".to_owned(),
                open: open * SECOND,
                close: close.map(|close| close * SECOND),
                text: String::new(),
            })
            .collect();
        let mut verdict = RunVerdict::default();
        judge(&record, 1, &[condition()], strictness, &mut verdict);
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
