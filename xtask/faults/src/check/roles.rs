// SPDX-License-Identifier: Apache-2.0
//! The roles of each instance on each node over time, from the recording of `ip monitor`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::periods::{Span, push};
use crate::moment::{Micros, parse};
use crate::setup::{InstanceFacts, LINK};
use crate::{FaultsError, LabResult};

/// One line of the recording.
#[derive(Debug, PartialEq, Eq)]
struct KernelEvent {
    link: String,
    /// The address with its prefix length; `None` for the link itself.
    cidr: Option<String>,
    state: KernelState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KernelState {
    /// A link is up and has a carrier; an address can be used.
    Usable,
    /// A link is down; duplicate address detection of an address has not ended or has failed.
    Unusable,
    Gone,
}

/// The links and addresses of one node.
#[derive(Default)]
struct KernelTables {
    /// Whether each existing link is usable.
    links: BTreeMap<String, bool>,
    /// Pairs of a link and an address.
    addresses: BTreeSet<(String, String)>,
}

/// The roles and the state of the link of one node.
#[derive(Default)]
pub struct NodeTimeline {
    /// For each instance, its roles.
    pub roles: Vec<Vec<Span<&'static str>>>,
    /// Whether the node's links of the data network and of the adverts are up and have a carrier.
    pub link: Vec<Span<bool>>,
}

/// Reads the recordings of one node. `configured` has the addresses of the first instance from each change on.
pub fn read(
    directory: &Path,
    instances: &[InstanceFacts],
    configured: &[(Micros, Vec<String>)],
    end: Micros,
) -> LabResult<NodeTimeline> {
    let mut tables = KernelTables::default();
    for line in std::fs::read_to_string(directory.join("initial.log"))?.lines() {
        tables.apply(event(line));
    }
    let mut events: Vec<(Micros, Option<KernelEvent>)> = Vec::new();
    for line in std::fs::read_to_string(directory.join("monitor.log"))?.lines() {
        let stamped = line.strip_prefix('[').and_then(|line| line.split_once("] "));
        let Some((time, rest)) = stamped else { continue };
        let at = parse(time).ok_or_else(|| FaultsError(format!("no time in {line:?}")))?;
        events.extend(event(rest).map(|event| (at, Some(event))));
    }
    // A change of the configuration changes the role too.
    events.extend(configured.iter().map(|(at, _)| (*at, None)));
    events.sort_by_key(|(at, _)| *at);
    let mut timeline = NodeTimeline { roles: vec![Vec::new(); instances.len()], link: Vec::new() };
    let mut add = |at: Micros, tables: &KernelTables| {
        for (index, instance) in instances.iter().enumerate() {
            let own = configured.iter().rev().find(|(since, _)| index == 0 && *since <= at);
            let addresses = own.map_or(&instance.addresses, |(_, addresses)| addresses);
            let role = tables.role(instance, addresses);
            push(&mut timeline.roles[index], at, end, role);
        }
        push(&mut timeline.link, at, end, tables.are_up(&instances[0]));
    };
    for (at, event) in events {
        if event.as_ref().is_some_and(|event| tables.add_unreported(event)) {
            add(at - 1, &tables);
        }
        tables.apply(event);
        add(at, &tables);
    }
    Ok(timeline)
}

impl KernelTables {
    fn apply(&mut self, event: Option<KernelEvent>) {
        let Some(KernelEvent { link, cidr, state }) = event else { return };
        match (cidr, state) {
            (None, KernelState::Gone) => {
                self.addresses.retain(|(other, _)| *other != link);
                self.links.remove(&link);
            }
            (None, state) => drop(self.links.insert(link, state == KernelState::Usable)),
            (Some(cidr), KernelState::Usable) => drop(self.addresses.insert((link, cidr))),
            (Some(cidr), _) => drop(self.addresses.remove(&(link, cidr))),
        }
    }

    /// Adds an address that the kernel reports as removed, and has not reported as added: it reports a new IPv6 address
    /// a little later, and not at all if the address is removed before. Returns whether there was such an address.
    fn add_unreported(&mut self, event: &KernelEvent) -> bool {
        let (Some(cidr), KernelState::Gone) = (&event.cidr, event.state) else { return false };
        self.links.contains_key(&event.link)
            && self.addresses.insert((event.link.clone(), cidr.clone()))
    }

    fn is_up(&self, link: &str) -> bool {
        self.links.get(link).copied().unwrap_or(false)
    }

    /// Whether the links of the data network and of the adverts are usable.
    fn are_up(&self, instance: &InstanceFacts) -> bool {
        self.is_up(LINK) && self.is_up(&instance.advert_link)
    }

    /// The role as the reference defines it: docs/reference/cli.md, "Roles". The link of a VMAC decides no fault.
    fn role(&self, instance: &InstanceFacts, addresses: &[String]) -> &'static str {
        let link = &instance.address_link;
        let is_held = |cidr: &&String| self.addresses.contains(&(link.clone(), (*cidr).clone()));
        match addresses.iter().filter(is_held).count() {
            held if held == addresses.len() => "primary",
            0 if self.are_up(instance) => "backup",
            0 => "fault",
            _ => "partial",
        }
    }
}

/// Parses one line of `ip -o link`, `ip -o address` or `ip -o monitor`.
fn event(text: &str) -> Option<KernelEvent> {
    let deleted = text.strip_prefix("Deleted ");
    let mut words = deleted.unwrap_or(text).split_whitespace().skip(1);
    let name = words.next()?;
    let state = |is_usable: bool| match (deleted.is_some(), is_usable) {
        (true, _) => KernelState::Gone,
        (false, true) => KernelState::Usable,
        (false, false) => KernelState::Unusable,
    };
    if let Some(name) = name.strip_suffix(':') {
        let link = name.split('@').next().unwrap_or(name).to_owned();
        let flags: Vec<&str> = words.next()?.trim_matches(['<', '>']).split(',').collect();
        let is_up = flags.contains(&"UP") && flags.contains(&"LOWER_UP");
        return Some(KernelEvent { link, cidr: None, state: state(is_up) });
    }
    if !matches!(words.next()?, "inet" | "inet6") {
        return None;
    }
    let cidr = Some(words.next()?.to_owned());
    let is_usable = !words.any(|word| matches!(word, "tentative" | "dadfailed"));
    Some(KernelEvent { link: name.to_owned(), cidr, state: state(is_usable) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::recording::examples::run;

    fn parsed(line: &str) -> Option<(String, Option<String>, KernelState)> {
        event(line).map(|event| (event.link, event.cidr, event.state))
    }

    #[test]
    fn lines_of_ip_are_parsed() {
        let link = |state| Some(("eth0".to_owned(), None, state));
        let up = "3: eth0@if4: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 master br0 state UP \\    link/ether";
        assert_eq!(parsed(up), link(KernelState::Usable));
        let down = "3: eth0@if4: <NO-CARRIER,BROADCAST,UP> mtu 1500";
        assert_eq!(parsed(down), link(KernelState::Unusable));
        assert_eq!(parsed(&format!("Deleted {down}")), link(KernelState::Gone));
        let address = |cidr: &str, state| Some(("eth0".to_owned(), Some(cidr.to_owned()), state));
        let gone = "Deleted 2: eth0    inet6 fe80::1:100/64 scope link \\       valid_lft forever";
        assert_eq!(parsed(gone), address("fe80::1:100/64", KernelState::Gone));
        let tentative = "2: eth0    inet6 fd09::1/64 scope global tentative";
        assert_eq!(parsed(tentative), address("fd09::1/64", KernelState::Unusable));
    }

    #[test]
    fn roles_follow_addresses_and_links() {
        let addresses = ["10.9.0.101/24".to_owned(), "10.9.0.102/24".to_owned()];
        let instance = &run().setup.instances[0];
        let mut tables = KernelTables::default();
        let mut role = |line: &str| {
            tables.apply(event(line));
            tables.role(instance, &addresses)
        };
        assert_eq!(role("2: eth0@if4: <UP,LOWER_UP> mtu"), "backup");
        assert_eq!(role("2: eth0    inet 10.9.0.101/24 scope global"), "partial");
        assert_eq!(role("2: eth0    inet 10.9.0.102/24 scope global"), "primary");
        assert_eq!(role("2: eth0@if4: <NO-CARRIER,UP> mtu"), "primary");
        assert_eq!(role("Deleted 2: eth0    inet 10.9.0.101/24 scope global"), "partial");
        assert_eq!(role("Deleted 2: eth0    inet 10.9.0.102/24 scope global"), "fault");
    }

    #[test]
    fn a_vmac_link_that_is_down_or_gone_is_no_fault_while_the_link_below_it_works() {
        let addresses = ["10.9.0.101/24".to_owned()];
        let instance = InstanceFacts {
            address_link: "vrrp.51".to_owned(),
            ..run().setup.instances[0].clone()
        };
        let mut tables = KernelTables::default();
        let mut role = |line: &str| {
            tables.apply(event(line));
            tables.role(&instance, &addresses)
        };
        assert_eq!(role("2: eth0@if4: <UP,LOWER_UP> mtu"), "backup");
        assert_eq!(role("3: vrrp.51@eth0: <BROADCAST> mtu"), "backup");
        assert_eq!(role("3: vrrp.51@eth0: <UP,LOWER_UP> mtu"), "backup");
        assert_eq!(role("3: vrrp.51    inet 10.9.0.101/24 scope global"), "primary");
        assert_eq!(role("Deleted 3: vrrp.51@eth0: <BROADCAST> mtu"), "backup");
        assert_eq!(role("2: eth0@if4: <NO-CARRIER,UP> mtu"), "fault");
    }
}
