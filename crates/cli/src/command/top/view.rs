// SPDX-License-Identifier: Apache-2.0
//! Draws the screen. Every text of the node is escaped before it is drawn.

mod cluster;
mod detail;
mod lists;
mod overview;
mod paint;
mod timeline;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

pub(super) use self::paint::Theme;
use self::paint::{Canvas, StyledLine};
use super::super::status::role_counts;
use super::model::Model;
use super::node_data::{Freshness, NodeData};
use super::screen::{ScreenState, View};
use crate::output::{Style, count, escape_untrusted, severity_counts};

/// The smallest terminal on which the screen can be read.
pub(super) const MIN_WIDTH: u16 = 40;
pub(super) const MIN_HEIGHT: u16 = 8;

/// The lines above and below the content of a view.
const HEAD_LINES: u16 = 3;
const FOOT_LINES: u16 = 1;

/// Draws the screen, and returns the place of the cursor; `None` if it is hidden.
pub(super) fn draw(
    model: &mut Model,
    clock: &Style,
    theme: Theme,
    buffer: &mut Buffer,
) -> Option<Position> {
    let area = buffer.area;
    if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
        draw_too_small(buffer);
        return None;
    }
    let (data, screen) = (&model.data, &mut model.screen);
    let mut canvas = Canvas { clock, theme, area, buffer };
    draw_head(data, &mut canvas);
    let cursor = draw_choices(data, screen, &mut canvas);
    let height = area.height - HEAD_LINES - FOOT_LINES;
    let content = &mut canvas.part(Rect::new(0, HEAD_LINES, area.width, height));
    match screen.view {
        View::Overview => overview::draw(data, screen, content),
        View::Detail => detail::draw(data, screen, content),
        View::History => lists::draw_history(data, screen, content),
        View::Findings => lists::draw_findings(data, screen, content),
        View::Cluster => cluster::draw(data, screen, content),
        View::Help => draw_help(screen, content),
    }
    let foot = Rect::new(0, area.height - 1, area.width, 1);
    canvas.put(foot, &StyledLine::plain(keys(screen)).styled(theme.quiet()));
    cursor
}

/// The height of an overview with all instances, but at most `max_rows` of them.
pub(super) fn overview_height(model: &Model, max_rows: usize) -> u16 {
    let rows = overview::wanted_height(&model.data, model.screen.rows.len().min(max_rows));
    u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(HEAD_LINES + FOOT_LINES)
}

/// The characters of a frame as text, without spaces at the ends of lines.
pub(super) fn plain_text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for line in buffer.content.chunks(usize::from(buffer.area.width.max(1))) {
        let mut skipped = 0;
        let mut symbols = String::new();
        for cell in line {
            // A wide character covers the cells after it.
            if skipped == 0 {
                symbols.push_str(cell.symbol());
                skipped = ratatui::text::Span::raw(cell.symbol()).width().max(1);
            }
            skipped -= 1;
        }
        text.push_str(symbols.trim_end());
        text.push('\n');
    }
    text
}

fn draw_too_small(buffer: &mut Buffer) {
    let Rect { width, height, .. } = buffer.area;
    let lines = [
        format!("terminal too small: {width}x{height}"),
        format!("at least {MIN_WIDTH}x{MIN_HEIGHT} is needed"),
        "q: quit".to_owned(),
    ];
    for (y, line) in (0..height).zip(&lines) {
        buffer.set_stringn(0, y, line, usize::from(width), ratatui::style::Style::new());
    }
}

/// The name of the node, whether this is the present state, the number of instances with each role, and of findings.
fn draw_head(data: &NodeData, canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area: Rect { width, .. }, .. } = *canvas;
    let mut first = StyledLine::plain("vipwatch top  ").styled(theme.quiet());
    first.add(&escape_untrusted(&data.status.node), theme.strong());
    first.add("  ", theme.normal());
    match &data.freshness {
        Freshness::Live => first.add("live", theme.good()),
        Freshness::Stale { since, reason } => {
            let text = format!("STALE since {} ({})", clock.time(*since), clock.age(*since));
            first.add(&text, theme.alarm());
            first.add(&format!(": {}", escape_untrusted(reason)), theme.normal());
        }
    }
    let mut second = StyledLine::plain(&count(data.instances.len(), "instance"));
    let counts = role_counts(&data.instances.values().map(|instance| instance.role));
    if !counts.is_empty() {
        second.add(&format!(": {counts}"), theme.normal());
    }
    let (findings, style) = match severity_counts(&data.findings) {
        none if none.is_empty() => ("   no findings".to_owned(), theme.quiet()),
        counts => (format!("   findings: {counts}"), theme.alarm()),
    };
    let has_room = first.width() + findings.len() <= usize::from(width);
    if has_room {
        first.add(&findings, style);
    } else {
        second.add(&findings, style);
    }
    let silences = data.status.silences.len();
    if silences > 0 {
        second.add(&format!("   {}", count(silences, "silence")), theme.normal());
    }
    if let Some(state) = data.cluster() {
        second.add("   ", theme.normal());
        cluster::add_summary(&mut second, state, theme);
    }
    canvas.put(Rect::new(0, 0, width, 1), &first);
    canvas.put(Rect::new(0, 1, width, 1), &second);
}

/// The filter, the roles and the order; in other views, the title of the view.
fn draw_choices(
    data: &NodeData,
    screen: &ScreenState,
    canvas: &mut Canvas<'_>,
) -> Option<Position> {
    let theme = canvas.theme;
    let area = Rect::new(0, 2, canvas.area.width, 1);
    let title = match screen.view {
        View::Overview | View::Cluster => None,
        View::Detail => Some("instance".to_owned()),
        View::History => Some("history, newest first".to_owned()),
        View::Findings => Some(count(data.findings.len(), "finding")),
        View::Help => Some("keys".to_owned()),
    };
    if let Some(title) = title {
        canvas.put(area, &StyledLine::plain(&format!("── {title} ──")).styled(theme.strong()));
        return None;
    }
    let filter = escape_untrusted(&screen.filter);
    let label = "filter: ";
    let mut line = StyledLine::plain(label).styled(theme.quiet());
    line.add(if filter.is_empty() && !screen.is_typing { "none" } else { &filter }, theme.strong());
    let cursor = line.width();
    if screen.view == View::Cluster {
        line.add(&format!("   {} shown", count(screen.groups.len(), "group")), theme.quiet());
    } else {
        line.add("   role: ", theme.quiet());
        line.add(&screen.roles_text(), theme.strong());
        line.add("   sort: ", theme.quiet());
        let order = if screen.is_reversed { ", reversed" } else { "" };
        line.add(&format!("{}{order}", screen.sort), theme.strong());
        line.add(&format!("   {} shown", screen.rows.len()), theme.quiet());
    }
    canvas.put(area, &line);
    let x = u16::try_from(cursor).unwrap_or(u16::MAX).min(area.width - 1);
    screen.is_typing.then_some(Position { x, y: area.y })
}

/// The keys of a view in one line.
fn keys(screen: &ScreenState) -> &'static str {
    match screen.view {
        View::Overview | View::Cluster if screen.is_typing => {
            "type the filter   Enter keep   Esc remove"
        }
        View::Overview => {
            "q quit  ? help  Enter detail  / filter  r role  h history  f findings  c cluster"
        }
        View::Cluster => "Esc back  ↑↓ select  Enter own instance  / filter  q quit  ? help",
        View::Detail | View::Help => "Esc back  ↑↓ scroll  h history  f findings  q quit  ? help",
        View::History | View::Findings => "Esc back  ↑↓ select  Enter detail  q quit  ? help",
    }
}

const HELP: [(&str, &str); 18] = [
    ("↑ ↓  k j", "select the row above or below"),
    ("PgUp PgDn", "move by a page"),
    ("Home End  g G", "move to the first or the last row"),
    ("Enter", "show the selected instance: cause, latencies, timeline, addresses, findings"),
    ("Esc", "go back; in the overview, remove the filters"),
    ("/", "filter by a text in the id, namespace, addresses, role, cause or details"),
    ("r", "filter by role: all, those that need attention, each role"),
    ("s", "sort by another column: role, id, netns, since, cause, latency"),
    ("S", "reverse the order"),
    ("o", "overview of all instances"),
    ("h", "history: the last transitions of all instances"),
    ("f", "findings with hints"),
    ("c", "cluster: nodes, groups and findings of all nodes"),
    ("?", "this page"),
    ("Ctrl-L", "draw the screen again"),
    ("Ctrl-Z", "stop the program; `fg` continues it"),
    ("q  Ctrl-C", "quit"),
    ("", ""),
];

fn draw_help(screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let Canvas { theme, area, .. } = *canvas;
    let mut lines: Vec<StyledLine> = Vec::new();
    for (key, text) in HELP {
        let mut line = StyledLine::plain(&format!("{key:<15}")).styled(theme.strong());
        line.add(text, theme.normal());
        lines.push(line);
    }
    let roles = "roles: P primary   b backup   ~ partial   ! fault   ? unknown";
    lines.push(StyledLine::plain(roles));
    let age = "AGE is the time since the last change of the role. LATENCY is the time from the kernel's \
               event to the end of the slowest delivery of that change.";
    lines.extend(
        paint::wrapped(age, usize::from(area.width), 0).iter().map(|text| StyledLine::plain(text)),
    );
    paint::draw_page(screen, &lines, canvas);
}

#[cfg(test)]
mod tests;
