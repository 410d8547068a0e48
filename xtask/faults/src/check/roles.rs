// SPDX-License-Identifier: Apache-2.0
//! The roles of each instance on each node over time, from the recording of `ip monitor`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::FaultsError;
use crate::moment::{Micros, parse};
use crate::setup::InstanceFacts;

/// A period in which a value did not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span<T> {
    pub start: Micros,
    pub end: Micros,
    pub value: T,
}

impl<T> Span<T> {
    pub fn overlaps(&self, start: Micros, end: Micros) -> bool {
        self.start < end && start < self.end
    }
}

/// One line of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KernelEvent {
    Link {
        name: String,
        is_up: bool,
    },
    LinkGone {
        name: String,
    },
    Address {
        link: String,
        cidr: String,
    },
    AddressGone {
        link: String,
        cidr: String,
    },
    /// The address exists, but duplicate address detection has not ended or has failed.
    AddressUnusable {
        link: String,
        cidr: String,
    },
}

/// The links and addresses of one node.
#[derive(Default)]
struct KernelState {
    /// Whether each existing link is up and has a carrier.
    links: BTreeMap<String, bool>,
    addresses: BTreeSet<(String, String)>,
}

/// The roles and the state of the link of one node.
pub struct NodeTimeline {
    /// For each instance, its roles.
    pub roles: Vec<Vec<Span<&'static str>>>,
    /// Whether the node's link is up and has a carrier.
    pub link: Vec<Span<bool>>,
}

/// When the configured addresses of the first instance changed; the first entry is the beginning.
pub type ConfiguredAddresses = [(Micros, Vec<String>)];

/// Reads the recordings of one node.
pub fn read(
    directory: &Path,
    instances: &[InstanceFacts],
    configured: &ConfiguredAddresses,
    end: Micros,
) -> Result<NodeTimeline, FaultsError> {
    let mut state = KernelState::default();
    for line in std::fs::read_to_string(directory.join("initial.log"))?.lines() {
        if let Some(event) = event(line) {
            state.apply(event);
        }
    }
    let mut events: Vec<(Micros, Option<KernelEvent>)> = Vec::new();
    for line in std::fs::read_to_string(directory.join("monitor.log"))?.lines() {
        let Some((time, rest)) = line.strip_prefix('[').and_then(|line| line.split_once("] "))
        else {
            continue;
        };
        let at = parse(time).ok_or_else(|| FaultsError(format!("no time in {line:?}")))?;
        events.extend(event(rest).map(|event| (at, Some(event))));
    }
    // A change of the configuration changes the role too.
    events.extend(configured.iter().map(|(at, _)| (*at, None)));
    events.sort_by_key(|(at, _)| *at);
    let mut timeline = NodeTimeline { roles: vec![Vec::new(); instances.len()], link: Vec::new() };
    for (at, event) in events {
        if state.add_unreported(event.as_ref()) {
            timeline.push(at - 1, &state, instances, configured);
        }
        if let Some(event) = event {
            state.apply(event);
        }
        timeline.push(at, &state, instances, configured);
    }
    timeline.roles.iter_mut().for_each(|spans| close(spans, end));
    close(&mut timeline.link, end);
    Ok(timeline)
}

impl NodeTimeline {
    /// Adds the state of a moment.
    fn push(
        &mut self,
        at: Micros,
        state: &KernelState,
        instances: &[InstanceFacts],
        configured: &ConfiguredAddresses,
    ) {
        for (index, instance) in instances.iter().enumerate() {
            let addresses = match configured.iter().rev().find(|(since, _)| *since <= at) {
                Some((_, addresses)) if index == 0 => addresses,
                _ => &instance.addresses,
            };
            push(&mut self.roles[index], at, state.role(instance, addresses));
        }
        push(&mut self.link, at, state.is_up(crate::setup::LINK));
    }
}

fn push<T: PartialEq>(spans: &mut Vec<Span<T>>, at: Micros, value: T) {
    match spans.last_mut() {
        Some(last) if last.value == value => {}
        Some(last) => {
            last.end = at;
            spans.push(Span { start: at, end: Micros::MAX, value });
        }
        None => spans.push(Span { start: at, end: Micros::MAX, value }),
    }
}

fn close<T>(spans: &mut [Span<T>], end: Micros) {
    if let Some(last) = spans.last_mut() {
        last.end = end;
    }
}

impl KernelState {
    fn apply(&mut self, event: KernelEvent) {
        match event {
            KernelEvent::Link { name, is_up } => {
                self.links.insert(name, is_up);
            }
            KernelEvent::LinkGone { name } => {
                self.addresses.retain(|(link, _)| *link != name);
                self.links.remove(&name);
            }
            KernelEvent::Address { link, cidr } => {
                self.addresses.insert((link, cidr));
            }
            KernelEvent::AddressGone { link, cidr }
            | KernelEvent::AddressUnusable { link, cidr } => {
                self.addresses.remove(&(link, cidr));
            }
        }
    }

    /// Adds an address that the kernel reports as removed, and has not reported as added: it reports a new IPv6 address
    /// a little later, and not at all if the address is removed before. Returns whether there was such an address.
    fn add_unreported(&mut self, event: Option<&KernelEvent>) -> bool {
        let Some(KernelEvent::AddressGone { link, cidr }) = event else { return false };
        self.links.contains_key(link) && self.addresses.insert((link.clone(), cidr.clone()))
    }

    fn is_up(&self, link: &str) -> bool {
        self.links.get(link).copied().unwrap_or(false)
    }

    /// The role as the reference defines it: docs/reference/cli.md, "Roles".
    fn role(&self, instance: &InstanceFacts, addresses: &[String]) -> &'static str {
        let link = &instance.address_link;
        let is_held = |cidr: &&String| self.addresses.contains(&(link.clone(), (*cidr).clone()));
        match addresses.iter().filter(is_held).count() {
            held if held == addresses.len() => "primary",
            0 if self.is_up(link) && self.is_up(crate::setup::LINK) => "backup",
            0 => "fault",
            _ => "partial",
        }
    }
}

/// Parses one line of `ip -o link`, `ip -o address` or `ip -o monitor`.
fn event(line: &str) -> Option<KernelEvent> {
    let (is_gone, line) = match line.strip_prefix("Deleted ") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let mut words = line.split_whitespace().skip(1);
    let name = words.next()?;
    if let Some(name) = name.strip_suffix(':') {
        let name = name.split('@').next().unwrap_or(name).to_owned();
        let flags = words.next()?.trim_matches(['<', '>']);
        let has = |flag: &str| flags.split(',').any(|other| other == flag);
        // The kernel reports a port that leaves a bridge as a deleted entry of the family AF_BRIDGE; nodes have none.
        let is_up = has("UP") && has("LOWER_UP");
        return Some(if is_gone {
            KernelEvent::LinkGone { name }
        } else {
            KernelEvent::Link { name, is_up }
        });
    }
    let (device, family, cidr) = (name.to_owned(), words.next()?, words.next()?.to_owned());
    if !matches!(family, "inet" | "inet6") {
        return None;
    }
    let is_usable = !line.split_whitespace().any(|word| matches!(word, "tentative" | "dadfailed"));
    Some(match (is_gone, is_usable) {
        (true, _) => KernelEvent::AddressGone { link: device, cidr },
        (false, false) => KernelEvent::AddressUnusable { link: device, cidr },
        (false, true) => KernelEvent::Address { link: device, cidr },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ip_are_parsed() {
        let up = event(
            "3: eth0@if4: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 master br0 state UP \\    link/ether",
        );
        assert_eq!(up, Some(KernelEvent::Link { name: "eth0".to_owned(), is_up: true }));
        let down = event("3: eth0@if4: <NO-CARRIER,BROADCAST,UP> mtu 1500");
        assert_eq!(down, Some(KernelEvent::Link { name: "eth0".to_owned(), is_up: false }));
        let gone =
            event("Deleted 2: eth0    inet6 fe80::1:100/64 scope link \\       valid_lft forever");
        let (link, cidr) = ("eth0".to_owned(), "fe80::1:100/64".to_owned());
        assert_eq!(gone, Some(KernelEvent::AddressGone { link, cidr }));
        assert_eq!(
            event("2: eth0    inet6 fd09::1/64 scope global tentative")
                .map(|event| { matches!(event, KernelEvent::AddressUnusable { .. }) }),
            Some(true)
        );
    }

    #[test]
    fn roles_follow_addresses_and_links() {
        let instance = InstanceFacts {
            name: "VI_1".to_owned(),
            vrid: 51,
            addresses: vec!["10.9.0.101/24".to_owned(), "10.9.0.102/24".to_owned()],
            address_link: "eth0".to_owned(),
        };
        let mut state = KernelState::default();
        let mut role = |line: &str| {
            state.apply(event(line).unwrap());
            state.role(&instance, &instance.addresses)
        };
        assert_eq!(role("2: eth0@if4: <UP,LOWER_UP> mtu"), "backup");
        assert_eq!(role("2: eth0    inet 10.9.0.101/24 scope global"), "partial");
        assert_eq!(role("2: eth0    inet 10.9.0.102/24 scope global"), "primary");
        assert_eq!(role("2: eth0@if4: <NO-CARRIER,UP> mtu"), "primary");
        assert_eq!(role("Deleted 2: eth0    inet 10.9.0.101/24 scope global"), "partial");
        assert_eq!(role("Deleted 2: eth0    inet 10.9.0.102/24 scope global"), "fault");
    }
}
