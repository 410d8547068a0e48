// SPDX-License-Identifier: Apache-2.0
//! How much of etcd a view keeps, and the number of records beyond it.
//!
//! Every client that may write to etcd decides what is there, and the view must not end the node: the unit of a node has
//! `MemoryMax=512M`, and a document about all groups needs several times the memory of their roles.
//!
//! A record beyond a limit is counted and not used. Records of this node have room beyond the limits of others, and other
//! members of its groups have room beyond those of foreign groups. After a deletion, the ranges with such records are read
//! again, so that another record takes the free place.

use std::collections::BTreeSet;

use super::ClusterView;
use super::range::KeyRange;
use super::role::RoleRoom;
use crate::etcd::ReadLimit;
use crate::key::{ClusterKey, ClusterName, RoleKey};
use crate::record::ClusterRecord;

/// How much of etcd a view keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewLimits {
    /// Nodes. From a few hundred on, a domain is to be divided because of the heartbeats.
    pub nodes: usize,
    /// Roles: 32 for each of that many nodes, or 1,000 for each of 131.
    pub roles: usize,
    /// Bytes of packed roles. An ordinary one has about 100.
    pub role_bytes: usize,
    /// Roles in one bucket. A group has one on each node, and a VRID is often that of many groups.
    pub bucket_roles: usize,
    /// Open findings.
    pub findings: usize,
    /// Findings that have ended. The reporter leaves 2,000.
    pub closed_findings: usize,
    /// Bytes of the open findings, and of those that have ended. An ordinary one has less than 2 KiB.
    pub finding_bytes: usize,
    /// Silences, of which each node has up to [`MAX_SILENCES_OF_NODE`](super::MAX_SILENCES_OF_NODE).
    pub silences: usize,
}

impl Default for ViewLimits {
    fn default() -> Self {
        Self {
            nodes: 4_096,
            roles: 131_072,
            role_bytes: 32 * MIB,
            bucket_roles: 4_096,
            findings: 10_000,
            closed_findings: 4_000,
            finding_bytes: 24 * MIB,
            silences: 1_000,
        }
    }
}

const MIB: usize = 1024 * 1024;

/// The maximum number of bytes of keys and values that are read of a bucket, and of nodes.
const MAX_RANGE_BYTES: usize = 4 * MIB;

/// The number of keys that are read below a prefix that has one key.
const FEW: usize = 16;

/// A part of a limit in quarters: foreign groups, other members of this node's groups, and this node itself. The last part
/// is limited too, because every client can use the name of this node.
const FOREIGN_QUARTERS: usize = 3;
const OWN_GROUP_QUARTERS: usize = 4;
const OWN_QUARTERS: usize = 5;

fn quarters(limit: usize, count: usize) -> usize {
    (limit / 4).saturating_mul(count)
}

impl ViewLimits {
    /// How much of a bucket is read.
    pub(crate) fn bucket(&self) -> ReadLimit {
        ReadLimit { records: self.bucket_roles, bytes: MAX_RANGE_BYTES }
    }

    fn roles(&self, count: usize) -> RoleRoom {
        RoleRoom {
            roles: quarters(self.roles, count),
            bytes: quarters(self.role_bytes, count),
            identities: quarters(self.nodes, 2 * count),
            bucket_roles: quarters(self.bucket_roles, count.max(OWN_GROUP_QUARTERS)),
            bucket_bytes: quarters(MAX_RANGE_BYTES, count.max(OWN_GROUP_QUARTERS)),
        }
    }
}

/// The records beyond the limits.
#[derive(Debug, Clone, Default)]
pub(super) struct Surplus {
    /// By [`KeyRange::floor_index`].
    counts: [u64; KeyRange::FLOORS],
    /// Whether a key of the range was deleted since the count.
    is_outdated: [bool; KeyRange::FLOORS],
}

impl Surplus {
    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn add(&mut self, range: &KeyRange, count: u64) {
        if let Some(index) = range.floor_index() {
            self.counts[index] = self.counts[index].saturating_add(count);
        }
    }

    /// The records of a range are counted again. A bucket is a part of its range, so it adds to the count.
    pub(super) fn begin(&mut self, range: &KeyRange) {
        match (range, range.floor_index()) {
            (KeyRange::All, _) => *self = Self::default(),
            (KeyRange::Bucket(_) | KeyRange::Other, _) | (_, None) => {}
            (_, Some(index)) => {
                self.counts[index] = 0;
                self.is_outdated[index] = false;
            }
        }
    }

    pub(super) fn deleted(&mut self, range: &KeyRange) {
        // A node has both records, and one place.
        let of_node = [KeyRange::Nodes, KeyRange::Members];
        let one = std::slice::from_ref(range);
        let ranges = if of_node.contains(range) { &of_node } else { one };
        for index in ranges.iter().filter_map(KeyRange::floor_index) {
            self.is_outdated[index] |= self.counts[index] > 0;
        }
    }

    fn is_outdated(&self, range: &KeyRange) -> bool {
        range.floor_index().is_some_and(|index| self.is_outdated[index])
    }
}

impl ClusterView {
    /// The limits.
    pub(crate) fn limits(&self) -> &ViewLimits {
        &self.limits
    }

    /// Whether records of this kind are beyond the limits.
    pub(crate) fn has_surplus(&self, prefix: &str) -> bool {
        let index = self.counted_range(prefix).floor_index();
        index.is_some_and(|index| self.surplus.counts[index] > 0)
    }

    /// How much of a range is read.
    pub(crate) fn read_limit(&self, prefix: &str) -> ReadLimit {
        let limits = &self.limits;
        let (records, bytes) = match KeyRange::of_prefix(&self.keys, prefix) {
            KeyRange::Nodes | KeyRange::Members => (limits.nodes, MAX_RANGE_BYTES),
            KeyRange::Findings => (limits.findings, limits.finding_bytes),
            KeyRange::Closed => (limits.closed_findings, limits.finding_bytes),
            KeyRange::Silences => (limits.silences, MAX_RANGE_BYTES),
            KeyRange::Reporter => (FEW, MAX_RANGE_BYTES),
            _ => return limits.bucket(),
        };
        ReadLimit { records, bytes }
    }

    /// Whether the view has no room for more roles of foreign groups.
    pub(crate) fn is_full_of_roles(&self) -> bool {
        self.roles.is_full(&self.limits.roles(FOREIGN_QUARTERS))
    }

    /// Whether a key is one of this node.
    pub(super) fn is_own(&self, key: &ClusterKey) -> bool {
        let (ClusterKey::Node(name)
        | ClusterKey::Member(name)
        | ClusterKey::Role(RoleKey { node: name, .. })) = key
        else {
            return false;
        };
        self.own.as_ref() == Some(name)
    }

    /// The name of the node that the view belongs to; `None` if it belongs to none.
    pub(crate) fn own(&self) -> Option<&ClusterName> {
        self.own.as_ref()
    }

    /// Keys of a range that were not read, because of [`Self::read_limit`].
    pub(crate) fn add_surplus(&mut self, prefix: &str, count: u64) {
        self.surplus.add(&self.counted_range(prefix), count);
    }

    /// All roles are read, and counted, again.
    pub(crate) fn begin_roles(&mut self) {
        self.surplus.begin(&KeyRange::Roles);
    }

    /// Of these ranges, those with records beyond the limits and with a key that was deleted since. They are to be read again,
    /// and are counted anew.
    pub(crate) fn take_outdated(
        &mut self,
        prefixes: impl Iterator<Item = String>,
    ) -> BTreeSet<String> {
        let is_outdated = |prefix: &String| self.surplus.is_outdated(&self.counted_range(prefix));
        let outdated: BTreeSet<String> = prefixes.filter(is_outdated).collect();
        for prefix in &outdated {
            self.surplus.begin(&self.counted_range(prefix));
        }
        outdated
    }

    /// The range that counts the records below a prefix: the roles of all buckets are counted together.
    fn counted_range(&self, prefix: &str) -> KeyRange {
        match KeyRange::of_prefix(&self.keys, prefix) {
            KeyRange::Bucket(_) => KeyRange::Roles,
            range => range,
        }
    }

    /// Whether the view has room for a record, also if it replaces another one of the same key.
    pub(super) fn has_room(&self, key: &ClusterKey, record: &ClusterRecord) -> bool {
        let limits = &self.limits;
        match (key, record) {
            (ClusterKey::Node(name) | ClusterKey::Member(name), _) => {
                self.is_own(key) || self.nodes.has_room(name, limits.nodes)
            }
            (ClusterKey::Role(role), ClusterRecord::Role(record)) => {
                let has_room = |count| self.roles.has_room(role, record, &limits.roles(count));
                let own = self.own.as_ref();
                if self.is_own(key) {
                    return has_room(OWN_QUARTERS);
                }
                let is_in_own_group =
                    || own.is_some_and(|own| self.roles.has_node(&role.bucket, own));
                has_room(FOREIGN_QUARTERS) || is_in_own_group() && has_room(OWN_GROUP_QUARTERS)
            }
            (ClusterKey::Finding(id), ClusterRecord::Finding(record)) => {
                self.findings.has_room(id, record, limits.findings, limits.finding_bytes)
            }
            (ClusterKey::Closed(id), ClusterRecord::Finding(record)) => {
                self.closed.has_room(id, record, limits.closed_findings, limits.finding_bytes)
            }
            (ClusterKey::Silence(id), _) => self.silences.has_room(id, limits.silences),
            _ => true,
        }
    }
}
