// SPDX-License-Identifier: Apache-2.0
//! The changes that `vipwatch cluster watch` prints: the difference between two states of the cluster.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    ClusterBasis, ClusterConnectionState, ClusterFindingItem, ClusterGroupItem, ClusterMemberItem,
    ClusterNodeItem, ClusterNodeState, GroupState, RoleKind, Schema,
};

/// The state of the cluster at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterState {
    /// What the state rests on.
    pub basis: ClusterBasis,
    /// The nodes.
    pub nodes: Vec<ClusterNodeItem>,
    /// The groups.
    pub groups: Vec<ClusterGroupItem>,
    /// The open findings.
    pub findings: Vec<ClusterFindingItem>,
}

/// A change of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterChange {
    /// [`Schema::ClusterChange`]
    pub schema: Schema,
    /// When the command noticed the change, by its own clock.
    pub at: Timestamp,
    /// The revision of etcd at which the command noticed the change.
    pub revision: i64,
    /// The change.
    #[serde(flatten)]
    pub kind: ClusterChangeKind,
}

/// The answer to `GET /v1/cluster/changes`, which waits until the number differs from `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterChangeCount {
    /// [`Schema::ClusterChanges`]
    pub schema: Schema,
    /// The number of changes of the view since the node started: roles, nodes, findings and the connection, but not
    /// heartbeats. It begins with 1.
    pub changes: u64,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ClusterChangeKind {
    /// The role of an instance.
    Role {
        /// The id of the group.
        group: String,
        /// The state of the group after the change.
        state: GroupState,
        /// The live nodes that hold an address of the group after the change.
        primaries: Vec<String>,
        /// The node.
        node: String,
        /// The id of the instance on that node.
        instance: String,
        /// The role before; null for a new instance.
        from: Option<RoleKind>,
        /// The role after; null if the instance is no longer published.
        to: Option<RoleKind>,
        /// Why the role changed; null if that is not known.
        cause: Option<String>,
    },
    /// The state of a node.
    Node {
        /// The node.
        node: String,
        /// The state before; null for a new node.
        from: Option<ClusterNodeState>,
        /// The state after; null if the node no longer belongs to the cluster.
        to: Option<ClusterNodeState>,
    },
    /// A finding was opened.
    FindingOpened {
        /// The finding.
        finding: ClusterFindingItem,
    },
    /// A finding ended.
    FindingClosed {
        /// The finding, as it was before it ended.
        finding: ClusterFindingItem,
    },
    /// The connection to etcd.
    Connection {
        /// The state after the change.
        state: ClusterConnectionState,
        /// The error; null if there is none.
        error: Option<String>,
    },
}

impl ClusterState {
    /// The changes from this state to `after`: the connection, the nodes, the roles, and then the findings.
    pub fn changes(&self, after: &Self) -> Vec<ClusterChangeKind> {
        let mut changes = Vec::new();
        if self.basis.connection != after.basis.connection {
            let (state, error) = (after.basis.connection, after.basis.error.clone());
            changes.push(ClusterChangeKind::Connection { state, error });
        }
        changes.extend(self.node_changes(after));
        changes.extend(self.role_changes(after));
        changes.extend(self.finding_changes(after));
        changes
    }

    fn node_changes(&self, after: &Self) -> Vec<ClusterChangeKind> {
        let states = |nodes: &[ClusterNodeItem]| -> BTreeMap<String, ClusterNodeState> {
            nodes.iter().map(|node| (node.node.clone(), node.state)).collect()
        };
        let (old, new) = (states(&self.nodes), states(&after.nodes));
        let gone = old.iter().filter(|(node, _)| !new.contains_key(*node));
        let gone = gone.map(|(node, state)| (node, Some(*state), None));
        let other = new.iter().map(|(node, state)| (node, old.get(node).copied(), Some(*state)));
        let changed = gone.chain(other).filter(|(_, from, to)| from != to);
        changed
            .map(|(node, from, to)| ClusterChangeKind::Node { node: node.clone(), from, to })
            .collect()
    }

    fn role_changes(&self, after: &Self) -> Vec<ClusterChangeKind> {
        let (old, new) = (placed_members(&self.groups), placed_members(&after.groups));
        let gone = old.iter().filter(|(key, _)| !new.contains_key(*key));
        let gone = gone.map(|(_, placed)| placed.change(Some(placed.member.role), None));
        let changed = new.iter().filter_map(|(key, placed)| {
            let from = old.get(key).map(|old| old.member.role);
            let to = Some(placed.member.role);
            (from != to).then(|| placed.change(from, to))
        });
        gone.chain(changed).collect()
    }

    fn finding_changes(&self, after: &Self) -> Vec<ClusterChangeKind> {
        let missing = |all: &[ClusterFindingItem], other: &[ClusterFindingItem]| {
            let ids: std::collections::BTreeSet<&str> =
                other.iter().map(|finding| finding.id.as_str()).collect();
            let missing = all.iter().filter(|finding| !ids.contains(finding.id.as_str()));
            missing.cloned().collect::<Vec<_>>()
        };
        let closed = missing(&self.findings, &after.findings).into_iter();
        let closed = closed.map(|finding| ClusterChangeKind::FindingClosed { finding });
        let opened = missing(&after.findings, &self.findings).into_iter();
        let opened = opened.map(|finding| ClusterChangeKind::FindingOpened { finding });
        closed.chain(opened).collect()
    }
}

/// The node and the id of an instance.
type MemberKey<'a> = (&'a str, &'a str);

/// A member, and its group.
struct PlacedMember<'a> {
    group: &'a ClusterGroupItem,
    member: &'a ClusterMemberItem,
}

/// The members of all groups. The id of a group can change while its members stay, so it is not a part of the key.
fn placed_members(groups: &[ClusterGroupItem]) -> BTreeMap<MemberKey<'_>, PlacedMember<'_>> {
    let members = groups
        .iter()
        .flat_map(|group| group.members.iter().map(move |member| PlacedMember { group, member }));
    members
        .map(|placed| ((placed.member.node.as_str(), placed.member.instance.as_str()), placed))
        .collect()
}

impl PlacedMember<'_> {
    fn change(&self, from: Option<RoleKind>, to: Option<RoleKind>) -> ClusterChangeKind {
        ClusterChangeKind::Role {
            group: self.group.id.clone(),
            state: self.group.state,
            primaries: self.group.primaries.clone(),
            node: self.member.node.clone(),
            instance: self.member.instance.clone(),
            from,
            to,
            cause: self.member.cause.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
