// SPDX-License-Identifier: Apache-2.0
//! The credentials of the process at the other end of a unix socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// The credentials of a process at the time when it called `listen` or `connect`. If it has ended since, another process
/// may have its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The process id; `None` if the process is in a PID namespace that this process cannot see, such as an agent in
    /// another container. (rustix cannot represent that case, so the option is read here.)
    pub pid: Option<i32>,
    /// The effective user id.
    pub user: u32,
    /// The effective group id.
    pub group: u32,
}

/// Reads the credentials of the process at the other end of `socket` (`SO_PEERCRED`).
pub fn credentials(socket: impl AsFd) -> io::Result<Peer> {
    let mut peer = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the descriptor is open during the call, and pointer and length describe `peer`, for which all zeroes is a
    // valid value too.
    let peer = unsafe {
        let socket = socket.as_fd().as_raw_fd();
        let value = peer.as_mut_ptr().cast();
        let name = libc::SO_PEERCRED;
        if libc::getsockopt(socket, libc::SOL_SOCKET, name, value, &raw mut length) != 0 {
            return Err(io::Error::last_os_error());
        }
        peer.assume_init()
    };
    Ok(Peer { pid: (peer.pid > 0).then_some(peer.pid), user: peer.uid, group: peer.gid })
}

/// A process descriptor of the process at the other end of `socket` (`SO_PEERPIDFD`): of the one that called `listen` or
/// `connect`, and never of a later one with its pid. The error is `ENOPROTOOPT` before Linux 6.5, and another one if the
/// process has ended.
pub fn process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of_val(&fd)).unwrap_or(0);
    // SAFETY: the descriptor is open during the call, and pointer and length describe `fd`. After success, `fd` is a new
    // descriptor that nothing else owns.
    unsafe {
        let socket = socket.as_fd().as_raw_fd();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERPIDFD);
        if libc::getsockopt(socket, level, name, (&raw mut fd).cast(), &raw mut length) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Whether the process at the other end of `socket` is in `group`: as its effective or as a supplementary group.
pub fn is_member(socket: impl AsFd, group: u32) -> io::Result<bool> {
    if credentials(&socket)?.group == group {
        return Ok(true);
    }
    // A process with more groups is not accepted: the kernel then returns ERANGE.
    let mut groups = [0_u32; 1024];
    let mut length = libc::socklen_t::try_from(size_of_val(&groups)).unwrap_or(0);
    // SAFETY: the descriptor is open during the call, and pointer and length describe `groups`, plain numbers of
    // which the kernel sets some.
    let result = unsafe {
        let socket = socket.as_fd().as_raw_fd();
        let value = groups.as_mut_ptr().cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERGROUPS, value, &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(groups[..length as usize / size_of::<u32>()].contains(&group))
}
