// SPDX-License-Identifier: Apache-2.0
//! The kernel's routes and routing rules of one namespace, and whether they contain those of an instance.
//!
//! Only the fields that both sides know are compared.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::keepalived::{VirtualRoute, VirtualRule};
use crate::{LinkIndex, LinkName, Snapshot};

/// The number of the table `main`, where routes are without a `table`.
pub const MAIN_TABLE: u32 = 254;

/// A gateway or link of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// The gateway; `None` if the destination is on the link.
    pub via: Option<IpAddr>,
    /// The link; `None` if the route has none.
    pub link: Option<LinkIndex>,
}

/// A route of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteFacts {
    /// The destination.
    pub destination: IpNet,
    /// The number of the table.
    pub table: u32,
    /// The metric; 0 if the route has none.
    pub metric: u32,
    /// Its gateways and links; empty for a route that discards packets.
    pub next_hops: Vec<NextHop>,
}

/// A routing rule of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleFacts {
    /// The source; `None` for all.
    pub from: Option<IpNet>,
    /// The destination; `None` for all.
    pub to: Option<IpNet>,
    /// The mark of packets; 0 if the rule has none.
    pub mark: u32,
    /// The number of the table.
    pub table: u32,
    /// The priority.
    pub priority: u32,
}

/// Which routes and rules of a namespace are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingQuestion {
    /// The destinations of the wanted routes.
    pub destinations: BTreeSet<IpNet>,
    /// The tables with the wanted routes; `None` stands for all tables.
    pub tables: BTreeSet<Option<u32>>,
    /// Whether rules are wanted.
    pub wants_rules: bool,
}

impl RoutingQuestion {
    /// Adds the routes and rules of one instance.
    pub fn add(&mut self, routes: &[VirtualRoute], rules: &[VirtualRule]) {
        self.destinations.extend(routes.iter().map(|route| route.destination));
        self.tables.extend(routes.iter().map(|route| route.table));
        self.wants_rules |= !rules.is_empty();
    }

    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty() && !self.wants_rules
    }
}

/// The answer to a [`RoutingQuestion`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingTables {
    /// The routes to the wanted destinations; `None` if they could not be read.
    pub routes: Option<Vec<RouteFacts>>,
    /// All rules for IPv4; `None` if they could not be read, or if the kernel has no routing rules.
    pub rules_v4: Option<Vec<RuleFacts>>,
    /// The same for IPv6.
    pub rules_v6: Option<Vec<RuleFacts>>,
}

impl RoutingTables {
    /// Those of `routes` that the kernel does not have; empty if its routes are not known. `snapshot` has the links.
    pub fn missing_routes(
        &self,
        routes: &[VirtualRoute],
        snapshot: &Snapshot,
    ) -> Vec<VirtualRoute> {
        let Some(known) = &self.routes else { return Vec::new() };
        let is_missing =
            |route: &&VirtualRoute| !known.iter().any(|facts| facts.matches(route, snapshot));
        routes.iter().filter(is_missing).copied().collect()
    }

    /// Those of `rules` that the kernel does not have; empty if its rules are not known.
    pub fn missing_rules(&self, rules: &[VirtualRule]) -> Vec<VirtualRule> {
        let is_missing = |rule: &&VirtualRule| {
            let known = if rule.is_ipv6 { &self.rules_v6 } else { &self.rules_v4 };
            known.as_ref().is_some_and(|known| !known.iter().any(|facts| facts.matches(rule)))
        };
        rules.iter().filter(is_missing).copied().collect()
    }
}

impl RouteFacts {
    fn matches(&self, route: &VirtualRoute, snapshot: &Snapshot) -> bool {
        self.destination == route.destination
            && route.table.is_none_or(|table| table == self.table)
            && route.metric.is_none_or(|metric| metric == self.metric)
            && self.has_next_hop(route, snapshot)
    }

    fn has_next_hop(&self, route: &VirtualRoute, snapshot: &Snapshot) -> bool {
        // A name that no link has may be an alternative name of a link.
        let link = route.dev.and_then(|dev| index_of(snapshot, dev));
        if route.via.is_none() && link.is_none() {
            return true;
        }
        self.next_hops.iter().any(|hop| {
            route.via.is_none_or(|via| hop.via == Some(via))
                && link.is_none_or(|link| hop.link == Some(link))
        })
    }
}

fn index_of(snapshot: &Snapshot, name: LinkName) -> Option<LinkIndex> {
    snapshot.links.iter().find(|link| link.name == name).map(|link| link.link)
}

impl RuleFacts {
    fn matches(&self, rule: &VirtualRule) -> bool {
        rule.from.is_none_or(|from| self.from == Some(from))
            && rule.to.is_none_or(|to| self.to == Some(to))
            && rule.mark.is_none_or(|mark| self.mark == mark)
            && rule.table.is_none_or(|table| self.table == table)
            && rule.priority.is_none_or(|priority| self.priority == priority)
    }
}

#[cfg(test)]
mod tests;
