// SPDX-License-Identifier: Apache-2.0
//! The role records of a view, in the order of the names of their buckets.

use std::collections::BTreeMap;

use vipwatch_api::RoleKind;

use super::bucket::{NewRole, PackedRole, PackedRoles};
use super::identity::IdentityTable;
use super::packed;
use crate::key::{Bucket, ClusterKey, ClusterName, RoleKey};
use crate::record::RoleRecord;

/// The number of a change of a view. It grows with each change; it is not a revision of etcd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ViewSerial(u64);

impl ViewSerial {
    pub(super) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// A role record of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleView {
    /// The node.
    pub node: ClusterName,
    /// The record.
    pub record: RoleRecord,
    /// The revision of the last change of its key.
    pub mod_revision: i64,
}

/// The number of role records of each node.
pub(crate) type RoleCounts = BTreeMap<ClusterName, RoleCount>;

/// The number of role records of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RoleCount {
    pub(crate) instances: u64,
    pub(crate) primaries: u64,
    pub(crate) backups: u64,
}

/// The buckets that have changed after a moment.
#[derive(Debug)]
pub(crate) struct BucketChanges {
    /// Buckets with a changed role record.
    pub(crate) changed: Vec<Bucket>,
    /// Whether a bucket became empty.
    pub(crate) has_removed: bool,
}

/// How many roles a table may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoleRoom {
    pub(super) roles: usize,
    pub(super) bytes: usize,
    pub(super) identities: usize,
    pub(super) bucket_roles: usize,
    pub(super) bucket_bytes: usize,
}

/// The memory of a bucket beside its name and its packed roles, and that of a role beside its packed fields, in bytes.
const BUCKET_BYTES: usize = 128;
const ROLE_BYTES: usize = 16;

#[derive(Debug, Clone, Default)]
struct BucketRoles {
    roles: PackedRoles,
    /// The revision of the last complete read of this bucket; 0 if there was none.
    floor: i64,
    /// The last change of the view in this bucket.
    serial: ViewSerial,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RoleTable {
    /// By the name of the bucket, which needs less memory than a [`Bucket`].
    buckets: BTreeMap<Box<str>, BucketRoles>,
    identities: IdentityTable,
    len: usize,
    /// The bytes of the packed roles, and of the buckets.
    bytes: usize,
    /// The last change that made a bucket empty.
    emptied: ViewSerial,
}

impl RoleTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether a table with this room takes no more roles.
    pub(super) fn is_full(&self, room: &RoleRoom) -> bool {
        self.len >= room.roles
            || self.bytes >= room.bytes
            || self.identities.len() > room.identities
    }

    /// Whether a record can be added, or replace that of the same key.
    pub(super) fn has_room(&self, key: &RoleKey, record: &RoleRecord, room: &RoleRoom) -> bool {
        let body = packed::pack(record, model(&key.bucket)).len() + ROLE_BYTES;
        let entry = self.entry(&key.bucket);
        let of_bucket = entry.map_or(0, |entry| entry.roles.iter().count());
        let bytes_of_bucket = entry.map_or(0, |entry| entry.roles.bytes());
        if bytes_of_bucket + body > room.bucket_bytes || self.bytes + body >= room.bytes {
            return false;
        }
        self.revision(key).is_some()
            || of_bucket < room.bucket_roles
                && self.len < room.roles
                && self.identities.len() <= room.identities
    }

    /// Whether a node has a role in a bucket.
    pub(super) fn has_node(&self, bucket: &Bucket, node: &ClusterName) -> bool {
        let is_of_node = |role: PackedRole<'_>| {
            self.identities.identity(role.identity).is_some_and(|identity| identity.name == *node)
        };
        self.entry(bucket).is_some_and(|entry| entry.roles.iter().any(is_of_node))
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = Bucket> {
        let used = self.buckets.iter().filter(|(_, entry)| !entry.roles.is_empty());
        used.filter_map(|(name, _)| name.parse().ok())
    }

    pub(super) fn has_bucket(&self, bucket: &Bucket) -> bool {
        self.entry(bucket).is_some_and(|entry| !entry.roles.is_empty())
    }

    pub(super) fn bucket(&self, bucket: &Bucket) -> Vec<RoleView> {
        let model = model(bucket);
        let view = |role: PackedRole<'_>| {
            let identity = self.identities.identity(role.identity)?;
            let record = packed::unpack(role.body, model, identity)?;
            let (node, mod_revision) = (identity.name.clone(), role.mod_revision);
            Some(RoleView { node, record, mod_revision })
        };
        self.entry(bucket)
            .into_iter()
            .flat_map(|entry| entry.roles.iter().filter_map(view))
            .collect()
    }

    pub(super) fn counts(&self) -> RoleCounts {
        let mut counts = RoleCounts::new();
        for role in self.buckets.values().flat_map(|entry| entry.roles.iter()) {
            let Some(identity) = self.identities.identity(role.identity) else { continue };
            if !counts.contains_key(&identity.name) {
                counts.insert(identity.name.clone(), RoleCount::default());
            }
            let Some(count) = counts.get_mut(&identity.name) else { continue };
            let role = packed::role(role.body);
            count.instances += 1;
            count.primaries += u64::from(role == RoleKind::Primary);
            count.backups += u64::from(role == RoleKind::Backup);
        }
        counts
    }

    pub(super) fn has_changed_after(&self, bucket: &Bucket, serial: ViewSerial) -> bool {
        self.entry(bucket).map_or(self.emptied, |entry| entry.serial) > serial
    }

    pub(super) fn changed_after(&self, serial: ViewSerial) -> BucketChanges {
        let changed = self.buckets.iter().filter(|(_, entry)| entry.serial > serial);
        let changed = changed.filter_map(|(name, _)| name.parse().ok()).collect();
        BucketChanges { changed, has_removed: self.emptied > serial }
    }

    pub(super) fn buckets_of_node(&self, node: &ClusterName) -> Vec<Bucket> {
        self.buckets().filter(|bucket| self.has_node(bucket, node)).collect()
    }

    pub(super) fn revision(&self, key: &RoleKey) -> Option<i64> {
        let entry = self.entry(&key.bucket)?;
        let role = entry.roles.find(key, model(&key.bucket), &self.identities)?;
        Some(role.mod_revision)
    }

    pub(super) fn put(
        &mut self,
        key: &RoleKey,
        record: &RoleRecord,
        mod_revision: i64,
        at: ViewSerial,
    ) {
        let model = model(&key.bucket);
        let identity = self.identities.add(&key.node, &record.epoch);
        let body = packed::pack(record, model);
        let new = NewRole { identity, mod_revision, body: &body };
        let name: Box<str> = key.bucket.to_string().into();
        self.bytes += if self.buckets.contains_key(&name) { 0 } else { bucket_bytes(&name) };
        let entry = self.buckets.entry(name).or_default();
        entry.serial = at;
        let before = entry.roles.bytes();
        match entry.roles.put(key, model, &self.identities, &new) {
            Some(replaced) => self.identities.remove(replaced),
            None => self.len += 1,
        }
        self.bytes = self.bytes + entry.roles.bytes() - before;
    }

    pub(super) fn remove(&mut self, key: &RoleKey, at: ViewSerial) -> bool {
        let name = key.bucket.to_string();
        let Some(entry) = self.buckets.get_mut(name.as_str()) else { return false };
        let before = entry.roles.bytes();
        let removed = entry.roles.remove(key, model(&key.bucket), &self.identities);
        let Some(identity) = removed else { return false };
        self.bytes = self.bytes + entry.roles.bytes() - before;
        self.identities.remove(identity);
        entry.serial = at;
        self.len -= 1;
        if entry.roles.is_empty() {
            self.emptied = at;
            if entry.floor == 0 {
                self.buckets.remove(name.as_str());
                self.bytes -= bucket_bytes(&name);
            }
        }
        true
    }

    /// Removes a bucket with its floor.
    pub(super) fn forget_bucket(&mut self, bucket: &Bucket, at: ViewSerial) {
        let name = bucket.to_string();
        let Some(entry) = self.buckets.remove(name.as_str()) else { return };
        self.bytes -= bucket_bytes(&name) + entry.roles.bytes();
        for role in entry.roles.iter() {
            self.identities.remove(role.identity);
            self.len -= 1;
        }
        self.emptied = at;
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = (ClusterKey, i64)> {
        self.buckets().flat_map(|bucket| self.bucket_keys(&bucket))
    }

    pub(super) fn bucket_keys(&self, bucket: &Bucket) -> Vec<(ClusterKey, i64)> {
        let Some(entry) = self.entry(bucket) else { return Vec::new() };
        let key = |role: PackedRole<'_>| {
            let instance = packed::instance(role.body, model(bucket)).parse().ok()?;
            let node = self.identities.identity(role.identity)?.name.clone();
            let key = ClusterKey::Role(RoleKey { bucket: bucket.clone(), node, instance });
            Some((key, role.mod_revision))
        };
        entry.roles.iter().filter_map(key).collect()
    }

    pub(super) fn floor(&self, bucket: &Bucket) -> i64 {
        self.entry(bucket).map_or(0, |entry| entry.floor)
    }

    pub(super) fn max_floor(&self) -> i64 {
        self.buckets.values().map(|entry| entry.floor).max().unwrap_or(0)
    }

    pub(super) fn raise_floor(&mut self, bucket: &Bucket, revision: i64) {
        let name: Box<str> = bucket.to_string().into();
        self.bytes += if self.buckets.contains_key(&name) { 0 } else { bucket_bytes(&name) };
        let entry = self.buckets.entry(name).or_default();
        entry.floor = entry.floor.max(revision);
    }

    pub(super) fn raise_all_floors(&mut self, revision: i64) {
        for entry in self.buckets.values_mut() {
            entry.floor = entry.floor.max(revision);
        }
    }

    /// Drops the floors up to a revision, because a floor of all roles replaces them.
    pub(super) fn drop_floors(&mut self, revision: i64) {
        let bytes = &mut self.bytes;
        self.buckets.retain(|name, entry| {
            if entry.floor <= revision {
                entry.floor = 0;
            }
            let is_kept = entry.floor > 0 || !entry.roles.is_empty();
            *bytes -= if is_kept { 0 } else { bucket_bytes(name) };
            is_kept
        });
    }

    fn entry(&self, bucket: &Bucket) -> Option<&BucketRoles> {
        self.buckets.get(bucket.to_string().as_str())
    }
}

/// The memory of a bucket without roles.
fn bucket_bytes(name: &str) -> usize {
    name.len() + BUCKET_BYTES
}

/// A text that the instances of a bucket often have as their id.
fn model(bucket: &Bucket) -> &str {
    match bucket {
        Bucket::Router(id) | Bucket::Configured(id) | Bucket::Alone { instance: id, .. } => {
            id.as_str()
        }
        Bucket::Vrrp { .. } => "",
    }
}
