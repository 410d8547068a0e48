// SPDX-License-Identifier: Apache-2.0
//! The answer of `vipwatch cluster balance`: how the primaries are distributed over the nodes. No route has it: the
//! command applies [`balance`] to documents of the cluster.
//!
//! The answer is information only. vipwatch moves no address: an operator changes the priorities in keepalived's
//! configuration, and keepalived moves the addresses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ClusterBasis, ClusterGroupItem, ClusterMemberItem, ClusterNodeItem, ClusterNodeState,
    GroupState, RoleKind, Schema,
};

/// The distribution of the primaries over the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterBalance {
    /// [`Schema::ClusterBalance`]
    pub schema: Schema,
    /// What the answer rests on.
    #[serde(flatten)]
    pub basis: ClusterBasis,
    /// The mean number of primaries of a live node, rounded to two digits; null if no node is live.
    pub mean: Option<f64>,
    /// The nodes, in the order of their names.
    pub items: Vec<NodeShare>,
    /// The groups that could move to make the numbers more equal, in a possible order.
    pub moves: Vec<PossibleMove>,
}

/// The roles of the instances on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeShare {
    /// The name of the node.
    pub node: String,
    /// Whether it is alive. The roles of a node that is not are its last known roles.
    pub state: ClusterNodeState,
    /// The number of instances that hold an address: role `primary` or `partial`.
    pub primaries: u64,
    /// The number of instances with the role `backup`.
    pub backups: u64,
    /// The number of instances with another role.
    pub others: u64,
    /// The number of primaries minus the mean; null for a node that is not live.
    pub difference: Option<f64>,
}

/// A group with a primary that could move to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PossibleMove {
    /// The id of the group.
    pub group: String,
    /// The node that is primary.
    pub from: String,
    /// Its priority; null if it is not known.
    pub from_priority: Option<u8>,
    /// The node that could be primary.
    pub to: String,
    /// Its priority.
    pub to_priority: u8,
}

/// The distribution of the primaries in these documents.
pub fn balance(
    basis: ClusterBasis,
    nodes: &[ClusterNodeItem],
    groups: &[ClusterGroupItem],
) -> ClusterBalance {
    let mut shares: BTreeMap<&str, NodeShare> =
        nodes.iter().map(|node| (node.node.as_str(), share(node))).collect();
    for member in groups.iter().flat_map(|group| &group.members) {
        let Some(share) = shares.get_mut(member.node.as_str()) else { continue };
        match member.role {
            RoleKind::Primary | RoleKind::Partial => share.primaries += 1,
            RoleKind::Backup => share.backups += 1,
            RoleKind::Fault | RoleKind::Unknown => share.others += 1,
        }
    }
    let live = || shares.values().filter(|share| share.state == ClusterNodeState::Live);
    let number = live().count();
    let total: u64 = live().map(|share| share.primaries).sum();
    let mean = (number > 0).then(|| as_number(total) / as_number(number as u64));
    let moves = moves(live().map(|share| (share.node.as_str(), share.primaries)).collect(), groups);
    let mut items: Vec<NodeShare> = shares.into_values().collect();
    for share in items.iter_mut().filter(|share| share.state == ClusterNodeState::Live) {
        share.difference = mean.map(|mean| rounded(as_number(share.primaries) - mean));
    }
    let schema = Schema::ClusterBalance;
    ClusterBalance { schema, basis, mean: mean.map(rounded), items, moves }
}

fn share(node: &ClusterNodeItem) -> NodeShare {
    let (node, state) = (node.node.clone(), node.state);
    NodeShare { node, state, primaries: 0, backups: 0, others: 0, difference: None }
}

/// The moves that make the numbers of primaries of the live nodes more equal. A group moves at most once, and only to a node
/// that has at least two primaries less, so that each move makes the difference smaller.
fn moves<'a>(
    mut primaries: BTreeMap<&'a str, u64>,
    groups: &'a [ClusterGroupItem],
) -> Vec<PossibleMove> {
    let mut moves = Vec::new();
    for group in groups.iter().filter(|group| group.state == GroupState::OnePrimary) {
        let is_live = |member: &&ClusterMemberItem| member.node_state == ClusterNodeState::Live;
        let live = || group.members.iter().filter(is_live);
        let Some(from) = live().find(|member| group.primaries.contains(&member.node)) else {
            continue;
        };
        let is_ready = |member: &&ClusterMemberItem| {
            member.role == RoleKind::Backup && member.priority.is_some()
        };
        let number = |node: &str| primaries.get(node).copied();
        let to = live().filter(is_ready).min_by_key(|member| number(&member.node));
        let Some((to, to_priority)) = to.and_then(|to| Some((to, to.priority?))) else { continue };
        let (Some(here), Some(there)) = (number(&from.node), number(&to.node)) else { continue };
        if here < there + 2 {
            continue;
        }
        primaries.insert(&from.node, here - 1);
        primaries.insert(&to.node, there + 1);
        moves.push(PossibleMove {
            group: group.id.clone(),
            from: from.node.clone(),
            from_priority: from.priority,
            to: to.node.clone(),
            to_priority,
        });
    }
    moves
}

#[expect(clippy::cast_precision_loss, reason = "numbers of instances are far below 2^52")]
fn as_number(number: u64) -> f64 {
    number as f64
}

/// Two digits after the point.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests;
