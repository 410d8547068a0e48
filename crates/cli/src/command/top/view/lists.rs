// SPDX-License-Identifier: Apache-2.0
//! The history and the findings: lists with a selected row.

use ratatui::layout::Rect;
use vipwatch_api::{FindingItem, RoleKind, TimelineItem, TransitionItem};

use super::super::super::history::{change_text, gap_text};
use super::super::node_data::NodeData;
use super::super::screen::ScreenState;
use super::paint::{Canvas, StyledLine, Theme};
use crate::output::{Style, escape_untrusted, latencies};

/// The lines of one finding: name, text, hint, and an empty one.
const FINDING_LINES: u16 = 4;

pub(super) fn draw_history(data: &NodeData, screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area, .. } = *canvas;
    let height = usize::from(area.height);
    screen.page = height;
    screen.history.fit(data.history.len(), height);
    if data.history.is_empty() {
        let text = match &data.history_error {
            Some(error) => format!("history: {error}"),
            None => "no transition is recorded".to_owned(),
        };
        canvas.put(area, &StyledLine::plain(&escape_untrusted(&text)));
        return;
    }
    let visible = data.history.iter().enumerate().skip(screen.history.first).take(height);
    for ((number, entry), y) in visible.zip(area.y..) {
        let row = Rect { y, height: 1, ..area };
        let line = match entry {
            TimelineItem::Transition(item) => transition_line(item, clock, theme),
            TimelineItem::Gap(gap) => {
                StyledLine::plain(&gap_text(gap, clock)).styled(theme.quiet())
            }
        };
        canvas.put(row, &line);
        if number == screen.history.selected {
            canvas.buffer.set_style(row, theme.selected());
        }
    }
}

/// A transition in one line: time, id, change, cause and latencies.
pub(super) fn transition_line(item: &TransitionItem, clock: &Style, theme: Theme) -> StyledLine {
    let mut line = StyledLine::plain(&clock.precise_time(item.at)).styled(theme.quiet());
    line.add(&format!("  {}  ", escape_untrusted(&item.id)), theme.normal());
    let change = escape_untrusted(&change_text(item.from.map(RoleKind::word), &item.to));
    let role = RoleKind::from_word(&item.to).map(|role| theme.role(role));
    line.add(&change, role.unwrap_or(theme.normal()));
    let cause = escape_untrusted(item.cause.word_or(&item.trigger));
    line.add(&format!("  {cause}"), theme.normal());
    if let Some(reason) = &item.reason {
        line.add(&format!(": {}", escape_untrusted(reason)), theme.normal());
    }
    match latencies(&item.latencies) {
        none if none.is_empty() => {}
        known => line.add(&format!("  [{}]", escape_untrusted(&known)), theme.quiet()),
    }
    line
}

/// A finding in one line: severity, instance, name, age and text.
pub(super) fn finding_line(finding: &FindingItem, clock: &Style, theme: Theme) -> StyledLine {
    let mut line = finding_head(finding, clock, theme);
    line.add(&format!("  {}", escape_untrusted(&finding.text)), theme.normal());
    line
}

fn finding_head(finding: &FindingItem, clock: &Style, theme: Theme) -> StyledLine {
    let severity = format!("{:<6}", finding.severity.word());
    let mut line = StyledLine::plain(&severity).styled(theme.severity(finding.severity));
    let id = escape_untrusted(finding.id.as_deref().unwrap_or("node"));
    line.add(&format!("  {id}  "), theme.normal());
    line.add(&escape_untrusted(&finding.name), theme.strong());
    if let Some(since) = finding.since {
        line.add(&format!("  {}", clock.age(since)), theme.quiet());
    }
    if finding.silenced_until.is_some() {
        line.add("  silenced", theme.quiet());
    }
    line
}

pub(super) fn draw_findings(data: &NodeData, screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area, .. } = *canvas;
    let height = usize::from((area.height / FINDING_LINES).max(1));
    screen.page = height;
    screen.findings.fit(data.findings.len(), height);
    if data.findings.is_empty() {
        canvas.put(area, &StyledLine::plain("nothing is known to be wrong"));
    }
    let visible = data.findings.iter().enumerate().skip(screen.findings.first).take(height);
    for ((number, finding), y) in visible.zip((area.y..).step_by(usize::from(FINDING_LINES))) {
        let row = Rect { y, height: 1, ..area };
        canvas.put(row, &finding_head(finding, clock, theme));
        if number == screen.findings.selected {
            canvas.buffer.set_style(row, theme.selected());
        }
        let lines = [format!("  {}", finding.text), format!("  hint: {}", finding.hint)];
        let end = area.y + area.height;
        for (text, y) in lines.iter().zip((y + 1)..end) {
            canvas.put(Rect { y, height: 1, ..area }, &StyledLine::plain(&escape_untrusted(text)));
        }
    }
}
