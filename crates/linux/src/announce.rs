//! Announcements: the frames, and the one socket they leave by.
//!
//! [`arp`] and [`ndisc`] build and read frames and touch nothing else; [`port`] is the packet
//! socket. Who is announced, when, and whether it would be true is `vipwatch_core::announce`'s
//! business.

pub mod arp;
pub mod ndisc;
pub mod port;

use std::net::IpAddr;

use vipwatch_core::announce::AnnounceSource;
use vipwatch_core::snapshot::Mac;

/// The largest frame built here: an advertisement with one option.
const LARGEST: usize = 86;

/// `<linux/if_ether.h>`.
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// One Ethernet frame, ready to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    bytes: [u8; LARGEST],
    length: usize,
}

impl Frame {
    /// The head of a frame; the rest is appended.
    fn new(to: Mac, from: Mac, ethertype: u16) -> Self {
        let mut frame = Self { bytes: [0; LARGEST], length: 0 };
        frame.append(&to.0).append(&from.0).append(&ethertype.to_be_bytes());
        frame
    }

    fn append(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }

    /// Its bytes, from the destination on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Everything that says "`ip` is at `speaker`".
///
/// IPv4 is said twice, as a request and as a reply: RFC 5227 §3 asks for requests, and there
/// are stations that take only replies for news.
pub fn announcement(ip: IpAddr, speaker: &AnnounceSource) -> impl Iterator<Item = Frame> + use<> {
    let (first, second) = match ip {
        IpAddr::V4(ip) => (
            arp::gratuitous(arp::Operation::Request, speaker.mac, ip),
            Some(arp::gratuitous(arp::Operation::Reply, speaker.mac, ip)),
        ),
        IpAddr::V6(ip) => (ndisc::unsolicited(speaker.mac, ip, speaker.is_router), None),
    };
    std::iter::once(first).chain(second)
}

/// The question "who else has `ip`?".
pub fn question(ip: IpAddr, from: Mac) -> Frame {
    match ip {
        IpAddr::V4(ip) => arp::probe(from, ip),
        IpAddr::V6(ip) => ndisc::solicitation(from, ip),
    }
}

/// A station that says it has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressClaim {
    /// The address.
    pub ip: IpAddr,
    /// The station.
    pub mac: Mac,
}

/// What `frame` claims, if it claims anything. Takes any bytes.
pub fn claim(frame: &[u8]) -> Option<AddressClaim> {
    let ethertype = u16::from_be_bytes(array(frame, 12)?);
    let body = frame.get(14..)?;
    match ethertype {
        ETHERTYPE_ARP => arp::claim(body),
        ETHERTYPE_IPV6 => ndisc::claim(body, Mac(array(frame, 6)?)),
        _ => None,
    }
}

/// `N` bytes at `at`, if there are so many.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests;
