// SPDX-License-Identifier: Apache-2.0
//! The groups of the lab: which nodes can be members of each, and whether it can be ambiguous.

use std::collections::BTreeSet;

use super::conditions::Holds;
use super::facts::RecordedFacts;
use super::facts::periods::during;
use super::published::{Published, SIMULATED_NODE};

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
        let mut groups: Vec<Self> =
            (0..facts.run.setup.instances.len()).map(Self::Instance).collect();
        if facts.hosts.iter().any(|host| !host.grouped.is_empty()) {
            groups.push(Self::Configured);
        }
        if facts.hosts.iter().any(|host| !host.routers.is_empty()) {
            groups.push(Self::Router);
        }
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
                let position =
                    facts.run.setup.instances.iter().position(|facts| facts.vrid == vrid);
                position.map(Self::Instance)
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
    /// Whether a node can be a member of a group at a time, and whether it can be none.
    pub fn membership(&self, node: usize, group: LabGroup, at: Micros) -> BTreeSet<bool> {
        if node == SIMULATED_NODE {
            return BTreeSet::from([group == LabGroup::Instance(0)]);
        }
        let host = &self.facts.hosts[node];
        let since = self.unpublished_since(node, at) - self.times.configuration;
        match group {
            LabGroup::Instance(0) => {
                during(&host.grouped, since, at).into_iter().map(|is_grouped| !is_grouped).collect()
            }
            LabGroup::Instance(_) => BTreeSet::from([true]),
            LabGroup::Configured => during(&host.grouped, since, at),
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
        let is_certain = |value: bool| nodes().any(|values| !values.contains(&!value));
        let is_possible = |value: bool| nodes().any(|values| values.contains(&value));
        match (is_certain(true) && is_certain(false), is_possible(true) && is_possible(false)) {
            (true, _) => Holds::Yes,
            (false, true) => Holds::Maybe,
            (false, false) => Holds::No,
        }
    }

    /// The simulated node has two instances in the group.
    fn node_twice(&self, at: Micros) -> Holds {
        let role = self.times.role;
        let lives = self.facts.simulated.iter().filter(|life| life.is_twice);
        lives
            .map(|life| match at {
                at if at < life.begin || at >= life.gone + role => Holds::No,
                at if at >= life.ready + role && at < life.stop => Holds::Yes,
                _ => Holds::Maybe,
            })
            .max()
            .unwrap_or(Holds::No)
    }
}
