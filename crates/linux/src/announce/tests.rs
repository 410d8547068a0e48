// SPDX-License-Identifier: Apache-2.0
//! Tests the frames with an independent decoder, and the decoder with any bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{ArpHardwareId, ArpOperation, EtherType, Icmpv6Type, SlicedPacket};
use proptest::prelude::*;

use super::*;

const MAC: Mac = Mac([0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0xee]);

fn arp_of(frame: &Frame) -> etherparse::ArpPacket {
    let sliced = SlicedPacket::from_ethernet(frame.bytes()).unwrap();
    let Some(etherparse::NetSlice::Arp(arp)) = sliced.net else { panic!("{sliced:?}") };
    arp.to_packet()
}

fn source(is_router: bool) -> AnnounceSource {
    AnnounceSource { name: "qg-1".parse().unwrap(), mac: MAC, is_router }
}

#[test]
fn an_ipv4_address_is_announced_as_request_and_reply() {
    let ip = Ipv4Addr::new(192, 0, 2, 9);
    let frames: Vec<Frame> = announcement(ip.into(), &source(true)).collect();
    let operations = [ArpOperation::REQUEST, ArpOperation::REPLY];
    assert_eq!(frames.len(), 2);
    for (frame, operation) in frames.iter().zip(operations) {
        assert_eq!(frame.bytes().len(), 42);
        assert_eq!(frame.bytes()[..6], [0xff; 6], "broadcast");
        assert_eq!(frame.bytes()[6..12], MAC.0);
        let arp = arp_of(frame);
        assert_eq!(
            (arp.hw_addr_type, arp.proto_addr_type),
            (ArpHardwareId::ETHERNET, EtherType::IPV4)
        );
        assert_eq!(arp.operation, operation);
        assert_eq!(
            (arp.sender_hw_addr(), arp.sender_protocol_addr()),
            (&MAC.0[..], &ip.octets()[..])
        );
        assert_eq!(arp.target_protocol_addr(), ip.octets());
    }
    assert_eq!(arp_of(&frames[0]).target_hw_addr(), [0; 6], "RFC 5227");
    assert_eq!(arp_of(&frames[1]).target_hw_addr(), MAC.0, "arp_is_garp");
}

#[test]
fn an_ipv6_address_is_announced_to_all_nodes_with_override() {
    let ip: Ipv6Addr = "2001:db8::9".parse().unwrap();
    for is_router in [true, false] {
        let frames: Vec<Frame> = announcement(ip.into(), &source(is_router)).collect();
        let [frame] = frames.as_slice() else { panic!("one frame") };
        assert_eq!(frame.bytes().len(), 86);
        assert_eq!(frame.bytes()[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let sliced = SlicedPacket::from_ethernet(frame.bytes()).unwrap();
        let Some(etherparse::NetSlice::Ipv6(ipv6)) = &sliced.net else { panic!("{sliced:?}") };
        let header = ipv6.header();
        assert_eq!(header.hop_limit(), 255);
        assert_eq!(header.source_addr(), ip);
        assert_eq!(header.destination_addr(), "ff02::1".parse::<Ipv6Addr>().unwrap());
        let Some(etherparse::TransportSlice::Icmpv6(icmp)) = &sliced.transport else {
            panic!("{sliced:?}")
        };
        assert!(icmp.is_checksum_valid(header.source(), header.destination()));
        let Icmpv6Type::NeighborAdvertisement(flags) = icmp.icmp_type() else {
            panic!("{:?}", icmp.icmp_type())
        };
        assert_eq!((flags.router, flags.solicited, flags.r#override), (is_router, false, true));
        assert_eq!(icmp.payload()[..16], ip.octets());
        assert_eq!(icmp.payload()[16..], [&[2, 1][..], &MAC.0].concat());
    }
}

#[test]
fn a_probe_claims_nothing() {
    let ip = Ipv4Addr::new(192, 0, 2, 9);
    let frame = probe(ip.into(), MAC);
    let arp = arp_of(&frame);
    assert_eq!(arp.operation, ArpOperation::REQUEST);
    assert_eq!(arp.sender_protocol_addr(), [0; 4]);
    assert_eq!(arp.target_protocol_addr(), ip.octets());
    assert_eq!(decode_claim(frame.bytes()), None);
}

#[test]
fn a_solicitation_goes_from_the_unspecified_address_to_the_solicited_node_group() {
    let ip: Ipv6Addr = "2001:db8::12:3456".parse().unwrap();
    let frame = probe(ip.into(), MAC);
    assert_eq!(frame.bytes()[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    let sliced = SlicedPacket::from_ethernet(frame.bytes()).unwrap();
    let Some(etherparse::NetSlice::Ipv6(ipv6)) = &sliced.net else { panic!("{sliced:?}") };
    let header = ipv6.header();
    assert_eq!(header.source_addr(), Ipv6Addr::UNSPECIFIED);
    assert_eq!(header.destination_addr(), "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    let Some(etherparse::TransportSlice::Icmpv6(icmp)) = &sliced.transport else {
        panic!("{sliced:?}")
    };
    assert!(icmp.is_checksum_valid(header.source(), header.destination()));
    assert!(matches!(icmp.icmp_type(), Icmpv6Type::NeighborSolicitation));
    assert_eq!(decode_claim(frame.bytes()), None);
}

#[test]
fn an_advertisement_without_an_option_claims_the_address_for_its_sender() {
    let ip: Ipv6Addr = "2001:db8::9".parse().unwrap();
    let frame = ndisc::unsolicited(MAC, ip, false);
    let bare = &frame.bytes()[..14 + 40 + 24];
    assert_eq!(decode_claim(bare), Some(AddressClaim { ip: ip.into(), mac: MAC }));
}

#[test]
fn an_advertisement_that_a_router_forwarded_is_ignored() {
    let mut bytes = ndisc::unsolicited(MAC, Ipv6Addr::LOCALHOST, false).bytes().to_vec();
    bytes[14 + 7] = 254;
    assert_eq!(decode_claim(&bytes), None);
}

proptest! {
    #[test]
    fn an_announcement_is_decoded_as_a_claim(mac: [u8; 6], four: [u8; 4], six: [u8; 16]) {
        prop_assume!(four != [0; 4]);
        for ip in [IpAddr::from(four), IpAddr::from(six)] {
            let mac = Mac(mac);
            for frame in announcement(ip, &AnnounceSource { mac, ..source(false) }) {
                prop_assert_eq!(decode_claim(frame.bytes()), Some(AddressClaim { ip, mac }));
            }
        }
    }

    #[test]
    fn random_bytes_do_not_make_the_decoder_panic(bytes: Vec<u8>) {
        let _ = decode_claim(&bytes);
    }

    /// Most random bytes do not get far in the decoder; a valid frame with one damaged byte does.
    #[test]
    fn a_damaged_claim_does_not_make_the_decoder_panic(
        six: [u8; 16], at in 0..86_usize, value: u8, length in 0..=86_usize, tail: Vec<u8>
    ) {
        let mut bytes = ndisc::unsolicited(MAC, Ipv6Addr::from(six), true).bytes().to_vec();
        bytes[at] = value;
        bytes.truncate(length);
        bytes.extend(tail);
        let _ = decode_claim(&bytes);
        let mut bytes = arp::gratuitous(arp::Operation::Reply, MAC, Ipv4Addr::LOCALHOST).bytes().to_vec();
        bytes[at % 42] = value;
        bytes.truncate(length);
        let _ = decode_claim(&bytes);
    }
}
