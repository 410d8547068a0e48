// SPDX-License-Identifier: Apache-2.0
//! The history: `GET /v1/history`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{CauseItem, LatencyMap, RoleKind, Schema};

/// A transition in the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransitionItem {
    /// The sequence number.
    pub seq: i64,
    /// When the node read the change.
    pub at: Timestamp,
    /// The id of the instance.
    pub id: String,
    /// The network namespace; null for the node's own.
    pub netns: Option<String>,
    /// The role before; null if it was not known.
    pub from: Option<RoleKind>,
    /// The role after, or `removed` for an instance that is no longer configured.
    pub to: String,
    /// Why the node read the role: `start`, `address`, `link`, `namespace`, `resync`, `config`, `advert` or `audit`.
    pub trigger: String,
    /// Why the role changed.
    #[serde(flatten)]
    pub cause: CauseItem,
    /// Details of the role after; null if there are none.
    pub reason: Option<String>,
    /// The latencies of its deliveries.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, i64>))]
    pub latencies: LatencyMap,
}

/// Why the history has no entries for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum GapReason {
    /// No node ran.
    Stopped,
    /// The node was killed; it may have run for a part of this time.
    Killed,
    /// The file could not be written; the transitions were counted.
    NotWritten,
    /// Retention deleted the entries.
    Retention,
}

/// A time in which transitions may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GapItem {
    /// The last time that is recorded for certain.
    pub from: Timestamp,
    /// The time from which on transitions are recorded again.
    pub until: Timestamp,
    /// The reason.
    pub reason: GapReason,
    /// The number of transitions that are known to be missing; null if it is not known.
    pub count: Option<u64>,
}

/// An entry of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TimelineItem {
    /// A transition.
    Transition(TransitionItem),
    /// A gap, at the place where it happened.
    Gap(GapItem),
}

/// The answer to `GET /v1/history`. The server streams it: `items` comes last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistoryDocument {
    /// [`Schema::History`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history, which is the first part of event ids.
    pub epoch: String,
    /// The entries, oldest first.
    pub items: Vec<TimelineItem>,
}
