// SPDX-License-Identifier: Apache-2.0
//! Any bytes as an IP packet with a VRRP advert: the decoder must not panic, and an advert that it finds must consist of
//! bytes of the packet. Padding after the packet must have no effect.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vipwatch_core::vrrp::{VrrpFamily, decode};
use vipwatch_fuzz::within_budget;

fuzz_target!(|packet: &[u8]| within_budget(packet.len(), || {
    let decoded = decode(packet);
    let padded = [packet, &[0; 18]].concat();
    let Ok(advert) = decoded else { return };
    assert_eq!(decode(&padded), Ok(advert), "padding changes nothing");
    assert!(advert.vrid != 0 && !advert.interval.is_zero());
    assert_eq!(advert.source.is_ipv4(), advert.destination.is_ipv4());
    let length = VrrpFamily::of(advert.source).address_length();
    assert_eq!(advert.addresses().count() * length, advert.address_bytes.len());
    assert!(advert.addresses().count() <= 255);
    assert!(!advert.is_routed() || !advert.destination.is_multicast());
}));
