// SPDX-License-Identifier: Apache-2.0
//! Neutron's answer about a router, and its comparison with a group of the view. Pure: the node asks Neutron.
//!
//! A host of Neutron and a node are the same machine if their names are equal. A short name and a name with a domain are not
//! equal: two machines may share the short name.

use strum::{Display, EnumString};
use vipwatch_api::{GroupState, RoleKind};

use crate::group::{Group, GroupMember};
use crate::key::Bucket;

/// The state of a router on one host, `ha_state` in Neutron's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub enum HaState {
    /// The host has the addresses.
    Active,
    /// The host is ready to take over.
    Standby,
    /// Neutron does not know it: the agents of all hosts of the router are dead.
    Unknown,
}

/// A host on which Neutron has placed a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeutronHost {
    /// The name of the host, as its agent reports it.
    pub host: String,
    /// The state of the router on it.
    pub state: HaState,
}

/// Neutron's answer about one router. Without hosts, Neutron has no HA router with this id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NeutronAnswer {
    /// The active hosts first, then in the order of their names.
    hosts: Vec<NeutronHost>,
}

impl NeutronAnswer {
    /// An answer with these hosts, in any order.
    pub fn new(mut hosts: Vec<NeutronHost>) -> Self {
        hosts.sort_by(|one, other| (one.state, &one.host).cmp(&(other.state, &other.host)));
        hosts.shrink_to_fit();
        Self { hosts }
    }

    /// The hosts, the active ones first.
    pub fn hosts(&self) -> &[NeutronHost] {
        &self.hosts
    }

    /// The names of the active hosts, in order.
    pub fn active(&self) -> Vec<&str> {
        let active = self.hosts.iter().filter(|host| host.state == HaState::Active);
        active.map(|host| host.host.as_str()).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.hosts.iter().any(|host| host.host == name)
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeutronComparison {
    /// Neutron has the primary as its only active host.
    Equal,
    /// Neutron has another active host, several or none.
    Different,
    /// Neutron does not know the primary, and the group does not know an active host: the names may differ.
    Unmatched,
    /// The group has not exactly one primary, or Neutron has no HA router with this id.
    NotCompared,
}

/// Compares a group with Neutron's answer about its router.
pub fn compare(group: &Group, answer: &NeutronAnswer) -> NeutronComparison {
    let Some(primary) = only_primary(group).filter(|_| !answer.hosts.is_empty()) else {
        return NeutronComparison::NotCompared;
    };
    let (primary, active) = (primary.node.as_str(), answer.active());
    let is_member = |host: &&str| group.members.iter().any(|one| one.node.as_str() == *host);
    if active == [primary] {
        NeutronComparison::Equal
    } else if answer.has(primary) || active.iter().any(is_member) {
        NeutronComparison::Different
    } else {
        NeutronComparison::Unmatched
    }
}

/// The only member of a router that claims its addresses. A member that holds a part of them is left out: its agent keeps the
/// state that it had.
fn only_primary(group: &Group) -> Option<&GroupMember> {
    let is_router = matches!(group.bucket, Bucket::Router(_));
    let is_comparable = is_router && group.state() == GroupState::OnePrimary;
    let mut claims = group.claims().filter(|_| is_comparable);
    claims.next().filter(|claim| claim.record.role == RoleKind::Primary)
}

#[cfg(test)]
mod tests;
