// SPDX-License-Identifier: Apache-2.0
//! The settings of a session.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use vipwatch_api::ClusterScope;

use crate::etcd::EtcdSettings;
use crate::findings::EvaluatorSettings;
use crate::key::ClusterName;
use crate::view::ViewLimits;

/// How a node takes part in the cluster.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// How etcd is reached.
    pub etcd: EtcdSettings,
    /// The domain.
    pub domain: ClusterName,
    /// The name of this node.
    pub node: ClusterName,
    /// The epoch of this node's history.
    pub epoch: String,
    /// The version of vipwatch.
    pub version: String,
    /// Which groups the view contains. The reporter's view contains all while it is the reporter.
    pub scope: ClusterScope,
    /// The time between two heartbeats.
    pub heartbeat: Duration,
    /// The lease of the process. It must be longer than two heartbeats.
    pub lease: Duration,
    /// The lease of the membership and of the roles: how long the last known roles of a lost node stay visible.
    pub membership: Duration,
    /// How long a finding stays visible after its end.
    pub retention: Duration,
    /// The time between two comparisons of the view with the keys of etcd.
    pub compare: Duration,
    /// When the reporter opens findings.
    pub evaluator: EvaluatorSettings,
    /// How much of etcd the view keeps.
    pub limits: ViewLimits,
}

impl SessionSettings {
    /// Settings with the default times, for the view of the node's own groups.
    pub fn new(etcd: EtcdSettings, domain: ClusterName, node: ClusterName, epoch: String) -> Self {
        Self {
            etcd,
            domain,
            node,
            epoch,
            version: String::new(),
            scope: ClusterScope::Own,
            heartbeat: Duration::from_secs(5),
            lease: Duration::from_secs(15),
            membership: Duration::from_hours(7 * 24),
            retention: Duration::from_hours(7 * 24),
            compare: Duration::from_mins(10),
            evaluator: EvaluatorSettings::default(),
            limits: ViewLimits::default(),
        }
    }

    /// A random number that differs in each process.
    pub(super) fn process_seed(&self) -> u64 {
        #[cfg(test)]
        if let Some(link) = &self.etcd.simulated {
            return link.process_seed();
        }
        // The keys of a hash map are random.
        RandomState::new().hash_one(&self.epoch)
    }
}
