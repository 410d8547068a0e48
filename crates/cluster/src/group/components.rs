// SPDX-License-Identifier: Apache-2.0
//! Divides the instances of a VRID into groups: instances with a common address belong together. Link-local addresses are
//! left out, see [`addresses`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{GroupMember, addresses};

/// Instances that are connected by common addresses.
pub(super) struct Component {
    /// The smallest address by which the members are compared; `None` if no member has an address.
    pub(super) smallest_address: Option<IpAddr>,
    /// In the order that they were given in.
    pub(super) members: Vec<GroupMember>,
}

/// The components, in the order of their smallest addresses. A member without an address is a component of its own.
pub(super) fn connected(members: Vec<GroupMember>) -> Vec<Component> {
    let mut sets = DisjointSets::new(members.len());
    let mut first_with: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        for address in addresses::compared(&member.record) {
            let first = *first_with.entry(address).or_insert(index);
            sets.join(first, index);
        }
    }
    let mut smallest: BTreeMap<usize, IpAddr> = BTreeMap::new();
    for (address, index) in &first_with {
        smallest.entry(sets.root(*index)).or_insert(*address);
    }
    let mut components = Vec::new();
    let mut with_address: BTreeMap<IpAddr, Vec<GroupMember>> = BTreeMap::new();
    for (index, member) in members.into_iter().enumerate() {
        match smallest.get(&sets.root(index)) {
            Some(address) => with_address.entry(*address).or_default().push(member),
            None => components.push(Component { smallest_address: None, members: vec![member] }),
        }
    }
    components.extend(
        with_address
            .into_iter()
            .map(|(address, members)| Component { smallest_address: Some(address), members }),
    );
    components
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
