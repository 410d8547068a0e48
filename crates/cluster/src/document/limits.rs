// SPDX-License-Identifier: Apache-2.0
//! The facts that an answer about the cluster cannot know, a sentence each.

use vipwatch_api::{ClusterBasis, ClusterNodeState, GroupState};

use crate::group::Group;
use crate::key::ClusterName;
use crate::view::ClusterView;

/// Adds the sentences that follow from the view.
pub(super) fn add(mut basis: ClusterBasis, view: &ClusterView) -> ClusterBasis {
    for node in view.nodes() {
        let name = node.name;
        basis.unknown.extend(match node.state {
            ClusterNodeState::Live => None,
            ClusterNodeState::Lost => {
                Some(format!("node {name} is lost: its roles are the last known ones"))
            }
            ClusterNodeState::Stopped => Some(format!(
                "vipwatch on node {name} was stopped: its roles are the last known ones"
            )),
        });
    }
    let ignored = view.ignored();
    let counts = [
        (ignored.foreign_keys, "keys in etcd that are not of vipwatch and are not used"),
        (ignored.invalid_values, "values in etcd that are not valid records and are not used"),
        (ignored.newer_values, "values in etcd that are of a later release and are not used"),
        (
            ignored.surplus_records,
            "records in etcd beyond the limits of this view that are not used",
        ),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    basis.unknown.extend(counts.map(|(count, text)| format!("{text}: {count}")));
    basis
}

/// The sentence about a group with claims that are not confirmed.
pub(super) fn of_group(group: &Group) -> Option<String> {
    let claims: Vec<&str> = group.primaries().into_iter().map(ClusterName::as_str).collect();
    if group.state() != GroupState::Unknown || claims.len() < 2 {
        return None;
    }
    let (id, nodes) = (&group.id, claims.join(" and "));
    Some(format!(
        "the group {id} has the claims of {nodes}, and not all of them have confirmed it: one may have crashed"
    ))
}
