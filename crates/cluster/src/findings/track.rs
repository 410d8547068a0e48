// SPDX-License-Identifier: Apache-2.0
//! What the evaluator remembers of each group: pending conditions, and the changes of its claimants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use vipwatch_core::Moment;
use vipwatch_core::flapping::{FLAP_SPAN, MIN_TRANSITIONS};

use super::condition::Condition;
use super::kind::ClusterFindingKind;
use crate::group::Group;
use crate::key::{Bucket, ClusterName};
use crate::view::ClusterView;

/// The groups of one bucket.
#[derive(Debug, Default)]
pub(super) struct BucketTrack {
    /// [`settings_of`] its groups.
    pub(super) settings: u64,
    groups: Vec<GroupTrack>,
}

impl BucketTrack {
    pub(super) fn new(settings: u64) -> Self {
        Self { settings, groups: Vec::new() }
    }

    pub(super) fn insert(&mut self, group: GroupTrack) {
        self.groups.push(group);
    }

    /// Removes and returns a group; a new one if it is not there.
    pub(super) fn take(&mut self, id: &str) -> GroupTrack {
        match self.groups.iter().position(|group| &*group.id == id) {
            Some(place) => self.groups.swap_remove(place),
            None => GroupTrack::new(id),
        }
    }

    pub(super) fn group_ids(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| &*group.id)
    }

    pub(super) fn forget_pending(&mut self) {
        for group in &mut self.groups {
            group.pending.clear();
        }
    }
}

/// A number that changes when nodes, VRIDs or addresses of a bucket change, and not with its roles.
pub(super) fn settings_of(groups: &[Group]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for member in groups.iter().flat_map(|group| &group.members) {
        member.node.hash(&mut hasher);
        member.record.vrid.hash(&mut hasher);
        member.record.addresses.hash(&mut hasher);
    }
    hasher.finish()
}

/// One group.
#[derive(Debug)]
pub(super) struct GroupTrack {
    id: Box<str>,
    /// The live nodes that hold an address; `None` before the first evaluation.
    claimants: Option<Box<[ClusterName]>>,
    /// The times of the last changes of the claimants, at most [`MIN_TRANSITIONS`].
    changes: VecDeque<Moment>,
    /// The conditions that hold, each with the time since when.
    pending: Vec<(ClusterFindingKind, Moment)>,
    /// The time of the first evaluation.
    first: Option<Moment>,
}

impl GroupTrack {
    fn new(id: &str) -> Self {
        let (changes, pending) = (VecDeque::new(), Vec::new());
        Self { id: id.into(), claimants: None, changes, pending, first: None }
    }

    /// Compares the claimants with those of the last evaluation.
    pub(super) fn count_claimants(&mut self, group: &Group, now: Moment) {
        self.first.get_or_insert(now);
        let claimants: Box<[ClusterName]> = group.primaries().into_iter().cloned().collect();
        let before = self.claimants.replace(claimants);
        if before.is_none() || before == self.claimants {
            return;
        }
        if self.changes.len() == MIN_TRANSITIONS {
            self.changes.pop_front();
        }
        self.changes.push_back(now);
    }

    pub(super) fn is_flapping(&self, now: Moment) -> bool {
        let oldest = self.changes.front().filter(|_| self.changes.len() == MIN_TRANSITIONS);
        oldest.is_some_and(|oldest| now.since(*oldest) < FLAP_SPAN)
    }

    /// Whether this evaluator has looked at the group for so long that it knows all changes that count.
    pub(super) fn is_continuation_over(&self, now: Moment) -> bool {
        self.first.is_some_and(|first| now.since(first) >= FLAP_SPAN)
    }

    /// The time at which the group stops flapping if nothing changes.
    pub(super) fn flapping_end(&self, now: Moment) -> Moment {
        let counted = self.changes.front().filter(|_| self.is_flapping(now)).copied();
        counted.or(self.first).unwrap_or(now) + FLAP_SPAN
    }

    /// Forgets the conditions that no longer hold.
    pub(super) fn keep_pending(&mut self, conditions: &[Condition]) {
        self.pending.retain(|(kind, _)| conditions.iter().any(|condition| condition.kind == *kind));
    }

    /// Since when a condition holds; from `now` on if it is new.
    pub(super) fn pending_since(&mut self, kind: ClusterFindingKind, now: Moment) -> Moment {
        let known = self.pending.iter().find(|(pending, _)| *pending == kind);
        if let Some((_, since)) = known {
            return *since;
        }
        self.pending.push((kind, now));
        now
    }
}

/// The buckets with two claims that a node has not confirmed yet.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    buckets: BTreeMap<Bucket, Vec<MissingConfirmation>>,
}

#[derive(Debug, PartialEq, Eq)]
struct MissingConfirmation {
    node: ClusterName,
    /// The revision that the node must have seen.
    revision: i64,
}

impl Unconfirmed {
    /// The buckets with a confirmation that was missing at their last evaluation and is there now. The next evaluation
    /// of the bucket removes it.
    pub(super) fn confirmed_now(&self, view: &ClusterView) -> BTreeSet<Bucket> {
        let has_seen = |missing: &MissingConfirmation| {
            let seen = view.node(&missing.node).and_then(|node| node.seen());
            seen.is_some_and(|seen| seen >= missing.revision)
        };
        let buckets = self.buckets.iter().filter(|(_, missing)| missing.iter().any(has_seen));
        buckets.map(|(bucket, _)| bucket.clone()).collect()
    }

    pub(super) fn replace(&mut self, bucket: &Bucket, groups: &[Group]) {
        let missing: Vec<MissingConfirmation> = groups.iter().flat_map(missing_in).collect();
        if missing.is_empty() {
            self.buckets.remove(bucket);
        } else {
            self.buckets.insert(bucket.clone(), missing);
        }
    }
}

fn missing_in(group: &Group) -> Vec<MissingConfirmation> {
    let Some(revision) = group.claims().map(|claim| claim.mod_revision).max() else {
        return Vec::new();
    };
    if group.claims().count() < 2 {
        return Vec::new();
    }
    let without = group.claims().filter(|claim| !claim.has_confirmed(revision));
    without.map(|claim| MissingConfirmation { node: claim.node.clone(), revision }).collect()
}
