// SPDX-License-Identifier: Apache-2.0
//! Opens files as a process sees them: every path, link and `..` is followed below the root directory of that process.
//!
//! A process in a container can put a link to any path into its own file system. Opened by name, through
//! `/proc/PID/root`, such a link leads to a file of the host. Below a descriptor of the root directory it cannot leave.
//!
//! The kernel resolves the path (`openat2(2)`, Linux 5.6). Where it cannot, [`Walk`] does the same part by part.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

use crate::file::{FileStamp, TextFile, text_of_regular};
use crate::process_table::{self, ProcessId};
use crate::program::push_parts;

/// The kernel gives up after this number of links, too.
const MAX_LINKS: usize = 40;

/// LIMIT: the walk keeps one descriptor open for each directory of a path.
const MAX_PARTS: usize = 128;

/// How often an open is repeated while a directory of its path is being moved (`EAGAIN`).
const MAX_TRIES: usize = 16;

/// File systems of the kernel, from `<linux/magic.h>`: `/proc` and `/sys`. Their files are no configuration, and listing
/// them has no end.
const KERNEL_FILE_SYSTEMS: [i64; 2] = [0x9fa0, 0x6265_6572];

/// The root directory of this program or of another process.
#[derive(Debug)]
pub struct RootDirectory {
    directory: OwnedFd,
    /// The path through which an operator can see the directory: `/`, or `/proc/PID/root`.
    shown: PathBuf,
    /// A device that is no file system of the kernel; 0 before the first file.
    plain_device: AtomicU64,
}

impl RootDirectory {
    /// The root directory of this program.
    pub fn own() -> io::Result<Self> {
        Ok(Self::new(open_directory(Path::new("/"))?, PathBuf::from("/")))
    }

    /// A directory as if it were the root directory of a process.
    #[cfg(fuzzing)]
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::new(open_directory(path)?, PathBuf::from("/proc/1/root")))
    }

    /// The root directory of a process, in the mount namespace of that process. Needs `PTRACE_MODE_READ`.
    pub fn of_process(id: ProcessId) -> io::Result<Self> {
        let shown = process_table::path_in_root(id.pid, Path::new("/"));
        let directory = open_directory(&shown)?;
        // ORDER: the pid may have been given to another process before the open, but not after this check.
        if !process_table::is_alive(id) {
            return Err(Errno::SRCH.into());
        }
        Ok(Self::new(directory, shown))
    }

    fn new(directory: OwnedFd, shown: PathBuf) -> Self {
        Self { directory, shown, plain_device: AtomicU64::new(0) }
    }

    /// The path of a file for messages.
    pub fn shown(&self, path: &Path) -> PathBuf {
        self.shown.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Opens a file. A link in `/proc` that is not a path (`/proc/PID/root`, `/proc/PID/fd/N`) is an error.
    pub fn open(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..MAX_TRIES {
            match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve) {
                Ok(file) => return Ok(file.into()),
                Err(Errno::AGAIN) => {}
                // Linux before 5.6 has no such call. Older filters of containers answer with EPERM.
                Err(Errno::NOSYS | Errno::PERM) => return Walk::new(self, path).open(flags),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Reads the text of a regular file with at most `limit` bytes, with its owner and permissions. A named pipe, a
    /// device and a file of `/proc` or `/sys` are errors; the call neither opens nor blocks on them.
    pub fn read_text_file(&self, path: &Path, limit: u64) -> io::Result<TextFile> {
        // ORDER: a descriptor for the path only is examined first. Opening a device may have an effect.
        let found = self.open(path, OFlags::PATH)?;
        let metadata = found.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        // There are thousands of files, most of them on one file system.
        if self.plain_device.load(Ordering::Relaxed) != metadata.dev() {
            if is_of_kernel(&found)? {
                let text = "it is a file of the kernel";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            self.plain_device.store(metadata.dev(), Ordering::Relaxed);
        }
        let file = reopen(&found.into(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?;
        text_of_regular(file, metadata, limit)
    }

    /// What the file at `path` is.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.open(path, OFlags::PATH)?.metadata()
    }

    /// The version of the file at `path`.
    pub fn stamp(&self, path: &Path) -> io::Result<FileStamp> {
        self.metadata(path).map(|metadata| FileStamp::of(&metadata))
    }

    /// The names in a directory, at most `limit` of them; `None` if there are more. A directory of `/proc` or `/sys` is an
    /// error.
    pub fn names(&self, directory: &Path, limit: usize) -> io::Result<Option<Vec<OsString>>> {
        let opened = self.open(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if is_of_kernel(&opened)? {
            return Err(Errno::ACCESS.into());
        }
        let mut names = Vec::new();
        for entry in Dir::new(opened)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == limit {
                return Ok(None);
            }
            names.push(OsString::from_vec(name));
        }
        Ok(Some(names))
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn is_of_kernel(file: &File) -> io::Result<bool> {
    Ok(KERNEL_FILE_SYSTEMS.contains(&fstatfs(file)?.f_type))
}

/// Follows a path part by part, below a root directory.
struct Walk<'r> {
    root: &'r RootDirectory,
    /// The directories below the root, from the outermost to the current one.
    directories: Vec<OwnedFd>,
    /// The parts that follow, the next one last.
    rest: Vec<OsString>,
    links: usize,
}

impl<'r> Walk<'r> {
    fn new(root: &'r RootDirectory, path: &Path) -> Self {
        let mut rest = Vec::new();
        push_parts(path, &mut rest);
        Self { root, directories: Vec::new(), rest, links: 0 }
    }

    fn open(mut self, flags: OFlags) -> io::Result<File> {
        while let Some(part) = self.rest.pop() {
            if part == ".." {
                self.directories.pop();
                continue;
            }
            let parent = self.directories.last().unwrap_or(&self.root.directory);
            let path_only = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(parent, &part, path_only, Mode::empty())?;
            match FileType::from_raw_mode(fstat(&file)?.st_mode) {
                FileType::Symlink => self.follow(&file)?,
                FileType::Directory if self.directories.len() < MAX_PARTS => {
                    self.directories.push(file);
                }
                FileType::Directory => return Err(Errno::NAMETOOLONG.into()),
                _ if self.rest.is_empty() => return reopen(&file, flags),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        reopen(self.directories.last().unwrap_or(&self.root.directory), flags)
    }

    fn follow(&mut self, link: &OwnedFd) -> io::Result<()> {
        self.links += 1;
        // The text of a link in /proc is not always the path of its target.
        if self.links > MAX_LINKS || KERNEL_FILE_SYSTEMS.contains(&fstatfs(link)?.f_type) {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(link, "", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.directories.clear();
        }
        push_parts(&target, &mut self.rest);
        Ok(())
    }
}

/// Opens the file of a descriptor again, with other flags. The name of the file may lead to another one by now.
fn reopen(file: &OwnedFd, flags: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, flags & !OFlags::NOFOLLOW, Mode::empty())?.into())
}

#[cfg(test)]
mod tests;
