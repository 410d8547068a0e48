// SPDX-License-Identifier: Apache-2.0
//! Tests of the drain check with a cluster.

use super::*;
use crate::cluster::sample;
use crate::drain::rules::tests::{facts, instance};
use crate::{
    ClusterBasis, ClusterGroupItem, ClusterScope, ClusterSource, DrainVerdict, GroupState, Schema,
    drain_check,
};

fn member(node: &str, node_state: ClusterNodeState, role: RoleKind) -> ClusterMemberItem {
    ClusterMemberItem { node_state, ..sample::member(node, role) }
}

/// The view of `a`, with itself and these other nodes.
fn cluster(
    own: RoleKind,
    others: Vec<ClusterMemberItem>,
    connection: ClusterConnectionState,
) -> ClusterGroupList {
    let members = [vec![member("a", ClusterNodeState::Live, own)], others].concat();
    ClusterGroupList {
        schema: Schema::ClusterGroups,
        basis: ClusterBasis {
            node: Some("a".to_owned()),
            source: ClusterSource::Node,
            domain: Some("default".to_owned()),
            scope: ClusterScope::Own,
            connection,
            endpoint: None,
            stale_since: None,
            error: None,
            revision: 1,
            unknown: Vec::new(),
        },
        items: vec![ClusterGroupItem {
            id: "group:x".to_owned(),
            state: GroupState::OnePrimary,
            primaries: Vec::new(),
            addresses: Vec::new(),
            members,
            findings: Vec::new(),
        }],
    }
}

#[test]
fn in_a_cluster_another_live_node_must_hold_the_addresses_or_be_able_to_take_over() {
    use RoleKind::{Backup, Primary};
    let live = |node: &str, role| member(node, ClusterNodeState::Live, role);
    let lost = |node: &str, role| member(node, ClusterNodeState::Lost, role);
    let connected = ClusterConnectionState::Connected;
    let check = |own: RoleKind, others, connection| {
        let instances = vec![instance("VI_1", own)];
        let cluster = Some(cluster(own, others, connection));
        drain_check(DrainFacts { instances, cluster, ..facts() })
    };
    let names = |reasons: &[DrainReason]| -> Vec<String> {
        reasons.iter().map(|reason| reason.name.clone()).collect()
    };
    let safe = check(Backup, vec![live("b", Primary), live("c", Backup)], connected);
    assert_eq!((safe.verdict, safe.notes.len()), (DrainVerdict::Safe, 0));
    assert_eq!(names(&safe.not_known), Vec::<String>::new());
    let last_one = check(Backup, vec![live("b", Primary), lost("c", Backup)], connected);
    assert_eq!(
        (last_one.verdict, names(&last_one.notes)),
        (DrainVerdict::Safe, vec!["last-backup".into()])
    );
    let alone = check(Backup, vec![lost("b", Primary), live("c", Backup)], connected);
    assert_eq!(names(&alone.blocking), ["no-primary"]);
    let held = check(Primary, vec![lost("b", Backup)], connected);
    assert_eq!(names(&held.blocking), ["primary-here", "no-backup-elsewhere"]);
    let ready = check(Primary, vec![live("b", Backup)], connected);
    assert_eq!(names(&ready.blocking), ["primary-here"]);
    let old = check(Backup, vec![lost("b", Primary)], ClusterConnectionState::Stale);
    assert_eq!(old.verdict, DrainVerdict::Safe, "an old view decides nothing");
    assert_eq!(names(&old.not_known), ["other-backups"]);
}
