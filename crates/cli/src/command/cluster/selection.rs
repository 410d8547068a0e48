// SPDX-License-Identifier: Apache-2.0
//! Selects groups: by id, instance, address, node and state.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use vipwatch_api::{ClusterFindingItem, ClusterGroupItem, ClusterHistoryItem, ClusterNodeItem};

use super::source::ClusterReader;
use crate::args::GroupSelection;
use crate::failure::{CommandError, ExitStatus};

/// The options of a command that select groups, applied to the groups of the cluster.
#[derive(Debug)]
pub(super) struct SelectedGroups<'a> {
    options: &'a GroupSelection,
    /// The ids of the selected groups; `None` if no option selects.
    ids: Option<BTreeSet<String>>,
}

impl<'a> SelectedGroups<'a> {
    /// Whether the options select anything, so that the groups are needed.
    pub(super) fn is_needed(options: &GroupSelection) -> bool {
        let GroupSelection { names, group, address, node, state } = options;
        !(names.is_empty()
            && group.is_empty()
            && address.is_empty()
            && node.is_empty()
            && state.is_empty())
    }

    /// As [`Self::new`]. Reads the nodes if an option names one.
    pub(super) fn read(
        options: &'a GroupSelection,
        groups: &[ClusterGroupItem],
        reader: &ClusterReader<'_>,
    ) -> Result<Self, CommandError> {
        let nodes = if options.node.is_empty() { Vec::new() } else { reader.nodes()?.items };
        Self::new(options, groups, &nodes)
    }

    /// The groups that the options select. It is an error if a named group, address or node is not there.
    pub(super) fn new(
        options: &'a GroupSelection,
        groups: &[ClusterGroupItem],
        nodes: &[ClusterNodeItem],
    ) -> Result<Self, CommandError> {
        for text in &options.names {
            if !groups.iter().any(|group| is_named(group, text)) {
                return Err(unknown(format!("no group, instance or address matches {text:?}")));
            }
        }
        for text in &options.group {
            if !groups.iter().any(|group| is_named_by_id(group, text)) {
                return Err(unknown(format!("no group or instance matches {text:?}")));
            }
        }
        for address in &options.address {
            if !groups.iter().any(|group| has_address(group, *address)) {
                return Err(unknown(format!("no group has the address {address}")));
            }
        }
        check_nodes(&options.node, nodes)?;
        Ok(Self::of_existing(options, groups))
    }

    /// As [`Self::new`], but a name that matches nothing is not an error: the group may appear later.
    pub(super) fn of_existing(options: &'a GroupSelection, groups: &[ClusterGroupItem]) -> Self {
        let ids = groups.iter().filter(|group| is_selected(group, options));
        let ids = ids.map(|group| group.id.clone()).collect();
        Self { options, ids: Self::is_needed(options).then_some(ids) }
    }

    /// Whether a group is selected.
    pub(super) fn has(&self, group: &str) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(group))
    }

    /// Whether a finding is about a selected group, or about a node in `--node` if the finding has no group.
    pub(super) fn has_finding(&self, finding: &ClusterFindingItem) -> bool {
        match &finding.group {
            Some(group) => self.has(group),
            None => self.has_nodes(&finding.nodes),
        }
    }

    /// Whether an event without a group is selected: its nodes are in `--node`, and no other option selects.
    pub(super) fn has_nodes(&self, nodes: &[String]) -> bool {
        let options = self.options;
        let has_other = !(options.names.is_empty()
            && options.group.is_empty()
            && options.address.is_empty()
            && options.state.is_empty());
        let is_node = |node: &String| options.node.contains(node);
        !has_other && (options.node.is_empty() || nodes.iter().any(is_node))
    }

    /// Whether an entry of the history is selected. A transition must be on a node in `--node`.
    pub(super) fn has_event(&self, item: &ClusterHistoryItem) -> bool {
        match item {
            ClusterHistoryItem::Transition { group, node, .. } => {
                let nodes = &self.options.node;
                self.has(group) && (nodes.is_empty() || nodes.contains(node))
            }
            ClusterHistoryItem::FindingOpened { finding, .. }
            | ClusterHistoryItem::FindingClosed { finding, .. } => self.has_finding(finding),
        }
    }
}

/// An error if a named node is not in the cluster.
pub(super) fn check_nodes<'n>(
    names: impl IntoIterator<Item = &'n String>,
    nodes: &[ClusterNodeItem],
) -> Result<(), CommandError> {
    let is_missing = |name: &&String| !nodes.iter().any(|node| node.node == **name);
    match names.into_iter().find(is_missing) {
        None => Ok(()),
        Some(name) => {
            let message = format!("there is no node {name:?} in the cluster");
            let hint = "`vipwatch cluster nodes` lists the nodes";
            Err(CommandError::new(ExitStatus::NotFound, message).hint(hint))
        }
    }
}

fn unknown(message: String) -> CommandError {
    CommandError::new(ExitStatus::NotFound, message)
        .hint("`vipwatch cluster status` lists the groups; a node with view = \"own\" knows only those of its instances")
}

fn is_selected(group: &ClusterGroupItem, options: &GroupSelection) -> bool {
    let GroupSelection { names, group: ids, address, node, state } = options;
    let is_named = names.is_empty() || names.iter().any(|text| is_named(group, text));
    let has_id = ids.is_empty() || ids.iter().any(|text| is_named_by_id(group, text));
    let has_address = address.is_empty() || address.iter().any(|one| has_address(group, *one));
    let is_on = |name: &String| group.members.iter().any(|member| member.node == *name);
    let has_node = node.is_empty() || node.iter().any(is_on);
    is_named
        && has_id
        && has_address
        && has_node
        && (state.is_empty() || state.contains(&group.state))
}

/// Whether the text names the group: by id, beginning of its id, an instance or an address.
pub(super) fn is_named(group: &ClusterGroupItem, text: &str) -> bool {
    match plain_address(text) {
        Some(address) => has_address(group, address),
        None => is_named_by_id(group, text),
    }
}

/// Whether the text is the beginning of the group's id, with or without its kind, or the id of an instance.
fn is_named_by_id(group: &ClusterGroupItem, text: &str) -> bool {
    let name = group.id.split_once(':').map_or(group.id.as_str(), |(_, name)| name);
    let is_instance = || group.members.iter().any(|member| member.instance == text);
    group.id.starts_with(text) || name.starts_with(text) || is_instance()
}

/// Whether the group has this virtual address.
fn has_address(group: &ClusterGroupItem, address: IpAddr) -> bool {
    group.addresses.iter().any(|text| plain_address(text) == Some(address))
}

/// An address with or without the length of its prefix.
fn plain_address(text: &str) -> Option<IpAddr> {
    text.parse::<IpNet>().map(|net| net.addr()).or_else(|_| text.parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::cluster::{groups, nodes};

    fn selected(options: &GroupSelection) -> Result<Vec<String>, String> {
        let groups = groups().items;
        let selected =
            SelectedGroups::new(options, &groups, &nodes().items).map_err(|error| error.message)?;
        let ids = groups.iter().filter(|group| selected.has(&group.id));
        Ok(ids.map(|group| group.id.clone()).collect())
    }

    fn named(text: &str) -> GroupSelection {
        GroupSelection { names: vec![text.to_owned()], ..GroupSelection::default() }
    }

    #[test]
    fn a_group_is_named_by_its_id_an_instance_or_an_address() {
        for text in ["vrrp:ipv4:51:192.0.2.10", "vrrp:ipv4:51", "ipv4:51", "192.0.2.10/24", "VI_1"]
        {
            assert_eq!(selected(&named(text)).unwrap(), ["vrrp:ipv4:51:192.0.2.10"], "{text}");
        }
        assert_eq!(selected(&named("5e9b1d0c")).unwrap().len(), 1);
        assert_eq!(selected(&GroupSelection::default()).unwrap().len(), groups().items.len());
    }

    #[test]
    fn a_group_must_match_every_kind_of_option() {
        let options =
            GroupSelection { node: vec!["net-3".to_owned()], ..GroupSelection::default() };
        let on_node = selected(&options).unwrap();
        assert!(!on_node.is_empty() && on_node.len() < groups().items.len(), "{on_node:?}");
        let state = vec![vipwatch_api::GroupState::TwoPrimaries];
        let both = selected(&GroupSelection { state, ..options }).unwrap();
        assert!(both.len() < on_node.len(), "{both:?}");
    }

    #[test]
    fn an_unknown_node_is_an_error() {
        let node = vec!["net-1".to_owned(), "net-9".to_owned()];
        let options = GroupSelection { node, ..GroupSelection::default() };
        assert_eq!(selected(&options).unwrap_err(), "there is no node \"net-9\" in the cluster");
    }

    #[test]
    fn an_unknown_name_or_address_is_an_error() {
        assert_eq!(
            selected(&named("web2")).unwrap_err(),
            "no group, instance or address matches \"web2\""
        );
        let address = vec!["198.51.100.99".parse().unwrap()];
        let options = GroupSelection { address, ..GroupSelection::default() };
        assert_eq!(selected(&options).unwrap_err(), "no group has the address 198.51.100.99");
        let group = vec!["192.0.2.10".to_owned()];
        let options = GroupSelection { group, ..GroupSelection::default() };
        assert_eq!(selected(&options).unwrap_err(), "no group or instance matches \"192.0.2.10\"");
    }
}
