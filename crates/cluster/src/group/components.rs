// SPDX-License-Identifier: Apache-2.0
//! Divides the instances of a VRID into groups: instances with a common address belong together. Link-local addresses are
//! left out, see [`addresses`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{GroupMember, addresses};

/// Instances that are connected by common addresses.
pub(super) struct Component {
    /// The address that names the group; `None` if no member has an address.
    pub(super) address: Option<IpAddr>,
    /// In the order that they were given in.
    pub(super) members: Vec<GroupMember>,
}

/// The components, in the order of the addresses that name them. A member without an address is a component of its own.
pub(super) fn connected(members: Vec<GroupMember>, is_ipv6: bool) -> Vec<Component> {
    let mut sets = DisjointSets::new(members.len());
    let mut first_with: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        for address in addresses::compared(&member.record) {
            let first = *first_with.entry(address).or_insert(index);
            sets.join(first, index);
        }
    }
    let mut by_root: BTreeMap<usize, Vec<GroupMember>> = BTreeMap::new();
    for (index, member) in members.into_iter().enumerate() {
        by_root.entry(sets.root(index)).or_default().push(member);
    }
    let components = by_root.into_values();
    let mut components: Vec<Component> =
        components.map(|members| Component { address: name(&members, is_ipv6), members }).collect();
    components.sort_by_key(|component| component.address);
    components
}

/// The address that names a group: the naming address of most members; of several, the smallest.
fn name(members: &[GroupMember], is_ipv6: bool) -> Option<IpAddr> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for member in members {
        let own = member.record.addresses.iter().map(ipnet::IpNet::addr);
        if let Some(address) = addresses::naming_address(own, is_ipv6) {
            *counts.entry(address).or_default() += 1;
        }
    }
    // Of several maxima, `max_by_key` returns the last one: here the smallest address.
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(address, _)| address)
}

/// Sets of numbers that can be joined.
struct DisjointSets {
    /// Another number of the same set; a number that names itself represents its set.
    parents: Vec<usize>,
}

impl DisjointSets {
    fn new(len: usize) -> Self {
        Self { parents: (0..len).collect() }
    }

    fn root(&mut self, of: usize) -> usize {
        let mut number = of;
        while self.parents[number] != number {
            // Each number on the way gets a shorter way.
            self.parents[number] = self.parents[self.parents[number]];
            number = self.parents[number];
        }
        number
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.parents[one.max(other)] = one.min(other);
    }
}
