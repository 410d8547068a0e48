// SPDX-License-Identifier: Apache-2.0
//! The groups of the lab: which nodes can be members of each, and whether it can be ambiguous; the states of the router and
//! of the simulated node.

use std::collections::BTreeSet;

use super::facts::{RecordedFacts, SILENCE_PUBLISHED, SimulatedLife};
use super::published::{Presence, Published, SIMULATED_NODE};
use crate::check::periods::{ActPeriod, Holds, during};
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

    /// The roles of a host's router.
    pub(super) fn router_roles(&self, node: usize, at: Micros) -> BTreeSet<&'static str> {
        let host = &self.facts.hosts[node];
        let since = self.unpublished_since(node, at) - self.times.role;
        let role = |is_released: &bool| if *is_released { "backup" } else { "primary" };
        let released = during(&host.released, since, at);
        let mut roles: BTreeSet<&'static str> = released.values().iter().map(role).collect();
        // The namespace is removed before the files: meanwhile the router cannot become primary.
        let is_removed =
            |router: &ActPeriod| router.heal <= at && at < router.to + self.times.configuration;
        roles.extend(host.routers.iter().any(is_removed).then_some("fault"));
        roles
    }

    /// Whether the node publishes that its router receives no adverts: there are none from its creation on.
    pub(super) fn router_silence(&self, node: usize, at: Micros) -> Holds {
        let mut routers = self.facts.hosts[node].routers.iter();
        let is_silent =
            routers.any(|router| router.done + self.router_known() <= at && at < router.heal);
        if self.has_published(node, at) && is_silent { Holds::Yes } else { Holds::Maybe }
    }

    /// The time after which a node has published that a new router receives no adverts.
    pub(super) fn router_known(&self) -> Micros {
        self.times.configuration + 4 * self.facts.run.interval() + SILENCE_PUBLISHED
    }

    /// The last life of the simulated node that has begun.
    pub(super) fn simulated_life(&self, at: Micros) -> Option<&SimulatedLife> {
        self.facts.simulated.iter().rev().find(|life| life.begin <= at)
    }

    pub(super) fn simulated_roles(&self, at: Micros) -> BTreeSet<&'static str> {
        BTreeSet::from([self.simulated_life(at).map_or("backup", |life| life.role)])
    }

    pub(super) fn simulated_presence(
        &self,
        life: &SimulatedLife,
        at: Micros,
    ) -> BTreeSet<Presence> {
        if at >= life.gone + self.times.role {
            return BTreeSet::from([Presence::Absent]);
        }
        let silent = life.silent.filter(|silent| *silent <= at);
        let mut possible = silent.map_or(BTreeSet::from([Presence::Live]), |silent| {
            self.expiring(silent, at.min(life.stop))
        });
        if at < life.ready + self.times.role {
            // The records come one after the other: a member without a live record is a lost node.
            possible.extend([Presence::Absent, Presence::Lost]);
        }
        if at >= life.stop {
            possible.extend([Presence::Stopped, Presence::Absent]);
        }
        possible
    }
}
