// SPDX-License-Identifier: Apache-2.0
//! The kernel's filter: a classic BPF program that accepts VRRP and nothing else.

use std::io;
use std::os::fd::OwnedFd;

use vipwatch_core::vrrp::{PROTOCOL_AH, PROTOCOL_VRRP};

use super::{CaptureMode, SNAPSHOT_BYTES};
use crate::packet_filter::{
    self, JUMP_EQUAL, JUMP_SET, LOAD_BYTE, LOAD_BYTE_BEHIND, LOAD_HEADER_LENGTH, LOAD_WORD, RETURN,
    ignore_outgoing, instruction,
};

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
    packet_filter::attach(fd, &program(excluded_type))?;
    if mode == CaptureMode::Received {
        // Kernels before 4.20 clone sent packets before the filter drops them.
        ignore_outgoing(fd);
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
