// SPDX-License-Identifier: Apache-2.0
//! The states of the cluster as a node sees them, one after the other.

use vipwatch_api::ClusterState;
use vipwatch_api::client::{Client, ClientError};

/// A number of changes that no node has: it begins with 1, so the node answers at once.
const NO_CHANGE: u64 = 0;

/// Follows the view of a node: waits for a change of the view, and reads its documents.
#[derive(Debug)]
pub(in crate::command) struct NodeFeed {
    client: Client,
    /// The number of the view's last change that has been read.
    seen: u64,
}

impl NodeFeed {
    /// A feed that has not read anything yet.
    pub(in crate::command) fn new(client: Client) -> Self {
        Self { client, seen: NO_CHANGE }
    }

    /// The state of the cluster; waits until it differs from the one before. After an error, the next call does not wait: a
    /// restarted node counts its changes anew.
    pub(in crate::command) fn next(&mut self) -> Result<ClusterState, ClientError> {
        let state = self.changed();
        if state.is_err() {
            self.seen = NO_CHANGE;
        }
        state
    }

    fn changed(&mut self) -> Result<ClusterState, ClientError> {
        // ORDER: the number before the documents, so that no change between them is missed.
        self.seen = loop {
            let changes = self.client.cluster_changes(self.seen)?.changes;
            if changes != self.seen {
                break changes;
            }
        };
        let groups = self.client.cluster_groups()?;
        Ok(ClusterState {
            basis: groups.basis,
            groups: groups.items,
            nodes: self.client.cluster_nodes()?.items,
            findings: self.client.cluster_findings()?.items,
        })
    }
}
