// SPDX-License-Identifier: Apache-2.0
//! Watches thousands of directories for changes (inotify).
//!
//! A user has 128 inotify instances by default, so this is for one process per host. See [`crate::dnotify`] for the
//! drop-in, which runs a thousand times. The watcher reports *that* something changed; the caller then reads the
//! directory. After an overflow of the event queue it reports a change of every topic.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// What a directory is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchTopic {
    /// Names of network namespaces.
    NetnsNames,
    /// Files with any name.
    Files,
    /// Directories of routers.
    Routers,
    /// Only a router's file with this name.
    RouterFile(&'static str),
    /// Sockets of Neutron's agents.
    AgentSockets,
}

/// Which names in a directory have been added or removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ChangedNames {
    /// None.
    #[default]
    None,
    /// These; one that was not text is left out.
    Some(BTreeSet<String>),
    /// Any: events were lost, or the directory itself has changed.
    Any,
}

impl ChangedNames {
    /// Adds the names of later changes.
    pub fn join(&mut self, later: Self) {
        match (&mut *self, later) {
            (Self::Any, _) | (_, Self::None) => {}
            (Self::Some(names), Self::Some(more)) => names.extend(more),
            (Self::None | Self::Some(_), later) => *self = later,
        }
    }

    /// Whether this name may have changed.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::Some(names) => names.contains(name),
            Self::Any => true,
        }
    }
}

/// Which topics have changed since the last read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectoryChanges {
    /// [`WatchTopic::NetnsNames`]
    pub netns_names: ChangedNames,
    /// [`WatchTopic::Files`]
    pub files: bool,
    /// [`WatchTopic::Routers`] or [`WatchTopic::RouterFile`]
    pub routers: bool,
    /// [`WatchTopic::AgentSockets`]
    pub agent_sockets: bool,
}

/// Watches directories; readable when something has changed in one of them.
#[derive(Debug)]
pub struct DirectoryWatcher {
    queue: OwnedFd,
    /// The topics of each watch descriptor; usually one. The paths are not stored, because there are thousands: the
    /// kernel returns the same descriptor for the same directory.
    topics: HashMap<i32, Box<[WatchTopic]>>,
}

impl DirectoryWatcher {
    /// Creates a watcher without directories.
    pub fn new() -> io::Result<Self> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { queue, topics: HashMap::new() })
    }

    /// Watches `directory` for `topic`; returns false if it is already watched for that topic.
    pub fn watch(&mut self, directory: &Path, topic: WatchTopic) -> io::Result<bool> {
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let descriptor = inotify::add_watch(&self.queue, directory, flags)?;
        let topics = self.topics.entry(descriptor).or_default();
        let is_new = !topics.contains(&topic);
        if is_new {
            *topics = topics.iter().copied().chain([topic]).collect();
        }
        Ok(is_new)
    }

    /// The number of watched directories.
    pub fn count(&self) -> usize {
        self.topics.len()
    }

    /// The topics that have changed since the last call.
    pub fn read(&mut self) -> DirectoryChanges {
        let mut changes = DirectoryChanges::default();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut gone = Vec::new();
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                // The queue is empty, or cannot be read: then only the caller's periodic scan finds changes.
                Err(_) => break,
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changes = DirectoryChanges {
                    netns_names: ChangedNames::Any,
                    files: true,
                    routers: true,
                    agent_sockets: true,
                };
                continue;
            }
            let Some(topics) = self.topics.get(&event.wd()) else { continue };
            let name = event.file_name().map(std::ffi::CStr::to_bytes);
            for topic in topics {
                match topic {
                    WatchTopic::NetnsNames => {
                        let names = name.map(|name| {
                            let name = std::str::from_utf8(name).ok().map(str::to_owned);
                            ChangedNames::Some(name.into_iter().collect())
                        });
                        changes.netns_names.join(names.unwrap_or(ChangedNames::Any));
                    }
                    WatchTopic::Files => changes.files = true,
                    WatchTopic::Routers => changes.routers = true,
                    WatchTopic::AgentSockets => changes.agent_sockets = true,
                    WatchTopic::RouterFile(wanted) => {
                        changes.routers |= name.is_none_or(|name| name == wanted.as_bytes());
                    }
                }
            }
            // The directory was removed or renamed: a later one with the same name needs a new watch.
            if event.events().intersects(ReadFlags::IGNORED | ReadFlags::MOVE_SELF) {
                gone.push(event.wd());
            }
        }
        for descriptor in gone {
            let _ = inotify::remove_watch(&self.queue, descriptor);
            self.topics.remove(&descriptor);
        }
        changes
    }
}

as_fd!(DirectoryWatcher.queue);

#[cfg(test)]
mod tests {
    use super::*;

    const NO_CHANGE: DirectoryChanges = DirectoryChanges {
        netns_names: ChangedNames::None,
        files: false,
        routers: false,
        agent_sockets: false,
    };
    const FILES: DirectoryChanges = DirectoryChanges { files: true, ..NO_CHANGE };
    const ROUTERS: DirectoryChanges = DirectoryChanges { routers: true, ..NO_CHANGE };

    fn touch(path: &Path) {
        std::fs::File::create(path).unwrap();
    }

    #[test]
    fn only_changes_of_the_watched_file_are_reported_and_not_as_those_of_an_operators() {
        let directory = tempfile::tempdir().unwrap();
        let mut watcher = DirectoryWatcher::new().unwrap();
        watcher.watch(directory.path(), WatchTopic::RouterFile("wanted")).unwrap();
        touch(&directory.path().join("other"));
        assert_eq!(watcher.read(), NO_CHANGE);
        touch(&directory.path().join("wanted"));
        assert_eq!(watcher.read(), ROUTERS);
        assert_eq!(watcher.read(), NO_CHANGE);
    }

    #[test]
    fn the_names_of_changed_namespaces_are_reported_and_a_lost_directory_is_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let mut watcher = DirectoryWatcher::new().unwrap();
        watcher.watch(directory.path(), WatchTopic::NetnsNames).unwrap();
        for name in ["a", "b"] {
            touch(&directory.path().join(name));
        }
        let mut names = watcher.read().netns_names;
        assert_eq!(names, ChangedNames::Some(["a".into(), "b".into()].into()));
        assert!(names.contains("a") && !names.contains("c"));
        std::fs::remove_dir_all(directory.path()).unwrap();
        names.join(watcher.read().netns_names);
        assert_eq!(names, ChangedNames::Any);
        assert!(names.contains("c"));
    }

    #[test]
    fn a_directory_that_was_created_again_can_be_watched_again() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("d");
        std::fs::create_dir(&directory).unwrap();
        let mut watcher = DirectoryWatcher::new().unwrap();
        watcher.watch(&directory, WatchTopic::Files).unwrap();
        std::fs::remove_dir(&directory).unwrap();
        assert_eq!((watcher.read(), watcher.count()), (FILES, 0));
        assert!(watcher.watch(&directory, WatchTopic::Files).is_err());
        std::fs::create_dir(&directory).unwrap();
        watcher.watch(&directory, WatchTopic::Files).unwrap();
        touch(&directory.join("x"));
        assert_eq!(watcher.read(), FILES);
    }
}
