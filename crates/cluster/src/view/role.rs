// SPDX-License-Identifier: Apache-2.0
//! The role records of a view, packed, in the order of buckets, nodes and instances.

use std::collections::BTreeMap;
use std::sync::Arc;

use vipwatch_api::InstanceRole;

use super::packed::{NodeIdentity, PackedRole};
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
pub(crate) struct BucketChanges<'a> {
    /// Buckets with a changed role record.
    pub(crate) changed: Vec<&'a Bucket>,
    /// Whether a bucket became empty.
    pub(crate) has_removed: bool,
}

#[derive(Debug, Clone, Default)]
struct BucketRoles {
    roles: Vec<PackedRole>,
    /// The revision of the last complete read of this bucket; 0 if there was none.
    floor: i64,
    /// The last change of the view in this bucket.
    serial: ViewSerial,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RoleTable {
    buckets: BTreeMap<Bucket, BucketRoles>,
    /// The identities in use. A node has more than one only while it changes its epoch.
    identities: BTreeMap<ClusterName, Vec<Arc<NodeIdentity>>>,
    len: usize,
    /// The last change that made a bucket empty.
    emptied: ViewSerial,
}

impl RoleTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().filter(|(_, roles)| !roles.roles.is_empty()).map(|(bucket, _)| bucket)
    }

    pub(super) fn has_bucket(&self, bucket: &Bucket) -> bool {
        self.buckets.get(bucket).is_some_and(|entry| !entry.roles.is_empty())
    }

    pub(super) fn bucket(&self, bucket: &Bucket) -> impl Iterator<Item = RoleView> {
        let entry = self.buckets.get_key_value(bucket);
        entry.into_iter().flat_map(|(bucket, entry)| {
            entry.roles.iter().filter_map(move |role| {
                let record = role.unpack(bucket)?;
                let node = role.identity.name.clone();
                Some(RoleView { node, record, mod_revision: role.mod_revision })
            })
        })
    }

    pub(super) fn counts(&self) -> RoleCounts {
        let mut counts = RoleCounts::new();
        for role in self.buckets.values().flat_map(|entry| &entry.roles) {
            let name = &role.identity.name;
            if !counts.contains_key(name) {
                counts.insert(name.clone(), RoleCount::default());
            }
            let Some(count) = counts.get_mut(name) else { continue };
            count.instances += 1;
            count.primaries += u64::from(role.role() == InstanceRole::Primary);
            count.backups += u64::from(role.role() == InstanceRole::Backup);
        }
        counts
    }

    pub(super) fn changed_after(&self, serial: ViewSerial) -> BucketChanges<'_> {
        let changed = self.buckets.iter().filter(|(_, entry)| entry.serial > serial);
        let changed = changed.map(|(bucket, _)| bucket).collect();
        BucketChanges { changed, has_removed: self.emptied > serial }
    }

    pub(super) fn buckets_of_node(&self, node: &ClusterName) -> Vec<Bucket> {
        let has_node =
            |entry: &BucketRoles| entry.roles.iter().any(|role| role.identity.name == *node);
        let buckets = self.buckets.iter().filter(|(_, entry)| has_node(entry));
        buckets.map(|(bucket, _)| bucket.clone()).collect()
    }

    pub(super) fn revision(&self, key: &RoleKey) -> Option<i64> {
        let entry = self.buckets.get(&key.bucket)?;
        let place = entry.place(key).ok()?;
        entry.roles.get(place).map(|role| role.mod_revision)
    }

    pub(super) fn put(
        &mut self,
        key: RoleKey,
        record: &RoleRecord,
        mod_revision: i64,
        at: ViewSerial,
    ) {
        let identity = self.identity(&key.node, &record.epoch);
        let role = PackedRole::new(record, &key.bucket, identity, mod_revision);
        let entry = match self.buckets.get_mut(&key.bucket) {
            Some(entry) => entry,
            None => self.buckets.entry(key.bucket.clone()).or_default(),
        };
        entry.serial = at;
        match entry.place(&key) {
            Ok(place) => entry.roles[place] = role,
            Err(place) => {
                // Most buckets have as many roles as a group has nodes, so spare room would cost much.
                if entry.roles.len() < 8 {
                    entry.roles.reserve_exact(1);
                }
                entry.roles.insert(place, role);
                self.len += 1;
            }
        }
    }

    pub(super) fn remove(&mut self, key: &RoleKey, at: ViewSerial) -> bool {
        let Some(entry) = self.buckets.get_mut(&key.bucket) else { return false };
        let Ok(place) = entry.place(key) else { return false };
        entry.roles.remove(place);
        entry.serial = at;
        self.len -= 1;
        if entry.roles.is_empty() {
            self.emptied = at;
            if entry.floor == 0 {
                self.buckets.remove(&key.bucket);
            }
        }
        true
    }

    /// Removes a bucket with its floor.
    pub(super) fn forget_bucket(&mut self, bucket: &Bucket, at: ViewSerial) {
        if let Some(entry) = self.buckets.remove(bucket) {
            self.len -= entry.roles.len();
            self.emptied = at;
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = (ClusterKey, i64)> {
        self.buckets.keys().flat_map(|bucket| self.bucket_keys(bucket))
    }

    pub(super) fn bucket_keys(&self, bucket: &Bucket) -> Vec<(ClusterKey, i64)> {
        let Some(entry) = self.buckets.get(bucket) else { return Vec::new() };
        let key = |role: &PackedRole| {
            let instance = role.instance(bucket).parse().ok()?;
            let (bucket, node) = (bucket.clone(), role.identity.name.clone());
            let key = ClusterKey::Role(RoleKey { bucket, node, instance });
            Some((key, role.mod_revision))
        };
        entry.roles.iter().filter_map(key).collect()
    }

    pub(super) fn floor(&self, bucket: &Bucket) -> i64 {
        self.buckets.get(bucket).map_or(0, |entry| entry.floor)
    }

    pub(super) fn max_floor(&self) -> i64 {
        self.buckets.values().map(|entry| entry.floor).max().unwrap_or(0)
    }

    pub(super) fn raise_floor(&mut self, bucket: &Bucket, revision: i64) {
        let entry = self.buckets.entry(bucket.clone()).or_default();
        entry.floor = entry.floor.max(revision);
    }

    pub(super) fn raise_all_floors(&mut self, revision: i64) {
        for entry in self.buckets.values_mut() {
            entry.floor = entry.floor.max(revision);
        }
    }

    /// Drops the floors up to a revision, because a floor of all roles replaces them.
    pub(super) fn drop_floors(&mut self, revision: i64) {
        self.buckets.retain(|_, entry| {
            if entry.floor <= revision {
                entry.floor = 0;
            }
            entry.floor > 0 || !entry.roles.is_empty()
        });
    }

    fn identity(&mut self, name: &ClusterName, epoch: &str) -> Arc<NodeIdentity> {
        if let Some(known) = self.identities.get(name)
            && let Some(identity) = known.iter().find(|identity| &*identity.epoch == epoch)
        {
            return identity.clone();
        }
        // Identities without a role are dropped here: new ones are rare.
        self.identities.retain(|_, known| {
            known.retain(|identity| Arc::strong_count(identity) > 1);
            !known.is_empty()
        });
        let identity = Arc::new(NodeIdentity { name: name.clone(), epoch: epoch.into() });
        self.identities.entry(name.clone()).or_default().push(identity.clone());
        identity
    }
}

impl BucketRoles {
    /// The place of a key, or the place to insert it.
    fn place(&self, key: &RoleKey) -> Result<usize, usize> {
        self.roles.binary_search_by(|role| {
            let by_node = role.identity.name.cmp(&key.node);
            by_node.then_with(|| (*role.instance(&key.bucket)).cmp(key.instance.as_str()))
        })
    }
}
