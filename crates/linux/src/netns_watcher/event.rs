// SPDX-License-Identifier: Apache-2.0
//! What a [`NetnsWatcher`](super::NetnsWatcher) reports, and how it is decoded from netlink messages.

use std::net::IpAddr;

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
    /// The netlink port of the socket that changed the address; 0 if the kernel itself or an `ioctl` did.
    pub port: u32,
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
    let port = header.port;
    match address_facts(body) {
        Ok(facts) => facts.map(|facts| {
            NetnsEvent::Address(netns, AddressEvent { ip: Some(facts.target.ip), port })
        }),
        Err(_) => Some(NetnsEvent::Address(netns, AddressEvent { ip: None, port })),
    }
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
