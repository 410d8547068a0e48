//! Where an instance with several addresses stands, by what the kernel holds.
//!
//! ```text
//!   all of them held ──▶ primary        some ──▶ partial
//!   none, and a link gone or down ──▶ fault        none ──▶ backup
//! ```

use std::fmt;

use ipnet::IpNet;

use crate::LinkName;
use crate::announce::{LinkState, Survey};

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
pub enum Standing {
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

impl Standing {
    /// One word for it.
    pub fn word(&self) -> &'static str {
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
pub enum Holding {
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

impl fmt::Display for Holding {
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
pub fn holding(survey: &Survey, link: LinkName, cidr: IpNet) -> Holding {
    let mut best = Holding::Absent;
    for address in survey.addresses.iter().filter(|address| address.target.ip == cidr.addr()) {
        let Some(facts) = survey.link(address.target.link) else { continue };
        let found = match (facts.name == link, address.prefix == cidr.prefix_len()) {
            (true, true) if address.is_duplicate => Holding::Duplicate,
            (true, true) if address.is_tentative => Holding::Tentative,
            (true, true) => return Holding::Held,
            (true, false) => Holding::OtherPrefix(address.prefix),
            (false, _) => Holding::OtherLink(facts.name),
        };
        // What is nearest to what was meant says most.
        let is_nearer = !matches!(found, Holding::OtherLink(_)) || best == Holding::Absent;
        if is_nearer {
            best = found;
        }
    }
    best
}

/// Where the instance of `addresses` stands.
pub fn standing(addresses: &[(LinkName, IpNet)], survey: &Survey) -> Standing {
    let is_held =
        |(link, cidr): &&(LinkName, IpNet)| holding(survey, *link, *cidr) == Holding::Held;
    let held = addresses.iter().filter(is_held).count();
    match (held, addresses.len()) {
        (0, _) => {
            let fault = addresses.iter().find_map(|(link, _)| fault(survey, *link));
            fault.map_or(Standing::Backup, Standing::Fault)
        }
        (held, all) if held == all => Standing::Primary,
        (held, all) => Standing::Partial { held, all },
    }
}

fn fault(survey: &Survey, link: LinkName) -> Option<Fault> {
    let Some(facts) = survey.links.iter().find(|facts| facts.name == link) else {
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
    use crate::announce::{AddressFacts, LinkFacts, Target};

    fn link(text: &str) -> LinkName {
        text.parse().unwrap()
    }

    fn survey(state: LinkState, held: &[&str]) -> Survey {
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
                target: Target { link: index, ip: cidr.addr() },
                prefix: cidr.prefix_len(),
                is_tentative: false,
                is_duplicate: false,
            }
        };
        Survey { links: vec![facts], addresses: held.iter().map(address).collect() }
    }

    fn stands(survey: &Survey, addresses: &[&str]) -> Standing {
        let watched: Vec<_> =
            addresses.iter().map(|text| (link("eth0"), text.parse().unwrap())).collect();
        standing(&watched, survey)
    }

    #[test]
    fn all_some_or_none() {
        let two = ["10.0.0.1/24", "2001:db8::1/64"];
        assert_eq!(stands(&survey(LinkState::Working, &two), &two), Standing::Primary);
        let one = survey(LinkState::Working, &two[..1]);
        assert_eq!(stands(&one, &two), Standing::Partial { held: 1, all: 2 });
        assert_eq!(stands(&survey(LinkState::Working, &[]), &two), Standing::Backup);
    }

    #[test]
    fn another_prefix_length_and_an_address_in_dispute_do_not_count() {
        let held = survey(LinkState::Working, &["10.0.0.1/32"]);
        assert_eq!(stands(&held, &["10.0.0.1/24"]), Standing::Backup);
        let mut tentative = survey(LinkState::Working, &["2001:db8::1/64"]);
        tentative.addresses[0].is_tentative = true;
        assert_eq!(stands(&tentative, &["2001:db8::1/64"]), Standing::Backup);
    }

    #[test]
    fn an_address_that_is_not_where_it_should_be_is_found() {
        let found = |held: &[&str], wanted: &str, on: &str| {
            holding(&survey(LinkState::Working, held), link(on), wanted.parse().unwrap())
        };
        assert_eq!(found(&["10.0.0.1/24"], "10.0.0.1/24", "eth0"), Holding::Held);
        assert_eq!(found(&["10.0.0.1/32"], "10.0.0.1/24", "eth0"), Holding::OtherPrefix(32));
        let elsewhere = Holding::OtherLink(link("eth0"));
        assert_eq!(found(&["10.0.0.1/24"], "10.0.0.1/24", "eth9"), elsewhere);
        assert_eq!(found(&["10.0.0.2/24"], "10.0.0.1/24", "eth0"), Holding::Absent);
        assert_eq!(elsewhere.to_string(), "held on eth0 instead");
    }

    #[test]
    fn whoever_holds_nothing_and_could_not_is_at_fault() {
        let vip = ["10.0.0.1/24"];
        let down = stands(&survey(LinkState::Down, &[]), &vip);
        assert_eq!(down, Standing::Fault(Fault::LinkDown(link("eth0"))));
        let dark = stands(&survey(LinkState::NoCarrier, &[]), &vip);
        assert_eq!(dark, Standing::Fault(Fault::NoCarrier(link("eth0"))));
        let gone = standing(&[(link("eth9"), vip[0].parse().unwrap())], &Survey::default());
        assert_eq!(gone, Standing::Fault(Fault::NoLink(link("eth9"))));
        assert_eq!(gone.reason(), "eth9 does not exist");
        assert_eq!(stands(&survey(LinkState::Down, &vip), &vip), Standing::Primary, "it holds it");
    }
}
