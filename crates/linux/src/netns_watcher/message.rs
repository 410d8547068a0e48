//! The requests a [`NetnsWatcher`](super::NetnsWatcher) makes, and what it looks for in the answers.

use vipwatch_core::{LinkIndex, LinkName};

use super::{LinkEvent, NetnsEvent, NetnsRef};
use crate::netlink::decode::facts::address_facts;
use crate::netlink::decode::{attribute, u32_at};

// `<linux/net_namespace.h>`
pub(crate) const NETNSA_NSID: u16 = 1;
pub(crate) const NETNSA_FD: u16 = 3;
// `<linux/if_link.h>`, `<linux/if_addr.h>`
const IFLA_TARGET_NETNSID: u16 = 46;
const IFA_TARGET_NETNSID: u16 = 10;
// `<linux/rtnetlink.h>`: nobody here asks for statistics, and they are most of the work.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

const GENERIC_HEAD: usize = 4;
const LINK_HEAD: usize = 16;
const ADDRESS_HEAD: usize = 8;

/// A netlink message in the making.
#[derive(Debug)]
pub(crate) struct NetlinkRequest {
    bytes: Vec<u8>,
}

impl NetlinkRequest {
    /// A request of `kind`, with `NLM_F_*` beside `NLM_F_REQUEST`.
    pub(crate) fn new(kind: u16, flags: libc::c_int) -> Self {
        let flags = u16::try_from(libc::NLM_F_REQUEST | flags).unwrap_or(0);
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self { bytes }
    }

    /// All links of a namespace.
    pub(crate) fn links(place: NetnsRef) -> Self {
        Self::new(libc::RTM_GETLINK, libc::NLM_F_DUMP)
            .head(&[0; LINK_HEAD])
            .number(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
            .about(IFLA_TARGET_NETNSID, place)
    }

    /// One link of a namespace, by its name.
    pub(crate) fn link(place: NetnsRef, name: LinkName) -> Self {
        Self::new(libc::RTM_GETLINK, 0)
            .head(&[0; LINK_HEAD])
            .text(libc::IFLA_IFNAME, &name.to_string())
            .number(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
            .about(IFLA_TARGET_NETNSID, place)
    }

    /// The addresses of a family in a namespace; of one link, or of all.
    pub(crate) fn addresses(place: NetnsRef, family: libc::c_int, link: Option<LinkIndex>) -> Self {
        let mut head = [0; ADDRESS_HEAD];
        head[0] = u8::try_from(family).unwrap_or(0);
        head[4..8].copy_from_slice(&link.map_or(0, |LinkIndex(index)| index).to_ne_bytes());
        Self::new(libc::RTM_GETADDR, libc::NLM_F_DUMP).head(&head).about(IFA_TARGET_NETNSID, place)
    }

    /// The head that all families have in common.
    pub(crate) fn generic(self) -> Self {
        self.head(&[0; GENERIC_HEAD])
    }

    fn head(mut self, head: &[u8]) -> Self {
        self.bytes.extend_from_slice(head);
        self
    }

    /// An attribute that is a number.
    pub(crate) fn number(mut self, kind: u16, value: u32) -> Self {
        self.bytes.extend_from_slice(&8_u16.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// An attribute that is a text, with a zero behind it.
    fn text(mut self, kind: u16, text: &str) -> Self {
        let length = u16::try_from(4 + text.len() + 1).unwrap_or(0);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    fn about(self, kind: u16, place: NetnsRef) -> Self {
        match place {
            NetnsRef::Here => self,
            NetnsRef::There(id) => self.number(kind, id.cast_unsigned()),
        }
    }

    /// Its bytes, numbered.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(0);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// What the kernel says to a request that is not a dump.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NetlinkAnswer {
    /// It was done.
    Done,
    /// A namespace's id; negative for none.
    Id(i32),
    /// It was not: a positive errno.
    Refused(i32),
}

impl NetlinkAnswer {
    pub(crate) fn read(kind: u16, body: &[u8]) -> Option<Self> {
        /// `NLMSG_ERROR`.
        const ERROR: u16 = 2;
        match kind {
            libc::RTM_NEWNSID => nsid(body).map(Self::Id),
            ERROR => Some(match u32_at(body, 0)?.cast_signed() {
                0 => Self::Done,
                errno => Self::Refused(errno.saturating_neg()),
            }),
            _ => None,
        }
    }
}

/// The id in a message about ids.
pub(crate) fn nsid(body: &[u8]) -> Option<i32> {
    id(body.get(GENERIC_HEAD..)?, NETNSA_NSID)
}

/// The event in an `RTM_NEWADDR` or `RTM_DELADDR`; `None` if it is not about IP.
pub(crate) fn address_event(place: NetnsRef, body: &[u8]) -> Option<NetnsEvent> {
    match address_facts(body) {
        Ok(facts) => facts.map(|facts| NetnsEvent::Address(place, Some(facts.target.ip))),
        Err(_) => Some(NetnsEvent::Address(place, None)),
    }
}

/// The event in an `RTM_NEWLINK` or `RTM_DELLINK`; `None` if it is about something else: the port of a
/// bridge, or IPv6 settings.
pub(crate) fn link_event(place: NetnsRef, body: &[u8]) -> Option<NetnsEvent> {
    let Some(attributes) = body.get(LINK_HEAD..) else {
        return Some(NetnsEvent::Link(place, None));
    };
    if i32::from(body[0]) != libc::AF_UNSPEC {
        return None;
    }
    let name = attribute(attributes, libc::IFLA_IFNAME)
        .and_then(|name| LinkName::from_kernel(name.strip_suffix(&[0]).unwrap_or(name)));
    let event = u32_at(body, 4).map(|index| LinkEvent { link: LinkIndex(index), name });
    Some(NetnsEvent::Link(place, event))
}

fn id(attributes: &[u8], kind: u16) -> Option<i32> {
    u32_at(attribute(attributes, kind)?, 0).map(u32::cast_signed)
}

/// Which namespace a link is said to be in.
pub(crate) fn link_netns(body: &[u8]) -> Option<i32> {
    id(body.get(LINK_HEAD..)?, IFLA_TARGET_NETNSID)
}

/// Which namespace an address is said to be in.
pub(crate) fn address_netns(body: &[u8]) -> Option<i32> {
    id(body.get(ADDRESS_HEAD..)?, IFA_TARGET_NETNSID)
}
