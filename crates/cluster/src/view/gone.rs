// SPDX-License-Identifier: Apache-2.0
//! Keys without a record: deleted, foreign, or with a value that is not a record.

use std::collections::BTreeMap;

use vipwatch_api::IgnoredSummary;

/// The maximum number of keys here. An event that is older than the deletion of its key arrives only from a second
/// connection, and soon after it.
// BOUND: the oldest entries are dropped.
const MAX_GONE_KEYS: usize = 1024;

/// The maximum length of a key here. A key of vipwatch has at most 400 bytes, and etcd accepts keys of 1.5 MiB.
// BOUND: foreign keys that begin with the same bytes count as one.
const MAX_KEY_BYTES: usize = 512;

/// The part of a key that is remembered.
pub(super) fn short_key(key: &str) -> &str {
    &key[..key.floor_char_boundary(MAX_KEY_BYTES)]
}

/// Why a key has no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoneReason {
    Deleted,
    Foreign,
    Invalid,
    Newer,
}

/// The last change of a key without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GoneKey {
    pub(super) revision: i64,
    pub(super) reason: GoneReason,
}

#[derive(Debug, Clone, Default)]
pub(super) struct GoneKeys {
    keys: BTreeMap<Box<str>, GoneKey>,
    /// Whether there were more ignored keys than are kept here.
    has_forgotten: bool,
}

impl GoneKeys {
    pub(super) fn revision(&self, key: &str) -> Option<i64> {
        self.keys.get(short_key(key)).map(|gone| gone.revision)
    }

    /// Returns true if the number of ignored keys may have changed.
    pub(super) fn insert(&mut self, key: &str, revision: i64, reason: GoneReason) -> bool {
        let before = self.keys.insert(short_key(key).into(), GoneKey { revision, reason });
        if self.keys.len() > MAX_GONE_KEYS {
            self.drop_oldest();
        }
        let reason_before = before.map_or(GoneReason::Deleted, |gone| gone.reason);
        reason != reason_before
    }

    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.keys.remove(short_key(key));
    }

    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&str, &GoneKey) -> bool) {
        self.keys.retain(|key, gone| is_kept(key, gone));
    }

    /// The keys that exist and are not used, with their revisions.
    pub(super) fn ignored_keys(&self, prefix: &str) -> impl Iterator<Item = (String, i64)> {
        let ignored = self.keys.iter().filter(|(_, gone)| gone.reason != GoneReason::Deleted);
        let below = ignored.filter(move |(key, _)| key.starts_with(prefix));
        below.map(|(key, gone)| (key.to_string(), gone.revision))
    }

    /// LIMIT: keys above [`MAX_GONE_KEYS`] are not counted.
    pub(super) fn ignored(&self) -> IgnoredSummary {
        let mut summary = IgnoredSummary::default();
        for gone in self.keys.values() {
            match gone.reason {
                GoneReason::Deleted => {}
                GoneReason::Foreign => summary.foreign_keys += 1,
                GoneReason::Invalid => summary.invalid_values += 1,
                GoneReason::Newer => summary.newer_values += 1,
            }
        }
        summary
    }

    /// Drops the older half: deletions first.
    fn drop_oldest(&mut self) {
        let mut order: Vec<(bool, i64)> = self.keys.values().map(age).collect();
        order.sort_unstable();
        let Some(middle) = order.get(order.len() / 2).copied() else { return };
        self.has_forgotten |= order.iter().any(|age| age.0 && *age < middle);
        self.keys.retain(|_, gone| age(gone) >= middle);
    }
}

fn age(gone: &GoneKey) -> (bool, i64) {
    (gone.reason != GoneReason::Deleted, gone.revision)
}
