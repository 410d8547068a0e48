// SPDX-License-Identifier: Apache-2.0
//! Compares the followed ranges with the keys of etcd. A watch that has lost an event does not say so: without the
//! comparison, the view would keep the old value until the key changes again.
//!
//! ```text
//!   keys and revisions of etcd ──▶ suspects ── a heartbeat later ──▶ still different ──▶ the range is read again
//!                                                        └─────────▶ the watch has delivered the change
//! ```

use std::collections::BTreeMap;

use super::{RangeFollower, SharedView, ValueVisitor, bucket_prefix, is_bucket, read};
use crate::etcd::{EtcdConnection, EtcdError, KeyPage};
use crate::key::KeySpace;
use crate::view::ClusterView;

/// The number of suspects from which on a range has only its first one.
// BOUND: a range is read again for one of them.
const MAX_SUSPECTS: usize = 1000;

/// A key that etcd and the view have with different revisions.
#[derive(Debug, PartialEq, Eq)]
struct Suspect {
    key: String,
    /// The revision of the key in etcd; `None` if etcd does not have it.
    stored: Option<i64>,
}

/// Keys that differ, by the prefix of their bucket or range.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// The revision of etcd that the keys were read at.
    revision: i64,
    ranges: BTreeMap<String, Vec<Suspect>>,
    count: usize,
}

/// The keys of one range in the view that no page of etcd had yet.
#[derive(Debug)]
struct RangeComparison {
    keys: KeySpace,
    known: BTreeMap<String, i64>,
    /// Whether the view does not know each key: values beyond its limits, or more foreign ones than it remembers.
    is_partial: bool,
}

impl RangeComparison {
    fn new(view: &ClusterView, prefix: &str) -> Self {
        let is_partial = view.has_surplus(prefix) || view.has_forgotten_keys();
        let known = view.known_keys(prefix).into_iter().collect();
        Self { keys: view.keys().clone(), known, is_partial }
    }

    /// Whether the key is one that the view would have.
    fn is_expected(&self, key: &str) -> bool {
        !self.is_partial && self.keys.parse(key).is_some()
    }

    /// Compares a page with the view, up to the revision of the read.
    fn compare(&mut self, page: KeyPage, revision: i64) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        for (key, stored) in page.keys {
            let is_different = match self.known.remove(&key) {
                // A newer one has arrived since the read, unless the read should have had it: then etcd has other data.
                Some(known) => known != stored && known <= revision,
                None => self.is_expected(&key),
            };
            if is_different {
                suspects.push(Suspect { key, stored: Some(stored) });
            }
        }
        if page.is_last {
            let known = std::mem::take(&mut self.known).into_iter();
            let extra = known.filter(|(_, known)| *known <= revision);
            suspects.extend(extra.map(|(key, _)| Suspect { key, stored: None }));
        }
        suspects
    }
}

impl Suspects {
    /// Adds suspects of a range. Those of all roles are kept by bucket.
    fn add(&mut self, prefix: &str, roles: &str, suspects: Vec<Suspect>) {
        for suspect in suspects {
            let range = if prefix == roles { bucket_prefix(&suspect.key, roles) } else { prefix };
            if self.count >= MAX_SUSPECTS && self.ranges.contains_key(range) {
                continue;
            }
            self.count += 1;
            self.ranges.entry(range.to_owned()).or_default().push(suspect);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges in which the view still differs.
    fn differences(&self, view: &ClusterView) -> Differences {
        let mut differences = Differences::default();
        for (prefix, suspects) in &self.ranges {
            let mut count = 0;
            for suspect in suspects {
                let known = view.last_revision(&suspect.key);
                let is_different = if let Some(revision) = suspect.stored {
                    let is_older =
                        known.is_some_and(|known| revision < known && known <= self.revision);
                    differences.is_older |= is_older && view.last_value(&suspect.key) == known;
                    known.is_none_or(|known| known < revision)
                } else {
                    let value = view.last_value(&suspect.key);
                    value.is_some_and(|known| known <= self.revision)
                };
                count += usize::from(is_different);
            }
            if count > 0 {
                differences.prefixes.push(prefix.clone());
                differences.keys += count;
            }
        }
        differences
    }
}

/// What differs although no event is on its way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// The ranges.
    pub(crate) prefixes: Vec<String>,
    /// The number of keys.
    pub(crate) keys: usize,
    /// Whether etcd has an older value than the view: it has other data.
    pub(crate) is_older: bool,
}

impl RangeFollower {
    /// Reads the keys of all followed ranges, and returns those that the view does not have in the same way. A change that
    /// the watch delivers at the moment is one of them.
    pub(crate) async fn suspects(
        &self,
        connection: &EtcdConnection,
        view: &SharedView,
    ) -> Result<Suspects, EtcdError> {
        let roles = self.keys.roles();
        let revision = connection.revision(self.keys.all()).await?;
        let mut suspects = Suspects { revision, ..Suspects::default() };
        let prefixes: Vec<String> = self.positions.keys().map(ToString::to_string).collect();
        let mut comparison: Option<(String, RangeComparison)> = None;
        let compare = |prefix: &str, page: KeyPage| {
            if comparison.as_ref().is_none_or(|(compared, _)| compared != prefix) {
                comparison = Some((prefix.to_owned(), RangeComparison::new(&read(view), prefix)));
            }
            if let Some((_, comparison)) = &mut comparison {
                suspects.add(prefix, &roles, comparison.compare(page, revision));
            }
        };
        connection.read_keys(&prefixes, revision, compare).await?;
        Ok(suspects)
    }

    /// Reads the ranges again that still differ and are still followed, unless etcd has other data.
    pub(crate) async fn read_different(
        &self,
        connection: &EtcdConnection,
        view: &SharedView,
        visitor: &mut impl ValueVisitor,
        suspects: &Suspects,
    ) -> Result<Differences, EtcdError> {
        let mut differences = suspects.differences(&read(view));
        let roles = self.keys.roles();
        let has_all_roles = self.positions.contains_key(roles.as_str());
        differences.prefixes.retain(|prefix| {
            has_all_roles && is_bucket(prefix, &roles)
                || self.positions.contains_key(prefix.as_str())
        });
        if !differences.prefixes.is_empty() && !differences.is_older {
            let revision = connection.revision(self.keys.all()).await?;
            self.read_ranges(connection, &differences.prefixes, revision, view, visitor).await?;
        }
        Ok(differences)
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_api::RoleKind::{Backup, Primary};

    use super::*;
    use crate::key::ClusterKey;
    use crate::record::encode;
    use crate::sample::{TestCluster, key_space, role_key, role_record, vrid_51};

    /// The keys of VRID 51 in a cluster that has lost no event.
    fn stored(cluster: &TestCluster) -> BTreeMap<String, i64> {
        cluster.view.known_keys(&prefix()).into_iter().collect()
    }

    fn prefix() -> String {
        key_space().bucket(&vrid_51())
    }

    /// Two nodes, of which the second changes its role, and a view that has lost this event.
    fn lost_event() -> (TestCluster, TestCluster) {
        let mut etcd = TestCluster::new();
        etcd.role("a", Primary);
        etcd.role("b", Backup);
        let mut view = TestCluster { view: etcd.view.clone(), revision: etcd.revision };
        etcd.role("b", Primary);
        view.revision = etcd.revision;
        (etcd, view)
    }

    fn compare(etcd: &TestCluster, seen: &TestCluster) -> Suspects {
        compare_range(etcd.revision, seen, &prefix(), stored(etcd).into_iter().collect())
    }

    /// Compares in pages of one key.
    fn compare_range(
        revision: i64,
        seen: &TestCluster,
        prefix: &str,
        keys: Vec<(String, i64)>,
    ) -> Suspects {
        let mut suspects = Suspects { revision, ..Suspects::default() };
        let mut comparison = RangeComparison::new(&seen.view, prefix);
        let roles = key_space().roles();
        for key in keys {
            let page = KeyPage { keys: vec![key], is_last: false };
            suspects.add(prefix, &roles, comparison.compare(page, revision));
        }
        let last = KeyPage { keys: Vec::new(), is_last: true };
        suspects.add(prefix, &roles, comparison.compare(last, revision));
        suspects
    }

    #[test]
    fn a_lost_event_is_found_and_a_late_one_is_no_difference() {
        let (etcd, mut seen) = lost_event();
        let suspects = compare(&etcd, &seen);
        let found = suspects.differences(&seen.view);
        assert_eq!((found.prefixes, found.keys, found.is_older), (vec![prefix()], 1, false));
        // The event is late: it arrives before the suspect is looked at again.
        seen.revision -= 1;
        seen.role("b", Primary);
        assert_eq!(suspects.differences(&seen.view), Differences::default());
        assert!(compare(&etcd, &etcd).is_empty());
    }

    #[test]
    fn an_older_value_shows_that_etcd_has_other_data() {
        let (etcd, seen) = lost_event();
        // The view has the change, and etcd was restored to a state before it.
        let suspects = compare(&seen, &etcd);
        assert!(suspects.differences(&etcd.view).is_older);
    }

    #[test]
    fn a_lost_deletion_is_found() {
        let (mut etcd, seen) = lost_event();
        etcd.delete(&role_key(&vrid_51(), "a", "VI_1"));
        let suspects = compare(&etcd, &seen);
        let found = suspects.differences(&seen.view);
        assert_eq!((found.prefixes, found.keys), (vec![prefix()], 2));
        assert_eq!(suspects.differences(&etcd.view).keys, 0);
    }

    #[test]
    fn a_key_that_was_written_or_deleted_after_the_read_is_no_difference() {
        let (etcd, mut seen) = lost_event();
        let suspects = compare(&etcd, &seen);
        seen.role("b", Backup);
        seen.role("c", Backup);
        seen.delete(&role_key(&vrid_51(), "b", "VI_1"));
        assert_eq!(suspects.differences(&seen.view), Differences::default());
        // A value that this release does not use has a revision too.
        let key = ClusterKey::Node("x".parse().unwrap());
        seen.put(&key, b"{}".to_vec());
        let nodes = key_space().nodes();
        let keys: BTreeMap<String, i64> = seen.view.known_keys(&nodes).into_iter().collect();
        assert_eq!(keys.len(), 1);
        let suspects = compare_range(seen.revision, &seen, &nodes, keys.into_iter().collect());
        assert!(suspects.is_empty(), "{suspects:?}");
        let record = role_record("d", "VI_1", Backup);
        seen.put(&role_key(&vrid_51(), "d", "VI_1"), encode(&record));
        assert!(compare(&seen, &seen).is_empty());
    }

    #[test]
    fn a_lost_event_is_found_in_a_range_with_values_beyond_the_limits_and_foreign_keys() {
        let (etcd, mut seen) = lost_event();
        let roles = key_space().roles();
        let mut keys: Vec<(String, i64)> = etcd.view.known_keys(&roles);
        keys.push((format!("{roles}of-a-later-release"), 1));
        let found = compare_range(etcd.revision, &seen, &roles, keys.clone());
        assert_eq!(found.ranges.keys().collect::<Vec<_>>(), [&prefix()]);
        // The view has no room for another key, and the lost event is found nevertheless.
        let surplus = role_key(&vrid_51(), "z", "VI_1");
        keys.push((key_space().text(&surplus), etcd.revision));
        seen.view.add_surplus(&roles, 1);
        let found = compare_range(etcd.revision, &seen, &roles, keys);
        assert_eq!(found.differences(&seen.view).keys, 1);
    }
}
