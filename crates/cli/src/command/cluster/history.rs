// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster history`: prints the last transitions of all nodes, and the findings.

use vipwatch_api::{ClusterHistory, ClusterHistoryItem, Timestamp};

use super::super::history::change_text;
use super::basis::{push_basis, push_warning};
use super::findings::subject;
use super::selection::SelectedGroups;
use super::source::ClusterReader;
use crate::args::{ClusterHistoryArgs, EtcdOptions};
use crate::failure::CommandError;
use crate::output::{self, Page, Style, TextTable, push_line};

pub(super) fn run(options: &ClusterHistoryArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let reader = ClusterReader::open(&options.query, etcd)?;
    let mut history = reader.history()?;
    if SelectedGroups::is_needed(&options.selection) {
        let groups = reader.groups()?.items;
        let selected = SelectedGroups::read(&options.selection, &groups, &reader)?;
        history.items.retain(|item| selected.has_event(item));
    }
    history.items.retain(|item| is_wanted(item, options));
    let surplus = history.items.len().saturating_sub(options.limit);
    history.items.drain(..surplus);
    output::show(&options.query.output, &history);
    Ok(())
}

fn is_wanted(item: &ClusterHistoryItem, options: &ClusterHistoryArgs) -> bool {
    let at = time_of(item);
    let is_role = match item {
        ClusterHistoryItem::Transition { to, .. } => {
            options.role.is_empty() || options.role.contains(to)
        }
        ClusterHistoryItem::FindingOpened { .. } | ClusterHistoryItem::FindingClosed { .. } => {
            options.role.is_empty()
        }
    };
    is_role
        && options.since.is_none_or(|since| at >= since)
        && options.until.is_none_or(|until| at < until)
}

fn time_of(item: &ClusterHistoryItem) -> Timestamp {
    match item {
        ClusterHistoryItem::Transition { at, .. }
        | ClusterHistoryItem::FindingOpened { at, .. }
        | ClusterHistoryItem::FindingClosed { at, .. } => *at,
    }
}

impl Page for ClusterHistory {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        push_warning(&mut page, &self.basis, style);
        if self.items.is_empty() {
            push_line(&mut page, "no events");
        } else {
            page.push_str(&table(&self.items, style));
        }
        push_basis(&mut page, &self.basis);
        page
    }

    fn names(&self) -> Vec<String> {
        let name = |item: &ClusterHistoryItem| match item {
            ClusterHistoryItem::Transition { node, seq, .. } => format!("{node}/{seq}"),
            ClusterHistoryItem::FindingOpened { finding, .. }
            | ClusterHistoryItem::FindingClosed { finding, .. } => finding.id.clone(),
        };
        self.items.iter().map(name).collect()
    }
}

fn table(items: &[ClusterHistoryItem], style: &Style) -> String {
    let mut table = if style.is_wide {
        TextTable::new(&["TIME", "GROUP", "NODE", "INSTANCE", "SEQ", "EVENT", "CAUSE"])
    } else {
        TextTable::new(&["TIME", "GROUP", "NODE", "EVENT", "CAUSE"]).shrink(&[
            ("CAUSE", 12),
            ("GROUP", 20),
            ("EVENT", 20),
        ])
    };
    for item in items {
        table.row(row(item, style));
    }
    table.text(style)
}

fn row(item: &ClusterHistoryItem, style: &Style) -> Vec<String> {
    let at = time_of(item);
    let time = if style.is_wide { style.precise_time(at) } else { style.time(at) };
    match item {
        ClusterHistoryItem::Transition { group, node, instance, seq, from, to, cause, .. } => {
            let change = change_text(from.map(vipwatch_api::RoleKind::word), to.word());
            let mut row = vec![time, group.clone(), node.clone()];
            if style.is_wide {
                row.extend([instance.clone(), seq.to_string()]);
            }
            row.extend([change, cause.clone().unwrap_or_default()]);
            row
        }
        ClusterHistoryItem::FindingOpened { finding, .. }
        | ClusterHistoryItem::FindingClosed { finding, .. } => {
            let is_open = matches!(item, ClusterHistoryItem::FindingOpened { .. });
            let state = if is_open { "finding opened" } else { "finding ended" };
            let mut row = vec![time, subject(finding)];
            if style.is_wide {
                let text = if is_open { format!(": {}", finding.text) } else { String::new() };
                row.extend([finding.nodes.join(","), String::new(), String::new()]);
                row.extend([state.to_owned(), format!("{}{text}", finding.name)]);
            } else {
                row.extend([String::new(), state.to_owned(), finding.name.clone()]);
            }
            row
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::cluster;

    #[test]
    fn transitions_of_all_nodes_and_findings_are_in_one_table() {
        insta::assert_snapshot!(cluster::history().text(&Style::of_tests()));
    }

    #[test]
    fn the_wide_table_has_instances_and_sequence_numbers() {
        insta::assert_snapshot!(
            cluster::history().text(&Style { is_wide: true, ..Style::of_tests() })
        );
    }
}
