// SPDX-License-Identifier: Apache-2.0
//! What the user has chosen: view, selection, filter and order.

use std::cmp::{Ordering, Reverse};

use vipwatch_api::{ClusterGroupItem, InstanceItem, RoleKind};

use super::super::status::details;
use super::node_data::NodeData;
use crate::args::{SortKey, TopArgs};

/// What fills the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The table of instances.
    Overview,
    /// One instance.
    Detail,
    /// The transitions of all instances.
    History,
    /// All findings with hints.
    Findings,
    /// The nodes, groups and findings of the cluster.
    Cluster,
    /// The keys.
    Help,
}

/// A selected row, and the first row that is visible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ListPosition {
    pub(super) selected: usize,
    pub(super) first: usize,
}

impl ListPosition {
    /// Moves the selection by a number of rows.
    pub(super) fn step(&mut self, rows: isize) {
        self.selected = self.selected.saturating_add_signed(rows);
    }

    /// Moves the selection into a list of `rows`, and the visible part to the selection.
    pub(super) fn fit(&mut self, rows: usize, height: usize) {
        self.selected = self.selected.min(rows.saturating_sub(1));
        let last_first = self.selected.saturating_add(1).saturating_sub(height);
        self.first = self.first.clamp(last_first, self.selected);
        // No empty lines below the last row while rows above the first one are hidden.
        self.first = self.first.min(rows.saturating_sub(height));
    }
}

/// The choices of the user.
#[derive(Debug)]
pub(super) struct ScreenState {
    pub(super) view: View,
    /// Only instances with this text are shown; empty for all.
    pub(super) filter: String,
    /// Whether keys are added to `filter`.
    pub(super) is_typing: bool,
    /// Only these roles are shown; empty for all.
    pub(super) roles: Vec<RoleKind>,
    pub(super) sort: SortKey,
    pub(super) is_reversed: bool,
    /// The ids of the instances that match the filter, in order.
    pub(super) rows: Vec<String>,
    /// The places of the groups that match the filter, in the list of groups.
    pub(super) groups: Vec<usize>,
    /// The id of the selected instance; `None` before the first choice.
    pub(super) selected: Option<String>,
    /// The place of the selected instance in `rows`.
    pub(super) position: ListPosition,
    pub(super) history: ListPosition,
    pub(super) findings: ListPosition,
    pub(super) cluster: ListPosition,
    /// The id of the instance in the detail view; `None` before the first one.
    pub(super) detail: Option<String>,
    /// The first visible line of the detail or of the help.
    pub(super) scroll: usize,
    /// The number of rows of the visible list, for the keys that move by a page.
    pub(super) page: usize,
}

impl ScreenState {
    pub(super) fn new(options: &TopArgs) -> Self {
        Self {
            view: View::Overview,
            filter: options.text.clone().unwrap_or_default(),
            is_typing: false,
            roles: options.role.clone(),
            sort: options.sort,
            is_reversed: false,
            rows: Vec::new(),
            groups: Vec::new(),
            selected: None,
            position: ListPosition::default(),
            history: ListPosition::default(),
            findings: ListPosition::default(),
            cluster: ListPosition::default(),
            detail: None,
            scroll: 0,
            page: 1,
        }
    }

    /// Selects and sorts the instances. The selection stays on its instance, or on its place if the instance is gone.
    pub(super) fn arrange(&mut self, data: &NodeData) {
        let wanted = self.filter.to_lowercase();
        let is_shown = |instance: &&InstanceItem| {
            let is_role = self.roles.is_empty() || self.roles.contains(&instance.role);
            is_role && (wanted.is_empty() || has_text(instance, &wanted))
        };
        let mut shown: Vec<&InstanceItem> = data.instances.values().filter(is_shown).collect();
        // The instances come in the order of their ids, and the sort keeps the order of equal ones.
        shown.sort_by(|a, b| compare(a, b, self.sort));
        if self.is_reversed {
            shown.reverse();
        }
        self.rows = shown.into_iter().map(|instance| instance.id.clone()).collect();
        let place =
            self.selected.as_ref().and_then(|id| self.rows.iter().position(|row| row == id));
        if let Some(place) = place {
            self.position.selected = place;
        }
        self.choose();
        let groups = data.cluster().map_or(&[][..], |cluster| &cluster.groups).iter().enumerate();
        let groups =
            groups.filter(|(_, group)| wanted.is_empty() || group_has_text(group, &wanted));
        self.groups = groups.map(|(place, _)| place).collect();
    }

    /// Makes the instance at the selected place the selected one.
    pub(super) fn choose(&mut self) {
        self.position.selected = self.position.selected.min(self.rows.len().saturating_sub(1));
        if let Some(id) = self.rows.get(self.position.selected) {
            self.selected = Some(id.clone());
        }
    }

    /// The next choice of roles: all, those that need attention, and each role alone.
    pub(super) fn next_roles(&mut self) {
        let attention = vec![RoleKind::Fault, RoleKind::Unknown, RoleKind::Partial];
        let mut choices = vec![Vec::new(), attention];
        choices.extend(RoleKind::ALL.map(|role| vec![role]));
        let current = choices.iter().position(|choice| *choice == self.roles);
        let next = current.map_or(0, |current| (current + 1) % choices.len());
        self.roles = choices.swap_remove(next);
    }

    /// The chosen roles in words.
    pub(super) fn roles_text(&self) -> String {
        match self.roles.as_slice() {
            [] => "all".to_owned(),
            roles => roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(","),
        }
    }
}

/// Whether the instance has this text, which is in lower case.
fn has_text(instance: &InstanceItem, wanted: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(wanted);
    has(&instance.id)
        || has(&instance.name)
        || instance.netns.as_deref().is_some_and(has)
        || has(instance.role.word())
        || has(instance.cause.word_or(&instance.trigger))
        || instance.addresses.iter().any(|address| has(&address.cidr))
        || has(&details(instance))
}

/// Whether the group has this text, which is in lower case.
fn group_has_text(group: &ClusterGroupItem, wanted: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(wanted);
    has(&group.id)
        || has(group.state.word())
        || group.addresses.iter().any(|address| has(address))
        || group.findings.iter().any(|finding| has(finding))
        || group.members.iter().any(|member| has(&member.node) || has(&member.instance))
}

fn compare(a: &InstanceItem, b: &InstanceItem, key: SortKey) -> Ordering {
    match key {
        SortKey::Role => a.role.cmp(&b.role),
        SortKey::Id => a.id.cmp(&b.id),
        SortKey::Netns => a.netns.cmp(&b.netns),
        SortKey::Since => Reverse(a.since).cmp(&Reverse(b.since)),
        SortKey::Cause => a.cause.word_or(&a.trigger).cmp(b.cause.word_or(&b.trigger)),
        SortKey::Latency => Reverse(slowest(a)).cmp(&Reverse(slowest(b))),
    }
}

/// The latency of the slowest delivery of the last transition, in microseconds; `None` if there is none.
pub(super) fn slowest(instance: &InstanceItem) -> Option<i64> {
    instance.latencies.values().copied().max()
}

#[cfg(test)]
mod tests;
