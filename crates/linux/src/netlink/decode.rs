// SPDX-License-Identifier: Apache-2.0
//! Decodes netlink messages from the kernel. No system calls, no allocation, no panic on any input.
//!
//! ```text
//!   nlmsghdr            16 bytes: length u32, type u16, flags u16, seq u32, port u32
//!   ├─ ifaddrmsg         8 bytes: family u8, prefix length u8, flags u8, scope u8, index u32
//!   ├─ ifinfomsg        16 bytes: family u8, pad, type u16, index i32, flags u32, change u32
//!   └─ nlmsgerr          4 bytes: negative errno (0 is an acknowledgement), then the request
//!      attributes        4 bytes: length u16, type u16; then the payload; each padded to 4
//! ```
//!
//! All integers are in host byte order.

pub mod facts;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use vipwatch_core::{LinkIndex, LinkName, Observation, Usability};

/// A message does not have the format that the kernel documents. The caller must read all links and addresses again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length field is larger than the rest of the datagram, or too small.
    #[error(
        "netlink message with invalid length: {claimed} bytes in its header, {left} bytes left"
    )]
    Length {
        /// The value of the length field, in bytes.
        claimed: usize,
        /// Bytes that are left in the datagram.
        left: usize,
    },
    /// An address message without an address, or with a prefix length that is too large for the address family.
    #[error("netlink address message without a valid address")]
    Address,
    /// A link message without a valid name.
    #[error("netlink link message without a valid name")]
    Link,
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// `RTM_*` or `NLMSG_*`.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// In an answer: the sequence number of the request.
    pub sequence: u32,
    /// In an answer: the port of the socket that sent the request. In a notification: the port of the socket that
    /// caused the change.
    pub port: u32,
}

/// A decoded message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A change of a link or an address, or one entry of a dump.
    Fact(Observation),
    /// The end of a complete dump.
    Done,
    /// The kernel refused a request, or stopped a dump: a positive errno; 0 acknowledges a request.
    Error(i32),
    /// A well-formed message about something else.
    Unrelated,
}

/// The messages in `datagram`: header and undecoded body. The iterator ends after a malformed message.
pub fn envelopes(datagram: &[u8]) -> impl Iterator<Item = Result<(Header, &[u8]), Malformed>> {
    const HEADER: usize = 16;
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let left = std::mem::take(&mut rest);
        let claimed = u32_at(left, 0).map_or(0, |length| length as usize);
        let Some(bytes) = left.get(..claimed).filter(|bytes| bytes.len() >= HEADER) else {
            return Some(Err(Malformed::Length { claimed, left: left.len() }));
        };
        rest = left.get(aligned(claimed)..).unwrap_or_default();
        let header = Header {
            kind: u16_at(bytes, 4).unwrap_or(0),
            flags: u16_at(bytes, 6).unwrap_or(0),
            sequence: u32_at(bytes, 8).unwrap_or(0),
            port: u32_at(bytes, 12).unwrap_or(0),
        };
        Some(Ok((header, &bytes[HEADER..])))
    })
}

/// The decoded messages in `datagram`. The iterator ends after a malformed message.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<(Header, Message), Malformed>> {
    let mut has_failed = false;
    envelopes(datagram).map_while(move |envelope| {
        if has_failed {
            return None;
        }
        let read = envelope
            .and_then(|(header, body)| message(header.kind, body).map(|message| (header, message)));
        has_failed = read.is_err();
        Some(read)
    })
}

// NLMSG_ERROR and NLMSG_DONE of `<linux/netlink.h>`; libc has them with another integer type.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Whether a message of `kind` ends an answer or reports an error.
pub(crate) fn is_end_or_error(kind: u16) -> bool {
    matches!(kind, ERROR | DONE)
}

/// Decodes the body of a message of `kind`.
pub(crate) fn message(kind: u16, body: &[u8]) -> Result<Message, Malformed> {
    match kind {
        libc::RTM_NEWADDR | libc::RTM_DELADDR => address(kind, body),
        libc::RTM_NEWLINK | libc::RTM_DELLINK => link(kind, body),
        // A dump that the kernel stopped ends with a negative errno; kernels before 2.6 sent none.
        DONE => Ok(match u32_at(body, 0).map_or(0, u32::cast_signed) {
            errno if errno < 0 => Message::Error(errno.saturating_neg()),
            _ => Message::Done,
        }),
        ERROR => {
            let short = Malformed::Length { claimed: 4, left: body.len() };
            let errno = u32_at(body, 0).ok_or(short)?.cast_signed();
            Ok(Message::Error(errno.saturating_neg()))
        }
        _ => Ok(Message::Unrelated),
    }
}

fn address(kind: u16, body: &[u8]) -> Result<Message, Malformed> {
    const HEAD: usize = 8;
    let short = Malformed::Length { claimed: HEAD, left: body.len() };
    let (head, rest) = body.split_at_checked(HEAD).ok_or(short)?;
    let Some(Address { link, cidr, flags, .. }) = address_of(head, rest)? else {
        return Ok(Message::Unrelated);
    };
    if kind == libc::RTM_DELADDR {
        return Ok(Message::Fact(Observation::AddressRemoved { link, cidr }));
    }
    let usability = if flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) == 0 {
        Usability::Usable
    } else {
        Usability::NotUsable
    };
    Ok(Message::Fact(Observation::AddressSeen { link, cidr, usability }))
}

/// The content of an address message.
struct Address {
    link: LinkIndex,
    cidr: IpNet,
    /// `IFA_F_*`.
    flags: u32,
    /// `IFA_PROTO`, since Linux 5.18; 0 if there is none.
    protocol: u8,
}

/// `<linux/if_addr.h>`.
const IFA_PROTO: u16 = 11;

/// Decodes an address message; `None` if the address is not an IP address.
fn address_of(head: &[u8], rest: &[u8]) -> Result<Option<Address>, Malformed> {
    let (family, prefix) = (i32::from(head[0]), head[1]);
    if family != libc::AF_INET && family != libc::AF_INET6 {
        return Ok(None);
    }
    let link = LinkIndex(u32_at(head, 4).unwrap_or(0));
    let mut flags = u32::from(head[2]);
    let mut protocol = 0;
    let mut local = None;
    let mut peer = None;
    for attribute in attributes(rest) {
        let (kind, payload) = attribute?;
        match kind {
            IFA_PROTO => protocol = payload.first().copied().unwrap_or(0),
            libc::IFA_LOCAL => local = ip(payload),
            libc::IFA_ADDRESS => peer = ip(payload),
            // Since Linux 3.14 there are more flags than the 8 bits of the header can hold; this attribute has them
            // all.
            libc::IFA_FLAGS => flags = u32_at(payload, 0).unwrap_or(flags),
            _ => {}
        }
    }
    // On a point-to-point link IFA_ADDRESS is the remote address and IFA_LOCAL the local one. IPv6 has no IFA_LOCAL
    // unless there is a remote address.
    let ip = local.or(peer).filter(|ip| ip.is_ipv4() == (family == libc::AF_INET));
    let cidr = ip.and_then(|ip| IpNet::new(ip, prefix).ok()).ok_or(Malformed::Address)?;
    Ok(Some(Address { link, cidr, flags, protocol }))
}

fn link(kind: u16, body: &[u8]) -> Result<Message, Malformed> {
    const HEAD: usize = 16;
    let short = Malformed::Length { claimed: HEAD, left: body.len() };
    let (head, rest) = body.split_at_checked(HEAD).ok_or(short)?;
    // A bridge reports its ports with the same message types and the family AF_BRIDGE. There RTM_DELLINK means that a
    // port was removed from the bridge; the link still exists.
    if i32::from(head[0]) != libc::AF_UNSPEC {
        return Ok(Message::Unrelated);
    }
    let link = LinkIndex(u32_at(head, 4).unwrap_or(0));
    if kind == libc::RTM_DELLINK {
        return Ok(Message::Fact(Observation::LinkRemoved { link }));
    }
    for attribute in attributes(rest) {
        let (kind, payload) = attribute?;
        if kind == libc::IFLA_IFNAME {
            let name = link_name(payload)?;
            return Ok(Message::Fact(Observation::LinkSeen { link, name }));
        }
    }
    Err(Malformed::Link)
}

fn link_name(payload: &[u8]) -> Result<LinkName, Malformed> {
    let name = payload.strip_suffix(&[0]).unwrap_or(payload);
    LinkName::from_kernel(name).ok_or(Malformed::Link)
}

/// The type and the payload of each attribute of a message.
fn attributes(mut left: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    const HEAD: usize = 4;
    std::iter::from_fn(move || {
        if left.len() < HEAD {
            return None;
        }
        let claimed = usize::from(u16_at(left, 0)?);
        let Some(bytes) = left.get(..claimed).filter(|bytes| bytes.len() >= HEAD) else {
            let error = Malformed::Length { claimed, left: left.len() };
            left = &[];
            return Some(Err(error));
        };
        left = left.get(aligned(claimed)..).unwrap_or_default();
        // The two top bits mean "nested" and "network byte order"; the rest is the type.
        Some(Ok((u16_at(bytes, 2)? & 0x3fff, &bytes[HEAD..])))
    })
}

/// The payload of the first attribute of this `kind`.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).flatten().find_map(|(found, payload)| (found == kind).then_some(payload))
}

pub(crate) fn ip(payload: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(payload) {
        return Some(IpAddr::V4(Ipv4Addr::from(octets)));
    }
    <[u8; 16]>::try_from(payload).ok().map(|octets| IpAddr::V6(Ipv6Addr::from(octets)))
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_ne_bytes)
}

/// The 32-bit number at byte `at`; `None` if `bytes` is too short.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests;
