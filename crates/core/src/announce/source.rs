// SPDX-License-Identifier: Apache-2.0
//! Whether an address may be announced, and with which link and Ethernet address.

use std::net::IpAddr;

use strum::VariantArray;

use crate::LinkName;
use crate::snapshot::{LinkAddress, LinkState, Mac, Snapshot};

/// The link from which an address is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceSource {
    /// The name of the link.
    pub name: LinkName,
    /// The Ethernet address of the link; the announcement maps the IP address to it.
    pub mac: Mac,
    /// Whether an IPv6 advertisement carries the router flag.
    pub is_router: bool,
}

/// Why an address is not announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, VariantArray, thiserror::Error)]
pub enum AnnounceRefusal {
    /// The link is the watched one: keepalived sends the announcements there.
    #[error("its link is the watched one, keepalived announces there")]
    WatchedLink,
    /// The link does not exist.
    #[error("its link does not exist")]
    NoLink,
    /// The link does not hold the address.
    #[error("the link does not hold it")]
    NotHeld,
    /// The address is not a unicast address.
    #[error("it is not the address of one station")]
    NotUnicast,
    /// The link is a loopback link.
    #[error("its link is a loopback")]
    Loopback,
    /// The link has no Ethernet address to announce.
    #[error("its link has no Ethernet address or resolves none")]
    NoMac,
    /// IPv6 duplicate address detection found another host with the address.
    #[error("another station has it (duplicate address detection)")]
    Duplicate,
    /// IPv6 duplicate address detection has not ended.
    #[error("duplicate address detection is under way")]
    Tentative,
    /// The link is administratively down.
    #[error("its link is down")]
    LinkDown,
    /// The link is up and has no carrier.
    #[error("its link has no carrier")]
    NoCarrier,
}

impl AnnounceRefusal {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 10] = *Self::VARIANTS.as_array().unwrap();

    /// Whether the reason can disappear while the kernel keeps the address. The announcement then waits.
    pub fn is_temporary(self) -> bool {
        match self {
            Self::Tentative | Self::LinkDown | Self::NoCarrier => true,
            Self::WatchedLink
            | Self::NoLink
            | Self::NotHeld
            | Self::NotUnicast
            | Self::Loopback
            | Self::NoMac
            | Self::Duplicate => false,
        }
    }
}

/// The link from which `target` is announced, or the reason why it must not be announced. `watched` is
/// the link that keepalived announces on, if there is one.
///
/// Permanent reasons are checked before temporary ones: waiting for a carrier is useless if the address
/// may not be announced with a carrier either.
pub fn announce_source(
    snapshot: &Snapshot,
    target: LinkAddress,
    watched: Option<LinkName>,
) -> Result<AnnounceSource, AnnounceRefusal> {
    let link = snapshot.link(target.link).ok_or(AnnounceRefusal::NoLink)?;
    if watched == Some(link.name) {
        return Err(AnnounceRefusal::WatchedLink);
    }
    if link.is_loopback {
        return Err(AnnounceRefusal::Loopback);
    }
    if !is_unicast(target.ip) {
        return Err(AnnounceRefusal::NotUnicast);
    }
    let address = snapshot.address(target).ok_or(AnnounceRefusal::NotHeld)?;
    let mac = link.mac.filter(|mac| mac.is_station()).ok_or(AnnounceRefusal::NoMac)?;
    if address.is_duplicate {
        return Err(AnnounceRefusal::Duplicate);
    }
    match link.state {
        LinkState::Down => Err(AnnounceRefusal::LinkDown),
        LinkState::NoCarrier => Err(AnnounceRefusal::NoCarrier),
        LinkState::Working if address.is_tentative => Err(AnnounceRefusal::Tentative),
        LinkState::Working => {
            Ok(AnnounceSource { name: link.name, mac, is_router: link.is_router })
        }
    }
}

/// Whether `ip` can belong to one interface. RFC 5227 §2.3 and RFC 4861 §7.2.6 define announcements
/// for such addresses only.
fn is_unicast(ip: IpAddr) -> bool {
    let is_special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast() || ip.octets()[0] >= 240);
    !is_special && !is_broadcast
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkIndex;
    use crate::snapshot::{AddressFacts, LinkFacts};

    const LINK: LinkIndex = LinkIndex(3);

    fn target(ip: &str) -> LinkAddress {
        LinkAddress { link: LINK, ip: ip.parse().unwrap() }
    }

    fn snapshot(ip: &str) -> Snapshot {
        let link = LinkFacts {
            link: LINK,
            name: "qg-1".parse().unwrap(),
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            state: LinkState::Working,
            is_loopback: false,
            is_dummy: false,
            is_router: true,
        };
        let address = AddressFacts {
            target: target(ip),
            prefix: 32,
            is_tentative: false,
            is_duplicate: false,
            protocol: 0,
        };
        Snapshot { links: vec![link], addresses: vec![address] }
    }

    fn refusal(snapshot: &Snapshot, ip: &str) -> Option<AnnounceRefusal> {
        announce_source(snapshot, target(ip), Some("ha-1".parse().unwrap())).err()
    }

    #[test]
    fn an_address_on_a_working_link_may_be_announced() {
        for ip in ["10.0.0.9", "2001:db8::9", "fe80::9"] {
            let source = announce_source(&snapshot(ip), target(ip), None).unwrap();
            assert_eq!(source.mac.to_string(), "02:00:00:00:00:09");
        }
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let ip = "10.0.0.9";
        let with = |change: fn(&mut Snapshot)| {
            let mut snapshot = snapshot(ip);
            change(&mut snapshot);
            refusal(&snapshot, ip)
        };
        assert_eq!(with(|_| {}), None);
        assert_eq!(with(|s| s.links.clear()), Some(AnnounceRefusal::NoLink));
        assert_eq!(with(|s| s.addresses.clear()), Some(AnnounceRefusal::NotHeld));
        assert_eq!(with(|s| s.links[0].is_loopback = true), Some(AnnounceRefusal::Loopback));
        assert_eq!(with(|s| s.links[0].mac = None), Some(AnnounceRefusal::NoMac));
        assert_eq!(with(|s| s.links[0].mac = Some(Mac([0; 6]))), Some(AnnounceRefusal::NoMac));
        assert_eq!(with(|s| s.links[0].mac = Some(Mac([255; 6]))), Some(AnnounceRefusal::NoMac));
        assert_eq!(with(|s| s.links[0].state = LinkState::Down), Some(AnnounceRefusal::LinkDown));
        assert_eq!(
            with(|s| s.links[0].state = LinkState::NoCarrier),
            Some(AnnounceRefusal::NoCarrier)
        );
        assert_eq!(with(|s| s.addresses[0].is_tentative = true), Some(AnnounceRefusal::Tentative));
        assert_eq!(with(|s| s.addresses[0].is_duplicate = true), Some(AnnounceRefusal::Duplicate));
        assert_eq!(
            with(|s| s.links[0].name = "ha-1".parse().unwrap()),
            Some(AnnounceRefusal::WatchedLink)
        );
        for ip in ["224.0.0.18", "255.255.255.255", "0.0.0.0", "127.0.0.1", "ff02::1", "::", "::1"]
        {
            assert_eq!(refusal(&snapshot(ip), ip), Some(AnnounceRefusal::NotUnicast), "{ip}");
        }
    }

    #[test]
    fn the_same_address_on_another_link_is_another_address() {
        let mut snapshot = snapshot("10.0.0.9");
        snapshot.addresses[0].target.link = LinkIndex(4);
        assert_eq!(refusal(&snapshot, "10.0.0.9"), Some(AnnounceRefusal::NotHeld));
    }

    #[test]
    fn only_link_state_and_detection_in_progress_are_temporary() {
        let temporary: Vec<_> =
            AnnounceRefusal::ALL.into_iter().filter(|reason| reason.is_temporary()).collect();
        assert_eq!(
            temporary,
            [AnnounceRefusal::Tentative, AnnounceRefusal::LinkDown, AnnounceRefusal::NoCarrier]
        );
    }
}
