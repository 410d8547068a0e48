// SPDX-License-Identifier: Apache-2.0
//! The comparison with Neutron in `GET /v1/cluster`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The comparison of the cluster view with Neutron's `ha_state`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterNeutron {
    /// The address of Neutron's API.
    pub url: String,
    /// Whether this node asks Neutron. Only the reporter does; the values below are those of the node that asks.
    pub is_asking: bool,
    /// When all routers were compared for the last time; null if they were not yet.
    pub compared: Option<Timestamp>,
    /// Since when requests fail; null if the last one was answered.
    pub failing_since: Option<Timestamp>,
    /// The error of the last request; null if it was answered.
    pub error: Option<String>,
    /// The results of the last comparison of all routers.
    pub routers: NeutronRouterSummary,
}

/// The number of routers with each result of the comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NeutronRouterSummary {
    /// Neutron has the primary as its only active host.
    pub equal: u64,
    /// Neutron has another active host, several or none. The finding is opened if that lasts.
    pub different: u64,
    /// Neither the primary nor an active host is known to both sides: the names of nodes and hosts differ.
    pub unmatched: u64,
    /// The cluster view has not exactly one primary, or Neutron has no HA router with this id.
    pub not_compared: u64,
}

impl NeutronRouterSummary {
    /// The number of all routers.
    pub fn total(&self) -> u64 {
        self.equal + self.different + self.unmatched + self.not_compared
    }
}
