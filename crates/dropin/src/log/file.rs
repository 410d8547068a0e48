// SPDX-License-Identifier: Apache-2.0
//! The log file: it is opened by name, opened again after rotation, and set aside if this user may not write it.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

/// How many log files that could not be written are kept: `.old`, `.old.1`, up to `.old.99`.
const MAX_SET_ASIDE_FILES: u32 = 100;

/// An open log file.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    identity: Identity,
}

/// Device and inode of a file. They differ between a file and a later file with the same name.
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
    /// Opens or creates the file at `path`. A file that this user may not write, left by a monitor that ran as root, is
    /// renamed first; the directory belongs to this user.
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

    /// Whether `path` is still the name of this file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        Identity::at(path).is_ok_and(|identity| identity == self.identity)
    }

    /// Appends `lines` in one write, because several monitors may share the file.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines)
    }
}

/// Opens `path` for appending. It follows no symbolic link, and does not block on a FIFO.
fn append_to(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path)
}

/// Renames the file at `path` to the first free name for old logs. `refused` is the identity of the file that could not
/// be opened.
///
/// Several monitors that share a log may do this at the same time. No monitor replaces a file that another one has set
/// aside, and none renames the new log that another one has created meanwhile.
fn set_aside(path: &Path, refused: Identity) -> io::Result<()> {
    for number in 0..MAX_SET_ASIDE_FILES {
        let old = old_name(path, number);
        match rename_to_free_name(path, &old) {
            // Another monitor was faster, and the renamed file is its new log: rename it back, unless a third monitor
            // has created another one. Monitors that write to the renamed file follow the rotation at their next flush.
            Ok(()) if Identity::at(&old)? != refused => {
                return match rename_to_free_name(&old, path) {
                    Ok(()) | Err(Errno::EXIST) => Ok(()),
                    Err(errno) => Err(errno.into()),
                };
            }
            // This monitor or another one has renamed the file.
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::EXIST.into())
}

fn old_name(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".old");
    if number > 0 {
        name.push(format!(".{number}"));
    }
    PathBuf::from(name)
}

/// Renames `from` to `to`; fails with `EXIST` if `to` exists.
fn rename_to_free_name(from: &Path, to: &Path) -> Result<(), Errno> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Kernels before 3.15 and some file systems lack this flag. LIMIT: there, a file that appears at `to` between
        // the check and the rename is replaced.
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
    fn two_monitors_that_set_a_log_aside_at_once_keep_both_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let original = write(&path, "original");
        set_aside(&path, original).unwrap();
        let new = write(&path, "new");
        // The second monitor has also failed to open the original, and renames later.
        set_aside(&path, original).unwrap();
        assert_eq!(read(&old_name(&path, 0)), "original");
        assert_eq!(read(&path), "new");
        assert_eq!(Identity::at(&path).unwrap(), new);
    }

    #[test]
    fn a_log_that_was_set_aside_earlier_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for text in ["first", "second"] {
            let refused = write(&path, text);
            set_aside(&path, refused).unwrap();
        }
        assert_eq!([read(&old_name(&path, 0)), read(&old_name(&path, 1))], ["first", "second"]);
    }
}
