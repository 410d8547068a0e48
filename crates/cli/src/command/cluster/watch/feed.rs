// SPDX-License-Identifier: Apache-2.0
//! The states of the cluster, one after the other: from the node.

use vipwatch_api::ClusterState;
use vipwatch_api::client::Client;

use super::super::basis::check_configured;
use super::super::node_feed::NodeFeed;
use crate::args::{EtcdOptions, NodeOptions, OutputOptions};
use crate::failure::{CommandError, note};
use crate::reconnect::{RetryWaits, is_temporary};

/// Follows the cluster.
#[derive(Debug)]
pub(super) enum ClusterFeed {
    /// The view of a node.
    Node(NodeFeed),
}

impl ClusterFeed {
    /// The feed that the options choose.
    pub(super) fn open(options: &NodeOptions, _etcd: &EtcdOptions) -> Result<Self, CommandError> {
        let node = options.settings()?;
        Ok(Self::Node(NodeFeed::new(Client::new(&node.config.socket))))
    }

    /// The current state.
    pub(super) fn first(&mut self) -> Result<ClusterState, CommandError> {
        match self {
            Self::Node(feed) => {
                let state = feed.next()?;
                check_configured(&state.basis)?;
                Ok(state)
            }
        }
    }

    /// The next state; waits for a change. After a lost connection, it connects again.
    pub(super) fn next(&mut self, output: &OutputOptions) -> Result<ClusterState, CommandError> {
        match self {
            Self::Node(feed) => next_of_node(feed, output),
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
