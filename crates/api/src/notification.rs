// SPDX-License-Identifier: Apache-2.0
//! What hooks, webhooks and the upstream receive.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{FindingEvent, RemovedEvent, Schema, TransitionEvent};

/// The body of one notification: the JSON on the standard input of a hook, and in the request of a webhook.
///
/// A notification may arrive twice. (node, epoch, source, id, seq) is the same both times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationDocument {
    /// What happened.
    #[serde(flatten)]
    pub body: NotificationBody,
    /// Number of notifications about the same instance that were lost before this one; left out if none was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What happened. The field `schema` says which variant it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NotificationBody {
    /// An instance has changed its role.
    Transition(Box<TransitionEvent>),
    /// An instance is no longer configured.
    Removed(RemovedEvent),
    /// A finding has appeared or gone.
    Finding(Box<FindingEvent>),
    /// The state that a monitor reported has settled.
    Report(ReportDocument),
}

/// A state that a monitor reported, after it has settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportDocument {
    /// [`Schema::Report`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// `receiver`
    pub source: String,
    /// The sequence number of the report in the receiver's journal.
    pub seq: i64,
    /// When the state was settled.
    pub at: Timestamp,
    /// The id of the router.
    pub id: String,
    /// The settled state before; null if it is not known.
    pub from: Option<String>,
    /// The settled state: `primary`, `backup`, `fault` or `unknown`.
    pub to: String,
    /// The name of the state in the API of Neutron's server: `active`, `standby` or `unknown`.
    pub state: String,
}

/// Many notifications in one request to a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchDocument {
    /// [`Schema::Batch`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// Number of notifications.
    pub count: usize,
    /// Number of notifications by event: `primary`, `partial`, `backup`, `fault`, `unknown`, `removed`, `finding`.
    pub summary: BTreeMap<String, u64>,
    /// The notifications, oldest first.
    pub notifications: Vec<NotificationDocument>,
}

/// The states of many routers, in one request to the upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatesDocument {
    /// [`Schema::States`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// `receiver`
    pub source: String,
    /// When the request was made.
    pub at: Timestamp,
    /// The highest sequence number of the reports.
    pub seq: i64,
    /// Number of routers by state.
    pub summary: BTreeMap<String, u64>,
    /// The name of the state in the API of Neutron's server, by router.
    pub states: BTreeMap<String, String>,
}
