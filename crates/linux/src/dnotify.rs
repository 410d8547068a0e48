// SPDX-License-Identifier: Apache-2.0
//! Watches a few directories for added or removed entries (dnotify, `F_NOTIFY` of `fcntl(2)`).
//!
//! Not inotify: by default a user has 128 inotify instances on a host, for all processes together, and there is one
//! monitor for each router. The older interface has no such limit. It reports only that *something* changed; the
//! caller then reads the directory. A watcher for removals is not woken by additions: this saves a thousand monitors
//! a thousand wake-ups each when a node boots.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::signal::{SignalFile, signal_file};

/// Which changes of a directory are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryInterest {
    /// Entries that are created.
    Additions,
    /// Entries that are removed.
    Removals,
}

/// A watched directory. Dropping it ends the watch.
#[derive(Debug)]
pub struct WatchedDirectory {
    directory: OwnedFd,
}

/// Watches directories; readable when something has changed in one of them.
#[derive(Debug)]
pub struct DirectoryNotifier {
    signals: SignalFile,
}

impl DirectoryNotifier {
    /// Creates a notifier without directories. Call it while the process has one thread, because it blocks signals.
    pub fn new() -> io::Result<Self> {
        // The kernel sends SIGIO instead when the queue of the real-time signal is full.
        Ok(Self { signals: signal_file(&[signal(), libc::SIGIO])? })
    }

    /// Starts to watch `directory`.
    pub fn watch(
        &self,
        directory: &Path,
        interest: DirectoryInterest,
    ) -> io::Result<WatchedDirectory> {
        // `<linux/fcntl.h>`; libc does not have them for musl.
        const DN_CREATE: libc::c_int = 0x04;
        const DN_DELETE: libc::c_int = 0x08;
        const DN_MULTISHOT: libc::c_int = libc::c_int::MIN;
        const F_SETSIG: libc::c_int = 10;
        const F_NOTIFY: libc::c_int = 1026;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let events = match interest {
            DirectoryInterest::Additions => DN_CREATE,
            DirectoryInterest::Removals => DN_DELETE,
        };
        // SAFETY: both commands take an integer, and the descriptor is open. `signal_file` has blocked the signal that
        // they send, so it can only be read.
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

    /// Whether anything has changed in a watched directory since the last call.
    pub fn has_changed(&self) -> bool {
        let mut has_changed = false;
        while self.signals.read().is_some() {
            has_changed = true;
        }
        has_changed
    }
}

as_fd!(DirectoryNotifier.signals);

impl WatchedDirectory {
    /// Whether the path `directory` still leads to the watched directory, and not to a new one with the same name.
    pub fn is_at(&self, directory: &Path) -> bool {
        let watched = rustix::fs::fstat(&self.directory);
        let named = rustix::fs::stat(directory);
        matches!((watched, named), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }
}

/// A real-time signal, because those are queued. No other code of the program uses this one.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 5
}
