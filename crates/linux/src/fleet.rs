//! Watches every network namespace of a node through one socket.
//!
//! The kernel tells a listener with `NETLINK_LISTEN_ALL_NSID` what happens in every namespace
//! that has an id in the listener's own, and marks each message with that id. A message says
//! *where* something happened, and which link or address it is about; the state is found by asking that
//! namespace ([`Fleet::survey_links`]), which can never be out of step.
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
//! Where the kernel or our rights do not allow this, [`each`] listens in every namespace with a
//! socket of its own, and says so ([`Fleet::hardship`]).

mod asker;
mod each;
mod message;

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use vipwatch_core::announce::Survey;
use vipwatch_core::{LinkIndex, LinkName};

pub use self::asker::Asker;
use self::each::Each;
use self::message::{Answer, Request};
use crate::monitor::WatchError;
use crate::netlink::decode::envelopes;
use crate::netns::{Netns, NetnsId, open_current};

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

/// How many datagrams one call to [`Fleet::read`] takes at most.
const BATCH: usize = 4096;

/// A namespace, as the kernel speaks of it to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Where {
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
pub enum Heard {
    /// An address was added, removed or changed; `None` if the message could not be read.
    Address(Where, Option<IpAddr>),
    /// A link was added, removed or changed; `None` if the message could not be read.
    Link(Where, Option<LinkEvent>),
    /// A namespace has gone, and its id with it.
    Gone(Where),
    /// Events were lost: everything must be asked again.
    Lost,
}

/// All namespaces of a node.
#[derive(Debug)]
pub struct Fleet {
    ears: Ears,
}

/// How they are heard.
#[derive(Debug)]
enum Ears {
    /// One socket for all.
    One(One),
    /// One in each.
    Each(Each, io::Error),
}

impl Fleet {
    /// Listens, from the namespace of the calling thread, to all others; in each of them, if
    /// they cannot be heard from here.
    pub fn open() -> io::Result<Self> {
        let ears = match One::open() {
            Ok(one) => Ears::One(one),
            Err(why) => Ears::Each(Each::open()?, why),
        };
        Ok(Self { ears })
    }

    /// Listens in each namespace, although it may not be necessary.
    pub fn open_each() -> io::Result<Self> {
        let why = io::Error::other("it was asked for");
        Ok(Self { ears: Ears::Each(Each::open()?, why) })
    }

    /// Why one socket for all namespaces could not be had; `None` if it could.
    pub fn hardship(&self) -> Option<&io::Error> {
        match &self.ears {
            Ears::One(_) => None,
            Ears::Each(_, why) => Some(why),
        }
    }

    /// How many sockets listen.
    pub fn sockets(&self) -> usize {
        match &self.ears {
            Ears::One(_) => 1,
            Ears::Each(each, _) => each.sockets(),
        }
    }

    /// How we will speak of `netns` from now on.
    pub fn adopt(&mut self, netns: &Netns) -> io::Result<Where> {
        match &mut self.ears {
            Ears::One(one) => one.adopt(netns),
            Ears::Each(each, _) => each.adopt(netns),
        }
    }

    /// Whether `place` still stands for `netns`.
    pub fn is_still(&mut self, netns: &Netns, place: Where) -> bool {
        match &mut self.ears {
            Ears::One(one) => one.is_still(netns, place),
            Ears::Each(each, _) => each.is_still(netns, place),
        }
    }

    /// Lets go of every namespace but those that are wanted.
    pub fn keep_only(&mut self, is_wanted: impl Fn(Where) -> bool) {
        if let Ears::Each(each, _) = &mut self.ears {
            each.keep_only(is_wanted);
        }
    }

    /// Everything in a namespace, now. [`WatchError::Dump`] with `EINVAL` means that it has
    /// gone.
    pub fn survey(&mut self, place: Where) -> Result<Survey, WatchError> {
        match &mut self.ears {
            Ears::One(one) => one.asker.survey(place),
            Ears::Each(each, _) => each.survey(place),
        }
    }

    /// These links of a namespace and their addresses, now. Errors are as those of [`Self::survey`].
    pub fn survey_links(&mut self, place: Where, links: &[LinkName]) -> Result<Survey, WatchError> {
        match &mut self.ears {
            Ears::One(one) => one.asker.survey_links(place, links),
            Ears::Each(each, _) => each.survey(place),
        }
    }

    /// Takes what is queued, without waiting. News of one kind about one namespace that come in
    /// a row are told once.
    pub fn read(&mut self, heard: &mut Vec<Heard>) -> io::Result<()> {
        match &mut self.ears {
            Ears::One(one) => one.read(heard),
            Ears::Each(each, _) => each.read(heard),
        }
    }

    /// Whether something is queued.
    pub fn is_ready(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Fleet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.ears {
            Ears::One(one) => one.events.as_fd(),
            Ears::Each(each, _) => each.as_fd(),
        }
    }
}

/// One socket for all namespaces.
#[derive(Debug)]
struct One {
    /// Hears.
    events: OwnedFd,
    asker: Asker,
    /// Our own namespace may have an id too, and is then spoken of by it.
    own: Option<i32>,
}

impl One {
    /// Takes `CAP_NET_BROADCAST`, and `CAP_NET_ADMIN` for asking.
    fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let events = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        switch_on(events.as_fd(), libc::NETLINK_LISTEN_ALL_NSID)?;
        if sockopt::set_socket_recv_buffer_size_force(&events, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&events, RECEIVE_BUFFER)?;
        }
        bind(&events, &SocketAddrNetlink::new(0, GROUPS))?;
        let mut one = Self { events, asker: Asker::open()?, own: None };
        one.own = one.own_id();
        Ok(one)
    }

    fn own_id(&mut self) -> Option<i32> {
        let own = open_current().ok()?;
        self.asker.id_of(own.as_fd()).ok()?
    }

    /// A namespace gets an id if it has none.
    fn adopt(&mut self, netns: &Netns) -> io::Result<Where> {
        if NetnsId::current()? == netns.id() {
            return Ok(Where::Here);
        }
        if let Some(id) = self.asker.id_of(netns.as_fd())? {
            return Ok(Where::There(id));
        }
        loop {
            let id = next_id();
            let request = Request::new(libc::RTM_NEWNSID, libc::NLM_F_ACK)
                .generic()
                .number(message::NETNSA_NSID, id.cast_unsigned())
                .number(message::NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
            match self.asker.ask(request)? {
                Answer::Done => return Ok(Where::There(id)),
                // Somebody was quicker, or has this number.
                Answer::Refused(libc::EEXIST) => {
                    if let Some(id) = self.asker.id_of(netns.as_fd())? {
                        return Ok(Where::There(id));
                    }
                }
                Answer::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                Answer::Id(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    fn is_still(&mut self, netns: &Netns, place: Where) -> bool {
        match place {
            Where::Here => NetnsId::current().is_ok_and(|current| current == netns.id()),
            Where::There(id) => {
                self.asker.id_of(netns.as_fd()).is_ok_and(|found| found == Some(id))
            }
        }
    }
}

impl One {
    fn read(&mut self, heard: &mut Vec<Heard>) -> io::Result<()> {
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
            let is_own = matches!(mark, Where::There(id) if self.own == Some(id));
            let place = if is_own { Where::Here } else { mark };
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
                    libc::RTM_DELNSID if place == Where::Here => match message::nsid(body) {
                        Some(id) => Heard::Gone(Where::There(id)),
                        None => Heard::Lost,
                    },
                    // It may be ours.
                    libc::RTM_NEWNSID if place == Where::Here => {
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
            heard.push(Heard::Lost);
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
fn switch_on(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the value outlives the call, and has the size that is said.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const on).cast(), 4)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The next datagram's length, and the namespace it is marked with. Only the kernel is
/// believed: what another process sends is empty here.
fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<(usize, Where)> {
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
        return Ok((0, Where::Here));
    }
    let mut place = Where::Here;
    // SAFETY: the macros walk over the control buffer, within the length that the kernel set;
    // the number is read without asking for its alignment.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(&raw const header);
        while !entry.is_null() {
            let is_mark = (*entry).cmsg_level == libc::SOL_NETLINK
                && (*entry).cmsg_type == libc::NETLINK_LISTEN_ALL_NSID;
            if is_mark {
                place = Where::There(libc::CMSG_DATA(entry).cast::<i32>().read_unaligned());
            }
            entry = libc::CMSG_NXTHDR(&raw const header, entry);
        }
    }
    Ok((length, place))
}
