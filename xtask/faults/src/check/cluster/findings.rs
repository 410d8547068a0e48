// SPDX-License-Identifier: Apache-2.0
//! Compares the findings in etcd with the conditions under which they are right.

use super::conditions::{self, ConditionTimeline, FactSubject, Holds, HoldsSpan};
use super::facts::RecordedFacts;
use super::flapping;
use super::groups::LabGroup;
use super::published::Published;
use super::recorded::ClusterFinding;
use crate::check::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// Added to each deadline, for a busy machine.
const BUSY: Micros = 3 * SECOND / 2;
/// A finding that has lost its condition is closed within this time.
const CLOSE_WITHIN: Micros = 2 * SECOND;
/// Recordings of one moment differ by less than this.
pub const CLOCK_MARGIN: Micros = SECOND / 3;

/// The times of one kind of finding.
struct FindingTimes {
    /// How long the condition lasts before the finding is opened.
    settle: Micros,
    /// The time until the finding is open, at the latest.
    deadline: Micros,
}

fn times(name: &str, facts: &RecordedFacts) -> FindingTimes {
    let times = &facts.times;
    let settle = match name {
        "cluster-two-primaries" => times.advert + times.settle,
        "cluster-no-primary" => 4 * times.advert + times.settle,
        "cluster-node-lost" | "cluster-ambiguous-group" => times.settle,
        _ => times.slow_settle,
    };
    FindingTimes { settle, deadline: settle + times.heartbeat + BUSY }
}

/// The periods in which no node may be able to report: etcd does not answer, or the reporter was lost.
fn unavailable(published: &Published<'_>) -> Vec<(Micros, Micros)> {
    let facts = published.facts;
    let reconnect = published.times.reconnect;
    let mut periods: Vec<(Micros, Micros)> =
        facts.unstable.iter().map(|period| (period.from, period.to + reconnect)).collect();
    periods.push((0, facts.run.start + reconnect));
    // The reporter may have used the lost member. After a new connection, conditions settle again.
    periods.extend(facts.lost_members.iter().map(|(from, to)| (*from, to + reconnect)));
    for (node, host) in facts.hosts.iter().enumerate() {
        for broken in &host.breaks {
            if facts.reporter(broken.from).is_some_and(|reporter| reporter != node) {
                continue;
            }
            let gone = if broken.is_orderly { broken.done } else { facts.lease_end(broken.from) };
            periods.push((broken.from, gone + 2 * SECOND));
        }
    }
    periods
}

/// Judges findings.
pub struct FindingJudge<'a> {
    published: &'a Published<'a>,
    /// The conditions of findings that are required.
    required: Vec<ConditionTimeline>,
    /// The conditions of findings that may be there.
    possible: Vec<ConditionTimeline>,
    /// When no node may be able to report.
    unavailable: Vec<(Micros, Micros)>,
    strictness: Strictness,
}

/// The name of a subject, for messages.
fn subject_text(facts: &RecordedFacts, subject: Option<FactSubject>) -> String {
    match subject {
        Some(FactSubject::Group(group)) => group.text(facts),
        Some(FactSubject::Node(node)) => format!("node {node}"),
        None => "unknown subject".to_owned(),
    }
}

impl<'a> FindingJudge<'a> {
    /// `exact` decides which findings are required, `published` which are possible.
    pub fn new(
        exact: &'a Published<'a>,
        published: &Published<'_>,
        strictness: Strictness,
    ) -> Self {
        Self {
            published: exact,
            required: conditions::timelines(exact),
            possible: conditions::timelines(published),
            unavailable: unavailable(exact),
            strictness,
        }
    }

    /// Judges all findings.
    pub fn all(&self, findings: &[ClusterFinding], verdict: &mut RunVerdict) {
        for finding in findings {
            if finding.name == flapping::NAME {
                flapping::judge(self.published, finding, verdict);
                continue;
            }
            let timeline = self.possible.iter().find(|timeline| {
                timeline.name == finding.name && Some(timeline.subject) == finding.subject
            });
            self.finding(finding, timeline, verdict);
        }
        for timeline in &self.required {
            self.timeline(timeline, findings, verdict);
        }
        for group in LabGroup::all(self.facts()) {
            flapping::judge_missing(self.published, group, findings, &self.unavailable, verdict);
        }
    }

    fn facts(&self) -> &RecordedFacts {
        self.published.facts
    }

    /// A finding is right if its condition was possible for the time of its settling, and if it closes soon after it.
    fn finding(
        &self,
        finding: &ClusterFinding,
        timeline: Option<&ConditionTimeline>,
        verdict: &mut RunVerdict,
    ) {
        let facts = self.facts();
        let subject = subject_text(facts, finding.subject);
        let place = format!("{subject}: {} at {} s", finding.name, facts.run.clock(finding.open));
        let first = match self.strictness {
            Strictness::Deadlines => {
                finding.open - times(&finding.name, facts).settle + CLOCK_MARGIN
            }
            Strictness::Presence => finding.open,
        };
        let no = |span: &&HoldsSpan| {
            let (from, to) = (first.min(finding.open), finding.open);
            span.holds == Holds::No && span.from < to - CLOCK_MARGIN / 2 && from < span.to
        };
        let without = timeline.is_none_or(|timeline| timeline.spans.iter().any(|span| no(&span)));
        if without {
            verdict.finding(&finding.name).false_positive += 1;
            let context = facts.run.context(finding.open);
            verdict.fail("finding-without-fault", format!("{place} ({}); {context}", finding.text));
            return;
        }
        verdict.finding(&finding.name).true_positive += 1;
        let Some(timeline) = timeline else { return };
        if self.strictness == Strictness::Deadlines {
            self.end(finding, timeline, &place, verdict);
            self.early_end(finding, timeline, &place, verdict);
        }
    }

    /// A finding is not open for long without its condition.
    fn end(
        &self,
        finding: &ClusterFinding,
        timeline: &ConditionTimeline,
        place: &str,
        verdict: &mut RunVerdict,
    ) {
        let close = finding.close.unwrap_or(self.facts().run.end);
        for (from, to) in self.certain(timeline, Holds::No, 0) {
            let (from, to) = (from.max(finding.open), to.min(close));
            if to - from > CLOSE_WITHIN {
                verdict.finding(&finding.name).late += 1;
                let (from, close) = (self.facts().run.clock(from), self.facts().run.clock(close));
                verdict.fail(
                    "finding-not-closed",
                    format!(
                        "{place}: the fact ended at {from} s, the finding at {close} s or later"
                    ),
                );
                return;
            }
        }
    }

    /// A finding is not closed while its condition is certain.
    fn early_end(
        &self,
        finding: &ClusterFinding,
        timeline: &ConditionTimeline,
        place: &str,
        verdict: &mut RunVerdict,
    ) {
        let Some(close) = finding.close else { return };
        let is_certain = timeline.spans.iter().any(|span| {
            span.holds == Holds::Yes
                && span.from + CLOCK_MARGIN < close
                && close < span.to - CLOCK_MARGIN
        });
        if is_certain {
            verdict.finding(&finding.name).late += 1;
            let close = self.facts().run.clock(close);
            verdict.fail(
                "finding-closed-early",
                format!("{place}: closed at {close} s, while its fact was true"),
            );
        }
    }

    /// A condition that was certain until the deadline has a finding.
    fn timeline(
        &self,
        timeline: &ConditionTimeline,
        findings: &[ClusterFinding],
        verdict: &mut RunVerdict,
    ) {
        let facts = self.facts();
        // A new reporter waits for one lease before it reports a lost node.
        let is_lost = timeline.name == "cluster-node-lost";
        let grace = if is_lost { facts.times.lease } else { 0 };
        let limit = times(timeline.name, facts).deadline;
        for (from, to) in self.certain(timeline, Holds::Yes, grace) {
            let deadline = from + limit;
            if to < deadline {
                continue;
            }
            let is_seen = |finding: &&ClusterFinding| {
                finding.name == timeline.name
                    && finding.subject == Some(timeline.subject)
                    && finding.open <= to
                    && finding.close.is_none_or(|close| close > from)
            };
            let subject = subject_text(facts, Some(timeline.subject));
            let place = format!("{subject}: {} since {} s", timeline.name, facts.run.clock(from));
            let Some(finding) = findings.iter().find(is_seen) else {
                verdict.finding(timeline.name).false_negative += 1;
                verdict.fail("finding-missing", format!("{place}; {}", facts.run.context(from)));
                continue;
            };
            if self.strictness == Strictness::Deadlines && finding.open > deadline {
                verdict.finding(timeline.name).late += 1;
                let (open, deadline) = (facts.run.clock(finding.open), facts.run.clock(deadline));
                let text = format!("{place}: opened at {open} s, the deadline was {deadline} s");
                verdict.fail("finding-late", text);
            }
        }
    }

    /// The periods in which a condition has this value for certain, and a node could report it.
    fn certain(
        &self,
        timeline: &ConditionTimeline,
        holds: Holds,
        grace: Micros,
    ) -> Vec<(Micros, Micros)> {
        let mut periods: Vec<(Micros, Micros)> = timeline
            .spans
            .iter()
            .filter(|span| span.holds == holds)
            .map(|span| (span.from, span.to))
            .collect();
        for (from, to) in &self.unavailable {
            let to = to + grace;
            periods = periods
                .into_iter()
                .flat_map(|(start, end)| [(start, end.min(*from)), (start.max(to), end)])
                .filter(|(start, end)| start < end)
                .collect();
        }
        periods
    }
}

#[cfg(test)]
pub mod tests;
