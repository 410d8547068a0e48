// SPDX-License-Identifier: Apache-2.0
//! Compares what a node's hook received with the findings that the node published, and with its silences.
//!
//! A silence holds findings back. At its end, those that are still open are delivered.

use crate::check::findings::FindingSpan;
use crate::check::periods::ActPeriod;
use crate::check::recording::RecordedRun;
use crate::check::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// A hook gets an event so long after it, or after the end of the silence that held it back.
const DELIVERY: Micros = 5 * SECOND;
/// An event so close to the beginning or the end of a silence may be delivered or not.
const EDGE: Micros = SECOND;

/// An event that a hook received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredFinding {
    pub received: Micros,
    /// The time in the event.
    pub at: Micros,
    pub subject: String,
    pub name: String,
    /// `open`, `changed` or `closed`.
    pub state: String,
}

pub(super) fn judge(
    run: &RecordedRun,
    node: usize,
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let silences = run.periods(node, &[("silence", "begin")], &[("silence", "end")]);
    let answers = &run.nodes[node].answers;
    let limit = strictness.limit(DELIVERY);
    for delivery in &answers.deliveries {
        let is_early = |silence: &ActPeriod| {
            (silence.done + strictness.limit(EDGE)..silence.heal).contains(&delivery.received)
        };
        if silences.iter().any(is_early) {
            let (name, at) = (&delivery.name, run.clock(delivery.received));
            verdict.fail("delivery-in-silence", format!("node {node}: {name} at {at} s"));
        }
    }
    for finding in &answers.findings {
        let place = format!("node {node} {}: {}", finding.subject, finding.name);
        let around = silences
            .iter()
            .find(|silence| (silence.from - EDGE..silence.to + EDGE).contains(&finding.open));
        let is_inside = around.is_some_and(|silence| {
            finding.open >= silence.done + EDGE
                && finding.close.is_some_and(|close| close + EDGE < silence.heal)
        });
        let due = around.map_or(finding.open, |silence| silence.to) + limit;
        let is_short = finding.close.is_some_and(|close| close < due) || due > run.end;
        match opening(&answers.deliveries, finding) {
            Some(_) if is_inside => verdict.fail("delivery-of-the-past", place),
            None if !is_short => verdict.fail("delivery-missing", place),
            Some(received) if received > due => {
                let (at, due) = (run.clock(received), run.clock(due));
                verdict.fail("delivery-late", format!("{place} at {at} s, due at {due} s"));
            }
            _ => {}
        }
    }
}

/// When the hook received the beginning of a finding.
fn opening(deliveries: &[DeliveredFinding], finding: &FindingSpan) -> Option<Micros> {
    let is_opening = |delivery: &&DeliveredFinding| {
        (delivery.state == "open" || delivery.state == "changed")
            && finding.is_about(&delivery.name, &delivery.subject)
            && delivery.at >= finding.open
            && finding.close.is_none_or(|close| delivery.at <= close)
    };
    deliveries.iter().find(is_opening).map(|delivery| delivery.received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::recording::examples::run;
    use crate::journal::JournalEntry;

    /// The failures for a finding that is open in a period, with a silence from 10 s to 40 s, and a delivery.
    fn failures(open: i64, close: Option<i64>, received: Option<i64>) -> Vec<&'static str> {
        let mut run = run();
        let entry = |(at, how, phase): (i64, &str, &str)| JournalEntry {
            at: at * SECOND,
            act: "silence".to_owned(),
            node: Some(0),
            how: how.to_owned(),
            phase: phase.to_owned(),
            ..JournalEntry::default()
        };
        let acts = [
            (10, "begin", "begin"),
            (10, "begin", "done"),
            (40, "end", "begin"),
            (40, "end", "done"),
        ];
        run.journal = acts.map(entry).into();
        let (subject, name) = ("VI_1".to_owned(), "link-fault".to_owned());
        let delivery = |received: i64| DeliveredFinding {
            received: received * SECOND,
            at: open * SECOND,
            subject: subject.clone(),
            name: name.clone(),
            state: "open".to_owned(),
        };
        let answers = &mut run.nodes[0].answers;
        answers.deliveries = received.map(delivery).into_iter().collect();
        answers.findings = vec![FindingSpan {
            id: String::new(),
            subject: subject.clone(),
            name: name.clone(),
            open: open * SECOND,
            close: close.map(|close| close * SECOND),
            text: String::new(),
        }];
        let mut verdict = RunVerdict::default();
        judge(&run, 0, Strictness::Deadlines, &mut verdict);
        verdict.failures.iter().map(|failure| failure.kind).collect()
    }

    #[test]
    fn a_silence_holds_back_until_its_end() {
        assert_eq!(failures(15, None, Some(41)), [""; 0]);
        assert_eq!(failures(15, None, Some(20)), ["delivery-in-silence"]);
        assert_eq!(failures(15, None, None), ["delivery-missing"]);
        assert_eq!(failures(15, None, Some(60)), ["delivery-late"]);
    }

    #[test]
    fn what_opened_and_closed_in_a_silence_is_not_delivered() {
        assert_eq!(failures(15, Some(30), None), [""; 0]);
        assert_eq!(failures(15, Some(30), Some(41)), ["delivery-of-the-past"]);
    }

    #[test]
    fn without_a_silence_each_finding_is_delivered() {
        assert_eq!(failures(60, None, Some(61)), [""; 0]);
        assert_eq!(failures(60, None, None), ["delivery-missing"]);
    }
}
