// SPDX-License-Identifier: Apache-2.0
//! The cluster: the nodes in one line, a table of groups, and the findings below it.

use ratatui::layout::Rect;
use ratatui::style::Style as CellStyle;
use vipwatch_api::{
    ClusterConnectionState, ClusterFindingItem, ClusterGroupItem, ClusterNodeState, ClusterState,
    GroupState,
};

use super::super::super::cluster::{addresses, backups, details, group_counts, push_warning};
use super::super::node_data::NodeData;
use super::super::screen::ScreenState;
use super::paint::{Canvas, StyledLine, Theme};
use crate::output::{Style, count, escape_untrusted};

/// The widths of the columns, except for the last one.
const COLUMNS: [(&str, u16); 5] =
    [("STATE", 14), ("GROUP", 28), ("PRIMARY", 16), ("BACKUP", 16), ("ADDRESSES", 18)];
/// Below this width, the columns BACKUP and ADDRESSES are left out.
const MIN_FULL_WIDTH: u16 = 110;
/// Maximum number of findings below the table.
const MAX_FINDINGS: usize = 5;

/// Adds the cluster in a few words: `cluster: 5 groups, 1 two-primaries, 2 findings`.
pub(super) fn add_summary(line: &mut StyledLine, state: &ClusterState, theme: Theme) {
    match state.basis.connection {
        ClusterConnectionState::Connected | ClusterConnectionState::Off => {}
        ClusterConnectionState::Stale => line.add("cluster STALE: ", theme.alarm()),
        ClusterConnectionState::Connecting => line.add("cluster connecting: ", theme.alarm()),
    }
    let number = |wanted| state.groups.iter().filter(|group| group.state == wanted).count();
    let wrong = [GroupState::TwoPrimaries, GroupState::NoPrimary, GroupState::Ambiguous];
    let wrong = wrong.map(|state| (number(state), state.word()));
    let wrong = wrong.iter().filter(|(number, _)| *number > 0);
    let wrong = wrong.map(|(number, word)| format!("{number} {word}"));
    let findings = Some(state.findings.len()).filter(|number| *number > 0);
    let findings = findings.map(|number| count(number, "finding"));
    let problems: Vec<String> = wrong.chain(findings).collect();
    let groups = count(state.groups.len(), "group");
    line.add(&format!("cluster: {groups}"), theme.normal());
    if !problems.is_empty() {
        line.add(&format!(", {}", problems.join(", ")), theme.alarm());
    }
}

pub(super) fn draw(data: &NodeData, screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area, .. } = *canvas;
    let Some(state) = data.cluster() else {
        let text = "no cluster is configured: set `endpoints` in [cluster] of the configuration";
        canvas.put(area, &StyledLine::plain(text));
        return;
    };
    let head = [source_line(state, clock, theme), node_line(state, theme)];
    for (line, y) in head.iter().zip(area.y..) {
        canvas.put(Rect { y, height: 1, ..area }, line);
    }
    let rest = Rect { y: area.y + 2, height: area.height - 2, ..area };
    // The findings get up to a third of the screen.
    let most = usize::from(rest.height / 3).min(MAX_FINDINGS + 1);
    let pane = if state.findings.is_empty() || most < 2 { 0 } else { most };
    let below = u16::try_from(pane.min(state.findings.len() + 1)).unwrap_or(0);
    draw_groups(state, screen, &mut canvas.part(Rect { height: rest.height - below, ..rest }));
    if below > 0 {
        let pane = Rect { y: rest.y + rest.height - below, height: below, ..rest };
        draw_findings(&state.findings, &mut canvas.part(pane));
    }
}

/// Since when the view is stale; otherwise its source.
fn source_line(state: &ClusterState, clock: &Style, theme: Theme) -> StyledLine {
    let mut warning = String::new();
    push_warning(&mut warning, &state.basis, clock);
    if !warning.is_empty() {
        return StyledLine::plain(warning.trim_end()).styled(theme.alarm());
    }
    let domain = escape_untrusted(state.basis.domain.as_deref().unwrap_or("none"));
    let text = format!("domain {domain}, revision {}", state.basis.revision);
    StyledLine::plain(&text).styled(theme.quiet())
}

fn node_line(state: &ClusterState, theme: Theme) -> StyledLine {
    let mut line = StyledLine::plain("nodes:").styled(theme.quiet());
    for node in &state.nodes {
        let (word, style) = match node.state {
            ClusterNodeState::Live => ("", theme.good()),
            ClusterNodeState::Stopped => (" stopped", theme.normal()),
            ClusterNodeState::Lost => (" LOST", theme.alarm()),
        };
        let reporter = if node.is_reporter { " (reporter)" } else { "" };
        let name = escape_untrusted(&node.node);
        line.add(&format!(" {name}{word}"), style);
        line.add(reporter, theme.quiet());
    }
    line
}

fn draw_groups(state: &ClusterState, screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let Canvas { theme, area, .. } = *canvas;
    let titles = ["STATE", "GROUP", "PRIMARY", "BACKUP", "ADDRESSES", "DETAILS"].map(str::to_owned);
    let titles = titles.map(|title| (title, theme.strong()));
    draw_cells(&titles, Rect { height: 1, ..area }, canvas);
    let height = usize::from(area.height.saturating_sub(1));
    screen.page = height;
    screen.cluster.fit(screen.groups.len(), height);
    if screen.groups.is_empty() {
        let text = match state.groups.len() {
            0 => "there are no groups in this view".to_owned(),
            _ => format!(
                "none of {} matches the filter; Esc removes it",
                group_counts(&state.groups)
            ),
        };
        canvas.put(Rect { y: area.y + 1, height: 1, ..area }, &StyledLine::plain(&text));
        return;
    }
    // Only visible rows are built: a cluster may have thousands of groups.
    let visible = screen.groups.iter().enumerate().skip(screen.cluster.first).take(height);
    for ((number, place), y) in visible.zip(area.y + 1..) {
        let Some(group) = state.groups.get(*place) else { continue };
        let row = Rect { y, height: 1, ..area };
        draw_cells(&cells(group, theme), row, canvas);
        if number == screen.cluster.selected {
            canvas.put(row, &StyledLine::plain(">"));
            canvas.buffer.set_style(row, theme.selected());
        }
    }
}

fn cells(group: &ClusterGroupItem, theme: Theme) -> [(String, CellStyle); 6] {
    let style = match group.state {
        GroupState::OnePrimary => theme.good(),
        GroupState::Unknown => theme.strong(),
        GroupState::TwoPrimaries | GroupState::NoPrimary | GroupState::Ambiguous => theme.alarm(),
    };
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    [
        (group.state.word().to_owned(), style),
        (group.id.clone(), theme.normal()),
        (or_dash(group.primaries.join(",")), theme.normal()),
        (or_dash(backups(group)), theme.normal()),
        (or_dash(addresses(group)), theme.normal()),
        (details(group), theme.normal()),
    ]
}

/// Puts the cells of a row into their columns. The last column has the rest of the width.
fn draw_cells(cells: &[(String, CellStyle); 6], row: Rect, canvas: &mut Canvas<'_>) {
    let is_narrow = row.width < MIN_FULL_WIDTH;
    let end = row.x + row.width;
    let mut x = row.x + 2;
    for (place, (text, style)) in cells.iter().enumerate() {
        let (title, width) = COLUMNS.get(place).copied().unwrap_or(("", row.width));
        if is_narrow && matches!(title, "BACKUP" | "ADDRESSES") {
            continue;
        }
        let width = width.min(end.saturating_sub(x));
        let line = StyledLine::plain(&escape_untrusted(text)).styled(*style);
        canvas.put(Rect { x, width, ..row }, &line);
        x = x.saturating_add(width + 1).min(end);
    }
}

fn draw_findings(findings: &[ClusterFindingItem], canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area, .. } = *canvas;
    let shown = usize::from(area.height - 1);
    let title = match findings.len().saturating_sub(shown) {
        0 => "── findings of the cluster ──".to_owned(),
        more => format!("── findings of the cluster ({more} more: `vipwatch cluster findings`) ──"),
    };
    canvas.put(Rect { height: 1, ..area }, &StyledLine::plain(&title).styled(theme.strong()));
    for (finding, y) in findings.iter().take(shown).zip(area.y + 1..) {
        let severity = format!("{:<6}", finding.severity.word());
        let mut line = StyledLine::plain(&severity).styled(theme.severity(finding.severity));
        let subject = finding.group.clone().unwrap_or_else(|| finding.nodes.join(","));
        line.add(&format!("  {}  ", escape_untrusted(&subject)), theme.normal());
        line.add(&escape_untrusted(&finding.name), theme.strong());
        line.add(&format!("  {}", clock.age(finding.opened)), theme.quiet());
        line.add(&format!("  {}", escape_untrusted(&finding.text)), theme.normal());
        canvas.put(Rect { y, height: 1, ..area }, &line);
    }
}
