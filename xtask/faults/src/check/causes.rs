//! Judges the cause of each transition. The right words follow from the log of the injector and from the adverts.

mod expected;

use self::expected::Situation;
use super::answers::HistoryRow;
use super::run_record::RunRecord;
use super::verdict::RunVerdict;
use crate::moment::SECOND;

/// The words that a transition may have.
const WORDS: [&str; 22] = [
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
const CAUSE_DELAY: i64 = 3 * SECOND;

pub fn judge(record: &RunRecord, node: usize, verdict: &mut RunVerdict) {
    for row in &record.nodes[node].answers.rows {
        let index = record.instances.iter().position(|instance| instance.name == row.instance);
        let Some(instance) = index else { continue };
        if row.at > record.end - CAUSE_DELAY {
            continue;
        }
        let situation = Situation { record, node, instance, row };
        judge_row(record, node, row, &situation.expected(), verdict);
    }
}

fn judge_row(
    record: &RunRecord,
    node: usize,
    row: &HistoryRow,
    expected: &[&'static str],
    verdict: &mut RunVerdict,
) {
    let HistoryRow { instance, from, to, cause, .. } = row;
    let place = format!("node {node} {instance} at {} s, {from} → {to}", record.clock(row.at));
    if !WORDS.contains(&cause.as_str()) {
        verdict.cause(expected[0]).false_negative += 1;
        verdict.fail("cause-missing", format!("{place}: {cause:?} is no cause"));
        return;
    }
    if expected.contains(&cause.as_str()) {
        verdict.cause(cause).true_positive += 1;
        return;
    }
    verdict.cause(cause).false_positive += 1;
    verdict.cause(expected[0]).false_negative += 1;
    let (expected, context) = (expected.join(" or "), record.context(row.at));
    verdict.fail("cause-wrong", format!("{place}: {cause}, expected {expected}; {context}"));
}
