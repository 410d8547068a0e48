// SPDX-License-Identifier: Apache-2.0
//! Documents of a cluster for tests; a test changes the fields that it is about.

use super::{
    ClusterBasis, ClusterConnectionState, ClusterMemberItem, ClusterNodeItem, ClusterNodeState,
    ClusterScope, ClusterSource,
};
use crate::{RoleKind, Timestamp};

/// The basis of an answer from etcd.
pub(crate) fn basis() -> ClusterBasis {
    ClusterBasis {
        node: None,
        source: ClusterSource::Etcd,
        domain: Some("default".to_owned()),
        scope: ClusterScope::Full,
        connection: ClusterConnectionState::Connected,
        endpoint: None,
        stale_since: None,
        error: None,
        revision: 7,
        unknown: Vec::new(),
    }
}

/// A live node.
pub(crate) fn node(name: &str) -> ClusterNodeItem {
    ClusterNodeItem {
        node: name.to_owned(),
        state: ClusterNodeState::Live,
        is_reporter: false,
        version: None,
        epoch: "e".to_owned(),
        heartbeat: Some(1),
        at: Timestamp::UNIX_EPOCH,
        instances: 1,
        primaries: 0,
        backups: 0,
        followed: Some(1),
    }
}

/// The instance `VI_1` on a live node.
pub(crate) fn member(node: &str, role: RoleKind) -> ClusterMemberItem {
    ClusterMemberItem {
        node: node.to_owned(),
        node_state: ClusterNodeState::Live,
        instance: "VI_1".to_owned(),
        role,
        reason: None,
        since: None,
        seq: 1,
        cause: None,
        priority: None,
        netns: None,
        interface: "eth0".to_owned(),
        findings: Vec::new(),
        confirmed: true,
        keepalived: Some(true),
        hears_other: None,
        source: None,
        sync_group: None,
        missing: Vec::new(),
    }
}
