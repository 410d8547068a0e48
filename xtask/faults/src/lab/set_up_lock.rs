// SPDX-License-Identifier: Apache-2.0
//! The lock that labs take for their set-up, so that one lab is set up at a time.
//!
//! The kernel creates namespaces slowly when many processes want some at the same time. Nodes that start meanwhile are
//! slow, and the checker would report the slow machine as late answers.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::{FaultsError, LabResult};

/// The lock, for as long as the value exists. The kernel releases it if the process ends before.
pub struct SetUpLock(File);

impl SetUpLock {
    /// Waits for the lock that the labs with the same base directory share.
    pub fn wait(base: &Path) -> LabResult<Self> {
        let path = lock_file(base);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.and_then(|file| file.lock().map(|()| file));
        Ok(Self(file.map_err(|error| {
            FaultsError(format!("cannot lock {} for the set-up: {error}", path.display()))
        })?))
    }
}

impl Drop for SetUpLock {
    fn drop(&mut self) {
        // The end of the file descriptor releases the lock too.
        let _ = self.0.unlock();
    }
}

/// Removes the file of the lock, after the last lab of the base directory.
pub fn remove_file(base: &Path) {
    // Without a lab there is no file.
    let _ = std::fs::remove_file(lock_file(base));
}

fn lock_file(base: &Path) -> PathBuf {
    base.join("set-up.lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_excludes_other_labs_until_it_is_dropped() {
        let name = format!("vipwatch-faults-lock-{}", std::process::id());
        let base = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&base).unwrap();
        let lock = SetUpLock::wait(&base).ok().unwrap();
        let other = File::open(lock_file(&base)).unwrap();
        assert!(other.try_lock().is_err());
        drop(lock);
        assert!(other.try_lock().is_ok());
        remove_file(&base);
        std::fs::remove_dir(&base).expect("the file of the lock is removed");
    }
}
