// SPDX-License-Identifier: Apache-2.0
//! Decodes links and addresses with the details that snapshots contain.

use vipwatch_core::LinkIndex;
use vipwatch_core::snapshot::{AddressFacts, LinkAddress, LinkFacts, LinkState, Mac};

use super::{Address, Malformed, address_of, attribute, attributes, link_name, u16_at, u32_at};

const LINK_HEADER_BYTES: usize = 16;
const ADDRESS_HEADER_BYTES: usize = 8;

/// `<linux/if_arp.h>`: Ethernet. Only its link-layer addresses can be announced.
const ARPHRD_ETHER: u16 = 1;

/// Decodes a link from the body of an `RTM_NEWLINK`.
pub fn link_facts(body: &[u8]) -> Result<LinkFacts, Malformed> {
    let short = Malformed::Length { claimed: LINK_HEADER_BYTES, left: body.len() };
    let (head, rest) = body.split_at_checked(LINK_HEADER_BYTES).ok_or(short)?;
    let flags = u32_at(head, 8).unwrap_or(0).cast_signed();
    let mut name = None;
    let mut mac = None;
    let mut is_router = false;
    let mut is_dummy = false;
    for attribute in attributes(rest) {
        let (kind, payload) = attribute?;
        match kind {
            libc::IFLA_IFNAME => name = Some(link_name(payload)?),
            libc::IFLA_ADDRESS => mac = payload.try_into().ok().map(Mac),
            libc::IFLA_LINKINFO => is_dummy = has_kind(payload, b"dummy"),
            libc::IFLA_AF_SPEC => is_router = is_ipv6_router(payload),
            _ => {}
        }
    }
    let has_address_resolution =
        u16_at(head, 2) == Some(ARPHRD_ETHER) && flags & libc::IFF_NOARP == 0;
    Ok(LinkFacts {
        link: LinkIndex(u32_at(head, 4).unwrap_or(0)),
        name: name.ok_or(Malformed::Link)?,
        mac: mac.filter(|_| has_address_resolution),
        state: match flags & (libc::IFF_UP | libc::IFF_LOWER_UP) {
            up_with_carrier if up_with_carrier == libc::IFF_UP | libc::IFF_LOWER_UP => {
                LinkState::Working
            }
            libc::IFF_UP => LinkState::NoCarrier,
            _ => LinkState::Down,
        },
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
        is_dummy,
        is_router,
    })
}

/// Whether `IFLA_LINKINFO` has this `IFLA_INFO_KIND`.
fn has_kind(link_info: &[u8], kind: &[u8]) -> bool {
    const IFLA_INFO_KIND: u16 = 1;
    let found = attribute(link_info, IFLA_INFO_KIND);
    found.is_some_and(|found| found.strip_suffix(&[0]).unwrap_or(found) == kind)
}

/// Whether the kernel forwards IPv6 on the link: `IFLA_AF_SPEC` contains `AF_INET6`, which contains `IFLA_INET6_CONF`,
/// and the first number in that is `forwarding`.
fn is_ipv6_router(families: &[u8]) -> bool {
    /// `AF_INET6`, as an attribute type.
    const AF_INET6: u16 = 10;
    const IFLA_INET6_CONF: u16 = 2;
    attribute(families, AF_INET6)
        .and_then(|family| attribute(family, IFLA_INET6_CONF))
        .and_then(|conf| u32_at(conf, 0))
        .is_some_and(|forwarding| forwarding != 0)
}

/// Decodes an address from the body of an `RTM_NEWADDR` or `RTM_DELADDR`; `None` if it is not an IP address.
pub fn address_facts(body: &[u8]) -> Result<Option<AddressFacts>, Malformed> {
    let short = Malformed::Length { claimed: ADDRESS_HEADER_BYTES, left: body.len() };
    let (head, rest) = body.split_at_checked(ADDRESS_HEADER_BYTES).ok_or(short)?;
    Ok(address_of(head, rest)?.map(|Address { link, cidr, flags, protocol }| AddressFacts {
        target: LinkAddress { link, ip: cidr.addr() },
        prefix: cidr.prefix_len(),
        is_tentative: flags & libc::IFA_F_TENTATIVE != 0,
        is_duplicate: flags & libc::IFA_F_DADFAILED != 0,
        protocol,
    }))
}
