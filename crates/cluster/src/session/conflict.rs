// SPDX-License-Identifier: Apache-2.0
//! Claims of two nodes in one group. Each of the nodes confirms its claim at once, instead of with its next heartbeat, so
//! that two primaries are confirmed within milliseconds, and a failover that is in progress is not taken for them.

use std::collections::{BTreeMap, BTreeSet};

use vipwatch_api::{ClusterNodeState, RoleKind};
use vipwatch_core::InstanceId;

use crate::group::compared_addresses;
use crate::key::{Bucket, ClusterName};
use crate::view::{ClusterView, RoleView};

/// The buckets in which two live nodes claim the same address, and this node is one of them.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    buckets: BTreeMap<Bucket, Conflict>,
}

/// The claims of this node that other live nodes make too.
#[derive(Debug, PartialEq, Eq)]
struct Conflict {
    instances: BTreeSet<InstanceId>,
    /// The greatest revision of the claims: a confirmation must be later.
    revision: i64,
}

impl Conflicts {
    /// The roles of a bucket, or the state of one of its nodes, have changed.
    pub(super) fn check(&mut self, view: &ClusterView, own: &ClusterName, bucket: &Bucket) {
        match conflict(view, own, bucket) {
            Some(conflict) => {
                self.buckets.insert(bucket.clone(), conflict);
            }
            None => {
                self.buckets.remove(bucket);
            }
        }
    }

    /// Whether a heartbeat of another node can decide a conflict.
    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Whether a claim is not confirmed after `seen`.
    pub(super) fn has_unconfirmed(&self, seen: i64) -> bool {
        self.buckets.values().any(|conflict| conflict.revision > seen)
    }

    /// The instances with claims that are not confirmed after `seen`.
    pub(super) fn unconfirmed(&self, seen: i64) -> Vec<InstanceId> {
        let unconfirmed = self.buckets.values().filter(|conflict| conflict.revision > seen);
        unconfirmed.flat_map(|conflict| conflict.instances.iter().cloned()).collect()
    }
}

/// The conflict in a bucket; `None` if there is none with this node.
fn conflict(view: &ClusterView, own: &ClusterName, bucket: &Bucket) -> Option<Conflict> {
    let is_live = |role: &RoleView| {
        let node = view.node(&role.node);
        node.is_some_and(|node| node.state == ClusterNodeState::Live)
    };
    let claims: Vec<RoleView> =
        view.roles(bucket).filter(|role| is_claim(role) && is_live(role)).collect();
    let (mine, others): (Vec<RoleView>, Vec<RoleView>) =
        claims.into_iter().partition(|role| role.node == *own);
    let mut conflict = Conflict { instances: BTreeSet::new(), revision: 0 };
    for claim in &mine {
        for other in others.iter().filter(|other| is_same_group(bucket, claim, other)) {
            let revision = claim.mod_revision.max(other.mod_revision);
            conflict.revision = conflict.revision.max(revision);
            conflict.instances.extend(claim.record.instance.parse().ok());
        }
    }
    (!conflict.instances.is_empty()).then_some(conflict)
}

fn is_claim(role: &RoleView) -> bool {
    matches!(role.record.role, RoleKind::Primary | RoleKind::Partial)
}

/// In the bucket of a VRID, only instances with a common address belong together.
fn is_same_group(bucket: &Bucket, one: &RoleView, other: &RoleView) -> bool {
    if !matches!(bucket, Bucket::Vrrp { .. }) {
        return true;
    }
    !compared_addresses(&one.record).is_disjoint(&compared_addresses(&other.record))
}

#[cfg(test)]
mod tests;
