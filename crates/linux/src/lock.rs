// SPDX-License-Identifier: Apache-2.0
//! Advisory file locks (`flock(2)`): one process at a time uses a directory or a file.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A lock that the kernel releases when this value is dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct FileLock {
    _file: OwnedFd,
}

impl FileLock {
    /// Locks an open file or directory exclusively, without waiting. `None`: another open file description, in this
    /// process or in another one, holds the lock.
    pub fn try_exclusive(file: OwnedFd) -> io::Result<Option<Self>> {
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_directory_is_locked_until_the_lock_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let lock =
            || FileLock::try_exclusive(File::open(directory.path()).unwrap().into()).unwrap();
        let first = lock();
        assert!(first.is_some() && lock().is_none());
        drop(first);
        assert!(lock().is_some());
    }
}
