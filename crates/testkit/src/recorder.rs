//! An independent witness: its own socket, another codec, its own idea of who is primary.

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

/// Records how often an address came and went on the link of one name.
#[derive(Debug)]
pub struct AddressRecorder {
    socket: OwnedFd,
    /// The name, and who bears it now.
    name: String,
    bearer: Option<u32>,
    vip: IpNet,
    /// The links that hold the address, by whatever name.
    holders: HashSet<u32>,
    is_held: bool,
    /// Every change, in order: true for "came".
    pub changes: Vec<bool>,
}

impl AddressRecorder {
    /// Starts recording `vip` on the link called `name`, which exists and does not hold it yet.
    pub fn start(netns: &TestNetns, name: &str, vip: IpNet) -> Self {
        let socket = netns.visit(|| {
            let socket =
                socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::NONBLOCK, None)
                    .expect("a netlink socket");
            let _ = sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20);
            // RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR.
            bind(&socket, &SocketAddrNetlink::new(0, 0x1 | 0x10 | 0x100)).expect("a subscription");
            socket
        });
        Self {
            socket,
            name: name.to_owned(),
            bearer: Some(netns.editor().link(name)),
            vip,
            holders: HashSet::new(),
            is_held: false,
            changes: Vec::new(),
        }
    }

    /// Waits until something happens.
    pub fn wait(&self) {
        let mut waiting = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        // Interrupted is as good as woken: the caller looks.
        let _ = rustix::event::poll(&mut waiting, None);
    }

    /// Takes in what has happened since; true if the address is there now.
    pub fn catch_up(&mut self) -> bool {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = match recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(Errno::AGAIN) => return self.is_held,
                Err(errno) => panic!("the recorder missed something: {errno}"),
            };
            self.take(&buffer[..length]);
        }
    }

    fn take(&mut self, mut datagram: &[u8]) {
        while let Ok(buffer) = NetlinkBuffer::new_checked(datagram) {
            let length = buffer.length() as usize;
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram[..length]);
            match message.expect("a netlink message").payload {
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
                    self.name_link(&link);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    self.holders.remove(&link.header.index);
                    self.bearer = self.bearer.filter(|bearer| *bearer != link.header.index);
                }
                _ => {}
            }
            datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
            let is_held = self.bearer.is_some_and(|bearer| self.holders.contains(&bearer));
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

    fn name_link(&mut self, message: &LinkMessage) {
        let is_ours = message.attributes.contains(&LinkAttribute::IfName(self.name.clone()));
        if is_ours {
            self.bearer = Some(message.header.index);
        } else if self.bearer == Some(message.header.index) {
            self.bearer = None;
        }
    }
}
