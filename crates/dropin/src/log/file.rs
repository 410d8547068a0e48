//! The log's file: opened by name, followed when it is rotated, and never taken from a process that writes to it.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

/// How many logs that cannot be written are kept: `.old`, `.old.1`, and so on.
const MAX_SET_ASIDE: u32 = 100;

/// An open log file.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    identity: Identity,
}

/// Device and inode: tells a file from the next one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    fn at(path: &Path) -> io::Result<Self> {
        std::fs::symlink_metadata(path).map(|metadata| Self::of(&metadata))
    }
}

impl LogFile {
    /// Opens the file at `path`, or makes it. One that this user may not write, left by a monitor that stayed root, is
    /// set aside first: the directory belongs to this user.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let refused = Identity::at(path);
        let file = match append_to(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                set_aside(path, refused?).map_err(|_second| error)?;
                append_to(path)?
            }
            opened => opened?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok(Self { file, identity: Identity::of(&metadata) })
    }

    /// Whether `path` still leads to this file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        Identity::at(path).is_ok_and(|identity| identity == self.identity)
    }

    /// Appends `lines`, in one step: many monitors may share the file.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines)
    }
}

/// No symbolic link is followed, and nothing but a file is waited for.
fn append_to(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path)
}

/// Renames the file at `path`, which is the one called `refused`, to the first free name for old logs.
///
/// Monitors that share a log do this at the same time. None replaces a file that another one has set aside, and none
/// takes away the new log that another one has made meanwhile.
fn set_aside(path: &Path, refused: Identity) -> io::Result<()> {
    for number in 0..MAX_SET_ASIDE {
        let aside = aside(path, number);
        match rename_to_free_name(path, &aside) {
            // Another monitor was quicker, and this is its new log: it goes back, unless a third one has made another.
            // Its writers find the log that is there now by themselves.
            Ok(()) if Identity::at(&aside)? != refused => {
                return match rename_to_free_name(&aside, path) {
                    Ok(()) | Err(Errno::EXIST) => Ok(()),
                    Err(errno) => Err(errno.into()),
                };
            }
            // Done, or another monitor has done it.
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::EXIST.into())
}

fn aside(path: &Path, number: u32) -> PathBuf {
    let mut aside = OsString::from(path);
    aside.push(".old");
    if number > 0 {
        aside.push(format!(".{number}"));
    }
    PathBuf::from(aside)
}

/// Renames without replacing anything.
fn rename_to_free_name(from: &Path, to: &Path) -> Result<(), Errno> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Kernels before 3.15, and some file systems. LIMIT: a name that is taken in between is replaced there.
        Err(Errno::NOSYS | Errno::INVAL) if Identity::at(to).is_err() => {
            rustix::fs::rename(from, to)
        }
        Err(Errno::NOSYS | Errno::INVAL) => Err(Errno::EXIST),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) -> Identity {
        File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
        Identity::at(path).unwrap()
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn two_monitors_that_set_a_log_aside_at_once_keep_the_original_and_the_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let original = write(&path, "original");
        set_aside(&path, original).unwrap();
        let new = write(&path, "new");
        // The second monitor has seen the original, too, and comes late.
        set_aside(&path, original).unwrap();
        assert_eq!(read(&aside(&path, 0)), "original");
        assert_eq!(read(&path), "new");
        assert_eq!(Identity::at(&path).unwrap(), new);
    }

    #[test]
    fn a_log_that_was_set_aside_before_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for text in ["first", "second"] {
            let refused = write(&path, text);
            set_aside(&path, refused).unwrap();
        }
        assert_eq!([read(&aside(&path, 0)), read(&aside(&path, 1))], ["first", "second"]);
    }
}
