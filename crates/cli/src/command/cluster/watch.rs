// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster watch`: prints every change of the cluster as it happens, one line for each.
//!
//! The command compares each state of the cluster with the one before.

mod feed;
mod printer;

use vipwatch_api::{ClusterChangeKind, ClusterGroupItem, ClusterState};

use self::feed::ClusterFeed;
use self::printer::{ChangePrinter, noticed};
use super::basis::push_warning;
use super::selection::SelectedGroups;
use crate::args::{ClusterWatchArgs, EtcdOptions, GroupSelection};
use crate::failure::{CommandError, note};
use crate::output::Style;

pub(super) fn run(options: &ClusterWatchArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let output = &options.query.output;
    let mut feed = ClusterFeed::open(&options.query, etcd)?;
    let mut printer = ChangePrinter::new(output, options.count);
    let mut before = feed.first()?;
    let mut warning = String::new();
    push_warning(&mut warning, &before.basis, &Style::new());
    if !warning.is_empty() {
        note(output, warning.trim_end());
    }
    let selected = SelectedGroups::new(&options.selection, &before.groups, &before.nodes)?;
    before.groups.iter().filter(|group| selected.has(&group.id)).for_each(|group| {
        printer.group(group);
    });
    loop {
        let after = feed.next(output)?;
        for kind in selected_changes(&before, &after, &options.selection) {
            if printer.change(&noticed(kind, after.basis.revision)).is_break() {
                return Ok(());
            }
        }
        before = after;
    }
}

/// The changes that the options select. A role is selected if its group matches before or after the change: a group in
/// `--state two-primaries` leaves the state by a change that is wanted too.
fn selected_changes(
    before: &ClusterState,
    after: &ClusterState,
    options: &GroupSelection,
) -> Vec<ClusterChangeKind> {
    let changes = before.changes(after);
    if changes.is_empty() || !SelectedGroups::is_needed(options) {
        return changes;
    }
    let select = |groups: &[ClusterGroupItem]| SelectedGroups::of_existing(options, groups);
    let (old, new) = (select(&before.groups), select(&after.groups));
    let is_selected = |change: &ClusterChangeKind| match change {
        ClusterChangeKind::Role { group, node, .. } => {
            let is_node = options.node.is_empty() || options.node.contains(node);
            is_node && (old.has(group) || new.has(group))
        }
        ClusterChangeKind::Node { node, .. } => new.has_nodes(std::slice::from_ref(node)),
        ClusterChangeKind::FindingOpened { finding }
        | ClusterChangeKind::FindingClosed { finding } => {
            old.has_finding(finding) || new.has_finding(finding)
        }
        ClusterChangeKind::Connection { .. } => true,
    };
    changes.into_iter().filter(is_selected).collect()
}

#[cfg(test)]
mod tests {
    use vipwatch_api::{ClusterNodeState, GroupState, RoleKind};

    use super::*;
    use crate::samples::cluster;

    fn count(options: &GroupSelection) -> usize {
        let before = cluster::state();
        let mut after = cluster::state();
        after.nodes[1].state = ClusterNodeState::Lost;
        after.groups[0].members[1].role = RoleKind::Backup;
        after.groups[0].state = GroupState::OnePrimary;
        after.groups[4].members[0].role = RoleKind::Fault;
        after.findings.remove(0);
        selected_changes(&before, &after, options).len()
    }

    #[test]
    fn a_filter_selects_roles_nodes_and_findings() {
        let all = GroupSelection::default();
        assert_eq!(count(&all), 4);
        let state = vec![GroupState::TwoPrimaries];
        assert_eq!(count(&GroupSelection { state, ..all.clone() }), 2, "the role and the finding");
        let node = vec!["net-2".to_owned()];
        assert_eq!(count(&GroupSelection { node, ..all.clone() }), 3, "node, role and finding");
        let names = vec!["5e9b".to_owned()];
        assert_eq!(count(&GroupSelection { names, ..all }), 1, "the role");
    }
}
