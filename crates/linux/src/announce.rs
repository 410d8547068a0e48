// SPDX-License-Identifier: Apache-2.0
//! Frames that announce an address, and the packet socket that sends them.
//!
//! [`arp`] and [`ndisc`] encode and decode frames and make no system calls; [`packet_socket`] sends and receives them.
//! Which addresses are announced, and when, is decided by `vipwatch_core::announce`.

pub mod arp;
pub mod ndisc;
pub mod packet_socket;

use std::net::IpAddr;

use vipwatch_core::announce::AnnounceSource;
use vipwatch_core::snapshot::Mac;

/// Size of the largest frame that is built here: a neighbour advertisement with one option.
const MAX_FRAME_BYTES: usize = 86;

/// `<linux/if_ether.h>`.
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// A complete Ethernet frame.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    bytes: [u8; MAX_FRAME_BYTES],
    length: usize,
}

impl Frame {
    /// A frame with the Ethernet header only.
    fn new(to: Mac, from: Mac, ethertype: u16) -> Self {
        let mut frame = Self { bytes: [0; MAX_FRAME_BYTES], length: 0 };
        frame.append(&to.0).append(&from.0).append(&ethertype.to_be_bytes());
        frame
    }

    fn append(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }

    /// All bytes of the frame, from the destination MAC on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The frames of one announcement that `ip` is at the MAC of `source`.
///
/// For IPv4 there are two frames, an ARP request and an ARP reply: RFC 5227 §3 specifies requests, but some stations
/// update their table only from replies.
pub fn announcement(ip: IpAddr, source: &AnnounceSource) -> impl Iterator<Item = Frame> + use<> {
    let (first, second) = match ip {
        IpAddr::V4(ip) => (
            arp::gratuitous(arp::Operation::Request, source.mac, ip),
            Some(arp::gratuitous(arp::Operation::Reply, source.mac, ip)),
        ),
        IpAddr::V6(ip) => (ndisc::unsolicited(source.mac, ip, source.is_router), None),
    };
    std::iter::once(first).chain(second)
}

/// A frame that asks whether another station has `ip`, without claiming it.
pub fn probe(ip: IpAddr, from: Mac) -> Frame {
    match ip {
        IpAddr::V4(ip) => arp::probe(from, ip),
        IpAddr::V6(ip) => ndisc::solicitation(from, ip),
    }
}

/// A station's claim that it has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressClaim {
    /// The claimed address.
    pub ip: IpAddr,
    /// The MAC of the station.
    pub mac: Mac,
}

/// The claim in a received frame; `None` if it contains none. Accepts any bytes.
pub fn decode_claim(frame: &[u8]) -> Option<AddressClaim> {
    let ethertype = u16::from_be_bytes(array(frame, 12)?);
    let body = frame.get(14..)?;
    match ethertype {
        ETHERTYPE_ARP => arp::decode_claim(body),
        ETHERTYPE_IPV6 => ndisc::decode_claim(body, Mac(array(frame, 6)?)),
        _ => None,
    }
}

/// `N` bytes from position `at`; `None` if there are fewer.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests;
