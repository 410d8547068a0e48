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

/// Whether `link` holds `cidr`, in use.
pub fn is_held(survey: &Survey, link: LinkName, cidr: IpNet) -> bool {
    survey.addresses.iter().any(|address| {
        let is_there = survey.link(address.target.link).is_some_and(|facts| facts.name == link);
        let is_usable = !address.is_tentative && !address.is_duplicate;
        is_there
            && is_usable
            && (address.target.ip, address.prefix) == (cidr.addr(), cidr.prefix_len())
    })
}

/// Where the instance of `addresses` stands.
pub fn standing(addresses: &[(LinkName, IpNet)], survey: &Survey) -> Standing {
    let held = addresses.iter().filter(|(link, cidr)| is_held(survey, *link, *cidr)).count();
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
