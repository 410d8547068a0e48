// SPDX-License-Identifier: Apache-2.0
//! Receives the VRRP adverts of one link through a packet socket.
//!
//! The kernel queues matching packets and wakes no thread: the owner reads the queue from time to time
//! ([`AdvertCapture::drain`]). A classic BPF filter drops everything but VRRP before the kernel copies or queues it.
//!
//! The socket belongs to the namespace of the thread that opens it, and keeps that namespace alive: the owner must close
//! it when the name of the namespace is removed. It may outlive its link: [`AdvertCapture::bind`] binds it again to a link
//! that was created anew. Opening needs `CAP_NET_RAW`.
//!
//! A network card passes frames of a multicast group up only while the link is a member. keepalived joins the groups, and
//! the kernel leaves them when it ends; so the socket has memberships of its own (`PACKET_MR_MULTICAST`). They send nothing.
//!
//! The socket has the protocol `ETH_P_ALL`: a socket of one protocol would see neither both families nor sent packets,
//! and on a link below a bridge or a macvlan it would miss packets that these take over.
//!
//! [`CaptureTables`] owns many sockets.

mod filter;
mod message;
mod tables;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use libc::{PACKET_ADD_MEMBERSHIP, PACKET_DROP_MEMBERSHIP};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use vipwatch_core::snapshot::Mac;
use vipwatch_core::{LinkIndex, LinkName, Moment};

use self::message::Batch;
pub use self::tables::{CaptureId, CaptureRequest, CaptureTables, OpenedCaptures};
use crate::packet_filter::set_option;

/// Packets that one system call reads at most.
const PACKETS_PER_CALL: usize = 8;

/// Bytes that are read of one packet: 255 IPv6 addresses, an authentication header with the longest check value, the
/// trailer of a signed advert, and all headers fit.
pub const MAX_PACKET_BYTES: usize = SNAPSHOT_BYTES as usize;
const SNAPSHOT_BYTES: u32 = 5376;

/// Maximum number of packets in one [`AdvertCapture::drain`], so that a flood on one link does not delay the others.
const MAX_PACKETS_PER_DRAIN: usize = 4096;

/// Bytes that the kernel accounts for one queued advert: the structure of the packet and its page fragment.
const ACCOUNTED_BYTES_PER_PACKET: usize = 1024;

/// With fewer packets than this, the smallest queue was not full. LIMIT: that holds for packets of up to 9,000 bytes.
const MIN_PACKETS_OF_FULL_QUEUE: usize = 4;

/// The smallest and the largest size of the receive buffer in bytes, before the kernel doubles it. The kernel uses memory
/// for queued packets only.
const MIN_BUFFER_BYTES: usize = 32 << 10;
const MAX_BUFFER_BYTES: usize = 1 << 20;

/// Which adverts of a link are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// Received ones. Sent packets cost nothing since Linux 4.20.
    Received,
    /// Received and sent ones. The kernel clones every packet that is sent over the link before it runs the filter: this
    /// is for links that carry little other traffic.
    ReceivedAndSent,
}

/// Whether this host received a packet or sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketDirection {
    /// From the link.
    Received,
    /// By this host, or by another program in the same namespace.
    Sent,
}

/// A captured IP packet with VRRP in it.
#[derive(Debug, Clone, Copy)]
pub struct CapturedPacket<'a> {
    /// The packet from its IP header on, at most [`MAX_PACKET_BYTES`].
    pub bytes: &'a [u8],
    /// Whether it was received or sent.
    pub direction: PacketDirection,
    /// When the kernel received or sent it.
    pub at: Moment,
    /// The same time on the clock of this host, since the Unix epoch.
    pub clock: Duration,
}

/// The result of one [`AdvertCapture::drain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrainResult {
    /// Number of packets that were read.
    pub packets: usize,
    /// Number of matching packets that the kernel dropped since the last call, because the queue was full.
    pub dropped: u32,
    /// Whether packets are left in the queue.
    pub has_more: bool,
    /// Whether the link went down or was removed since the last call: [`AdvertCapture::check_link`] is due.
    pub is_link_lost: bool,
}

/// A packet socket for the adverts of one link.
#[derive(Debug)]
pub struct AdvertCapture {
    fd: OwnedFd,
    link: LinkName,
    /// The groups of which the link is to be a member.
    groups: Box<[Mac]>,
    /// The link to which the socket is bound; `None` before the first one, and after its removal.
    bound: Option<LinkIndex>,
    is_member: bool,
    buffer_bytes: usize,
}

impl AdvertCapture {
    /// Opens a socket in the namespace of the calling thread. It receives nothing until [`Self::bind`].
    pub fn open(request: CaptureRequest) -> io::Result<Self> {
        let CaptureRequest { link, mode, buffer_bytes, groups } = request;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // ORDER: with protocol 0 the socket receives nothing before it is bound, so that no packet passes before the
        // filter is attached.
        let fd = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        filter::attach(&fd, mode)?;
        let buffer_bytes = buffer_bytes.clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES);
        set_buffer(&fd, buffer_bytes);
        set_option(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        Ok(Self { fd, link, groups, bound: None, is_member: false, buffer_bytes })
    }

    /// Binds the socket to the link with this index, which makes the link a member of the multicast groups. Returns whether
    /// it was bound to another link before, or to none: packets were missed until now.
    pub fn bind(&mut self, link: LinkIndex) -> io::Result<bool> {
        if self.bound == Some(link) {
            return Ok(false);
        }
        self.release();
        message::bind(&self.fd, link)?;
        self.bound = Some(link);
        // A link without a filter, such as a tunnel, refuses a membership.
        let join =
            |group: &Mac| message::set_membership(&self.fd, PACKET_ADD_MEMBERSHIP, link, *group);
        // ORDER: every group is tried, also after a refusal.
        self.is_member = self.groups.iter().map(join).fold(true, |all, one| all & one.is_ok());
        Ok(true)
    }

    /// Whether the link is a member of all groups, so that adverts arrive although no other program has joined them.
    pub fn is_member(&self) -> bool {
        self.is_member
    }

    /// Whether the link to which the socket is bound exists and still has its name. If not, the socket is no longer bound.
    /// It does not enter the namespace: the kernel looks in the namespace of the socket.
    pub fn check_link(&mut self) -> bool {
        let has_name = self.bound.is_some_and(|link| message::has_name(&self.fd, link, self.link));
        if !has_name {
            self.release();
        }
        has_name
    }

    /// Gives up the memberships on a link that now has another name. The kernel has removed those on a deleted link.
    fn release(&mut self) {
        if let Some(link) = self.bound.take() {
            for group in &self.groups {
                let _ = message::set_membership(&self.fd, PACKET_DROP_MEMBERSHIP, link, *group);
            }
        }
    }

    /// Reads the queued packets without waiting, oldest first.
    ///
    /// After an overrun the buffer is doubled, up to 1 MiB: other routers on the link may send more adverts than the
    /// instances of this node suggest.
    pub fn drain(
        &mut self,
        scratch: &mut CaptureScratch,
        mut received: impl FnMut(CapturedPacket<'_>),
    ) -> io::Result<DrainResult> {
        let mut result = DrainResult::default();
        while result.packets < MAX_PACKETS_PER_DRAIN {
            let count = match scratch.0.receive(&self.fd) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                // The kernel reports this once.
                Err(Errno::NETDOWN) => {
                    result.is_link_lost = true;
                    continue;
                }
                Err(Errno::AGAIN) => 0,
                Err(errno) => return Err(errno.into()),
            };
            scratch.0.packets(count).for_each(&mut received);
            result.packets += count;
            result.has_more = count == PACKETS_PER_CALL;
            if !result.has_more {
                break;
            }
        }
        // A packet is dropped only while the queue is full.
        if result.packets >= MIN_PACKETS_OF_FULL_QUEUE {
            result.dropped = message::take_dropped(&self.fd)?;
        }
        if result.dropped > 0 && self.buffer_bytes < MAX_BUFFER_BYTES {
            self.buffer_bytes *= 2;
            set_buffer(&self.fd, self.buffer_bytes);
        }
        Ok(result)
    }
}

as_fd!(AdvertCapture.fd);

/// Memory for received packets, which all sockets of a thread share.
#[derive(Debug)]
pub struct CaptureScratch(Batch);

impl CaptureScratch {
    /// Allocates the memory, about 44 KiB.
    pub fn new() -> Self {
        Self(Batch::new())
    }
}

impl Default for CaptureScratch {
    fn default() -> Self {
        Self::new()
    }
}

/// The size of a receive buffer for so many adverts a second, if the queue is read once in `period`. It has room for
/// four times as many.
pub fn buffer_bytes(adverts_per_second: f64, period: Duration) -> usize {
    const RESERVE: f64 = 4.0;
    let packets = (adverts_per_second * period.as_secs_f64() * RESERVE).ceil().clamp(0.0, 1e6);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to a million")]
    let packets = packets as usize;
    (packets * ACCOUNTED_BYTES_PER_PACKET).clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES)
}

/// Closes many sockets, or values that own some, of the calling thread's table. The kernel waits for an RCU grace period in each `close` of a packet
/// socket, some 12 ms, and several threads share one.
pub fn close_all<T: Send>(sockets: Vec<T>) {
    const MAX_THREADS: usize = 4;
    let share = sockets.len().div_ceil(MAX_THREADS).max(1);
    let mut left = sockets.into_iter();
    std::thread::scope(|scope| {
        loop {
            let part: Vec<T> = left.by_ref().take(share).collect();
            if part.is_empty() {
                break;
            }
            // If no thread can be started, `spawn_scoped` drops the closure and with it the sockets.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
    });
}

/// Sets the size of the receive buffer: beyond `rmem_max` where that is permitted, else up to it.
fn set_buffer(fd: &OwnedFd, bytes: usize) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    if set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_has_room_for_four_times_the_expected_adverts() {
        let second = Duration::from_secs(1);
        assert_eq!(buffer_bytes(0.5, second), MIN_BUFFER_BYTES);
        assert_eq!(buffer_bytes(100.0, second), 400 * 1024);
        assert_eq!(buffer_bytes(25_500.0, second), MAX_BUFFER_BYTES);
        assert_eq!(buffer_bytes(f64::NAN, second), MIN_BUFFER_BYTES);
        assert_eq!(buffer_bytes(f64::INFINITY, second), MAX_BUFFER_BYTES);
    }
}
