//! Tells that something happened in one of many directories (inotify).
//!
//! For one process per host, which may have one of the 128 instances that a user has; see
//! [`crate::dnotify`] for what a thousand processes use. It says *that* something happened,
//! which is a reason to look; a queue that ran over says so too.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// What a directory is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchTopic {
    /// Names of namespaces.
    Names,
    /// Files of any name.
    Files,
    /// A file of this name; others are no news.
    File(&'static str),
    /// Sockets of agents.
    Agents,
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryChanges {
    /// In a directory of names.
    pub names: bool,
    /// In one of files.
    pub files: bool,
    /// In one of sockets.
    pub agents: bool,
}

/// Directories that are watched.
#[derive(Debug)]
pub struct DirectoryWatcher {
    queue: OwnedFd,
    by_path: HashMap<Arc<Path>, i32>,
    /// What each is watched for; one thing, as a rule.
    topics: HashMap<i32, (Arc<Path>, Box<[WatchTopic]>)>,
}

impl DirectoryWatcher {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { queue, by_path: HashMap::new(), topics: HashMap::new() })
    }

    /// Watches `directory` for `topic`; false if it is watched for that already.
    pub fn watch(&mut self, directory: &Path, topic: WatchTopic) -> io::Result<bool> {
        let known = self.by_path.get(directory).and_then(|number| self.topics.get_mut(number));
        if let Some((_, topics)) = known {
            let is_new = !topics.contains(&topic);
            if is_new {
                *topics = topics.iter().copied().chain([topic]).collect();
            }
            return Ok(is_new);
        }
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let number = inotify::add_watch(&self.queue, directory, flags)?;
        let path: Arc<Path> = directory.into();
        self.by_path.insert(Arc::clone(&path), number);
        self.topics.insert(number, (path, Box::new([topic])));
        Ok(true)
    }

    /// How many are watched.
    pub fn count(&self) -> usize {
        self.by_path.len()
    }

    /// What has happened since the last call.
    pub fn read(&mut self) -> DirectoryChanges {
        let mut news = DirectoryChanges::default();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut gone = Vec::new();
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                // Empty; or broken, and then there is a timer.
                Err(_) => break,
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                news = DirectoryChanges { names: true, files: true, agents: true };
                continue;
            }
            let Some((_, topics)) = self.topics.get(&event.wd()) else { continue };
            let name = event.file_name().map(std::ffi::CStr::to_bytes);
            for topic in topics {
                match topic {
                    WatchTopic::Names => news.names = true,
                    WatchTopic::Files => news.files = true,
                    WatchTopic::Agents => news.agents = true,
                    WatchTopic::File(wanted) => {
                        news.files |= name.is_none_or(|name| name == wanted.as_bytes());
                    }
                }
            }
            // It was removed, or is called otherwise now: the next one of its name is another.
            if event.events().intersects(ReadFlags::IGNORED | ReadFlags::MOVE_SELF) {
                gone.push(event.wd());
            }
        }
        for number in gone {
            let _ = inotify::remove_watch(&self.queue, number);
            if let Some((path, _)) = self.topics.remove(&number) {
                self.by_path.remove(&path);
            }
        }
        news
    }
}

impl AsFd for DirectoryWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: DirectoryChanges =
        DirectoryChanges { names: false, files: false, agents: false };
    const FILES: DirectoryChanges = DirectoryChanges { files: true, ..NOTHING };

    fn touch(path: &Path) {
        std::fs::File::create(path).unwrap();
    }

    #[test]
    fn only_what_was_asked_about_is_news() {
        let directory = tempfile::tempdir().unwrap();
        let mut notices = DirectoryWatcher::new().unwrap();
        notices.watch(directory.path(), WatchTopic::File("wanted")).unwrap();
        touch(&directory.path().join("other"));
        assert_eq!(notices.read(), NOTHING);
        touch(&directory.path().join("wanted"));
        assert_eq!(notices.read(), FILES);
        assert_eq!(notices.read(), NOTHING);
    }

    #[test]
    fn a_directory_that_is_made_again_can_be_watched_again() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("d");
        std::fs::create_dir(&directory).unwrap();
        let mut notices = DirectoryWatcher::new().unwrap();
        notices.watch(&directory, WatchTopic::Files).unwrap();
        std::fs::remove_dir(&directory).unwrap();
        assert_eq!((notices.read(), notices.count()), (FILES, 0));
        assert!(notices.watch(&directory, WatchTopic::Files).is_err());
        std::fs::create_dir(&directory).unwrap();
        notices.watch(&directory, WatchTopic::Files).unwrap();
        touch(&directory.join("x"));
        assert_eq!(notices.read(), FILES);
    }
}
