// SPDX-License-Identifier: Apache-2.0
//! Groups: the instances on several nodes that share virtual addresses.
//!
//! A bucket of a Neutron router or of a configured group is one group. In a bucket of a VRID, instances with a common
//! virtual address are one group, and so are instances that are connected through a third one. A link-local address
//! connects only instances that have no other address. An instance that is alone is a group by itself.

mod addresses;
mod components;
mod shared;

use std::collections::BTreeSet;
use std::net::IpAddr;

use vipwatch_api::{ClusterNodeState, FindingKind, GroupState, RoleKind};
use vipwatch_core::finding::DrainEffect;

pub(crate) use self::addresses::{compared as compared_addresses, naming_address};
pub(crate) use self::shared::SharedAddresses;
use crate::key::{Bucket, ClusterName};
use crate::record::{ReceivedAdverts, RoleRecord};
use crate::view::{ClusterView, RoleView};

/// An instance of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The node.
    pub node: ClusterName,
    /// Whether the node is alive. The role of a node that is not is its last known role.
    pub state: ClusterNodeState,
    /// The revision of etcd that the node had seen when it confirmed its roles; `None` if the node is not live.
    pub seen: Option<i64>,
    /// The record of the instance.
    pub record: RoleRecord,
    /// The revision of the last change of the record's key.
    pub mod_revision: i64,
}

impl GroupMember {
    /// Whether the node is alive and the record is of its present epoch.
    pub fn is_live(&self) -> bool {
        self.state == ClusterNodeState::Live
    }

    /// Whether the instance holds an address of the group, as far as is known.
    pub fn has_claim(&self) -> bool {
        matches!(self.record.role, RoleKind::Primary | RoleKind::Partial)
    }

    /// Whether the node is alive, and its instance is ready to take over: it is `backup`, and no local finding says that it
    /// cannot, such as a keepalived that does not run.
    pub fn is_ready(&self) -> bool {
        self.is_live() && self.record.role == RoleKind::Backup && self.obstacles().next().is_none()
    }

    /// The local findings that say that the instance cannot take over.
    pub fn obstacles(&self) -> impl Iterator<Item = &str> {
        let names = self.record.findings.iter().map(String::as_str);
        names.filter(|name| {
            let kind = FindingKind::from_name(name);
            kind.is_some_and(|kind| kind.drain() == DrainEffect::CannotTakeOver)
        })
    }

    /// Whether a live backup receives the adverts of a primary, which may be on a node that the cluster does not know.
    pub fn hears_primary(&self) -> bool {
        self.is_live()
            && self.record.role == RoleKind::Backup
            && self.record.adverts == ReceivedAdverts::Other
    }

    /// Whether the node has confirmed its roles after it knew the change with this revision.
    pub fn has_confirmed(&self, revision: i64) -> bool {
        self.seen.is_some_and(|seen| seen >= revision)
    }
}

/// Why it is not clear which instances belong together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ambiguity {
    /// A node has two instances in the group.
    NodeTwice {
        /// The node.
        node: ClusterName,
    },
    /// Another group on other nodes has the same VRID and address: one of them was configured or is a router, the other
    /// follows from the VRID.
    OtherGroup {
        /// The id of the other group.
        id: String,
        /// The common address.
        address: IpAddr,
    },
}

/// The instances on several nodes that share virtual addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The id: `router:UUID`, `group:NAME`, `vrrp:FAMILY:VRID:ADDRESS` or `alone:NODE:INSTANCE`.
    pub id: String,
    /// The bucket of the members.
    pub bucket: Bucket,
    /// The members, in the order of nodes and instances.
    pub members: Vec<GroupMember>,
    /// Why the members may not belong together; empty if it is clear.
    pub ambiguities: Vec<Ambiguity>,
}

impl Group {
    /// The members of live nodes that hold an address.
    pub fn claims(&self) -> impl Iterator<Item = &GroupMember> {
        self.members.iter().filter(|member| member.is_live() && member.has_claim())
    }

    /// The live nodes that hold an address, each once.
    pub fn primaries(&self) -> BTreeSet<&ClusterName> {
        self.claims().map(|member| &member.node).collect()
    }

    /// The virtual addresses of all members, without prefix lengths.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let networks = self.members.iter().flat_map(|member| &member.record.addresses);
        networks.map(ipnet::IpNet::addr).collect()
    }

    /// The claims that are confirmed against another claim, by both nodes. A node that has crashed does not confirm, until
    /// its lease ends and it is no longer live.
    pub fn confirmed_claims(&self) -> Vec<&GroupMember> {
        let is_confirmed = |claim: &&GroupMember| {
            self.claims().filter(|other| other.node != claim.node).any(|other| {
                let newest = claim.mod_revision.max(other.mod_revision);
                claim.has_confirmed(newest) && other.has_confirmed(newest)
            })
        };
        self.claims().filter(is_confirmed).collect()
    }

    /// Whether instances of two nodes are known. Else the primary may be on a node without vipwatch.
    pub(crate) fn has_two_nodes(&self) -> bool {
        self.members.iter().any(|member| member.node != self.members[0].node)
    }

    /// Whether the group has exactly one primary.
    pub fn state(&self) -> GroupState {
        if !self.ambiguities.is_empty() {
            return GroupState::Ambiguous;
        }
        match self.claims().count() {
            0 if self.members.iter().any(GroupMember::hears_primary) => GroupState::Unknown,
            0 if self.has_two_nodes() && self.members.iter().all(is_certainly_not_primary) => {
                GroupState::NoPrimary
            }
            0 => GroupState::Unknown,
            1 => GroupState::OnePrimary,
            _ if self.confirmed_claims().is_empty() => GroupState::Unknown,
            _ => GroupState::TwoPrimaries,
        }
    }
}

/// Whether a live node says that it does not hold an address.
pub(crate) fn is_certainly_not_primary(member: &GroupMember) -> bool {
    member.is_live() && matches!(member.record.role, RoleKind::Backup | RoleKind::Fault)
}

impl ClusterView {
    /// All groups, in the order of their buckets. They are made one after the other.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        let shared = SharedAddresses::of_view(self);
        self.buckets().flat_map(move |bucket| {
            let mut groups = self.groups_of(&bucket);
            for group in &mut groups {
                shared.mark(group);
            }
            groups
        })
    }

    /// The groups of one bucket, in the order of their ids. Groups of other buckets are not looked at, so
    /// [`Ambiguity::OtherGroup`] is missing.
    pub fn groups_of(&self, bucket: &Bucket) -> Vec<Group> {
        let members: Vec<GroupMember> = self.roles(bucket).map(|role| self.member(role)).collect();
        match bucket {
            _ if members.is_empty() => Vec::new(),
            Bucket::Router(_) | Bucket::Configured(_) | Bucket::Alone { .. } => {
                vec![Group::new(bucket.to_string(), bucket, members)]
            }
            Bucket::Vrrp { is_ipv6, .. } => {
                let components = components::connected(members, *is_ipv6).into_iter();
                components.filter_map(|component| group_of_vrid(bucket, component)).collect()
            }
        }
    }

    fn member(&self, role: RoleView) -> GroupMember {
        let RoleView { node, record, mod_revision } = role;
        let view = self.node(&node);
        let state = match &view {
            Some(view) if view.has_present_roles(&record.epoch) => ClusterNodeState::Live,
            Some(view) if view.state == ClusterNodeState::Stopped => ClusterNodeState::Stopped,
            _ => ClusterNodeState::Lost,
        };
        let is_live = state == ClusterNodeState::Live;
        let seen = view.and_then(|view| view.seen()).filter(|_| is_live);
        GroupMember { node, state, seen, record, mod_revision }
    }
}

fn group_of_vrid(bucket: &Bucket, component: components::Component) -> Option<Group> {
    let first = component.members.first()?;
    let id = match component.address {
        Some(address) => format!("{bucket}:{address}"),
        None => format!("alone:{}:{}", first.node, first.record.instance),
    };
    Some(Group::new(id, bucket, component.members))
}

impl Group {
    fn new(id: String, bucket: &Bucket, members: Vec<GroupMember>) -> Self {
        let pairs = members.iter().zip(members.iter().skip(1));
        let mut twice: Vec<ClusterName> = pairs
            .filter(|(one, next)| one.node == next.node)
            .map(|(one, _)| one.node.clone())
            .collect();
        twice.dedup();
        let ambiguities = twice.into_iter().map(|node| Ambiguity::NodeTwice { node }).collect();
        Self { id, bucket: bucket.clone(), members, ambiguities }
    }
}

#[cfg(test)]
mod tests;
