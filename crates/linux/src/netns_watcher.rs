// SPDX-License-Identifier: Apache-2.0
//! Follows links and addresses of all network namespaces of a node, over one netlink socket if possible.
//!
//! The kernel sends a socket with `NETLINK_LISTEN_ALL_NSID` the events of every namespace that has an id in the
//! namespace of the socket, and marks each message with that id. An event names the namespace and the link or
//! address that changed. The current state is then read from that namespace
//! ([`NetnsWatcher::snapshot_links`]), so it does not depend on the order or the completeness of events.
//!
//! Kernel facts that this module depends on:
//!
//! 1. A namespace without an id sends no events. So the watcher assigns an id to each namespace that has none.
//! 2. The kernel reuses ids at once. The watcher assigns ids from a high range and no id twice in one process, but the
//!    kernel or another process may have assigned an id before. So a removed id is a reason to check the namespace, not
//!    a proof that it was removed.
//! 3. `RTM_DELNSID` is the only message about the removal of a namespace. Only one without a mark is about an id of the
//!    own namespace: other namespaces have id tables of their own, and the kernel reports changes of those too.
//! 4. A dump of addresses of another namespace needs `NETLINK_GET_STRICT_CHK`. Without it the kernel ignores the
//!    requested namespace and answers about the own one. So every message of an answer must name the namespace.
//! 5. The watcher keeps no namespace alive: it holds no descriptor of one.
//!
//! Where the kernel or missing privileges do not allow a shared socket, the watcher opens one socket in each namespace
//! (`per_netns`), and [`NetnsWatcher::fallback_reason`] returns why.

mod event;
mod per_netns;
mod shared_socket;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::LinkName;
use vipwatch_core::snapshot::Snapshot;

pub use self::event::{AddressEvent, ChangerMark, LinkEvent, NetnsEvent};
use self::per_netns::PerNetnsSockets;
use self::shared_socket::SharedSocket;
use crate::monitor::WatchError;
use crate::netns::Netns;
use crate::netns_query::NetnsRef;

/// Follows all network namespaces of a node.
#[derive(Debug)]
pub struct NetnsWatcher {
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    /// One socket for all namespaces.
    SharedSocket(SharedSocket),
    /// One socket in each namespace, and why the shared socket is not used.
    PerNetnsSockets(PerNetnsSockets, io::Error),
}

impl NetnsWatcher {
    /// Opens a shared socket in the namespace of the calling thread; if that fails, one socket in each namespace.
    pub fn open() -> io::Result<Self> {
        let backend = match SharedSocket::open() {
            Ok(shared) => Backend::SharedSocket(shared),
            Err(reason) => Backend::PerNetnsSockets(PerNetnsSockets::open()?, reason),
        };
        Ok(Self { backend })
    }

    /// Opens one socket in each namespace, even where a shared socket is possible.
    pub fn open_per_netns() -> io::Result<Self> {
        let reason = io::Error::other("requested by the configuration");
        Ok(Self { backend: Backend::PerNetnsSockets(PerNetnsSockets::open()?, reason) })
    }

    /// Why the watcher uses one socket in each namespace; `None` if it uses the shared socket.
    pub fn fallback_reason(&self) -> Option<&io::Error> {
        match &self.backend {
            Backend::SharedSocket(_) => None,
            Backend::PerNetnsSockets(_, reason) => Some(reason),
        }
    }

    /// The number of sockets that receive events.
    pub fn sockets(&self) -> usize {
        match &self.backend {
            Backend::SharedSocket(_) => 1,
            Backend::PerNetnsSockets(each, _) => each.sockets(),
        }
    }

    /// Starts to follow `netns`, if it is not followed yet; returns the reference that its events carry.
    pub fn watch(&mut self, netns: &Netns) -> io::Result<NetnsRef> {
        match &mut self.backend {
            Backend::SharedSocket(shared) => shared.watch(netns),
            Backend::PerNetnsSockets(each, _) => each.watch(netns),
        }
    }

    /// Whether `netns_ref` still refers to `netns`.
    pub fn refers_to(&mut self, netns_ref: NetnsRef, netns: &Netns) -> bool {
        match &mut self.backend {
            Backend::SharedSocket(shared) => shared.refers_to(netns_ref, netns),
            Backend::PerNetnsSockets(each, _) => each.refers_to(netns_ref, netns),
        }
    }

    /// Stops to follow the namespaces for which `is_wanted` is false. With a shared socket there is nothing to do.
    pub fn keep_only(&mut self, is_wanted: impl Fn(NetnsRef) -> bool) {
        if let Backend::PerNetnsSockets(each, _) = &mut self.backend {
            each.keep_only(is_wanted);
        }
    }

    /// Reads all links and addresses of a namespace. [`WatchError::Dump`] with `EINVAL` means that the namespace was
    /// removed.
    pub fn snapshot(&mut self, netns: NetnsRef) -> Result<Snapshot, WatchError> {
        match &mut self.backend {
            Backend::SharedSocket(shared) => shared.query.snapshot(netns),
            Backend::PerNetnsSockets(each, _) => each.snapshot(netns),
        }
    }

    /// Reads at least these links of a namespace, with their addresses. The errors are those of [`Self::snapshot`].
    pub fn snapshot_links(
        &mut self,
        netns: NetnsRef,
        links: &[LinkName],
    ) -> Result<Snapshot, WatchError> {
        match &mut self.backend {
            Backend::SharedSocket(shared) => shared.query.snapshot_links(netns, links),
            Backend::PerNetnsSockets(each, _) => each.snapshot(netns),
        }
    }

    /// Appends the queued events to `events`, without waiting. Equal events in a row are reported once.
    pub fn read(&mut self, events: &mut Vec<NetnsEvent>) -> io::Result<()> {
        match &mut self.backend {
            Backend::SharedSocket(shared) => shared.read(events),
            Backend::PerNetnsSockets(each, _) => each.read(events),
        }
    }

    /// Whether events are queued.
    pub fn is_ready(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&no_wait)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for NetnsWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.backend {
            Backend::SharedSocket(shared) => shared.as_fd(),
            Backend::PerNetnsSockets(each, _) => each.as_fd(),
        }
    }
}
