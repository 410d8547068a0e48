//! Where an instance with several addresses stands, by what the kernel holds.
//!
//! ```text
//!   all of them held ──▶ primary        some ──▶ partial
//!   none, and a link gone or down ──▶ fault        none ──▶ backup
//! ```

use std::fmt;

use ipnet::IpNet;

use crate::LinkName;
use crate::snapshot::{LinkState, Snapshot};

/// What keeps an instance from being anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The namespace does not exist.
    NoNetns,
    /// A link does not exist.
    NoLink(LinkName),
    /// A link is down.
    LinkDown(LinkName),
    /// A link has no carrier.
    NoCarrier(LinkName),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNetns => write!(f, "its namespace does not exist"),
            Self::NoLink(link) => write!(f, "{link} does not exist"),
            Self::LinkDown(link) => write!(f, "{link} is down"),
            Self::NoCarrier(link) => write!(f, "{link} has no carrier"),
        }
    }
}

/// What an instance is on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It holds all its addresses.
    Primary,
    /// It holds some.
    Partial {
        /// How many.
        held: usize,
        /// Of how many.
        all: usize,
    },
    /// It holds none.
    Backup,
    /// It holds none, and could not.
    Fault(Fault),
    /// It could not be found out.
    Unknown(String),
}

impl Role {
    /// One word for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Partial { .. } => "partial",
            Self::Backup => "backup",
            Self::Fault(_) => "fault",
            Self::Unknown(_) => "unknown",
        }
    }

    /// What there is to say besides.
    pub fn reason(&self) -> String {
        match self {
            Self::Primary | Self::Backup => String::new(),
            Self::Partial { held, all } => format!("holds {held} of {all} addresses"),
            Self::Fault(fault) => fault.to_string(),
            Self::Unknown(why) => why.clone(),
        }
    }
}

/// What has become of one address that an instance should hold when it is primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// It is there, and in use.
    Held,
    /// It is nowhere.
    Absent,
    /// It is there, and not in use yet: somebody might have it already (DAD).
    Tentative,
    /// It is there, and somebody else has it.
    Duplicate,
    /// It is on another link.
    OtherLink(LinkName),
    /// It is there, with another prefix length.
    OtherPrefix(u8),
}

impl fmt::Display for AddressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => write!(f, "held"),
            Self::Absent => write!(f, "not held"),
            Self::Tentative => write!(f, "not usable yet (duplicate address detection)"),
            Self::Duplicate => write!(f, "not usable: somebody else has it"),
            Self::OtherLink(link) => write!(f, "held on {link} instead"),
            Self::OtherPrefix(length) => write!(f, "held with prefix length {length} instead"),
        }
    }
}

/// What has become of `cidr`, which should be on `link`.
pub fn address_state(snapshot: &Snapshot, link: LinkName, cidr: IpNet) -> AddressState {
    let mut best = AddressState::Absent;
    for address in snapshot.addresses.iter().filter(|address| address.target.ip == cidr.addr()) {
        let Some(facts) = snapshot.link(address.target.link) else { continue };
        let found = match (facts.name == link, address.prefix == cidr.prefix_len()) {
            (true, true) if address.is_duplicate => AddressState::Duplicate,
            (true, true) if address.is_tentative => AddressState::Tentative,
            (true, true) => return AddressState::Held,
            (true, false) => AddressState::OtherPrefix(address.prefix),
            (false, _) => AddressState::OtherLink(facts.name),
        };
        // What is nearest to what was meant says most.
        let is_nearer =
            !matches!(found, AddressState::OtherLink(_)) || best == AddressState::Absent;
        if is_nearer {
            best = found;
        }
    }
    best
}

/// Where the instance of `addresses` stands.
pub fn role_of(addresses: &[(LinkName, IpNet)], snapshot: &Snapshot) -> Role {
    let is_held = |(link, cidr): &&(LinkName, IpNet)| {
        address_state(snapshot, *link, *cidr) == AddressState::Held
    };
    let held = addresses.iter().filter(is_held).count();
    match (held, addresses.len()) {
        (0, _) => {
            let fault = addresses.iter().find_map(|(link, _)| fault(snapshot, *link));
            fault.map_or(Role::Backup, Role::Fault)
        }
        (held, all) if held == all => Role::Primary,
        (held, all) => Role::Partial { held, all },
    }
}

fn fault(snapshot: &Snapshot, link: LinkName) -> Option<Fault> {
    let Some(facts) = snapshot.links.iter().find(|facts| facts.name == link) else {
        return Some(Fault::NoLink(link));
    };
    match facts.state {
        LinkState::Down => Some(Fault::LinkDown(link)),
        LinkState::NoCarrier => Some(Fault::NoCarrier(link)),
        LinkState::Working => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkIndex;
    use crate::snapshot::{AddressFacts, LinkAddress, LinkFacts};

    fn link(text: &str) -> LinkName {
        text.parse().unwrap()
    }

    fn snapshot(state: LinkState, held: &[&str]) -> Snapshot {
        let index = LinkIndex(2);
        let facts = LinkFacts {
            link: index,
            name: link("eth0"),
            mac: None,
            state,
            is_loopback: false,
            is_router: false,
        };
        let address = |text: &&str| {
            let cidr: IpNet = text.parse().unwrap();
            AddressFacts {
                target: LinkAddress { link: index, ip: cidr.addr() },
                prefix: cidr.prefix_len(),
                is_tentative: false,
                is_duplicate: false,
            }
        };
        Snapshot { links: vec![facts], addresses: held.iter().map(address).collect() }
    }

    fn stands(snapshot: &Snapshot, addresses: &[&str]) -> Role {
        let watched: Vec<_> =
            addresses.iter().map(|text| (link("eth0"), text.parse().unwrap())).collect();
        role_of(&watched, snapshot)
    }

    #[test]
    fn all_some_or_none() {
        let two = ["10.0.0.1/24", "2001:db8::1/64"];
        assert_eq!(stands(&snapshot(LinkState::Working, &two), &two), Role::Primary);
        let one = snapshot(LinkState::Working, &two[..1]);
        assert_eq!(stands(&one, &two), Role::Partial { held: 1, all: 2 });
        assert_eq!(stands(&snapshot(LinkState::Working, &[]), &two), Role::Backup);
    }

    #[test]
    fn another_prefix_length_and_an_address_in_dispute_do_not_count() {
        let held = snapshot(LinkState::Working, &["10.0.0.1/32"]);
        assert_eq!(stands(&held, &["10.0.0.1/24"]), Role::Backup);
        let mut tentative = snapshot(LinkState::Working, &["2001:db8::1/64"]);
        tentative.addresses[0].is_tentative = true;
        assert_eq!(stands(&tentative, &["2001:db8::1/64"]), Role::Backup);
    }

    #[test]
    fn an_address_that_is_not_where_it_should_be_is_found() {
        let found = |held: &[&str], wanted: &str, on: &str| {
            address_state(&snapshot(LinkState::Working, held), link(on), wanted.parse().unwrap())
        };
        assert_eq!(found(&["10.0.0.1/24"], "10.0.0.1/24", "eth0"), AddressState::Held);
        assert_eq!(found(&["10.0.0.1/32"], "10.0.0.1/24", "eth0"), AddressState::OtherPrefix(32));
        let elsewhere = AddressState::OtherLink(link("eth0"));
        assert_eq!(found(&["10.0.0.1/24"], "10.0.0.1/24", "eth9"), elsewhere);
        assert_eq!(found(&["10.0.0.2/24"], "10.0.0.1/24", "eth0"), AddressState::Absent);
        assert_eq!(elsewhere.to_string(), "held on eth0 instead");
    }

    #[test]
    fn whoever_holds_nothing_and_could_not_is_at_fault() {
        let vip = ["10.0.0.1/24"];
        let down = stands(&snapshot(LinkState::Down, &[]), &vip);
        assert_eq!(down, Role::Fault(Fault::LinkDown(link("eth0"))));
        let dark = stands(&snapshot(LinkState::NoCarrier, &[]), &vip);
        assert_eq!(dark, Role::Fault(Fault::NoCarrier(link("eth0"))));
        let gone = role_of(&[(link("eth9"), vip[0].parse().unwrap())], &Snapshot::default());
        assert_eq!(gone, Role::Fault(Fault::NoLink(link("eth9"))));
        assert_eq!(gone.reason(), "eth9 does not exist");
        assert_eq!(stands(&snapshot(LinkState::Down, &vip), &vip), Role::Primary, "it holds it");
    }
}
