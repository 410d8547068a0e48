// SPDX-License-Identifier: Apache-2.0
//! The node itself: `GET /v1/status`, `/v1/version`, `/v1/config`, `POST /v1/reload`, `/healthz` and `/readyz`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AnswerSource, ConfigProblemItem, FindingItem, Schema, SilenceItem};

/// The number of instances with each role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoleSummary {
    /// All instances.
    pub instances: u64,
    /// Instances with the role `primary`.
    pub primary: u64,
    /// Instances with the role `partial`.
    pub partial: u64,
    /// Instances with the role `backup`.
    pub backup: u64,
    /// Instances with the role `fault`.
    pub fault: u64,
    /// Instances with the role `unknown`.
    pub unknown: u64,
}

/// The number of known findings of each severity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeveritySummary {
    /// Findings with the severity `critical`.
    pub critical: u64,
    /// Findings with the severity `warning`.
    pub warning: u64,
    /// Findings with the severity `info`.
    pub info: u64,
}

/// The answer to `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// [`Schema::Status`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The origin of the answer.
    pub source: AnswerSource,
    /// The epoch of the history, which is the first part of event ids.
    pub epoch: String,
    /// The sequence number of the last event.
    pub seq: i64,
    /// The number of instances with each role.
    pub roles: RoleSummary,
    /// The number of known findings of each severity.
    pub findings: SeveritySummary,
    /// The problems of the node itself.
    pub health: Vec<FindingItem>,
    /// The problems in configuration files of keepalived.
    pub problems: Vec<ConfigProblemItem>,
    /// The silences in force.
    pub silences: Vec<SilenceItem>,
    /// The counters and gauges by name.
    pub metrics: BTreeMap<String, u64>,
}

/// How the last reload ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReloadOutcome {
    /// The number of the reload, counted from 1 since the process started.
    pub number: u64,
    /// When the configuration was applied or rejected.
    pub at: Timestamp,
    /// Why the configuration was rejected; null if it was applied.
    pub error: Option<String>,
    /// The keys with a new value that a running process cannot apply: it keeps the earlier value until it is restarted.
    pub needs_restart: Vec<String>,
    /// The changes that the process applies later by itself, one sentence each.
    pub pending: Vec<String>,
}

/// The answer to `GET /v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VersionDocument {
    /// [`Schema::Version`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// `node` or `receiver`.
    pub service: String,
    /// The version of vipwatch.
    pub version: String,
    /// The commit that the program was built from; null if it is not known.
    pub commit: Option<String>,
    /// The process id.
    pub pid: u32,
    /// When the process started.
    pub started_at: Timestamp,
    /// The configuration file; null without one.
    pub config_file: Option<String>,
    /// The last reload; null if there was none.
    pub last_reload: Option<ReloadOutcome>,
}

/// The answer to `POST /v1/reload`: how the reload ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReloadDocument {
    /// [`Schema::Reload`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// `node` or `receiver`.
    pub service: String,
    /// The process id.
    pub pid: u32,
    /// The configuration file; null without one.
    pub config_file: Option<String>,
    /// The reload.
    pub reload: ReloadOutcome,
}

/// The answer to `GET /v1/config`: the settings in force, with defaults, without secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigDocument {
    /// [`Schema::Config`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The configuration file; null without one.
    pub file: Option<String>,
    /// When it was read.
    pub loaded_at: Timestamp,
    /// The settings, in the structure of the file.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub settings: serde_json::Map<String, serde_json::Value>,
}

/// The answer to `GET /healthz` and `GET /readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthDocument {
    /// [`Schema::Health`]
    pub schema: Schema,
    /// `ok`
    pub status: String,
}
