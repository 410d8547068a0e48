// SPDX-License-Identifier: Apache-2.0
//! Which events of a namespace can change the role of an instance there.
//!
//! A hypervisor's own namespace has thousands of links, and they are created and deleted all the time. The role
//! of an instance depends only on the links and addresses that are configured for it.

use std::net::IpAddr;

use vipwatch_core::snapshot::{LinkState, Snapshot};
use vipwatch_core::{LinkIndex, LinkName};
use vipwatch_linux::netns_watcher::LinkEvent;

use super::netns_entry::FollowedInstance;

/// The links and addresses that are watched in one namespace.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// Those of the addresses, those below a VMAC, and those of the adverts.
    links: Box<[LinkName]>,
    /// Sorted, for the binary search.
    addresses: Box<[IpAddr]>,
    /// These links in the last snapshot; `None` without a snapshot, and then every event counts.
    found: Option<Box<[(LinkIndex, LinkState)]>>,
    /// Whether the last snapshot could not be read.
    is_unread: bool,
}

impl Interest {
    /// Replaces the watched links and addresses. The caller takes a snapshot when one of them is new.
    pub(super) fn set_watched<'a>(&mut self, members: impl Iterator<Item = &'a FollowedInstance>) {
        let mut links: Vec<LinkName> = Vec::new();
        let mut addresses: Vec<IpAddr> = Vec::new();
        for member in members {
            let of_addresses = member.watched.iter().map(|(link, _)| *link);
            let others = member.instance.required_links().chain(member.instance.vrrp.interface);
            for link in of_addresses.chain(others) {
                if !links.contains(&link) {
                    links.push(link);
                }
            }
            addresses.extend(member.watched.iter().map(|(_, cidr)| cidr.addr()));
        }
        addresses.sort_unstable();
        addresses.dedup();
        (self.links, self.addresses) = (links.into(), addresses.into());
    }

    /// The watched links.
    pub(super) fn links(&self) -> &[LinkName] {
        &self.links
    }

    /// Remembers the watched links; `None` if the namespace could not be read. Returns whether they may be others than in the
    /// last snapshot, or may have another state.
    pub(super) fn set_links(&mut self, snapshot: Option<&Snapshot>) -> bool {
        let is_watched = |name: &LinkName| self.links.contains(name);
        let found = snapshot.map(|snapshot| {
            let watched = snapshot.links.iter().filter(|facts| is_watched(&facts.name));
            watched.map(|facts| (facts.link, facts.state)).collect()
        });
        let was_unread = std::mem::replace(&mut self.is_unread, found.is_none());
        let before = std::mem::replace(&mut self.found, found);
        was_unread || before.is_some() && before != self.found
    }

    /// Whether an event about this address matters; `None`: the address of the event could not be decoded.
    pub(super) fn has_address(&self, ip: Option<IpAddr>) -> bool {
        match (ip, &self.found) {
            (Some(ip), Some(_)) => self.addresses.binary_search(&ip).is_ok(),
            _ => true,
        }
    }

    /// Whether an event about this link matters: the link has a watched name, or had one in the last snapshot.
    /// `None`: the link of the event could not be decoded.
    pub(super) fn has_link(&self, event: Option<LinkEvent>) -> bool {
        match (event, &self.found) {
            (Some(LinkEvent { link, name }), Some(found)) => {
                found.iter().any(|(known, _)| *known == link)
                    || name.is_none_or(|name| self.links.contains(&name))
            }
            _ => true,
        }
    }
}
