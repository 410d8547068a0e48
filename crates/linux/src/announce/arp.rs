//! ARP over Ethernet for IPv4 (RFC 826, RFC 5227).
//!
//! ```text
//!   hardware 1 · protocol 0x0800 · lengths 6, 4 · operation
//!   sender's MAC · sender's IP · target's MAC · target's IP        28 bytes in all
//! ```

use std::net::Ipv4Addr;

use vipwatch_core::snapshot::Mac;

use super::{AddressClaim, ETHERTYPE_ARP, Frame, array};

const BROADCAST: Mac = Mac([0xff; 6]);

/// Ethernet, IPv4, and the lengths of their addresses.
const HEAD: [u8; 6] = [0, 1, 0x08, 0, 6, 4];

/// `ar$op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// 1
    Request,
    /// 2
    Reply,
}

/// Says that `ip` is at `mac` to everybody on the link.
pub fn gratuitous(operation: Operation, mac: Mac, ip: Ipv4Addr) -> Frame {
    let target = match operation {
        // RFC 5227 §3: an ARP Announcement is a request whose target is the sender. The
        // target's hardware address is ignored and SHOULD be zero (§1.1).
        Operation::Request => Mac([0; 6]),
        // Linux takes a gratuitous reply for one only if both hardware addresses agree
        // (`arp_is_garp`).
        Operation::Reply => mac,
    };
    packet(operation, (mac, ip), (target, ip))
}

/// Asks who has `ip` without claiming it: an ARP Probe (RFC 5227 §1.1), which must not
/// spoil anybody's table, so the sender's address is zero.
pub fn probe(from: Mac, ip: Ipv4Addr) -> Frame {
    packet(Operation::Request, (from, Ipv4Addr::UNSPECIFIED), (Mac([0; 6]), ip))
}

fn packet(operation: Operation, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Frame {
    let code: u16 = match operation {
        Operation::Request => 1,
        Operation::Reply => 2,
    };
    let mut frame = Frame::new(BROADCAST, sender.0, ETHERTYPE_ARP);
    frame.append(&HEAD).append(&code.to_be_bytes());
    frame.append(&sender.0.0).append(&sender.1.octets());
    frame.append(&target.0.0).append(&target.1.octets());
    frame
}

/// Who claims what, in a request or in a reply: both tell where the sender is (RFC 826,
/// "Packet Reception").
pub(super) fn claim(body: &[u8]) -> Option<AddressClaim> {
    if body.get(..HEAD.len())? != HEAD {
        return None;
    }
    let mac = Mac(array(body, 8)?);
    let ip = Ipv4Addr::from(array(body, 14)?);
    (!ip.is_unspecified()).then_some(AddressClaim { ip: ip.into(), mac })
}
