// SPDX-License-Identifier: Apache-2.0
//! Builds the netlink requests of a [`NetnsQuery`](super::NetnsQuery) and reads the answers that are not dumps.

use vipwatch_core::{LinkIndex, LinkName};

use super::NetnsRef;
use crate::netlink::decode::{attribute, u32_at};

// `<linux/net_namespace.h>`
pub(crate) const NETNSA_NSID: u16 = 1;
pub(crate) const NETNSA_FD: u16 = 3;
// `<linux/if_link.h>`, `<linux/if_addr.h>`
const IFLA_TARGET_NETNSID: u16 = 46;
const IFA_TARGET_NETNSID: u16 = 10;
// `<linux/rtnetlink.h>`: leaves out the packet counters of a link. Summing them up over all CPUs is most of the work
// of a link dump, and no caller reads them.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

/// Size of `rtgenmsg`, with padding.
const GENERIC_HEADER_BYTES: usize = 4;
/// Size of `ifinfomsg`.
pub(crate) const LINK_HEADER_BYTES: usize = 16;
/// Size of `ifaddrmsg`.
const ADDRESS_HEADER_BYTES: usize = 8;
/// Size of `rtmsg` and of `fib_rule_hdr`.
const ROUTE_HEADER_BYTES: usize = 12;

/// A netlink request under construction.
#[derive(Debug)]
pub(crate) struct NetlinkRequest {
    bytes: Vec<u8>,
}

impl NetlinkRequest {
    /// A request of `kind` (`RTM_*`). `flags` are `NLM_F_*` in addition to `NLM_F_REQUEST`.
    pub(crate) fn new(kind: u16, flags: libc::c_int) -> Self {
        let flags = u16::try_from(libc::NLM_F_REQUEST | flags).unwrap_or(0);
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self { bytes }
    }

    /// Requests all links of a namespace.
    pub(crate) fn links(netns: NetnsRef) -> Self {
        Self::new(libc::RTM_GETLINK, libc::NLM_F_DUMP)
            .header(&[0; LINK_HEADER_BYTES])
            .number(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
            .target_netns(IFLA_TARGET_NETNSID, netns)
    }

    /// Requests one link of a namespace by its name.
    pub(crate) fn link(netns: NetnsRef, name: LinkName) -> Self {
        Self::new(libc::RTM_GETLINK, 0)
            .header(&[0; LINK_HEADER_BYTES])
            .text(libc::IFLA_IFNAME, &name.to_string())
            .number(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
            .target_netns(IFLA_TARGET_NETNSID, netns)
    }

    /// Requests the addresses of one family (`AF_INET`, `AF_INET6`) in a namespace: those of `link`, or of all links
    /// if it is `None`.
    pub(crate) fn addresses(netns: NetnsRef, family: libc::c_int, link: Option<LinkIndex>) -> Self {
        let mut header = [0; ADDRESS_HEADER_BYTES];
        header[0] = u8::try_from(family).unwrap_or(0);
        header[4..8].copy_from_slice(&link.map_or(0, |LinkIndex(index)| index).to_ne_bytes());
        Self::new(libc::RTM_GETADDR, libc::NLM_F_DUMP)
            .header(&header)
            .target_netns(IFA_TARGET_NETNSID, netns)
    }

    /// Requests the routes of one family in the namespace of the socket: those of one table, or all if it is `None`.
    pub(crate) fn routes(family: libc::c_int, table: Option<u32>) -> Self {
        let request = Self::new(libc::RTM_GETROUTE, libc::NLM_F_DUMP).route_header(family);
        match table {
            Some(table) => request.number(libc::RTA_TABLE, table),
            None => request,
        }
    }

    /// Requests the routing rules of one family in the namespace of the socket.
    pub(crate) fn rules(family: libc::c_int) -> Self {
        Self::new(libc::RTM_GETRULE, libc::NLM_F_DUMP).route_header(family)
    }

    fn route_header(self, family: libc::c_int) -> Self {
        let mut header = [0; ROUTE_HEADER_BYTES];
        header[0] = u8::try_from(family).unwrap_or(0);
        self.header(&header)
    }

    /// Appends an empty `rtgenmsg`, the header of requests about namespace ids.
    pub(crate) fn generic_header(self) -> Self {
        self.header(&[0; GENERIC_HEADER_BYTES])
    }

    fn header(mut self, header: &[u8]) -> Self {
        self.bytes.extend_from_slice(header);
        self
    }

    /// Appends an attribute with a 32-bit number.
    pub(crate) fn number(mut self, kind: u16, value: u32) -> Self {
        self.bytes.extend_from_slice(&8_u16.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends an attribute with a text that ends with a zero byte.
    fn text(mut self, kind: u16, text: &str) -> Self {
        let length = u16::try_from(4 + text.len() + 1).unwrap_or(0);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Appends the attribute that names another namespace; the own namespace needs none.
    fn target_netns(self, kind: u16, netns: NetnsRef) -> Self {
        match netns {
            NetnsRef::Own => self,
            NetnsRef::Peer(id) => self.number(kind, id.cast_unsigned()),
        }
    }

    /// The finished message, with its length and this sequence number.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(0);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// The kernel's answer to a request that is not a dump.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NetlinkAnswer {
    /// The kernel has carried out the request.
    Done,
    /// The id of a namespace; negative if the namespace has none.
    Id(i32),
    /// The kernel refused the request: a positive errno.
    Refused(i32),
}

impl NetlinkAnswer {
    /// Decodes a message of `kind`; `None` if it is not an answer.
    pub(crate) fn decode(kind: u16, body: &[u8]) -> Option<Self> {
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

/// The namespace id in the body of an `RTM_NEWNSID` or `RTM_DELNSID`.
pub(crate) fn nsid(body: &[u8]) -> Option<i32> {
    id(body.get(GENERIC_HEADER_BYTES..)?, NETNSA_NSID)
}

fn id(attributes: &[u8], kind: u16) -> Option<i32> {
    u32_at(attribute(attributes, kind)?, 0).map(u32::cast_signed)
}

/// The id of the namespace that an `RTM_NEWLINK` in an answer is about.
pub(crate) fn link_netns(body: &[u8]) -> Option<i32> {
    id(body.get(LINK_HEADER_BYTES..)?, IFLA_TARGET_NETNSID)
}

/// The id of the namespace that an `RTM_NEWADDR` in an answer is about.
pub(crate) fn address_netns(body: &[u8]) -> Option<i32> {
    id(body.get(ADDRESS_HEADER_BYTES..)?, IFA_TARGET_NETNSID)
}
