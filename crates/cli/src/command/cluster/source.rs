// SPDX-License-Identifier: Apache-2.0
//! The source of an answer about the cluster: the view of the node, or etcd.

use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{
    ClusterBasis, ClusterFindingList, ClusterGroupList, ClusterHistory, ClusterNodeList,
    ClusterStatus,
};
use vipwatch_cluster::document::{self, ClusterHistorySelection};
use vipwatch_cluster::reader::EtcdReader;
use vipwatch_cluster::view::ClusterView;

use super::basis::check_configured;
use super::etcd;
use crate::args::{EtcdOptions, NodeOptions};
use crate::failure::{CommandError, note};
use crate::source::query_node_or;

/// Reads the documents of the cluster.
pub(super) enum ClusterReader<'a> {
    /// From the API of a node.
    Node(&'a NodeOptions),
    /// From etcd, which was read once.
    Etcd(Box<EtcdReader>),
}

impl<'a> ClusterReader<'a> {
    /// The reader that the options choose.
    pub(super) fn open(options: &'a NodeOptions, etcd: &EtcdOptions) -> Result<Self, CommandError> {
        if etcd.etcd.is_empty() {
            return Ok(Self::Node(options));
        }
        let reader = etcd::open(etcd)?;
        if options.output.verbose {
            let basis = reader.basis();
            let endpoint = basis.endpoint.unwrap_or_default();
            note(&options.output, &format!("answered by etcd at {endpoint}"));
        }
        Ok(Self::Etcd(Box::new(reader)))
    }

    /// The cluster in numbers.
    pub(super) fn status(&self) -> Result<ClusterStatus, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster, |status| &status.basis),
            Self::Etcd(reader) => Ok(from_etcd(reader, document::status)),
        }
    }

    /// The groups.
    pub(super) fn groups(&self) -> Result<ClusterGroupList, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster_groups, |list| &list.basis),
            Self::Etcd(reader) => Ok(from_etcd(reader, document::groups)),
        }
    }

    /// The nodes.
    pub(super) fn nodes(&self) -> Result<ClusterNodeList, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster_nodes, |list| &list.basis),
            Self::Etcd(reader) => Ok(from_etcd(reader, document::nodes)),
        }
    }

    /// The open findings.
    pub(super) fn findings(&self) -> Result<ClusterFindingList, CommandError> {
        match self {
            Self::Node(options) => query(options, Client::cluster_findings, |list| &list.basis),
            Self::Etcd(reader) => Ok(from_etcd(reader, document::findings)),
        }
    }

    /// The last transitions and findings.
    pub(super) fn history(&self) -> Result<ClusterHistory, CommandError> {
        let all = ClusterHistorySelection { group: None, since: None, limit: usize::MAX };
        match self {
            Self::Node(options) => query(options, Client::cluster_history, |list| &list.basis),
            Self::Etcd(reader) => {
                Ok(from_etcd(reader, |view, basis| document::history(view, basis, all)))
            }
        }
    }
}

/// A document of the node; an error if the node has no cluster.
fn query<T>(
    options: &NodeOptions,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
    basis: impl FnOnce(&T) -> &ClusterBasis,
) -> Result<T, CommandError> {
    let document = query_node_or(options, from_node, not_listening)?;
    check_configured(basis(&document))?;
    Ok(document)
}

/// The error if no node is listening: another node, or etcd, has the answer too.
pub(super) fn not_listening(error: &ClientError) -> CommandError {
    let hint =
        "start `vipwatch node`, give its socket with --socket, or the address of etcd with --etcd";
    CommandError::from(error).hint(hint)
}

/// A document of the view that was read from etcd.
pub(super) fn from_etcd<T>(
    reader: &EtcdReader,
    make: impl FnOnce(&ClusterView, ClusterBasis) -> T,
) -> T {
    let basis = reader.basis();
    make(&reader.view(), basis)
}
