// SPDX-License-Identifier: Apache-2.0
//! Changes addresses over netlink, as fast as keepalived does, and in any order.

use std::os::fd::OwnedFd;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily as SocketFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

/// A netlink socket in one namespace.
#[derive(Debug)]
pub struct AddressEditor {
    socket: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    AddWithProtocol(u8),
    Refresh,
    Remove,
}

impl AddressEditor {
    /// Opens a socket in the namespace of the calling thread.
    pub(crate) fn new() -> Self {
        let socket =
            socket_with(SocketFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
                .expect("open a netlink socket");
        bind(&socket, &SocketAddrNetlink::new(0, 0)).expect("bind a netlink socket");
        Self { socket }
    }

    /// The interface index of the link `name`.
    pub fn link(&self, name: &str) -> u32 {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.request(RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST) {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => link.header.index,
            other => panic!("link {name}: {other:?}"),
        }
    }

    /// Adds `cidr` to `link`; IPv6 without duplicate address detection.
    pub fn add(&self, link: u32, cidr: IpNet) {
        self.change(link, cidr, Change::Add);
    }

    /// As [`Self::add`], with this protocol (`IFA_PROTO`), which `ip` sets from iproute2 6.3 on.
    pub fn add_with_protocol(&self, link: u32, cidr: IpNet, protocol: u8) {
        self.change(link, cidr, Change::AddWithProtocol(protocol));
    }

    /// Replaces `cidr` by itself: the kernel sends a message, and nothing changes.
    pub fn refresh(&self, link: u32, cidr: IpNet) {
        self.change(link, cidr, Change::Refresh);
    }

    /// Removes `cidr` from `link`.
    pub fn remove(&self, link: u32, cidr: IpNet) {
        self.change(link, cidr, Change::Remove);
    }

    fn change(&self, link: u32, cidr: IpNet, change: Change) {
        let mut message = AddressMessage::default();
        message.header.family =
            if cidr.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.prefix_len = cidr.prefix_len();
        message.header.index = link;
        message.attributes.push(AddressAttribute::Local(cidr.addr()));
        message.attributes.push(AddressAttribute::Address(cidr.addr()));
        if cidr.addr().is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        if let Change::AddWithProtocol(protocol) = change {
            message.attributes.push(AddressAttribute::Protocol(protocol.into()));
        }
        let (message, flags) = match change {
            Change::Add | Change::AddWithProtocol(_) => {
                (RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE)
            }
            Change::Refresh => (RouteNetlinkMessage::NewAddress(message), NLM_F_REPLACE),
            Change::Remove => (RouteNetlinkMessage::DelAddress(message), 0),
        };
        match self.request(message, NLM_F_REQUEST | NLM_F_ACK | flags) {
            NetlinkPayload::Error(error) if error.code.is_none() => {}
            other => panic!("{change:?} {cidr} on link {link}: {other:?}"),
        }
    }

    fn request(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> NetlinkPayload<RouteNetlinkMessage> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty()).expect("send to the kernel");
        let mut reply = vec![0; 32 << 10];
        let (_, length) = recv(&self.socket, reply.as_mut_slice(), RecvFlags::empty())
            .expect("receive from the kernel");
        let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply[..length]);
        reply.expect("a valid netlink message").payload
    }
}
