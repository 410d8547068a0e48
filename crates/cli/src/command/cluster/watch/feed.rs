// SPDX-License-Identifier: Apache-2.0
//! The states of the cluster, one after the other: from the node.

use vipwatch_api::ClusterState;
use vipwatch_api::client::{Client, ClientError};

use super::super::basis::check_configured;
use crate::args::{EtcdOptions, NodeOptions, OutputOptions};
use crate::failure::{CommandError, note};
use crate::reconnect::{RetryWaits, is_temporary};

/// A number of changes that no node has: it begins with 1, so the node answers at once.
const NO_CHANGE: u64 = 0;

/// Follows the cluster.
#[derive(Debug)]
pub(super) enum ClusterFeed {
    /// The view of a node.
    Node(NodeFeed),
}

/// Follows the view of a node: waits for a change of the view, and reads its documents.
#[derive(Debug)]
pub(super) struct NodeFeed {
    client: Client,
    /// The number of the view's last change that has been read.
    seen: u64,
}

impl ClusterFeed {
    /// The feed that the options choose.
    pub(super) fn open(options: &NodeOptions, _etcd: &EtcdOptions) -> Result<Self, CommandError> {
        let node = options.settings()?;
        Ok(Self::Node(NodeFeed { client: Client::new(&node.config.socket), seen: NO_CHANGE }))
    }

    /// The current state.
    pub(super) fn first(&mut self) -> Result<ClusterState, CommandError> {
        match self {
            Self::Node(feed) => {
                let state = feed.read()?;
                check_configured(&state.basis)?;
                Ok(state)
            }
        }
    }

    /// The next state; waits for a change. After a lost connection, it connects again.
    pub(super) fn next(&mut self, output: &OutputOptions) -> Result<ClusterState, CommandError> {
        match self {
            Self::Node(feed) => feed.next(output),
        }
    }
}

impl NodeFeed {
    fn next(&mut self, output: &OutputOptions) -> Result<ClusterState, CommandError> {
        let mut waits: Option<RetryWaits> = None;
        loop {
            match self.changed() {
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
                    // A restarted node counts its changes anew.
                    self.seen = NO_CHANGE;
                    waits.get_or_insert_default().pause();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The state after the next change.
    fn changed(&mut self) -> Result<ClusterState, ClientError> {
        while self.client.cluster_changes(self.seen)?.changes == self.seen {}
        self.read()
    }

    fn read(&mut self) -> Result<ClusterState, ClientError> {
        // ORDER: the number before the documents, so that no change between them is missed.
        self.seen = self.client.cluster_changes(NO_CHANGE)?.changes;
        let groups = self.client.cluster_groups()?;
        Ok(ClusterState {
            basis: groups.basis,
            groups: groups.items,
            nodes: self.client.cluster_nodes()?.items,
            findings: self.client.cluster_findings()?.items,
        })
    }
}
