//! Asks namespaces for their links and addresses, from outside.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use vipwatch_core::LinkName;
use vipwatch_core::snapshot::{LinkFacts, Snapshot};

use crate::monitor::WatchError;
use crate::netlink::decode::facts::link_facts;
use crate::netlink::decode::{Malformed, envelopes};
use crate::netlink::socket::{Received, Scratch, Socket};
use crate::netns::{Netns, NetnsId};
use crate::netns_watcher::message::{self, NetlinkAnswer, NetlinkRequest};
use crate::netns_watcher::{NetnsRef, switch_on};
use crate::snapshot::{Collected, DumpPart, collect};

/// How often a namespace is asked again when it changes while it answers.
const ATTEMPTS: u32 = 10;

/// With more links than that, it takes less time to ask for all.
const MOST_LINKS: usize = 256;

/// Asks other namespaces from here, without entering them.
#[derive(Debug)]
pub struct NetnsQuery {
    socket: Socket,
    sequence: u32,
}

impl NetnsQuery {
    /// Opens a socket in the namespace of the calling thread. Asking about others takes
    /// `CAP_NET_ADMIN` there.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::ask()?;
        switch_on(socket.as_fd(), libc::NETLINK_GET_STRICT_CHK)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// How the kernel speaks of a namespace; `None` if it has no id here, and cannot be asked about.
    pub fn find(&mut self, netns: &Netns) -> io::Result<Option<NetnsRef>> {
        if NetnsId::current()? == netns.id() {
            return Ok(Some(NetnsRef::Here));
        }
        Ok(self.id_of(netns.as_fd())?.map(NetnsRef::There))
    }

    /// The id of a namespace, if it has one.
    pub(crate) fn id_of(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let request = NetlinkRequest::new(libc::RTM_GETNSID, 0)
            .generic()
            .number(message::NETNSA_FD, netns.as_raw_fd().cast_unsigned());
        match self.ask(request)? {
            // -1 is how the kernel says "none".
            NetlinkAnswer::Id(id) => Ok(Some(id).filter(|id| *id >= 0)),
            NetlinkAnswer::Refused(errno) => Err(io::Error::from_raw_os_error(errno)),
            NetlinkAnswer::Done => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// One request with one answer.
    pub(crate) fn ask(&mut self, request: NetlinkRequest) -> io::Result<NetlinkAnswer> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request.finish(self.sequence))?;
        let mut scratch: Scratch = [0; _];
        loop {
            match self.socket.receive(&mut scratch)? {
                Received::Datagram(bytes) => {
                    for (header, body) in envelopes(bytes).flatten() {
                        if header.sequence == self.sequence
                            && let Some(answer) = NetlinkAnswer::read(header.kind, body)
                        {
                            return Ok(answer);
                        }
                    }
                }
                // The kernel answers before the request returns.
                Received::Quiet | Received::Truncated | Received::Overrun => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }

    /// Everything in a namespace, now.
    pub fn snapshot(&mut self, place: NetnsRef) -> Result<Snapshot, WatchError> {
        for _ in 0..ATTEMPTS {
            let mut snapshot = Snapshot::default();
            let mut parts = vec![self.dump(NetlinkRequest::links(place), place, &mut snapshot)?];
            for family in [libc::AF_INET, libc::AF_INET6] {
                let request = NetlinkRequest::addresses(place, family, None);
                parts.push(self.dump(request, place, &mut snapshot)?);
            }
            if parts.iter().all(|collected| collected.part == DumpPart::Whole) {
                snapshot.sort_addresses();
                return Ok(snapshot);
            }
        }
        Err(WatchError::Endless)
    }

    /// These links of a namespace and their addresses, now. Other links neither make the answer longer nor
    /// disturb it when they change. Where the kernel cannot answer so, it is asked for everything.
    pub fn snapshot_links(
        &mut self,
        place: NetnsRef,
        links: &[LinkName],
    ) -> Result<Snapshot, WatchError> {
        if links.len() > MOST_LINKS {
            return self.snapshot(place);
        }
        match self.collect_links(place, links) {
            Ok(Some(snapshot)) => Ok(snapshot),
            Ok(None) | Err(WatchError::Dump(_) | WatchError::Garbled(_)) => self.snapshot(place),
            Err(error) => Err(error),
        }
    }

    /// `None` if a link went meanwhile, or has more addresses than the kernel puts into one datagram: then
    /// it does not say whether they changed meanwhile.
    fn collect_links(
        &mut self,
        place: NetnsRef,
        links: &[LinkName],
    ) -> Result<Option<Snapshot>, WatchError> {
        let mut snapshot = Snapshot::default();
        for name in links {
            let Some(facts) = self.link(place, *name)? else { continue };
            for family in [libc::AF_INET, libc::AF_INET6] {
                let request = NetlinkRequest::addresses(place, family, Some(facts.link));
                let collected = self.dump(request, place, &mut snapshot)?;
                if collected.part != DumpPart::Whole || collected.datagrams > 1 {
                    return Ok(None);
                }
            }
            snapshot.links.push(facts);
        }
        snapshot.sort_addresses();
        Ok(Some(snapshot))
    }

    /// One link of a namespace, by its name; `None` if there is none.
    fn link(&mut self, place: NetnsRef, name: LinkName) -> Result<Option<LinkFacts>, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = NetlinkRequest::link(place, name).finish(self.sequence);
        self.socket.send(&request).map_err(WatchError::Request)?;
        let mut scratch: Scratch = [0; _];
        loop {
            // The kernel answers before the request returns.
            let datagram = match self.socket.receive(&mut scratch).map_err(WatchError::Receive)? {
                Received::Datagram(bytes) => bytes,
                Received::Quiet | Received::Truncated | Received::Overrun => {
                    return Err(WatchError::Garbled(Malformed::Link));
                }
            };
            for (header, body) in envelopes(datagram).flatten() {
                if header.sequence != self.sequence {
                    continue;
                }
                if header.kind == libc::RTM_NEWLINK {
                    let is_about_it = is_about(place, header.kind, body);
                    let facts = link_facts(body).and_then(|facts| {
                        if is_about_it { Ok(facts) } else { Err(Malformed::Link) }
                    });
                    return facts.map(Some).map_err(WatchError::Garbled);
                }
                match NetlinkAnswer::read(header.kind, body) {
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
        place: NetnsRef,
        snapshot: &mut Snapshot,
    ) -> Result<Collected, WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request.finish(self.sequence)).map_err(WatchError::Request)?;
        let is_about_it = |kind, body: &[u8]| is_about(place, kind, body);
        collect(&mut self.socket, self.sequence, snapshot, is_about_it)
    }
}

/// Fact 4: whether an answer is about the namespace that was asked about.
fn is_about(place: NetnsRef, kind: u16, body: &[u8]) -> bool {
    match (place, kind) {
        (NetnsRef::There(id), libc::RTM_NEWLINK) => message::link_netns(body) == Some(id),
        (NetnsRef::There(id), libc::RTM_NEWADDR) => message::address_netns(body) == Some(id),
        _ => true,
    }
}
