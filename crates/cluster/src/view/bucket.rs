// SPDX-License-Identifier: Apache-2.0
//! The role records of one bucket, packed one after the other in one piece of memory.
//!
//! ```text
//!   number of the identity │ revision │ length │ packed record │ number of the identity │ …
//! ```
//!
//! LIMIT: a change copies the bytes of the whole bucket. A bucket has as many records as a group has nodes, except that
//! of a VRID, which has those of all groups with this VRID.

use std::cmp::Ordering;
use std::ops::Range;

use super::bytes::{ByteReader, ByteWriter};
use super::identity::{IdentityNumber, IdentityTable};
use super::packed;
use crate::key::RoleKey;

/// One record in the bytes of its bucket.
#[derive(Debug, Clone)]
pub(super) struct PackedRole<'a> {
    pub(super) identity: IdentityNumber,
    /// The revision of the last change of the key.
    pub(super) mod_revision: i64,
    /// The bytes of [`packed::pack`].
    pub(super) body: &'a [u8],
    /// The place in the bytes of the bucket.
    place: Range<usize>,
}

/// The records, in the order of the names of nodes and instances.
#[derive(Debug, Clone, Default)]
pub(super) struct PackedRoles(Box<[u8]>);

impl PackedRoles {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PackedRole<'_>> {
        let mut input = ByteReader::new(&self.0);
        std::iter::from_fn(move || {
            let start = self.0.len() - input.rest().len();
            let identity = IdentityNumber(usize::try_from(input.unsigned()?).ok()?);
            let mod_revision = input.signed()?;
            let length = input.unsigned()?;
            let body = input.slice(length)?;
            let place = start..self.0.len() - input.rest().len();
            Some(PackedRole { identity, mod_revision, body, place })
        })
    }

    /// The record of a key; `None` if there is none. `model` is that of [`packed::pack`].
    pub(super) fn find(
        &self,
        key: &RoleKey,
        model: &str,
        identities: &IdentityTable,
    ) -> Option<PackedRole<'_>> {
        self.iter().find(|role| order(role, key, model, identities) == Ordering::Equal)
    }

    /// Adds a record, or replaces that of the same key. Returns the identity of the replaced record.
    pub(super) fn put(
        &mut self,
        key: &RoleKey,
        model: &str,
        identities: &IdentityTable,
        role: &NewRole<'_>,
    ) -> Option<IdentityNumber> {
        let not_before = self
            .iter()
            .map(|other| (order(&other, key, model, identities), other))
            .find(|(order, _)| *order != Ordering::Less);
        let (place, replaced) = match not_before {
            Some((Ordering::Equal, other)) => (other.place, Some(other.identity)),
            Some((_, other)) => (other.place.start..other.place.start, None),
            None => (self.0.len()..self.0.len(), None),
        };
        self.splice(place, &role.bytes());
        replaced
    }

    /// Removes the record of a key. Returns its identity.
    pub(super) fn remove(
        &mut self,
        key: &RoleKey,
        model: &str,
        identities: &IdentityTable,
    ) -> Option<IdentityNumber> {
        let PackedRole { identity, place, .. } = self.find(key, model, identities)?;
        self.splice(place, &[]);
        Some(identity)
    }

    /// Replaces a part of the bytes. The new bytes have no spare room.
    fn splice(&mut self, place: Range<usize>, new: &[u8]) {
        let (before, after) = (&self.0[..place.start], &self.0[place.end..]);
        self.0 = [before, new, after].concat().into_boxed_slice();
    }
}

/// A record to be put.
#[derive(Debug)]
pub(super) struct NewRole<'a> {
    pub(super) identity: IdentityNumber,
    pub(super) mod_revision: i64,
    pub(super) body: &'a [u8],
}

impl NewRole<'_> {
    fn bytes(&self) -> Vec<u8> {
        let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let mut out = ByteWriter::default();
        out.unsigned(number(self.identity.0));
        out.signed(self.mod_revision);
        out.unsigned(number(self.body.len()));
        out.bytes(self.body);
        out.into_bytes()
    }
}

/// The order of a record and a key.
fn order(
    role: &PackedRole<'_>,
    key: &RoleKey,
    model: &str,
    identities: &IdentityTable,
) -> Ordering {
    let Some(identity) = identities.identity(role.identity) else { return Ordering::Less };
    let by_node = identity.name.cmp(&key.node);
    by_node.then_with(|| (*packed::instance(role.body, model)).cmp(key.instance.as_str()))
}
