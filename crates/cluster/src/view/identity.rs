// SPDX-License-Identifier: Apache-2.0
//! The nodes and epochs of role records. Each record has the number of one of them instead of two texts.

use std::collections::HashMap;

use crate::key::ClusterName;

/// The node and the epoch of a role.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RoleIdentity {
    pub(super) name: ClusterName,
    pub(super) epoch: Box<str>,
}

/// The number of an identity in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdentityNumber(pub(super) usize);

#[derive(Debug, Clone)]
struct CountedIdentity {
    identity: RoleIdentity,
    /// The number of records that use it.
    records: usize,
}

/// The identities in use. A node has more than one only while it changes its epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct IdentityTable {
    places: Vec<Option<CountedIdentity>>,
    numbers: HashMap<RoleIdentity, usize>,
    free: Vec<usize>,
}

impl IdentityTable {
    /// The number of identities.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn identity(&self, number: IdentityNumber) -> Option<&RoleIdentity> {
        self.places.get(number.0)?.as_ref().map(|counted| &counted.identity)
    }

    /// Counts a record of this node and epoch.
    pub(super) fn add(&mut self, name: &ClusterName, epoch: &str) -> IdentityNumber {
        let identity = RoleIdentity { name: name.clone(), epoch: epoch.into() };
        if let Some(place) = self.numbers.get(&identity).copied() {
            if let Some(counted) = &mut self.places[place] {
                counted.records += 1;
            }
            return IdentityNumber(place);
        }
        let counted = Some(CountedIdentity { identity: identity.clone(), records: 1 });
        let place = self.free.pop().unwrap_or(self.places.len());
        match self.places.get_mut(place) {
            Some(free) => *free = counted,
            None => self.places.push(counted),
        }
        self.numbers.insert(identity, place);
        IdentityNumber(place)
    }

    /// A record with this identity is gone.
    pub(super) fn remove(&mut self, number: IdentityNumber) {
        let Some(place) = self.places.get_mut(number.0) else { return };
        let Some(counted) = place else { return };
        counted.records = counted.records.saturating_sub(1);
        if counted.records == 0 {
            self.numbers.remove(&counted.identity);
            *place = None;
            self.free.push(number.0);
        }
    }
}
