//! Watches every network namespace of a node through one socket.
//!
//! The kernel tells a listener with `NETLINK_LISTEN_ALL_NSID` what happens in every namespace
//! that has an id in the listener's own, and marks each message with that id. A message says
//! *where* something happened, and which link or address it is about; the state is found by asking that
//! namespace ([`NetnsWatcher::snapshot_links`]), which can never be out of step.
//!
//! Kernel facts that shape this room:
//!
//! 1. A namespace without an id is silent. So one is asked for, and given if there is none.
//! 2. Ids are used again at once. Ours are counted from a high base, and not twice by one
//!    process; but the kernel or another process may have given one before. So the end of an id
//!    is a reason to look, not a proof.
//! 3. `RTM_DELNSID` is all that is heard of a namespace's end, and only one without a mark is
//!    about an id of ours: other namespaces have their own tables, and speak of them too.
//! 4. A dump of another namespace's addresses takes `NETLINK_GET_STRICT_CHK`: without it the
//!    kernel ignores whom we asked about and answers about us. So every answer must name the
//!    namespace it is about.
//! 5. Nothing here keeps a namespace alive: no descriptor of one is kept.
//!
//! Where the kernel or our rights do not allow this, [`per_netns`] listens in every namespace with a
//! socket of its own, and says so ([`NetnsWatcher::fallback_reason`]).

pub(crate) mod message;
mod per_netns;

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{LinkIndex, LinkName};

use self::message::{NetlinkAnswer, NetlinkRequest};
use self::per_netns::PerNetnsSockets;
use crate::monitor::WatchError;
use crate::netlink::decode::envelopes;
use crate::netns::{Netns, NetnsId, open_current};
use crate::netns_query::NetnsQuery;

/// Links, addresses, and the ids of namespaces (`RTNLGRP_NSID` is group 28).
const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR)
    .cast_unsigned()
    | 1 << 27;

/// What is asked of the kernel for events that are not read yet; it doubles the number. Some
/// forty thousand fit: a failover of a thousand routers with their floating addresses.
const RECEIVE_BUFFER: usize = 16 << 20;

/// Where ids of ours begin, far above those that the kernel gives; each process of us has a
/// million of its own.
const FIRST_ID: i32 = 1 << 20;
const PROCESSES: u32 = 1 << 10;

/// How many datagrams one call to [`NetnsWatcher::read`] takes at most.
const BATCH: usize = 4096;

/// A namespace, as the kernel speaks of it to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NetnsRef {
    /// The one we are in.
    Here,
    /// Another, by its id in ours.
    There(i32),
}

/// A link that a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEvent {
    /// Its index.
    pub link: LinkIndex,
    /// Its name now; `None` if the message has none.
    pub name: Option<LinkName>,
}

/// What was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetnsEvent {
    /// An address was added, removed or changed; `None` if the message could not be read.
    Address(NetnsRef, Option<IpAddr>),
    /// A link was added, removed or changed; `None` if the message could not be read.
    Link(NetnsRef, Option<LinkEvent>),
    /// A namespace has gone, and its id with it.
    Gone(NetnsRef),
    /// Events were lost: everything must be asked again.
    Lost,
}

/// All namespaces of a node.
#[derive(Debug)]
pub struct NetnsWatcher {
    backend: Backend,
}

/// How they are heard.
#[derive(Debug)]
enum Backend {
    /// One socket for all.
    SharedSocket(SharedSocket),
    /// One in each.
    PerNetnsSockets(PerNetnsSockets, io::Error),
}

impl NetnsWatcher {
    /// Listens, from the namespace of the calling thread, to all others; in each of them, if
    /// they cannot be heard from here.
    pub fn open() -> io::Result<Self> {
        let backend = match SharedSocket::open() {
            Ok(one) => Backend::SharedSocket(one),
            Err(why) => Backend::PerNetnsSockets(PerNetnsSockets::open()?, why),
        };
        Ok(Self { backend })
    }

    /// Listens in each namespace, although it may not be necessary.
    pub fn open_per_netns() -> io::Result<Self> {
        let why = io::Error::other("it was asked for");
        Ok(Self { backend: Backend::PerNetnsSockets(PerNetnsSockets::open()?, why) })
    }

    /// Why one socket for all namespaces could not be had; `None` if it could.
    pub fn fallback_reason(&self) -> Option<&io::Error> {
        match &self.backend {
            Backend::SharedSocket(_) => None,
            Backend::PerNetnsSockets(_, why) => Some(why),
        }
    }

    /// How many sockets listen.
    pub fn sockets(&self) -> usize {
        match &self.backend {
            Backend::SharedSocket(_) => 1,
            Backend::PerNetnsSockets(each, _) => each.sockets(),
        }
    }

    /// How we will speak of `netns` from now on.
    pub fn adopt(&mut self, netns: &Netns) -> io::Result<NetnsRef> {
        match &mut self.backend {
            Backend::SharedSocket(one) => one.adopt(netns),
            Backend::PerNetnsSockets(each, _) => each.adopt(netns),
        }
    }

    /// Whether `place` still stands for `netns`.
    pub fn is_still(&mut self, netns: &Netns, place: NetnsRef) -> bool {
        match &mut self.backend {
            Backend::SharedSocket(one) => one.is_still(netns, place),
            Backend::PerNetnsSockets(each, _) => each.is_still(netns, place),
        }
    }

    /// Lets go of every namespace but those that are wanted.
    pub fn keep_only(&mut self, is_wanted: impl Fn(NetnsRef) -> bool) {
        if let Backend::PerNetnsSockets(each, _) = &mut self.backend {
            each.keep_only(is_wanted);
        }
    }

    /// Everything in a namespace, now. [`WatchError::Dump`] with `EINVAL` means that it has
    /// gone.
    pub fn snapshot(&mut self, place: NetnsRef) -> Result<Snapshot, WatchError> {
        match &mut self.backend {
            Backend::SharedSocket(one) => one.query.snapshot(place),
            Backend::PerNetnsSockets(each, _) => each.snapshot(place),
        }
    }

    /// These links of a namespace and their addresses, now. Errors are as those of [`Self::snapshot`].
    pub fn snapshot_links(
        &mut self,
        place: NetnsRef,
        links: &[LinkName],
    ) -> Result<Snapshot, WatchError> {
        match &mut self.backend {
            Backend::SharedSocket(one) => one.query.snapshot_links(place, links),
            Backend::PerNetnsSockets(each, _) => each.snapshot(place),
        }
    }

    /// Takes what is queued, without waiting. News of one kind about one namespace that come in
    /// a row are told once.
    pub fn read(&mut self, heard: &mut Vec<NetnsEvent>) -> io::Result<()> {
        match &mut self.backend {
            Backend::SharedSocket(one) => one.read(heard),
            Backend::PerNetnsSockets(each, _) => each.read(heard),
        }
    }

    /// Whether something is queued.
    pub fn is_ready(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for NetnsWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.backend {
            Backend::SharedSocket(one) => one.events.as_fd(),
            Backend::PerNetnsSockets(each, _) => each.as_fd(),
        }
    }
}

/// One socket for all namespaces.
#[derive(Debug)]
struct SharedSocket {
    /// Hears.
    events: OwnedFd,
    query: NetnsQuery,
    /// Our own namespace may have an id too, and is then spoken of by it.
    own: Option<i32>,
}

impl SharedSocket {
    /// Takes `CAP_NET_BROADCAST`, and `CAP_NET_ADMIN` for asking.
    fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let events = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        switch_on(events.as_fd(), libc::NETLINK_LISTEN_ALL_NSID)?;
        if sockopt::set_socket_recv_buffer_size_force(&events, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&events, RECEIVE_BUFFER)?;
        }
        bind(&events, &SocketAddrNetlink::new(0, GROUPS))?;
        let mut one = Self { events, query: NetnsQuery::open()?, own: None };
        one.own = one.own_id();
        Ok(one)
    }

    fn own_id(&mut self) -> Option<i32> {
        let own = open_current().ok()?;
        self.query.id_of(own.as_fd()).ok()?
    }

    /// A namespace gets an id if it has none.
    fn adopt(&mut self, netns: &Netns) -> io::Result<NetnsRef> {
        if NetnsId::current()? == netns.id() {
            return Ok(NetnsRef::Here);
        }
        if let Some(id) = self.query.id_of(netns.as_fd())? {
            return Ok(NetnsRef::There(id));
        }
        loop {
            let id = next_id();
            let request = NetlinkRequest::new(libc::RTM_NEWNSID, libc::NLM_F_ACK)
                .generic()
                .number(message::NETNSA_NSID, id.cast_unsigned())
                .number(message::NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
            match self.query.ask(request)? {
                NetlinkAnswer::Done => return Ok(NetnsRef::There(id)),
                // Somebody was quicker, or has this number.
                NetlinkAnswer::Refused(libc::EEXIST) => {
                    if let Some(id) = self.query.id_of(netns.as_fd())? {
                        return Ok(NetnsRef::There(id));
                    }
                }
                NetlinkAnswer::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                NetlinkAnswer::Id(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    fn is_still(&mut self, netns: &Netns, place: NetnsRef) -> bool {
        match place {
            NetnsRef::Here => NetnsId::current().is_ok_and(|current| current == netns.id()),
            NetnsRef::There(id) => {
                self.query.id_of(netns.as_fd()).is_ok_and(|found| found == Some(id))
            }
        }
    }
}

impl SharedSocket {
    fn read(&mut self, heard: &mut Vec<NetnsEvent>) -> io::Result<()> {
        let mut buffer = [0_u8; 16 << 10];
        let mut is_lost = false;
        let mut is_numbered = false;
        let mut count = 0;
        // After an overrun the kernel drops everything, without another word, until the queue
        // is empty. So it is emptied first: what is asked before would be out of date unseen.
        while is_lost || count < BATCH {
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
            let is_own = matches!(mark, NetnsRef::There(id) if self.own == Some(id));
            let place = if is_own { NetnsRef::Here } else { mark };
            for envelope in envelopes(&buffer[..length.min(buffer.len())]) {
                let Ok((header, body)) = envelope else {
                    is_lost = true;
                    break;
                };
                let news = match header.kind {
                    libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                        let Some(news) = message::address_event(place, body) else { continue };
                        news
                    }
                    libc::RTM_NEWLINK | libc::RTM_DELLINK => {
                        let Some(news) = message::link_event(place, body) else { continue };
                        news
                    }
                    // Fact 3.
                    libc::RTM_DELNSID if place == NetnsRef::Here => match message::nsid(body) {
                        Some(id) => NetnsEvent::Gone(NetnsRef::There(id)),
                        None => NetnsEvent::Lost,
                    },
                    // It may be ours.
                    libc::RTM_NEWNSID if place == NetnsRef::Here => {
                        is_numbered = true;
                        continue;
                    }
                    _ => continue,
                };
                if heard.last() != Some(&news) {
                    heard.push(news);
                }
            }
        }
        if is_numbered {
            let own = self.own_id();
            // What came under the new number meanwhile was not understood.
            is_lost |= own != self.own;
            self.own = own;
        }
        if is_lost {
            heard.push(NetnsEvent::Lost);
        }
        Ok(())
    }
}

/// An id that this process has not given before.
fn next_id() -> i32 {
    static GIVEN: AtomicI32 = AtomicI32::new(0);
    let ours = i32::try_from(std::process::id() % PROCESSES).unwrap_or(0);
    FIRST_ID + ours * FIRST_ID + GIVEN.fetch_add(1, Ordering::Relaxed) % FIRST_ID
}

/// Turns a `NETLINK_*` option on.
pub(crate) fn switch_on(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the value outlives the call, and has the size that is said.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const on).cast(), 4)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The next datagram's length, and the namespace it is marked with. Only the kernel is
/// believed: what another process sends is empty here.
fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<(usize, NetnsRef)> {
    let mut from = MaybeUninit::<libc::sockaddr_nl>::zeroed();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Room for one number, aligned as the kernel wants it.
    let mut control = [0_u64; 8];
    // SAFETY: all zeroes is a value of this plain data.
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
    // SAFETY: zeroed before, and all zeroes is a value too.
    if unsafe { from.assume_init() }.nl_pid != 0 {
        return Ok((0, NetnsRef::Here));
    }
    let mut place = NetnsRef::Here;
    // SAFETY: the macros walk over the control buffer, within the length that the kernel set;
    // the number is read without asking for its alignment.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(&raw const header);
        while !entry.is_null() {
            let is_mark = (*entry).cmsg_level == libc::SOL_NETLINK
                && (*entry).cmsg_type == libc::NETLINK_LISTEN_ALL_NSID;
            if is_mark {
                place = NetnsRef::There(libc::CMSG_DATA(entry).cast::<i32>().read_unaligned());
            }
            entry = libc::CMSG_NXTHDR(&raw const header, entry);
        }
    }
    Ok((length, place))
}
