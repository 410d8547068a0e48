// SPDX-License-Identifier: Apache-2.0
//! Why a namespace must be read, and which processes have changed its addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use vipwatch_core::{LinkName, Moment, Trigger};
use vipwatch_linux::netns_watcher::AddressEvent;

/// A namespace that must be read.
#[derive(Debug, Clone)]
pub(super) struct PendingRead {
    pub(super) trigger: Trigger,
    /// Whether events were lost. An event that follows changes only the trigger.
    pub(super) is_resync: bool,
    /// When a difference that the audit has found counts, if no event explains it; `None` if it has found none yet.
    settles_at: Option<Moment>,
    /// The netlink port of the first change of each address, in order. Only watched addresses are here, so their number is limited.
    ports: Vec<(IpAddr, u32)>,
}

impl PendingRead {
    pub(super) fn new(trigger: Trigger) -> Self {
        let is_resync = trigger == Trigger::Resync;
        Self { trigger, is_resync, settles_at: None, ports: Vec::new() }
    }

    /// The same read, after the audit has found a difference.
    pub(super) fn settling(self, at: Moment) -> Self {
        Self { settles_at: Some(at), ..self }
    }

    /// Whether a difference must wait for an event that explains it.
    pub(super) fn must_settle(&self) -> bool {
        self.trigger == Trigger::Audit && self.settles_at.is_none()
    }

    /// When the namespace may be read, as far as a difference of the audit waits. An event ends the wait.
    pub(super) fn settles_at(&self) -> Option<Moment> {
        self.settles_at.filter(|_| self.trigger == Trigger::Audit)
    }

    /// After an event about an address.
    pub(super) fn of_address(event: AddressEvent) -> Self {
        let port = event.ip.map(|ip| (ip, event.port));
        Self { ports: port.into_iter().collect(), ..Self::new(Trigger::Address) }
    }

    /// Gives an event of the kernel itself the port of the process that changed the address before, which `last` has; and
    /// adds the ports of other events to `last`.
    pub(super) fn resolve_ports(&mut self, last: &mut Vec<(IpAddr, u32)>) {
        for (ip, port) in &mut self.ports {
            match last.iter_mut().find(|(known, _)| known == ip) {
                Some((_, known)) if *port == 0 => *port = *known,
                Some((_, known)) => *known = *port,
                None if *port != 0 => last.push((*ip, *port)),
                None => {}
            }
        }
        self.ports.retain(|(_, port)| *port != 0);
    }

    /// Adds another event. An address explains more than the link that came with it: [`Trigger`] has that order.
    pub(super) fn join(&mut self, other: &Self) {
        self.trigger = self.trigger.min(other.trigger);
        self.is_resync |= other.is_resync;
        for (ip, port) in &other.ports {
            if self.ports.iter().all(|(known, _)| known != ip) {
                self.ports.push((*ip, *port));
            }
        }
    }

    /// The port of the process that changed the first of these addresses; `None` if no process did. Changes by other
    /// processes are reactions to the first one.
    pub(super) fn port_of(&self, watched: &[(LinkName, IpNet)]) -> Option<u32> {
        let is_watched = |ip: &IpAddr| watched.iter().any(|(_, cidr)| cidr.addr() == *ip);
        let first = self.ports.iter().find(|(ip, _)| is_watched(ip));
        first.map(|(_, port)| *port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_that_of_the_first_change_of_the_addresses_of_the_instance() {
        let mut last = Vec::new();
        let mut event = |ip: &str, port| {
            let ip = Some(ip.parse().unwrap());
            let mut read = PendingRead::of_address(AddressEvent { ip, port });
            read.resolve_ports(&mut last);
            read
        };
        let link: LinkName = "eth0".parse().unwrap();
        let watched = |cidrs: &[&str]| -> Vec<(LinkName, IpNet)> {
            cidrs.iter().map(|cidr| (link, cidr.parse().unwrap())).collect()
        };
        let mut read = PendingRead::new(Trigger::Link);
        read.join(&event("192.0.2.1", 7));
        read.join(&event("192.0.2.1", 8));
        // The kernel reports the end of duplicate address detection without a port.
        read.join(&event("192.0.2.1", 0));
        read.join(&event("192.0.2.2", 9));
        assert_eq!(read.trigger, Trigger::Address);
        assert_eq!(read.port_of(&watched(&["192.0.2.1/32"])), Some(7));
        assert_eq!(read.port_of(&watched(&["192.0.2.2/24"])), Some(9));
        assert_eq!(read.port_of(&watched(&["192.0.2.2/32", "192.0.2.1/32"])), Some(7), "the first");
        assert_eq!(read.port_of(&watched(&["192.0.2.3/32"])), None);
        // A later event of the kernel itself belongs to the last change by a process.
        let read = event("192.0.2.1", 0);
        assert_eq!(read.port_of(&watched(&["192.0.2.1/32"])), Some(8));
        let read = event("192.0.2.4", 0);
        assert_eq!(read.port_of(&watched(&["192.0.2.4/32"])), None);
    }
}
