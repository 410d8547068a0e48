// SPDX-License-Identifier: Apache-2.0
//! Instances: `GET /v1/instances` and `GET /v1/instances/{id}`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AdvertsItem, CauseItem, FindingItem, ReportItem, RoleKind, Schema, TransitionItem};

/// The microseconds from the kernel's event to the end of the delivery, by stage (`file`, `announce`, `hook`, `webhook`,
/// `agent`). A stage is absent if it does not apply or has not ended.
pub type LatencyMap = BTreeMap<String, i64>;

/// The origin of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum AnswerSource {
    /// A running node.
    Node,
    /// The kernel, which the command read without a node.
    Kernel,
}

/// One VRRP instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InstanceItem {
    /// The id: unique on this node.
    pub id: String,
    /// The name in keepalived's configuration.
    pub name: String,
    /// The group: the instances of all nodes with the same group share their addresses, and one of them is the primary.
    pub group: String,
    /// The role.
    pub role: RoleKind,
    /// Details of the role, for example the missing link; null if there are none.
    pub reason: Option<String>,
    /// When the instance took this role; null if that is not known.
    pub since: Option<Timestamp>,
    /// The sequence number of its last transition; 0 without a node.
    pub seq: i64,
    /// Why the node read the role at its last transition.
    pub trigger: String,
    /// Why the role changed at its last transition.
    #[serde(flatten)]
    pub cause: CauseItem,
    /// `neutron`, `keepalived` or `vipwatch`.
    pub origin: String,
    /// The network namespace; null for the node's own.
    pub netns: Option<String>,
    /// The interface in keepalived's configuration.
    pub interface: String,
    /// The virtual router id; null if the configuration has none.
    pub vrid: Option<u8>,
    /// The priority; null if the configuration has none.
    pub priority: Option<u8>,
    /// The configuration file.
    pub file: String,
    /// The line of the instance in that file.
    pub line: u64,
    /// All addresses of the instance, floating ones too.
    pub addresses: Vec<AddressItem>,
    /// The stages for which targets are configured.
    pub stages: Vec<String>,
    /// The latencies of its last transition.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, i64>))]
    pub latencies: LatencyMap,
    /// The deliveries that failed.
    pub failures: Vec<FailureItem>,
    /// The names of the findings of the last audit; [`crate::FindingItem`] has the rest.
    pub findings: Vec<String>,
    /// What Neutron's agent has acknowledged; null if the node does not notify the agent.
    pub agent: Option<AgentItem>,
    /// The last report of its monitor; null without a receiver or without a report.
    pub report: Option<ReportItem>,
    /// The end of the silence that covers the instance; null if there is none.
    pub silenced_until: Option<Timestamp>,
    /// The milliseconds between two adverts; null if the configuration does not set them.
    #[serde(default)]
    pub advert_ms: Option<u64>,
    /// Whether adverts of another node arrive now; null if the node does not capture them, or cannot tell yet.
    #[serde(default)]
    pub hears_other: Option<bool>,
}

/// A virtual address of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AddressItem {
    /// The address with its prefix length.
    pub cidr: String,
    /// The link on which keepalived configures it.
    pub link: String,
    /// Whether the node holds it as configured; null if that is not known.
    pub held: Option<bool>,
    /// Where it is, in words, for example `on eth1 instead`; null if that is not known.
    pub state: Option<String>,
    /// Whether it does not decide the role: an address in `virtual_ipaddress_excluded`, such as a floating IP.
    pub floating: bool,
}

/// A delivery that failed at its last attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureItem {
    /// The kind of outlet.
    pub stage: String,
    /// The name of the target.
    pub target: String,
    /// The error of the last attempt.
    pub error: String,
}

/// The state that Neutron's agent knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentItem {
    /// `primary` or `backup`; null if the agent has acknowledged nothing.
    pub acknowledged: Option<String>,
    /// The error of the last attempt; null if it succeeded.
    pub failing: Option<String>,
}

/// A problem in a configuration file of keepalived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigProblemItem {
    /// The file.
    pub file: String,
    /// The line; null for the whole file.
    pub line: Option<u64>,
    /// The problem.
    pub text: String,
}

/// The processes of the keepalived of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeepalivedItem {
    /// `runs`, `stopped`, `frozen`, `gone`, `not-found`, `vrrp-child-missing`, `crash-looping` or `unknown`.
    pub state: String,
    /// The pid of the parent; null if there is none.
    pub pid: Option<u32>,
    /// The pid of the process that sends and receives adverts; null if there is none or if it is not known.
    pub vrrp_pid: Option<u32>,
    /// When the parent started; null if there is none.
    pub started: Option<Timestamp>,
}

/// The answer to `GET /v1/instances`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InstanceList {
    /// [`Schema::Instances`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The origin of the answer.
    pub source: AnswerSource,
    /// The instances, in the order of their ids.
    pub items: Vec<InstanceItem>,
}

/// The answer to `GET /v1/instances/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InstanceDetail {
    /// [`Schema::Instance`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The origin of the answer.
    pub source: AnswerSource,
    /// The instance.
    pub instance: InstanceItem,
    /// The processes of its keepalived; null if it is in no file of keepalived, or if the processes are not read.
    pub keepalived: Option<KeepalivedItem>,
    /// The captured VRRP adverts of its virtual router; null if they are not captured.
    pub adverts: Option<AdvertsItem>,
    /// Everything that the last audit found wrong with it.
    pub findings: Vec<FindingItem>,
    /// When the last audit read the kernel; null if the instance has changed since.
    pub audited_at: Option<Timestamp>,
    /// Its last transitions, oldest first.
    pub timeline: Vec<TransitionItem>,
    /// Why the history could not be read; null if it could.
    pub history_error: Option<String>,
}
