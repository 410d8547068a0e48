// SPDX-License-Identifier: Apache-2.0
//! Why a namespace must be read, and which processes have changed its addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use vipwatch_core::{LinkName, Moment, Trigger};
use vipwatch_linux::netns_watcher::{AddressEvent, ChangerMark};

/// A namespace that must be read.
#[derive(Debug, Clone)]
pub(super) struct PendingRead {
    pub(super) trigger: Trigger,
    /// Whether events were lost. An event that follows changes only the trigger.
    pub(super) is_resync: bool,
    /// When a difference that the audit has found counts, if no event explains it; `None` if it has found none yet.
    settles_at: Option<Moment>,
    /// The process of the first change of each address, in order. Only watched addresses are here, so their number is limited.
    changers: Vec<(IpAddr, Option<ChangerMark>)>,
}

impl PendingRead {
    pub(super) fn new(trigger: Trigger) -> Self {
        let is_resync = trigger == Trigger::Resync;
        Self { trigger, is_resync, settles_at: None, changers: Vec::new() }
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
        let changer = event.ip.map(|ip| (ip, event.changer));
        Self { changers: changer.into_iter().collect(), ..Self::new(Trigger::Address) }
    }

    /// Gives an event of the kernel itself the port of the process that changed the address before, which `last` has; and
    /// adds the ports of other events to `last`.
    pub(super) fn resolve_changers(&mut self, last: &mut Vec<(IpAddr, u32)>) {
        for (ip, changer) in &mut self.changers {
            match (last.iter_mut().find(|(known, _)| known == ip), &changer) {
                (Some((_, known)), Some(ChangerMark::Port(port))) => *known = *port,
                (None, Some(ChangerMark::Port(port))) => last.push((*ip, *port)),
                (Some((_, known)), None) => *changer = Some(ChangerMark::Port(*known)),
                // The address may be removed by another process than the one that added it.
                (_, Some(ChangerMark::Protocol(_))) | (None, None) => {}
            }
        }
        self.changers.retain(|(_, changer)| changer.is_some());
    }

    /// Adds another event. An address explains more than the link that came with it: [`Trigger`] has that order.
    pub(super) fn join(&mut self, other: &Self) {
        self.trigger = self.trigger.min(other.trigger);
        self.is_resync |= other.is_resync;
        for (ip, changer) in &other.changers {
            if self.changers.iter().all(|(known, _)| known != ip) {
                self.changers.push((*ip, *changer));
            }
        }
    }

    /// The process that changed the first of these addresses; `None` if it is not known. Changes by other processes are
    /// reactions to the first one.
    pub(super) fn changer_of(&self, watched: &[(LinkName, IpNet)]) -> Option<ChangerMark> {
        let is_watched = |ip: &IpAddr| watched.iter().any(|(_, cidr)| cidr.addr() == *ip);
        let first = self.changers.iter().find(|(ip, _)| is_watched(ip));
        first.and_then(|(_, changer)| *changer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port_of(read: &PendingRead, watched: &[(LinkName, IpNet)]) -> Option<u32> {
        read.changer_of(watched).map(|changer| match changer {
            ChangerMark::Port(port) => port,
            ChangerMark::Protocol(_) => panic!("{changer:?}"),
        })
    }

    #[test]
    fn the_process_that_added_an_ipv6_address_is_not_the_one_that_removes_it() {
        let mut last = Vec::new();
        let link: LinkName = "eth0".parse().unwrap();
        let watched: [(LinkName, IpNet); 1] = [(link, "2001:db8::1/64".parse().unwrap())];
        let mut event = |changer| {
            let ip = Some(watched[0].1.addr());
            let mut read = PendingRead::of_address(AddressEvent { ip, changer });
            read.resolve_changers(&mut last);
            read.changer_of(&watched)
        };
        let keepalived = Some(ChangerMark::Protocol(0x12));
        assert_eq!(event(keepalived), keepalived);
        assert_eq!(event(None), None, "the removal");
    }

    #[test]
    fn the_port_is_that_of_the_first_change_of_the_addresses_of_the_instance() {
        let mut last = Vec::new();
        let mut event = |ip: &str, port| {
            let ip = Some(ip.parse().unwrap());
            let changer = Some(port).filter(|port| *port != 0).map(ChangerMark::Port);
            let mut read = PendingRead::of_address(AddressEvent { ip, changer });
            read.resolve_changers(&mut last);
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
        assert_eq!(port_of(&read, &watched(&["192.0.2.1/32"])), Some(7));
        assert_eq!(port_of(&read, &watched(&["192.0.2.2/24"])), Some(9));
        assert_eq!(
            port_of(&read, &watched(&["192.0.2.2/32", "192.0.2.1/32"])),
            Some(7),
            "the first"
        );
        assert_eq!(port_of(&read, &watched(&["192.0.2.3/32"])), None);
        // A later event of the kernel itself belongs to the last change by a process.
        let read = event("192.0.2.1", 0);
        assert_eq!(port_of(&read, &watched(&["192.0.2.1/32"])), Some(8));
        let read = event("192.0.2.4", 0);
        assert_eq!(port_of(&read, &watched(&["192.0.2.4/32"])), None);
    }
}
