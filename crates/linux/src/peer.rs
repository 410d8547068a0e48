//! Who is at the other end of a unix socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The process that listened, or connected, when it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its id; `None` if it lives in a PID namespace that we cannot see into, as an agent in
    /// another container does. (rustix's reader of this option has no value for that.)
    pub pid: Option<i32>,
    /// Its effective user.
    pub user: u32,
    /// Its effective group.
    pub group: u32,
}

/// Asks the kernel who is at the other end of `socket`.
pub fn credentials(socket: impl AsFd) -> io::Result<Peer> {
    let mut peer = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the descriptor is open for the length of the call, and pointer and length
    // describe `peer`, for which all zeroes is a value too.
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

/// Whether the other end of `socket` belongs to `group`, by its effective group or another.
pub fn is_member(socket: impl AsFd, group: u32) -> io::Result<bool> {
    if credentials(&socket)?.group == group {
        return Ok(true);
    }
    // More groups than anybody has; with more, the kernel says ERANGE, and nobody gets in.
    let mut groups = [0_u32; 1024];
    let mut length = libc::socklen_t::try_from(size_of_val(&groups)).unwrap_or(0);
    // SAFETY: the descriptor is open for the length of the call, and pointer and length
    // describe `groups`, plain numbers, of which the kernel fills some.
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
