// SPDX-License-Identifier: Apache-2.0
//! Prints the changes of the cluster, one line for each.

use std::ops::ControlFlow;

use vipwatch_api::{
    ClusterChange, ClusterChangeKind, ClusterConnectionState, ClusterGroupItem, ClusterNodeState,
    GroupState, RoleKind, Schema, Timestamp,
};

use super::super::super::history::change_text;
use super::super::findings::subject;
use crate::args::{Format, OutputOptions};
use crate::output::{self, Style, escape_untrusted};

/// Prints changes.
pub(super) struct ChangePrinter {
    /// `None` to print nothing.
    format: Option<Format>,
    style: Style,
    /// The number of changes until the command ends; `None` for no limit.
    left: Option<u64>,
}

impl ChangePrinter {
    pub(super) fn new(options: &OutputOptions, count: Option<u64>) -> Self {
        let format = (!options.quiet).then(|| options.format());
        Self { format, style: Style::new(), left: count }
    }

    /// Prints the current state of a group, for people only.
    pub(super) fn group(&self, group: &ClusterGroupItem) {
        if let Some(Format::Table | Format::Wide) = self.format {
            output::print(&format!("{}\n", escape_untrusted(&group_line(group))));
        }
    }

    /// Prints a change, and counts it. A change of the connection does not count. Breaks if enough changes are printed, or if
    /// the reader of the output has gone.
    pub(super) fn change(&mut self, change: &ClusterChange) -> ControlFlow<()> {
        let text = match self.format {
            Some(Format::Table | Format::Wide) => {
                format!("{}\n", escape_untrusted(&change_line(change, &self.style)))
            }
            Some(Format::Json) => format!("{}\n", output::json_line(change)),
            Some(Format::Yaml) => format!("---\n{}", output::yaml(change)),
            Some(Format::Name) => format!("{}\n", escape_untrusted(&name(&change.kind))),
            None => String::new(),
        };
        if !output::print_or_closed(&text) {
            return ControlFlow::Break(());
        }
        let is_counted = !matches!(change.kind, ClusterChangeKind::Connection { .. });
        match &mut self.left {
            Some(left) if is_counted => {
                *left -= 1;
                if *left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// A change that is noticed now.
pub(super) fn noticed(kind: ClusterChangeKind, revision: i64) -> ClusterChange {
    ClusterChange { schema: Schema::ClusterChange, at: Timestamp::now(), revision, kind }
}

/// The state of a group in one line.
fn group_line(group: &ClusterGroupItem) -> String {
    let primaries = holders(&group.primaries);
    format!("{:<29}  {}  {}{primaries}", "now", group.id, group.state.word())
}

/// `: net-1, net-2`; empty without nodes.
fn holders(primaries: &[String]) -> String {
    if primaries.is_empty() { String::new() } else { format!(": {}", primaries.join(", ")) }
}

/// The group, node or finding that changed, for `-o name`.
fn name(kind: &ClusterChangeKind) -> String {
    match kind {
        ClusterChangeKind::Role { group, node, .. } => format!("{group}/{node}"),
        ClusterChangeKind::Node { node, .. } => node.clone(),
        ClusterChangeKind::FindingOpened { finding }
        | ClusterChangeKind::FindingClosed { finding } => {
            format!("{}/{}", subject(finding), finding.name)
        }
        ClusterChangeKind::Connection { .. } => "connection".to_owned(),
    }
}

fn change_line(change: &ClusterChange, style: &Style) -> String {
    let time = style.precise_time(change.at);
    let text = match &change.kind {
        ClusterChangeKind::Role { group, state, primaries, node, instance, from, to, cause } => {
            // The cause is that of the last transition, and not of the removal.
            let cause = cause.as_ref().filter(|_| to.is_some());
            let cause = cause.map(|cause| format!("  ({cause})")).unwrap_or_default();
            let to = to.map_or("removed", RoleKind::word);
            let change = change_text(from.map(RoleKind::word), to);
            // The id of a group of Neutron has that of its instances.
            let is_in_group = group.split_once(':').is_some_and(|(_, name)| name == instance);
            let instance = if is_in_group { String::new() } else { format!("/{instance}") };
            let state = match state {
                GroupState::OnePrimary => String::new(),
                state => format!("  [{}{}]", state.word(), holders(primaries)),
            };
            format!("{group}  {node}{instance}  {change}{cause}{state}")
        }
        ClusterChangeKind::Node { node, from, to } => {
            let to = to.map_or("removed", ClusterNodeState::word);
            format!("node {node}  {}", change_text(from.map(ClusterNodeState::word), to))
        }
        ClusterChangeKind::FindingOpened { finding } => {
            let (name, severity) = (&finding.name, finding.severity.word());
            format!("{}  finding {name}: {}  ({severity})", subject(finding), finding.text)
        }
        ClusterChangeKind::FindingClosed { finding } => {
            let (name, severity) = (&finding.name, finding.severity.word());
            format!("{}  finding {name} has ended  ({severity})", subject(finding))
        }
        ClusterChangeKind::Connection { state, error } => {
            let cause = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            match state {
                ClusterConnectionState::Connected => "etcd  connected".to_owned(),
                ClusterConnectionState::Connecting => format!("etcd  connecting{cause}"),
                ClusterConnectionState::Stale => {
                    format!("etcd  stale: changes are not seen until etcd answers{cause}")
                }
                ClusterConnectionState::Off => "etcd  no cluster is configured".to_owned(),
            }
        }
    };
    format!("{time}  {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{at, cluster};

    #[test]
    fn every_change_is_one_line() {
        let before = cluster::state();
        let mut after = cluster::state();
        after.basis = cluster::stale_basis();
        after.nodes[1].state = ClusterNodeState::Stopped;
        after.nodes.remove(2);
        after.groups[1].members[0].role = RoleKind::Primary;
        after.groups[4].members.remove(2);
        after.findings.remove(0);
        after.findings[0].id = "990-cluster-node-lost".to_owned();
        let changes = before.changes(&after).into_iter();
        let line = |kind| {
            let change = ClusterChange { at: at("14:59:00.5"), ..noticed(kind, 813) };
            format!("{}\n", change_line(&change, &Style::of_tests()))
        };
        let mut text: String = changes.map(line).collect();
        let recovered =
            ClusterChangeKind::Connection { state: ClusterConnectionState::Connected, error: None };
        text.push_str(&line(recovered));
        // The name of the group ends like that of the instance, and is another one.
        text.push_str(&line(ClusterChangeKind::Role {
            group: "group:web".to_owned(),
            state: GroupState::OnePrimary,
            primaries: Vec::new(),
            node: "net-1".to_owned(),
            instance: "b".to_owned(),
            from: Some(RoleKind::Backup),
            to: Some(RoleKind::Primary),
            cause: None,
        }));
        text.push_str(&group_line(&after.groups[0]));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_command_ends_after_the_wanted_number_of_changes() {
        let mut printer = ChangePrinter { format: None, style: Style::of_tests(), left: Some(2) };
        let node = || ClusterChangeKind::Node {
            node: "net-1".to_owned(),
            from: None,
            to: Some(ClusterNodeState::Live),
        };
        let state = ClusterConnectionState::Connected;
        let connection = ClusterChangeKind::Connection { state, error: None };
        assert_eq!(printer.change(&noticed(node(), 1)), ControlFlow::Continue(()));
        assert_eq!(printer.change(&noticed(connection, 1)), ControlFlow::Continue(()));
        assert_eq!(printer.change(&noticed(node(), 1)), ControlFlow::Break(()));
    }
}
