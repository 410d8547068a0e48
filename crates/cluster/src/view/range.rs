// SPDX-License-Identifier: Apache-2.0
//! The ranges of keys that are read as a whole, and up to which revision the view is complete in each.

use std::collections::HashSet;

use super::{ClusterView, StoredValue, Trust};
use crate::key::{Bucket, ClusterKey, KeySpace};

/// A range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyRange {
    All,
    Nodes,
    Members,
    Roles,
    Bucket(Bucket),
    Reporter,
    Findings,
    Closed,
    Silences,
    /// Another prefix, which has no floor.
    Other,
}

impl KeyRange {
    /// The number of ranges with a floor of their own, without buckets.
    pub(super) const FLOORS: usize = 7;

    pub(super) fn of_prefix(keys: &KeySpace, prefix: &str) -> Self {
        let Some(rest) = prefix.strip_prefix(keys.all()) else {
            let is_above = keys.all().starts_with(prefix);
            return if is_above { Self::All } else { Self::Other };
        };
        match rest {
            "" => Self::All,
            "node/" => Self::Nodes,
            "member/" => Self::Members,
            "role/" => Self::Roles,
            "reporter" => Self::Reporter,
            "finding/" => Self::Findings,
            "closed/" => Self::Closed,
            "silence/" => Self::Silences,
            _ => {
                let bucket = rest.strip_prefix("role/").and_then(|rest| rest.strip_suffix('/'));
                let bucket = bucket.and_then(|bucket| bucket.parse().ok());
                bucket.map_or(Self::Other, Self::Bucket)
            }
        }
    }

    pub(super) fn of_key(key: &ClusterKey) -> Self {
        match key {
            ClusterKey::Node(_) => Self::Nodes,
            ClusterKey::Member(_) => Self::Members,
            ClusterKey::Role(_) => Self::Roles,
            ClusterKey::Reporter => Self::Reporter,
            ClusterKey::Finding(_) => Self::Findings,
            ClusterKey::Closed(_) => Self::Closed,
            ClusterKey::Silence(_) => Self::Silences,
        }
    }

    /// The place of the range's floor; `None` if it has none or several.
    pub(super) fn floor_index(&self) -> Option<usize> {
        match self {
            Self::Nodes => Some(0),
            Self::Members => Some(1),
            Self::Roles => Some(2),
            Self::Reporter => Some(3),
            Self::Findings => Some(4),
            Self::Closed => Some(5),
            Self::Silences => Some(6),
            Self::All | Self::Bucket(_) | Self::Other => None,
        }
    }
}

impl ClusterView {
    /// Forgets all keys and revisions: etcd counts its revisions again.
    pub(crate) fn forget_all(&mut self) {
        let all = self.keys.all().to_owned();
        self.forget_range(&all);
        self.revision = 0;
    }

    /// All buckets were read at this revision, one after the other.
    pub(crate) fn all_roles_were_read(&mut self, revision: i64) {
        self.raise_floor(&KeyRange::Roles, revision);
    }

    /// The keys of this node below a prefix, of which not all keys were read. Those that are missing in `values` are gone.
    pub(crate) fn replace_own(&mut self, prefix: &str, values: Vec<StoredValue>, revision: i64) {
        let range = KeyRange::of_prefix(&self.keys, prefix);
        let present: HashSet<String> = values.iter().map(|value| value.key.clone()).collect();
        for value in values {
            self.put(value, Trust::NewestRead);
        }
        for (key, mod_revision) in self.keys_below(prefix, &range) {
            let is_own = self.keys.parse(&key).is_some_and(|key| self.is_own(&key));
            if is_own && mod_revision <= revision && !present.contains(&key) {
                self.delete(&key, revision);
            }
        }
    }

    fn floor(&self, range: &KeyRange) -> i64 {
        range.floor_index().map_or(0, |index| self.floors[index])
    }

    pub(super) fn floor_of_key(&self, key: &ClusterKey) -> i64 {
        let floor = self.floor(&KeyRange::of_key(key));
        match key {
            ClusterKey::Role(key) => floor.max(self.roles.floor(&key.bucket)),
            _ => floor,
        }
    }

    /// The revision up to which the whole range is complete or a part of it is.
    pub(super) fn floor_of_range(&self, range: &KeyRange) -> i64 {
        match range {
            KeyRange::All => self.floors.into_iter().max().unwrap_or(0).max(self.roles.max_floor()),
            KeyRange::Roles => self.floor(range).max(self.roles.max_floor()),
            KeyRange::Bucket(bucket) => self.floor(&KeyRange::Roles).max(self.roles.floor(bucket)),
            KeyRange::Other => i64::MAX,
            _ => self.floor(range),
        }
    }

    /// Returns false if the range has no floor.
    pub(super) fn raise_floor(&mut self, range: &KeyRange, revision: i64) -> bool {
        match range {
            KeyRange::Other => return false,
            KeyRange::All => self.floors = self.floors.map(|floor| floor.max(revision)),
            KeyRange::Bucket(bucket) => self.roles.raise_floor(bucket, revision),
            _ => {
                if let Some(index) = range.floor_index() {
                    self.floors[index] = self.floors[index].max(revision);
                }
            }
        }
        if matches!(range, KeyRange::All | KeyRange::Roles) {
            self.roles.drop_floors(revision);
        }
        true
    }

    pub(super) fn lower_floor(&mut self, range: &KeyRange) {
        match range {
            KeyRange::All => self.floors = [0; KeyRange::FLOORS],
            // Parts of the range are still complete: each remaining bucket gets the floor of all roles.
            KeyRange::Bucket(_) | KeyRange::Other => {
                let floor = self.floor(&KeyRange::Roles);
                self.roles.raise_all_floors(floor);
                self.clear_floor(&KeyRange::Roles);
            }
            _ => self.clear_floor(range),
        }
        if matches!(range, KeyRange::All | KeyRange::Roles) {
            self.roles.drop_floors(i64::MAX);
        }
    }

    fn clear_floor(&mut self, range: &KeyRange) {
        if let Some(index) = range.floor_index() {
            self.floors[index] = 0;
        }
    }

    /// The stored keys with this prefix and their revisions.
    pub(super) fn keys_below(&self, prefix: &str, range: &KeyRange) -> Vec<(String, i64)> {
        let mut keys: Vec<(ClusterKey, i64)> = Vec::new();
        let has =
            |kind: &KeyRange| range == kind || matches!(range, KeyRange::All | KeyRange::Other);
        if has(&KeyRange::Nodes) {
            keys.extend(self.nodes.node_keys());
        }
        if has(&KeyRange::Members) {
            keys.extend(self.nodes.member_keys());
        }
        if has(&KeyRange::Roles) {
            keys.extend(self.roles.keys());
        }
        if let KeyRange::Bucket(bucket) = range {
            keys.extend(self.roles.bucket_keys(bucket));
        }
        if has(&KeyRange::Reporter) {
            keys.extend(
                self.reporter.iter().map(|stored| (ClusterKey::Reporter, stored.mod_revision)),
            );
        }
        if has(&KeyRange::Findings) {
            let findings = self.findings.iter();
            keys.extend(
                findings.map(|(id, it)| (ClusterKey::Finding(id.clone()), it.mod_revision)),
            );
        }
        if has(&KeyRange::Closed) {
            let closed = self.closed.iter();
            keys.extend(closed.map(|(id, it)| (ClusterKey::Closed(id.clone()), it.mod_revision)));
        }
        if has(&KeyRange::Silences) {
            let silences = self.silences.iter();
            keys.extend(
                silences.map(|(id, it)| (ClusterKey::Silence(id.clone()), it.mod_revision)),
            );
        }
        let texts = keys.into_iter().map(|(key, revision)| (self.keys.text(&key), revision));
        let stored = texts.filter(|(key, _)| key.starts_with(prefix));
        stored.chain(self.gone.ignored_keys(prefix)).collect()
    }
}
