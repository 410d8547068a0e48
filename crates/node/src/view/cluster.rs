// SPDX-License-Identifier: Apache-2.0
//! The documents about the cluster. Without `[cluster]` they are empty, and say what one node cannot know.

use vipwatch_api::{
    ClusterBasis, ClusterConnectionState, ClusterFilter, ClusterFindingList, ClusterGroupList,
    ClusterHistory, ClusterNodeList, ClusterScope, ClusterSource, ClusterStatus, FindingItem,
    FindingScope,
};
use vipwatch_cluster::document::{self, ClusterHistorySelection};
use vipwatch_cluster::group::Group;
use vipwatch_cluster::key::{ClusterName, KeySpace};
use vipwatch_cluster::view::ClusterView;

use super::ApiContext;
use crate::cluster::ClusterService;
use crate::config::ClusterConfig;
use crate::event::NodeIdentity;
use vipwatch_core::FindingKind;

/// What a node without a cluster cannot know.
const UNKNOWN_WITHOUT_CLUSTER: [&str; 3] = [
    "one node cannot know whether another node holds the same addresses, or whether any node holds them",
    "one node cannot know which nodes could take over, and whether another node is lost",
    "endpoints = [\"https://HOST:2379\"] in [cluster] of the configuration of each node shares the roles through etcd",
];

/// Maximum number of events in the history of the cluster.
const MAX_HISTORY_EVENTS: usize = 10_000;

/// The cluster in numbers.
pub fn cluster_status(context: &ApiContext) -> ClusterStatus {
    let neutron = context.cluster.as_ref().and_then(ClusterService::neutron);
    ClusterStatus { neutron, ..read(context, document::status) }
}

/// The groups that a filter selects.
pub fn cluster_groups(context: &ApiContext, filter: &ClusterFilter) -> ClusterGroupList {
    read(context, |view, basis| {
        document::groups_where(view, basis, |group| is_selected(filter, group))
    })
}

/// The nodes.
pub fn cluster_nodes(context: &ApiContext) -> ClusterNodeList {
    read(context, document::nodes)
}

/// The open findings about several nodes.
pub fn cluster_findings(context: &ApiContext) -> ClusterFindingList {
    read(context, document::findings)
}

/// The last transitions and findings.
pub fn cluster_history(context: &ApiContext) -> ClusterHistory {
    let selection = ClusterHistorySelection { group: None, since: None, limit: MAX_HISTORY_EVENTS };
    read(context, |view, basis| document::history(view, basis, selection))
}

/// The open findings about several nodes that concern this node, as findings about its instances.
pub(super) fn own_findings(context: &ApiContext) -> Vec<FindingItem> {
    let Some(cluster) = &context.cluster else { return Vec::new() };
    let found = cluster.read(|view| {
        let mut parts = cluster.own_parts(view);
        let own = view.findings().map(|record| (record, parts.of(record)));
        let own = own.filter(|(_, part)| part.is_concerned);
        own.map(|(record, part)| {
            let item = document::finding_item(record, FindingScope::Cluster);
            let id = part.instance.map(|id| id.to_string());
            FindingItem { id, ..NodeIdentity::local_finding(&item) }
        })
        .collect()
    });
    found.unwrap_or_default()
}

/// Makes a document from the view, or from an empty view if there is none.
fn read<T>(context: &ApiContext, make: impl Fn(&ClusterView, ClusterBasis) -> T) -> T {
    let document = context.cluster.as_ref().and_then(|cluster| {
        let basis = with_limits(cluster, cluster.basis()?);
        cluster.read(|view| make(view, ClusterBasis { revision: view.revision(), ..basis }))
    });
    document.unwrap_or_else(|| {
        let view = ClusterView::new(KeySpace::new(&ClusterName::default_domain()));
        make(&view, basis_without_session(context))
    })
}

/// Adds what follows from the connection and from the configuration.
fn with_limits(cluster: &ClusterService, mut basis: ClusterBasis) -> ClusterBasis {
    let ClusterConfig { domain, .. } = cluster.config();
    basis.unknown.extend(match basis.connection {
        ClusterConnectionState::Connecting => {
            Some("the node has not read etcd since it started: it knows no other node".to_owned())
        }
        ClusterConnectionState::Stale => {
            Some("the connection to etcd is lost: other nodes may have changed since".to_owned())
        }
        ClusterConnectionState::Connected if !cluster.is_registered() => {
            Some("etcd does not have this node: other nodes do not see its roles".to_owned())
        }
        ClusterConnectionState::Off | ClusterConnectionState::Connected => None,
    });
    if basis.scope == ClusterScope::Own {
        basis.unknown.push(format!(
            "groups of the domain {domain} without an instance of this node are not in this view; view = \"full\" in \
             [cluster] adds them"
        ));
    }
    basis
}

/// The basis of a node without a cluster, or of one with a session that cannot start.
fn basis_without_session(context: &ApiContext) -> ClusterBasis {
    let config = context.cluster.as_ref().map(ClusterService::config);
    let error = context.store.health_problem(FindingKind::NodeCluster);
    let (connection, unknown) = match config {
        None => (ClusterConnectionState::Off, UNKNOWN_WITHOUT_CLUSTER.map(str::to_owned).to_vec()),
        Some(_) => (ClusterConnectionState::Connecting, error.iter().cloned().collect()),
    };
    ClusterBasis {
        node: Some(context.node.to_string()),
        source: ClusterSource::Node,
        domain: config.map(|config| config.domain.to_string()),
        scope: config.map_or(ClusterScope::Own, |config| config.scope),
        connection,
        endpoint: None,
        stale_since: None,
        error: error.filter(|_| config.is_some()),
        revision: 0,
        unknown,
    }
}

/// Whether a filter selects a group: it matches one value of every list that is not empty.
fn is_selected(filter: &ClusterFilter, group: &Group) -> bool {
    let ClusterFilter { states, nodes, groups, addresses } = filter;
    let is_member = |node: &String| group.members.iter().any(|one| one.node.as_str() == node);
    let held = || group.addresses();
    (states.is_empty() || states.contains(&group.state()))
        && (nodes.is_empty() || nodes.iter().any(is_member))
        && (groups.is_empty() || groups.iter().any(|id| group.id.starts_with(id.as_str())))
        && (addresses.is_empty() || addresses.iter().any(|address| held().contains(address)))
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
        let context = direct::history_context(&Config { name, state_dir, ..Config::default() });
        let status = cluster_status(&context);
        assert_eq!(status.basis.node.as_deref(), Some("net-1"));
        assert_eq!(status.basis.connection, ClusterConnectionState::Off);
        assert!(status.basis.unknown.iter().any(|line| line.contains("endpoints = [")));
        let groups = cluster_groups(&context, &ClusterFilter::default());
        assert!(groups.items.is_empty() && groups.basis == status.basis);
        assert!(own_findings(&context).is_empty());
    }
}
