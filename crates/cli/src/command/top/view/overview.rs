// SPDX-License-Identifier: Apache-2.0
//! The overview: a table of instances, and the most serious findings below it.

use ratatui::layout::Rect;
use vipwatch_api::InstanceItem;

use super::super::super::status::details;
use super::super::node_data::NodeData;
use super::super::screen::{ScreenState, slowest};
use super::lists::finding_line;
use super::paint::{Canvas, StyledLine, role_letter};
use crate::output::{Style, escape_untrusted, latency};

/// Below this width, only role, id and age are shown.
const MIN_FULL_WIDTH: u16 = 70;
/// The widths of columns with values of a known length.
const ROLE_WIDTH: u16 = 9;
const AGE_WIDTH: u16 = 4;
const LATENCY_WIDTH: u16 = 9;
/// The smallest and the greatest width of other columns. An id of Neutron has 36 characters.
const ID_WIDTHS: (u16, u16) = (12, 36);
const NETNS_WIDTHS: (u16, u16) = (9, 20);
const CAUSE_WIDTHS: (u16, u16) = (15, 21);
/// The smallest width at which details are worth a column.
const MIN_DETAILS_WIDTH: u16 = 12;
/// Maximum number of findings below the table.
const MAX_FINDINGS: usize = 5;

/// A column and its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE", const_into_str)]
enum Column {
    Role,
    Id,
    Netns,
    Age,
    Cause,
    Latency,
    Details,
}

/// The height of a table with this number of instances, and of the findings below it.
pub(super) fn wanted_height(data: &NodeData, rows: usize) -> usize {
    let findings = data.findings.len().min(MAX_FINDINGS);
    1 + rows.max(1) + if findings > 0 { 1 + findings } else { 0 }
}

pub(super) fn draw(data: &NodeData, screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let area = canvas.area;
    // The findings get up to a third of the screen.
    let most = usize::from(area.height / 3).min(MAX_FINDINGS + 1);
    let pane = (data.findings.len() + 1).min(most);
    let pane = if data.findings.is_empty() || most < 2 { 0 } else { pane };
    let below = u16::try_from(pane).unwrap_or(0);
    draw_table(data, screen, &mut canvas.part(Rect { height: area.height - below, ..area }));
    if below > 0 {
        let pane = Rect { y: area.y + area.height - below, height: below, ..area };
        draw_findings(data, &mut canvas.part(pane));
    }
}

fn draw_table(data: &NodeData, screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let Canvas { theme, area, .. } = *canvas;
    let longest_id = data.instances.keys().map(|id| id.chars().count()).max().unwrap_or(0);
    let columns = columns(area.width, longest_id);
    let mut x = area.x + 2;
    for (column, width) in &columns {
        let title = StyledLine::plain(column.into_str()).styled(theme.strong());
        canvas.put(Rect { x, width: *width, height: 1, ..area }, &title);
        x += width + 1;
    }
    let height = usize::from(area.height.saturating_sub(1));
    screen.page = height;
    screen.position.fit(screen.rows.len(), height);
    if screen.rows.is_empty() {
        let text = match data.instances.len() {
            0 => "there are no instances on this node",
            _ => "no instance matches the filter; Esc removes it",
        };
        canvas.put(Rect { y: area.y + 1, height: 1, ..area }, &StyledLine::plain(text));
        return;
    }
    // Only visible rows are built: a node may have thousands of instances.
    let visible = screen.rows.iter().enumerate().skip(screen.position.first).take(height);
    for ((number, id), y) in visible.zip(area.y + 1..) {
        let Some(instance) = data.instances.get(id) else { continue };
        let row = Rect { y, height: 1, ..area };
        draw_row(instance, &columns, &mut canvas.part(row));
        if number == screen.position.selected {
            canvas.put(row, &StyledLine::plain(">"));
            canvas.buffer.set_style(row, theme.selected());
        }
    }
}

fn draw_row(instance: &InstanceItem, columns: &[(Column, u16)], canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area: row, .. } = *canvas;
    let mut x = row.x + 2;
    for (column, width) in columns {
        let style = match column {
            Column::Role => theme.role(instance.role),
            Column::Id
            | Column::Netns
            | Column::Age
            | Column::Cause
            | Column::Latency
            | Column::Details => theme.normal(),
        };
        let text = escape_untrusted(&cell(instance, *column, clock));
        canvas.put(Rect { x, width: *width, ..row }, &StyledLine::plain(&text).styled(style));
        x += width + 1;
    }
}

fn cell(instance: &InstanceItem, column: Column, clock: &Style) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    match column {
        Column::Role => format!("{} {}", role_letter(instance.role), instance.role.word()),
        Column::Id => instance.id.clone(),
        // The namespace of a router contains its id, which has a column of its own.
        Column::Netns => or_dash(instance.netns.as_ref().map(|netns| match netns.as_str() {
            same if same == instance.id => same.to_owned(),
            other => other.replace(&instance.id, "…"),
        })),
        Column::Age => or_dash(instance.since.map(|since| clock.age(since))),
        Column::Cause => instance.cause.word_or(&instance.trigger).to_owned(),
        Column::Latency => or_dash(slowest(instance).map(latency)),
        Column::Details => details(instance),
    }
}

/// The columns for a screen of this width, each with its width. The space that ids do not need is for causes.
fn columns(width: u16, longest_id: usize) -> Vec<(Column, u16)> {
    // Two columns for the mark of the selected row.
    let width = width - 2;
    if width + 2 < MIN_FULL_WIDTH {
        let id = width - ROLE_WIDTH - AGE_WIDTH - 2;
        return vec![(Column::Role, ROLE_WIDTH), (Column::Id, id), (Column::Age, AGE_WIDTH)];
    }
    let left = width - ROLE_WIDTH - AGE_WIDTH - CAUSE_WIDTHS.0 - LATENCY_WIDTH - 5;
    let share = (left * 3 / 5).clamp(ID_WIDTHS.0, ID_WIDTHS.1);
    let needed = u16::try_from(longest_id).unwrap_or(u16::MAX).max(ID_WIDTHS.0);
    let id = share.min(needed);
    let cause = (CAUSE_WIDTHS.0 + share - id).min(CAUSE_WIDTHS.1);
    let left = left - (cause - CAUSE_WIDTHS.0);
    let netns = (left - id).clamp(NETNS_WIDTHS.0, NETNS_WIDTHS.1);
    let mut columns = vec![
        (Column::Role, ROLE_WIDTH),
        (Column::Id, id),
        (Column::Netns, netns),
        (Column::Age, AGE_WIDTH),
        (Column::Cause, cause),
        (Column::Latency, LATENCY_WIDTH),
    ];
    let rest = (left - id).saturating_sub(netns + 1);
    if rest >= MIN_DETAILS_WIDTH {
        columns.push((Column::Details, rest));
    }
    columns
}

fn draw_findings(data: &NodeData, canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area, .. } = *canvas;
    let shown = usize::from(area.height - 1);
    let title = match data.findings.len().saturating_sub(shown) {
        0 => "── findings ──".to_owned(),
        more => format!("── findings (f shows {more} more) ──"),
    };
    canvas.put(Rect { height: 1, ..area }, &StyledLine::plain(&title).styled(theme.strong()));
    for (finding, y) in data.findings.iter().take(shown).zip(area.y + 1..) {
        canvas.put(Rect { y, height: 1, ..area }, &finding_line(finding, clock, theme));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ids_leave_space_for_the_longest_cause() {
        let width_of = |longest_id, column| {
            let columns = columns(112, longest_id);
            columns.iter().find(|(known, _)| *known == column).map(|(_, width)| *width)
        };
        assert_eq!(width_of(4, Column::Id), Some(ID_WIDTHS.0));
        let longest = "peer-priority-dropped".len();
        assert_eq!(width_of(4, Column::Cause).map(usize::from), Some(longest));
        assert_eq!(width_of(36, Column::Id), Some(36));
        let used: u16 = columns(112, 4).iter().map(|(_, width)| width + 1).sum();
        assert!(used <= 112, "{used}");
    }
}
