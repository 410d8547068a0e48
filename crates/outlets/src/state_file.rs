// SPDX-License-Identifier: Apache-2.0
//! The file that contains the state as one word. It is replaced in one step: a reader sees the old word or the new one,
//! never a part of it and never an empty file.
//!
//! ```text
//!   state      primary  ◄─┐  renameat2(EXCHANGE)
//!   state.new  backup   ◄─┘
//! ```
//!
//! There are two words, and they alternate. So the file with the previous word is kept as a spare for the next
//! transition: most transitions are one exchange of names, and work on a full disk too.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, fchown, fstat,
    futimens, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use vipwatch_core::{Backoff, Jitter, Moment};
use vipwatch_linux::file::read_head;

/// The name of the file in its directory; Neutron's agent reads it.
const NAME: &str = "state";
/// The name of the spare file: the next word is written here, and the previous word is kept here.
const SPARE: &str = "state.new";
/// The mode of the file. The owner is the agent's user, because the agent writes this file too; all users may read it.
const MODE: u32 = 0o644;

/// Why the word could not be written.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The directory does not exist, is not a directory, or is a symbolic link.
    #[error("cannot open directory {}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The spare file could not be written: the disk is full or read-only, or a permission is missing.
    #[error("cannot write {}", path.display())]
    Write {
        /// The spare file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The spare file was written, but could not replace the state file.
    #[error("cannot replace {}", path.display())]
    Rename {
        /// The state file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl StateFileError {
    /// The errno. A failure with another errno than the last one is reported again.
    fn errno(&self) -> i32 {
        match self {
            Self::Directory { source, .. }
            | Self::Write { source, .. }
            | Self::Rename { source, .. } => source.raw_os_error().unwrap_or(0),
        }
    }
}

/// The result of an attempt to write the file.
#[derive(Debug)]
pub enum WriteOutcome {
    /// The file contains the word.
    Written,
    /// The write failed, with another errno than the last attempt.
    Failed(StateFileError),
    /// The write failed in the same way as the last attempt.
    StillFailing,
}

/// A state file and the word that it should contain.
#[derive(Debug)]
pub struct StateFile {
    directory: PathBuf,
    /// `None` until [`StateFile::set`] was called.
    word: Option<&'static str>,
    /// The time of the next attempt; `None` while the file contains the word.
    retry_at: Option<Moment>,
    backoff: Backoff,
    jitter: Jitter,
    /// The errno of the last failure; `None` after a success.
    failing_errno: Option<i32>,
}

impl StateFile {
    /// The state file in `directory`.
    pub fn new(directory: PathBuf, jitter: Jitter) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        Self { directory, word: None, retry_at: None, backoff, jitter, failing_errno: None }
    }

    /// Sets the word that the file should contain, and writes it at once.
    pub fn set(&mut self, word: &'static str, now: Moment) -> WriteOutcome {
        self.word = Some(word);
        self.write(word, now)
    }

    /// The time of the next retry in [`Self::tick`]; `None` if none is needed.
    pub fn due(&self) -> Option<Moment> {
        self.retry_at
    }

    /// Retries a failed write when it is due.
    pub fn tick(&mut self, now: Moment) -> Option<WriteOutcome> {
        if self.retry_at? > now {
            return None;
        }
        self.word.map(|word| self.write(word, now))
    }

    /// Whether another process has changed or removed the file. A file that cannot be read counts as unchanged.
    pub fn was_changed(&self) -> bool {
        let Some(word) = self.word else { return false };
        // Longer than every word: enough to detect another content.
        let content = read_head(&self.directory.join(NAME), 64);
        let is_other = match content {
            Ok(content) => content != word.as_bytes(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        self.retry_at.is_none() && is_other
    }

    /// The time since the last change of the file; `None` if it cannot be read.
    pub fn age(&self) -> Option<Duration> {
        let path = self.directory.join(NAME);
        std::fs::symlink_metadata(path).ok()?.modified().ok()?.elapsed().ok()
    }

    fn write(&mut self, word: &str, now: Moment) -> WriteOutcome {
        match replace(&self.directory, word.as_bytes()) {
            Ok(()) => {
                self.retry_at = None;
                self.failing_errno = None;
                self.backoff.reset();
                WriteOutcome::Written
            }
            Err(error) => {
                self.retry_at = Some(now + self.backoff.next_wait(&mut self.jitter));
                if self.failing_errno.replace(error.errno()) == Some(error.errno()) {
                    WriteOutcome::StillFailing
                } else {
                    WriteOutcome::Failed(error)
                }
            }
        }
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        // A reader of the directory should find one file with a state, not two.
        let _ = std::fs::remove_file(self.directory.join(SPARE));
    }
}

/// Replaces the state file in `directory` with `contents`, in one step.
///
/// The directory is opened each time: it may have been removed and created again. It must not be a symbolic link, and
/// links in it are not followed: a spare that this process does not own alone is created again, and an exchange
/// replaces the file or link at the name itself.
///
/// No fsync: after a crash the state is read from the kernel again, so the file need not survive a power failure.
fn replace(directory: &Path, contents: &[u8]) -> Result<(), StateFileError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| {
        StateFileError::Directory { directory: directory.to_owned(), source: errno.into() }
    })?;
    if !reuse_spare(&opened, contents).unwrap_or(false) {
        create_spare(&opened, contents).map_err(|source| {
            // A partly written spare is removed.
            let _ = unlinkat(&opened, SPARE, AtFlags::empty());
            StateFileError::Write { path: directory.join(SPARE), source }
        })?;
    }
    put_spare_in_place(&opened)
        .map_err(|source| StateFileError::Rename { path: directory.join(NAME), source })
}

/// Replaces the state file with the spare.
///
/// By an exchange if the file system supports it: with a plain rename over an existing file, ext4 writes the new file
/// to disk at once, which takes longer than all other work of a transition.
fn put_spare_in_place(directory: &OwnedFd) -> io::Result<()> {
    // An exchange would also work with a directory, and the spare would then be a directory that cannot be removed.
    let old = statat(directory, NAME, AtFlags::SYMLINK_NOFOLLOW);
    if old.is_ok_and(|old| FileType::from_raw_mode(old.st_mode) == FileType::Directory) {
        return Err(Errno::ISDIR.into());
    }
    match renameat_with(directory, SPARE, directory, NAME, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // There is no state file yet, or the file system or the kernel does not support an exchange.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
            Ok(renameat(directory, SPARE, directory, NAME)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether the spare contains `contents` and belongs to this process alone (owner, mode, one link). If so, its
/// modification time is set to now, because the time of the state file is the time of the last transition.
fn reuse_spare(directory: &OwnedFd, contents: &[u8]) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, SPARE, flags, Mode::empty())?);
    let stat = fstat(&file)?;
    let is_own = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_mode & 0o7777 == MODE
        && (stat.st_uid == rustix::process::geteuid().as_raw()
            || stat.st_uid == fstat(directory)?.st_uid)
        && stat.st_nlink == 1;
    // Longer than every word, so that a file with a word and more text is not accepted.
    let mut content = [0_u8; 64];
    let length = file.read(&mut content)?;
    if !is_own || content.get(..length) != Some(contents) {
        return Ok(false);
    }
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(&file, &Timestamps { last_access: now, last_modification: now })?;
    Ok(true)
}

fn create_spare(directory: &OwnedFd, contents: &[u8]) -> io::Result<()> {
    let create = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        openat(directory, SPARE, flags | OFlags::CLOEXEC, Mode::from_raw_mode(MODE))
    };
    let file = match create() {
        // The existing spare has another content, or does not belong to this process alone.
        Err(Errno::EXIST) => {
            unlinkat(directory, SPARE, AtFlags::empty())?;
            create()?
        }
        other => other?,
    };
    give_to_owner(directory, &file)?;
    File::from(file).write_all(contents)
}

/// Gives the file to the owner of its directory, the agent's user, because the agent writes this file too. A process
/// without the right to do so keeps the file: the agent can still read it.
fn give_to_owner(directory: &OwnedFd, file: &OwnedFd) -> io::Result<()> {
    let owner = fstat(directory)?;
    if owner.st_uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
    match fchown(file, Some(user), Some(group)) {
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    const NOW: Moment = Moment::new(Duration::from_secs(1));

    fn file(directory: &Path) -> StateFile {
        StateFile::new(directory.to_owned(), Jitter::new(1))
    }

    fn content(directory: &Path) -> String {
        std::fs::read_to_string(directory.join(NAME)).unwrap()
    }

    #[test]
    fn the_file_contains_the_word_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        assert!(matches!(state.set("primary", NOW), WriteOutcome::Written));
        assert_eq!(content(directory.path()), "primary");
        assert!(matches!(state.set("backup", NOW), WriteOutcome::Written));
        assert_eq!(content(directory.path()), "backup");
        drop(state);
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no spare file is left"
        );
    }

    #[test]
    fn two_files_are_exchanged_and_the_time_is_that_of_the_last_transition() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        let inode = || directory.path().join(NAME).metadata().unwrap().ino();
        state.set("primary", NOW);
        let first = inode();
        state.set("backup", NOW);
        let spare = File::open(directory.path().join(SPARE)).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        spare.set_modified(long_ago).unwrap();
        state.set("primary", NOW);
        assert_eq!(inode(), first, "the file with this word was reused");
        assert!(state.age().is_some_and(|age| age < Duration::from_hours(1)));
    }

    #[test]
    fn a_spare_that_another_process_may_have_changed_is_not_used() {
        type Spoil = fn(&Path);
        let spoilings: [Spoil; 4] = [
            |spare| File::create(spare).unwrap().write_all(b"primary and more").unwrap(),
            |spare| std::fs::set_permissions(spare, Permissions::from_mode(0o666)).unwrap(),
            |spare| std::fs::hard_link(spare, spare.with_extension("other")).unwrap(),
            |spare| {
                std::fs::rename(spare, spare.with_extension("other")).unwrap();
                std::os::unix::fs::symlink(spare.with_extension("other"), spare).unwrap();
            },
        ];
        for spoil in spoilings {
            let directory = tempfile::tempdir().unwrap();
            let mut state = file(directory.path());
            state.set("primary", NOW);
            state.set("backup", NOW);
            spoil(&directory.path().join(SPARE));
            assert!(matches!(state.set("primary", NOW), WriteOutcome::Written));
            assert_eq!(content(directory.path()), "primary");
            let metadata = directory.path().join(NAME).symlink_metadata().unwrap();
            assert!(metadata.is_file());
            assert_eq!((metadata.mode() & 0o7777, metadata.nlink()), (MODE, 1));
        }
    }

    #[test]
    fn a_symbolic_link_is_replaced_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        for name in [NAME, SPARE] {
            std::os::unix::fs::symlink(elsewhere.path(), directory.path().join(name)).unwrap();
        }
        assert!(matches!(file(directory.path()).set("primary", NOW), WriteOutcome::Written));
        assert_eq!(content(directory.path()), "primary");
        assert!(directory.path().join(NAME).symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read(elsewhere.path()).unwrap(), b"");
    }

    #[test]
    fn a_directory_at_the_path_of_the_file_is_an_error_and_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        std::fs::create_dir(directory.path().join(NAME)).unwrap();
        for _ in 0..2 {
            let written = state.write("primary", NOW);
            assert!(!matches!(written, WriteOutcome::Written), "{written:?}");
            assert!(directory.path().join(NAME).is_dir());
        }
        std::fs::remove_dir(directory.path().join(NAME)).unwrap();
        assert!(matches!(state.write("primary", NOW), WriteOutcome::Written));
    }

    #[test]
    fn a_directory_that_is_a_symbolic_link_is_refused() {
        let real = tempfile::tempdir().unwrap();
        let parent = tempfile::tempdir().unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(real.path(), &link).unwrap();
        assert!(matches!(
            file(&link).set("primary", NOW),
            WriteOutcome::Failed(StateFileError::Directory { .. })
        ));
    }

    #[test]
    fn a_missing_directory_is_reported_once_and_retried_until_it_exists() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("later");
        let mut state = file(&directory);
        assert!(matches!(state.set("primary", NOW), WriteOutcome::Failed(_)));
        let retry = state.due().unwrap();
        assert!(state.tick(NOW).is_none(), "not before the retry is due");
        assert!(matches!(state.tick(retry), Some(WriteOutcome::StillFailing)));

        std::fs::create_dir(&directory).unwrap();
        let retry = state.due().unwrap();
        assert!(matches!(state.tick(retry), Some(WriteOutcome::Written)));
        assert_eq!(content(&directory), "primary");
        assert_eq!(state.due(), None);
    }

    #[test]
    fn a_change_by_another_process_is_detected() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        state.set("primary", NOW);
        assert!(!state.was_changed());
        File::create(directory.path().join(NAME)).unwrap().write_all(b"backup").unwrap();
        assert!(state.was_changed());
        std::fs::remove_file(directory.path().join(NAME)).unwrap();
        assert!(state.was_changed());
    }
}
