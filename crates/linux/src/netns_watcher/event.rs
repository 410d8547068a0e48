// SPDX-License-Identifier: Apache-2.0
//! What a [`NetnsWatcher`](super::NetnsWatcher) reports, and how it is decoded from netlink messages.

use std::net::IpAddr;

use vipwatch_core::snapshot::AddressFacts;
use vipwatch_core::{LinkIndex, LinkName};

use crate::netlink::decode::facts::address_facts;
use crate::netlink::decode::{Header, attribute, u32_at};
use crate::netns_query::NetnsRef;
use crate::netns_query::request::LINK_HEADER_BYTES;

/// The link that a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEvent {
    /// Its kernel index.
    pub link: LinkIndex,
    /// Its current name; `None` if the message contains none.
    pub name: Option<LinkName>,
}

/// The address that a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressEvent {
    /// The address; `None` if the message could not be decoded.
    pub ip: Option<IpAddr>,
    /// What the kernel says about the process that changed the address; `None` if it says nothing.
    pub changer: Option<ChangerMark>,
}

/// A mark of the process that changed an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangerMark {
    /// The netlink port of its socket. The kernel has none for IPv6, for an `ioctl`, and if it has changed the address itself.
    Port(u32),
    /// The process that added the address has given it this protocol (`IFA_PROTO`). An address that is removed has no such mark.
    Protocol(u8),
}

/// A change in one namespace. It contains where something changed, not the new state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetnsEvent {
    /// An address was added, removed or changed.
    Address(NetnsRef, AddressEvent),
    /// A link was added, removed or changed; `None` if the message could not be decoded.
    Link(NetnsRef, Option<LinkEvent>),
    /// The id of a namespace was removed, usually because the namespace was.
    Gone(NetnsRef),
    /// Events were lost: all namespaces must be read again.
    Lost,
}

/// The event in an `RTM_NEWADDR` or `RTM_DELADDR`; `None` if the address is not an IP address.
pub(super) fn address_event(netns: NetnsRef, header: Header, body: &[u8]) -> Option<NetnsEvent> {
    let port = Some(header.port).filter(|port| *port != 0).map(ChangerMark::Port);
    let protocol = |facts: AddressFacts| {
        let is_mark = header.kind == libc::RTM_NEWADDR && facts.protocol != 0;
        is_mark.then_some(ChangerMark::Protocol(facts.protocol))
    };
    let event = match address_facts(body) {
        Ok(facts) => facts.map(|facts| AddressEvent {
            ip: Some(facts.target.ip),
            changer: port.or_else(|| protocol(facts)),
        }),
        Err(_) => Some(AddressEvent { ip: None, changer: port }),
    };
    event.map(|event| NetnsEvent::Address(netns, event))
}

/// The event in the body of an `RTM_NEWLINK` or `RTM_DELLINK`; `None` if the message is about a bridge port or about
/// IPv6 settings, which use the same message types.
pub(super) fn link_event(netns: NetnsRef, body: &[u8]) -> Option<NetnsEvent> {
    let Some(attributes) = body.get(LINK_HEADER_BYTES..) else {
        return Some(NetnsEvent::Link(netns, None));
    };
    if i32::from(body[0]) != libc::AF_UNSPEC {
        return None;
    }
    let name = attribute(attributes, libc::IFLA_IFNAME)
        .and_then(|name| LinkName::from_kernel(name.strip_suffix(&[0]).unwrap_or(name)));
    let event = u32_at(body, 4).map(|index| LinkEvent { link: LinkIndex(index), name });
    Some(NetnsEvent::Link(netns, event))
}
