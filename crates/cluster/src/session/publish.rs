// SPDX-License-Identifier: Apache-2.0
//! The role keys of this node: which etcd has, which are wanted, and the difference between them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use vipwatch_core::InstanceId;

use super::WantedRole;
use crate::etcd::messages::RequestOp;
use crate::etcd::{LeaseId, MAX_OPERATIONS};
use crate::follow::ValueVisitor;
use crate::key::{Bucket, ClusterKey, ClusterName, KeySpace, RoleKey};
use crate::record::{FORMAT, MAX_ADDRESSES, MAX_RECENT, encode};
use crate::view::StoredValue;

/// The maximum number of bytes of the values in one transaction. etcd accepts 1.5 MiB by default.
pub(super) const MAX_BATCH_BYTES: usize = 512 * 1024;

/// The role keys of this node.
pub(super) struct PublishedRoles {
    keys: KeySpace,
    node: ClusterName,
    epoch: String,
    /// The instances of the node.
    wanted: BTreeMap<InstanceId, PublishedRole>,
    /// Instances with a record that may differ from that in etcd.
    dirty: BTreeSet<InstanceId>,
    /// Keys of this node in etcd that are not wanted.
    stale: BTreeSet<StaleKey>,
    are_buckets_changed: bool,
    /// Whether a read had an older value of a key than this process has written.
    has_older_values: bool,
}

/// The key of an instance.
#[derive(Debug)]
struct PublishedRole {
    bucket: Bucket,
    /// The hash of the value in etcd; `None` if there is none, or it is not known.
    hash: Option<u64>,
    /// The revision of the last known change of the key; 0 if the key does not exist as far as is known.
    revision: i64,
    /// The lease of the key in etcd.
    lease: LeaseId,
}

/// A change of a key of this node.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnRoleChange<'a> {
    /// `None` if the key was deleted.
    pub(super) value: Option<&'a StoredValue>,
    pub(super) revision: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct StaleKey {
    bucket: Bucket,
    instance: InstanceId,
}

/// The writes of one transaction.
#[derive(Debug, Default)]
pub(super) struct RoleBatch {
    pub(super) operations: Vec<RequestOp>,
    pub(super) bytes: usize,
    written: Vec<WrittenRole>,
    deleted: Vec<StaleKey>,
}

#[derive(Debug)]
struct WrittenRole {
    instance: InstanceId,
    hash: u64,
    lease: LeaseId,
}

impl PublishedRoles {
    pub(super) fn new(keys: KeySpace, node: ClusterName, epoch: String) -> Self {
        Self {
            keys,
            node,
            epoch,
            wanted: BTreeMap::new(),
            dirty: BTreeSet::new(),
            stale: BTreeSet::new(),
            are_buckets_changed: true,
            has_older_values: false,
        }
    }

    /// Notes the bucket of an instance that has changed; `None` for an instance that no longer exists.
    pub(super) fn mark(&mut self, instance: &InstanceId, bucket: Option<Bucket>) {
        let Some(bucket) = bucket else {
            if let Some(role) = self.wanted.remove(instance) {
                self.drop_key(role, instance);
            }
            self.dirty.remove(instance);
            return;
        };
        self.dirty.insert(instance.clone());
        if self.wanted.get(instance).is_some_and(|role| role.bucket == bucket) {
            return;
        }
        self.stale.remove(&StaleKey { bucket: bucket.clone(), instance: instance.clone() });
        let role = PublishedRole { bucket, hash: None, revision: 0, lease: LeaseId(0) };
        self.are_buckets_changed = true;
        if let Some(before) = self.wanted.insert(instance.clone(), role) {
            self.drop_key(before, instance);
        }
    }

    /// The key of an instance is no longer wanted.
    fn drop_key(&mut self, role: PublishedRole, instance: &InstanceId) {
        self.are_buckets_changed = true;
        if role.revision > 0 {
            self.stale.insert(StaleKey { bucket: role.bucket, instance: instance.clone() });
        }
    }

    /// The instances of the node.
    pub(super) fn instances(&self) -> impl Iterator<Item = &InstanceId> {
        self.wanted.keys()
    }

    /// The buckets of the node's instances; a bucket with two of them comes twice.
    pub(super) fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.wanted.values().map(|role| &role.bucket)
    }

    /// The prefixes of the buckets of the node's instances.
    pub(super) fn bucket_prefixes(&self) -> impl Iterator<Item = String> {
        self.buckets().map(|bucket| self.keys.bucket(bucket))
    }

    /// Whether the buckets have changed since the last call.
    pub(super) fn take_bucket_change(&mut self) -> bool {
        std::mem::take(&mut self.are_buckets_changed)
    }

    /// Keys that the node has in etcd, for example from a process before; their values are not known.
    pub(super) fn note_keys(&mut self, keys: &[String]) {
        for key in keys {
            let Some(ClusterKey::Role(key)) = self.keys.parse(key) else { continue };
            if key.node == self.node && !self.is_wanted(&key) {
                self.stale.insert(StaleKey { bucket: key.bucket, instance: key.instance });
            }
        }
    }

    fn is_wanted(&self, key: &RoleKey) -> bool {
        self.wanted.get(&key.instance).is_some_and(|role| role.bucket == key.bucket)
    }

    /// All keys must have the lease of a new membership.
    pub(super) fn compare_all(&mut self) {
        self.dirty.extend(self.wanted.keys().cloned());
    }

    /// etcd has other data: the values, leases and revisions of all keys are unknown.
    pub(super) fn forget_etcd(&mut self) {
        self.forget_values();
        self.wanted.values_mut().for_each(|role| role.revision = 0);
        self.stale.clear();
    }

    /// The values and leases of all keys may have changed: the next read has them.
    pub(super) fn forget_values(&mut self) {
        for role in self.wanted.values_mut() {
            role.hash = None;
            role.lease = LeaseId(0);
        }
        self.has_older_values = false;
        self.compare_all();
    }

    /// Whether a read had an older value of a key than this process has written: etcd has other data.
    pub(super) fn has_older_values(&self) -> bool {
        self.has_older_values
    }

    /// A key of this node has a value in etcd, or was deleted.
    pub(super) fn observe(&mut self, key: RoleKey, change: OwnRoleChange<'_>) {
        let OwnRoleChange { value, revision } = change;
        let Some(role) =
            self.wanted.get_mut(&key.instance).filter(|role| role.bucket == key.bucket)
        else {
            let stale = StaleKey { bucket: key.bucket, instance: key.instance };
            if value.is_some() {
                self.stale.insert(stale);
            } else {
                self.stale.remove(&stale);
            }
            return;
        };
        // An older change can arrive after the answer to a newer write of this node.
        if revision < role.revision || revision == role.revision && role.hash.is_some() {
            return;
        }
        let hash = value.map(|value| hash_of(&value.value));
        let lease = LeaseId(value.map_or(0, |value| value.lease));
        if hash != role.hash || lease != role.lease {
            // Another client has changed the key, or this process does not know its value yet.
            self.dirty.insert(key.instance);
        }
        role.hash = hash;
        role.lease = lease;
        role.revision = revision;
    }

    /// The next transaction; `None` if there is nothing to write. `role` is asked for the records.
    pub(super) fn next_batch(
        &mut self,
        lease: LeaseId,
        role: impl Fn(&InstanceId) -> Option<WantedRole>,
    ) -> Option<RoleBatch> {
        let mut batch = RoleBatch::default();
        while batch.has_room()
            && let Some(instance) = self.dirty.pop_first()
        {
            let wanted = role(&instance);
            self.mark(&instance, wanted.as_ref().map(|wanted| wanted.bucket.clone()));
            self.dirty.remove(&instance);
            if let Some(wanted) = wanted {
                self.add_write(&mut batch, instance, wanted, lease);
            }
        }
        for stale in &self.stale {
            if !batch.has_room() {
                break;
            }
            let StaleKey { bucket, instance } = stale.clone();
            let key = RoleKey { bucket, node: self.node.clone(), instance };
            batch.operations.push(RequestOp::delete(&self.keys.text(&ClusterKey::Role(key))));
            batch.deleted.push(stale.clone());
        }
        (!batch.operations.is_empty()).then_some(batch)
    }

    fn add_write(
        &self,
        batch: &mut RoleBatch,
        instance: InstanceId,
        wanted: WantedRole,
        lease: LeaseId,
    ) {
        let WantedRole { bucket, mut record } = wanted;
        record.schema = FORMAT;
        record.node = self.node.to_string();
        record.epoch.clone_from(&self.epoch);
        record.addresses.truncate(MAX_ADDRESSES);
        record.recent.drain(..record.recent.len().saturating_sub(MAX_RECENT));
        let value = encode(&record);
        let hash = hash_of(&value);
        let is_stored = |role: &PublishedRole| role.hash == Some(hash) && role.lease == lease;
        if self.wanted.get(&instance).is_some_and(is_stored) {
            return;
        }
        let key = RoleKey { bucket, node: self.node.clone(), instance: instance.clone() };
        batch.bytes += value.len();
        let key = self.keys.text(&ClusterKey::Role(key));
        batch.operations.push(RequestOp::put(&key, value, Some(lease)));
        batch.written.push(WrittenRole { instance, hash, lease });
    }

    /// The transaction was carried out at this revision.
    pub(super) fn committed(&mut self, batch: RoleBatch, revision: i64) {
        for WrittenRole { instance, hash, lease } in batch.written {
            if let Some(role) = self.wanted.get_mut(&instance) {
                role.hash = Some(hash);
                role.lease = lease;
                role.revision = role.revision.max(revision);
            }
        }
        for stale in batch.deleted {
            self.stale.remove(&stale);
        }
    }

    /// The transaction failed, and may have been carried out: its instances are compared again.
    pub(super) fn failed(&mut self, batch: RoleBatch) {
        for WrittenRole { instance, .. } in batch.written {
            if let Some(role) = self.wanted.get_mut(&instance) {
                role.hash = None;
                // The key may exist: it is deleted if the instance leaves its bucket.
                role.revision = role.revision.max(1);
                self.dirty.insert(instance);
            }
        }
    }
}

impl RoleBatch {
    fn has_room(&self) -> bool {
        self.operations.len() < MAX_OPERATIONS && self.bytes < MAX_BATCH_BYTES
    }
}

/// Values of a read that are keys of this node.
impl ValueVisitor for PublishedRoles {
    fn values(&mut self, values: &[StoredValue]) {
        for value in values {
            if let Some(ClusterKey::Role(key)) = self.keys.parse(&value.key)
                && key.node == self.node
            {
                let revision = value.mod_revision;
                let role = self.wanted.get(&key.instance).filter(|role| role.bucket == key.bucket);
                self.has_older_values |= role.is_some_and(|role| revision < role.revision);
                self.observe(key, OwnRoleChange { value: Some(value), revision });
            }
        }
    }
}

/// A hash that is compared within this process only.
fn hash_of(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
