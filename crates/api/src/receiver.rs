// SPDX-License-Identifier: Apache-2.0
//! The states that monitors report to a receiver: `GET /v1/reports`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Schema, TargetItem};

/// The last report about one router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportItem {
    /// The id of the router.
    pub id: String,
    /// The reported state in the monitor's word.
    pub reported: String,
    /// When it was reported.
    pub at: Timestamp,
    /// The state that the receiver has settled on; null if there is none yet.
    pub settled: Option<String>,
    /// The settled state in the word of Neutron's server: `active`, `standby` or `unknown`; null if there is none yet.
    pub state: Option<String>,
    /// Whether the report is held back for one advert interval.
    pub held: bool,
    /// The number of reports since the receiver started.
    pub reports: u64,
}

/// A problem of the receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReceiverProblem {
    /// The stable name.
    pub name: String,
    /// The problem.
    pub text: String,
}

/// The answer to `GET /v1/reports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportList {
    /// [`Schema::Reports`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// When the receiver started.
    pub since: Timestamp,
    /// The last report about each router, in the order of their ids.
    pub items: Vec<ReportItem>,
    /// The targets of settled reports.
    pub targets: Vec<TargetItem>,
    /// Reports that were accepted.
    pub accepted: u64,
    /// Reports that a newer one replaced before it was settled.
    pub coalesced: u64,
    /// Rejected requests by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Reports that were refused because the journal could not be written.
    pub unavailable: u64,
    /// Reports that wait for the journal.
    pub pending: u64,
    /// Open connections of monitors.
    pub connections: u64,
    /// The problems of the receiver.
    pub problems: Vec<ReceiverProblem>,
}
