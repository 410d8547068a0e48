//! Which events of a namespace can change the role of an instance there.
//!
//! A hypervisor's own namespace has thousands of links that come and go. The role of an instance depends on
//! the links and addresses that are configured for it, and on no others.

use std::net::IpAddr;

use ipnet::IpNet;
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{LinkIndex, LinkName};
use vipwatch_linux::netns_watcher::LinkEvent;

/// The links and addresses that are watched in one namespace.
#[derive(Debug, Default)]
pub(super) struct Interest {
    links: Box<[LinkName]>,
    /// Sorted.
    addresses: Box<[IpAddr]>,
    /// The links that had these names at the last snapshot; `None` if there is no snapshot, and every event
    /// counts.
    indexes: Option<Box<[LinkIndex]>>,
}

impl Interest {
    /// Takes over what is watched from now on. A link or address that is new is read by a snapshot, as part
    /// of the change of configuration.
    pub(super) fn set_watched<'a>(&mut self, watched: impl Iterator<Item = &'a (LinkName, IpNet)>) {
        let mut links: Vec<LinkName> = Vec::new();
        let mut addresses: Vec<IpAddr> = Vec::new();
        for (link, cidr) in watched {
            if !links.contains(link) {
                links.push(*link);
            }
            addresses.push(cidr.addr());
        }
        addresses.sort_unstable();
        addresses.dedup();
        (self.links, self.addresses) = (links.into(), addresses.into());
    }

    /// The watched links.
    pub(super) fn links(&self) -> &[LinkName] {
        &self.links
    }

    /// Takes over the indexes of the watched links; without a snapshot they are unknown.
    pub(super) fn set_links(&mut self, snapshot: Option<&Snapshot>) {
        let is_watched = |name: &LinkName| self.links.contains(name);
        self.indexes = snapshot.map(|snapshot| {
            let watched = snapshot.links.iter().filter(|facts| is_watched(&facts.name));
            watched.map(|facts| facts.link).collect()
        });
    }

    /// Whether an event about this address matters; `None` is one that could not be read.
    pub(super) fn has_address(&self, ip: Option<IpAddr>) -> bool {
        match (ip, &self.indexes) {
            (Some(ip), Some(_)) => self.addresses.binary_search(&ip).is_ok(),
            _ => true,
        }
    }

    /// Whether an event about this link matters: it has a watched name, or it had one at the last snapshot.
    pub(super) fn has_link(&self, event: Option<LinkEvent>) -> bool {
        match (event, &self.indexes) {
            (Some(LinkEvent { link, name }), Some(indexes)) => {
                indexes.contains(&link) || name.is_none_or(|name| self.links.contains(&name))
            }
            _ => true,
        }
    }
}
