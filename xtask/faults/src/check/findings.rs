// SPDX-License-Identifier: Apache-2.0
//! Compares findings with the conditions under which they are right. The rules of the nodes and of the cluster compute the
//! conditions.

use super::recording::RecordedRun;
use super::verdict::{RunVerdict, Strictness};
use crate::moment::Micros;

/// A finding, from its appearance to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingSpan {
    /// A cluster finding's id; empty for others.
    pub id: String,
    /// The instance, group or node that it is about, as messages name it.
    pub subject: String,
    pub name: String,
    pub open: Micros,
    /// `None` if it was open at the end.
    pub close: Option<Micros>,
    pub text: String,
}

impl FindingSpan {
    pub fn is_about(&self, name: &str, subject: &str) -> bool {
        self.name == name && self.subject == subject
    }

    /// Whether it was open at a moment of a period.
    pub fn is_open_in(&self, start: Micros, end: Micros) -> bool {
        self.open <= end && self.close.is_none_or(|close| close > start)
    }
}

/// A period in which a finding is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub name: &'static str,
    pub subject: String,
    /// The finding may be open from this time on.
    pub start: Micros,
    pub end: Micros,
    /// When the finding must be open; `None` if it need not open at all.
    pub deadline: Option<Micros>,
    /// When the finding must be closed; `None` if that is not judged.
    pub close_by: Option<Micros>,
}

/// Judges findings of one run.
pub struct FindingJudge<'a> {
    pub run: &'a RecordedRun,
    pub strictness: Strictness,
    pub verdict: &'a mut RunVerdict,
}

impl FindingJudge<'_> {
    /// Where a finding was opened, for messages.
    fn place(&self, finding: &FindingSpan) -> String {
        format!("{}: {} at {} s", finding.subject, finding.name, self.run.clock(finding.open))
    }

    /// Counts a finding that is right, or not. Returns whether its end is judged too.
    pub fn opened(&mut self, finding: &FindingSpan, is_right: bool) -> bool {
        if is_right {
            self.verdict.finding(&finding.name).true_positive += 1;
        } else {
            let (place, context) = (self.place(finding), self.run.context(finding.open));
            let text = format!("{place} ({}); {context}", finding.text);
            self.verdict.unexpected_finding(&finding.name, text);
        }
        is_right && self.strictness == Strictness::Deadlines
    }

    /// A finding was open for too long after its fact.
    pub fn not_closed(&mut self, finding: &FindingSpan, ended: Micros) {
        let closed = self.run.clock(finding.close.unwrap_or(self.run.end));
        let (place, ended) = (self.place(finding), self.run.clock(ended));
        let text =
            format!("{place}: the fact ended at {ended} s, the finding at {closed} s or later");
        self.verdict.late_finding("finding-not-closed", &finding.name, text);
    }

    /// A finding was closed while its fact was true.
    pub fn closed_early(&mut self, finding: &FindingSpan, closed: Micros) {
        let (place, closed) = (self.place(finding), self.run.clock(closed));
        let text = format!("{place}: closed at {closed} s, while its fact was true");
        self.verdict.late_finding("finding-closed-early", &finding.name, text);
    }

    /// A condition that lasted until its deadline has a finding.
    pub fn required(&mut self, condition: &Condition, findings: &[FindingSpan]) {
        let Condition { name, subject, start, end, deadline, .. } = condition;
        let Some(deadline) = *deadline else { return };
        let place = format!("{subject}: {name} since {} s", self.run.clock(*start));
        let is_seen = |finding: &&FindingSpan| {
            finding.is_about(name, subject) && finding.is_open_in(*start, *end)
        };
        let Some(finding) = findings.iter().find(is_seen) else {
            let text = format!("{place}; {}", self.run.context(*start));
            return self.verdict.missing_finding(name, text);
        };
        if self.strictness == Strictness::Deadlines && finding.open > deadline {
            let (open, deadline) = (self.run.clock(finding.open), self.run.clock(deadline));
            let text = format!("{place}: opened at {open} s, the deadline was {deadline} s");
            self.verdict.late_finding("finding-late", name, text);
        }
    }
}
