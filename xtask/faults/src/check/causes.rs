// SPDX-License-Identifier: Apache-2.0
//! Judges the cause of each transition. The right words follow from the log of the injector and from the adverts.

mod election;
mod evidence;
mod expected;

use self::expected::Situation;
use super::answers::HistoryRow;
use super::run_record::RunRecord;
use super::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// The words that a transition may have.
const WORDS: [&str; 23] = [
    "start",
    "while-stopped",
    "keepalived-started",
    "keepalived-stopped",
    "keepalived-killed",
    "keepalived-frozen",
    "handed-over",
    "peer-handed-over",
    "preempted",
    "preempted-peer",
    "peer-silent",
    "priority-dropped",
    "peer-priority-dropped",
    "keepalived-fault",
    "fault-ended",
    "link-lost",
    "link-restored",
    "namespace-removed",
    "namespace-created",
    "address-removed",
    "address-added",
    "configuration-changed",
    "unknown",
];

/// A transition so short before the end of the run may still wait for its final cause.
const CAUSE_DELAY: Micros = 3 * SECOND;
/// The event stream has the cause so long after the transition.
const EVENT_LIMIT: Micros = 5 * SECOND / 2;

pub fn judge(record: &RunRecord, node: usize, strictness: Strictness, verdict: &mut RunVerdict) {
    for row in &record.nodes[node].answers.rows {
        let index =
            record.run.setup.instances.iter().position(|instance| instance.name == row.instance);
        let Some(instance) = index else { continue };
        if row.at > record.run.end - CAUSE_DELAY {
            continue;
        }
        let situation = Situation { record, node, instance, row };
        let HistoryRow { instance, from, to, .. } = row;
        let place =
            format!("node {node} {instance} at {} s, {from} → {to}", record.run.clock(row.at));
        if judge_word(&situation, &place, verdict) {
            judge_event(&situation, &place, strictness, verdict);
        }
    }
}

/// Compares the word with the right ones. Returns whether there is a word.
fn judge_word(situation: &Situation<'_>, place: &str, verdict: &mut RunVerdict) -> bool {
    let cause = &situation.row.cause;
    let expected = situation.expected();
    if !WORDS.contains(&cause.as_str()) {
        verdict.cause(expected[0]).false_negative += 1;
        verdict.fail("cause-missing", format!("{place}: {cause:?} is no cause"));
        return false;
    }
    let evidence = &situation.row.evidence;
    if expected.contains(&cause.as_str()) || situation.is_rightly_unknown() {
        verdict.cause(cause).true_positive += 1;
        if cause == "unknown" {
            let reason = evidence["unknown"].as_str().unwrap_or_default().to_owned();
            *verdict.unknown_reasons.entry(reason).or_default() += 1;
        }
        if let Some(problem) = evidence::problem(situation) {
            verdict.fail("evidence-wrong", format!("{place}: {cause}, {problem}; {evidence}"));
        }
        return true;
    }
    verdict.cause(cause).false_positive += 1;
    verdict.cause(expected[0]).false_negative += 1;
    let (expected, context) =
        (expected.join(" or "), situation.record.run.context(situation.row.at));
    verdict.fail(
        "cause-wrong",
        format!("{place}: {cause}, expected {expected}; {context}; {evidence}"),
    );
    true
}

/// The event stream has the same cause as the history.
fn judge_event(
    situation: &Situation<'_>,
    place: &str,
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let Situation { record, node, row, .. } = situation;
    let causes = &record.nodes[*node].answers.causes;
    let published = causes.iter().rev().find(|published| published.transition == row.seq);
    match published {
        Some(published) if published.word != row.cause => verdict.fail(
            "cause-event-wrong",
            format!("{place}: the event has {}, the history {}", published.word, row.cause),
        ),
        Some(published) if published.at > row.at + strictness.limit(EVENT_LIMIT) => {
            let late = record.run.clock(published.at);
            verdict.fail("cause-event-late", format!("{place}: published at {late} s"));
        }
        Some(_) => {}
        None => verdict.fail("cause-event-missing", format!("{place}: {}", row.cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::run_record::examples::record;

    #[test]
    fn only_a_right_unknown_is_counted_with_its_reason() {
        let row = |seq: i64, reason: &str| HistoryRow {
            seq,
            at: (100 + seq) * SECOND,
            instance: "VI_1".to_owned(),
            from: "backup".to_owned(),
            to: "primary".to_owned(),
            cause: "unknown".to_owned(),
            evidence: serde_json::json!({ "unknown": reason }),
        };
        let mut record = record();
        // The capture of adverts has just begun.
        record.run.start = 100 * SECOND;
        record.nodes[1].answers.rows = vec![row(1, "capture-incomplete"), row(2, "superseded")];
        let mut verdict = RunVerdict::default();
        judge(&record, 1, Strictness::Deadlines, &mut verdict);
        assert_eq!(verdict.unknown_reasons, [("capture-incomplete".to_owned(), 1)].into());
        assert_eq!(verdict.causes["unknown"].true_positive, 1);
        assert_eq!(verdict.causes["unknown"].false_positive, 1);
    }
}
