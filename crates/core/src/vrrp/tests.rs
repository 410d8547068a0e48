// SPDX-License-Identifier: Apache-2.0
//! The packets are those of keepalived 2.2.7, captured behind a veth pair. The signed ones are those of keepalived 2.4.3, but for
//! the one of version 2 over IPv6.

use proptest::prelude::*;

use super::ip::sum_words;
use super::*;

/// Version 2, IPv4 multicast, two addresses.
const V2: &str =
    "45c0002c00010000ff701884c000020ae0000012210b96020001c426c0000264c00002650000000000000000";
/// The same sender stops: priority 0.
const V2_STOPS: &str =
    "45c0002c00050000ff701880c000020ae0000012210b000200015a27c0000264c00002650000000000000000";
/// Version 2 with a password.
const V2_PASSWORD: &str =
    "45c0002800010000ff701888c000020ae0000012210c96010101180cc00002667365637265743132";
/// Version 2 with an authentication header.
const V2_HEADER: &str = "45c0004000010000ff3318adc000020ae000001270040000c000020a00000001cb9568786265f0fbb6a05eb1210d960102018488c00002670000000000000000";
/// Version 2 to a unicast peer.
const V2_UNICAST: &str =
    "45c0002800010000ff70368fc000020ac000020b2110960100018682c000026a0000000000000000";
/// Version 2 from a VMAC link.
const V2_VMAC: &str =
    "45c0002800010000ff701888c000020ae00000122111960100018680c000026b0000000000000000";
/// Version 3, IPv4 multicast, every 500 ms.
const V3: &str = "45c0002000010000ff701890c000020ae0000012310e96010032d3bbc0000268";
/// Version 3 to a unicast peer with `old_unicast_checksum`.
const V3_OLD_CHECKSUM: &str = "45c0002000010000ff703697c000020ac000020b311396010064d37fc000026d";
/// Version 3 over IPv6, two addresses, every 500 ms.
pub(crate) const V3_IPV6: &str = "6c0184a4002870fffe800000000000008833d9fffebddecbff020000000000000000000000000012310f96020032cd93fe80000000000000000000000001000220010db8000000000000000000000100";
/// Version 2 over IPv6, which no RFC defines.
const V2_IPV6: &str = "6c0184a4001870fffe800000000000008833d9fffebddecbff0200000000000000000000000000122114960100010c89fe800000000000000000000000010003";

/// Version 2, IPv4, two addresses, signed with the key id 7.
pub(crate) const V2_SIGNED: &str = "45c0004800010000ff701871c0000201e0000012213396020001c4b2c000020ac000020b0000000000000000010700006afd570496a100001dcb04ed48aa913777cd95a19efe66dc";
/// Version 3, IPv4, signed.
pub(crate) const V3_SIGNED: &str = "45c0003c00010000ff70187dc0000201e0000012313396010064d3cbc000020a010700006afd5709a7e10000c785b50ef86faa0c68330ffa2c903ba3";
/// Version 3 over IPv6, two addresses, signed.
pub(crate) const V3_IPV6_SIGNED: &str = "6c08fd4d004470fffe800000000000005ce90afffec8f480ff020000000000000000000000000012313396020064c0f2fe80000000000000000000000000001020010db8000000000000000000000010010700006afd570ec50c000078bfb6fa3cfd7f67953abfe5b40a7433";
/// Version 2 over IPv6, one address, signed: composed by hand, with the HMAC of the key 00 01 … 1f.
pub(crate) const V2_IPV6_SIGNED: &str = "6c000000003470fffe800000000000000000000000000001ff020000000000000000000000000012213396010001d715fe800000000000000000000000000010010700006afd571080000000f025acdf0d03ed4dfffbfa7e8a1915e8";
/// Version 3 of the sender before the last one, with `mode receive-only`: it does not sign.
const V3_RECEIVE_ONLY: &str = "45c0002000010000ff701899c0000201e0000012313396010064d3cbc000020a";

const ALL: [&str; 15] = [
    V2,
    V2_STOPS,
    V2_PASSWORD,
    V2_HEADER,
    V2_UNICAST,
    V2_VMAC,
    V3,
    V3_OLD_CHECKSUM,
    V3_IPV6,
    V2_IPV6,
    V2_SIGNED,
    V3_SIGNED,
    V3_IPV6_SIGNED,
    V2_IPV6_SIGNED,
    V3_RECEIVE_ONLY,
];

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Decodes a changed packet, with the checksum of its IPv4 header made right again.
fn changed(hex: &str, change: impl FnOnce(&mut Vec<u8>)) -> Result<u8, AdvertError> {
    let mut packet = bytes(hex);
    change(&mut packet);
    if packet[0] >> 4 == 4 {
        set_ip_checksum(&mut packet);
    }
    decode(&packet).map(|advert| advert.vrid)
}

fn set_ip_checksum(packet: &mut [u8]) {
    let length = (usize::from(packet[0] & 0xf) * 4).min(packet.len());
    packet[10..12].fill(0);
    let sum = u16::try_from(sum_words(0, &packet[..length])).unwrap();
    packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn an_advert_of_version_2_has_seconds_and_its_addresses() {
    let packet = bytes(V2);
    let advert = decode(&packet).unwrap();
    assert_eq!(advert.version, VrrpVersion::V2);
    assert_eq!((advert.vrid, advert.priority), (11, 150));
    assert_eq!(advert.interval, Duration::from_secs(1));
    assert_eq!(ips(&["192.0.2.10"]), [advert.source]);
    assert_eq!(ips(&["224.0.0.18"]), [advert.destination]);
    assert_eq!(advert.authentication, VrrpAuthentication::None);
    assert_eq!(advert.checksum, ChecksumCoverage::Standard);
    assert_eq!(advert.addresses().collect::<Vec<_>>(), ips(&["192.0.2.100", "192.0.2.101"]));
    assert_eq!(decode(&bytes(V2_STOPS)).map(|advert| advert.priority), Ok(0));
}

#[test]
fn an_advert_of_version_3_has_centiseconds_and_a_pseudo_header() {
    let packet = bytes(V3);
    let advert = decode(&packet).unwrap();
    assert_eq!((advert.version, advert.interval), (VrrpVersion::V3, Duration::from_millis(500)));
    assert_eq!(advert.checksum, ChecksumCoverage::Standard);
    let packet = bytes(V3_IPV6);
    let advert = decode(&packet).unwrap();
    assert_eq!((advert.vrid, advert.family()), (15, VrrpFamily::V6));
    assert_eq!(advert.addresses().collect::<Vec<_>>(), ips(&["fe80::1:2", "2001:db8::100"]));
    // Another source is another pseudo-header.
    assert_eq!(changed(V3_IPV6, |packet| packet[23] ^= 1), Err(AdvertError::Checksum));
}

#[test]
fn every_authentication_type_of_version_2_is_recognised() {
    let kind = |hex: &str| decode(&bytes(hex)).map(|advert| advert.authentication);
    assert_eq!(kind(V2_UNICAST), Ok(VrrpAuthentication::None));
    assert_eq!(kind(V2_PASSWORD), Ok(VrrpAuthentication::Password));
    assert_eq!(kind(V2_HEADER), Ok(VrrpAuthentication::AuthenticationHeader));
    assert_eq!(changed(V2, |packet| packet[24] = 3), Err(AdvertError::Authentication));
    // Type 2 without the header, and the header in front of another type.
    assert_eq!(changed(V2, |packet| packet[24] = 2), Err(AdvertError::Authentication));
    assert_eq!(changed(V2_HEADER, |packet| packet[48] = 0), Err(AdvertError::Authentication));
    assert_eq!(changed(V2_HEADER, |packet| packet[20] = 6), Err(AdvertError::Protocol));
    assert_eq!(changed(V2_HEADER, |packet| packet[21] = 200), Err(AdvertError::Truncated));
}

#[test]
fn a_version_3_checksum_with_another_pseudo_header_is_accepted_and_marked() {
    let coverage = |hex: &str| decode(&bytes(hex)).map(|advert| advert.checksum);
    assert_eq!(coverage(V3_OLD_CHECKSUM), Ok(ChecksumCoverage::MulticastPseudoHeader));
    assert_eq!(coverage(V2_IPV6), Ok(ChecksumCoverage::Standard));
    assert_eq!(coverage(V2_VMAC), Ok(ChecksumCoverage::Standard));
    let mut packet = bytes(V3);
    packet[26..28].fill(0);
    let sum = u16::try_from(sum_words(0, &packet[20..])).unwrap();
    packet[26..28].copy_from_slice(&(!sum).to_be_bytes());
    let coverage = decode(&packet).map(|advert| advert.checksum);
    assert_eq!(coverage, Ok(ChecksumCoverage::WithoutPseudoHeader));
}

#[test]
fn a_signed_advert_is_an_advert_with_a_key_id_and_the_time_of_its_sender() {
    let cases = [
        (V2_SIGNED, VrrpVersion::V2, 2, 0x6afd_5704, 0x96a1),
        (V3_SIGNED, VrrpVersion::V3, 1, 0x6afd_5709, 0xa7e1),
        (V3_IPV6_SIGNED, VrrpVersion::V3, 2, 0x6afd_570e, 0xc50c),
        (V2_IPV6_SIGNED, VrrpVersion::V2, 1, 0x6afd_5710, 0x8000),
    ];
    for (hex, version, addresses, seconds, fraction) in cases {
        let packet = bytes(hex);
        let advert = decode(&packet).unwrap();
        assert_eq!((advert.version, advert.vrid, advert.priority), (version, 51, 150));
        assert_eq!(advert.addresses().count(), addresses, "{hex}");
        assert_eq!(advert.checksum, ChecksumCoverage::Standard, "{hex}");
        assert_eq!(advert.authentication, VrrpAuthentication::None);
        let Signature { key_id, sent } = advert.signature.unwrap();
        assert_eq!((key_id, sent.as_secs()), (7, seconds));
        assert_eq!(u128::from(sent.subsec_nanos()), (fraction * 1_000_000_000_u128) >> 16);
    }
    assert_eq!(decode(&bytes(V3_RECEIVE_ONLY)).unwrap().signature, None);
}

/// The checksum over IPv4 does not cover the trailer, and the one over IPv6 does.
#[test]
fn a_trailer_of_another_length_or_type_is_an_error_of_its_own() {
    let shortened = |hex: &str, by: usize| {
        changed(hex, |packet| {
            packet.truncate(packet.len() - by);
            let at = if packet[0] >> 4 == 4 { 3 } else { 5 };
            packet[at] -= u8::try_from(by).unwrap();
        })
    };
    let packets = [(V2_SIGNED, 44), (V3_SIGNED, 32), (V3_IPV6_SIGNED, 80), (V2_IPV6_SIGNED, 64)];
    for (hex, trailer) in packets {
        for by in 1..TRAILER_LENGTH {
            assert_eq!(shortened(hex, by), Err(AdvertError::Length), "{by} bytes fewer of {hex}");
        }
        for (at, value) in [(0, 0), (0, 2), (2, 1), (3, 1)] {
            let error = changed(hex, |packet| packet[trailer + at] = value);
            assert_eq!(error, Err(AdvertError::Trailer), "byte {at} of {hex}");
        }
        let other_hmac = changed(hex, |packet| packet[trailer + 20] ^= 1);
        let is_v4 = hex.starts_with('4');
        assert_eq!(other_hmac, if is_v4 { Ok(51) } else { Err(AdvertError::Checksum) });
    }
    assert_eq!(shortened(V3_SIGNED, TRAILER_LENGTH), Ok(51));
    let two = changed(V3_SIGNED, |packet| {
        packet.extend_from_within(32..);
        packet[3] += 28;
    });
    assert_eq!(two, Err(AdvertError::Length));
}

#[test]
fn an_interval_is_rounded_as_keepalived_rounds_it() {
    let wire = |version: VrrpVersion, millis| {
        version.wire_interval(Duration::from_millis(millis)).as_millis()
    };
    for (configured, rounded) in [(125, 130), (333, 330), (75, 80), (1, 10), (41_000, 40_950)] {
        assert_eq!(wire(VrrpVersion::V3, configured), rounded);
    }
    for (configured, rounded) in [(300, 1_000), (1_499, 1_000), (1_500, 2_000), (255_700, 255_000)]
    {
        assert_eq!(wire(VrrpVersion::V2, configured), rounded);
    }
}

#[test]
fn a_forwarded_advert_is_refused_unless_it_is_unicast() {
    assert_eq!(changed(V2, |packet| packet[8] = 254), Err(AdvertError::HopLimit));
    assert_eq!(changed(V3_IPV6, |packet| packet[7] = 64), Err(AdvertError::HopLimit));
    assert_eq!(changed(V2_UNICAST, |packet| packet[8] = 60), Ok(16));
    let mut packet = bytes(V2_UNICAST);
    packet[8] = 60;
    set_ip_checksum(&mut packet);
    assert!(decode(&packet).unwrap().is_routed());
}

#[test]
fn an_advert_of_version_3_may_have_no_address() {
    let mut packet =
        vec![0x45, 0xc0, 0, 28, 0, 1, 0, 0, 255, 112, 0, 0, 192, 0, 2, 1, 224, 0, 0, 18];
    packet.extend([0x31, 51, 150, 0, 0, 100, 0x38, 0x68]);
    set_ip_checksum(&mut packet);
    let advert = decode(&packet).unwrap();
    assert_eq!((advert.vrid, advert.priority, advert.addresses().count()), (51, 150, 0));
}

#[test]
fn each_wrong_field_has_its_own_error() {
    let v2 = |change: fn(&mut Vec<u8>)| changed(V2, change);
    assert_eq!(v2(|packet| packet[0] = 0x55), Err(AdvertError::IpVersion));
    assert_eq!(v2(|packet| packet[0] = 0x44), Err(AdvertError::Truncated));
    assert_eq!(v2(|packet| packet[6] = 0x20), Err(AdvertError::Fragment));
    assert_eq!(v2(|packet| packet[7] = 1), Err(AdvertError::Fragment));
    assert_eq!(v2(|packet| packet[9] = 17), Err(AdvertError::Protocol));
    assert_eq!(v2(|packet| packet[12..16].fill(0)), Err(AdvertError::Source));
    assert_eq!(v2(|packet| packet[12..16].fill(255)), Err(AdvertError::Source));
    assert_eq!(v2(|packet| packet[20] = 0x41), Err(AdvertError::Version));
    assert_eq!(v2(|packet| packet[20] = 0x22), Err(AdvertError::Type));
    assert_eq!(v2(|packet| packet[21] = 0), Err(AdvertError::Vrid));
    assert_eq!(v2(|packet| packet[25] = 0), Err(AdvertError::Interval));
    assert_eq!(v2(|packet| packet[23] = 3), Err(AdvertError::Length));
    assert_eq!(v2(|packet| packet[22] = 151), Err(AdvertError::Checksum));
    assert_eq!(changed(V3_IPV6, |packet| packet[6] = 44), Err(AdvertError::Fragment));
    let mut packet = bytes(V2);
    packet[10] ^= 1;
    assert_eq!(decode(&packet), Err(AdvertError::IpChecksum));
    assert_eq!(decode(&[]), Err(AdvertError::Truncated));
}

#[test]
fn ip_options_and_the_padding_of_a_frame_do_not_matter() {
    let with_options = changed(V2, |packet| {
        packet.splice(20..20, [1, 1, 1, 0]);
        packet[0] = 0x46;
        packet[3] += 4;
    });
    assert_eq!(with_options, Ok(11));
    assert_eq!(changed(V3, |packet| packet.extend([0; 18])), Ok(14));
    // A total length beyond the packet.
    assert_eq!(changed(V3, |packet| packet[3] += 1), Err(AdvertError::Truncated));
}

#[test]
fn an_advert_may_have_255_addresses() {
    let mut packet = bytes(V2);
    packet.truncate(28);
    packet[23] = 255;
    for last in 0..255_u8 {
        packet.extend([10, 0, 0, last]);
    }
    packet.extend([0; 8]);
    let length = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[26..28].fill(0);
    let sum = u16::try_from(sum_words(0, &packet[20..])).unwrap();
    packet[26..28].copy_from_slice(&(!sum).to_be_bytes());
    set_ip_checksum(&mut packet);
    assert_eq!(decode(&packet).unwrap().addresses().count(), 255);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn any_bytes_give_an_advert_or_an_error(packet in proptest::collection::vec(any::<u8>(), 0..128)) {
        let _ = decode(&packet);
    }

    #[test]
    fn any_payload_behind_a_valid_ip_header_gives_an_advert_or_an_error(
        which in 0..ALL.len(),
        payload in proptest::collection::vec(any::<u8>(), 0..1200),
    ) {
        let mut packet = bytes(ALL[which]);
        let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
        packet.truncate(header);
        packet.extend(&payload);
        if header == 20 {
            let length = u16::try_from(packet.len()).unwrap();
            packet[2..4].copy_from_slice(&length.to_be_bytes());
            set_ip_checksum(&mut packet);
        } else {
            let length = u16::try_from(payload.len()).unwrap();
            packet[4..6].copy_from_slice(&length.to_be_bytes());
        }
        if let Ok(advert) = decode(&packet) {
            prop_assert!(advert.addresses().count() <= 255 && !advert.interval.is_zero());
        }
    }
}

#[test]
fn every_truncation_of_a_real_advert_is_an_error() {
    for hex in ALL {
        let packet = bytes(hex);
        for length in 0..packet.len() {
            assert!(decode(&packet[..length]).is_err(), "{length} bytes of {hex}");
        }
    }
}

/// The checksums cover every bit of VRRP and of the IPv4 header. They do not cover the first words of an IPv6 header,
/// the fields of an authentication header, and a trailer over IPv4.
#[test]
fn a_flipped_bit_is_never_believed() {
    for hex in ALL {
        for bit in 0..hex.len() * 4 {
            let (at, mut packet) = (bit / 8, bytes(hex));
            let is_covered = match hex {
                V3_IPV6 | V2_IPV6 | V3_IPV6_SIGNED | V2_IPV6_SIGNED => at >= 4,
                V2_SIGNED => at < 44,
                V3_SIGNED => at < 32,
                V2_HEADER => !(22..44).contains(&at),
                _ => true,
            };
            packet[at] ^= 1 << (bit % 8);
            assert!(!is_covered || decode(&packet).is_err(), "bit {bit} of {hex}");
        }
    }
}
