//! Links and addresses in the detail that announcing needs.

use vipwatch_core::LinkIndex;
use vipwatch_core::snapshot::{AddressFacts, LinkAddress, LinkFacts, LinkState, Mac};

use super::{Malformed, address_of, attribute, attributes, link_name, u16_at, u32_at};

const LINK_HEAD: usize = 16;
const ADDRESS_HEAD: usize = 8;

/// `<linux/if_arp.h>`: the only kind of link whose stations have the addresses we announce.
const ARPHRD_ETHER: u16 = 1;

/// A link, from the body of an `RTM_NEWLINK`.
pub fn link_facts(body: &[u8]) -> Result<LinkFacts, Malformed> {
    let short = Malformed::Length { claimed: LINK_HEAD, left: body.len() };
    let (head, rest) = body.split_at_checked(LINK_HEAD).ok_or(short)?;
    let flags = u32_at(head, 8).unwrap_or(0).cast_signed();
    let mut name = None;
    let mut mac = None;
    let mut is_router = false;
    for attribute in attributes(rest) {
        let (kind, payload) = attribute?;
        match kind {
            libc::IFLA_IFNAME => name = Some(link_name(payload)?),
            libc::IFLA_ADDRESS => mac = payload.try_into().ok().map(Mac),
            libc::IFLA_AF_SPEC => is_router = is_ipv6_router(payload),
            _ => {}
        }
    }
    let resolves = u16_at(head, 2) == Some(ARPHRD_ETHER) && flags & libc::IFF_NOARP == 0;
    Ok(LinkFacts {
        link: LinkIndex(u32_at(head, 4).unwrap_or(0)),
        name: name.ok_or(Malformed::Link)?,
        mac: mac.filter(|_| resolves),
        state: match flags & (libc::IFF_UP | libc::IFF_LOWER_UP) {
            both if both == libc::IFF_UP | libc::IFF_LOWER_UP => LinkState::Working,
            libc::IFF_UP => LinkState::NoCarrier,
            _ => LinkState::Down,
        },
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
        is_router,
    })
}

/// Whether IPv6 is forwarded: `IFLA_AF_SPEC`, in it `AF_INET6`, in it `IFLA_INET6_CONF`,
/// whose first number is `forwarding`.
fn is_ipv6_router(families: &[u8]) -> bool {
    /// `AF_INET6`, in the size of an attribute's type.
    const AF_INET6: u16 = 10;
    const IFLA_INET6_CONF: u16 = 2;
    attribute(families, AF_INET6)
        .and_then(|family| attribute(family, IFLA_INET6_CONF))
        .and_then(|conf| u32_at(conf, 0))
        .is_some_and(|forwarding| forwarding != 0)
}

/// An address, from the body of an `RTM_NEWADDR`; `None` if it is not of IP.
pub fn address_facts(body: &[u8]) -> Result<Option<AddressFacts>, Malformed> {
    let short = Malformed::Length { claimed: ADDRESS_HEAD, left: body.len() };
    let (head, rest) = body.split_at_checked(ADDRESS_HEAD).ok_or(short)?;
    Ok(address_of(head, rest)?.map(|(link, cidr, flags)| AddressFacts {
        target: LinkAddress { link, ip: cidr.addr() },
        prefix: cidr.prefix_len(),
        is_tentative: flags & libc::IFA_F_TENTATIVE != 0,
        is_duplicate: flags & libc::IFA_F_DADFAILED != 0,
    }))
}
