// SPDX-License-Identifier: Apache-2.0
//! The virtual addresses of a `vrrp_instance` and their options.

use ipnet::IpNet;

use super::Family;
use crate::LinkName;
use crate::keepalived::blocks::Statement;
use crate::keepalived::definitions::RANDOM_MARK;
use crate::keepalived::numbers::cidr;
use crate::keepalived::problem::{FilePosition, Message, Problem, Problems};

/// An address of an instance, before its link is decided.
#[derive(Debug, Clone, Copy)]
pub(in crate::keepalived) struct DraftAddress {
    pub(in crate::keepalived) position: FilePosition,
    pub(in crate::keepalived) cidr: IpNet,
    /// `dev LINK`.
    pub(in crate::keepalived) dev: Option<LinkName>,
    pub(in crate::keepalived) uses_vmac: bool,
}

impl DraftAddress {
    pub(in crate::keepalived) fn family(&self) -> Family {
        Family::of(self.cidr)
    }
}

/// Reads `IP[/LENGTH] [dev LINK] [brd IP] [label NAME] [peer IP] [use_vmac] …`. An address that keepalived
/// ignores becomes a problem.
pub(super) fn parse(
    entry: Statement<'_>,
    has_dynamic_interfaces: bool,
    problems: &mut Problems,
) -> Option<DraftAddress> {
    let Statement { position, words } = entry;
    let text = &words[0];
    if words.iter().any(|word| word.contains(RANDOM_MARK)) {
        problems.push(Problem::note(
            position,
            "the address cannot be known: keepalived chooses it when it starts",
        ));
        return None;
    }
    let Some(cidr) = cidr(text) else {
        let message =
            Message::quoting("expected an address", format!("{text:?} is not an address"));
        problems.push(Problem::ignored(position, message));
        return None;
    };
    let mut address = DraftAddress { position, cidr, dev: None, uses_vmac: false };
    let problem = match options(&mut address, &words[1..]) {
        Ok(()) => return Some(address),
        Err(Rejection::NoLink(reason)) if !has_dynamic_interfaces => {
            let text = format!("{text} is on a link that cannot exist, {reason}");
            Problem::refused(
                position,
                Message::quoting("an address is on a link that cannot exist", text),
            )
        }
        Err(Rejection::NoLink(reason) | Rejection::Option(reason)) => {
            let text = format!("keepalived ignores {text}: {reason}");
            Problem::ignored(
                position,
                Message::quoting("keepalived ignores an address: an option is invalid", text),
            )
        }
    };
    problems.push(problem);
    None
}

/// Why keepalived does not use an address.
enum Rejection {
    /// No link can have the name after `dev`.
    NoLink(String),
    /// An option is invalid.
    Option(String),
}

/// Applies the options after an address.
fn options(address: &mut DraftAddress, words: &[String]) -> Result<(), Rejection> {
    let mut words = words.iter();
    let is_ipv4 = address.family() == Family::V4;
    while let Some(word) = words.next() {
        let mut value =
            || words.next().ok_or_else(|| Rejection::Option(format!("{word} needs a value")));
        match word.as_str() {
            "dev" => {
                let name = value()?;
                if address.dev.is_some() {
                    return Err(Rejection::Option("more than one dev".to_owned()));
                }
                let rejected = |error| Rejection::NoLink(format!("dev {name:?}: {error}"));
                address.dev = Some(name.parse().map_err(rejected)?);
            }
            "brd" | "broadcast" => {
                let broadcast = value()?;
                let is_valid = matches!(broadcast.as_str(), "+" | "-")
                    || broadcast.parse::<std::net::Ipv4Addr>().is_ok();
                if !is_ipv4 || !is_valid {
                    let reason = format!("invalid broadcast address {broadcast:?}");
                    return Err(Rejection::Option(reason));
                }
            }
            "label" if value()?.len() > LinkName::LIMIT => {
                let reason = format!("label longer than {} bytes", LinkName::LIMIT);
                return Err(Rejection::Option(reason));
            }
            "peer" => {
                let peer = value()?.parse::<std::net::IpAddr>().ok().map(IpNet::from);
                // The prefix length belongs to the peer. A peer is written without one, so the longest applies.
                if let Some(peer) = peer.filter(|peer| Family::of(*peer) == address.family()) {
                    address.cidr = IpNet::new(address.cidr.addr(), peer.max_prefix_len())
                        .unwrap_or(address.cidr);
                }
            }
            "scope" | "preferred_lft" => drop(value()?),
            "use_vmac" => address.uses_vmac = true,
            _ => {}
        }
    }
    Ok(())
}
