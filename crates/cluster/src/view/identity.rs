// SPDX-License-Identifier: Apache-2.0
//! The nodes and epochs of role records. Each record has the number of one of them instead of two texts.

use crate::key::ClusterName;

/// The node and the epoch of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The number of records that use it. Without any, its place is used again.
    records: usize,
}

/// The identities in use. A node has more than one only while it changes its epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct IdentityTable(Vec<CountedIdentity>);

impl IdentityTable {
    pub(super) fn identity(&self, number: IdentityNumber) -> Option<&RoleIdentity> {
        self.0.get(number.0).map(|counted| &counted.identity)
    }

    /// Counts a record of this node and epoch.
    pub(super) fn add(&mut self, name: &ClusterName, epoch: &str) -> IdentityNumber {
        let is_same = |counted: &CountedIdentity| {
            counted.identity.name == *name && *counted.identity.epoch == *epoch
        };
        if let Some(place) = self.0.iter().position(is_same) {
            self.0[place].records += 1;
            return IdentityNumber(place);
        }
        let identity = RoleIdentity { name: name.clone(), epoch: epoch.into() };
        let counted = CountedIdentity { identity, records: 1 };
        if let Some(place) = self.0.iter().position(|counted| counted.records == 0) {
            self.0[place] = counted;
            return IdentityNumber(place);
        }
        self.0.push(counted);
        IdentityNumber(self.0.len() - 1)
    }

    /// A record with this identity is gone.
    pub(super) fn remove(&mut self, number: IdentityNumber) {
        if let Some(counted) = self.0.get_mut(number.0) {
            counted.records = counted.records.saturating_sub(1);
        }
    }
}
