// SPDX-License-Identifier: Apache-2.0
//! One netlink socket for all namespaces (`NETLINK_LISTEN_ALL_NSID`). The "facts" are those in the head of
//! [`crate::netns_watcher`].

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::event::{NetnsEvent, address_event, link_event};
use crate::netlink::decode::{Header, envelopes};
use crate::netlink::socket::enable_option;
use crate::netns::{Netns, NetnsId, open_current};
use crate::netns_query::request::{self, NetlinkAnswer, NetlinkRequest};
use crate::netns_query::{NetnsQuery, NetnsRef};

/// Multicast groups for links, addresses, and ids of namespaces (`RTNLGRP_NSID` is group 28).
const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR)
    .cast_unsigned()
    | 1 << 27;

/// Requested size of the receive queue, in bytes; the kernel doubles it. About forty thousand unread events fit: a
/// failover of a thousand routers with their floating addresses.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// The first namespace id that this program assigns, far above the ids that the kernel assigns by itself. Also the
/// number of ids for each process.
const FIRST_ID: i32 = 1 << 20;
/// Number of different id ranges; a process selects its range by its PID.
const ID_RANGES: u32 = 1 << 10;

/// Maximum number of datagrams in one read.
const MAX_DATAGRAMS_PER_READ: usize = 4096;

/// The event socket and a query socket, both in the own namespace.
#[derive(Debug)]
pub(super) struct SharedSocket {
    events: OwnedFd,
    pub(super) query: NetnsQuery,
    /// The id of the own namespace in itself. If it has one, the kernel marks its messages with it.
    own_id: Option<i32>,
}

impl SharedSocket {
    /// Needs `CAP_NET_BROADCAST`, and `CAP_NET_ADMIN` for queries.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let events = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        enable_option(events.as_fd(), libc::NETLINK_LISTEN_ALL_NSID)?;
        if sockopt::set_socket_recv_buffer_size_force(&events, RECEIVE_BUFFER_BYTES).is_err() {
            sockopt::set_socket_recv_buffer_size(&events, RECEIVE_BUFFER_BYTES)?;
        }
        bind(&events, &SocketAddrNetlink::new(0, GROUPS))?;
        let mut shared = Self { events, query: NetnsQuery::open()?, own_id: None };
        shared.own_id = shared.query_own_id();
        Ok(shared)
    }

    fn query_own_id(&mut self) -> Option<i32> {
        let own = open_current().ok()?;
        self.query.netns_id(own.as_fd()).ok()?
    }

    /// Assigns an id to `netns` if it has none (fact 1).
    pub(super) fn watch(&mut self, netns: &Netns) -> io::Result<NetnsRef> {
        if let Some(known) = self.query.netns_ref(netns)? {
            return Ok(known);
        }
        loop {
            let id = next_id();
            let request = NetlinkRequest::new(libc::RTM_NEWNSID, libc::NLM_F_ACK)
                .generic_header()
                .number(request::NETNSA_NSID, id.cast_unsigned())
                .number(request::NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
            match self.query.exchange(request)? {
                NetlinkAnswer::Done => return Ok(NetnsRef::Peer(id)),
                // Another process has assigned an id to this namespace meanwhile, or this id to another namespace.
                NetlinkAnswer::Refused(libc::EEXIST) => {
                    if let Some(id) = self.query.netns_id(netns.as_fd())? {
                        return Ok(NetnsRef::Peer(id));
                    }
                }
                NetlinkAnswer::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                NetlinkAnswer::Id(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    pub(super) fn refers_to(&mut self, netns_ref: NetnsRef, netns: &Netns) -> bool {
        match netns_ref {
            NetnsRef::Own => NetnsId::current().is_ok_and(|current| current == netns.id()),
            NetnsRef::Peer(id) => {
                self.query.netns_id(netns.as_fd()).is_ok_and(|current| current == Some(id))
            }
        }
    }

    pub(super) fn read(&mut self, events: &mut Vec<NetnsEvent>) -> io::Result<()> {
        let mut buffer = [0_u8; 16 << 10];
        let mut is_lost = false;
        let mut has_new_id = false;
        let mut count = 0;
        // After an overrun the kernel drops all messages, without a second ENOBUFS, until the queue is empty. So the
        // queue is emptied first: a namespace that is read before that could change again without an event.
        while is_lost || count < MAX_DATAGRAMS_PER_READ {
            count += 1;
            let (length, mark) = match receive(self.events.as_fd(), &mut buffer) {
                Ok(received) => received,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => {
                    is_lost = true;
                    continue;
                }
                Err(errno) => return Err(errno.into()),
            };
            let is_own = matches!(mark, NetnsRef::Peer(id) if self.own_id == Some(id));
            let netns = if is_own { NetnsRef::Own } else { mark };
            for envelope in envelopes(&buffer[..length.min(buffer.len())]) {
                let Ok((header, body)) = envelope else {
                    is_lost = true;
                    break;
                };
                // The new id may be that of the own namespace.
                has_new_id |= header.kind == libc::RTM_NEWNSID && netns == NetnsRef::Own;
                let event = decode(header, body, netns);
                if let Some(event) = event.filter(|event| events.last() != Some(event)) {
                    events.push(event);
                }
            }
        }
        if has_new_id {
            let own_id = self.query_own_id();
            // Messages that were marked with the new id were taken for those of another namespace.
            is_lost |= own_id != self.own_id;
            self.own_id = own_id;
        }
        if is_lost {
            events.push(NetnsEvent::Lost);
        }
        Ok(())
    }
}

as_fd!(SharedSocket.events);

/// The event in a message from `netns`; `None` if it is not about links, addresses or a removed id.
fn decode(header: Header, body: &[u8], netns: NetnsRef) -> Option<NetnsEvent> {
    match header.kind {
        libc::RTM_NEWADDR | libc::RTM_DELADDR => address_event(netns, header, body),
        libc::RTM_NEWLINK | libc::RTM_DELLINK => link_event(netns, body),
        // Fact 3.
        libc::RTM_DELNSID if netns == NetnsRef::Own => Some(match request::nsid(body) {
            Some(id) => NetnsEvent::Gone(NetnsRef::Peer(id)),
            None => NetnsEvent::Lost,
        }),
        _ => None,
    }
}

/// An id that this process has not assigned before.
fn next_id() -> i32 {
    static ASSIGNED: AtomicI32 = AtomicI32::new(0);
    let range = i32::try_from(std::process::id() % ID_RANGES).unwrap_or(0);
    FIRST_ID + range * FIRST_ID + ASSIGNED.fetch_add(1, Ordering::Relaxed) % FIRST_ID
}

/// Receives one datagram: its length, and the namespace that the kernel marked it with. The length is 0 if the datagram
/// is not from the kernel.
fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<(usize, NetnsRef)> {
    let mut from = MaybeUninit::<libc::sockaddr_nl>::zeroed();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Room for one control message with one number, aligned as the kernel requires.
    let mut control = [0_u64; 8];
    // SAFETY: `msghdr` is plain data for which all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = from.as_mut_ptr().cast();
    header.msg_namelen = 12;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: every pointer in the header is to a local that outlives the call, with its size.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, 0) };
    let Ok(length) = usize::try_from(length) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    // SAFETY: it was zeroed before, and all zeroes is a valid value too.
    if unsafe { from.assume_init() }.nl_pid != 0 {
        return Ok((0, NetnsRef::Own));
    }
    let mut netns = NetnsRef::Own;
    // SAFETY: the macros stay within the control buffer and the length that the kernel has set; the number is read
    // without a requirement on its alignment.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(&raw const header);
        while !entry.is_null() {
            let is_mark = (*entry).cmsg_level == libc::SOL_NETLINK
                && (*entry).cmsg_type == libc::NETLINK_LISTEN_ALL_NSID;
            if is_mark {
                netns = NetnsRef::Peer(libc::CMSG_DATA(entry).cast::<i32>().read_unaligned());
            }
            entry = libc::CMSG_NXTHDR(&raw const header, entry);
        }
    }
    Ok((length, netns))
}
