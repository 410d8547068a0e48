// SPDX-License-Identifier: Apache-2.0
//! Compares the history of a node with the roles that the kernel showed.

use super::answers::HistoryRow;
use super::roles::Span;
use super::run_record::RunRecord;
use super::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// A role must be in the history within this time.
const HISTORY_LAG: Micros = SECOND / 2;
/// `ip monitor` may print a change later than the node reads it, on a busy machine.
const CLOCK_MARGIN: Micros = SECOND / 2;
/// The node reads a changed configuration within this time; until then it uses the earlier addresses.
const CONFIGURATION_LAG: Micros = 2 * SECOND;

pub fn judge(record: &RunRecord, node: usize, strictness: Strictness, verdict: &mut RunVerdict) {
    let lag = strictness.limit(HISTORY_LAG);
    for (index, instance) in record.run.setup.instances.iter().enumerate() {
        let rows: Vec<&HistoryRow> = record.nodes[node]
            .answers
            .rows
            .iter()
            .filter(|row| row.instance == instance.name)
            .collect();
        let spans = &record.nodes[node].timeline.roles[index];
        verdict.transitions += u32::try_from(rows.len()).unwrap_or(u32::MAX);
        judge_rows(record, node, &rows, spans, lag, verdict);
        judge_spans(record, node, &instance.name, &rows, spans, lag, verdict);
    }
}

/// Each row has a role that the kernel showed at that time.
fn judge_rows(
    record: &RunRecord,
    node: usize,
    rows: &[&HistoryRow],
    spans: &[Span<&'static str>],
    lag: Micros,
    verdict: &mut RunVerdict,
) {
    for row in rows {
        // Of two short-lived IPv6 addresses, the recording shows one at a time.
        let is_short = |span: &Span<&'static str>| {
            row.to == "primary" && span.value == "partial" && span.end - span.start <= 1
        };
        let is_shown = |span: &Span<&'static str>| {
            (span.value == row.to || is_short(span))
                && span.overlaps(row.at - lag, row.at + CLOCK_MARGIN)
        };
        let configured = &record.nodes[node].configured;
        let is_configured_just_now = configured.iter().skip(1).any(|(at, _)| {
            (0..CONFIGURATION_LAG).contains(&(row.at - at))
                && matches!(row.to.as_str(), "primary" | "partial")
        });
        if !spans.iter().any(is_shown) && !is_configured_just_now {
            let (at, context) = (record.run.clock(row.at), record.run.context(row.at));
            let HistoryRow { instance, from, to, .. } = row;
            verdict.fail(
                "transition-wrong",
                format!("node {node} {instance} at {at} s: {from} → {to}, which the kernel did not show; {context}"),
            );
        }
    }
}

/// Each role that lasted is in the history.
fn judge_spans(
    record: &RunRecord,
    node: usize,
    instance: &str,
    rows: &[&HistoryRow],
    spans: &[Span<&'static str>],
    lag: Micros,
    verdict: &mut RunVerdict,
) {
    let lasting = spans.iter().filter(|span| {
        span.end > record.run.start && span.end - span.start.max(record.run.start) > 2 * lag
    });
    for span in lasting {
        let due = span.start.max(record.run.start) + lag;
        let known = rows.iter().rev().find(|row| row.at <= due);
        if known.is_none_or(|row| row.to != span.value) {
            let (at, context) = (record.run.clock(span.start), record.run.context(span.start));
            let known = known.map_or("none", |row| &row.to);
            verdict.fail(
                "transition-missing",
                format!(
                    "node {node} {instance}: the kernel showed {} at {at} s, the history {known}; {context}",
                    span.value
                ),
            );
        }
    }
}
