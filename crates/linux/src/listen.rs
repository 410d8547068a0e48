//! A unix socket at a path, with the wanted mode and owner from the first moment it can be met.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// It cannot be made.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody answers there.
    #[error("somebody answers on {} already", .0.display())]
    Taken(PathBuf),
    /// Something else bears its name.
    #[error("{} is not a socket, and is left alone", .0.display())]
    NotASocket(PathBuf),
    /// The file at the path is not the one that this process has made.
    #[error("{0}")]
    Lost(SocketFileLost),
}

/// What became of a socket file behind the back of the process that made it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketFileLost {
    /// There is no file at the path.
    #[error("the socket file {} was removed: no client can connect", .0.display())]
    Removed(PathBuf),
    /// There is another file at the path.
    #[error("another process has replaced the socket file {}: clients connect to that process", .0.display())]
    Replaced(PathBuf),
}

/// The file of a socket that this process listens on. Device and inode tell it from a file that another
/// process has put in its place; they are not used again while the listener is open.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file at the path is still the one that this process has made.
    pub fn check(&self) -> Result<(), SocketFileLost> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => Ok(()),
            Ok(_) => Err(SocketFileLost::Replaced(self.path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(SocketFileLost::Removed(self.path.clone()))
            }
            // A directory that cannot be read for a moment says nothing about the file.
            Err(_) => Ok(()),
        }
    }

    /// Removes the file, unless it is another process's by now. Call it while the listener is open.
    // LIMIT: a file that is replaced between the comparison and the removal is removed.
    pub fn remove(&self) {
        if self.check().is_ok() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Changes mode and owner of the file, unless it is another process's by now.
    pub fn set_permissions(&self, looks: SocketOptions) -> Result<(), ListenError> {
        self.check().map_err(ListenError::Lost)?;
        let failed = |source| ListenError::Listen { path: self.path.clone(), source };
        dress(&self.path, looks).map_err(failed)
    }
}

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct BoundSocket {
    /// The socket.
    pub listener: OwnedFd,
    /// Its file.
    pub file: SocketFile,
}

/// `sun_path` of `unix(7)` has 108 bytes, with the zero at the end.
const PATH_TOO_LONG: &str = "the path is longer than 107 bytes";

/// How it is to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// Its permissions.
    pub mode: u32,
    /// Its user, if not ours.
    pub user: Option<u32>,
    /// Its group, if not ours.
    pub group: Option<u32>,
    /// How many may wait to be taken.
    pub backlog: i32,
}

/// Listens at `path`. A socket that nobody serves is replaced, one that somebody does is respected.
pub fn listen_at(path: &Path, looks: SocketOptions) -> Result<BoundSocket, ListenError> {
    let failed = |source| ListenError::Listen { path: path.to_owned(), source };
    check_path(path)?;
    if path.symlink_metadata().is_ok() && is_served(path) {
        return Err(ListenError::Taken(path.to_owned()));
    }
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    // ORDER: it gets its name when it has its mode and its owner; nobody meets it before.
    let staged = path.with_file_name(staged_name());
    let _ = std::fs::remove_file(&staged);
    let made = make(&staged, looks).and_then(|listener| {
        let made = std::fs::symlink_metadata(&staged)?;
        std::fs::rename(&staged, path)?;
        let (path, device, inode) = (path.to_owned(), made.dev(), made.ino());
        Ok(BoundSocket { listener, file: SocketFile { path, device, inode } })
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&staged);
    }
    made.map_err(failed)
}

/// Whether a socket can be at `path`: the kernel takes so long a name, and nothing else has it.
pub fn check_path(path: &Path) -> Result<(), ListenError> {
    SocketAddrUnix::new(path).map_err(|errno| ListenError::Listen {
        path: path.to_owned(),
        source: io::Error::new(io::Error::from(errno).kind(), PATH_TOO_LONG),
    })?;
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(ListenError::NotASocket(path.to_owned()))
        }
        _ => Ok(()),
    }
}

/// A socket that a service manager has made for us (`sd_listen_fds(3)`), if it has made just one. To be asked
/// once, and before anything is opened.
pub fn inherited() -> Option<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID")? != std::process::id() || number("LISTEN_FDS")? != 1 {
        return None;
    }
    // SAFETY: nothing is kept of it beyond the question what it is; if it is nothing, the kernel says so.
    let handed = unsafe { BorrowedFd::borrow_raw(3) };
    if !rustix::net::sockopt::socket_acceptconn(handed).unwrap_or(false) {
        return None;
    }
    // SAFETY: by the protocol this descriptor is open, and it is ours; nobody else here knows of it,
    // and the caller asks once.
    let socket = unsafe { OwnedFd::from_raw_fd(3) };
    let flags = rustix::fs::fcntl_getfl(&socket).ok()?;
    rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK).ok()?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(socket)
}

fn dress(path: &Path, looks: SocketOptions) -> io::Result<()> {
    std::os::unix::fs::chown(path, looks.user, looks.group).map_err(|error| {
        let whose = looks.user.or(looks.group).map(|id| id.to_string()).unwrap_or_default();
        io::Error::new(error.kind(), format!("it cannot be given to {whose}: {error}"))
    })?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(looks.mode))
}

fn make(path: &Path, looks: SocketOptions) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind_at(&socket, path)?;
    dress(path, looks)?;
    listen(&socket, looks.backlog)?;
    Ok(socket)
}

/// A short name that no other socket of this process, and none of another process, has.
fn staged_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".new-{}-{number}", std::process::id())
}

/// Binds `socket` at `path`, which may be longer than an address of a socket: then by way of its directory.
fn bind_at(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    if let Ok(address) = SocketAddrUnix::new(path) {
        return Ok(bind(socket, &address)?);
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(rustix::io::Errno::NAMETOOLONG.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok(bind(socket, &SocketAddrUnix::new(&short)?)?)
}

/// Whether somebody takes connections there; one who is too busy to does.
fn is_served(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tried = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    !matches!(tried, Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKS: SocketOptions = SocketOptions { mode: 0o640, user: None, group: None, backlog: 8 };

    /// 107 bytes are the longest path that a client can connect to.
    #[test]
    fn a_path_of_96_to_107_bytes_can_be_listened_on() {
        let directory = tempfile::tempdir().unwrap();
        let taken = directory.path().as_os_str().len() + "/".len();
        for length in [96, 107] {
            let path = directory.path().join("s".repeat(length - taken));
            assert_eq!(path.as_os_str().len(), length);
            let _socket = listen_at(&path, LOOKS).unwrap();
            std::os::unix::net::UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_a_live_one_respected_and_a_file_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/s");
        let first = listen_at(&path, LOOKS).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(matches!(listen_at(&path, LOOKS), Err(ListenError::Taken(_))));
        drop(first);
        let _second = listen_at(&path, LOOKS).unwrap();
        let file = directory.path().join("file");
        std::fs::File::create(&file).unwrap();
        assert!(matches!(listen_at(&file, LOOKS), Err(ListenError::NotASocket(_))));
        let leftovers = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(leftovers, 1);
    }
    #[test]
    fn a_socket_file_that_another_process_has_made_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = listen_at(&path, LOOKS).unwrap();
        assert_eq!(first.file.check(), Ok(()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(first.file.check(), Err(SocketFileLost::Removed(path.clone())));
        let second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(first.file.check(), Err(SocketFileLost::Replaced(path.clone())));
        assert!(matches!(first.file.set_permissions(LOOKS), Err(ListenError::Lost(_))));
        first.file.remove();
        assert!(is_served(&path), "the other process's");
        drop(second);
        std::fs::remove_file(&path).unwrap();
        let third = listen_at(&path, LOOKS).unwrap();
        third.file.remove();
        assert!(!path.exists(), "our own");
    }
}
