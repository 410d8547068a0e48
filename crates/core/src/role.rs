// SPDX-License-Identifier: Apache-2.0
//! The role of an instance with several addresses, computed from a snapshot of its namespace.
//!
//! ```text
//!   all addresses held ──▶ primary                    some held ──▶ partial
//!   none held, a link missing or down ──▶ fault       none held ──▶ backup
//! ```
//!
//! Without addresses, the adverts decide ([`LinkWitness::role`](crate::witness::LinkWitness::role)).
//!
//! The links are those of the addresses and, unless `dont_track_primary` is set, the one of the adverts. A VMAC link is
//! judged by the link below it: keepalived creates it, brings it up, and removes it when it stops.

use std::fmt;

use ipnet::IpNet;

use crate::snapshot::{LinkState, Snapshot};
use crate::{LinkName, NeutronState};

/// Why an instance cannot hold its addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The namespace does not exist.
    #[error("its namespace does not exist")]
    NoNetns,
    /// A link does not exist.
    #[error("{0} does not exist")]
    NoLink(LinkName),
    /// A link is down.
    #[error("{0} is down")]
    LinkDown(LinkName),
    /// A link has no carrier.
    #[error("{0} has no carrier")]
    NoCarrier(LinkName),
}

/// The role of an instance on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The kernel holds all addresses of the instance.
    Primary,
    /// The kernel holds some addresses of the instance.
    Partial {
        /// Number of addresses that the kernel holds.
        held: usize,
        /// Number of addresses that the instance has.
        total: usize,
    },
    /// The kernel holds no address of the instance.
    Backup,
    /// The kernel holds no address of the instance, and cannot hold one.
    Fault(Fault),
    /// The kernel could not be queried, or adverts do not show the role of an instance without addresses; the text is the
    /// reason.
    Unknown(String),
}

impl Role {
    /// The name of the role in logs, JSON and the history.
    pub fn as_str(&self) -> &'static str {
        self.kind().word()
    }

    /// The state that Neutron's protocol has for this role; `None` where the agent's state must not change.
    ///
    /// Without any address the state is `backup`, whatever the reason. With some of the addresses it is
    /// neither `primary` nor `backup`.
    pub fn neutron_state(&self) -> Option<NeutronState> {
        match self {
            Self::Primary => Some(NeutronState::Primary),
            Self::Backup | Self::Fault(_) => Some(NeutronState::Backup),
            Self::Partial { .. } | Self::Unknown(_) => None,
        }
    }

    /// Details for an operator; empty for [`Self::Primary`] and [`Self::Backup`].
    pub fn reason(&self) -> String {
        match self {
            Self::Primary | Self::Backup => String::new(),
            Self::Partial { held, total } => format!("holds {held} of {total} addresses"),
            Self::Fault(fault) => fault.to_string(),
            Self::Unknown(reason) => reason.clone(),
        }
    }
}

/// Where one virtual address of an instance is in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// On the configured link, and usable.
    Held,
    /// On no link of the namespace.
    Absent,
    /// On the configured link; IPv6 duplicate address detection has not ended.
    Tentative,
    /// On the configured link, but IPv6 duplicate address detection found another host with it.
    Duplicate,
    /// On this link instead of the configured one.
    OtherLink(LinkName),
    /// On the configured link, with this prefix length instead of the configured one.
    OtherPrefix(u8),
}

impl fmt::Display for AddressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => write!(f, "held"),
            Self::Absent => write!(f, "not held"),
            Self::Tentative => write!(f, "not usable yet (duplicate address detection)"),
            Self::Duplicate => {
                write!(f, "not usable: another host has it (duplicate address detection)")
            }
            Self::OtherLink(link) => write!(f, "held on {link} instead"),
            Self::OtherPrefix(length) => write!(f, "held with prefix length {length} instead"),
        }
    }
}

/// Where the address `cidr`, which is configured on `link`, is in `snapshot`.
///
/// An address on another link that is a loopback or dummy link does not count: with direct routing of LVS, every real server
/// has the address there, and answers no ARP for it.
pub fn address_state(snapshot: &Snapshot, link: LinkName, cidr: IpNet) -> AddressState {
    let mut best = AddressState::Absent;
    for address in snapshot.addresses.iter().filter(|address| address.target.ip == cidr.addr()) {
        let Some(facts) = snapshot.link(address.target.link) else { continue };
        if facts.name != link && (facts.is_loopback || facts.is_dummy) {
            continue;
        }
        let state = match (facts.name == link, address.prefix == cidr.prefix_len()) {
            (true, true) if address.is_duplicate => AddressState::Duplicate,
            (true, true) if address.is_tentative => AddressState::Tentative,
            (true, true) => return AddressState::Held,
            (true, false) => AddressState::OtherPrefix(address.prefix),
            (false, _) => AddressState::OtherLink(facts.name),
        };
        // The address on the configured link is more relevant than the same address on another link.
        let is_more_relevant =
            !matches!(state, AddressState::OtherLink(_)) || best == AddressState::Absent;
        if is_more_relevant {
            best = state;
        }
    }
    best
}

/// The role of an instance that has these `addresses`, each with its configured link. While a link in `required` does not
/// work, the instance cannot hold them.
pub fn role_of(
    addresses: &[(LinkName, IpNet)],
    required: impl IntoIterator<Item = LinkName>,
    snapshot: &Snapshot,
) -> Role {
    let is_held = |(link, cidr): &&(LinkName, IpNet)| {
        address_state(snapshot, *link, *cidr) == AddressState::Held
    };
    let held = addresses.iter().filter(is_held).count();
    match (held, addresses.len()) {
        (0, _) => {
            let fault = required.into_iter().find_map(|link| link_fault(snapshot, link));
            fault.map_or(Role::Backup, Role::Fault)
        }
        (held, total) if held == total => Role::Primary,
        (held, total) => Role::Partial { held, total },
    }
}

fn link_fault(snapshot: &Snapshot, link: LinkName) -> Option<Fault> {
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
            is_dummy: false,
            is_router: false,
        };
        let address = |text: &&str| {
            let cidr: IpNet = text.parse().unwrap();
            AddressFacts {
                target: LinkAddress { link: index, ip: cidr.addr() },
                prefix: cidr.prefix_len(),
                is_tentative: false,
                is_duplicate: false,
                protocol: 0,
            }
        };
        Snapshot { links: vec![facts], addresses: held.iter().map(address).collect() }
    }

    fn role(snapshot: &Snapshot, addresses: &[&str]) -> Role {
        let watched: Vec<_> =
            addresses.iter().map(|text| (link("eth0"), text.parse().unwrap())).collect();
        role_of(&watched, [link("eth0")], snapshot)
    }

    #[test]
    fn the_role_depends_on_how_many_addresses_are_held() {
        let two = ["10.0.0.1/24", "2001:db8::1/64"];
        assert_eq!(role(&snapshot(LinkState::Working, &two), &two), Role::Primary);
        let one = snapshot(LinkState::Working, &two[..1]);
        assert_eq!(role(&one, &two), Role::Partial { held: 1, total: 2 });
        assert_eq!(role(&snapshot(LinkState::Working, &[]), &two), Role::Backup);
    }

    #[test]
    fn a_tentative_address_or_another_prefix_length_does_not_count() {
        let held = snapshot(LinkState::Working, &["10.0.0.1/32"]);
        assert_eq!(role(&held, &["10.0.0.1/24"]), Role::Backup);
        let mut tentative = snapshot(LinkState::Working, &["2001:db8::1/64"]);
        tentative.addresses[0].is_tentative = true;
        assert_eq!(role(&tentative, &["2001:db8::1/64"]), Role::Backup);
    }

    #[test]
    fn a_misplaced_address_is_reported_with_its_link_or_prefix_length() {
        let state = |held: &[&str], wanted: &str, on: &str| {
            address_state(&snapshot(LinkState::Working, held), link(on), wanted.parse().unwrap())
        };
        assert_eq!(state(&["10.0.0.1/24"], "10.0.0.1/24", "eth0"), AddressState::Held);
        assert_eq!(state(&["10.0.0.1/32"], "10.0.0.1/24", "eth0"), AddressState::OtherPrefix(32));
        let other_link = AddressState::OtherLink(link("eth0"));
        assert_eq!(state(&["10.0.0.1/24"], "10.0.0.1/24", "eth9"), other_link);
        assert_eq!(state(&["10.0.0.2/24"], "10.0.0.1/24", "eth0"), AddressState::Absent);
        assert_eq!(other_link.to_string(), "held on eth0 instead");
    }

    #[test]
    fn an_instance_without_addresses_on_a_broken_link_is_in_fault() {
        let vip = ["10.0.0.1/24"];
        let down = role(&snapshot(LinkState::Down, &[]), &vip);
        assert_eq!(down, Role::Fault(Fault::LinkDown(link("eth0"))));
        let no_carrier = role(&snapshot(LinkState::NoCarrier, &[]), &vip);
        assert_eq!(no_carrier, Role::Fault(Fault::NoCarrier(link("eth0"))));
        let no_link = role(&Snapshot::default(), &vip);
        assert_eq!(no_link, Role::Fault(Fault::NoLink(link("eth0"))));
        assert_eq!(no_link.reason(), "eth0 does not exist");
        assert_eq!(
            role(&snapshot(LinkState::Down, &vip), &vip),
            Role::Primary,
            "a held address counts on a link that is down"
        );
    }

    #[test]
    fn an_instance_whose_advert_link_is_down_cannot_take_over_although_the_link_of_its_address_works()
     {
        let vip = [(link("eth0"), "10.0.0.1/24".parse().unwrap())];
        let mut snapshot = snapshot(LinkState::Working, &[]);
        let eth1 = LinkFacts { name: link("eth1"), state: LinkState::Down, ..snapshot.links[0] };
        snapshot.links.push(LinkFacts { link: LinkIndex(3), ..eth1 });
        let role = |required: &[&str]| role_of(&vip, required.iter().map(|it| link(it)), &snapshot);
        assert_eq!(role(&["eth1", "eth0"]), Role::Fault(Fault::LinkDown(link("eth1"))));
        assert_eq!(role(&["eth2", "eth0"]), Role::Fault(Fault::NoLink(link("eth2"))));
        assert_eq!(role(&["eth0"]), Role::Backup, "dont_track_primary");
    }

    #[test]
    fn a_vmac_link_that_keepalived_has_removed_or_not_brought_up_yet_is_no_fault() {
        let vip = "10.0.0.1/24";
        let role = |base, vmac: Option<LinkState>, held: &[&str]| {
            let mut snapshot = snapshot(base, held);
            snapshot.addresses.iter_mut().for_each(|address| address.target.link = LinkIndex(3));
            let of_vmac =
                LinkFacts { link: LinkIndex(3), name: link("vrrp.51"), ..snapshot.links[0] };
            snapshot.links.extend(vmac.map(|state| LinkFacts { state, ..of_vmac }));
            role_of(&[(link("vrrp.51"), vip.parse().unwrap())], [link("eth0")], &snapshot)
        };
        let works = LinkState::Working;
        assert_eq!(role(works, Some(works), &[vip]), Role::Primary);
        assert_eq!(role(works, Some(LinkState::Down), &[]), Role::Backup);
        assert_eq!(role(works, None, &[]), Role::Backup);
        let down = Role::Fault(Fault::LinkDown(link("eth0")));
        assert_eq!(role(LinkState::Down, None, &[]), down);
        assert_eq!(role(LinkState::Down, Some(works), &[]), down);
    }

    #[test]
    fn an_address_of_a_backup_on_a_loopback_or_dummy_link_is_not_misplaced() {
        let state = |is_loopback, is_dummy, on: &str| {
            let mut snapshot = snapshot(LinkState::Working, &["10.0.0.1/32"]);
            let facts = &mut snapshot.links[0];
            (facts.is_loopback, facts.is_dummy) = (is_loopback, is_dummy);
            address_state(&snapshot, link(on), "10.0.0.1/24".parse().unwrap())
        };
        assert_eq!(state(true, false, "eth9"), AddressState::Absent);
        assert_eq!(state(false, true, "eth9"), AddressState::Absent);
        assert_eq!(state(false, false, "eth9"), AddressState::OtherLink(link("eth0")));
        assert_eq!(state(false, true, "eth0"), AddressState::OtherPrefix(32), "configured there");
    }

    #[test]
    fn neutrons_state_for_a_fault_is_backup_and_for_a_partial_role_unknown() {
        assert_eq!(Role::Fault(Fault::NoNetns).neutron_state(), Some(NeutronState::Backup));
        assert_eq!(Role::Partial { held: 1, total: 2 }.neutron_state(), None);
    }
}
