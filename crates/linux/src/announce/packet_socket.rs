// SPDX-License-Identifier: Apache-2.0
//! The packet socket that sends frames and, during a check for duplicates, receives the claims of other stations.
//!
//! Opening it needs `CAP_NET_RAW`. Using it needs no privilege, so a process can open it and then drop its privileges.
//!
//! With [`ReceiveMode::OnDemand`], the socket is bound when it is opened, with a filter that drops every frame, and
//! [`PacketSocket::start_listening`] replaces the filter. With [`ReceiveMode::Deferred`], that call binds the socket too.
//! The first bind of a socket is fast. A second one waits until every CPU has finished the packets it is processing
//! (`synchronize_net`), and so does the end of a socket.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{
    AddressFamily, MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketFlags,
    SocketType, bind, recvfrom, sendmmsg, socket_with,
};
use vipwatch_core::LinkIndex;

use super::{AddressClaim, ETHERTYPE_ARP, ETHERTYPE_IPV6, Frame, array, decode_claim};
use crate::packet_filter::{
    JUMP_EQUAL, LOAD_BYTE, LOAD_HALF, RETURN, attach, ignore_outgoing, instruction,
};

// AF_PACKET and ETH_P_ALL, in the integer types of a `sockaddr_ll`.
const PACKET: libc::c_ushort = 17;
const EVERY_PROTOCOL: u16 = 3;

/// Maximum number of frames in one `sendmmsg` call.
const FRAMES_PER_CALL: usize = 64;

/// Number of bytes that are read of a received frame. An advertisement with its options is shorter.
const RECEIVE_BYTES: usize = 256;

/// A packet socket in one namespace.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    /// The Ethernet type of the frames that the socket receives; `None` if it is not bound.
    bound: Option<u16>,
}

/// The addresses for which claims are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimFamily {
    /// IPv4 addresses: ARP.
    Ipv4,
    /// IPv6 addresses: neighbour advertisements.
    Ipv6,
    /// Both.
    Both,
}

impl ClaimFamily {
    fn ethertype(self) -> u16 {
        match self {
            Self::Ipv4 => ETHERTYPE_ARP,
            Self::Ipv6 => ETHERTYPE_IPV6,
            Self::Both => EVERY_PROTOCOL,
        }
    }
}

/// The destination or the source of a frame.
struct PacketAddress(libc::sockaddr_ll);

impl PacketAddress {
    fn new(link: LinkIndex, protocol: u16) -> Self {
        // SAFETY: `sockaddr_ll` is plain data for which all zeroes is a valid value.
        let mut raw: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        raw.sll_family = PACKET;
        raw.sll_protocol = protocol.to_be();
        raw.sll_ifindex = i32::try_from(link.0).unwrap_or(0);
        Self(raw)
    }

    /// The destination of `frame` on this link.
    fn destination(link: LinkIndex, frame: &Frame) -> Self {
        let protocol = array(frame.bytes(), 12).map_or(0, u16::from_be_bytes);
        Self::new(link, protocol)
    }

    /// The link that received a frame; `None` for a frame that this node sent.
    fn receiving_link(from: &SocketAddrAny) -> Option<LinkIndex> {
        let is_whole = usize::try_from(from.addr_len()).ok()? >= size_of::<libc::sockaddr_ll>() - 2;
        if from.address_family() != AddressFamily::PACKET || !is_whole {
            return None;
        }
        // SAFETY: the storage is larger than any address, and the family is AF_PACKET: the kernel has written both
        // fields (all but the padding of the hardware address).
        let (index, kind) = unsafe {
            let raw = from.as_ptr().cast::<libc::sockaddr_ll>();
            ((*raw).sll_ifindex, (*raw).sll_pkttype)
        };
        let is_incoming = kind != libc::PACKET_OUTGOING;
        u32::try_from(index).ok().filter(|_| is_incoming).map(LinkIndex)
    }
}

// SAFETY: the pointer is to a complete `sockaddr_ll` that outlives the call.
unsafe impl SocketAddrArg for PacketAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        const { assert!(size_of::<libc::sockaddr_ll>() == 20) };
        f((&raw const self.0).cast(), 20)
    }
}

/// Whether a packet socket can receive claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveMode {
    /// The socket only sends. Received packets cost nothing.
    SendOnly,
    /// The socket receives after [`PacketSocket::start_listening`]. The kernel runs its filter for every received
    /// packet, at all times.
    OnDemand,
    /// The socket receives after [`PacketSocket::start_listening`]. Before, received packets cost nothing; afterwards,
    /// the kernel runs the filter for packets of the families that were asked for.
    Deferred,
}

/// The result of one attempt to read a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedFrame {
    /// A claim, and the link that received it.
    Claim(LinkIndex, AddressClaim),
    /// A frame without a claim.
    Other,
    /// No frame is queued.
    QueueEmpty,
}

impl PacketSocket {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open(mode: ReceiveMode) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0: the socket receives nothing until it is bound.
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        let mut socket = Self { fd, bound: None };
        match mode {
            ReceiveMode::SendOnly => {}
            ReceiveMode::OnDemand => {
                attach(&socket.fd, &DROP_ALL)?;
                ignore_outgoing(&socket.fd);
                socket.bind(EVERY_PROTOCOL)?;
            }
            ReceiveMode::Deferred => ignore_outgoing(&socket.fd),
        }
        Ok(socket)
    }

    fn bind(&mut self, ethertype: u16) -> io::Result<()> {
        bind(&self.fd, &PacketAddress::new(LinkIndex(0), ethertype))?;
        self.bound = Some(ethertype);
        Ok(())
    }

    /// Sends each frame on its link, in as few calls as possible. Returns one result for each frame; fewer results than
    /// frames mean that the send queue had no room for the rest.
    pub fn send(&self, frames: &[(LinkIndex, Frame)]) -> Vec<io::Result<()>> {
        let mut results = Vec::with_capacity(frames.len());
        while results.len() < frames.len() {
            let left = &frames[results.len()..];
            match self.send_batch(&left[..left.len().min(FRAMES_PER_CALL)]) {
                Ok(count) => results.extend((0..count.max(1)).map(|_| Ok(()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                // The first frame of the batch could not be sent; the next call tries the others.
                Err(errno) => results.push(Err(errno.into())),
            }
        }
        results
    }

    fn send_batch(&self, frames: &[(LinkIndex, Frame)]) -> rustix::io::Result<usize> {
        let addresses: Vec<SocketAddrAny> = frames
            .iter()
            .map(|(link, frame)| PacketAddress::destination(*link, frame).as_any())
            .collect();
        let slices: Vec<[IoSlice<'_>; 1]> =
            frames.iter().map(|(_, frame)| [IoSlice::new(frame.bytes())]).collect();
        let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
            frames.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let mut messages: Vec<MMsgHdr<'_>> = addresses
            .iter()
            .zip(&slices)
            .zip(&mut controls)
            .map(|((address, slice), control)| MMsgHdr::new_with_addr(address, slice, control))
            .collect();
        sendmmsg(&self.fd, &mut messages, SendFlags::DONTWAIT)
    }

    /// Starts to receive claims of these addresses, and perhaps others, on all links; [`Self::read_claim`] returns them.
    pub fn start_listening(&mut self, family: ClaimFamily) -> io::Result<()> {
        // ORDER: the filter comes first. A bound socket without a filter would queue every packet.
        attach(&self.fd, &ACCEPT_CLAIMS)?;
        match (self.bound, family.ethertype()) {
            (None, ethertype) => self.bind(ethertype),
            (Some(bound), ethertype) if bound == ethertype || bound == EVERY_PROTOCOL => Ok(()),
            (Some(_), _) => self.bind(EVERY_PROTOCOL),
        }
    }

    /// Stops to receive claims, and discards those that were not read.
    pub fn stop_listening(&self) -> io::Result<()> {
        attach(&self.fd, &DROP_ALL)?;
        while let Ok(Some(_)) = self.read(&mut [0; RECEIVE_BYTES]) {}
        Ok(())
    }

    /// Reads the next received frame, without waiting.
    pub fn read_claim(&self) -> io::Result<ReceivedFrame> {
        let mut bytes = [0; RECEIVE_BYTES];
        let Some((from, length)) = self.read(&mut bytes)? else {
            return Ok(ReceivedFrame::QueueEmpty);
        };
        let link = from.as_ref().and_then(PacketAddress::receiving_link);
        let claim = decode_claim(&bytes[..length]);
        Ok(link
            .zip(claim)
            .map_or(ReceivedFrame::Other, |(link, claim)| ReceivedFrame::Claim(link, claim)))
    }

    /// Reads a frame into `bytes`; returns its source and the number of bytes, or `None` if no frame is queued.
    fn read(&self, bytes: &mut [u8]) -> io::Result<Option<(Option<SocketAddrAny>, usize)>> {
        loop {
            match recvfrom(&self.fd, &mut *bytes, RecvFlags::empty()) {
                Ok((length, _, from)) => return Ok(Some((from, length))),
                Err(Errno::AGAIN) => return Ok(None),
                // ENETDOWN: one link went down. Frames of other links still arrive.
                Err(Errno::INTR | Errno::NETDOWN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

as_fd!(PacketSocket.fd);

/// Drops every frame before the kernel copies or queues it.
const DROP_ALL: [libc::sock_filter; 1] = [instruction(RETURN, 0, 0, 0)];

/// Accepts ARP and neighbour advertisements, and drops all other frames.
const ACCEPT_CLAIMS: [libc::sock_filter; 9] = [
    instruction(LOAD_HALF, 12, 0, 0), // the Ethernet type
    instruction(JUMP_EQUAL, ETHERTYPE_ARP as u32, 5, 0),
    instruction(JUMP_EQUAL, ETHERTYPE_IPV6 as u32, 0, 5),
    instruction(LOAD_BYTE, 20, 0, 0), // IPv6: the next header
    instruction(JUMP_EQUAL, 58, 0, 3),
    instruction(LOAD_BYTE, 54, 0, 0), // ICMPv6: the type
    instruction(JUMP_EQUAL, 136, 0, 1),
    instruction(RETURN, 256, 0, 0),
    instruction(RETURN, 0, 0, 0),
];
