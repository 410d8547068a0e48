// SPDX-License-Identifier: Apache-2.0
//! Tests the decoder with messages from an independent encoder and with random bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use proptest::prelude::*;

use super::*;

fn bytes(message: RouteNetlinkMessage, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.sequence_number = sequence;
    header.port_number = 77;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    bytes
}

fn only(datagram: &[u8]) -> (Header, Message) {
    let mut all = messages(datagram);
    let first = all.next().unwrap().unwrap();
    assert!(all.next().is_none());
    first
}

#[derive(Debug, Clone)]
struct Address {
    ip: IpAddr,
    prefix: u8,
    peer: Option<IpAddr>,
    index: u32,
    flags: u32,
    label: Option<String>,
}

fn address() -> impl Strategy<Value = Address> {
    let v4 =
        (any::<u32>(), 0_u8..=32, prop::option::of(any::<u32>())).prop_map(|(ip, prefix, peer)| {
            let ip4 = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
            (ip4(ip), prefix, peer.map(ip4))
        });
    let v6 = (any::<u128>(), 0_u8..=128, prop::option::of(any::<u128>()));
    let v6 = v6.prop_map(|(ip, prefix, peer)| {
        let ip6 = |bits| IpAddr::V6(Ipv6Addr::from_bits(bits));
        (ip6(ip), prefix, peer.map(ip6))
    });
    let label = prop::option::of("[a-z]{1,10}(:[0-9])?");
    (prop_oneof![v4, v6], any::<u32>(), 0_u32..0x1000, label).prop_map(
        |((ip, prefix, peer), index, flags, label)| Address {
            ip,
            prefix,
            peer,
            index,
            flags,
            label,
        },
    )
}

impl Address {
    /// The message for the independent encoder.
    fn message(&self) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.family =
            if self.ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.prefix_len = self.prefix;
        message.header.index = self.index;
        message.header.scope = AddressScope::Universe;
        message.header.flags = AddressHeaderFlags::from_bits_retain(self.flags.to_le_bytes()[0]);
        if let Some(label) = &self.label {
            message.attributes.push(AddressAttribute::Label(label.clone()));
        }
        // The kernel sends both attributes for IPv4, and for IPv6 only if there is a remote address.
        match self.peer {
            Some(peer) => {
                message.attributes.push(AddressAttribute::Address(peer));
                message.attributes.push(AddressAttribute::Local(self.ip));
            }
            None => message.attributes.push(AddressAttribute::Address(self.ip)),
        }
        let flags = AddressFlags::from_bits_retain(self.flags);
        message.attributes.push(AddressAttribute::Flags(flags));
        message
    }
}

proptest! {
    #[test]
    fn an_address_message_of_an_independent_encoder_is_decoded(address in address(), sequence in any::<u32>()) {
        let link = LinkIndex(address.index);
        let cidr = IpNet::new(address.ip, address.prefix).unwrap();
        let flags = AddressFlags::from_bits_retain(address.flags);
        let usability = if flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed) {
            Usability::NotUsable
        } else {
            Usability::Usable
        };

        let (header, message) = only(&bytes(RouteNetlinkMessage::NewAddress(address.message()), sequence));
        prop_assert_eq!((header.sequence, header.port), (sequence, 77));
        prop_assert_eq!(message, Message::Fact(Observation::AddressSeen { link, cidr, usability }));

        let (_, message) = only(&bytes(RouteNetlinkMessage::DelAddress(address.message()), 0));
        prop_assert_eq!(message, Message::Fact(Observation::AddressRemoved { link, cidr }));
    }

    #[test]
    fn a_link_message_of_an_independent_encoder_is_decoded(index in any::<u32>(), name in "[a-zA-Z][a-zA-Z0-9._@-]{0,14}") {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::Mtu(1500));
        message.attributes.push(LinkAttribute::IfName(name.clone()));
        message.attributes.push(LinkAttribute::Carrier(1));
        let link = LinkIndex(index);

        let (_, seen) = only(&bytes(RouteNetlinkMessage::NewLink(message.clone()), 0));
        let name = name.parse().unwrap();
        prop_assert_eq!(seen, Message::Fact(Observation::LinkSeen { link, name }));

        let (_, gone) = only(&bytes(RouteNetlinkMessage::DelLink(message), 0));
        prop_assert_eq!(gone, Message::Fact(Observation::LinkRemoved { link }));
    }

    #[test]
    fn random_bytes_do_not_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = messages(&bytes).count();
    }

    /// A damaged message is reported or decoded to something else; the decoder does not panic and comes to an end.
    #[test]
    fn damaged_messages_do_not_make_the_decoder_panic(
        address in address(),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut datagram = bytes(RouteNetlinkMessage::NewAddress(address.message()), 1);
        datagram.extend(bytes(RouteNetlinkMessage::DelAddress(address.message()), 2));
        for (place, value) in damages {
            *place.get_mut(&mut datagram) = value;
        }
        datagram.truncate(cut.index(datagram.len() + 1));
        prop_assert!(messages(&datagram).count() <= datagram.len());
    }
}

#[test]
fn a_dump_that_the_kernel_stopped_is_an_error() {
    let done = |code: i32| {
        let mut datagram = vec![0; 20];
        datagram[0..4].copy_from_slice(&20_u32.to_ne_bytes());
        datagram[4..6].copy_from_slice(&3_u16.to_ne_bytes());
        datagram[16..20].copy_from_slice(&code.to_ne_bytes());
        only(&datagram).1
    };
    assert_eq!(done(0), Message::Done);
    assert_eq!(done(-libc::ENOMEM), Message::Error(libc::ENOMEM));
}

#[test]
fn a_port_removed_from_a_bridge_is_not_a_removed_link() {
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.header.index = 3;
    message.attributes.push(LinkAttribute::IfName("veth0".into()));
    let (_, seen) = only(&bytes(RouteNetlinkMessage::DelLink(message), 0));
    assert_eq!(seen, Message::Unrelated);
}

#[test]
fn a_message_longer_than_its_datagram_is_malformed_and_the_last_one() {
    let mut datagram = bytes(RouteNetlinkMessage::NewLink(LinkMessage::default()), 0);
    datagram[0] = 255;
    let mut all = messages(&datagram);
    assert!(matches!(all.next(), Some(Err(Malformed::Length { claimed: 255, .. }))));
    assert!(all.next().is_none());
}

/// An `RTM_NEWLINK` of a dummy link, written by hand: its flags, name, link address and link info.
const DUMMY: &[u8] = &[
    0x00, 0x00, 0x01, 0x00, 0x03, 0x00, 0x00, 0x00, 0xc3, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
    // IFLA_IFNAME "dummy0"
    0x0b, 0x00, 0x03, 0x00, b'd', b'u', b'm', b'm', b'y', b'0', 0x00, 0x00,
    // IFLA_ADDRESS
    0x0a, 0x00, 0x01, 0x00, 0x7a, 0x1e, 0x5b, 0x90, 0x33, 0x21, 0x00, 0x00,
    // IFLA_LINKINFO with IFLA_INFO_KIND "dummy"
    0x10, 0x00, 0x12, 0x00, 0x0a, 0x00, 0x01, 0x00, b'd', b'u', b'm', b'm', b'y', 0x00, 0x00, 0x00,
];

#[test]
fn a_dummy_link_is_recognised_by_its_kind_and_not_by_its_name() {
    let facts = facts::link_facts(DUMMY).unwrap();
    assert!(facts.is_dummy && !facts.is_loopback);
    assert_eq!(facts.name, "dummy0".parse().unwrap());
    let mut veth = DUMMY.to_vec();
    let kind = veth.len() - 8;
    veth[kind..kind + 5].copy_from_slice(b"veth\0");
    assert!(!facts::link_facts(&veth).unwrap().is_dummy);
}

#[test]
fn a_prefix_longer_than_the_address_is_malformed() {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = 33;
    message.attributes.push(AddressAttribute::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let datagram = bytes(RouteNetlinkMessage::NewAddress(message), 0);
    assert_eq!(messages(&datagram).next(), Some(Err(Malformed::Address)));
}
