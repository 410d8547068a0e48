// SPDX-License-Identifier: Apache-2.0
//! What the evaluator remembers of each group: pending conditions, and the changes of its claimants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;

use vipwatch_core::Moment;
use vipwatch_core::flapping::{FLAP_SPAN, MIN_TRANSITIONS};

use super::condition::{FindingCondition, gone_claims};
use crate::group::{Group, GroupMember};
use crate::key::{Bucket, ClusterName};
use crate::view::ClusterView;
use vipwatch_core::FindingKind;

/// The maximum number of nodes that have left a group.
// BOUND: every client of etcd can add members and delete them.
const MAX_LEFT: usize = 8;

/// The groups of one bucket.
#[derive(Debug, Default)]
pub(super) struct BucketTrack {
    /// [`settings_of`] its groups.
    pub(super) settings: u64,
    groups: Vec<GroupTrack>,
}

impl BucketTrack {
    pub(super) fn new(settings: u64, groups: usize) -> Self {
        // Most buckets have one group, so spare room would cost much.
        Self { settings, groups: Vec::with_capacity(groups) }
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
            if let Some(detail) = &mut group.detail {
                detail.pending.clear();
            }
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

/// One group. The evaluator has one for each group of the domain, so the parts that most groups do not need are apart.
#[derive(Debug)]
pub(super) struct GroupTrack {
    id: Box<str>,
    /// A number of the set of claimants; `None` before the first evaluation.
    claimants: Option<NonZeroU64>,
    /// The nodes with an instance in the group.
    members: Box<[ClusterName]>,
    /// `None` if nothing has changed and no condition holds.
    detail: Option<Box<TrackDetail>>,
}

#[derive(Debug, Default)]
struct TrackDetail {
    /// The times of the last changes of the claimants, at most [`MIN_TRANSITIONS`].
    changes: VecDeque<Moment>,
    /// The conditions that hold, each with the time since when.
    pending: Vec<(FindingKind, Moment)>,
    /// Since when nobody can say whether an open finding of this kind is over: a node is stopped or lost.
    absent: Vec<(FindingKind, Moment)>,
    /// The absent nodes that claimed the addresses before a live node did.
    succeeded: Vec<ClusterName>,
    /// The nodes that have left the group.
    left: Vec<ClusterName>,
}

impl GroupTrack {
    fn new(id: &str) -> Self {
        Self { id: id.into(), claimants: None, members: Box::default(), detail: None }
    }

    /// Compares the claimants with those of the last evaluation. They are the nodes that have published a claim, also those
    /// that are not live: a lost node and its return are no change of a role.
    pub(super) fn count_claimants(&mut self, group: &Group, now: Moment) {
        let claims = group.members.iter().filter(|member| member.has_claim());
        let claimants = claims.map(|member| &member.node).collect();
        let before = self.claimants.replace(number_of(&claimants));
        if before.is_none() || before == self.claimants {
            return;
        }
        let changes = &mut self.detail.get_or_insert_default().changes;
        if changes.len() == MIN_TRANSITIONS {
            changes.pop_front();
        }
        changes.push_back(now);
    }

    /// Notes which nodes have left the group, and whose addresses a live node has taken over.
    pub(super) fn note_members(&mut self, group: &Group) {
        let is_member = |name: &ClusterName| group.members.iter().any(|it| it.node == *name);
        let is_held = group.claims().any(|claim| claim.seen != Some(0));
        let succeeded: Vec<ClusterName> =
            gone_claims(group).filter(|_| is_held).map(|it| it.node.clone()).collect();
        let left: Vec<ClusterName> =
            self.members.iter().filter(|name| !is_member(name)).cloned().collect();
        if self.members.len() != group.members.len() || !left.is_empty() {
            self.members = group.members.iter().map(|member| member.node.clone()).collect();
        }
        if self.detail.is_none() && succeeded.is_empty() && left.is_empty() {
            return;
        }
        let detail = self.detail.get_or_insert_default();
        detail.left.retain(|name| !is_member(name));
        detail.left.extend(left);
        detail.left.truncate(MAX_LEFT);
        detail.succeeded.retain(|name| gone_claims(group).any(|it| it.node == *name));
        let new = succeeded.into_iter().filter(|name| !detail.succeeded.contains(name));
        let new: Vec<ClusterName> = new.collect();
        detail.succeeded.extend(new);
    }

    /// The group has enough backups without the nodes that have left it.
    pub(super) fn forget_left(&mut self) {
        if let Some(detail) = &mut self.detail {
            detail.left.clear();
        }
    }

    /// The absent nodes that a live one has succeeded, and those that have left the group.
    pub(super) fn former_nodes(&self) -> (Vec<ClusterName>, Vec<ClusterName>) {
        let detail = self.detail.as_deref();
        detail.map(|it| (it.succeeded.clone(), it.left.clone())).unwrap_or_default()
    }

    /// Since when the claimants have changed so often that the group is flapping; `None` if it is not.
    pub(super) fn flapping_since(&self, now: Moment) -> Option<Moment> {
        let changes = &self.detail.as_ref()?.changes;
        let oldest = changes.front().filter(|_| changes.len() == MIN_TRANSITIONS)?;
        (now.since(*oldest) < FLAP_SPAN).then_some(*oldest)
    }

    /// Forgets the conditions that no longer hold, and changes that no longer count.
    pub(super) fn keep_pending(&mut self, conditions: &[FindingCondition], now: Moment) {
        let Some(detail) = &mut self.detail else { return };
        let holds = |kind| conditions.iter().any(|condition| condition.kind == kind);
        detail.pending.retain(|(kind, _)| holds(*kind));
        detail.changes.retain(|at| now.since(*at) < FLAP_SPAN);
        let has_nodes = !detail.succeeded.is_empty() || !detail.left.is_empty();
        let is_empty = detail.pending.is_empty() && detail.changes.is_empty();
        if is_empty && detail.absent.is_empty() && !has_nodes {
            self.detail = None;
        }
    }

    /// Since when a node that a finding needs is stopped or lost; from `now` on if it was live before.
    pub(super) fn absent_since(&mut self, kind: FindingKind, now: Moment) -> Moment {
        let absent = &mut self.detail.get_or_insert_default().absent;
        let known = absent.iter().find(|(known, _)| *known == kind).map(|(_, since)| *since);
        known.unwrap_or_else(|| {
            absent.push((kind, now));
            now
        })
    }

    /// The nodes are live, or the finding is over.
    pub(super) fn forget_absence(&mut self, kind: FindingKind) {
        if let Some(detail) = &mut self.detail {
            detail.absent.retain(|(known, _)| *known != kind);
        }
    }

    pub(super) fn is_pending(&self, kind: FindingKind) -> bool {
        let pending = self.detail.iter().flat_map(|detail| &detail.pending);
        pending.into_iter().any(|(pending, _)| *pending == kind)
    }

    /// Since when a condition holds; from `now` on if it is new.
    pub(super) fn pending_since(&mut self, kind: FindingKind, now: Moment) -> Moment {
        let pending = &mut self.detail.get_or_insert_default().pending;
        let known = pending.iter().find(|(pending, _)| *pending == kind);
        if let Some((_, since)) = known {
            return *since;
        }
        pending.push((kind, now));
        now
    }
}

/// A number that differs for different sets of nodes.
fn number_of(nodes: &BTreeSet<&ClusterName>) -> NonZeroU64 {
    let mut hasher = DefaultHasher::new();
    nodes.hash(&mut hasher);
    NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN)
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

/// The first revision that each claim is not confirmed against: one for each claim, not for each pair.
fn missing_in(group: &Group) -> Vec<MissingConfirmation> {
    let claims: Vec<&GroupMember> = group.claims().collect();
    let missing = claims.iter().filter_map(|claim| {
        let others = claims.iter().filter(|other| other.node != claim.node);
        let revisions = others.map(|other| claim.mod_revision.max(other.mod_revision));
        let revision = revisions.filter(|revision| !claim.has_confirmed(*revision)).min()?;
        Some(MissingConfirmation { node: claim.node.clone(), revision })
    });
    missing.collect()
}
