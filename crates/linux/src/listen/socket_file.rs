// SPDX-License-Identifier: Apache-2.0
//! The file of a listening unix socket, in a directory that may belong to another user.
//!
//! ```text
//!   mkdirat  DIRECTORY/.new-PID-N      only this user may use it
//!   bind     DIRECTORY/.new-PID-N/s    through the descriptor of the new directory
//!   open     s with O_PATH             mode and owner are set through this descriptor, now and later
//!   renameat s → DIRECTORY/NAME        between the two descriptors
//!   unlinkat DIRECTORY/.new-PID-N
//! ```
//!
//! The other user may rename or replace all names in `DIRECTORY` at any time, but no name in the new directory: the socket
//! that gets the mode and the owner is the one that `bind` has created.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, mkdirat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::{ListenError, SocketOptions};

/// The name of the socket in its staging directory.
const STAGED: &str = "s";

/// What another process did to a socket file that this process has created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketFileLost {
    /// There is no file at the path.
    #[error("the socket file {} was removed: no client can connect", .0.display())]
    Removed(PathBuf),
    /// There is another file at the path.
    #[error("another process has replaced the socket file {}: clients connect to that process", .0.display())]
    Replaced(PathBuf),
}

/// The file of a socket that this process listens on. Device and inode distinguish it from a file that another
/// process has put in its place; the kernel does not reuse them while the file is open here.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    name: OsString,
    /// The directory of the file, opened once (`O_PATH`).
    directory: OwnedFd,
    /// The file itself (`O_PATH`).
    socket: OwnedFd,
}

impl SocketFile {
    /// Creates the file at `path` with mode and owner of `options`. `bind_to` binds the socket to the path that it receives.
    pub(super) fn create(
        path: &Path,
        options: SocketOptions,
        bind_to: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        let staging = StagingDirectory::create(&directory)?;
        bind_to(&descriptor_path(&staging.opened).join(STAGED))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&staging.opened, STAGED, flags, Mode::empty())?;
        set_mode_and_owner(&socket, options)?;
        renameat(&staging.opened, STAGED, &directory, &name)?;
        drop(staging);
        Ok(Self { path: path.to_owned(), name, directory, socket })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file at the path is still the one that this process has created.
    pub fn check(&self) -> Result<(), SocketFileLost> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) if self.has_inode(found.dev(), found.ino()) => Ok(()),
            Ok(_) => Err(SocketFileLost::Replaced(self.path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(SocketFileLost::Removed(self.path.clone()))
            }
            // If the directory cannot be read at the moment, nothing is known about the file.
            Err(_) => Ok(()),
        }
    }

    /// Removes the file, unless another process has replaced it.
    // LIMIT: a file that is replaced between the comparison and the removal is removed.
    pub fn remove(&self) {
        let found = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| self.has_inode(found.st_dev, found.st_ino)) {
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }

    /// Sets mode and owner of the file, unless another process has replaced it.
    pub fn set_permissions(&self, options: SocketOptions) -> Result<(), ListenError> {
        self.check().map_err(ListenError::Lost)?;
        let failed = |source| ListenError::Listen { path: self.path.clone(), source };
        set_mode_and_owner(&self.socket, options).map_err(failed)
    }

    fn has_inode(&self, device: u64, inode: u64) -> bool {
        fstat(&self.socket).is_ok_and(|own| (own.st_dev, own.st_ino) == (device, inode))
    }
}

/// A directory in the directory of the socket, which only the user of this process may use. `Drop` removes it.
struct StagingDirectory<'d> {
    parent: &'d OwnedFd,
    name: String,
    opened: OwnedFd,
}

impl<'d> StagingDirectory<'d> {
    fn create(parent: &'d OwnedFd) -> io::Result<Self> {
        let name = staged_name();
        match mkdirat(parent, &name, Mode::RWXU) {
            // A process that was killed may have left it.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(parent, &name, flags, Mode::empty())?;
        if !is_private(&fstat(&opened)?) {
            let text = format!("another user has created {name} in the directory of the socket");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let _ = unlinkat(&opened, STAGED, AtFlags::empty());
        Ok(Self { parent, name, opened })
    }
}

impl Drop for StagingDirectory<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(&self.opened, STAGED, AtFlags::empty());
        // A directory of another user with this name is removed only if it is empty.
        let _ = unlinkat(self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Whether only the user of this process may use a directory.
fn is_private(directory: &Stat) -> bool {
    directory.st_uid == rustix::process::geteuid().as_raw() && directory.st_mode & 0o777 == 0o700
}

/// A short file name that is unique among all processes and all sockets of this process.
fn staged_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".new-{}-{number}", std::process::id())
}

/// The path of an open file, which leads to this file whatever its name is now.
fn descriptor_path(file: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_raw_fd().to_string())
}

fn set_mode_and_owner(socket: &OwnedFd, options: SocketOptions) -> io::Result<()> {
    // ORDER: the mode first. Afterwards the file may belong to another user, and only its owner may change the mode.
    // `fchmod` refuses a descriptor with O_PATH, and `fchmodat2` needs Linux 6.6.
    let mode = std::fs::Permissions::from_mode(options.mode);
    std::fs::set_permissions(descriptor_path(socket), mode)?;
    let (user, group) = (options.user.map(Uid::from_raw), options.group.map(Gid::from_raw));
    chownat(socket, OsStr::new(""), user, group, AtFlags::EMPTY_PATH).map_err(|errno| {
        let owner = options.user.or(options.group).map(|id| id.to_string()).unwrap_or_default();
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("cannot change the owner to {owner}: {error}"))
    })
}
