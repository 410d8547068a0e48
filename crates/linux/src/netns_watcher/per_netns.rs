// SPDX-License-Identifier: Apache-2.0
//! One netlink socket in each namespace, where a shared socket is not possible: kernels before 4.20, or no
//! `CAP_NET_BROADCAST`.
//!
//! A socket keeps its namespace alive, so the kernel never reports that a watched namespace was removed. The caller
//! must therefore call [`PerNetnsSockets::keep_only`] when names of namespaces have been removed.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use vipwatch_core::snapshot::Snapshot;

use super::event::{NetnsEvent, address_event, link_event};
use crate::monitor::WatchError;
use crate::netlink::decode::envelopes;
use crate::netlink::socket::{Received, Scratch, Socket};
use crate::netns::{Netns, NetnsId};
use crate::netns_query::{NetnsQuery, NetnsRef};

/// Maximum number of datagrams of one namespace in one read.
const MAX_DATAGRAMS_PER_READ: usize = 1024;

/// The sockets in one namespace.
#[derive(Debug)]
struct NetnsSockets {
    id: NetnsId,
    events: Socket,
    query: NetnsQuery,
}

impl NetnsSockets {
    /// Opens the sockets in the namespace of the calling thread; `id` is the identity of that namespace.
    fn open(id: NetnsId) -> Result<Self, WatchError> {
        let events = Socket::open_subscribed().map_err(WatchError::Open)?;
        Ok(Self { id, events, query: NetnsQuery::open_own()? })
    }

    fn read(&mut self, netns: NetnsRef, events: &mut Vec<NetnsEvent>) -> io::Result<()> {
        let mut scratch: Scratch = [0; _];
        let mut is_lost = false;
        let mut count = 0;
        // As in the shared socket: after an overrun, only an empty queue takes messages again.
        while is_lost || count < MAX_DATAGRAMS_PER_READ {
            count += 1;
            let bytes = match self.events.receive(&mut scratch)? {
                Received::Datagram(bytes) => bytes,
                Received::QueueEmpty => break,
                Received::Truncated | Received::Overrun => {
                    is_lost = true;
                    continue;
                }
            };
            for envelope in envelopes(bytes) {
                let event = match envelope {
                    Ok((header, body)) => match header.kind {
                        libc::RTM_NEWADDR | libc::RTM_DELADDR => address_event(netns, header, body),
                        libc::RTM_NEWLINK | libc::RTM_DELLINK => link_event(netns, body),
                        _ => None,
                    },
                    Err(_) => Some(NetnsEvent::Lost),
                };
                if let Some(event) = event.filter(|event| events.last() != Some(event)) {
                    events.push(event);
                }
            }
        }
        if is_lost {
            events.push(NetnsEvent::Lost);
        }
        Ok(())
    }
}

/// The sockets of all watched namespaces.
#[derive(Debug)]
pub(super) struct PerNetnsSockets {
    /// Waits for all event sockets at once; the data of each entry is the number of its [`NetnsRef`].
    epoll: OwnedFd,
    by_netns: BTreeMap<NetnsRef, NetnsSockets>,
    /// The number that the last added namespace got. The kernel's ids are not used here.
    last_number: i32,
}

impl PerNetnsSockets {
    pub(super) fn open() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut all = Self { epoll, by_netns: BTreeMap::new(), last_number: 0 };
        let own = NetnsSockets::open(NetnsId::current()?).map_err(io::Error::other)?;
        all.register(NetnsRef::Own, own)?;
        Ok(all)
    }

    fn register(&mut self, netns: NetnsRef, sockets: NetnsSockets) -> io::Result<()> {
        let number = match netns {
            NetnsRef::Own => 0,
            NetnsRef::Peer(id) => u64::from(id.cast_unsigned()),
        };
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, &sockets.events, data, epoll::EventFlags::IN)?;
        self.by_netns.insert(netns, sockets);
        Ok(())
    }

    pub(super) fn sockets(&self) -> usize {
        self.by_netns.len()
    }

    pub(super) fn watch(&mut self, netns: &Netns) -> io::Result<NetnsRef> {
        let id = netns.id();
        if let Some((known, _)) = self.by_netns.iter().find(|(_, sockets)| sockets.id == id) {
            return Ok(*known);
        }
        let sockets = netns.visit(|| NetnsSockets::open(id)).map_err(io::Error::other)?;
        self.last_number = self.last_number.checked_add(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        let added = NetnsRef::Peer(self.last_number);
        self.register(added, sockets.map_err(io::Error::other)?)?;
        Ok(added)
    }

    /// A namespace keeps its identity ([`NetnsId`]) while a socket is open in it, so a comparison is enough.
    pub(super) fn refers_to(&self, netns_ref: NetnsRef, netns: &Netns) -> bool {
        self.by_netns.get(&netns_ref).is_some_and(|sockets| sockets.id == netns.id())
    }

    pub(super) fn keep_only(&mut self, is_wanted: impl Fn(NetnsRef) -> bool) {
        // The kernel removes a closed socket from the epoll set.
        self.by_netns.retain(|netns, _| *netns == NetnsRef::Own || is_wanted(*netns));
    }

    pub(super) fn snapshot(&mut self, netns: NetnsRef) -> Result<Snapshot, WatchError> {
        let sockets = self.by_netns.get_mut(&netns);
        // The same error as the kernel's for an id that does not exist.
        let gone = || WatchError::Dump(io::Error::from_raw_os_error(libc::EINVAL));
        sockets.ok_or_else(gone)?.query.own_snapshot()
    }

    pub(super) fn read(&mut self, events: &mut Vec<NetnsEvent>) -> io::Result<()> {
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); 256];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (ready, _) = match epoll::wait(&self.epoll, &mut ready, Some(&no_wait)) {
            Err(Errno::INTR) => return Ok(()),
            ready => ready?,
        };
        for event in ready {
            let netns = match i32::try_from(event.data.u64()) {
                Ok(0) | Err(_) => NetnsRef::Own,
                Ok(number) => NetnsRef::Peer(number),
            };
            if let Some(sockets) = self.by_netns.get_mut(&netns) {
                sockets.read(netns, events)?;
            }
        }
        Ok(())
    }
}

as_fd!(PerNetnsSockets.epoll);
