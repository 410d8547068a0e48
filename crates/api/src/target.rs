// SPDX-License-Identifier: Apache-2.0
//! Targets: `GET /v1/targets`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Schema;

/// The kind of outlet that a target uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TargetKind {
    /// A program.
    Hook,
    /// An HTTP POST request for each notification or batch.
    Webhook,
    /// A server that receives the states of many routers in one request.
    Upstream,
    /// The IPv6 parameters of router namespaces.
    Ipv6,
    /// State files.
    StateFile,
    /// Gratuitous ARP and unsolicited neighbour advertisements.
    Announce,
    /// Neutron's L3 agent.
    Agent,
}

impl TargetKind {
    /// The kind as it is written in documents.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// A delivery that failed at its last attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailingDelivery {
    /// The id of the instance.
    pub id: String,
    /// The error of the last attempt.
    pub error: String,
}

/// The deliveries to one target since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TargetItem {
    /// The name of the target.
    pub name: String,
    /// The kind of outlet.
    pub kind: TargetKind,
    /// `node` for transitions, removals and findings; `receiver` for settled reports.
    pub source: String,
    /// Notifications that wait or are being delivered.
    pub pending: u64,
    /// Notifications that a silence holds back. They are not pending: they are delivered after the silence, also after a
    /// restart.
    #[serde(default)]
    pub silenced: u64,
    /// The time of the oldest pending notification; null if none is pending.
    pub oldest_pending: Option<Timestamp>,
    /// Notifications that the target has received.
    pub delivered: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Notifications that were given up after failed attempts.
    pub given_up: u64,
    /// Notifications that a newer one replaced before they were delivered.
    pub superseded: u64,
    /// Notifications that were not sent because of `on`, `settle` or a silence.
    pub filtered: u64,
    /// Notifications that were dropped because a queue was full or retention deleted them.
    pub dropped: u64,
    /// The instances for which the last attempt failed; at most 20.
    pub failing: Vec<FailingDelivery>,
}

/// The answer to `GET /v1/targets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TargetList {
    /// [`Schema::Targets`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The targets, by source and name.
    pub items: Vec<TargetItem>,
}
