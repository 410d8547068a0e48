// SPDX-License-Identifier: Apache-2.0
//! Records the changes of one address, independently of the code under test: own socket, other codec, own rules.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use ipnet::IpNet;
use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with, sockopt,
};

use crate::TestNetns;

/// Records each addition and removal of an address on the link with a given name.
#[derive(Debug)]
pub struct AddressRecorder {
    socket: OwnedFd,
    name: String,
    /// Index of the link that has the name now; `None` if no link has it.
    link: Option<u32>,
    vip: IpNet,
    /// Indexes of the links that have the address, whatever their name is.
    holders: HashSet<u32>,
    is_held: bool,
    /// Every change, in order: true if the address was added.
    pub changes: Vec<bool>,
}

impl AddressRecorder {
    /// Starts to record `vip` on the link `name`, which exists and does not have the address yet.
    pub fn start(netns: &TestNetns, name: &str, vip: IpNet) -> Self {
        let socket = netns.visit(|| {
            let socket =
                socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::NONBLOCK, None)
                    .expect("open a netlink socket");
            let _ = sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20);
            // RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR.
            bind(&socket, &SocketAddrNetlink::new(0, 0x1 | 0x10 | 0x100))
                .expect("subscribe to netlink groups");
            socket
        });
        Self {
            socket,
            name: name.to_owned(),
            link: Some(netns.editor().link(name)),
            vip,
            holders: HashSet::new(),
            is_held: false,
            changes: Vec::new(),
        }
    }

    /// Waits until the kernel has sent a message.
    pub fn wait(&self) {
        let mut waiting = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        // After an interruption by a signal, the caller finds no message and waits again.
        let _ = rustix::event::poll(&mut waiting, None);
    }

    /// Processes all messages that have arrived. Returns whether the link has the address now.
    pub fn catch_up(&mut self) -> bool {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = match recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(Errno::AGAIN) => return self.is_held,
                Err(errno) => panic!("the recorder has lost messages: {errno}"),
            };
            self.take(&buffer[..length]);
        }
    }

    fn take(&mut self, mut datagram: &[u8]) {
        while let Ok(buffer) = NetlinkBuffer::new_checked(datagram) {
            let length = buffer.length() as usize;
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram[..length]);
            match message.expect("a valid netlink message").payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address))
                    if self.is_vip(&address) =>
                {
                    self.holders.insert(address.header.index);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(address))
                    if self.is_vip(&address) =>
                {
                    self.holders.remove(&address.header.index);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    self.update_link(&link);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    self.holders.remove(&link.header.index);
                    self.link = self.link.filter(|index| *index != link.header.index);
                }
                _ => {}
            }
            datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
            let is_held = self.link.is_some_and(|index| self.holders.contains(&index));
            if is_held != self.is_held {
                self.is_held = is_held;
                self.changes.push(is_held);
            }
        }
    }

    fn is_vip(&self, message: &AddressMessage) -> bool {
        message.header.prefix_len == self.vip.prefix_len()
            && message.attributes.iter().any(|attribute| match attribute {
                AddressAttribute::Address(ip) | AddressAttribute::Local(ip) => {
                    *ip == self.vip.addr()
                }
                _ => false,
            })
    }

    fn update_link(&mut self, message: &LinkMessage) {
        let has_name = message.attributes.contains(&LinkAttribute::IfName(self.name.clone()));
        if has_name {
            self.link = Some(message.header.index);
        } else if self.link == Some(message.header.index) {
            self.link = None;
        }
    }
}
