// SPDX-License-Identifier: Apache-2.0
//! The kernel's filter: a classic BPF program that accepts VRRP and nothing else.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use vipwatch_core::vrrp::{PROTOCOL_AH, PROTOCOL_VRRP};

use super::{CaptureMode, SNAPSHOT_BYTES, set_option};

// `<linux/bpf_common.h>`: load a word or a byte from an absolute offset, a byte from an offset behind X, four times the
// low half of a byte into X; jump if equal, jump if bits are set, return.
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const LOAD_BYTE_BEHIND: u16 = 0x50;
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

// `<linux/filter.h>`: offsets that stand for facts outside of the packet. A tag that the network card has removed, or
// the kernel, is such a fact.
const PROTOCOL: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = 0xffff_f004;
const VLAN_TAG: u32 = 0xffff_f02c;

const ETHERTYPE_IPV4: u32 = 0x0800;
const ETHERTYPE_IPV6: u32 = 0x86dd;
const TYPE_OTHER_HOST: u32 = libc::PACKET_OTHERHOST as u32;
const TYPE_OUTGOING: u32 = libc::PACKET_OUTGOING as u32;
/// No packet type: the filter then accepts sent packets.
const TYPE_NONE: u32 = u32::MAX;

/// `PACKET_IGNORE_OUTGOING` of `<linux/if_packet.h>`.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The program. The offset 0 is the IP header, because the socket is of the type `SOCK_DGRAM`.
const fn program(excluded_type: u32) -> [libc::sock_filter; 21] {
    [
        instruction(LOAD_WORD, PACKET_TYPE, 0, 0),
        // Packets to other hosts, on a link in promiscuous mode.
        instruction(JUMP_EQUAL, TYPE_OTHER_HOST, 17, 0),
        instruction(JUMP_EQUAL, excluded_type, 16, 0),
        // Packets of a VLAN above this link. The tag 0 carries a priority only.
        instruction(LOAD_WORD, VLAN_TAG, 0, 0),
        instruction(JUMP_SET, 0xfff, 14, 0),
        instruction(LOAD_WORD, PROTOCOL, 0, 0),
        instruction(JUMP_EQUAL, ETHERTYPE_IPV4, 1, 0),
        instruction(JUMP_EQUAL, ETHERTYPE_IPV6, 6, 11),
        // 8: IPv4
        instruction(LOAD_BYTE, 9, 0, 0),
        instruction(JUMP_EQUAL, PROTOCOL_VRRP as u32, 10, 0),
        instruction(JUMP_EQUAL, PROTOCOL_AH as u32, 0, 8),
        instruction(LOAD_HEADER_LENGTH, 0, 0, 0),
        instruction(LOAD_BYTE_BEHIND, 0, 0, 0),
        instruction(JUMP_EQUAL, PROTOCOL_VRRP as u32, 6, 5),
        // 14: IPv6
        instruction(LOAD_BYTE, 6, 0, 0),
        instruction(JUMP_EQUAL, PROTOCOL_VRRP as u32, 4, 0),
        instruction(JUMP_EQUAL, PROTOCOL_AH as u32, 0, 2),
        instruction(LOAD_BYTE, 40, 0, 0),
        instruction(JUMP_EQUAL, PROTOCOL_VRRP as u32, 1, 0),
        // 19: drop; 20: accept
        instruction(RETURN, 0, 0, 0),
        instruction(RETURN, SNAPSHOT_BYTES, 0, 0),
    ]
}

/// Attaches the filter for `mode`.
pub(super) fn attach(fd: &OwnedFd, mode: CaptureMode) -> io::Result<()> {
    let excluded_type = match mode {
        CaptureMode::Received => TYPE_OUTGOING,
        CaptureMode::ReceivedAndSent => TYPE_NONE,
    };
    let program = program(excluded_type);
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
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if mode == CaptureMode::Received {
        // Kernels before 4.20 do not have this option and clone sent packets before the filter drops them.
        let _ = set_option(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_of_the_filter_has_its_target() {
        let program = program(TYPE_OUTGOING);
        let target = |at: usize, jump: u8| at + 1 + usize::from(jump);
        let jumps = program.iter().enumerate().filter(|(_, one)| one.code & 7 == 5);
        for (at, one) in jumps {
            assert!(target(at, one.jt) < program.len() && target(at, one.jf) < program.len());
        }
        let drops = [(1, true), (2, true), (4, true), (7, false), (10, false), (13, false)];
        for (at, is_equal) in drops {
            let jump = if is_equal { program[at].jt } else { program[at].jf };
            assert_eq!(target(at, jump), 19, "instruction {at}");
        }
        for at in [9, 13, 15, 18] {
            assert_eq!(target(at, program[at].jt), 20, "instruction {at}");
        }
        assert_eq!((target(6, program[6].jt), target(7, program[7].jt)), (8, 14));
    }
}
