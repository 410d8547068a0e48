// SPDX-License-Identifier: Apache-2.0
//! The groups of the lab: which nodes can be members of each, and whether it can be ambiguous.

use super::facts::RecordedFacts;
use super::published::{Published, SIMULATED_NODE};
use crate::check::periods::{Holds, during};
use crate::moment::Micros;
use crate::setup::{GROUP, HOSTS, ROUTER};

/// A group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabGroup {
    /// The instances of keepalived with this number, without a configured group.
    Instance(usize),
    /// The first instance on the hosts that have it in a configured group.
    Configured,
    /// The router of the injector.
    Router,
}

impl LabGroup {
    /// All groups that the run can have.
    pub fn all(facts: &RecordedFacts) -> Vec<Self> {
        let instances = facts.run.setup.instances.len();
        let mut groups: Vec<Self> = (0..instances).map(Self::Instance).collect();
        let has_group = facts.hosts.iter().any(|host| !host.grouped.is_empty());
        let has_router = facts.hosts.iter().any(|host| !host.routers.is_empty());
        groups.extend(has_group.then_some(Self::Configured));
        groups.extend(has_router.then_some(Self::Router));
        groups
    }

    /// The group with this id: `vrrp:FAMILY:VRID:ADDRESS`, `group:NAME` or `router:UUID`; `None` if the lab has none.
    pub fn of_id(id: &str, facts: &RecordedFacts) -> Option<Self> {
        let mut words = id.split(':');
        match (words.next()?, words.next()?) {
            ("group", GROUP) => Some(Self::Configured),
            ("router", ROUTER) => Some(Self::Router),
            ("vrrp", _) => {
                let vrid: u8 = words.next()?.parse().ok()?;
                let mut instances = facts.run.setup.instances.iter();
                instances.position(|facts| facts.vrid == vrid).map(Self::Instance)
            }
            _ => None,
        }
    }

    /// The name for messages.
    pub fn text(self, facts: &RecordedFacts) -> String {
        match self {
            Self::Instance(instance) => facts.run.setup.instances[instance].name.clone(),
            Self::Configured => format!("group {GROUP}"),
            Self::Router => format!("router {ROUTER}"),
        }
    }

    /// The number of the instance; `None` for the router.
    pub fn instance(self) -> Option<usize> {
        match self {
            Self::Instance(instance) => Some(instance),
            Self::Configured => Some(0),
            Self::Router => None,
        }
    }
}

impl Published<'_> {
    /// Whether a node is a member of a group at a time.
    pub fn membership(&self, node: usize, group: LabGroup, at: Micros) -> Holds {
        if node == SIMULATED_NODE {
            return Holds::of([group == LabGroup::Instance(0)]);
        }
        let host = &self.facts.hosts[node];
        let since = self.unpublished_since(node, at) - self.times.configuration;
        let grouped = during(&host.grouped, since, at);
        match group {
            LabGroup::Instance(0) => Holds::of(grouped.values().iter().map(|value| !value)),
            LabGroup::Instance(_) => Holds::Yes,
            LabGroup::Configured => grouped,
            LabGroup::Router => during(&host.routers, since, at),
        }
    }

    /// Whether it is not clear which instances belong to a group.
    pub fn ambiguity(&self, group: LabGroup, at: Micros) -> Holds {
        match group {
            LabGroup::Instance(0) => self.shared_address(at).max(self.node_twice(at)),
            LabGroup::Configured => self.shared_address(at),
            LabGroup::Instance(_) | LabGroup::Router => Holds::No,
        }
    }

    /// Some nodes have the first instance in a configured group, and other nodes have it in none.
    fn shared_address(&self, at: Micros) -> Holds {
        let nodes = || (0..HOSTS).map(|node| self.membership(node, LabGroup::Configured, at));
        let is_certain =
            nodes().any(|holds| holds == Holds::Yes) && nodes().any(|holds| holds == Holds::No);
        let is_possible =
            nodes().any(|holds| holds.can_be(true)) && nodes().any(|holds| holds.can_be(false));
        Holds::of([is_certain, is_possible])
    }

    /// The simulated node has two instances in the group.
    fn node_twice(&self, at: Micros) -> Holds {
        let role = self.times.role;
        let lives = self.facts.simulated.iter().filter(|life| life.is_twice);
        let holds = lives.map(|life| {
            let is_possible = life.begin <= at && at < life.gone + role;
            let is_certain = life.ready + role <= at && at < life.stop;
            Holds::of([is_possible, is_certain])
        });
        holds.max().unwrap_or(Holds::No)
    }
}
