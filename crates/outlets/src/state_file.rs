//! One word in one file, replaced in one step: a reader sees the old word or the new one,
//! never half of either and never none.
//!
//! ```text
//!   state      primary  ◄─┐  renameat2(EXCHANGE)
//!   state.new  backup   ◄─┘
//! ```
//!
//! There are two words and they take turns, so the file that held the last one is kept as the
//! spare for the next: most transitions are one exchange, and work on a full disk too.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, fstat, futimens,
    openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use vipwatch_core::{Backoff, Jitter, Moment};
use vipwatch_linux::file::read_head;

/// The file's name in its directory; Neutron's agent knows it by this one.
const NAME: &str = "state";
/// Where the next word is written before it takes its place, and where the last one stays.
const SPARE: &str = "state.new";
/// Who may do what: the owner is the agent's user, who writes this file too; the rest may read.
const MODE: u32 = 0o644;

/// Why the word is not in the file.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The directory is missing, is none, or is a symbolic link.
    #[error("cannot open directory {}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The disk is full, read-only, or not ours to write.
    #[error("cannot write {}", path.display())]
    Write {
        /// The staged file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The word is written and cannot take its place.
    #[error("cannot replace {}", path.display())]
    Rename {
        /// The state file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl StateFileError {
    /// What kind of failure this is; a new kind is worth a new log line.
    fn kind(&self) -> i32 {
        match self {
            Self::Directory { source, .. }
            | Self::Write { source, .. }
            | Self::Rename { source, .. } => source.raw_os_error().unwrap_or(0),
        }
    }
}

/// Whether a failure needs saying.
#[derive(Debug)]
pub enum WriteOutcome {
    /// The file holds the word.
    Held,
    /// It does not, and this kind of failure is new.
    Failed(StateFileError),
    /// It does not, as before.
    StillFailing,
}

/// A state file and the word it should hold.
#[derive(Debug)]
pub struct StateFile {
    directory: PathBuf,
    word: Option<&'static str>,
    /// When to try again; `None` while the file holds the word.
    retry_at: Option<Moment>,
    backoff: Backoff,
    dice: Jitter,
    /// The kind of the last failure, while it lasts.
    failing: Option<i32>,
}

impl StateFile {
    /// The state file in `directory`.
    pub fn new(directory: PathBuf, dice: Jitter) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        Self { directory, word: None, retry_at: None, backoff, dice, failing: None }
    }

    /// From now on the file should hold `word`; it is tried at once.
    pub fn want(&mut self, word: &'static str, now: Moment) -> WriteOutcome {
        self.word = Some(word);
        self.write(word, now)
    }

    /// When [`Self::tick`] has something to do.
    pub fn due(&self) -> Option<Moment> {
        self.retry_at
    }

    /// Tries again, if it is time.
    pub fn tick(&mut self, now: Moment) -> Option<WriteOutcome> {
        if self.retry_at? > now {
            return None;
        }
        self.word.map(|word| self.write(word, now))
    }

    /// Whether the file holds another word than it should, or is gone; one that cannot be
    /// read counts as not.
    pub fn is_tampered(&self) -> bool {
        let Some(word) = self.word else { return false };
        // More than any word has: enough to see that it is not ours.
        let held = read_head(&self.directory.join(NAME), 64);
        let is_other = match held {
            Ok(held) => held != word.as_bytes(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        self.retry_at.is_none() && is_other
    }

    /// How long ago somebody last wrote the file; `None` if it is not known.
    pub fn age(&self) -> Option<Duration> {
        let path = self.directory.join(NAME);
        std::fs::symlink_metadata(path).ok()?.modified().ok()?.elapsed().ok()
    }

    fn write(&mut self, word: &str, now: Moment) -> WriteOutcome {
        match replace(&self.directory, word.as_bytes()) {
            Ok(()) => {
                self.retry_at = None;
                self.failing = None;
                self.backoff.reset();
                WriteOutcome::Held
            }
            Err(error) => {
                self.retry_at = Some(now + self.backoff.next_wait(&mut self.dice));
                if self.failing.replace(error.kind()) == Some(error.kind()) {
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
        // Whoever looks into the directory after us shall find one word, not two.
        let _ = std::fs::remove_file(self.directory.join(SPARE));
    }
}

/// Replaces the state file in `directory` with `contents`, in one step.
///
/// The directory is opened anew each time: it may have been removed and made again. It must
/// not be a symbolic link, and nothing in it is followed: a spare that is not a file of our
/// own is made new, and an exchange replaces whatever bears the name, link or not.
///
/// No fsync: after a crash the kernel is asked again, so this file need not outlive the
/// power.
fn replace(directory: &Path, contents: &[u8]) -> Result<(), StateFileError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| {
        StateFileError::Directory { directory: directory.to_owned(), source: errno.into() }
    })?;
    if !refresh_spare(&opened, contents).unwrap_or(false) {
        make_spare(&opened, contents).map_err(|source| {
            // A half-written file is of no use to anybody.
            let _ = unlinkat(&opened, SPARE, AtFlags::empty());
            StateFileError::Write { path: directory.join(SPARE), source }
        })?;
    }
    take_place(&opened)
        .map_err(|source| StateFileError::Rename { path: directory.join(NAME), source })
}

/// Puts the spare in the place of the state file.
///
/// An exchange where the file system can: a plain rename over an existing file makes ext4
/// write the new one out at once, which costs more than everything else a transition does.
fn take_place(directory: &OwnedFd) -> io::Result<()> {
    // An exchange would take a directory too, and leave us with a spare we cannot remove.
    let old = statat(directory, NAME, AtFlags::SYMLINK_NOFOLLOW);
    if old.is_ok_and(|old| FileType::from_raw_mode(old.st_mode) == FileType::Directory) {
        return Err(Errno::ISDIR.into());
    }
    match renameat_with(directory, SPARE, directory, NAME, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // There is no old one yet, or the file system or the kernel cannot exchange.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
            Ok(renameat(directory, SPARE, directory, NAME)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the spare is ours alone and holds `contents`; if so, its time becomes now, because
/// the state file's time is when the role changed.
fn refresh_spare(directory: &OwnedFd, contents: &[u8]) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, SPARE, flags, Mode::empty())?);
    let stat = fstat(&file)?;
    let is_ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_mode & 0o7777 == MODE
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1;
    // Longer than any word, so that one with something behind it is not taken for it.
    let mut held = [0_u8; 64];
    let length = file.read(&mut held)?;
    if !is_ours || held.get(..length) != Some(contents) {
        return Ok(false);
    }
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(&file, &Timestamps { last_access: now, last_modification: now })?;
    Ok(true)
}

fn make_spare(directory: &OwnedFd, contents: &[u8]) -> io::Result<()> {
    let create = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        openat(directory, SPARE, flags | OFlags::CLOEXEC, Mode::from_raw_mode(MODE))
    };
    let file = match create() {
        // Another word, or something that is not ours.
        Err(Errno::EXIST) => {
            unlinkat(directory, SPARE, AtFlags::empty())?;
            create()?
        }
        other => other?,
    };
    File::from(file).write_all(contents)
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

    fn held(directory: &Path) -> String {
        std::fs::read_to_string(directory.join(NAME)).unwrap()
    }

    #[test]
    fn the_file_holds_the_word_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        assert!(matches!(state.want("primary", NOW), WriteOutcome::Held));
        assert_eq!(held(directory.path()), "primary");
        assert!(matches!(state.want("backup", NOW), WriteOutcome::Held));
        assert_eq!(held(directory.path()), "backup");
        drop(state);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn the_words_take_turns_in_two_files_and_the_time_is_that_of_the_turn() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        let inode = || directory.path().join(NAME).metadata().unwrap().ino();
        state.want("primary", NOW);
        let first = inode();
        state.want("backup", NOW);
        let spare = File::open(directory.path().join(SPARE)).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        spare.set_modified(long_ago).unwrap();
        state.want("primary", NOW);
        assert_eq!(inode(), first, "the file that held the word before");
        assert!(state.age().is_some_and(|age| age < Duration::from_hours(1)));
    }

    #[test]
    fn a_spare_that_is_not_ours_alone_is_not_used() {
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
            state.want("primary", NOW);
            state.want("backup", NOW);
            spoil(&directory.path().join(SPARE));
            assert!(matches!(state.want("primary", NOW), WriteOutcome::Held));
            assert_eq!(held(directory.path()), "primary");
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
        assert!(matches!(file(directory.path()).want("primary", NOW), WriteOutcome::Held));
        assert_eq!(held(directory.path()), "primary");
        assert!(directory.path().join(NAME).symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read(elsewhere.path()).unwrap(), b"");
    }

    #[test]
    fn a_directory_in_its_place_is_said_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        std::fs::create_dir(directory.path().join(NAME)).unwrap();
        for _ in 0..2 {
            let written = state.write("primary", NOW);
            assert!(!matches!(written, WriteOutcome::Held), "{written:?}");
            assert!(directory.path().join(NAME).is_dir());
        }
        std::fs::remove_dir(directory.path().join(NAME)).unwrap();
        assert!(matches!(state.write("primary", NOW), WriteOutcome::Held));
    }

    #[test]
    fn a_directory_that_is_a_symbolic_link_is_refused() {
        let real = tempfile::tempdir().unwrap();
        let parent = tempfile::tempdir().unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(real.path(), &link).unwrap();
        assert!(matches!(
            file(&link).want("primary", NOW),
            WriteOutcome::Failed(StateFileError::Directory { .. })
        ));
    }

    #[test]
    fn a_missing_directory_is_said_once_and_retried_until_it_is_back() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("later");
        let mut state = file(&directory);
        assert!(matches!(state.want("primary", NOW), WriteOutcome::Failed(_)));
        let retry = state.due().unwrap();
        assert!(state.tick(NOW).is_none(), "not before its time");
        assert!(matches!(state.tick(retry), Some(WriteOutcome::StillFailing)));

        std::fs::create_dir(&directory).unwrap();
        let retry = state.due().unwrap();
        assert!(matches!(state.tick(retry), Some(WriteOutcome::Held)));
        assert_eq!(held(&directory), "primary");
        assert_eq!(state.due(), None);
    }

    #[test]
    fn another_writers_word_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = file(directory.path());
        state.want("primary", NOW);
        assert!(!state.is_tampered());
        File::create(directory.path().join(NAME)).unwrap().write_all(b"backup").unwrap();
        assert!(state.is_tampered());
        std::fs::remove_file(directory.path().join(NAME)).unwrap();
        assert!(state.is_tampered());
    }
}
