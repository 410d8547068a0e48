// SPDX-License-Identifier: Apache-2.0
//! The states of the cluster, one after the other: from the node, or from etcd.

use std::time::Duration;

use vipwatch_api::ClusterState;
use vipwatch_cluster::document;
use vipwatch_cluster::reader::{EtcdReader, ReadProgress};

use super::super::basis::check_configured;
use super::super::node_feed::NodeFeed;
use super::super::source::{self, ClusterReader};
use crate::args::{EtcdOptions, NodeOptions, OutputOptions};
use crate::failure::{CommandError, note};
use crate::reconnect::{RetryWaits, is_temporary};

/// Maximum time of one wait for etcd.
const ETCD_WAIT: Duration = Duration::from_mins(1);

/// Follows the cluster.
pub(super) enum ClusterFeed {
    /// The view of a node.
    Node(NodeFeed),
    /// etcd.
    Etcd(Box<EtcdReader>),
}

impl ClusterFeed {
    /// The feed that the options choose.
    pub(super) fn open(options: &NodeOptions, etcd: &EtcdOptions) -> Result<Self, CommandError> {
        Ok(match ClusterReader::open(options, etcd)? {
            ClusterReader::Node { client, .. } => Self::Node(NodeFeed::new(client)),
            ClusterReader::Etcd(reader) => Self::Etcd(reader),
        })
    }

    /// The current state.
    pub(super) fn first(&mut self) -> Result<ClusterState, CommandError> {
        match self {
            Self::Node(feed) => {
                let state = feed.next().map_err(|error| source::no_answer(&error))?;
                check_configured(&state.basis)?;
                Ok(state)
            }
            Self::Etcd(reader) => Ok(state_of(reader)),
        }
    }

    /// The next state; waits for a change. After a lost connection, it connects again.
    pub(super) fn next(&mut self, output: &OutputOptions) -> Result<ClusterState, CommandError> {
        match self {
            Self::Node(feed) => next_of_node(feed, output),
            Self::Etcd(reader) => {
                while reader.wait(ETCD_WAIT) == ReadProgress::Unchanged {}
                Ok(state_of(reader))
            }
        }
    }
}

fn next_of_node(feed: &mut NodeFeed, output: &OutputOptions) -> Result<ClusterState, CommandError> {
    let mut waits: Option<RetryWaits> = None;
    loop {
        match feed.next() {
            Ok(state) => {
                if waits.is_some() {
                    note(output, "connected again");
                }
                return Ok(state);
            }
            Err(error) if is_temporary(&error) => {
                if waits.is_none() {
                    note(output, &format!("{error}; connecting again"));
                }
                waits.get_or_insert_default().pause();
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The state that was read from etcd.
fn state_of(reader: &EtcdReader) -> ClusterState {
    let groups = source::from_etcd(reader, document::groups);
    ClusterState {
        basis: groups.basis,
        groups: groups.items,
        nodes: source::from_etcd(reader, document::nodes).items,
        findings: source::from_etcd(reader, document::findings).items,
    }
}
