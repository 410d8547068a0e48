//! VRRP instances, and the addresses they move.

use std::time::Duration;

use ipnet::IpNet;

use super::blocks::{check_braces, visit};
use super::definitions::UNKNOWN;
use super::draft::{DEFAULT_PRIORITY, Draft, DraftAddress, Drafts, Family, Given};
use super::globals::Globals;
use super::keywords::{FIRST, VRRP};
use super::lines::{Files, Source, read};
use super::problem::{FilePosition, Problem, Weight};
use super::vmac::{Links, Placement};
use crate::{LinkName, NetnsName};

/// `priority` of an instance in state `MASTER` that has none.
const OWNER_PRIORITY: u8 = 255;

/// The most addresses that fit into an advertisement: of IPv4 the count has one byte, of IPv6 a frame of
/// 1500 bytes holds fewer. keepalived moves the others to the excluded ones.
const MAX_ADVERTISED_V4: usize = 255;
const MAX_ADVERTISED_V6: usize = 89;

/// An address that an instance moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualAddress {
    /// The address and its prefix length; the longest if none is given.
    pub cidr: IpNet,
    /// The link it is put on.
    pub link: LinkName,
    /// Whether advertisements do not name it.
    pub is_excluded: bool,
}

/// A `vrrp_instance`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VrrpInstance {
    /// Where it begins.
    pub place: FilePosition,
    /// Its name.
    pub name: String,
    /// The link its advertisements go over; with a VMAC, the link that the VMAC is on.
    pub interface: LinkName,
    /// `virtual_router_id`; `None` if it is random.
    pub vrid: Option<u8>,
    /// The priority it starts with; `None` if it is random.
    pub priority: Option<u8>,
    /// `advert_int` as it is written; `None` if it is not.
    pub advert_interval: Option<Duration>,
    /// Its addresses, in order; at least one.
    pub addresses: Vec<VirtualAddress>,
    /// Whether a default route for IPv6 moves with them.
    pub has_ipv6_gateway: bool,
}

/// What a configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The namespace keepalived goes to; its own if there is none.
    pub netns: Option<NetnsName>,
    /// The instances that can be watched.
    pub instances: Vec<VrrpInstance>,
    /// Whether keepalived does not start with it.
    pub is_refused: bool,
}

/// Reads `first` and the files it includes, on the node with this configuration id. An instance that
/// cannot be watched is left out, and a problem says why.
pub fn configuration(
    first: Source,
    files: &mut dyn Files,
    config_id: &str,
    problems: &mut Vec<Problem>,
) -> Configuration {
    let lines = read(first, files, config_id, problems);
    check_braces(&lines, problems);
    let mut globals = Globals::default();
    visit(&lines, FIRST, &mut globals);
    let mut drafts = Drafts::new(globals.is_dynamic);
    visit(&lines, VRRP, &mut drafts);
    problems.append(&mut globals.problems);
    problems.append(&mut drafts.problems);
    let mut completion = Completion {
        globals: &globals,
        links: Links::new(&globals, &drafts.instances, interfaces(&drafts.instances)),
        problems,
    };
    let drafts = &drafts.instances;
    let instances = drafts.iter().filter_map(|draft| completion.instance(draft)).collect();
    completion.check_vrids(drafts);
    let is_refused = problems.iter().any(|problem| problem.weight == Weight::Refused);
    Configuration { netns: globals.netns, instances, is_refused }
}

/// The links that must exist before keepalived starts.
fn interfaces(drafts: &[Draft]) -> impl Iterator<Item = LinkName> {
    drafts.iter().flat_map(|draft| {
        let addresses = draft.advertised.iter().chain(&draft.excluded);
        let own = match &draft.interface {
            Given::Value(link) => Some(*link),
            _ => None,
        };
        own.into_iter().chain(addresses.filter_map(|address| address.dev))
    })
}

struct Completion<'a> {
    globals: &'a Globals,
    links: Links<'a>,
    problems: &'a mut Vec<Problem>,
}

impl Completion<'_> {
    fn instance(&mut self, draft: &Draft) -> Option<VrrpInstance> {
        let name = &draft.name;
        if name.contains(UNKNOWN) {
            let text = "the name of this vrrp_instance is random, and cannot be known";
            return self.leave_out(draft, text.to_owned());
        }
        let vrid = match &draft.vrid {
            Given::Value(vrid) => Some(*vrid),
            Given::Unknown => {
                let text = format!("virtual_router_id of {name} is random, and cannot be known");
                self.note(draft, text);
                None
            }
            Given::Nothing => {
                return self.refuse(draft, format!("{name} has no virtual_router_id"));
            }
            Given::Unusable(problem) => return self.say(problem.clone()),
        };
        let interface = match &draft.interface {
            Given::Value(interface) => *interface,
            Given::Nothing => return self.refuse(draft, format!("{name} has no interface")),
            Given::Unusable(problem) => return self.say(problem.clone()),
            Given::Unknown => {
                let text = format!("the interface of {name} is random, and cannot be known");
                return self.leave_out(draft, text);
            }
        };
        if draft.priority == Given::Unknown {
            self.note(draft, format!("priority of {name} is random, and cannot be known"));
        }
        let family = draft.family.unwrap_or(Family::V4);
        if draft.advertised.is_empty() && self.needs_address(draft, family) {
            return self.refuse(draft, format!("{name} has no virtual_ipaddress"));
        }
        let Some(placement) = self.links.place(draft, family, interface, vrid) else {
            return self
                .leave_out(draft, format!("the name of the VMAC of {name} cannot be known"));
        };
        let addresses = self.addresses(&placement);
        if addresses.is_empty() {
            return self.leave_out(draft, format!("{name} has no virtual address to watch"));
        }
        Some(VrrpInstance {
            place: draft.place,
            name: name.clone(),
            interface,
            vrid,
            priority: priority(draft),
            advert_interval: draft.advert_interval,
            addresses,
            has_ipv6_gateway: draft.has_ipv6_gateway,
        })
    }

    fn addresses(&mut self, placement: &Placement<'_>) -> Vec<VirtualAddress> {
        let Placement { draft, family, .. } = *placement;
        let most = if family == Family::V4 { MAX_ADVERTISED_V4 } else { MAX_ADVERTISED_V6 };
        let advertised = draft.advertised.len().min(most);
        let (advertised, surplus) = draft.advertised.split_at(advertised);
        let excluded = draft.excluded.iter().chain(surplus).map(|address| (address, true));
        let all = advertised.iter().map(|address| (address, false)).chain(excluded);
        let mut addresses = Vec::with_capacity(draft.advertised.len() + draft.excluded.len());
        for (address, is_excluded) in all {
            let DraftAddress { cidr, place, .. } = *address;
            if let Some(link) = self.links.link_of(placement, address) {
                addresses.push(VirtualAddress { cidr, link, is_excluded });
            } else {
                let text = format!("the name of the VMAC of {cidr} cannot be known");
                self.problems.push(Problem::note(place, text));
            }
        }
        // A node has thousands of these.
        addresses.shrink_to_fit();
        addresses
    }

    fn needs_address(&self, draft: &Draft, family: Family) -> bool {
        let is_v6 = family == Family::V6;
        let version = draft.version.or(if is_v6 { Some(3) } else { self.globals.version });
        is_v6 || version == Some(3) || draft.is_strict.unwrap_or(self.globals.is_strict)
    }

    /// Two instances of one family with one virtual router id cannot share a link.
    fn check_vrids(&mut self, drafts: &[Draft]) {
        for (index, draft) in drafts.iter().enumerate() {
            let (Given::Value(vrid), Given::Value(interface)) = (&draft.vrid, &draft.interface)
            else {
                continue;
            };
            let is_same = |other: &&Draft| {
                other.vrid == draft.vrid
                    && other.interface == draft.interface
                    && other.family.unwrap_or(Family::V4) == draft.family.unwrap_or(Family::V4)
                    && other.group == draft.group
                    // A group of IPv6 belongs to a link.
                    && (draft.family != Some(Family::V6) || draft.shares_link(other))
                    && !other.is_unicast
                    && !draft.is_unicast
            };
            if let Some(other) = drafts[..index].iter().find(is_same) {
                let (one, two) = (&other.name, &draft.name);
                let text =
                    format!("{one} and {two} both have virtual_router_id {vrid} on {interface}");
                self.refuse::<()>(draft, text);
            }
        }
    }

    fn refuse<T>(&mut self, draft: &Draft, text: String) -> Option<T> {
        self.say(Problem::refused(draft.place, text))
    }

    fn leave_out<T>(&mut self, draft: &Draft, text: String) -> Option<T> {
        self.say(Problem::new(draft.place, text))
    }

    fn note(&mut self, draft: &Draft, text: String) {
        self.problems.push(Problem::note(draft.place, text));
    }

    /// No instance, for this reason.
    fn say<T>(&mut self, problem: Problem) -> Option<T> {
        self.problems.push(problem);
        None
    }
}

fn priority(draft: &Draft) -> Option<u8> {
    match draft.priority {
        Given::Value(priority) => Some(priority),
        Given::Unknown => None,
        _ if draft.is_master => Some(OWNER_PRIORITY),
        _ => Some(DEFAULT_PRIORITY),
    }
}

#[cfg(test)]
mod tests;
