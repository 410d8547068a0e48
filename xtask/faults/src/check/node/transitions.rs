// SPDX-License-Identifier: Apache-2.0
//! Compares the history of a node with the roles that the kernel showed.

use super::NodeInstance;
use crate::check::answers::HistoryRow;
use crate::check::periods::Span;
use crate::check::verdict::{RunVerdict, Strictness};
use crate::moment::{Micros, SECOND};

/// A role must be in the history within this time.
const HISTORY_LAG: Micros = SECOND / 2;
/// `ip monitor` may print a change later than the node reads it, on a busy machine.
const CLOCK_MARGIN: Micros = SECOND / 2;
/// The node reads a changed configuration within this time; until then it uses the earlier addresses.
const CONFIGURATION_LAG: Micros = 2 * SECOND;

pub(super) fn judge(scene: NodeInstance<'_>, strictness: Strictness, verdict: &mut RunVerdict) {
    let (run, lag) = (scene.run, strictness.limit(HISTORY_LAG));
    let rows = scene.record().answers.rows.iter();
    let rows: Vec<&HistoryRow> = rows.filter(|row| row.instance == scene.facts().name).collect();
    verdict.transitions += u32::try_from(rows.len()).unwrap_or(u32::MAX);
    for row in rows.iter().filter(|row| !is_shown(scene, row, lag)) {
        let (at, context) = (run.clock(row.at), run.context(row.at));
        let (subject, HistoryRow { from, to, .. }) = (scene.subject(), row);
        let text = "which the kernel did not show";
        let text = format!("{subject} at {at} s: {from} → {to}, {text}; {context}");
        verdict.fail("transition-wrong", text);
    }
    // Each role that lasted is in the history.
    for span in scene.roles() {
        let start = span.start.max(run.start);
        let known = rows.iter().rev().find(|row| row.at <= start + lag);
        let is_known = known.is_some_and(|row| row.to == span.value);
        if span.end <= run.start || span.end - start <= 2 * lag || is_known {
            continue;
        }
        let (at, context) = (run.clock(span.start), run.context(span.start));
        let (subject, known) = (scene.subject(), known.map_or("none", |row| &row.to));
        let role = span.value;
        let text = format!(
            "{subject}: the kernel showed {role} at {at} s, the history {known}; {context}"
        );
        verdict.fail("transition-missing", text);
    }
}

/// Whether a row has a role that the kernel showed at that time.
fn is_shown(scene: NodeInstance<'_>, row: &HistoryRow, lag: Micros) -> bool {
    // Of two short-lived IPv6 addresses, the recording shows one at a time.
    let is_short = |span: &Span<&'static str>| {
        row.to == "primary" && span.value == "partial" && span.end - span.start <= 1
    };
    let mut shown = scene.roles().iter().filter(|span| span.value == row.to || is_short(span));
    // The role may be that of the earlier addresses.
    let is_held = matches!(row.to.as_str(), "primary" | "partial");
    let mut changes = scene.record().configured.iter().skip(1);
    shown.any(|span| span.overlaps(row.at - lag, row.at + CLOCK_MARGIN))
        || is_held && changes.any(|(at, _)| (0..CONFIGURATION_LAG).contains(&(row.at - at)))
}
