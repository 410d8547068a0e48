// SPDX-License-Identifier: Apache-2.0
//! The IP header in front of an advert.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{AdvertError, PROTOCOL_AH, PROTOCOL_VRRP};

/// Bytes of an IPv4 header without options.
const V4_HEADER_LENGTH: usize = 20;
/// Bytes of an IPv6 header.
const V6_HEADER_LENGTH: usize = 40;
/// Bytes of an authentication header without its check value.
const AH_FIXED_LENGTH: usize = 12;

/// The parts of an IP packet that VRRP needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct IpPacket<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// The TTL, or the hop limit.
    pub(super) hop_limit: u8,
    /// Whether an authentication header is in front of VRRP.
    pub(super) has_authentication_header: bool,
    /// The VRRP part.
    pub(super) payload: &'a [u8],
}

impl<'a> IpPacket<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, AdvertError> {
        let (packet, protocol) = match bytes.first().ok_or(AdvertError::Truncated)? >> 4 {
            4 => Self::parse_v4(bytes)?,
            6 => Self::parse_v6(bytes)?,
            _ => return Err(AdvertError::IpVersion),
        };
        match protocol {
            PROTOCOL_VRRP => Ok(packet),
            PROTOCOL_AH => packet.without_authentication_header(),
            _ => Err(AdvertError::Protocol),
        }
    }

    /// Returns the packet, and the protocol of its payload.
    fn parse_v4(bytes: &'a [u8]) -> Result<(Self, u8), AdvertError> {
        let fixed: &[u8; V4_HEADER_LENGTH] = bytes.first_chunk().ok_or(AdvertError::Truncated)?;
        // The header may have options.
        let header_length = usize::from(fixed[0] & 0xf) * 4;
        let total_length = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if header_length < V4_HEADER_LENGTH {
            return Err(AdvertError::Truncated);
        }
        let header = bytes.get(..header_length).ok_or(AdvertError::Truncated)?;
        let payload = bytes.get(header_length..total_length).ok_or(AdvertError::Truncated)?;
        if sum_words(0, header) != 0xffff {
            return Err(AdvertError::IpChecksum);
        }
        // Bit 13 says that fragments follow; the 13 bits below are the offset of this one.
        if u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0 {
            return Err(AdvertError::Fragment);
        }
        let address = |at: usize| {
            IpAddr::V4(Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]))
        };
        let packet = Self {
            source: address(12),
            destination: address(16),
            hop_limit: fixed[8],
            has_authentication_header: false,
            payload,
        };
        Ok((packet, fixed[9]))
    }

    /// LIMIT: a packet with extension headers is not an advert; no VRRP router sends them. A fragment has one too.
    fn parse_v6(bytes: &'a [u8]) -> Result<(Self, u8), AdvertError> {
        const FRAGMENT_HEADER: u8 = 44;
        let fixed: &[u8; V6_HEADER_LENGTH] = bytes.first_chunk().ok_or(AdvertError::Truncated)?;
        let length = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let payload = bytes[V6_HEADER_LENGTH..].get(..length).ok_or(AdvertError::Truncated)?;
        if fixed[6] == FRAGMENT_HEADER {
            return Err(AdvertError::Fragment);
        }
        let address = |at: usize| {
            let octets: Option<&[u8; 16]> = fixed[at..].first_chunk();
            octets.map(|octets| IpAddr::V6(Ipv6Addr::from(*octets))).ok_or(AdvertError::Truncated)
        };
        let packet = Self {
            source: address(8)?,
            destination: address(24)?,
            hop_limit: fixed[7],
            has_authentication_header: false,
            payload,
        };
        Ok((packet, fixed[6]))
    }

    fn without_authentication_header(self) -> Result<Self, AdvertError> {
        let [next, words, ..] = *self.payload else { return Err(AdvertError::Truncated) };
        if next != PROTOCOL_VRRP {
            return Err(AdvertError::Protocol);
        }
        // The length field counts words of four bytes, minus two.
        let length = (usize::from(words) + 2) * 4;
        if length < AH_FIXED_LENGTH {
            return Err(AdvertError::Truncated);
        }
        let payload = self.payload.get(length..).ok_or(AdvertError::Truncated)?;
        Ok(Self { payload, has_authentication_header: true, ..self })
    }

    /// The sum of the pseudo-header with this destination: addresses, length and protocol.
    pub(super) fn pseudo_header_sum(&self, destination: IpAddr) -> u32 {
        let mut sum = u32::from(PROTOCOL_VRRP);
        for ip in [self.source, destination] {
            sum = match ip {
                IpAddr::V4(ip) => sum_words(sum, &ip.octets()),
                IpAddr::V6(ip) => sum_words(sum, &ip.octets()),
            };
        }
        sum + u32::try_from(self.payload.len()).unwrap_or(0)
    }
}

/// Adds the 16-bit words of `bytes` to `start` in one's complement arithmetic (RFC 1071); an odd byte at the end is the
/// high byte of a word. A part with its checksum gives `0xffff`.
pub(super) fn sum_words(start: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| match *word {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    // LIMIT: a packet has at most 65,535 bytes, so the sum stays below 2^32.
    let mut sum = words.fold(start, u32::saturating_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}
