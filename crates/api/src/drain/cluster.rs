// SPDX-License-Identifier: Apache-2.0
//! What the other nodes of the cluster say about each instance: whether one of them holds its addresses, and whether one of
//! them could take over.

use super::{DrainFacts, DrainReason};
use crate::{
    ClusterConnectionState, ClusterGroupList, ClusterMemberItem, ClusterNodeState, InstanceItem,
    RoleKind,
};

/// The other live nodes of the groups of this node.
pub(super) struct ClusterPeers<'f> {
    facts: &'f DrainFacts,
    groups: &'f ClusterGroupList,
}

/// The other live nodes of one group.
struct LivePeers {
    has_holder: bool,
    has_backup: bool,
}

impl<'f> ClusterPeers<'f> {
    /// `None` if the node does not know the other nodes: no cluster is configured, or its view is old.
    pub(super) fn of(facts: &'f DrainFacts) -> Option<Self> {
        let groups = facts.cluster.as_ref()?;
        let is_connected = groups.basis.connection == ClusterConnectionState::Connected;
        is_connected.then_some(Self { facts, groups })
    }

    /// Why the node cannot be taken down.
    pub(super) fn blocking(&self) -> Vec<DrainReason> {
        let reasons = self.facts.instances.iter().filter_map(|instance| {
            let peers = self.peers_of(instance)?;
            let is_held = holds(instance.role);
            if is_held && !peers.has_backup {
                let text = "no other live node is backup: the addresses would be on no node";
                return Some(DrainReason::new("no-backup-elsewhere", Some(&instance.id), text));
            }
            if instance.role == RoleKind::Backup && !peers.has_holder {
                let text = "no other live node holds the addresses";
                return Some(DrainReason::new("no-primary", Some(&instance.id), text));
            }
            None
        });
        reasons.collect()
    }

    /// The instances that the cluster does not know yet.
    pub(super) fn uncertain(&self) -> Vec<DrainReason> {
        let missing = self.facts.instances.iter().filter(|one| self.peers_of(one).is_none());
        let text = "the cluster does not know this instance yet";
        missing.map(|one| DrainReason::new("cluster-view", Some(&one.id), text)).collect()
    }

    /// The instances that have no backup while this node is down, and keep their primary.
    pub(super) fn notes(&self) -> Vec<DrainReason> {
        let is_last = |instance: &&InstanceItem| {
            let peers = self.peers_of(instance);
            instance.role == RoleKind::Backup
                && peers.is_some_and(|peers| peers.has_holder && !peers.has_backup)
        };
        let last = self.facts.instances.iter().filter(is_last);
        let text = "this is the only live backup: while this node is down, no node could take over";
        last.map(|one| DrainReason::new("last-backup", Some(&one.id), text)).collect()
    }

    /// `None` if no group has the instance.
    fn peers_of(&self, instance: &InstanceItem) -> Option<LivePeers> {
        let node = self.groups.basis.node.as_deref()?;
        let is_own = |one: &ClusterMemberItem| one.node == node && one.instance == instance.id;
        let group = self.groups.items.iter().find(|group| group.members.iter().any(is_own))?;
        let live = || {
            let others = group.members.iter().filter(|member| member.node != node);
            others.filter(|member| member.node_state == ClusterNodeState::Live)
        };
        Some(LivePeers {
            has_holder: live().any(|member| holds(member.role)),
            has_backup: live().any(|member| member.role == RoleKind::Backup),
        })
    }
}

fn holds(role: RoleKind) -> bool {
    matches!(role, RoleKind::Primary | RoleKind::Partial)
}

#[cfg(test)]
mod tests;
