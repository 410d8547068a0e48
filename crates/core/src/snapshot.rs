//! What the kernel says of links and addresses, and whether an announcement would be true.

use std::fmt;
use std::net::IpAddr;

use crate::{LinkIndex, LinkName};

/// One address on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkAddress {
    /// The link.
    pub link: LinkIndex,
    /// The address, without its prefix length.
    pub ip: IpAddr,
}

/// A link-layer address of an Ethernet station.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether a station could have it: neither zero nor a group's.
    pub fn is_station(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            let colon = if place == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Whether anything gets through a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// The administrator has it down.
    Down,
    /// It is up, and there is nothing at the other end.
    NoCarrier,
    /// It is up, with a carrier.
    Working,
}

/// A link, as far as announcing is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFacts {
    /// Its identity.
    pub link: LinkIndex,
    /// Its name.
    pub name: LinkName,
    /// `None` where there are no Ethernet addresses, or no address resolution.
    pub mac: Option<Mac>,
    /// Whether anything gets through.
    pub state: LinkState,
    /// Nobody is at the other end, ever.
    pub is_loopback: bool,
    /// This is a router for IPv6, and must say so (RFC 4861 §7.2.5).
    pub is_router: bool,
}

/// An address, as far as announcing is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressFacts {
    /// Where it is.
    pub target: LinkAddress,
    /// Its prefix length.
    pub prefix: u8,
    /// IPv6: duplicate address detection is under way.
    pub is_tentative: bool,
    /// IPv6: somebody else has it.
    pub is_duplicate: bool,
}

/// Why an address is not announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnnounceRefusal {
    /// The link is the watched one: keepalived speaks for that.
    WatchedLink,
    /// The link does not exist, or not any more.
    NoLink,
    /// The address is not on the link, or not any more.
    NotHeld,
    /// Not the address of one station.
    NotUnicast,
    /// The link leads nowhere.
    Loopback,
    /// There is no Ethernet address to announce.
    NoMac,
    /// Duplicate address detection found another holder.
    Duplicate,
    /// Duplicate address detection has not ended.
    Tentative,
    /// The link is down.
    LinkDown,
    /// The link is up and has no carrier.
    NoCarrier,
}

impl AnnounceRefusal {
    /// All reasons, in order.
    pub const ALL: [Self; 10] = [
        Self::WatchedLink,
        Self::NoLink,
        Self::NotHeld,
        Self::NotUnicast,
        Self::Loopback,
        Self::NoMac,
        Self::Duplicate,
        Self::Tentative,
        Self::LinkDown,
        Self::NoCarrier,
    ];

    /// Whether waiting helps.
    pub fn is_passing(self) -> bool {
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

impl fmt::Display for AnnounceRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WatchedLink => "its link is the watched one, keepalived announces there",
            Self::NoLink => "its link does not exist",
            Self::NotHeld => "the link does not hold it",
            Self::NotUnicast => "it is not the address of one station",
            Self::Loopback => "its link is a loopback",
            Self::NoMac => "its link has no Ethernet address or resolves none",
            Self::Duplicate => "another station has it (duplicate address detection)",
            Self::Tentative => "duplicate address detection is under way",
            Self::LinkDown => "its link is down",
            Self::NoCarrier => "its link has no carrier",
        })
    }
}

/// Who may speak for an address, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceSource {
    /// The link's name.
    pub name: LinkName,
    /// The link's address.
    pub mac: Mac,
    /// Whether it is a router.
    pub is_router: bool,
}

/// Every link and address of a namespace, at one time.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The links.
    pub links: Vec<LinkFacts>,
    /// The addresses, sorted by target once [`Self::settle`] was called.
    pub addresses: Vec<AddressFacts>,
}

impl Snapshot {
    /// Puts the addresses in order, so that each is found quickly among thousands.
    pub fn settle(&mut self) {
        self.addresses.sort_unstable_by_key(|address| address.target);
    }

    /// The link with this index.
    pub fn link(&self, link: LinkIndex) -> Option<&LinkFacts> {
        self.links.iter().find(|facts| facts.link == link)
    }

    /// Who may announce `target`, or why nobody may. Reasons that do not pass come first: it
    /// makes no sense to wait for a carrier that will not help.
    pub fn announce_source(
        &self,
        target: LinkAddress,
        watched: Option<LinkName>,
    ) -> Result<AnnounceSource, AnnounceRefusal> {
        let link = self.link(target.link).ok_or(AnnounceRefusal::NoLink)?;
        if watched == Some(link.name) {
            return Err(AnnounceRefusal::WatchedLink);
        }
        if link.is_loopback {
            return Err(AnnounceRefusal::Loopback);
        }
        if !is_unicast(target.ip) {
            return Err(AnnounceRefusal::NotUnicast);
        }
        let found = self.addresses.binary_search_by_key(&target, |address| address.target);
        let address = found.map_err(|_gap| AnnounceRefusal::NotHeld)?;
        let address = &self.addresses[address];
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
}

/// RFC 5227 §2.3 and RFC 4861 §7.2.6 speak of addresses of one interface only.
fn is_unicast(ip: IpAddr) -> bool {
    let is_special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast() || ip.octets()[0] >= 240);
    !is_special && !is_broadcast
}

#[cfg(test)]
mod tests {
    use super::*;

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
            is_router: true,
        };
        let address = AddressFacts {
            target: target(ip),
            prefix: 32,
            is_tentative: false,
            is_duplicate: false,
        };
        Snapshot { links: vec![link], addresses: vec![address] }
    }

    fn refused(snapshot: &Snapshot, ip: &str) -> Option<AnnounceRefusal> {
        snapshot.announce_source(target(ip), Some("ha-1".parse().unwrap())).err()
    }

    #[test]
    fn what_the_kernel_holds_on_a_link_that_works_may_be_announced() {
        for ip in ["10.0.0.9", "2001:db8::9", "fe80::9"] {
            let speaker = snapshot(ip).announce_source(target(ip), None).unwrap();
            assert_eq!(speaker.mac.to_string(), "02:00:00:00:00:09");
        }
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let ip = "10.0.0.9";
        let with = |change: fn(&mut Snapshot)| {
            let mut snapshot = snapshot(ip);
            change(&mut snapshot);
            refused(&snapshot, ip)
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
        for group in
            ["224.0.0.18", "255.255.255.255", "0.0.0.0", "127.0.0.1", "ff02::1", "::", "::1"]
        {
            assert_eq!(
                refused(&snapshot(group), group),
                Some(AnnounceRefusal::NotUnicast),
                "{group}"
            );
        }
    }

    #[test]
    fn the_same_address_on_another_link_is_another_address() {
        let mut snapshot = snapshot("10.0.0.9");
        snapshot.addresses[0].target.link = LinkIndex(4);
        assert_eq!(refused(&snapshot, "10.0.0.9"), Some(AnnounceRefusal::NotHeld));
    }

    #[test]
    fn only_what_passes_is_waited_for() {
        let passing: Vec<_> = AnnounceRefusal::ALL.into_iter().filter(|r| r.is_passing()).collect();
        assert_eq!(
            passing,
            [AnnounceRefusal::Tentative, AnnounceRefusal::LinkDown, AnnounceRefusal::NoCarrier]
        );
    }
}
