// SPDX-License-Identifier: Apache-2.0
//! Reads the links and addresses of a network namespace once: of the caller's own, or of another one.
//!
//! Another namespace is read in one of two ways:
//!
//! - from outside, by the id that it has in the caller's namespace. That needs Linux 4.20 and `CAP_NET_ADMIN`, and no
//!   thread enters the namespace ([`NetnsQuery::snapshot`]).
//! - from inside, on a thread that enters it ([`NetnsQuery::snapshot_by_visit`]).
//!
//! To follow changes, use [`crate::monitor`] (one namespace) or [`crate::netns_watcher`] (all namespaces of a node).

pub(crate) mod request;
mod routing;

#[cfg(fuzzing)]
pub use self::routing::fuzzing;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use vipwatch_core::snapshot::{LinkFacts, Snapshot};
use vipwatch_core::{LinkName, NetnsName};

use self::request::{NetlinkAnswer, NetlinkRequest};
use crate::monitor::WatchError;
use crate::netlink::decode::facts::link_facts;
use crate::netlink::decode::{Malformed, envelopes};
use crate::netlink::dump::{DumpQuality, DumpResult, collect};
use crate::netlink::socket::{Received, Scratch, Socket, enable_option};
use crate::netns::{Netns, NetnsError, NetnsId, visit};

pub use self::routing::{RoutingError, routing_tables};

/// How often the caller's own namespace is read again when it changes during the dump. The last result is then used
/// as it is: every user of it reads the namespace again before its next step.
const OWN_ATTEMPTS: u32 = 3;

/// How often any namespace is read again when it changes during the dump, before the query fails.
const ATTEMPTS: u32 = 10;

/// [`NetnsQuery::snapshot_links`] reads all links of the namespace if more than this many are wanted: one dump is then
/// faster than one request for each link.
const MAX_SINGLE_LINKS: usize = 256;

/// A network namespace, as netlink messages refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NetnsRef {
    /// The namespace of the netlink socket.
    Own,
    /// Another namespace, by the id that it has in the own one.
    Peer(i32),
}

/// Why a namespace could not be read by its name.
#[derive(Debug, thiserror::Error)]
pub enum NetnsQueryError {
    /// The namespace does not exist, or cannot be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The namespace exists, but its links and addresses cannot be read.
    #[error(transparent)]
    Snapshot(#[from] WatchError),
}

/// A netlink socket for queries.
#[derive(Debug)]
pub struct NetnsQuery {
    socket: Socket,
    /// The sequence number of the last request.
    sequence: u32,
}

impl NetnsQuery {
    /// Opens a query for the namespace of the calling thread only. It needs no privilege; use
    /// [`Self::own_snapshot`] with it.
    pub fn open_own() -> Result<Self, WatchError> {
        let socket = Socket::open_for_queries().map_err(WatchError::Open)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Opens a query for the namespace of the calling thread and for all others that have an id in it. It fails before
    /// Linux 4.20. Queries about other namespaces need `CAP_NET_ADMIN`.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open_for_queries()?;
        enable_option(socket.as_fd(), libc::NETLINK_GET_STRICT_CHK)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Reads all links and addresses of the namespace of the socket. If they keep changing, the result is that of the
    /// third attempt and may mix states before and after a change.
    pub fn own_snapshot(&mut self) -> Result<Snapshot, WatchError> {
        let mut snapshot = Snapshot::default();
        for _ in 0..OWN_ATTEMPTS {
            snapshot = Snapshot::default();
            let links = self.dump_own(libc::RTM_GETLINK, &mut snapshot)?;
            let addresses = self.dump_own(libc::RTM_GETADDR, &mut snapshot)?;
            if (links, addresses) == (DumpQuality::Consistent, DumpQuality::Consistent) {
                break;
            }
        }
        snapshot.sort_addresses();
        Ok(snapshot)
    }

    fn dump_own(&mut self, kind: u16, snapshot: &mut Snapshot) -> Result<DumpQuality, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.request_dump(kind, self.sequence).map_err(WatchError::Request)?;
        let result = collect(&mut self.socket, self.sequence, snapshot, |_, _| true)?;
        Ok(result.quality)
    }

    /// Reads the namespace with this name, or the caller's own if it is `None`: from outside if possible, otherwise on
    /// a thread that enters it.
    pub fn snapshot_by_name(
        &mut self,
        netns: Option<&NetnsName>,
    ) -> Result<Snapshot, NetnsQueryError> {
        self.snapshot_from_outside(netns).map_or_else(|| Self::snapshot_by_visit(netns), Ok)
    }

    fn snapshot_from_outside(&mut self, netns: Option<&NetnsName>) -> Option<Snapshot> {
        let netns = match netns {
            Some(name) => self.netns_ref(&Netns::open(name).ok()?).ok()??,
            None => NetnsRef::Own,
        };
        self.snapshot(netns).ok()
    }

    /// Reads the namespace with this name on a thread that enters it; the caller's own, if it is `None`, on the calling
    /// thread.
    pub fn snapshot_by_visit(netns: Option<&NetnsName>) -> Result<Snapshot, NetnsQueryError> {
        Ok(visit(netns, || Self::open_own()?.own_snapshot())??)
    }

    /// The reference to `netns` in netlink messages; `None` if it has no id in the namespace of the calling thread, so
    /// that it cannot be read from outside.
    pub fn netns_ref(&mut self, netns: &Netns) -> io::Result<Option<NetnsRef>> {
        if NetnsId::current()? == netns.id() {
            return Ok(Some(NetnsRef::Own));
        }
        Ok(self.netns_id(netns.as_fd())?.map(NetnsRef::Peer))
    }

    /// The id of a namespace in the namespace of the calling thread; `None` if it has none.
    pub(crate) fn netns_id(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let request = NetlinkRequest::new(libc::RTM_GETNSID, 0)
            .generic_header()
            .number(request::NETNSA_FD, netns.as_raw_fd().cast_unsigned());
        match self.exchange(request)? {
            // The kernel answers -1 if there is no id.
            NetlinkAnswer::Id(id) => Ok(Some(id).filter(|id| *id >= 0)),
            NetlinkAnswer::Refused(errno) => Err(io::Error::from_raw_os_error(errno)),
            NetlinkAnswer::Done => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Sends a request that has one message as its answer, and reads the answer.
    pub(crate) fn exchange(&mut self, request: NetlinkRequest) -> io::Result<NetlinkAnswer> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request.finish(self.sequence))?;
        let mut scratch: Scratch = [0; _];
        loop {
            match self.socket.receive(&mut scratch)? {
                Received::Datagram(bytes) => {
                    for (header, body) in envelopes(bytes).flatten() {
                        if header.sequence == self.sequence
                            && let Some(answer) = NetlinkAnswer::decode(header.kind, body)
                        {
                            return Ok(answer);
                        }
                    }
                }
                // The kernel queues the answer before `send` returns, so there is nothing to wait for.
                Received::QueueEmpty | Received::Truncated | Received::Overrun => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }

    /// Reads all links and addresses of a namespace. Fails with [`WatchError::Incomplete`] if they keep changing.
    pub fn snapshot(&mut self, netns: NetnsRef) -> Result<Snapshot, WatchError> {
        for _ in 0..ATTEMPTS {
            let mut snapshot = Snapshot::default();
            let mut results =
                vec![self.dump(NetlinkRequest::links(netns), netns, &mut snapshot)?];
            for family in [libc::AF_INET, libc::AF_INET6] {
                let request = NetlinkRequest::addresses(netns, family, None);
                results.push(self.dump(request, netns, &mut snapshot)?);
            }
            if results.iter().all(|result| result.quality == DumpQuality::Consistent) {
                snapshot.sort_addresses();
                return Ok(snapshot);
            }
        }
        Err(WatchError::Incomplete)
    }

    /// Reads only these links of a namespace, with their addresses. Other links neither make the answer longer nor
    /// disturb it when they change. Where the kernel cannot select links, the whole namespace is read.
    pub fn snapshot_links(
        &mut self,
        netns: NetnsRef,
        links: &[LinkName],
    ) -> Result<Snapshot, WatchError> {
        if links.len() > MAX_SINGLE_LINKS {
            return self.snapshot(netns);
        }
        match self.collect_links(netns, links) {
            Ok(Some(snapshot)) => Ok(snapshot),
            Ok(None) | Err(WatchError::Dump(_) | WatchError::Malformed(_)) => self.snapshot(netns),
            Err(error) => Err(error),
        }
    }

    /// `None` if a link was removed meanwhile, or if its addresses need more than one datagram: the kernel then does
    /// not report whether they changed between two datagrams.
    fn collect_links(
        &mut self,
        netns: NetnsRef,
        links: &[LinkName],
    ) -> Result<Option<Snapshot>, WatchError> {
        let mut snapshot = Snapshot::default();
        for name in links {
            let Some(facts) = self.link(netns, *name)? else { continue };
            for family in [libc::AF_INET, libc::AF_INET6] {
                let request = NetlinkRequest::addresses(netns, family, Some(facts.link));
                let result = self.dump(request, netns, &mut snapshot)?;
                if result.quality != DumpQuality::Consistent || result.datagrams > 1 {
                    return Ok(None);
                }
            }
            snapshot.links.push(facts);
        }
        snapshot.sort_addresses();
        Ok(Some(snapshot))
    }

    /// Reads one link of the namespace by its name, or of the caller's own if `netns` is `None`; `None` if there is no such
    /// link. Unlike `SIOCGIFINDEX`, it never makes the kernel load a module.
    pub fn link_by_name(
        &mut self,
        netns: Option<&Netns>,
        name: LinkName,
    ) -> Result<Option<LinkFacts>, NetnsQueryError> {
        let Some(netns) = netns else { return Ok(self.link(NetnsRef::Own, name)?) };
        if let Ok(Some(netns)) = self.netns_ref(netns)
            && let Ok(found) = self.link(netns, name)
        {
            return Ok(found);
        }
        Ok(netns.visit(|| Self::open_own()?.link(NetnsRef::Own, name))??)
    }

    /// Reads one link of a namespace by its name; `None` if there is no such link.
    fn link(&mut self, netns: NetnsRef, name: LinkName) -> Result<Option<LinkFacts>, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = NetlinkRequest::link(netns, name).finish(self.sequence);
        self.socket.send(&request).map_err(WatchError::Request)?;
        let mut scratch: Scratch = [0; _];
        loop {
            // The kernel queues the answer before `send` returns, so there is nothing to wait for.
            let datagram = match self.socket.receive(&mut scratch).map_err(WatchError::Receive)? {
                Received::Datagram(bytes) => bytes,
                Received::QueueEmpty | Received::Truncated | Received::Overrun => {
                    return Err(WatchError::Malformed(Malformed::Link));
                }
            };
            for (header, body) in envelopes(datagram).flatten() {
                if header.sequence != self.sequence {
                    continue;
                }
                if header.kind == libc::RTM_NEWLINK {
                    let is_about_netns = is_about(netns, header.kind, body);
                    let facts = link_facts(body).and_then(|facts| {
                        if is_about_netns { Ok(facts) } else { Err(Malformed::Link) }
                    });
                    return facts.map(Some).map_err(WatchError::Malformed);
                }
                match NetlinkAnswer::decode(header.kind, body) {
                    Some(NetlinkAnswer::Refused(libc::ENODEV)) => return Ok(None),
                    Some(NetlinkAnswer::Refused(errno)) => {
                        return Err(WatchError::Dump(io::Error::from_raw_os_error(errno)));
                    }
                    Some(NetlinkAnswer::Done | NetlinkAnswer::Id(_)) | None => {}
                }
            }
        }
    }

    fn dump(
        &mut self,
        request: NetlinkRequest,
        netns: NetnsRef,
        snapshot: &mut Snapshot,
    ) -> Result<DumpResult, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request.finish(self.sequence)).map_err(WatchError::Request)?;
        let is_about_netns = |kind, body: &[u8]| is_about(netns, kind, body);
        collect(&mut self.socket, self.sequence, snapshot, is_about_netns)
    }
}

/// Whether a message of an answer is about the namespace that the request named. Without `NETLINK_GET_STRICT_CHK` the
/// kernel ignores that name and answers about the own namespace.
fn is_about(netns: NetnsRef, kind: u16, body: &[u8]) -> bool {
    match (netns, kind) {
        (NetnsRef::Peer(id), libc::RTM_NEWLINK) => request::link_netns(body) == Some(id),
        (NetnsRef::Peer(id), libc::RTM_NEWADDR) => request::address_netns(body) == Some(id),
        _ => true,
    }
}
