// SPDX-License-Identifier: Apache-2.0
//! Compares the findings in etcd with the conditions under which they are right. Their names are text, as etcd has them: the
//! checker shares no code with the product.

use super::conditions::ConditionTimeline;
use super::facts::RecordedFacts;
use super::flapping;
use super::groups::LabGroup;
use super::published::Published;
use crate::check::findings::{Condition, FindingJudge, FindingSpan};
use crate::check::periods::{Holds, Span};
use crate::check::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// Added to each deadline, for a busy machine.
const BUSY: Micros = 3 * SECOND / 2;
/// A finding that has lost its condition is closed within this time.
const CLOSE_WITHIN: Micros = 2 * SECOND;
/// Recordings of one moment differ by less than this.
pub const CLOCK_MARGIN: Micros = SECOND / 3;

/// How long the condition lasts before its finding is opened.
fn settle(name: &str, facts: &RecordedFacts) -> Micros {
    let (times, advert) = (facts.times, facts.run.interval());
    match name {
        "cluster-two-primaries" => advert + times.settle,
        "cluster-no-primary" => 4 * advert + times.settle,
        "cluster-node-lost" | "cluster-ambiguous-group" => times.settle,
        _ => times.slow_settle,
    }
}

/// The periods in which no node may be able to report: etcd does not answer, or the reporter was lost.
fn unavailable(published: &Published<'_>) -> Vec<(Micros, Micros)> {
    let facts = published.facts;
    let reconnect = published.times.reconnect;
    // After a new connection, conditions settle again.
    let etcd = published.etcd_breaks().map(|(from, to)| (from, to + reconnect));
    let mut periods: Vec<(Micros, Micros)> = etcd.collect();
    periods.push((0, facts.run.start + reconnect));
    for (node, host) in facts.hosts.iter().enumerate() {
        for broken in &host.breaks {
            let from = broken.period.from;
            if facts.reporter(from).is_none_or(|reporter| reporter == node) {
                let (done, lease_end) = (broken.period.done, facts.lease_end(from));
                let gone = if broken.is_orderly { done } else { lease_end };
                periods.push((from, gone + 2 * SECOND));
            }
        }
    }
    periods
}

/// Judges all findings. `exact` decides which findings are required, `published` which are possible.
pub fn judge(
    exact: &Published<'_>,
    published: &Published<'_>,
    findings: &[FindingSpan],
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let facts = exact.facts;
    let mut judge = FindingJudge { run: &facts.run, strictness, verdict };
    let possible = published.timelines();
    let unavailable = unavailable(exact);
    for finding in findings {
        if finding.name == flapping::NAME {
            exact.judge_flapping(finding, judge.verdict);
            continue;
        }
        let timeline = possible.iter().find(|other| finding.is_about(other.name, &other.subject));
        let is_right = timeline.is_some_and(|timeline| {
            is_possible(finding, timeline, settle(&finding.name, facts), strictness)
        });
        if judge.opened(finding, is_right) {
            judge_end(&mut judge, finding, timeline, &unavailable);
        }
    }
    for timeline in exact.timelines() {
        // A new reporter waits for one lease before it reports a lost node.
        let grace = if timeline.name == "cluster-node-lost" { facts.times.lease } else { 0 };
        let limit = settle(timeline.name, facts) + facts.times.heartbeat + BUSY;
        for (start, end) in certain(&timeline, Holds::Yes, &unavailable, grace) {
            let (name, subject) = (timeline.name, timeline.subject.clone());
            let deadline = Some(start + limit).filter(|deadline| *deadline <= end);
            let condition = Condition { name, subject, start, end, deadline, close_by: None };
            judge.required(&condition, findings);
        }
    }
    for group in LabGroup::all(facts) {
        exact.judge_missing_flapping(group, findings, &unavailable, judge.verdict);
    }
}

/// Whether the condition of a finding was possible for the time of its settling.
fn is_possible(
    finding: &FindingSpan,
    timeline: &ConditionTimeline,
    settle: Micros,
    strictness: Strictness,
) -> bool {
    let first = match strictness {
        Strictness::Deadlines => finding.open - settle + CLOCK_MARGIN,
        Strictness::Presence => finding.open,
    };
    let is_without = |span: &&Span<Holds>| {
        span.value == Holds::No
            && span.start < finding.open - CLOCK_MARGIN / 2
            && first.min(finding.open) < span.end
    };
    timeline.spans.iter().find(is_without).is_none()
}

/// A finding is not open for long without its condition, and not closed while its condition is certain.
fn judge_end(
    judge: &mut FindingJudge<'_>,
    finding: &FindingSpan,
    timeline: Option<&ConditionTimeline>,
    unavailable: &[(Micros, Micros)],
) {
    let Some(timeline) = timeline else { return };
    let close = finding.close.unwrap_or(judge.run.end);
    let without = certain(timeline, Holds::No, unavailable, 0).into_iter();
    let mut without = without.map(|(from, to)| (from.max(finding.open), to.min(close)));
    if let Some((from, _)) = without.find(|(from, to)| to - from > CLOSE_WITHIN) {
        judge.not_closed(finding, from);
    }
    let is_certain = |close: &Micros| {
        let mut spans = timeline.spans.iter().filter(|span| span.value == Holds::Yes);
        spans.any(|span| (span.start + CLOCK_MARGIN + 1..span.end - CLOCK_MARGIN).contains(close))
    };
    if let Some(close) = finding.close.filter(is_certain) {
        judge.closed_early(finding, close);
    }
}

/// The periods in which a condition has this value for certain, and a node could report it.
fn certain(
    timeline: &ConditionTimeline,
    holds: Holds,
    unavailable: &[(Micros, Micros)],
    grace: Micros,
) -> Vec<(Micros, Micros)> {
    let spans = timeline.spans.iter().filter(|span| span.value == holds);
    let mut periods: Vec<(Micros, Micros)> = spans.map(|span| (span.start, span.end)).collect();
    for (from, to) in unavailable {
        let parts = |(start, end): (Micros, Micros)| {
            [(start, end.min(*from)), (start.max(to + grace), end)]
        };
        let parts = periods.into_iter().flat_map(parts);
        periods = parts.filter(|(start, end)| start < end).collect();
    }
    periods
}

#[cfg(test)]
pub mod tests;
