//! Tells that something appeared in a directory or left it (dnotify).
//!
//! Not inotify: a host allows a user 128 inotify instances by default, for all processes
//! together, and there is one monitor per router. The older interface has no such limit.
//! It says less, only that *something* happened, which is a reason to look; and a watcher
//! for departures is not woken by arrivals, which spares a thousand monitors a thousand
//! wake-ups each when a node boots.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::signal::{SignalFile, signal_file};

/// Which news of a directory is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryInterest {
    /// Things that appear.
    Arrivals,
    /// Things that go.
    Departures,
}

/// A directory that is watched, for as long as this is held.
#[derive(Debug)]
pub struct WatchedDirectory {
    directory: OwnedFd,
}

/// Watches directories; readable when something happened in one of them.
#[derive(Debug)]
pub struct DirectoryNotifier {
    signals: SignalFile,
}

impl DirectoryNotifier {
    /// Watches nothing yet. Call while there is one thread.
    pub fn new() -> io::Result<Self> {
        // SIGIO comes instead when the queue for the other is full.
        Ok(Self { signals: signal_file(&[signal(), libc::SIGIO])? })
    }

    /// Starts to watch `directory`.
    pub fn watch(
        &self,
        directory: &Path,
        interest: DirectoryInterest,
    ) -> io::Result<WatchedDirectory> {
        // <linux/fcntl.h>; libc has them for another C library only.
        const DN_CREATE: libc::c_int = 0x04;
        const DN_DELETE: libc::c_int = 0x08;
        const DN_MULTISHOT: libc::c_int = libc::c_int::MIN;
        const F_SETSIG: libc::c_int = 10;
        const F_NOTIFY: libc::c_int = 1026;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let events = match interest {
            DirectoryInterest::Arrivals => DN_CREATE,
            DirectoryInterest::Departures => DN_DELETE,
        };
        // SAFETY: both commands take an integer, and the descriptor is open. The signal they
        // send is blocked by `signal_file`, so it can only be read.
        let is_watched = unsafe {
            libc::fcntl(directory.as_raw_fd(), F_SETSIG, signal()) == 0
                && libc::fcntl(directory.as_raw_fd(), F_NOTIFY, events | DN_MULTISHOT) == 0
        };
        if is_watched {
            Ok(WatchedDirectory { directory })
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Whether anything happened since the last call.
    pub fn have_news(&self) -> bool {
        let mut is_news = false;
        while self.signals.read().is_some() {
            is_news = true;
        }
        is_news
    }
}

impl AsFd for DirectoryNotifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl WatchedDirectory {
    /// Whether `directory` is still the one that is watched, and not a new one of its name.
    pub fn is_still(&self, directory: &Path) -> bool {
        let ours = rustix::fs::fstat(&self.directory);
        let named = rustix::fs::stat(directory);
        matches!((ours, named), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }
}

/// A real-time signal: they queue, and nobody uses this one for anything else.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 5
}
