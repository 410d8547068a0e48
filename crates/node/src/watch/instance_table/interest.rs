// SPDX-License-Identifier: Apache-2.0
//! Which events of a namespace can change the role of an instance there.
//!
//! A hypervisor's own namespace has thousands of links, and they are created and deleted all the time. The role
//! of an instance depends only on the links and addresses that are configured for it.

use std::net::IpAddr;

use ipnet::IpNet;
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{LinkIndex, LinkName};
use vipwatch_linux::netns_watcher::LinkEvent;

/// The links and addresses that are watched in one namespace.
#[derive(Debug, Default)]
pub(super) struct Interest {
    links: Box<[LinkName]>,
    /// Sorted, for the binary search.
    addresses: Box<[IpAddr]>,
    /// The indexes of these links in the last snapshot; `None` without a snapshot, and then every event counts.
    indexes: Option<Box<[LinkIndex]>>,
}

impl Interest {
    /// Replaces the watched links and addresses. The caller takes a snapshot when one of them is new.
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

    /// Remembers the indexes of the watched links; `None` if the namespace could not be read.
    pub(super) fn set_links(&mut self, snapshot: Option<&Snapshot>) {
        let is_watched = |name: &LinkName| self.links.contains(name);
        self.indexes = snapshot.map(|snapshot| {
            let watched = snapshot.links.iter().filter(|facts| is_watched(&facts.name));
            watched.map(|facts| facts.link).collect()
        });
    }

    /// Whether an event about this address matters; `None`: the address of the event could not be decoded.
    pub(super) fn has_address(&self, ip: Option<IpAddr>) -> bool {
        match (ip, &self.indexes) {
            (Some(ip), Some(_)) => self.addresses.binary_search(&ip).is_ok(),
            _ => true,
        }
    }

    /// Whether an event about this link matters: the link has a watched name, or had one in the last snapshot.
    /// `None`: the link of the event could not be decoded.
    pub(super) fn has_link(&self, event: Option<LinkEvent>) -> bool {
        match (event, &self.indexes) {
            (Some(LinkEvent { link, name }), Some(indexes)) => {
                indexes.contains(&link) || name.is_none_or(|name| self.links.contains(&name))
            }
            _ => true,
        }
    }
}
