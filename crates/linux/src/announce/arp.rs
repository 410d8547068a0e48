// SPDX-License-Identifier: Apache-2.0
//! ARP over Ethernet for IPv4 (RFC 826, RFC 5227).
//!
//! ```text
//!   hardware 1 · protocol 0x0800 · lengths 6, 4 · operation
//!   sender's MAC · sender's IP · target's MAC · target's IP        28 bytes in total
//! ```

use std::net::Ipv4Addr;

use vipwatch_core::snapshot::Mac;

use super::{AddressClaim, ETHERTYPE_ARP, Frame, array};

const BROADCAST: Mac = Mac([0xff; 6]);

/// Ethernet, IPv4, and the lengths of their addresses in bytes.
const HEADER: [u8; 6] = [0, 1, 0x08, 0, 6, 4];

/// The operation field (`ar$op`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Operation 1.
    Request,
    /// Operation 2.
    Reply,
}

/// Announces to all stations on the link that `ip` is at `mac`.
pub fn gratuitous(operation: Operation, mac: Mac, ip: Ipv4Addr) -> Frame {
    let target = match operation {
        // RFC 5227 §3: an ARP Announcement is a request with the sender's IP as its target. The target's hardware
        // address is ignored and SHOULD be zero (§1.1).
        Operation::Request => Mac([0; 6]),
        // Linux accepts a reply as gratuitous only if both hardware addresses are equal (`arp_is_garp`).
        Operation::Reply => mac,
    };
    packet(operation, (mac, ip), (target, ip))
}

/// An ARP Probe (RFC 5227 §1.1): asks which station has `ip`. The sender's IP is zero, so that no station changes its
/// table.
pub fn probe(from: Mac, ip: Ipv4Addr) -> Frame {
    packet(Operation::Request, (from, Ipv4Addr::UNSPECIFIED), (Mac([0; 6]), ip))
}

fn packet(operation: Operation, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Frame {
    let code: u16 = match operation {
        Operation::Request => 1,
        Operation::Reply => 2,
    };
    let mut frame = Frame::new(BROADCAST, sender.0, ETHERTYPE_ARP);
    frame.append(&HEADER).append(&code.to_be_bytes());
    frame.append(&sender.0.0).append(&sender.1.octets());
    frame.append(&target.0.0).append(&target.1.octets());
    frame
}

/// The claim in a request or a reply: both contain the sender's IP and MAC (RFC 826, "Packet Reception").
pub(super) fn decode_claim(body: &[u8]) -> Option<AddressClaim> {
    if body.get(..HEADER.len())? != HEADER {
        return None;
    }
    let mac = Mac(array(body, 8)?);
    let ip = Ipv4Addr::from(array(body, 14)?);
    (!ip.is_unspecified()).then_some(AddressClaim { ip: ip.into(), mac })
}
