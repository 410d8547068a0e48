// SPDX-License-Identifier: Apache-2.0
//! The keys and values of etcd that this process has received.
//!
//! ```text
//!   range read at revision R ──▶ replace_range ─┐
//!                                               ├─▶ for each key the value with the greatest revision
//!   events of a watch ─────────▶ apply ─────────┘
//! ```
//!
//! etcd numbers every change with a revision. The view keeps the value with the greatest revision of each key, so the
//! result does not depend on the order of arrival, and an event may arrive twice. A deletion is remembered with its
//! revision (`gone.rs`), and a complete read of a range at revision R is remembered as the *floor* R of that range: a
//! change up to R of a key that the read did not have is old.
//!
//! A value that is not a valid record counts as absent: it is never a role.

mod bucket;
mod bytes;
mod finding;
mod gone;
mod identity;
mod limits;
mod node;
mod packed;
mod range;
mod role;
mod silence;

use std::collections::HashSet;

use vipwatch_api::IgnoredSummary;

use self::finding::FindingTable;
use self::gone::{GoneKeys, GoneReason, short_key};
use self::limits::Surplus;
pub use self::limits::ViewLimits;
use self::node::NodeTable;
pub use self::node::NodeView;
use self::range::KeyRange;
use self::role::RoleTable;
pub use self::role::{RoleView, ViewSerial};
use self::silence::SilenceTable;
pub use self::silence::{MAX_SILENCES_OF_NODE, SilenceIndex};
use crate::key::{Bucket, ClusterKey, ClusterName, FindingId, KeySpace, SilenceId};
use crate::record::{
    ClusterRecord, ClusterRecordError, FindingRecord, ReporterRecord, SilenceRecord,
};

/// A key and its value, as etcd stores them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredValue {
    /// The key.
    pub key: String,
    /// The value, JSON.
    pub value: Vec<u8>,
    /// The revision of the last change of the key.
    pub mod_revision: i64,
    /// The revision that created the key.
    pub create_revision: i64,
    /// The lease of the key; 0 if it has none.
    pub lease: i64,
}

impl StoredValue {
    /// Key length plus value length.
    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewChange {
    /// The key has a new value.
    Put(StoredValue),
    /// The key was deleted, or its lease has ended.
    Deleted {
        /// The key.
        key: String,
        /// The revision of the deletion.
        mod_revision: i64,
    },
}

/// A record with the revisions of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revised<T> {
    /// The record.
    pub record: T,
    /// The revision of the last change of the key.
    pub mod_revision: i64,
    /// The revision that created the key.
    pub create_revision: i64,
    /// The lease of the key; 0 if it has none.
    pub lease: i64,
}

/// The keys of one domain, as far as they were read.
#[derive(Debug, Clone)]
pub struct ClusterView {
    keys: KeySpace,
    limits: ViewLimits,
    /// The node that the view belongs to; `None` if it belongs to none.
    own: Option<ClusterName>,
    nodes: NodeTable,
    roles: RoleTable,
    reporter: Option<Revised<ReporterRecord>>,
    findings: FindingTable,
    closed: FindingTable,
    silences: SilenceTable,
    /// The last change of a silence.
    silence_serial: ViewSerial,
    gone: GoneKeys,
    surplus: Surplus,
    /// The revision of the last complete read of each kind of key, by [`KeyRange::floor_index`].
    floors: [i64; KeyRange::FLOORS],
    revision: i64,
    serial: ViewSerial,
}

impl ClusterView {
    /// An empty view of the domain of `keys`.
    pub fn new(keys: KeySpace) -> Self {
        Self::of_node(keys, None, ViewLimits::default())
    }

    /// The empty view of a node: its own records have room beyond the limits.
    pub fn of_node(keys: KeySpace, own: Option<ClusterName>, limits: ViewLimits) -> Self {
        Self {
            keys,
            limits,
            own,
            nodes: NodeTable::default(),
            roles: RoleTable::default(),
            reporter: None,
            findings: FindingTable::default(),
            closed: FindingTable::default(),
            silences: SilenceTable::default(),
            silence_serial: ViewSerial::default(),
            gone: GoneKeys::default(),
            surplus: Surplus::default(),
            floors: [0; KeyRange::FLOORS],
            revision: 0,
            serial: ViewSerial::default(),
        }
    }

    /// The keys of the domain.
    pub fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// Applies a change. Returns true if the view is different after it.
    pub fn apply(&mut self, change: ViewChange) -> bool {
        match change {
            ViewChange::Put(value) => self.put(value, Trust::Event),
            ViewChange::Deleted { key, mod_revision } => self.delete(&key, mod_revision),
        }
    }

    /// Applies a write of this process: it has room beyond the limits.
    pub(crate) fn apply_own(&mut self, change: ViewChange) -> bool {
        match change {
            ViewChange::Put(value) => self.put(value, Trust::OwnWrite),
            deleted @ ViewChange::Deleted { .. } => self.apply(deleted),
        }
    }

    /// A complete read of a range at a revision: the keys of the range that are missing in `values` are gone.
    pub fn replace_range(&mut self, prefix: &str, values: Vec<StoredValue>, revision: i64) {
        let range = KeyRange::of_prefix(&self.keys, prefix);
        let is_newest = revision >= self.floor_of_range(&range);
        let trust = if is_newest { Trust::NewestRead } else { Trust::Event };
        self.surplus.begin(&range);
        let present: HashSet<String> =
            values.iter().map(|value| short_key(&value.key).to_owned()).collect();
        // The other members of a group with a record of this node have more room than those of foreign groups.
        let is_own =
            |value: &StoredValue| self.keys.parse(&value.key).is_some_and(|key| self.is_own(&key));
        let (own, others): (Vec<_>, Vec<_>) = values.into_iter().partition(is_own);
        for value in own.into_iter().chain(others) {
            self.put(value, trust);
        }
        for (key, mod_revision) in self.keys_below(prefix, &range) {
            if mod_revision <= revision && !present.contains(&key) {
                self.delete(&key, revision);
            }
        }
        if self.raise_floor(&range, revision) {
            // The floor stands for the deletions before it.
            self.gone.retain(|key, gone| {
                let is_old = gone.revision <= revision && gone.reason == GoneReason::Deleted;
                !(is_old && key.starts_with(prefix))
            });
        }
        self.revision = self.revision.max(revision);
    }

    /// Forgets a range that is no longer watched. It is as if it had never been read.
    pub fn forget_range(&mut self, prefix: &str) {
        let range = KeyRange::of_prefix(&self.keys, prefix);
        self.lower_floor(&range);
        self.surplus.begin(&range);
        for (key, _) in self.keys_below(prefix, &range) {
            if let Some(key) = self.keys.parse(&key) {
                self.remove(&key);
            }
        }
        if let KeyRange::Bucket(bucket) = &range {
            self.roles.forget_bucket(bucket, self.serial.next());
        }
        self.gone.retain(|key, _| !key.starts_with(prefix));
    }

    /// The greatest revision that the view has received.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The node that delivers findings; `None` if there is none.
    pub fn reporter(&self) -> Option<&ReporterRecord> {
        self.reporter.as_ref().map(|stored| &stored.record)
    }

    /// The key of the reporter, with its revisions.
    pub fn reporter_key(&self) -> Option<&Revised<ReporterRecord>> {
        self.reporter.as_ref()
    }

    /// The open findings, in the order of their ids.
    pub fn findings(&self) -> impl Iterator<Item = &FindingRecord> {
        self.findings.iter().map(|(_, stored)| &stored.record)
    }

    /// An open finding with its revisions; `None` if the view has none with this id.
    pub fn finding(&self, id: &FindingId) -> Option<&Revised<FindingRecord>> {
        self.findings.get(id)
    }

    /// The findings that have ended, in the order of their ids.
    pub fn closed_findings(&self) -> impl Iterator<Item = &FindingRecord> {
        self.closed.iter().map(|(_, stored)| &stored.record)
    }

    /// The lease of a finding that has ended; `None` if the view has none with this id.
    pub(crate) fn closed_lease(&self, id: &FindingId) -> Option<i64> {
        self.closed.get(id).map(|stored| stored.lease).filter(|lease| *lease != 0)
    }

    /// The oldest findings that have ended, without the newest `limit`.
    pub(crate) fn surplus_closed_findings(&self, limit: usize) -> Vec<FindingId> {
        let surplus = self.closed.len().saturating_sub(limit);
        if surplus == 0 {
            return Vec::new();
        }
        let by_age = self.closed.iter().map(|(id, stored)| (stored.mod_revision, id));
        let mut by_age: Vec<(i64, &FindingId)> = by_age.collect();
        by_age.sort_unstable();
        by_age.into_iter().take(surplus).map(|(_, id)| id.clone()).collect()
    }

    /// The silences with their ids and keys. One without a lease is not in force.
    pub fn silences(&self) -> impl Iterator<Item = (&SilenceId, &Revised<SilenceRecord>)> {
        self.silences.iter()
    }

    /// The silences in force by what they are about.
    pub fn silence_index(&self) -> SilenceIndex {
        self.silences.index()
    }

    /// The last change of a silence.
    pub fn silence_serial(&self) -> ViewSerial {
        self.silence_serial
    }

    /// The nodes, in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.iter()
    }

    /// One node; `None` if the view has none of this name.
    pub fn node(&self, name: &ClusterName) -> Option<NodeView<'_>> {
        self.nodes.node(name)
    }

    /// The number of role records.
    pub fn role_count(&self) -> usize {
        self.roles.len()
    }

    /// The buckets with a role record, in the order of their names.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        self.roles.buckets()
    }

    /// The role records of a bucket, in the order of nodes and instances.
    pub fn roles(&self, bucket: &Bucket) -> impl Iterator<Item = RoleView> {
        self.roles.bucket(bucket).into_iter()
    }

    /// The keys of the roles of a node.
    pub(crate) fn role_keys_of(&self, node: &ClusterName) -> impl Iterator<Item = ClusterKey> {
        let keys = self.roles.keys().map(|(key, _)| key);
        keys.filter(move |key| matches!(key, ClusterKey::Role(role) if role.node == *node))
    }

    /// The number of roles of each node and role, without the records.
    pub(crate) fn role_counts(&self) -> role::RoleCounts {
        self.roles.counts()
    }

    /// Keys and values that are not used.
    pub fn ignored(&self) -> IgnoredSummary {
        IgnoredSummary { surplus_records: self.surplus.total(), ..self.gone.ignored() }
    }

    /// The number of changes of this view. It says nothing about etcd.
    pub fn serial(&self) -> ViewSerial {
        self.serial
    }

    /// Whether the view has a role record in the bucket.
    pub(crate) fn has_roles(&self, bucket: &Bucket) -> bool {
        self.roles.has_bucket(bucket)
    }

    /// The buckets that have changed after `serial`, and those that have become empty.
    pub(crate) fn buckets_changed_after(&self, serial: ViewSerial) -> role::BucketChanges {
        self.roles.changed_after(serial)
    }

    /// Whether a role in a bucket has changed after `serial`.
    pub fn has_changed_after(&self, bucket: &Bucket, serial: ViewSerial) -> bool {
        self.roles.has_changed_after(bucket, serial)
    }

    /// The nodes that became live, stopped or lost after `serial`.
    pub(crate) fn nodes_changed_after(
        &self,
        serial: ViewSerial,
    ) -> impl Iterator<Item = &ClusterName> {
        self.nodes.changed_after(serial)
    }

    /// The buckets with a role of a node.
    pub(crate) fn buckets_of_node(&self, node: &ClusterName) -> Vec<Bucket> {
        self.roles.buckets_of_node(node)
    }

    /// Whether a node has an instance in a bucket.
    pub fn has_member(&self, bucket: &Bucket, node: &ClusterName) -> bool {
        self.roles.has_node(bucket, node)
    }

    fn put(&mut self, value: StoredValue, trust: Trust) -> bool {
        let StoredValue { key: text, value, mod_revision, create_revision, lease } = value;
        if !text.starts_with(self.keys.all()) {
            return false;
        }
        self.revision = self.revision.max(mod_revision);
        let key = self.keys.parse(&text);
        if self.known_revision(key.as_ref(), &text, trust) >= mod_revision {
            return false;
        }
        let Some(key) = key else {
            return self.gone.insert(&text, mod_revision, GoneReason::Foreign);
        };
        match ClusterRecord::decode(&key, &value) {
            // It would never end.
            Ok(ClusterRecord::Silence(_)) if lease == 0 => {
                self.remove(&key);
                self.gone.insert(&text, mod_revision, GoneReason::Invalid)
            }
            Ok(record) if trust != Trust::OwnWrite && !self.has_room(&key, &record) => {
                self.gone.remove(&text);
                let is_new = create_revision == mod_revision || trust == Trust::NewestRead;
                let was_kept = self.remove(&key);
                if is_new || was_kept {
                    self.surplus.add(&KeyRange::of_key(&key), 1);
                }
                is_new || was_kept
            }
            Ok(record) => {
                self.gone.remove(&text);
                self.insert(
                    key,
                    record,
                    Revised { record: (), mod_revision, create_revision, lease },
                )
            }
            Err(error) => {
                let reason = match error {
                    ClusterRecordError::Newer(_) | ClusterRecordError::OtherKind => {
                        GoneReason::Newer
                    }
                    _ => GoneReason::Invalid,
                };
                self.remove(&key);
                self.gone.insert(&text, mod_revision, reason)
            }
        }
    }

    fn delete(&mut self, text: &str, mod_revision: i64) -> bool {
        if !text.starts_with(self.keys.all()) {
            return false;
        }
        self.revision = self.revision.max(mod_revision);
        let key = self.keys.parse(text);
        if self.known_revision(key.as_ref(), text, Trust::Event) >= mod_revision {
            return false;
        }
        let was_ignored = self.gone.insert(text, mod_revision, GoneReason::Deleted);
        if let Some(key) = &key {
            self.surplus.deleted(&KeyRange::of_key(key));
        }
        key.is_some_and(|key| self.remove(&key)) || was_ignored
    }

    /// The revision of a key: that of its value, of its deletion, or of a read that did not have it.
    fn known_revision(&self, key: Option<&ClusterKey>, text: &str, trust: Trust) -> i64 {
        let stored = key.and_then(|key| self.stored_revision(key));
        if let Some(revision) = stored.or_else(|| self.gone.revision(text)) {
            return revision;
        }
        match trust {
            Trust::Event | Trust::OwnWrite => key.map_or(0, |key| self.floor_of_key(key)),
            Trust::NewestRead => 0,
        }
    }

    /// The keys below a prefix with their revisions, those with values that are not used included.
    pub(crate) fn known_keys(&self, prefix: &str) -> Vec<(String, i64)> {
        self.keys_below(prefix, &KeyRange::of_prefix(&self.keys, prefix))
    }

    /// Whether there were so many ignored keys that the view does not know all of them.
    pub(crate) fn has_forgotten_keys(&self) -> bool {
        self.gone.has_forgotten()
    }

    /// The revision of the last known change of a key, also of its deletion; `None` if the view has no change of it.
    pub(crate) fn last_revision(&self, key: &str) -> Option<i64> {
        let stored = self.last_value(key);
        let gone = stored.or_else(|| self.gone.revision(key));
        gone.or_else(|| Some(self.floor_of_key(&self.keys.parse(key)?)))
    }

    /// The revision of the value that the view has of a key; `None` if it has none.
    pub(crate) fn last_value(&self, key: &str) -> Option<i64> {
        self.stored_revision(&self.keys.parse(key)?)
    }

    fn stored_revision(&self, key: &ClusterKey) -> Option<i64> {
        match key {
            ClusterKey::Node(name) => self.nodes.node_revision(name),
            ClusterKey::Member(name) => self.nodes.member_revision(name),
            ClusterKey::Role(key) => self.roles.revision(key),
            ClusterKey::Reporter => self.reporter.as_ref().map(|stored| stored.mod_revision),
            ClusterKey::Finding(id) => self.findings.revision(id),
            ClusterKey::Closed(id) => self.closed.revision(id),
            ClusterKey::Silence(id) => self.silences.revision(id),
        }
    }

    fn insert(&mut self, key: ClusterKey, record: ClusterRecord, head: Revised<()>) -> bool {
        let serial = self.serial.next();
        match (key, record) {
            (ClusterKey::Node(name), ClusterRecord::Node(record)) => {
                self.nodes.put_node(&name, head.with(*record), serial);
            }
            (ClusterKey::Member(name), ClusterRecord::Member(record)) => {
                self.nodes.put_member(&name, head.with(record), serial);
            }
            (ClusterKey::Role(key), ClusterRecord::Role(record)) => {
                self.roles.put(&key, &record, head.mod_revision, serial);
            }
            (ClusterKey::Reporter, ClusterRecord::Reporter(record)) => {
                self.reporter = Some(head.with(record));
            }
            (ClusterKey::Finding(id), ClusterRecord::Finding(record)) => {
                self.findings.insert(id, head.with(*record));
            }
            (ClusterKey::Closed(id), ClusterRecord::Finding(record)) => {
                self.closed.insert(id, head.with(*record));
            }
            (ClusterKey::Silence(id), ClusterRecord::Silence(record)) => {
                self.silence_serial = serial;
                self.silences.insert(id, head.with(record));
            }
            // `ClusterRecord::decode` returns the kind of the key.
            _ => return false,
        }
        true
    }

    /// Removes the value of a key. Returns true if there was one.
    fn remove(&mut self, key: &ClusterKey) -> bool {
        let serial = self.serial.next();
        match key {
            ClusterKey::Node(name) => self.nodes.remove_node(name, serial),
            ClusterKey::Member(name) => self.nodes.remove_member(name, serial),
            ClusterKey::Role(key) => self.roles.remove(key, serial),
            ClusterKey::Reporter => self.reporter.take().is_some(),
            ClusterKey::Finding(id) => self.findings.remove(id),
            ClusterKey::Closed(id) => self.closed.remove(id),
            ClusterKey::Silence(id) => {
                self.silence_serial = serial;
                self.silences.remove(id)
            }
        }
    }
}

/// Whether the floor of a range applies to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// The value may be older than the last complete read.
    Event,
    /// The value is from a complete read that is not older than any before.
    NewestRead,
    /// This process has written the value: no limit applies.
    OwnWrite,
}

impl Revised<()> {
    fn with<T>(self, record: T) -> Revised<T> {
        let Self { mod_revision, create_revision, lease, .. } = self;
        Revised { record, mod_revision, create_revision, lease }
    }
}

#[cfg(test)]
mod tests;
