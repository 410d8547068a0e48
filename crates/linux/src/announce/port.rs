//! The packet socket by which frames leave, and claims come in while somebody listens.
//!
//! Opening it takes `CAP_NET_RAW`; using it takes nothing, so a process can open it and then
//! give its privileges up.
//!
//! A port that may listen is bound from the start, with a filter that lets nothing through, and
//! [`PacketSocket::listen`] swaps the filter. Binding it only then would wait for every packet under
//! way on every CPU (`synchronize_net`), in the middle of a failover.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{
    AddressFamily, MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketFlags,
    SocketType, bind, recvfrom, sendmmsg, socket_with,
};
use vipwatch_core::LinkIndex;

use super::{AddressClaim, ETHERTYPE_ARP, ETHERTYPE_IPV6, Frame, array, claim};

// The kernel's names, in the sizes that a `sockaddr_ll` has for them.
const PACKET: libc::c_ushort = 17;
const EVERY_PROTOCOL: u16 = 3;

/// Frames handed to the kernel in one call.
const BATCH: usize = 64;

/// What is read of a frame: an advertisement with its options is shorter.
const HEARD: usize = 256;

/// A packet socket in one namespace.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

/// Where a frame goes to or came from.
struct LinkAddress(libc::sockaddr_ll);

impl LinkAddress {
    fn new(link: LinkIndex, protocol: u16) -> Self {
        // SAFETY: plain data, for which all zeroes is a value.
        let mut raw: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        raw.sll_family = PACKET;
        raw.sll_protocol = protocol.to_be();
        raw.sll_ifindex = i32::try_from(link.0).unwrap_or(0);
        Self(raw)
    }

    /// Where `frame` goes.
    fn to(link: LinkIndex, frame: &Frame) -> Self {
        let protocol = array(frame.bytes(), 12).map_or(0, u16::from_be_bytes);
        Self::new(link, protocol)
    }

    /// The link a frame came in on; `None` if it went out.
    fn heard_on(from: &SocketAddrAny) -> Option<LinkIndex> {
        let is_whole = usize::try_from(from.addr_len()).ok()? >= size_of::<libc::sockaddr_ll>() - 2;
        if from.address_family() != AddressFamily::PACKET || !is_whole {
            return None;
        }
        // SAFETY: the storage is larger than any address, and of this family: both fields are
        // in what the kernel has written (all but the padding of the hardware address).
        let (index, kind) = unsafe {
            let raw = from.as_ptr().cast::<libc::sockaddr_ll>();
            ((*raw).sll_ifindex, (*raw).sll_pkttype)
        };
        let is_incoming = kind != libc::PACKET_OUTGOING;
        u32::try_from(index).ok().filter(|_| is_incoming).map(LinkIndex)
    }
}

// SAFETY: the pointer is to a whole `sockaddr_ll` that outlives the call.
unsafe impl SocketAddrArg for LinkAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        const { assert!(size_of::<libc::sockaddr_ll>() == 20) };
        f((&raw const self.0).cast(), 20)
    }
}

/// Whether a port will ever be asked for claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimFilter {
    /// It is deaf, and costs nobody anything.
    Never,
    /// It hears when told to. Every packet that comes in passes its filter.
    WhenAsked,
}

/// What was found when a claim was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimScan {
    /// One, and where it came in.
    AddressClaim(LinkIndex, AddressClaim),
    /// A frame that claims nothing.
    Other,
    /// Nothing more.
    Silence,
}

impl PacketSocket {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open(hearing: ClaimFilter) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0: it hears nothing.
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        if hearing == ClaimFilter::WhenAsked {
            attach(&fd, &NOTHING)?;
            ignore_own(&fd);
            bind(&fd, &LinkAddress::new(LinkIndex(0), EVERY_PROTOCOL))?;
        }
        Ok(Self { fd })
    }

    /// Sends each frame on its link, in as few calls as possible. Tells for each how it went;
    /// fewer results than frames mean that there was no room for the rest.
    pub fn send(&self, frames: &[(LinkIndex, Frame)]) -> Vec<io::Result<()>> {
        let mut results = Vec::with_capacity(frames.len());
        while results.len() < frames.len() {
            let left = &frames[results.len()..];
            match self.send_batch(&left[..left.len().min(BATCH)]) {
                Ok(count) => results.extend((0..count.max(1)).map(|_| Ok(()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                // The first of the batch could not be sent; the rest has its own chance.
                Err(errno) => results.push(Err(errno.into())),
            }
        }
        results
    }

    fn send_batch(&self, frames: &[(LinkIndex, Frame)]) -> rustix::io::Result<usize> {
        let addresses: Vec<SocketAddrAny> =
            frames.iter().map(|(link, frame)| LinkAddress::to(*link, frame).as_any()).collect();
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

    /// From now on claims on every link can be [read](Self::claim).
    pub fn listen(&self) -> io::Result<()> {
        attach(&self.fd, &CLAIMS)
    }

    /// Hears nothing any more, and forgets what was not read.
    pub fn hush(&self) -> io::Result<()> {
        attach(&self.fd, &NOTHING)?;
        while let Ok(Some(_)) = self.read(&mut [0; HEARD]) {}
        Ok(())
    }

    /// The next frame that was heard.
    pub fn claim(&self) -> io::Result<ClaimScan> {
        let mut bytes = [0; HEARD];
        let Some((from, length)) = self.read(&mut bytes)? else {
            return Ok(ClaimScan::Silence);
        };
        let link = from.as_ref().and_then(LinkAddress::heard_on);
        let claim = claim(&bytes[..length]);
        Ok(link
            .zip(claim)
            .map_or(ClaimScan::Other, |(link, claim)| ClaimScan::AddressClaim(link, claim)))
    }

    /// Who sent the next frame, and how much of it was read.
    fn read(&self, bytes: &mut [u8]) -> io::Result<Option<(Option<SocketAddrAny>, usize)>> {
        loop {
            match recvfrom(&self.fd, &mut *bytes, RecvFlags::empty()) {
                Ok((length, _, from)) => return Ok(Some((from, length))),
                Err(Errno::AGAIN) => return Ok(None),
                // A link went down under us: the others go on.
                Err(Errno::INTR | Errno::NETDOWN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One step of a classic BPF program.
const fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

// `<linux/bpf_common.h>`: load half word or byte at an absolute place, jump if equal, return.
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Throws everything away, before it is copied or queued.
const NOTHING: [libc::sock_filter; 1] = [step(RETURN, 0, 0, 0)];

/// Throws away everything but ARP and advertisements.
const CLAIMS: [libc::sock_filter; 9] = [
    step(LOAD_HALF, 12, 0, 0), // the Ethernet type
    step(JUMP_EQUAL, ETHERTYPE_ARP as u32, 5, 0),
    step(JUMP_EQUAL, ETHERTYPE_IPV6 as u32, 0, 5),
    step(LOAD_BYTE, 20, 0, 0), // IPv6: the next header
    step(JUMP_EQUAL, 58, 0, 3),
    step(LOAD_BYTE, 54, 0, 0), // ICMPv6: the type
    step(JUMP_EQUAL, 136, 0, 1),
    step(RETURN, 256, 0, 0),
    step(RETURN, 0, 0, 0),
];

fn attach(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = libc::c_ushort::try_from(program.len()).unwrap_or(0);
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let size = libc::socklen_t::try_from(size_of_val(&filter)).unwrap_or(0);
    // SAFETY: the program and its length outlive the call, which copies them and changes
    // neither.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks not to be shown what leaves: it would be copied before any filter sees it. Kernels
/// before 4.20 cannot; there [`LinkAddress::heard_on`] tells it apart.
fn ignore_own(fd: &OwnedFd) {
    const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
    let on: libc::c_int = 1;
    // SAFETY: the value outlives the call, and has the size that is said.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_IGNORE_OUTGOING,
            (&raw const on).cast(),
            4,
        );
    }
}
