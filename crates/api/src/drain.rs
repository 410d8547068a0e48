// SPDX-License-Identifier: Apache-2.0
//! The answer of `vipwatch drain-check`: whether this node can be taken down. No route has it: the command applies
//! [`drain_check`] to documents of the node.

mod cluster;
mod rules;
mod takeover;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::cluster::drain_check_of_cluster;
pub use self::rules::drain_check;
use crate::{CauseItem, ClusterGroupList, FindingList, InstanceItem, RoleKind, Schema, TargetItem};

/// What a node knows when it is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainFacts {
    /// The name of the node.
    pub node: String,
    /// When the facts were read.
    pub at: Timestamp,
    /// All instances of the node.
    pub instances: Vec<InstanceItem>,
    /// The findings of an audit.
    pub findings: FindingList,
    /// All targets.
    pub targets: Vec<TargetItem>,
    /// Whether the node captures the adverts of other nodes.
    pub captures_adverts: bool,
    /// The newest advert of another node for instances with addresses here, by id.
    pub peers: BTreeMap<String, DrainPeer>,
    /// The last failover of each instance that has one in the history, by id.
    pub failovers: BTreeMap<String, DrainFailover>,
    /// The groups of the cluster in the view of the node; `None` if the node has no such route.
    pub cluster: Option<ClusterGroupList>,
    /// The number of instances of the last day of which the running node did not see the removal without addresses, if it
    /// follows none now; `None` if the history cannot say it.
    pub recent_instances: Option<u64>,
    /// Why the history could not be read; `None` if it could.
    pub history_error: Option<String>,
}

/// What is asked about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainQuestion {
    /// Whether anything is still on the node.
    Now,
    /// Whether taking the node down would be a clean failover.
    If,
}

/// The answer in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainVerdict {
    /// Nothing is on the node: no primary is here, and nothing is pending.
    Drained,
    /// Addresses are on the node, and another node is ready to take over each of them.
    Ready,
    /// A fact is missing.
    Unknown,
    /// Something is on the node, or no node is primary of an instance.
    NotDrained,
    /// Taking the node down would leave addresses on no node.
    NotSafe,
}

/// One fact that decides the verdict, or that the node cannot know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReason {
    /// The stable name, for example `primary-here`, or the name of a finding.
    pub name: String,
    /// The id of the instance; null if the reason is not about one.
    pub id: Option<String>,
    /// The name of the target; null if the reason is not about one.
    pub target: Option<String>,
    /// The reason as a sentence.
    pub text: String,
}

/// The newest captured advert of another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainPeer {
    /// The source address.
    pub source: String,
    /// The time of the advert.
    pub at: Timestamp,
    /// Whether the other node advertises now.
    pub advertising: bool,
}

/// The last transition of an instance from or to `primary`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainFailover {
    /// When the node read the change.
    pub at: Timestamp,
    /// The role before.
    pub from: RoleKind,
    /// The role after.
    pub to: String,
    /// Why the role changed.
    #[serde(flatten)]
    pub cause: CauseItem,
}

/// One instance of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainInstance {
    /// The id.
    pub id: String,
    /// The role.
    pub role: RoleKind,
    /// When the instance took this role; null if that is not known.
    pub since: Option<Timestamp>,
    /// Whether the node holds addresses of the instance.
    pub holds_addresses: bool,
    /// Whether the instance loses a backup while this node is down: the role is `backup`, and no finding says that this
    /// node cannot take over.
    pub loses_backup: bool,
    /// The names of its findings.
    pub findings: Vec<String>,
    /// The newest advert of another node, for an instance with addresses here; null if none was captured.
    pub peer: Option<DrainPeer>,
    /// The last failover; null if the history has none.
    pub last_failover: Option<DrainFailover>,
    /// The nodes of which the first ready one would take over, by priority; empty if the node holds no addresses, or without a
    /// cluster. Several of them have the same priority.
    pub successors: Vec<String>,
}

/// The answer of `vipwatch drain-check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainCheckDocument {
    /// [`Schema::DrainCheck`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// When the facts were read.
    pub at: Timestamp,
    /// What was asked.
    pub question: DrainQuestion,
    /// The answer.
    pub verdict: DrainVerdict,
    /// Why not: each of these makes the verdict `not-drained` or `not-safe`.
    pub blocking: Vec<DrainReason>,
    /// Uncertain facts: without `blocking`, each of these makes the verdict `unknown`.
    pub uncertain: Vec<DrainReason>,
    /// What one node cannot know. It has no effect on the verdict.
    pub not_known: Vec<DrainReason>,
    /// What changes while the node is down. It has no effect on the verdict.
    pub notes: Vec<DrainReason>,
    /// The targets with pending deliveries.
    pub pending: Vec<TargetItem>,
    /// All instances: first those that hold addresses, then in the order of their ids.
    pub instances: Vec<DrainInstance>,
}

/// The verdict that follows from the reasons. `is_holding`: the node has addresses.
fn verdict(
    question: DrainQuestion,
    is_holding: bool,
    blocking: &[DrainReason],
    uncertain: &[DrainReason],
) -> DrainVerdict {
    match (question, blocking.is_empty(), uncertain.is_empty()) {
        (DrainQuestion::Now, false, _) => DrainVerdict::NotDrained,
        (DrainQuestion::If, false, _) => DrainVerdict::NotSafe,
        (_, true, false) => DrainVerdict::Unknown,
        (DrainQuestion::If, true, true) if is_holding => DrainVerdict::Ready,
        (_, true, true) => DrainVerdict::Drained,
    }
}
