// SPDX-License-Identifier: Apache-2.0
//! Listening sockets. A unix socket file has its mode and owner before it is visible at its path.

mod socket_file;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

pub use self::socket_file::{SocketFile, SocketFileLost};

/// Why a process cannot listen on a unix socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The socket cannot be created.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Another process accepts connections on the socket at this path.
    #[error("another process is already listening on {}", .0.display())]
    Taken(PathBuf),
    /// The file at this path is not a socket. It is not replaced.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The file at the path is not the one that this process has created.
    #[error("{0}")]
    Lost(SocketFileLost),
}

/// A listening socket and its file.
#[derive(Debug)]
pub struct BoundSocket {
    /// The listening socket.
    pub listener: OwnedFd,
    /// The socket file.
    pub file: SocketFile,
}

/// `sun_path` of `unix(7)` has 108 bytes, including the zero byte at the end.
const PATH_TOO_LONG: &str = "the path is longer than 107 bytes";

/// Mode, owner and backlog of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// The permissions of the file.
    pub mode: u32,
    /// The owner of the file; `None` for the user of this process.
    pub user: Option<u32>,
    /// The group of the file; `None` for the group of this process.
    pub group: Option<u32>,
    /// Maximum number of connections that wait for `accept`.
    pub backlog: i32,
}

/// Listens on a unix socket at `path`. A socket on which no process listens is replaced; if another process listens
/// on it, the call fails with [`ListenError::Taken`].
///
/// The directory of the socket may belong to another user: no link in it is followed, and no file of another process gets
/// the mode or the owner of the socket.
pub fn listen_at(path: &Path, options: SocketOptions) -> Result<BoundSocket, ListenError> {
    let failed = |source| ListenError::Listen { path: path.to_owned(), source };
    check_path(path)?;
    if path.symlink_metadata().is_ok() && is_served(path) {
        return Err(ListenError::Taken(path.to_owned()));
    }
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let listener = listener.map_err(|errno| failed(errno.into()))?;
    // ORDER: the socket listens, and has its mode and owner, before it has its name: no client can connect earlier.
    let bind_to = |staged: &Path| {
        bind(&listener, &SocketAddrUnix::new(staged)?)?;
        Ok(listen(&listener, options.backlog)?)
    };
    let file = SocketFile::create(path, options, bind_to).map_err(failed)?;
    Ok(BoundSocket { listener, file })
}

/// Listens on a TCP address. An IPv6 socket accepts no IPv4 connections, so that each address has a socket of its own.
pub fn listen_on(address: SocketAddr, backlog: i32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of an earlier process that are not closed yet do not keep the address.
    set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Checks that a socket can be created at `path`: the path is short enough, and no file of another type is there.
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

/// The listening socket that the service manager has passed to this process (`sd_listen_fds(3)`); `None` if it passed
/// none or several. Call it once, before the process opens any file.
pub fn inherited() -> Option<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID")? != std::process::id() || number("LISTEN_FDS")? != 1 {
        return None;
    }
    // SAFETY: the borrowed descriptor is used only for the next call; if it is not open, the kernel returns an error.
    let passed = unsafe { BorrowedFd::borrow_raw(3) };
    if !rustix::net::sockopt::socket_acceptconn(passed).unwrap_or(false) {
        return None;
    }
    // SAFETY: by the protocol this descriptor is open and belongs to this process. No other code uses it, and the
    // caller calls this function once.
    let socket = unsafe { OwnedFd::from_raw_fd(3) };
    let flags = rustix::fs::fcntl_getfl(&socket).ok()?;
    rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK).ok()?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(socket)
}

/// The path of a listening unix socket; `None` if it has no path.
pub fn bound_path(socket: impl AsFd) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    address.path_bytes().map(|bytes| PathBuf::from(std::ffi::OsStr::from_bytes(bytes)))
}

/// How a listening socket differs from one that [`listen_at`] would create, for example `mode 660 and not 666`; empty if it does
/// not. A passed socket has the path, owner and mode that the service manager has given it.
pub fn differences(socket: impl AsFd, path: &Path, options: SocketOptions) -> Vec<String> {
    let Some(found) = bound_path(socket) else {
        return vec![format!("no path and not {}", path.display())];
    };
    let mut differences = Vec::new();
    if found != path {
        differences.push(format!("path {} and not {}", found.display(), path.display()));
    }
    let Ok(metadata) = found.symlink_metadata() else { return differences };
    let mode = metadata.mode() & 0o7777;
    if mode != options.mode {
        differences.push(format!("mode {mode:o} and not {:o}", options.mode));
    }
    for (what, has, wanted) in
        [("user", metadata.uid(), options.user), ("group", metadata.gid(), options.group)]
    {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != has) {
            differences.push(format!("{what} {has} and not {wanted}"));
        }
    }
    differences
}

/// Whether a process listens on the socket at `path`, even if its backlog is full.
fn is_served(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tried = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    !matches!(tried, Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const OPTIONS: SocketOptions =
        SocketOptions { mode: 0o640, user: None, group: None, backlog: 8 };

    /// 107 bytes is the maximum length of a path that a client can connect to.
    #[test]
    fn a_process_can_listen_on_a_path_of_96_to_107_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let taken = directory.path().as_os_str().len() + "/".len();
        for length in [96, 107] {
            let path = directory.path().join("s".repeat(length - taken));
            assert_eq!(path.as_os_str().len(), length);
            let _socket = listen_at(&path, OPTIONS).unwrap();
            std::os::unix::net::UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn only_a_socket_without_a_listener_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/s");
        let first = listen_at(&path, OPTIONS).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(matches!(listen_at(&path, OPTIONS), Err(ListenError::Taken(_))));
        drop(first);
        let _second = listen_at(&path, OPTIONS).unwrap();
        let file = directory.path().join("file");
        std::fs::File::create(&file).unwrap();
        assert!(matches!(listen_at(&file, OPTIONS), Err(ListenError::NotASocket(_))));
        let leftovers = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(leftovers, 1);
    }

    #[test]
    fn a_passed_socket_is_compared_with_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(differences(&socket, &path, OPTIONS), [""; 0]);
        let user = path.metadata().unwrap().uid();
        let options = SocketOptions { mode: 0o666, user: Some(user), group: Some(77), backlog: 8 };
        let group = path.metadata().unwrap().gid();
        let found = differences(&socket, Path::new("/other"), options);
        let expected = [
            format!("path {} and not /other", path.display()),
            "mode 640 and not 666".to_owned(),
            format!("group {group} and not 77"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_socket_file_of_another_process_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = listen_at(&path, OPTIONS).unwrap();
        assert_eq!(first.file.check(), Ok(()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(first.file.check(), Err(SocketFileLost::Removed(path.clone())));
        let second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(first.file.check(), Err(SocketFileLost::Replaced(path.clone())));
        assert!(matches!(first.file.set_permissions(OPTIONS), Err(ListenError::Lost(_))));
        first.file.remove();
        assert!(is_served(&path), "the socket of the other process");
        drop(second);
        std::fs::remove_file(&path).unwrap();
        let third = listen_at(&path, OPTIONS).unwrap();
        third.file.remove();
        assert!(!path.exists(), "the socket of this process");
    }
}
