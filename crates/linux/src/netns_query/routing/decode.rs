// SPDX-License-Identifier: Apache-2.0
//! Decodes the messages about routes and routing rules.
//!
//! ```text
//!   rtmsg          12 bytes: family u8, destination length u8, source length u8, TOS u8, table u8, protocol u8,
//!                            scope u8, type u8, flags u32
//!   fib_rule_hdr   12 bytes: family u8, destination length u8, source length u8, TOS u8, table u8, 2 bytes,
//!                            action u8, flags u32
//!   rtnexthop       8 bytes: length u16, flags u8, hops u8, link index i32; then attributes
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use vipwatch_core::LinkIndex;
use vipwatch_core::routing::{NextHop, RouteFacts, RuleFacts};

use crate::netlink::decode::{Malformed, attribute, ip, u16_at, u32_at};

/// Size of `rtmsg` and of `fib_rule_hdr`.
const HEADER_BYTES: usize = 12;
/// Size of `rtnexthop`.
const NEXT_HOP_BYTES: usize = 8;

// `<linux/rtnetlink.h>`: a copy of a route that the kernel made for one destination.
const RTM_F_CLONED: u32 = 0x200;
const RTA_VIA: u16 = 18;

// `<linux/fib_rules.h>`
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;

/// Decodes an `RTM_NEWROUTE`; `None` for a route of another family, or one that the kernel made for one destination.
pub(super) fn route(body: &[u8]) -> Result<Option<RouteFacts>, Malformed> {
    let (head, rest) = split(body)?;
    if u32_at(head, 8).is_some_and(|flags| flags & RTM_F_CLONED != 0) {
        return Ok(None);
    }
    let Some(any) = unspecified(head[0]) else { return Ok(None) };
    let destination = prefix(attribute(rest, libc::RTA_DST), any, head[1])?;
    let table = number(rest, libc::RTA_TABLE).unwrap_or_else(|| u32::from(head[4]));
    let next_hops = match attribute(rest, libc::RTA_MULTIPATH) {
        Some(hops) => several(hops),
        None => Vec::from_iter(next_hop(rest, number(rest, libc::RTA_OIF))),
    };
    let metric = number(rest, libc::RTA_PRIORITY).unwrap_or(0);
    Ok(Some(RouteFacts { destination, table, metric, next_hops }))
}

/// Decodes an `RTM_NEWRULE`; `None` for a rule of another family.
pub(super) fn rule(body: &[u8]) -> Result<Option<RuleFacts>, Malformed> {
    let (head, rest) = split(body)?;
    let Some(any) = unspecified(head[0]) else { return Ok(None) };
    let net = |kind, length| match attribute(rest, kind) {
        Some(payload) => prefix(Some(payload), any, length).map(Some),
        None => Ok(None),
    };
    Ok(Some(RuleFacts {
        from: net(FRA_SRC, head[2])?,
        to: net(FRA_DST, head[1])?,
        mark: number(rest, FRA_FWMARK).unwrap_or(0),
        table: number(rest, FRA_TABLE).unwrap_or_else(|| u32::from(head[4])),
        priority: number(rest, FRA_PRIORITY).unwrap_or(0),
    }))
}

fn split(body: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    body.split_at_checked(HEADER_BYTES).ok_or(Malformed::Address)
}

/// The unspecified address of a family; `None` if it is neither IPv4 nor IPv6.
fn unspecified(family: u8) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::UNSPECIFIED.into()),
        libc::AF_INET6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

/// A destination or source; a default route has no address.
fn prefix(payload: Option<&[u8]>, any: IpAddr, length: u8) -> Result<IpNet, Malformed> {
    let address = payload.map_or(Some(any), ip).filter(|ip| ip.is_ipv6() == any.is_ipv6());
    let net = address.and_then(|address| IpNet::new(address, length).ok());
    net.map(|net| net.trunc()).ok_or(Malformed::Address)
}

fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    u32_at(attribute(attributes, kind)?, 0)
}

fn next_hop(attributes: &[u8], link: Option<u32>) -> Option<NextHop> {
    // RTA_VIA is a gateway of the other family: u16 family, then the address.
    let via = attribute(attributes, RTA_VIA).and_then(|via| ip(via.get(2..)?));
    let via = attribute(attributes, libc::RTA_GATEWAY).and_then(ip).or(via);
    let link = link.map(LinkIndex);
    (via.is_some() || link.is_some()).then_some(NextHop { via, link })
}

fn several(mut left: &[u8]) -> Vec<NextHop> {
    let mut hops = Vec::new();
    while let Some(length) = u16_at(left, 0).map(usize::from)
        && let Some(hop) = left.get(..length).filter(|hop| hop.len() >= NEXT_HOP_BYTES)
    {
        hops.extend(next_hop(&hop[NEXT_HOP_BYTES..], u32_at(hop, 4)));
        left = left.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes of a message.
    fn attributes(list: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, payload) in list {
            let length = u16::try_from(payload.len() + 4).unwrap();
            bytes.extend(length.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*payload);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn a_route_with_several_gateways_is_decoded() {
        let mut hops = Vec::new();
        for (index, gateway) in [(3_u32, [192, 0, 2, 1]), (4, [192, 0, 2, 2])] {
            hops.extend([16, 0, 0, 0]);
            hops.extend(index.to_ne_bytes());
            hops.extend(attributes(&[(libc::RTA_GATEWAY, &gateway)]));
        }
        let mut body = vec![2, 24, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        body.extend(attributes(&[
            (libc::RTA_DST, &[203, 0, 113, 0]),
            (libc::RTA_TABLE, &1000_u32.to_ne_bytes()),
            (libc::RTA_MULTIPATH, &hops),
        ]));
        let route = route(&body).unwrap().unwrap();
        assert_eq!((route.destination.to_string().as_str(), route.table), ("203.0.113.0/24", 1000));
        let via: Vec<String> =
            route.next_hops.iter().map(|hop| hop.via.unwrap().to_string()).collect();
        assert_eq!(via, ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(route.next_hops[1].link, Some(LinkIndex(4)));
        assert_eq!(super::route(&body[..11]), Err(Malformed::Address));
        body[1] = 33;
        assert_eq!(super::route(&body), Err(Malformed::Address), "no such prefix length");
    }

    #[test]
    fn a_default_route_and_a_rule_for_all_have_no_address() {
        let mut body = vec![10, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(route(&body).unwrap().unwrap().destination.to_string(), "::/0");
        let all = rule(&body).unwrap().unwrap();
        assert_eq!((all.from, all.to, all.table), (None, None, 254));
        body[0] = 28;
        assert_eq!((route(&body), rule(&body)), (Ok(None), Ok(None)), "a family that is not IP");
    }

    #[test]
    fn no_message_causes_a_panic() {
        let mut body = vec![2, 24, 24, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        body.extend(attributes(&[
            (libc::RTA_DST, &[203, 0, 113, 0]),
            (9, &[9, 0, 0, 0, 1, 0, 0, 0, 8]),
        ]));
        for length in 0..body.len() {
            let _ = (route(&body[..length]), rule(&body[..length]));
        }
    }
}
