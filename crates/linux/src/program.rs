// SPDX-License-Identifier: Apache-2.0
//! Opens a program, checks that only trusted users can change it, and starts exactly the file that was checked.
//!
//! ```text
//!   /  ──▶  etc  ──▶  vipwatch  ──▶  hooks  ──▶  changed        each part: opened (O_PATH), then checked
//!                                                   │
//!                                                   └──▶ descriptor N  ──▶  execve("/proc/self/fd/N")
//! ```
//!
//! The path is followed part by part through descriptors, symbolic links included. The program is started by its
//! descriptor, so a file that replaces it after the check is not started. `/proc/self/fd/N` leads to the open file
//! itself, and is what `fexecve(3)` uses too.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Gid, Signal, Uid};

/// Maximum number of symbolic links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The id by which the kernel shows users that a user namespace does not have.
const OVERFLOW_USER: u32 = 65534;

/// Why a program is not started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A part of the path cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The part of the path.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The path leads to a directory or a device.
    #[error("it is not a file")]
    NotAFile,
    /// No user may execute the file.
    #[error("the program file is not executable: chmod +x")]
    NotExecutable,
    /// Users other than the owner can write to the file.
    #[error("users other than its owner can write to the program file: chmod go-w")]
    Exposed,
    /// The owner of the file could change it.
    #[error("the program belongs to user {user}, not to {}", owners(trusted))]
    Foreign {
        /// The id of its owner.
        user: u32,
        /// The users that may own it, besides root.
        trusted: Vec<u32>,
    },
    /// Users other than the owner of a directory can put another file in the place of the program.
    #[error("users other than its owner can write to the directory {}: chmod go-w", .0.display())]
    ExposedDirectory(PathBuf),
    /// The owner of a link in a directory that all users can write could lead it to another program.
    #[error(
        "the link {} is in a directory that other users can write, and belongs to user {user}, not to {}",
        path.display(),
        owners(trusted)
    )]
    ForeignLink {
        /// The link.
        path: PathBuf,
        /// The id of its owner.
        user: u32,
        /// The users that may own it, besides root.
        trusted: Vec<u32>,
    },
    /// The owner of a directory could put another file in the place of the program.
    #[error("the directory {} belongs to user {user}, not to {}", path.display(), owners(trusted))]
    ForeignDirectory {
        /// The directory.
        path: PathBuf,
        /// The id of its owner.
        user: u32,
        /// The users that may own it, besides root.
        trusted: Vec<u32>,
    },
}

/// Root and the trusted users, for messages.
fn owners(trusted: &[u32]) -> String {
    let others = trusted.iter().filter(|user| **user != 0);
    others.fold("root".to_owned(), |text, user| format!("{text} or user {user}"))
}

impl ProgramError {
    /// Whether this process has not the permission to look: a process of another user may have it.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// The user and the groups of a process that is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAs {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

/// An open program that only root and the trusted users can change.
#[derive(Debug)]
pub struct CheckedProgram {
    /// Opened with `O_PATH`: it can be executed, and neither read nor written.
    file: OwnedFd,
    path: PathBuf,
    /// A script: its interpreter opens the descriptor again, so the descriptor stays open in the new process.
    is_script: bool,
}

impl CheckedProgram {
    /// Opens the program at the absolute `path`. The owner of the file and of each directory on the way must be root
    /// or one of `trusted`, and no other user may write to them. A directory with the sticky bit, such as `/tmp`, may
    /// be writable: there, users cannot replace files of other users. A link in it must belong to one of these users too.
    pub fn open(path: &Path, trusted: &[u32]) -> Result<Self, ProgramError> {
        let file = Walk::new(path, trusted)?.run()?;
        let is_script = !is_elf(&file);
        Ok(Self { file, path: path.to_owned(), is_script })
    }

    /// Whether an interpreter runs it, which gets the path as an argument.
    pub fn is_script(&self) -> bool {
        self.is_script
    }

    /// Opens the same file to read it.
    pub fn read(&self) -> io::Result<File> {
        reopen(&self.file)
    }

    /// The command that starts this file. Its first argument is the path; a script gets `/proc/self/fd/N` as `$0`.
    pub fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(&self.path);
        command
    }

    /// Prepares `command`, which [`Self::command`] has made: the new process has the identity `run_as` (`None`: that of
    /// this process) and no blocked signals, and the kernel kills it when this thread ends. Keep this value until the
    /// process is started.
    pub fn prepare(&self, command: &mut Command, run_as: Option<&RunAs>) {
        let parent = rustix::process::getpid();
        let kept_open = self.is_script.then(|| self.file.as_raw_fd());
        let identity = run_as.map(|run_as| {
            let groups = run_as.groups.iter().map(|group| Gid::from_raw(*group));
            (Uid::from_raw(run_as.user), Gid::from_raw(run_as.group), groups.collect::<Vec<_>>())
        });
        let prepare = move || {
            if let Some((user, group, groups)) = &identity {
                change_identity(*user, *group, groups)?;
            }
            if let Some(fd) = kept_open {
                clear_close_on_exec(fd)?;
            }
            crate::signal::unblock_all();
            // ORDER: after the change of the user, which clears this setting.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(Errno::SRCH.into())
            }
        };
        // SAFETY: between fork and exec the closure only makes system calls; it uses neither the heap nor a lock.
        unsafe { command.pre_exec(prepare) };
    }
}

/// ORDER: supplementary groups, then group, then user: each step needs a right that the next one drops.
fn change_identity(user: Uid, group: Gid, groups: &[Gid]) -> io::Result<()> {
    rustix::thread::set_thread_groups(groups)?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    Ok(())
}

fn clear_close_on_exec(fd: i32) -> io::Result<()> {
    // SAFETY: the caller of `prepare` keeps the program open until the process is started, so the descriptor is open.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    Ok(rustix::io::fcntl_setfd(fd, FdFlags::empty())?)
}

/// Follows a path part by part.
struct Walk<'t> {
    trusted: &'t [u32],
    /// Whether this process is in a user namespace, which shows every user outside of it as [`OVERFLOW_USER`].
    has_unknown_users: bool,
    directory: OwnedFd,
    /// Whether other users can create files in `directory`.
    is_shared: bool,
    /// The path of `directory`, for messages.
    shown: PathBuf,
    /// The parts that follow, the next one last.
    rest: Vec<OsString>,
    links: usize,
}

impl<'t> Walk<'t> {
    fn new(path: &Path, trusted: &'t [u32]) -> Result<Self, ProgramError> {
        let mut rest = Vec::new();
        push_parts(path, &mut rest);
        Ok(Self {
            trusted,
            has_unknown_users: is_in_user_namespace(),
            directory: open_root()?,
            is_shared: false,
            shown: PathBuf::from("/"),
            rest,
            links: 0,
        })
    }

    /// The open file at the end of the path.
    fn run(mut self) -> Result<OwnedFd, ProgramError> {
        self.check_directory()?;
        while let Some(part) = self.rest.pop() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = openat(&self.directory, &part, flags, Mode::empty());
            let file = opened.map_err(|errno| self.failed(&part, errno))?;
            let stat = fstat(&file).map_err(|errno| self.failed(&part, errno))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => self.follow(&part, &file, stat.st_uid)?,
                FileType::Directory => {
                    self.shown.push(&part);
                    self.directory = file;
                    self.check_directory()?;
                }
                FileType::RegularFile if self.rest.is_empty() => {
                    return self.check_program(&stat).map(|()| file);
                }
                _ if self.rest.is_empty() => return Err(ProgramError::NotAFile),
                _ => return Err(self.failed(&part, Errno::NOTDIR)),
            }
        }
        Err(ProgramError::NotAFile)
    }

    fn follow(&mut self, part: &OsStr, link: &OwnedFd, user: u32) -> Result<(), ProgramError> {
        if self.is_shared && !self.is_trusted(user) {
            let trusted = self.trusted.to_vec();
            return Err(ProgramError::ForeignLink { path: self.shown.join(part), user, trusted });
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(self.failed(part, Errno::LOOP));
        }
        let target = readlinkat(link, "", Vec::new()).map_err(|errno| self.failed(part, errno))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.directory = open_root()?;
            self.shown = PathBuf::from("/");
            self.check_directory()?;
        }
        push_parts(&target, &mut self.rest);
        Ok(())
    }

    fn check_directory(&mut self) -> Result<(), ProgramError> {
        let stat = fstat(&self.directory).map_err(|errno| self.failed("".as_ref(), errno))?;
        if !self.is_trusted(stat.st_uid) {
            let path = self.shown.clone();
            let trusted = self.trusted.to_vec();
            return Err(ProgramError::ForeignDirectory { path, user: stat.st_uid, trusted });
        }
        // Members of the group root can write to some directories of distributions.
        let writable = if stat.st_gid == 0 { 0o002 } else { 0o022 };
        let is_sticky = stat.st_mode & 0o1000 != 0;
        self.is_shared = stat.st_mode & writable != 0;
        if self.is_shared && !is_sticky {
            return Err(ProgramError::ExposedDirectory(self.shown.clone()));
        }
        Ok(())
    }

    fn check_program(&self, stat: &Stat) -> Result<(), ProgramError> {
        if stat.st_mode & 0o111 == 0 {
            return Err(ProgramError::NotExecutable);
        }
        if !self.is_trusted(stat.st_uid) {
            let trusted = self.trusted.to_vec();
            return Err(ProgramError::Foreign { user: stat.st_uid, trusted });
        }
        if stat.st_mode & 0o022 != 0 {
            return Err(ProgramError::Exposed);
        }
        Ok(())
    }

    /// LIMIT: in a user namespace, root of the machine and its other users have the same id.
    fn is_trusted(&self, user: u32) -> bool {
        let is_unknown = self.has_unknown_users && user == OVERFLOW_USER;
        user == 0 || is_unknown || self.trusted.contains(&user)
    }

    fn failed(&self, part: &OsStr, errno: Errno) -> ProgramError {
        ProgramError::Open { path: self.shown.join(part), source: errno.into() }
    }
}

fn open_root() -> Result<OwnedFd, ProgramError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open("/", flags, Mode::empty());
    opened.map_err(|errno| ProgramError::Open { path: PathBuf::from("/"), source: errno.into() })
}

/// Adds the parts of `path`, so that its first part is the last of `rest`.
pub(crate) fn push_parts(path: &Path, rest: &mut Vec<OsString>) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => rest.push(name.to_owned()),
            Component::ParentDir => rest.push(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Whether the file is a binary program. A file that this process may not read is one: a script must be readable.
fn is_elf(file: &OwnedFd) -> bool {
    let mut start = [0; 4];
    let read = reopen(file).and_then(|mut file| file.read_exact(&mut start));
    match read {
        Ok(()) => &start == b"\x7fELF",
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// A descriptor with `O_PATH` cannot be read; this one can.
fn reopen(file: &OwnedFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<&str> = map.split_ascii_whitespace().collect();
    !map.is_empty() && fields != ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests;
