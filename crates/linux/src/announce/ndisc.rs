// SPDX-License-Identifier: Apache-2.0
//! Neighbour discovery for IPv6 (RFC 4861): advertisements and solicitations.
//!
//! ```text
//!   IPv6, 40 bytes: version · length · next header 58 · hop limit 255 · source · destination
//!   ICMPv6, 24 bytes: type · code 0 · checksum · flags · target
//!   option, 8 bytes: 2 (target link-layer address) · 1 (length in units of 8 bytes) · MAC
//! ```

use std::net::Ipv6Addr;

use vipwatch_core::snapshot::Mac;

use super::{AddressClaim, ETHERTYPE_IPV6, Frame, array};

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// RFC 4861 §7.1: routers decrement the hop limit, so a packet with 255 was sent on this link.
const HOP_LIMIT: u8 = 255;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An unsolicited advertisement to all nodes on the link that `ip` is at `mac` (RFC 4861 §7.2.6).
pub fn unsolicited(mac: Mac, ip: Ipv6Addr, is_router: bool) -> Frame {
    const ROUTER: u8 = 0x80;
    const OVERRIDE: u8 = 0x20;
    // RFC 9568 §6.4.1: override is set, so that caches are updated; solicited is not set. The router flag must be
    // correct: if it is missing, a host removes this node from its list of default routers (RFC 4861 §7.2.5).
    let flags = OVERRIDE | if is_router { ROUTER } else { 0 };
    let mut body = [0; 32];
    body[0] = ADVERTISEMENT;
    body[4] = flags;
    body[8..24].copy_from_slice(&ip.octets());
    body[24..26].copy_from_slice(&[2, 1]);
    body[26..].copy_from_slice(&mac.0);
    packet(mac, (ip, ALL_NODES), &mut body)
}

/// A solicitation that asks which station has `ip`, as in duplicate address detection (RFC 4862 §5.4.2): from the
/// unspecified address to the solicited-node group of `ip`. The answer goes to all nodes.
pub fn solicitation(from: Mac, ip: Ipv6Addr) -> Frame {
    let mut body = [0; 24];
    body[0] = SOLICITATION;
    body[8..].copy_from_slice(&ip.octets());
    packet(from, (Ipv6Addr::UNSPECIFIED, solicited_node(ip)), &mut body)
}

/// The solicited-node multicast address (RFC 4291 §2.7.1).
fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The Ethernet address of a multicast group (RFC 2464 §7).
fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

fn packet(from: Mac, (source, destination): (Ipv6Addr, Ipv6Addr), body: &mut [u8]) -> Frame {
    let checksum = checksum(source, destination, body);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    // The body has at most 32 bytes.
    let length = u16::try_from(body.len()).unwrap_or(0);
    let mut frame = Frame::new(multicast_mac(destination), from, ETHERTYPE_IPV6);
    frame.append(&[0x60, 0, 0, 0]).append(&length.to_be_bytes()).append(&[ICMPV6, HOP_LIMIT]);
    frame.append(&source.octets()).append(&destination.octets()).append(body);
    frame
}

/// The Internet checksum (RFC 1071) over the pseudo-header (RFC 8200 §8.1) and `body`. The checksum field of `body`
/// must be zero, and its length even.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum()
    };
    let length = u32::try_from(body.len()).unwrap_or(0);
    let mut sum = words(&source.octets()) + words(&destination.octets()) + words(body);
    sum += length + u32::from(ICMPV6);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // After the loop the sum has 16 bits.
    !u16::try_from(sum).unwrap_or(0)
}

/// The claim in an advertisement. If it has no target link-layer address option, the MAC is that of the `sender`.
pub(super) fn decode_claim(body: &[u8], sender: Mac) -> Option<AddressClaim> {
    let (head, message) = body.split_at_checked(40)?;
    let [version, .., next, hops] = array::<8>(head, 0)?;
    if version >> 4 != 6 || next != ICMPV6 || hops != HOP_LIMIT {
        return None;
    }
    if *message.first()? != ADVERTISEMENT {
        return None;
    }
    let ip = Ipv6Addr::from(array(message, 8)?);
    let mac = target_address(message.get(24..)?).unwrap_or(sender);
    Some(AddressClaim { ip: ip.into(), mac })
}

/// The target link-layer address in the options; `None` if there is none.
fn target_address(mut options: &[u8]) -> Option<Mac> {
    const TARGET: u8 = 2;
    while let [kind, eights, ..] = *options {
        // RFC 4861 §4.6: a packet with an option of length zero is invalid.
        let length = usize::from(eights) * 8;
        if length == 0 {
            return None;
        }
        if kind == TARGET {
            return array(options, 2).map(Mac);
        }
        options = options.get(length..)?;
    }
    None
}
