// SPDX-License-Identifier: Apache-2.0
//! The kernel's facts about the links and addresses of one namespace.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{LinkIndex, LinkName, Usability};

/// One address on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkAddress {
    /// The index of the link.
    pub link: LinkIndex,
    /// The address, without its prefix length.
    pub ip: IpAddr,
}

/// An Ethernet (MAC) address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The destination of frames to an IP multicast group (RFC 1112 section 6.4, RFC 2464 section 7).
    pub fn of_group(group: IpAddr) -> Self {
        match group {
            IpAddr::V4(group) => {
                let [_, b, c, d] = group.octets();
                Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            IpAddr::V6(group) => {
                let [.., a, b, c, d] = group.octets();
                Self([0x33, 0x33, a, b, c, d])
            }
        }
    }

    /// Whether one station can have the address: it is neither zero nor a multicast address.
    pub fn is_station(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Whether a link can carry packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Administratively down.
    Down,
    /// Administratively up, without a carrier.
    NoCarrier,
    /// Administratively up, with a carrier.
    Working,
}

/// The kernel's facts about one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFacts {
    /// The index of the link.
    pub link: LinkIndex,
    /// The current name of the link.
    pub name: LinkName,
    /// The Ethernet address; `None` if the link has none or does no address resolution (`NOARP`).
    pub mac: Option<Mac>,
    /// Whether the link can carry packets.
    pub state: LinkState,
    /// Whether the link is a loopback link.
    pub is_loopback: bool,
    /// Whether the link is one of the kind `dummy`, which carries no packets.
    pub is_dummy: bool,
    /// Whether IPv6 forwarding is on; the router flag of advertisements follows it (RFC 4861 §7.2.5).
    pub is_router: bool,
}

/// The kernel's facts about one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressFacts {
    /// The address and its link.
    pub target: LinkAddress,
    /// The prefix length.
    pub prefix: u8,
    /// Whether IPv6 duplicate address detection has not ended.
    pub is_tentative: bool,
    /// Whether IPv6 duplicate address detection found another host with the address.
    pub is_duplicate: bool,
    /// The kind of program that added the address (`IFA_PROTO`); 0 if the program or the kernel does not say.
    pub protocol: u8,
}

/// The [`AddressFacts::protocol`] of keepalived, from version 2.3.2 on.
pub const KEEPALIVED_PROTOCOL: u8 = 0x12;

impl AddressFacts {
    /// The address with its prefix length; `None` if the prefix length is too large for the address family.
    pub fn cidr(&self) -> Option<IpNet> {
        IpNet::new(self.target.ip, self.prefix).ok()
    }

    /// Whether the address is in use: duplicate address detection has ended and found no other holder.
    pub fn usability(&self) -> Usability {
        if self.is_tentative || self.is_duplicate {
            Usability::NotUsable
        } else {
            Usability::Usable
        }
    }
}

/// All links and addresses of one namespace at one moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// All links, in the order in which the kernel lists them.
    pub links: Vec<LinkFacts>,
    /// All addresses; sorted by `target` after [`Self::sort_addresses`].
    pub addresses: Vec<AddressFacts>,
}

impl Snapshot {
    /// Sorts the addresses, so that [`Self::address`] finds one of thousands by binary search.
    pub fn sort_addresses(&mut self) {
        self.addresses.sort_unstable_by_key(|address| address.target);
    }

    /// The link with this index; `None` if it does not exist.
    pub fn link(&self, link: LinkIndex) -> Option<&LinkFacts> {
        self.links.iter().find(|facts| facts.link == link)
    }

    /// The facts about `target`; `None` if the link does not hold the address.
    ///
    /// ORDER: only after [`Self::sort_addresses`].
    pub fn address(&self, target: LinkAddress) -> Option<&AddressFacts> {
        let index = self.addresses.binary_search_by_key(&target, |address| address.target).ok()?;
        self.addresses.get(index)
    }
}
