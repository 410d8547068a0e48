//! One routing netlink socket: subscribed, non-blocking, with room for a burst.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recvfrom,
    send, socket_with, sockopt,
};

/// Links, IPv4 addresses, IPv6 addresses: `RTMGRP_*`.
const GROUPS: u32 =
    (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR).cast_unsigned();

/// What is asked of the kernel for events that are not read yet. It doubles the number, and
/// charges about 800 bytes per address event: some ten thousand of them fit.
const RECEIVE_BUFFER: usize = 4 << 20;

/// What one `recv` can take, to begin with. The kernel sizes the parts of a dump to fit a
/// page; a link with hundreds of virtual functions needs more, and gets it.
pub type Scratch = [u8; 4 << 10];

/// What a look into the receive queue brought.
#[derive(Debug)]
pub enum Received<'a> {
    /// A whole datagram from the kernel.
    Datagram(&'a [u8]),
    /// A datagram that did not fit. The buffer has grown; this one is lost.
    Truncated,
    /// Events were dropped because the queue was full (`ENOBUFS`).
    Overrun,
    /// The queue is empty.
    Quiet,
}

/// An open socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    /// Empty until a datagram was larger than a [`Scratch`].
    large: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the namespace of the calling thread, subscribed from the start.
    pub fn subscribe() -> io::Result<Self> {
        Self::open(GROUPS)
    }

    /// Opens a socket in the namespace of the calling thread that hears only answers.
    pub fn ask() -> io::Result<Self> {
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
        // NETLINK_NO_ENOBUFS stays off: that error is how we learn to look again.
        // Answers come as fast as they are read, and need no room.
        let is_subscribed = groups != 0;
        if is_subscribed && sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER).is_err()
        {
            // Without the privilege the system's limit applies; overruns are then likelier,
            // never wrong.
            sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
        }
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        let port = SocketAddrNetlink::try_from(getsockname(&fd)?)?.pid();
        Ok(Self { fd, port, large: Vec::new() })
    }

    /// Our address: replies to our requests carry it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Asks for a dump: `RTM_GETLINK` or `RTM_GETADDR`.
    pub fn request_dump(&self, kind: u16, sequence: u32) -> io::Result<()> {
        // nlmsghdr, then `ifinfomsg` or the shorter `ifaddrmsg`, of which only the family
        // counts: AF_UNSPEC. For links one attribute: counting packets over all CPUs, for
        // nobody, is most of what a dump of links costs.
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

    /// Sends a request of another making.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        send(&self.fd, request, SendFlags::empty())?;
        Ok(())
    }

    /// Takes the next datagram off the queue, without waiting.
    ///
    /// It goes into `scratch`, which costs nothing on the caller's stack; or, once one has
    /// been too large for that, into a buffer of our own.
    pub fn receive<'a>(&'a mut self, scratch: &'a mut Scratch) -> io::Result<Received<'a>> {
        let length = loop {
            let buffer = if self.large.is_empty() { &mut scratch[..] } else { &mut self.large };
            match recvfrom(&self.fd, buffer, RecvFlags::TRUNC) {
                Ok((_, _, Some(from))) if !is_kernel(&from) => {}
                Ok((_, length, _)) => break length,
                Err(Errno::AGAIN) => return Ok(Received::Quiet),
                Err(Errno::NOBUFS) => return Ok(Received::Overrun),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if length > self.large.len().max(scratch.len()) {
            // Room for the largest part of a dump that any kernel sends.
            self.large = vec![0; length.max(32 << 10)];
            return Ok(Received::Truncated);
        }
        let buffer = if self.large.is_empty() { &scratch[..] } else { &self.large };
        Ok(Received::Datagram(&buffer[..length]))
    }

    /// Gives the queue room for twice as many `bytes`, or for the least that the kernel allows, so that a test can
    /// overrun it.
    #[doc(hidden)]
    pub fn shrink_queue(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.fd, bytes)?)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Any process with the privilege can send to our port; only the kernel is believed.
fn is_kernel(from: &rustix::net::SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(from.clone()).is_ok_and(|from| from.pid() == 0)
}
