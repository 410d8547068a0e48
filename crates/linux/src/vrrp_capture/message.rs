// SPDX-License-Identifier: Apache-2.0
//! Reads packets with their times in batches, and the calls that bind a socket to a link.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use vipwatch_core::snapshot::Mac;
use vipwatch_core::{LinkIndex, LinkName, Moment};

use super::{CapturedPacket, MAX_PACKET_BYTES, PACKETS_PER_CALL, PacketDirection};
use crate::clock;
use crate::packet_filter::set_option;

/// Bytes for the control messages of one packet: its time.
const CONTROL_BYTES: usize = 64;

/// Memory for control messages, aligned as the kernel expects.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// The buffers of one `recvmmsg`.
pub(super) struct Batch {
    packets: Box<[[u8; MAX_PACKET_BYTES]]>,
    controls: Box<[Control; PACKETS_PER_CALL]>,
    sources: Box<[libc::sockaddr_ll; PACKETS_PER_CALL]>,
    /// Length of each received packet, and of its control messages.
    lengths: [(usize, usize); PACKETS_PER_CALL],
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("lengths", &self.lengths).finish_non_exhaustive()
    }
}

impl Batch {
    pub(super) fn new() -> Self {
        // SAFETY: `sockaddr_ll` is plain data for which all zeroes is a valid value.
        let source: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        Self {
            packets: vec![[0; MAX_PACKET_BYTES]; PACKETS_PER_CALL].into_boxed_slice(),
            controls: Box::new([Control([0; CONTROL_BYTES]); PACKETS_PER_CALL]),
            sources: Box::new([source; PACKETS_PER_CALL]),
            lengths: [(0, 0); PACKETS_PER_CALL],
        }
    }

    /// Reads packets without waiting; returns their number. Less than [`PACKETS_PER_CALL`] means that the queue is
    /// empty.
    pub(super) fn receive(&mut self, fd: &OwnedFd) -> Result<usize, Errno> {
        let slice = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut slices = [slice; PACKETS_PER_CALL];
        for (slice, packet) in slices.iter_mut().zip(&mut self.packets) {
            slice.iov_base = packet.as_mut_ptr().cast();
            slice.iov_len = MAX_PACKET_BYTES;
        }
        // SAFETY: `mmsghdr` is plain data for which all zeroes is a valid value.
        let mut headers: [libc::mmsghdr; PACKETS_PER_CALL] = unsafe { std::mem::zeroed() };
        let buffers = self.sources.iter_mut().zip(self.controls.iter_mut()).zip(&mut slices);
        for (header, ((source, control), slice)) in headers.iter_mut().zip(buffers) {
            let header = &mut header.msg_hdr;
            header.msg_name = (&raw mut *source).cast();
            header.msg_namelen = libc::socklen_t::try_from(size_of_val(source)).unwrap_or(0);
            header.msg_iov = slice;
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        let count = libc::c_uint::try_from(PACKETS_PER_CALL).unwrap_or(1);
        // SAFETY: every pointer in the headers is to memory of `self` or of this function, with its length beside it,
        // and nothing else uses that memory during the call. A null timeout is allowed.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Ok(received) = usize::try_from(received) else {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        };
        for (length, header) in self.lengths.iter_mut().zip(&headers[..received]) {
            let packet = usize::try_from(header.msg_len).unwrap_or(0).min(MAX_PACKET_BYTES);
            #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
            let control = (header.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
            *length = (packet, control);
        }
        Ok(received)
    }

    /// The first `count` packets that were read.
    pub(super) fn packets(&self, count: usize) -> impl Iterator<Item = CapturedPacket<'_>> {
        let now = ClockPair::read();
        (0..count.min(PACKETS_PER_CALL)).map(move |at| {
            let (length, control) = self.lengths[at];
            let is_sent = self.sources[at].sll_pkttype == libc::PACKET_OUTGOING;
            let time = kernel_time(&self.controls[at].0[..control]);
            CapturedPacket {
                bytes: &self.packets[at][..length],
                direction: if is_sent { PacketDirection::Sent } else { PacketDirection::Received },
                at: time.map_or(now.monotonic, |time| now.moment_of(time)),
                clock: time.unwrap_or(now.real),
            }
        })
    }
}

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct ClockPair {
    monotonic: Moment,
    /// The duration since the Unix epoch.
    real: Duration,
}

impl ClockPair {
    fn read() -> Self {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { monotonic: clock::now(), real }
    }

    /// The moment of a real time; now, if it is in the future: the clock was set back since then.
    fn moment_of(self, real: Duration) -> Moment {
        self.monotonic.before(self.real.saturating_sub(real))
    }
}

/// The time in the control messages, as a duration since the Unix epoch; `None` if there is none.
fn kernel_time(control: &[u8]) -> Option<Duration> {
    let mut rest = control;
    let header_length = size_of::<libc::cmsghdr>();
    while let Some(header) = rest.get(..header_length) {
        // SAFETY: the slice has as many bytes as the structure, which is plain data; the read needs no alignment.
        let header: libc::cmsghdr =
            unsafe { header.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
        let length = header.cmsg_len as usize;
        let data = rest.get(header_length..length)?;
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            let (seconds, data) = data.split_first_chunk::<8>()?;
            let (nanos, _) = data.split_first_chunk::<8>()?;
            let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
            let nanos = u32::try_from(i64::from_ne_bytes(*nanos)).ok()?;
            return Some(Duration::new(seconds, nanos.min(999_999_999)));
        }
        rest = rest.get(length.next_multiple_of(align_of::<libc::cmsghdr>())..)?;
    }
    None
}

/// Binds a packet socket to a link.
pub(super) fn bind(fd: &OwnedFd, link: LinkIndex) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is plain data for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::c_ushort::try_from(libc::AF_PACKET).unwrap_or(0);
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be();
    address.sll_ifindex = i32::try_from(link.0).unwrap_or(0);
    // LIMIT: the index 0 would bind the socket to all links, and no link has it.
    if address.sll_ifindex <= 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let size = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: the address outlives the call, and `size` is its size.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a link a member of a multicast group, or ends that (`PACKET_ADD_MEMBERSHIP`, `PACKET_DROP_MEMBERSHIP`).
pub(super) fn set_membership(
    fd: &OwnedFd,
    option: libc::c_int,
    link: LinkIndex,
    group: Mac,
) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&group.0);
    let request = libc::packet_mreq {
        mr_ifindex: i32::try_from(link.0).unwrap_or(0),
        mr_type: u16::try_from(libc::PACKET_MR_MULTICAST).unwrap_or(0),
        mr_alen: 6,
        mr_address: address,
    };
    set_option(fd, libc::SOL_PACKET, option, request)
}

/// Whether the link with this index has this name, in the namespace of the socket. `SIOCGIFINDEX` would be the other way
/// round, but makes the kernel run `modprobe` for a name that no link has.
pub(super) fn has_name(fd: &OwnedFd, link: LinkIndex, name: LinkName) -> bool {
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = i32::try_from(link.0).unwrap_or(0);
    // SAFETY: the request outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFNAME as _, &raw mut request) };
    let found = request.ifr_name.map(|byte| byte.to_ne_bytes()[0]);
    let end = found.iter().position(|byte| *byte == 0).unwrap_or(found.len());
    result == 0 && found[..end] == *name.as_bytes()
}

/// The number of packets that were dropped because the queue was full, since the last call: reading resets the counter.
pub(super) fn take_dropped(fd: &OwnedFd) -> io::Result<u32> {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut size = libc::socklen_t::try_from(size_of_val(&statistics)).unwrap_or(0);
    // SAFETY: both values outlive the call, and `size` is the size of the first.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut size,
        )
    };
    if result == 0 { Ok(statistics.tp_drops) } else { Err(io::Error::last_os_error()) }
}
