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
use crate::args::{EtcdOptions, NodeOptions, OutputOptions};
use crate::failure::{CommandError, note, warn};
use crate::source::timed;

/// Reads the documents of the cluster.
pub(super) enum ClusterReader<'a> {
    /// From the API of a node.
    Node { client: Client, output: &'a OutputOptions },
    /// From etcd, which was read once.
    Etcd(Box<EtcdReader>),
}

impl<'a> ClusterReader<'a> {
    /// The reader that the options choose. If no node is listening, etcd is read with the settings of the node.
    pub(super) fn open(options: &'a NodeOptions, etcd: &EtcdOptions) -> Result<Self, CommandError> {
        let output = &options.output;
        if !etcd.etcd.is_empty() {
            return Ok(Self::of_etcd(etcd::open(etcd)?, output));
        }
        let node = options.settings()?;
        let client = Client::new(&node.config.socket);
        match client.version() {
            Ok(_) => Ok(Self::Node { client, output }),
            Err(error @ ClientError::NotListening(_)) => {
                node.check_read()?;
                let cluster = &node.config.cluster;
                if !cluster.is_enabled() {
                    return Err(no_answer(&error));
                }
                let endpoints = cluster.endpoints.join(", ");
                // Also with --quiet: another source than the node answers.
                warn(&format!(
                    "{error}; reading etcd at {endpoints}, from [cluster] of the configuration"
                ));
                Ok(Self::of_etcd(etcd::open_configured(cluster)?, output))
            }
            Err(error) => Err(no_answer(&error)),
        }
    }

    fn of_etcd(reader: EtcdReader, output: &OutputOptions) -> Self {
        if output.verbose {
            let endpoint = reader.basis().endpoint.unwrap_or_default();
            note(output, &format!("answered by etcd at {endpoint}"));
        }
        Self::Etcd(Box::new(reader))
    }

    /// The cluster in numbers.
    pub(super) fn status(&self) -> Result<ClusterStatus, CommandError> {
        match self {
            Self::Node { client, output } => {
                query(client, output, Client::cluster, |status| &status.basis)
            }
            Self::Etcd(reader) => Ok(from_etcd(reader, document::status)),
        }
    }

    /// The groups.
    pub(super) fn groups(&self) -> Result<ClusterGroupList, CommandError> {
        match self {
            Self::Node { client, output } => {
                query(client, output, Client::cluster_groups, |list| &list.basis)
            }
            Self::Etcd(reader) => Ok(from_etcd(reader, document::groups)),
        }
    }

    /// The nodes.
    pub(super) fn nodes(&self) -> Result<ClusterNodeList, CommandError> {
        match self {
            Self::Node { client, output } => {
                query(client, output, Client::cluster_nodes, |list| &list.basis)
            }
            Self::Etcd(reader) => Ok(from_etcd(reader, document::nodes)),
        }
    }

    /// The open findings.
    pub(super) fn findings(&self) -> Result<ClusterFindingList, CommandError> {
        match self {
            Self::Node { client, output } => {
                query(client, output, Client::cluster_findings, |list| &list.basis)
            }
            Self::Etcd(reader) => Ok(from_etcd(reader, document::findings)),
        }
    }

    /// The last transitions and findings.
    pub(super) fn history(&self) -> Result<ClusterHistory, CommandError> {
        let all = ClusterHistorySelection { group: None, since: None, limit: usize::MAX };
        match self {
            Self::Node { client, output } => {
                query(client, output, Client::cluster_history, |list| &list.basis)
            }
            Self::Etcd(reader) => {
                Ok(from_etcd(reader, |view, basis| document::history(view, basis, all)))
            }
        }
    }
}

/// A document of the node; an error if the node has no cluster.
fn query<T>(
    client: &Client,
    output: &OutputOptions,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
    basis: impl FnOnce(&T) -> &ClusterBasis,
) -> Result<T, CommandError> {
    let document = timed(output, client, from_node).map_err(|error| no_answer(&error))?;
    check_configured(basis(&document))?;
    Ok(document)
}

/// The error of a query of the node. If the node does not answer, etcd has the answer too.
pub(super) fn no_answer(error: &ClientError) -> CommandError {
    let hint = match error {
        ClientError::NotListening(_) => {
            "start `vipwatch node`, give its socket with --socket, or the address of etcd with --etcd"
        }
        ClientError::TimedOut { .. } | ClientError::Io { .. } | ClientError::Closed(_) => {
            "see `systemctl status vipwatch-node`; with --etcd, the command reads etcd instead"
        }
        ClientError::NotPermitted(_)
        | ClientError::InvalidAnswer { .. }
        | ClientError::Problem(_) => return error.into(),
    };
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
