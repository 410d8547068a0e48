// SPDX-License-Identifier: Apache-2.0
//! The source of an answer about the cluster: the view of the node.

use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{
    ClusterBasis, ClusterFindingList, ClusterGroupList, ClusterHistory, ClusterNodeList,
    ClusterStatus,
};

use super::basis::check_configured;
use crate::args::{EtcdOptions, NodeOptions};
use crate::failure::CommandError;
use crate::source::query_node;

/// Reads the documents of the cluster.
#[derive(Debug)]
pub(super) enum ClusterReader<'a> {
    /// From the API of a node.
    Node(&'a NodeOptions),
}

impl<'a> ClusterReader<'a> {
    /// The reader that the options choose.
    pub(super) fn open(
        options: &'a NodeOptions,
        _etcd: &EtcdOptions,
    ) -> Result<Self, CommandError> {
        Ok(Self::Node(options))
    }

    /// The cluster in numbers.
    pub(super) fn status(&self) -> Result<ClusterStatus, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster, |status| &status.basis),
        }
    }

    /// The groups.
    pub(super) fn groups(&self) -> Result<ClusterGroupList, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster_groups, |list| &list.basis),
        }
    }

    /// The nodes.
    pub(super) fn nodes(&self) -> Result<ClusterNodeList, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster_nodes, |list| &list.basis),
        }
    }

    /// The open findings.
    pub(super) fn findings(&self) -> Result<ClusterFindingList, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster_findings, |list| &list.basis),
        }
    }

    /// The last transitions and findings.
    pub(super) fn history(&self) -> Result<ClusterHistory, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster_history, |list| &list.basis),
        }
    }
}

/// A document of the node; an error if the node has no cluster.
fn query<T>(
    options: &NodeOptions,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
    basis: impl FnOnce(&T) -> &ClusterBasis,
) -> Result<T, CommandError> {
    let document = query_node(options, from_node)?;
    check_configured(basis(&document))?;
    Ok(document)
}
