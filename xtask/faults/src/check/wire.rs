// SPDX-License-Identifier: Apache-2.0
//! Reads a capture file and decodes the VRRP adverts in it. This decoder shares no code with that of the product.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::moment::Micros;
use crate::{FaultsError, LabResult};

/// Whether a host sent a packet to its port, or the switch delivered it through the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortDirection {
    FromHost,
    ToHost,
}

/// An advert at a port of the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireAdvert {
    pub at: Micros,
    /// The index of the port's link.
    pub port: u32,
    pub direction: PortDirection,
    pub source: IpAddr,
    pub is_unicast: bool,
    pub vrid: u8,
    pub priority: u8,
    pub addresses: Vec<IpAddr>,
}

const SLL2: u32 = 276;
/// Lengths of the headers of the file, of a record, and of `LINUX_SLL2`.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const SLL2_HEADER: usize = 20;

/// Reads all adverts of a file with the link type `LINUX_SLL2`, in the order of their times.
pub fn read(path: &Path) -> LabResult<Vec<WireAdvert>> {
    let mut adverts = parse(&std::fs::read(path)?)?;
    adverts.sort_by_key(|advert| advert.at);
    Ok(adverts)
}

fn parse(bytes: &[u8]) -> LabResult<Vec<WireAdvert>> {
    // A number of microseconds has one unit, a number of nanoseconds has 1000.
    let units = match (little(bytes, 0), little(bytes, 20) & 0xffff) {
        (0xa1b2_c3d4, SLL2) if bytes.len() >= FILE_HEADER => 1,
        (0xa1b2_3c4d, SLL2) if bytes.len() >= FILE_HEADER => 1000,
        _ => return Err(FaultsError("no capture file with the type LINUX_SLL2".to_owned())),
    };
    let mut adverts = Vec::new();
    let mut rest = &bytes[FILE_HEADER..];
    // The last record may be cut off: the recorder was killed.
    while rest.len() >= RECORD_HEADER {
        let length = usize::try_from(little(rest, 8))?;
        let Some(packet) = rest.get(RECORD_HEADER..RECORD_HEADER + length) else { break };
        let at = i64::from(little(rest, 0)) * 1_000_000 + i64::from(little(rest, 4)) / units;
        adverts.extend(frame(packet, at));
        rest = &rest[RECORD_HEADER + length..];
    }
    Ok(adverts)
}

/// The advert in one captured packet; `None` if it is not one.
fn frame(packet: &[u8], at: Micros) -> Option<WireAdvert> {
    const OUTGOING: u8 = 4;
    let header = packet.get(..SLL2_HEADER)?;
    let port = u32::from_be_bytes(header[4..8].try_into().ok()?);
    let direction =
        if header[10] == OUTGOING { PortDirection::ToHost } else { PortDirection::FromHost };
    let ip = &packet[SLL2_HEADER..];
    let ((source, vrrp), is_unicast) = match ip.first()? >> 4 {
        4 => (ipv4(ip)?, ip[16] >> 4 != 0xe),
        6 => (ipv6(ip)?, ip[24] != 0xff),
        _ => return None,
    };
    // RFC 3768, section 5.1, and RFC 5798, section 5.1.
    let head = vrrp.get(..8)?;
    if !matches!(head[0], 0x21 | 0x31) {
        return None;
    }
    let size = if source.is_ipv4() { 4 } else { 16 };
    let list = vrrp.get(8..8 + usize::from(head[3]) * size)?;
    let addresses = list.chunks_exact(size).filter_map(address).collect();
    let (vrid, priority) = (head[1], head[2]);
    Some(WireAdvert { at, port, direction, source, is_unicast, vrid, priority, addresses })
}

/// The source and the VRRP packet of an IPv4 packet.
fn ipv4(ip: &[u8]) -> Option<(IpAddr, &[u8])> {
    let header = usize::from(ip[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes(ip.get(2..4)?.try_into().ok()?));
    let (source, payload) = (address(ip.get(12..16)?)?, ip.get(header..total)?);
    match ip[9] {
        112 => Some((source, payload)),
        // An authentication header: its length is in units of four bytes, without the first two.
        51 => Some((source, payload.get((usize::from(*payload.get(1)?) + 2) * 4..)?)),
        _ => None,
    }
}

/// The source and the VRRP packet of an IPv6 packet.
fn ipv6(ip: &[u8]) -> Option<(IpAddr, &[u8])> {
    let length = usize::from(u16::from_be_bytes(ip.get(4..6)?.try_into().ok()?));
    let (source, payload) = (address(ip.get(8..24)?)?, ip.get(40..40 + length)?);
    (ip[6] == 112).then_some((source, payload))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(bytes).map(|ipv4| Ipv4Addr::from(ipv4).into()).ok();
    ipv4.or_else(|| Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()))
}

fn little(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capture with one advert of version 2 that left through the link 7.
    fn capture() -> Vec<u8> {
        let mut packet = vec![0x08, 0x00, 0, 0, 0, 0, 0, 7, 0, 1, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0];
        packet.extend([0x45, 0xc0, 0, 40, 0, 1, 0, 0, 255, 112, 0, 0, 10, 9, 0, 1, 224, 0, 0, 18]);
        packet.extend([0x21, 51, 150, 1, 0, 1, 0, 0, 10, 9, 0, 101, 0, 0, 0, 0, 0, 0, 0, 0]);
        let length = u32::try_from(packet.len()).unwrap();
        let numbers = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, SLL2, 100, 250, length, length];
        let mut file: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
        file.extend(packet);
        file
    }

    #[test]
    fn an_advert_is_decoded_with_its_port_and_direction() {
        let adverts = parse(&capture()).ok().unwrap();
        assert_eq!(
            adverts,
            [WireAdvert {
                at: 100_000_250,
                port: 7,
                direction: PortDirection::ToHost,
                source: "10.9.0.1".parse().unwrap(),
                is_unicast: false,
                vrid: 51,
                priority: 150,
                addresses: vec!["10.9.0.101".parse().unwrap()],
            }]
        );
    }

    #[test]
    fn a_cut_off_record_is_left_out() {
        let file = capture();
        for length in FILE_HEADER..file.len() {
            assert_eq!(parse(&file[..length]).ok().unwrap(), [], "{length}");
        }
        assert!(parse(&file[..10]).is_err());
    }
}
