// SPDX-License-Identifier: Apache-2.0
//! The data of the simulated etcd: keys with all their versions, revisions and leases. It has no network and reads no clock.

mod lease;
mod txn;

use std::collections::BTreeMap;

use tonic::Status;

use self::lease::Lease;
use crate::etcd::messages::{
    KeyValue, RangeRequest, RangeResponse, ResponseHeader, WatchEvent, WatchEventType,
};

/// The keys from the first up to the second one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) begin: Vec<u8>,
    /// Empty for one key.
    pub(super) end: Vec<u8>,
}

impl Keys {
    pub(super) fn contain(&self, key: &[u8]) -> bool {
        if self.end.is_empty() {
            return key == self.begin;
        }
        key >= self.begin.as_slice() && key < self.end.as_slice()
    }
}

/// A version of a key.
#[derive(Debug, Clone)]
struct Version {
    revision: i64,
    /// `None` for a deletion.
    value: Option<KeyValue>,
}

/// The data of etcd. A clone is a snapshot.
#[derive(Debug, Clone)]
pub(super) struct EtcdStore {
    cluster: u64,
    revision: i64,
    /// Older revisions are gone.
    compacted: i64,
    /// The versions of each key, oldest first.
    versions: BTreeMap<Vec<u8>, Vec<Version>>,
    /// All changes since the compaction.
    history: Vec<WatchEvent>,
    leases: BTreeMap<i64, Lease>,
    last_lease: i64,
}

impl EtcdStore {
    /// An empty etcd that begins to count at a revision.
    pub(super) fn new(cluster: u64, revision: i64) -> Self {
        Self {
            cluster,
            revision,
            compacted: revision,
            versions: BTreeMap::new(),
            history: Vec::new(),
            leases: BTreeMap::new(),
            last_lease: 1000,
        }
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn cluster(&self) -> u64 {
        self.cluster
    }

    /// A restore can make another cluster of it.
    pub(super) fn set_cluster(&mut self, cluster: u64) {
        self.cluster = cluster;
    }

    /// The ids of new leases do not repeat after a restore: those of etcd are random.
    pub(super) fn last_lease(&self) -> i64 {
        self.last_lease
    }

    pub(super) fn set_last_lease(&mut self, last_lease: i64) {
        self.last_lease = last_lease;
    }

    pub(super) fn header(&self) -> ResponseHeader {
        ResponseHeader { cluster_id: self.cluster, revision: self.revision }
    }

    /// The present value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.versions.get(key)?.last()?.value.as_ref()
    }

    /// All present keys.
    pub(super) fn all(&self) -> impl Iterator<Item = &KeyValue> {
        self.versions.values().filter_map(|versions| versions.last()?.value.as_ref())
    }

    pub(super) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        let at = if request.revision > 0 { request.revision } else { self.revision };
        if at < self.compacted {
            let text = "etcdserver: mvcc: required revision has been compacted";
            return Err(Status::out_of_range(text));
        }
        if at > self.revision {
            return Err(Status::out_of_range(
                "etcdserver: mvcc: required revision is a future revision",
            ));
        }
        let keys = Keys { begin: request.key.clone(), end: request.range_end.clone() };
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let (mut kvs, mut count) = (Vec::new(), 0);
        for value in self.values_at(&keys, at) {
            count += 1;
            if limit == 0 || kvs.len() < limit {
                kvs.push(value.clone());
            }
        }
        let more = kvs.len() < count;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        Ok(RangeResponse { header: Some(self.header()), kvs, more, count })
    }

    fn values_at(&self, keys: &Keys, at: i64) -> impl Iterator<Item = &KeyValue> {
        let keys = keys.clone();
        let below = self.versions.range(keys.begin.clone()..);
        let inside = below.take_while(move |(key, _)| keys.contain(key));
        inside.filter_map(move |(_, versions)| {
            versions.iter().rev().find(|version| version.revision <= at)?.value.as_ref()
        })
    }

    /// The changes of keys from a revision on; an error with the revision of the compaction if some of them are gone.
    pub(super) fn changes(&self, keys: &Keys, first: i64) -> Result<Vec<WatchEvent>, i64> {
        if first < self.compacted {
            return Err(self.compacted);
        }
        let begin = self.history.partition_point(|event| revision_of(event) < first);
        let events = self.history[begin..].iter();
        Ok(events.filter(|event| keys.contain(key_of(event))).cloned().collect())
    }

    /// Forgets the revisions before this one.
    pub(super) fn compact(&mut self, revision: i64) {
        let revision = revision.clamp(self.compacted, self.revision);
        self.compacted = revision;
        self.history.retain(|event| revision_of(event) >= revision);
        self.versions.retain(|_, versions| {
            let last = versions.iter().rposition(|version| version.revision <= revision);
            versions.drain(..last.unwrap_or(0));
            !(versions.len() == 1 && versions[0].value.is_none() && last.is_some())
        });
    }

    /// Clients that write other keys.
    pub(super) fn raise(&mut self, revisions: i64) {
        self.revision += revisions;
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>, lease: i64) -> WatchEvent {
        let revision = self.revision;
        let before = self.get(key).map(|before| (before.create_revision, before.lease));
        if let Some((_, lease)) = before {
            self.detach(key, lease);
        }
        self.attach(key, lease);
        let create_revision = before.map_or(revision, |(create, _)| create);
        let key = key.to_vec();
        let value = KeyValue { key, value, create_revision, mod_revision: revision, lease };
        self.add(value.key.clone(), Some(value.clone()));
        WatchEvent { r#type: WatchEventType::Put as i32, kv: Some(value) }
    }

    /// `None` if there is no such key.
    fn delete(&mut self, key: &[u8]) -> Option<WatchEvent> {
        let lease = self.get(key)?.lease;
        self.detach(key, lease);
        self.add(key.to_vec(), None);
        let mod_revision = self.revision;
        let kv = KeyValue { key: key.to_vec(), mod_revision, ..KeyValue::default() };
        Some(WatchEvent { r#type: WatchEventType::Delete as i32, kv: Some(kv) })
    }

    fn add(&mut self, key: Vec<u8>, value: Option<KeyValue>) {
        let version = Version { revision: self.revision, value };
        self.versions.entry(key).or_default().push(version);
    }

    /// The changes of one revision.
    fn note(&mut self, events: &[WatchEvent]) {
        self.history.extend(events.iter().cloned());
    }
}

/// The key of a change.
pub(super) fn key_of(event: &WatchEvent) -> &[u8] {
    event.kv.as_ref().map_or(&[], |kv| kv.key.as_slice())
}

/// The revision of a change.
pub(super) fn revision_of(event: &WatchEvent) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

#[cfg(test)]
mod tests;
