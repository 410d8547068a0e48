// SPDX-License-Identifier: Apache-2.0
//! A routing netlink socket, non-blocking: subscribed to changes, or for queries only.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recvfrom,
    send, socket_with, sockopt,
};

/// Multicast groups for links, IPv4 addresses and IPv6 addresses (`RTMGRP_*`).
const GROUPS: u32 =
    (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR).cast_unsigned();

/// Requested size of the receive queue, in bytes. The kernel doubles it and charges about 800 bytes per address event,
/// so about ten thousand unread events fit.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Receive buffer on the stack of the caller. The kernel makes the datagrams of a dump fit into a page; a link with
/// hundreds of virtual functions needs more, and then a buffer on the heap is used.
pub type Scratch = [u8; 4 << 10];

/// The result of one attempt to read from the receive queue.
#[derive(Debug)]
pub enum Received<'a> {
    /// A complete datagram from the kernel.
    Datagram(&'a [u8]),
    /// The datagram was larger than the buffer and is lost. The buffer has grown for the next one.
    Truncated,
    /// The kernel dropped events because the queue was full (`ENOBUFS`).
    Overrun,
    /// The queue is empty.
    QueueEmpty,
}

/// An open netlink socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    /// Buffer on the heap; empty until a datagram was larger than a [`Scratch`].
    large: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the namespace of the calling thread that receives all changes of links and addresses from now
    /// on.
    pub fn open_subscribed() -> io::Result<Self> {
        Self::open(GROUPS)
    }

    /// Opens a socket in the namespace of the calling thread that receives only answers to its requests.
    pub fn open_for_queries() -> io::Result<Self> {
        Self::open(0)
    }

    fn open(groups: u32) -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            // NETLINK_ROUTE is protocol 0.
            None,
        )?;
        // NETLINK_NO_ENOBUFS stays off: ENOBUFS is the sign that events were lost and that a new snapshot is needed.
        // A socket without subscriptions needs no larger queue: the kernel produces an answer as fast as it is read.
        let is_subscribed = groups != 0;
        if is_subscribed
            && sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER_BYTES).is_err()
        {
            // Without CAP_NET_ADMIN the system's limit (net.core.rmem_max) applies. Overruns are then more frequent,
            // but they are still detected.
            sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER_BYTES)?;
        }
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        let port = SocketAddrNetlink::try_from(getsockname(&fd)?)?.pid();
        Ok(Self { fd, port, large: Vec::new() })
    }

    /// The netlink port of this socket. Answers to its requests carry it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Requests a dump of all links (`RTM_GETLINK`) or all addresses (`RTM_GETADDR`).
    pub fn request_dump(&self, kind: u16, sequence: u32) -> io::Result<()> {
        // nlmsghdr, then `ifinfomsg` or the shorter `ifaddrmsg`, all zero (the family is AF_UNSPEC). A request for
        // links has one attribute: it leaves out the packet counters. Summing them up over all CPUs is most of the
        // work of a link dump, and no caller reads them.
        const LENGTH: usize = 40;
        // `<linux/netlink.h>`: NLM_F_REQUEST, and NLM_F_DUMP (ROOT and MATCH).
        const FLAGS: u16 = 0x001 | 0x300;
        // `<linux/rtnetlink.h>`
        const RTEXT_FILTER_SKIP_STATS: u32 = 8;
        let length: u32 = if kind == libc::RTM_GETLINK { 40 } else { 24 };
        let mut request = [0_u8; LENGTH];
        request[0..4].copy_from_slice(&length.to_ne_bytes());
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        request[6..8].copy_from_slice(&FLAGS.to_ne_bytes());
        request[8..12].copy_from_slice(&sequence.to_ne_bytes());
        request[32..34].copy_from_slice(&8_u16.to_ne_bytes());
        request[34..36].copy_from_slice(&libc::IFLA_EXT_MASK.to_ne_bytes());
        request[36..40].copy_from_slice(&RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        send(&self.fd, &request[..length as usize], SendFlags::empty())?;
        Ok(())
    }

    /// Sends a complete request to the kernel.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        send(&self.fd, request, SendFlags::empty())?;
        Ok(())
    }

    /// Takes the next datagram from the queue, without waiting.
    ///
    /// The datagram is stored in `scratch`, so that the socket needs no buffer of its own; after the first datagram
    /// that was too large for it, in a buffer on the heap.
    pub fn receive<'a>(&'a mut self, scratch: &'a mut Scratch) -> io::Result<Received<'a>> {
        let length = loop {
            let buffer = if self.large.is_empty() { &mut scratch[..] } else { &mut self.large };
            match recvfrom(&self.fd, buffer, RecvFlags::TRUNC) {
                Ok((_, _, Some(from))) if !is_kernel(&from) => {}
                Ok((_, length, _)) => break length,
                Err(Errno::AGAIN) => return Ok(Received::QueueEmpty),
                Err(Errno::NOBUFS) => return Ok(Received::Overrun),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if length > self.large.len().max(scratch.len()) {
            // 32 KiB is the largest datagram of a dump that any kernel sends.
            self.large = vec![0; length.max(32 << 10)];
            return Ok(Received::Truncated);
        }
        let buffer = if self.large.is_empty() { &scratch[..] } else { &self.large };
        Ok(Received::Datagram(&buffer[..length]))
    }

    /// Sets the size of the receive queue to twice `bytes`, or to the kernel's minimum, so that a test can overrun it.
    #[doc(hidden)]
    pub fn shrink_queue(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.fd, bytes)?)
    }
}

as_fd!(Socket.fd);

/// Any process with the privilege can send to the port of this socket. Only messages from the kernel (port 0) are
/// accepted.
fn is_kernel(from: &rustix::net::SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(from.clone()).is_ok_and(|from| from.pid() == 0)
}

/// Enables a socket option of level `SOL_NETLINK` (`NETLINK_*`).
pub(crate) fn enable_option(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the value outlives the call, and 4 is its size in bytes.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const on).cast(), 4)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
