//! An independent witness: its own socket, another codec, its own idea of who is primary.

use std::os::fd::OwnedFd;

use ipnet::IpNet;
use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with, sockopt,
};

use crate::Netns;

/// Records how often an address came and went on one link.
#[derive(Debug)]
pub struct Recorder {
    socket: OwnedFd,
    link: u32,
    vip: IpNet,
    is_held: bool,
    /// Every change, in order: true for "came".
    pub changes: Vec<bool>,
}

impl Recorder {
    /// Starts recording `vip` on `link`, which does not hold it yet.
    pub fn start(netns: &Netns, link: u32, vip: IpNet) -> Self {
        let socket = netns.visit(|| {
            let socket =
                socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::NONBLOCK, None)
                    .expect("a netlink socket");
            let _ = sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20);
            // RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR.
            bind(&socket, &SocketAddrNetlink::new(0, 0x10 | 0x100)).expect("a subscription");
            socket
        });
        Self { socket, link, vip, is_held: false, changes: Vec::new() }
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
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => {
                    self.note(&address, true);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(address)) => {
                    self.note(&address, false);
                }
                _ => {}
            }
            datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }

    fn note(&mut self, message: &AddressMessage, is_held: bool) {
        let is_ours = message.header.index == self.link
            && message.header.prefix_len == self.vip.prefix_len()
            && message.attributes.iter().any(|attribute| match attribute {
                AddressAttribute::Address(ip) | AddressAttribute::Local(ip) => {
                    *ip == self.vip.addr()
                }
                _ => false,
            });
        if is_ours && is_held != self.is_held {
            self.is_held = is_held;
            self.changes.push(is_held);
        }
    }
}
