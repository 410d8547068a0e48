//! Follows the instances of this node: waits, and tells what has changed. `watch` shows it,
//! `node` keeps it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vipwatch_engine::discovery::{Discovery, Found, Places, Trouble, discover};
use vipwatch_engine::roster::{Change, Roster};
use vipwatch_linux::directory::{Directories, Interest, Watched};
use vipwatch_linux::netns::DIRECTORY;

use crate::failure::{Code, Failure};

/// How often the configuration is read again, besides when namespaces come or go.
const REDISCOVER: Duration = Duration::from_secs(10);

/// How long a file must have been left alone before it is believed.
const SETTLE: Duration = Duration::from_millis(100);

/// How long news of namespaces may gather.
const GATHER: Duration = Duration::from_millis(20);

/// What waiting brought.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) changes: Vec<Change>,
    /// The caller's descriptor is ready.
    pub(crate) is_called: bool,
    /// What is wrong with the configuration now, if that is not what was wrong before.
    pub(crate) troubles: Option<Vec<Trouble>>,
}

/// Follows what `places` say there is.
#[derive(Debug)]
pub(crate) struct Follower {
    places: Places,
    ids: Vec<String>,
    directories: Directories,
    /// The names of namespaces, arriving and departing.
    names: Vec<Watched>,
    roster: Roster,
    /// What was found last.
    instances: Vec<Found>,
    troubles: Vec<Trouble>,
    /// When to look again, whatever happens.
    next: Instant,
}

impl Follower {
    /// Call while there is one thread: signals are held back.
    pub(crate) fn open(places: Places, ids: Vec<String>) -> Result<Self, Failure> {
        let directories = Directories::new().map_err(|error| waiting(&error))?;
        let roster = Roster::open().map_err(|error| {
            let message = format!("cannot listen to all namespaces: {error}");
            Failure::new(Code::NotPermitted, message).hint("run it as root")
        })?;
        Ok(Self {
            places,
            ids,
            directories,
            names: Vec::new(),
            roster,
            instances: Vec::new(),
            troubles: Vec::new(),
            next: Instant::now(),
        })
    }

    /// Looks for instances again, and tells where those stand that are new or have moved.
    pub(crate) fn rediscover(&mut self) -> News {
        self.watch_names();
        let Discovery { mut instances, troubles, spoiled, written } = discover(&self.places);
        // A file that was written just now may not be written to its end. At the start there
        // is nothing better.
        let age = written.and_then(|written| written.elapsed().ok());
        if !self.instances.is_empty() && age.is_some_and(|age| age < SETTLE) {
            self.next = Instant::now() + SETTLE;
            return News::default();
        }
        // What is wrong now was right before: the last good picture stands.
        for before in &self.instances {
            let is_found = instances.iter().any(|found| found.id == before.id);
            if !is_found && spoiled.contains(&before.file) {
                instances.push(before.clone());
            }
        }
        let is_wanted = |found: &Found| {
            let id = found.id.as_str();
            self.ids.is_empty() || self.ids.iter().any(|wanted| id.starts_with(wanted.as_str()))
        };
        instances.retain(is_wanted);
        let is_news = troubles != self.troubles;
        self.troubles.clone_from(&troubles);
        self.instances.clone_from(&instances);
        let changes = self.roster.follow(instances);
        // A name is there before its namespace is.
        let pause = if self.roster.is_waiting() { SETTLE } else { REDISCOVER };
        self.next = Instant::now() + pause;
        News { changes, is_called: false, troubles: is_news.then_some(troubles) }
    }

    /// A node may have had no such directory before.
    fn watch_names(&mut self) {
        let names = Path::new(DIRECTORY);
        if self.names.iter().any(|watched| !watched.is_still(names)) {
            self.names.clear();
        }
        if self.names.is_empty() {
            let interests = [Interest::Arrivals, Interest::Departures];
            self.names =
                interests.iter().flat_map(|one| self.directories.watch(names, *one)).collect();
        }
    }

    /// Waits until something happens, here or on the caller's own descriptor.
    pub(crate) fn wait(&mut self, own: Option<BorrowedFd<'_>>) -> Result<News, Failure> {
        let is_called = {
            let mut polled = vec![
                PollFd::from_borrowed_fd(self.roster.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.directories.as_fd(), PollFlags::IN),
            ];
            polled.extend(own.map(|own| PollFd::from_borrowed_fd(own, PollFlags::IN)));
            let left = self.next.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).ok();
            match poll(&mut polled, limit.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(News::default()),
                Err(errno) => return Err(waiting(&errno.into())),
            }
            polled.get(2).is_some_and(|own| !own.revents().is_empty())
        };
        let changes = self.roster.read().map_err(|error| waiting(&error))?;
        let mut news = News { changes, is_called, troubles: None };
        if self.directories.have_news() {
            // Many come together; and a name is there before its namespace is.
            self.next = self.next.min(Instant::now() + GATHER);
        }
        if self.next <= Instant::now() {
            let found = self.rediscover();
            news.changes.extend(found.changes);
            news.troubles = found.troubles;
        }
        Ok(news)
    }
}

fn waiting(error: &io::Error) -> Failure {
    Failure::new(Code::Missing, format!("cannot wait for events: {error}"))
}
