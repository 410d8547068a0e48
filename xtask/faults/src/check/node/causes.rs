// SPDX-License-Identifier: Apache-2.0
//! Judges the cause of each transition. The right words follow from the log of the injector and from the adverts.

mod election;
mod evidence;
mod expected;

use super::NodeInstance;
use crate::check::answers::HistoryRow;
use crate::check::recording::RecordedRun;
use crate::check::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// The words that a transition may have.
const WORDS: &str = "start while-stopped keepalived-started keepalived-stopped keepalived-killed keepalived-frozen \
    handed-over peer-handed-over preempted preempted-peer peer-silent priority-dropped peer-priority-dropped \
    keepalived-fault fault-ended link-lost link-restored namespace-removed namespace-created address-removed \
    address-added configuration-changed unknown";

/// A transition so short before the end of the run may still wait for its final cause.
const CAUSE_DELAY: Micros = 3 * SECOND;
/// The event stream has the cause so long after the transition.
const EVENT_LIMIT: Micros = 5 * SECOND / 2;

/// One transition and the recordings around it.
#[derive(Clone, Copy)]
struct Situation<'a> {
    scene: NodeInstance<'a>,
    row: &'a HistoryRow,
}

pub(super) fn judge(
    run: &RecordedRun,
    node: usize,
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let rows = run.nodes[node].answers.rows.iter();
    for row in rows.filter(|row| row.at <= run.end - CAUSE_DELAY) {
        let mut instances = run.setup.instances.iter();
        let instance = instances.position(|instance| instance.name == row.instance);
        let Some(instance) = instance else { continue };
        let situation = Situation { scene: NodeInstance { run, node, instance }, row };
        let (subject, at) = (situation.scene.subject(), run.clock(row.at));
        let place = format!("{subject} at {at} s, {} → {}", row.from, row.to);
        if judge_word(situation, &place, verdict) {
            judge_event(situation, &place, strictness, verdict);
        }
    }
}

/// Compares the word with the right ones. Returns whether there is a word.
fn judge_word(situation: Situation<'_>, place: &str, verdict: &mut RunVerdict) -> bool {
    let HistoryRow { at, cause, evidence, .. } = situation.row;
    let expected = situation.expected();
    if !WORDS.split_whitespace().any(|word| word == cause) {
        verdict.cause(expected[0]).false_negative += 1;
        verdict.fail("cause-missing", format!("{place}: {cause:?} is no cause"));
        return false;
    }
    if expected.contains(&cause.as_str()) || situation.is_rightly_unknown() {
        verdict.cause(cause).true_positive += 1;
        if cause == "unknown" {
            let reason = evidence["unknown"].as_str().unwrap_or_default().to_owned();
            *verdict.unknown_reasons.entry(reason).or_default() += 1;
        }
        if let Some(problem) = situation.evidence_problem() {
            verdict.fail("evidence-wrong", format!("{place}: {cause}, {problem}; {evidence}"));
        }
        return true;
    }
    verdict.cause(cause).false_positive += 1;
    verdict.cause(expected[0]).false_negative += 1;
    let (expected, context) = (expected.join(" or "), situation.scene.run.context(*at));
    let text = format!("{place}: {cause}, expected {expected}; {context}; {evidence}");
    verdict.fail("cause-wrong", text);
    true
}

/// The event stream has the same cause as the history.
fn judge_event(
    situation: Situation<'_>,
    place: &str,
    strictness: Strictness,
    verdict: &mut RunVerdict,
) {
    let Situation { scene, row } = situation;
    // After an edit of a file of which keepalived keeps no copy, a change of the role waits for a reload.
    let limit = EVENT_LIMIT + if scene.run.setup.has_no_copy { 4 * SECOND } else { 0 };
    let mut causes = scene.record().answers.causes.iter().rev();
    match causes.find(|published| published.transition == row.seq) {
        Some(published) if published.word != row.cause => {
            let (word, cause) = (&published.word, &row.cause);
            let text = format!("{place}: the event has {word}, the history {cause}");
            verdict.fail("cause-event-wrong", text);
        }
        Some(published) if published.at > row.at + strictness.limit(limit) => {
            let late = scene.run.clock(published.at);
            verdict.fail("cause-event-late", format!("{place}: published at {late} s"));
        }
        Some(_) => {}
        None => verdict.fail("cause-event-missing", format!("{place}: {}", row.cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::recording::examples::run;

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
        let mut run = run();
        // The capture of adverts has just begun.
        run.start = 100 * SECOND;
        run.nodes[1].answers.rows = vec![row(1, "capture-incomplete"), row(2, "superseded")];
        let mut verdict = RunVerdict::default();
        judge(&run, 1, Strictness::Deadlines, &mut verdict);
        assert_eq!(verdict.unknown_reasons, [("capture-incomplete".to_owned(), 1)].into());
        assert_eq!(verdict.causes["unknown"].true_positive, 1);
        assert_eq!(verdict.causes["unknown"].false_positive, 1);
    }
}
