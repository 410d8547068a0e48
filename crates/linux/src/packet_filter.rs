// SPDX-License-Identifier: Apache-2.0
//! The kernel's filter of a packet socket: the instructions of a classic BPF program, and the options of the socket.
//! The programs are beside the sockets that use them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

// `<linux/bpf_common.h>`: load a word, a half word or a byte from an absolute offset, a byte from an offset behind X,
// four times the low half of a byte into X; jump if equal, jump if bits are set, return.
pub(crate) const LOAD_WORD: u16 = 0x20;
pub(crate) const LOAD_HALF: u16 = 0x28;
pub(crate) const LOAD_BYTE: u16 = 0x30;
pub(crate) const LOAD_BYTE_BEHIND: u16 = 0x50;
pub(crate) const LOAD_HEADER_LENGTH: u16 = 0xb1;
pub(crate) const JUMP_EQUAL: u16 = 0x15;
pub(crate) const JUMP_SET: u16 = 0x45;
pub(crate) const RETURN: u16 = 0x06;

/// One instruction of a program.
pub(crate) const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Attaches a program to a packet socket, in place of the one before.
pub(crate) fn attach(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = libc::c_ushort::try_from(program.len()).unwrap_or(0);
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let size = libc::socklen_t::try_from(size_of_val(&filter)).unwrap_or(0);
    // SAFETY: the program and its length outlive the call, which copies them and changes neither.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Excludes outgoing packets before the kernel copies them for the filter. Kernels before 4.20 do not have this option:
/// there the filter or the reader must exclude them.
pub(crate) fn ignore_outgoing(fd: &OwnedFd) {
    /// `<linux/if_packet.h>`.
    const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
    let _ = set_option(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
}

/// Sets an option of a socket. `T` is the type that the kernel expects for the option.
pub(crate) fn set_option<T: Copy>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the value outlives the call, and `size` is its size in bytes.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
