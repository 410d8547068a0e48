//! A socket in each namespace, for where one for all cannot be had: kernels before 4.20, or no
//! `CAP_NET_BROADCAST`.
//!
//! A socket keeps its namespace alive. So whoever uses this must say which namespaces are still
//! wanted ([`PerNetnsSockets::keep_only`]) when names have gone: the kernel does not tell.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use vipwatch_core::snapshot::Snapshot;

use super::message::{address_event, link_event};
use super::{NetnsEvent, NetnsRef};
use crate::monitor::WatchError;
use crate::netlink::decode::envelopes;
use crate::netlink::socket::{Received, Scratch, Socket};
use crate::netns::{Netns, NetnsId};
use crate::snapshot::OwnNetnsQuery;

/// How many datagrams of one namespace are taken in one go.
const BATCH: usize = 1024;

/// Our post in one namespace.
#[derive(Debug)]
struct Post {
    id: NetnsId,
    events: Socket,
    query: OwnNetnsQuery,
}

impl Post {
    /// In the namespace of the calling thread.
    fn open(id: NetnsId) -> Result<Self, WatchError> {
        let events = Socket::subscribe().map_err(WatchError::Subscribe)?;
        Ok(Self { id, events, query: OwnNetnsQuery::open()? })
    }
}

/// All posts.
#[derive(Debug)]
pub(super) struct PerNetnsSockets {
    waiting: OwnedFd,
    posts: BTreeMap<NetnsRef, Post>,
    given: i32,
}

impl PerNetnsSockets {
    pub(super) fn open() -> io::Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut each = Self { waiting, posts: BTreeMap::new(), given: 0 };
        let here = Post::open(NetnsId::current()?).map_err(io::Error::other)?;
        each.man(NetnsRef::Here, here)?;
        Ok(each)
    }

    fn man(&mut self, place: NetnsRef, post: Post) -> io::Result<()> {
        let mark = match place {
            NetnsRef::Here => 0,
            NetnsRef::There(id) => u64::from(id.cast_unsigned()),
        };
        let data = epoll::EventData::new_u64(mark);
        epoll::add(&self.waiting, &post.events, data, epoll::EventFlags::IN)?;
        self.posts.insert(place, post);
        Ok(())
    }

    pub(super) fn sockets(&self) -> usize {
        self.posts.len()
    }

    pub(super) fn adopt(&mut self, netns: &Netns) -> io::Result<NetnsRef> {
        let id = netns.id();
        if let Some((place, _)) = self.posts.iter().find(|(_, post)| post.id == id) {
            return Ok(*place);
        }
        let post = netns.visit(|| Post::open(id)).map_err(io::Error::other)?;
        self.given = self.given.checked_add(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        let place = NetnsRef::There(self.given);
        self.man(place, post.map_err(io::Error::other)?)?;
        Ok(place)
    }

    /// A socket keeps its namespace, and so its identity, from being used again.
    pub(super) fn is_still(&self, netns: &Netns, place: NetnsRef) -> bool {
        self.posts.get(&place).is_some_and(|post| post.id == netns.id())
    }

    pub(super) fn keep_only(&mut self, is_wanted: impl Fn(NetnsRef) -> bool) {
        // A socket that is closed leaves the set by itself.
        self.posts.retain(|place, _| *place == NetnsRef::Here || is_wanted(*place));
    }

    pub(super) fn snapshot(&mut self, place: NetnsRef) -> Result<Snapshot, WatchError> {
        let post = self.posts.get_mut(&place);
        // As the kernel would say.
        let gone = || WatchError::Dump(io::Error::from_raw_os_error(libc::EINVAL));
        post.ok_or_else(gone)?.query.snapshot()
    }

    pub(super) fn read(&mut self, heard: &mut Vec<NetnsEvent>) -> io::Result<()> {
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); 256];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (ready, _) = match epoll::wait(&self.waiting, &mut ready, Some(&now)) {
            Err(Errno::INTR) => return Ok(()),
            ready => ready?,
        };
        for event in ready {
            let place = match i32::try_from(event.data.u64()) {
                Ok(0) | Err(_) => NetnsRef::Here,
                Ok(id) => NetnsRef::There(id),
            };
            if let Some(post) = self.posts.get_mut(&place) {
                post.read(place, heard)?;
            }
        }
        Ok(())
    }
}

impl Post {
    fn read(&mut self, place: NetnsRef, heard: &mut Vec<NetnsEvent>) -> io::Result<()> {
        let mut scratch: Scratch = [0; _];
        for _ in 0..BATCH {
            let bytes = match self.events.receive(&mut scratch)? {
                Received::Datagram(bytes) => bytes,
                Received::Quiet => return Ok(()),
                Received::Truncated | Received::Overrun => {
                    heard.push(NetnsEvent::Lost);
                    continue;
                }
            };
            for envelope in envelopes(bytes) {
                let news = match envelope {
                    Ok((header, body)) => match header.kind {
                        libc::RTM_NEWADDR | libc::RTM_DELADDR => address_event(place, body),
                        libc::RTM_NEWLINK | libc::RTM_DELLINK => link_event(place, body),
                        _ => None,
                    },
                    Err(_) => Some(NetnsEvent::Lost),
                };
                if let Some(news) = news.filter(|news| heard.last() != Some(news)) {
                    heard.push(news);
                }
            }
        }
        Ok(())
    }
}

impl AsFd for PerNetnsSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }
}
