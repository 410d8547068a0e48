//! Tells when something appears in a directory or leaves it (inotify).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// Names a watched directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchId(i32);

/// Which news of a directory is wanted. Asking for less spares every other watcher's node
/// the wake-ups: a thousand monitors may watch one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Things that appear.
    Arrivals,
    /// Things that go.
    Departures,
}

/// Something happened in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A name appeared or went, as asked.
    Name(WatchId, Vec<u8>),
    /// The directory itself is gone, and the watch with it.
    Ended(WatchId),
    /// More happened than the kernel could queue: look at everything.
    Overflow,
}

/// An inotify instance.
#[derive(Debug)]
pub struct Directories {
    fd: OwnedFd,
}

impl Directories {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
        })
    }

    /// Starts to watch `directory`.
    pub fn watch(&self, directory: &Path, interest: Interest) -> io::Result<WatchId> {
        let flags = match interest {
            Interest::Arrivals => WatchFlags::CREATE | WatchFlags::MOVED_TO,
            Interest::Departures => WatchFlags::DELETE | WatchFlags::MOVED_FROM,
        };
        // MASK_ADD: two interests in one directory must not erase each other.
        let flags = flags | WatchFlags::ONLYDIR | WatchFlags::MASK_ADD;
        Ok(WatchId(inotify::add_watch(&self.fd, directory, flags)?))
    }

    /// Takes what is queued, without waiting.
    pub fn read(&self) -> io::Result<Vec<News>> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
        let mut news = Vec::new();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(news),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let watch = WatchId(event.wd());
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                news.push(News::Overflow);
            } else if event
                .events()
                .intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT)
            {
                news.push(News::Ended(watch));
            } else if let Some(name) = event.file_name() {
                news.push(News::Name(watch, name.to_bytes().to_owned()));
            }
        }
    }
}

impl AsFd for Directories {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
