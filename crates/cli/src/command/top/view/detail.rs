// SPDX-License-Identifier: Apache-2.0
//! One instance: role and cause, stopwatch, timeline, addresses, deliveries and findings.

use vipwatch_api::{
    ClusterMemberItem, ClusterState, EvidenceItem, InstanceDetail, InstanceItem, RoleKind,
};

use super::super::super::cluster::details;
use super::super::super::doctor::push_finding;
use super::super::super::history::change_text;
use super::super::super::show::{detail_lines, role_lines};
use super::super::node_data::NodeData;
use super::super::screen::ScreenState;
use super::lists::transition_line;
use super::paint::{Canvas, StyledLine, Theme, draw_page, wrapped};
use super::timeline::{bar, stopwatch};
use crate::output::{Style, escape_untrusted};

/// Maximum number of transitions below the bar.
const MAX_TRANSITIONS: usize = 10;
/// The width of the names at the beginning of lines, and of the space after them.
const NAME_WIDTH: usize = 16;

pub(super) fn draw(data: &NodeData, screen: &mut ScreenState, canvas: &mut Canvas<'_>) {
    let Canvas { clock, theme, area, .. } = *canvas;
    let width = usize::from(area.width);
    let id = screen.detail.clone().unwrap_or_default();
    let mut page = DetailPage { lines: Vec::new(), width, theme };
    let detail = data.detail.as_ref().filter(|detail| detail.instance.id == id);
    // Events change the instance of the table at once; the rest of the detail follows.
    match (data.instances.get(&id).or(detail.map(|detail| &detail.instance)), detail) {
        (Some(instance), detail) => {
            page.add_role(instance, clock);
            if let Some(cluster) = data.cluster() {
                page.add_cluster(&id, cluster);
            }
            page.add_stopwatch(instance, detail.map(|detail| &**detail));
            if let Some(detail) = detail {
                page.add_detail(detail, clock);
            }
        }
        (None, _) => page.add_text(&format!("{id} is not configured on this node")),
    }
    if let Some(error) = &data.detail_error {
        page.add_text(&format!("the details cannot be read: {error}"));
    }
    draw_page(screen, &page.lines, canvas);
}

/// The lines of the page.
struct DetailPage {
    lines: Vec<StyledLine>,
    width: usize,
    theme: Theme,
}

impl DetailPage {
    /// Adds a text that is not escaped.
    fn add_text(&mut self, text: &str) {
        self.add_lines(&escape_untrusted(text));
    }

    /// Adds escaped lines, which may be long.
    fn add_lines(&mut self, text: &str) {
        for line in text.lines() {
            let lines = wrapped(line, self.width, NAME_WIDTH);
            self.lines.extend(lines.iter().map(|line| StyledLine::plain(line)));
        }
    }

    fn add_title(&mut self, title: &str) {
        self.lines.push(StyledLine::default());
        self.lines.push(StyledLine::plain(title).styled(self.theme.strong()));
    }

    fn add_role(&mut self, instance: &InstanceItem, clock: &Style) {
        self.add_lines(&role_lines(instance, clock));
        let evidence = instance.cause.evidence.as_deref().map(evidence_text);
        if let Some(evidence) = evidence.filter(|text| !text.is_empty()) {
            self.add_text(&format!("{:<NAME_WIDTH$}{evidence}", "evidence"));
        }
    }

    /// The state of the instance's group in the cluster.
    fn add_cluster(&mut self, id: &str, cluster: &ClusterState) {
        let node = cluster.basis.node.as_deref();
        let is_own = |member: &ClusterMemberItem| {
            Some(member.node.as_str()) == node && member.instance == id
        };
        let group = cluster.groups.iter().find(|group| group.members.iter().any(is_own));
        let Some(group) = group else { return };
        let primaries = match group.primaries.as_slice() {
            [] => "no live node holds the addresses".to_owned(),
            nodes => format!("held by {}", nodes.join(", ")),
        };
        let details = details(group);
        let details = if details.is_empty() { details } else { format!("; {details}") };
        let text = format!("{}: {}, {primaries}{details}", group.id, group.state.word());
        self.add_text(&format!("{:<NAME_WIDTH$}{text}", "cluster"));
    }

    fn add_stopwatch(&mut self, instance: &InstanceItem, detail: Option<&InstanceDetail>) {
        let last = detail.and_then(|detail| detail.timeline.last());
        let last = last.filter(|item| item.seq == instance.seq);
        let change = last.map(|item| change_text(item.from.map(RoleKind::word), &item.to));
        let change = change.map(|change| format!(": {}", escape_untrusted(&change)));
        let change = change.unwrap_or_default();
        self.add_title(&format!("last transition{change}, time since the kernel's event"));
        self.lines.extend(stopwatch(instance, self.theme, self.width));
    }

    fn add_detail(&mut self, detail: &InstanceDetail, clock: &Style) {
        let theme = self.theme;
        if let Some(bar) = bar(&detail.timeline, clock, theme, self.width.saturating_sub(2)) {
            self.add_title("timeline");
            self.lines.extend(bar);
            let newest = detail.timeline.iter().rev().take(MAX_TRANSITIONS);
            self.lines.extend(newest.map(|item| transition_line(item, clock, theme)));
        }
        if let Some(error) = &detail.history_error {
            self.add_text(&format!("history: {error}"));
        }
        if !detail.findings.is_empty() {
            self.add_title("findings");
            let mut page = String::new();
            detail.findings.iter().for_each(|finding| push_finding(&mut page, finding, clock));
            self.add_lines(&page);
        }
        self.add_title("details");
        self.add_lines(&detail_lines(detail, clock));
    }
}

/// The facts behind a cause, with the names of the API.
fn evidence_text(evidence: &EvidenceItem) -> String {
    let value = serde_json::to_value(evidence).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    let field = |(name, value): (&String, &serde_json::Value)| match value {
        serde_json::Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    };
    fields.map(field).collect::<Vec<_>>().join(", ")
}
