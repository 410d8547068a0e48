// SPDX-License-Identifier: Apache-2.0
//! Any bytes as an Ethernet frame: the reader must not panic, and an address claim that it finds must consist of
//! an IP and a MAC address from the frame. The frames that vipwatch builds must be read back unchanged.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use vipwatch_core::announce::AnnounceSource;
use vipwatch_core::snapshot::Mac;
use vipwatch_fuzz::within_budget;
use vipwatch_linux::announce::{AddressClaim, announcement, decode_claim, probe};

fuzz_target!(|frame: &[u8]| within_budget(frame.len(), || {
    if let Some(AddressClaim { ip, mac }) = decode_claim(frame) {
        let contains = |bytes: &[u8]| frame.windows(bytes.len()).any(|window| window == bytes);
        assert!(contains(&mac.0), "{mac:?}");
        match ip {
            IpAddr::V4(ip) => assert!(contains(&ip.octets()) && !ip.is_unspecified(), "{ip}"),
            IpAddr::V6(ip) => assert!(contains(&ip.octets()), "{ip}"),
        }
        // Ethernet pads short frames: bytes after the packet must have no effect.
        if ip.is_ipv4() {
            assert_eq!(decode_claim(&[frame, &[0; 18]].concat()), decode_claim(frame));
        }
    }
    read_back(frame);
}));

/// Builds announcements from the same bytes, and reads them back.
fn read_back(bytes: &[u8]) {
    let Some((mac, rest)) = bytes.split_first_chunk::<6>() else { return };
    let Some((octets, rest)) = rest.split_first_chunk::<16>() else { return };
    let Some(name) = vipwatch_core::LinkName::from_kernel(b"eth0") else { return };
    let source = AnnounceSource { name, mac: Mac(*mac), is_router: rest.first() == Some(&1) };
    let [a, b, c, d, ..] = *octets;
    for ip in [IpAddr::V4(Ipv4Addr::new(a, b, c, d)), IpAddr::V6(Ipv6Addr::from(*octets))] {
        let is_announced = ip != IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let expected = is_announced.then_some(AddressClaim { ip, mac: Mac(*mac) });
        for frame in announcement(ip, &source) {
            assert_eq!(decode_claim(frame.bytes()), expected);
        }
        assert_eq!(
            decode_claim(probe(ip, Mac(*mac)).bytes()),
            None,
            "an ARP request or neighbour solicitation is no claim"
        );
    }
}
