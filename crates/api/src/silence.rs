// SPDX-License-Identifier: Apache-2.0
//! Silences: `GET /v1/silences`, `POST /v1/silences` and `DELETE /v1/silences/{number}`.
//!
//! A silence keeps hooks and webhooks from being notified of transitions and findings, for one instance or for all, until
//! it ends.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Schema;

/// A silence in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SilenceItem {
    /// The number of the silence; 0 for one of the cluster.
    pub number: i64,
    /// The id of the instance; null for all instances and the node.
    pub id: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// Why.
    pub reason: String,
    /// The user that created it.
    pub created_by: String,
    /// The id of a silence of the cluster, which `vipwatch cluster silence remove` ends; left out for one of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
}

/// The body of `POST /v1/silences`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SilenceRequest {
    /// The id of the instance, or the beginning of one id; null for all instances and the node.
    pub id: Option<String>,
    /// How long it lasts: 1 second to 30 days.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2_592_000))]
    pub seconds: u64,
    /// Why: 1 to 500 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500))]
    pub reason: String,
}

/// The answer to `GET /v1/silences`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SilenceList {
    /// [`Schema::Silences`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The silences in force, by number; then those of the cluster that cover the node or an instance.
    pub items: Vec<SilenceItem>,
}
