// SPDX-License-Identifier: Apache-2.0
//! The documents about the cluster. Without `[cluster]` they are empty, and say what one node cannot know.

use vipwatch_api::{
    ClusterBasis, ClusterConnectionState, ClusterFilter, ClusterFindingList, ClusterGroupList,
    ClusterHistory, ClusterNodeList, ClusterScope, ClusterSource, ClusterStatus, GroupSummary,
    IgnoredSummary, NodeSummary, Schema,
};

use super::ApiContext;

/// What a node without a cluster cannot know.
const UNKNOWN_WITHOUT_CLUSTER: [&str; 3] = [
    "One node cannot know whether another node holds the same addresses, or whether any node holds them.",
    "One node cannot know which nodes could take over, and whether another node is lost.",
    "endpoints = [\"https://HOST:2379\"] in [cluster] of the configuration of each node shares the roles through etcd.",
];

/// The cluster in numbers.
pub fn cluster_status(context: &ApiContext) -> ClusterStatus {
    ClusterStatus {
        schema: Schema::Cluster,
        basis: basis_without_cluster(context),
        reporter: None,
        nodes: NodeSummary::default(),
        groups: GroupSummary::default(),
        findings: 0,
        ignored: IgnoredSummary::default(),
    }
}

/// The groups that a filter selects.
pub fn cluster_groups(context: &ApiContext, filter: &ClusterFilter) -> ClusterGroupList {
    let basis = basis_without_cluster(context);
    let mut list = ClusterGroupList { schema: Schema::ClusterGroups, basis, items: Vec::new() };
    list.items.retain(|group| filter.selects(group));
    list
}

/// The nodes.
pub fn cluster_nodes(context: &ApiContext) -> ClusterNodeList {
    let basis = basis_without_cluster(context);
    ClusterNodeList { schema: Schema::ClusterNodes, basis, items: Vec::new() }
}

/// The open findings about several nodes.
pub fn cluster_findings(context: &ApiContext) -> ClusterFindingList {
    let basis = basis_without_cluster(context);
    ClusterFindingList { schema: Schema::ClusterFindings, basis, items: Vec::new() }
}

/// The last transitions and findings.
pub fn cluster_history(context: &ApiContext) -> ClusterHistory {
    let basis = basis_without_cluster(context);
    ClusterHistory { schema: Schema::ClusterHistory, basis, items: Vec::new() }
}

fn basis_without_cluster(context: &ApiContext) -> ClusterBasis {
    ClusterBasis {
        node: Some(context.node.to_string()),
        source: ClusterSource::Node,
        domain: None,
        scope: ClusterScope::Own,
        connection: ClusterConnectionState::Off,
        endpoint: None,
        stale_since: None,
        error: None,
        revision: 0,
        unknown: UNKNOWN_WITHOUT_CLUSTER.map(str::to_owned).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, direct};

    #[test]
    fn a_node_without_a_cluster_says_what_it_cannot_know() {
        let directory = tempfile::tempdir().unwrap();
        let state_dir = directory.path().to_owned();
        let name = Some("net-1".parse().unwrap());
        let context = direct::history_context(&Config { state_dir, name, ..Config::default() });
        let status = cluster_status(&context);
        assert_eq!(status.basis.node.as_deref(), Some("net-1"));
        assert_eq!(status.basis.connection, ClusterConnectionState::Off);
        assert!(status.basis.unknown.iter().any(|line| line.contains("endpoints = [")));
        let groups = cluster_groups(&context, &ClusterFilter::default());
        assert!(groups.items.is_empty() && groups.basis == status.basis);
    }
}
