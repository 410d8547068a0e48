// SPDX-License-Identifier: Apache-2.0
//! Decodes VRRP advertisements, version 2 (RFC 3768) and version 3 (RFC 5798), from whole IP packets.
//!
//! keepalived 2.4 signs adverts with a trailer (`auth_hmac`) behind the VRRP message, within the length of the IP packet.
//!
//! A packet is either an [`Advert`], which a VRRP router would accept, or an [`AdvertError`]. Nothing here depends on
//! the configuration: whether an advert belongs to a followed instance is decided in [`crate::witness`].
//!
//! The decoder allocates nothing and reads at most the bytes of the packet.

mod ip;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use strum::{AsRefStr, VariantArray};

use self::ip::{IpPacket, sum_words};

/// The IP protocol number of VRRP.
pub const PROTOCOL_VRRP: u8 = 112;
/// The IP protocol number of the authentication header (RFC 4302), which version 2 may put in front of VRRP.
pub const PROTOCOL_AH: u8 = 51;

/// The TTL or hop limit of an advert that no router has forwarded.
pub const HOP_LIMIT: u8 = 255;

/// The IPv4 multicast group of VRRP.
const MULTICAST_GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 18));

/// Bytes of the fixed part of an advert.
const HEADER_LENGTH: usize = 8;
/// Bytes of the authentication data that end an IPv4 advert of version 2.
const AUTHENTICATION_LENGTH: usize = 8;
/// The only type of VRRP packet.
const TYPE_ADVERTISEMENT: u8 = 1;

/// Bytes of the trailer with which keepalived 2.4 signs an advert (`auth_hmac`): type, key id, two reserved bytes, UTC
/// seconds, binary fraction of a second, counter, and 16 bytes of HMAC.
pub const TRAILER_LENGTH: usize = 28;
/// The only type of trailer: HMAC-SHA-256, truncated to 128 bits.
const TRAILER_HMAC_SHA256: u8 = 1;

/// The version of the VRRP protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VrrpVersion {
    /// RFC 3768. keepalived sends it over IPv6 too, without authentication data.
    V2,
    /// RFC 5798.
    V3,
}

impl VrrpVersion {
    /// The version number.
    pub fn number(self) -> u8 {
        match self {
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// The interval in adverts, to which keepalived rounds: whole seconds in version 2, hundredths in version 3.
    pub fn wire_interval(self, interval: Duration) -> Duration {
        let (unit, max) = match self {
            Self::V2 => (Duration::from_secs(1), 255),
            Self::V3 => (Duration::from_millis(10), 4_095),
        };
        let units = (interval + unit / 2).as_micros() / unit.as_micros();
        unit * u32::try_from(units).unwrap_or(max).clamp(1, max)
    }
}

/// The address family of an advert: that of its addresses and of its IP header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VrrpFamily {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl VrrpFamily {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Bytes of one address.
    pub fn address_length(self) -> usize {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }
}

/// How an advert is authenticated. vipwatch knows no secrets, so it verifies none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VrrpAuthentication {
    /// No authentication, as always in version 3.
    None,
    /// A password in clear text (type 1). The decoder does not keep it.
    Password,
    /// An authentication header in front of VRRP (type 2).
    AuthenticationHeader,
}

impl VrrpAuthentication {
    /// The word for the type in documents, as in keepalived's `auth_type`, in lower case.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Password => "pass",
            Self::AuthenticationHeader => "ah",
        }
    }
}

/// The trailer of a signed advert. vipwatch has no key, so it cannot verify the HMAC and does not keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The key that signs, as the sender numbers it.
    pub key_id: u8,
    /// The sender's clock: the time since the Unix epoch, modulo 2^32 seconds.
    pub sent: Duration,
}

/// What the checksum of an advert covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChecksumCoverage {
    /// What the RFC of its version requires.
    Standard,
    /// A unicast IPv4 advert of version 3 with the multicast group as the destination in the pseudo-header: keepalived
    /// up to 1.3.6 sends it, and later releases do with `old_unicast_checksum`.
    MulticastPseudoHeader,
    /// An IPv4 advert of version 3 without a pseudo-header: some products send it, FRR among them if it is configured so.
    WithoutPseudoHeader,
}

/// A valid advert. The addresses are those bytes of the packet that contain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advert<'a> {
    /// The source address of the IP packet.
    pub source: IpAddr,
    /// The destination address of the IP packet: a multicast group, or a unicast peer.
    pub destination: IpAddr,
    /// The TTL or hop limit. It is [`HOP_LIMIT`], or less for a unicast advert that routers have forwarded.
    pub hop_limit: u8,
    /// The version of the protocol.
    pub version: VrrpVersion,
    /// The virtual router id, 1 to 255.
    pub vrid: u8,
    /// The priority; 0 if the sender hands over, 255 if it owns the addresses.
    pub priority: u8,
    /// The interval of the sender's adverts, never zero; the unit on the wire is a second in version 2, and 10 ms in
    /// version 3.
    pub interval: Duration,
    /// How the advert is authenticated.
    pub authentication: VrrpAuthentication,
    /// What its checksum covers.
    pub checksum: ChecksumCoverage,
    /// The signature; `None` if the advert has no trailer.
    pub signature: Option<Signature>,
    /// The addresses as on the wire; see [`addresses`].
    pub address_bytes: &'a [u8],
}

impl Advert<'_> {
    /// The family of the advert.
    pub fn family(&self) -> VrrpFamily {
        VrrpFamily::of(self.source)
    }

    /// The addresses, at most 255.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        addresses(self.family(), self.address_bytes)
    }

    /// Whether routers have forwarded the advert, so that its sender need not be on the link.
    pub fn is_routed(&self) -> bool {
        self.hop_limit != HOP_LIMIT
    }
}

/// The addresses in `bytes`, which are of one family; bytes that do not make up a whole address are left out.
pub fn addresses(family: VrrpFamily, bytes: &[u8]) -> impl Iterator<Item = IpAddr> {
    bytes.chunks_exact(family.address_length()).filter_map(move |bytes| match family {
        VrrpFamily::V4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        VrrpFamily::V6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
    })
}

/// How adverts are sent. keepalived has separate virtual router ids for the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdvertKind {
    /// To a multicast group.
    Multicast,
    /// To each `unicast_peer`.
    Unicast,
}

impl AdvertKind {
    /// The kind of an advert to this destination.
    pub fn of(destination: IpAddr) -> Self {
        if destination.is_multicast() { Self::Multicast } else { Self::Unicast }
    }
}

/// Why a packet is not a valid advert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, AsRefStr, VariantArray, thiserror::Error)]
#[strum(serialize_all = "kebab-case")]
pub enum AdvertError {
    /// The packet ends before its headers do, or its lengths contradict each other.
    #[error("the packet is truncated")]
    Truncated,
    /// The IP header is neither IPv4 nor IPv6.
    #[error("the packet is neither IPv4 nor IPv6")]
    IpVersion,
    /// The checksum of the IPv4 header is wrong.
    #[error("wrong checksum of the IPv4 header")]
    IpChecksum,
    /// The packet is a fragment.
    #[error("the packet is a fragment")]
    Fragment,
    /// The packet contains another protocol than VRRP.
    #[error("the packet contains another protocol than VRRP")]
    Protocol,
    /// The source is a multicast, broadcast or unspecified address.
    #[error("invalid source address")]
    Source,
    /// The TTL or hop limit of a multicast advert is not 255: its sender is not on the link.
    #[error("the TTL or hop limit of a multicast advert is not 255")]
    HopLimit,
    /// The VRRP version is neither 2 nor 3.
    #[error("unknown VRRP version")]
    Version,
    /// The VRRP type is not 1.
    #[error("unknown VRRP type")]
    Type,
    /// The virtual router id is 0.
    #[error("invalid virtual router id 0")]
    Vrid,
    /// The advert interval is 0.
    #[error("invalid advert interval 0")]
    Interval,
    /// The version 2 authentication type is unknown, or contradicts the presence of an authentication header.
    #[error("unknown authentication type")]
    Authentication,
    /// The length does not fit the number of addresses.
    #[error("the length does not fit the number of addresses")]
    Length,
    /// The trailer is of an unknown type, or its reserved bytes are not zero.
    #[error("unknown trailer")]
    Trailer,
    /// The VRRP checksum is wrong.
    #[error("wrong VRRP checksum")]
    Checksum,
}

impl AdvertError {
    /// All errors.
    pub const ALL: [Self; 15] = *Self::VARIANTS.as_array().unwrap();
}

/// Decodes an IP packet, which begins with its IP header. Bytes after the length in the IP header are ignored: a link
/// pads short frames.
pub fn decode(packet: &[u8]) -> Result<Advert<'_>, AdvertError> {
    let packet = IpPacket::parse(packet)?;
    if is_invalid_source(packet.source) {
        return Err(AdvertError::Source);
    }
    if packet.hop_limit != HOP_LIMIT && packet.destination.is_multicast() {
        return Err(AdvertError::HopLimit);
    }
    let header: [u8; HEADER_LENGTH] = packet
        .payload
        .get(..HEADER_LENGTH)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(AdvertError::Truncated)?;
    let [first, vrid, priority, count, high, low, ..] = header;
    let version = match first >> 4 {
        2 => VrrpVersion::V2,
        3 => VrrpVersion::V3,
        _ => return Err(AdvertError::Version),
    };
    if first & 0xf != TYPE_ADVERTISEMENT {
        return Err(AdvertError::Type);
    }
    if vrid == 0 {
        return Err(AdvertError::Vrid);
    }
    let authentication = authentication(version, high, packet.has_authentication_header)?;
    let interval = match version {
        VrrpVersion::V2 => Duration::from_secs(u64::from(low)),
        // Twelve bits; the four bits above them are reserved.
        VrrpVersion::V3 => {
            Duration::from_millis(10 * u64::from(u16::from_be_bytes([high & 0xf, low])))
        }
    };
    if interval.is_zero() {
        return Err(AdvertError::Interval);
    }
    let Parts { message, address_bytes, trailer } = parts(version, count, &packet)?;
    // Over IPv6 the kernel computes the checksum, over everything. Over IPv4 keepalived leaves the trailer out.
    let covered = if packet.source.is_ipv4() { message } else { packet.payload };
    Ok(Advert {
        source: packet.source,
        destination: packet.destination,
        hop_limit: packet.hop_limit,
        version,
        vrid,
        priority,
        interval,
        authentication,
        address_bytes,
        signature: trailer.map(signature).transpose()?,
        checksum: checksum_coverage(version, &IpPacket { payload: covered, ..packet })?,
    })
}

/// The virtual router that a packet names although [`decode`] refuses it, and the kind of the packet; `None` if its IP part
/// is wrong, if it comes from another link, or if it is one of CARP, which has the protocol number of VRRP.
pub fn undecoded_router(packet: &[u8]) -> Option<(u8, VrrpFamily, AdvertKind)> {
    let packet = IpPacket::parse(packet).ok()?;
    let kind = AdvertKind::of(packet.destination);
    let is_foreign = packet.hop_limit != HOP_LIMIT && kind == AdvertKind::Multicast;
    let [first, vrid, _, third, ..] = *packet.payload else { return None };
    // The version 2 of CARP, and the length of its authentication in words.
    let is_carp = (first, third, packet.payload.len()) == (0x21, 7, 36);
    let is_usable = !is_carp && !is_foreign && !is_invalid_source(packet.source);
    is_usable.then(|| (vrid, VrrpFamily::of(packet.source), kind))
}

fn is_invalid_source(source: IpAddr) -> bool {
    source.is_unspecified() || source.is_multicast() || source == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// `kind` is the authentication type of version 2; version 3 has other bits there.
fn authentication(
    version: VrrpVersion,
    kind: u8,
    has_header: bool,
) -> Result<VrrpAuthentication, AdvertError> {
    match (version, kind, has_header) {
        (VrrpVersion::V2, 0, false) | (VrrpVersion::V3, _, false) => Ok(VrrpAuthentication::None),
        (VrrpVersion::V2, 1, false) => Ok(VrrpAuthentication::Password),
        (VrrpVersion::V2, 2, true) => Ok(VrrpAuthentication::AuthenticationHeader),
        _ => Err(AdvertError::Authentication),
    }
}

/// The VRRP part of a packet.
struct Parts<'a> {
    /// Everything but the trailer.
    message: &'a [u8],
    address_bytes: &'a [u8],
    trailer: Option<&'a [u8; TRAILER_LENGTH]>,
}

fn parts<'a>(
    version: VrrpVersion,
    count: u8,
    packet: &IpPacket<'a>,
) -> Result<Parts<'a>, AdvertError> {
    let family = VrrpFamily::of(packet.source);
    let end = HEADER_LENGTH + usize::from(count) * family.address_length();
    let rest = match (version, family) {
        (VrrpVersion::V2, VrrpFamily::V4) => AUTHENTICATION_LENGTH,
        _ => 0,
    };
    let (message, trailer) =
        packet.payload.split_at_checked(end + rest).ok_or(AdvertError::Length)?;
    let address_bytes = message.get(HEADER_LENGTH..end).ok_or(AdvertError::Length)?;
    let trailer = match trailer {
        [] => None,
        bytes => Some(bytes.as_array().ok_or(AdvertError::Length)?),
    };
    Ok(Parts { message, address_bytes, trailer })
}

fn signature(trailer: &[u8; TRAILER_LENGTH]) -> Result<Signature, AdvertError> {
    let [TRAILER_HMAC_SHA256, key_id, 0, 0, s3, s2, s1, s0, high, low, ..] = *trailer else {
        return Err(AdvertError::Trailer);
    };
    let seconds = u32::from_be_bytes([s3, s2, s1, s0]);
    // In units of 2^-16 s.
    let nanos = (u64::from(u16::from_be_bytes([high, low])) * 1_000_000_000) >> 16;
    let sent = Duration::from_secs(seconds.into()) + Duration::from_nanos(nanos);
    Ok(Signature { key_id, sent })
}

/// Checks the checksum. Over IPv6 it always covers the pseudo-header: the kernel computes it so for both versions.
fn checksum_coverage(
    version: VrrpVersion,
    packet: &IpPacket<'_>,
) -> Result<ChecksumCoverage, AdvertError> {
    let is_whole = |start: u32| sum_words(start, packet.payload) == 0xffff;
    if version == VrrpVersion::V2 && packet.source.is_ipv4() {
        return if is_whole(0) {
            Ok(ChecksumCoverage::Standard)
        } else {
            Err(AdvertError::Checksum)
        };
    }
    if is_whole(packet.pseudo_header_sum(packet.destination)) {
        return Ok(ChecksumCoverage::Standard);
    }
    if packet.source.is_ipv6() {
        return Err(AdvertError::Checksum);
    }
    if is_whole(packet.pseudo_header_sum(MULTICAST_GROUP)) {
        return Ok(ChecksumCoverage::MulticastPseudoHeader);
    }
    if is_whole(0) { Ok(ChecksumCoverage::WithoutPseudoHeader) } else { Err(AdvertError::Checksum) }
}

#[cfg(test)]
pub(crate) mod tests;
