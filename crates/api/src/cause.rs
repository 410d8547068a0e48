// SPDX-License-Identifier: Apache-2.0
//! Why a role changed: fields of a transition, of an instance and of the event `cause`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{RoleKind, Schema};

/// The facts behind a cause. A fact that does not apply, or is not known, is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EvidenceItem {
    /// The source address of the other node's adverts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The priority in the newest advert of the other node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_priority: Option<u8>,
    /// The priority of the other node before it dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_priority_before: Option<u8>,
    /// The priority of this node: of its own adverts, else of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_priority: Option<u8>,
    /// The priority of this node before it dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_priority_before: Option<u8>,
    /// The milliseconds between the last advert of the other node and the transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u32>,
    /// The process of keepalived that started or ended, or the process that changed an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The program of that process, if it is not keepalived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// The exit code of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The milliseconds between the event of the process and the transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_ms: Option<u32>,
    /// Whether the cause is inferred, because the facts exclude the other ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
    /// Why the cause is not known: `not-captured`, `capture-incomplete`, `processes-not-read`, `adverts-ignored`,
    /// `process-not-named`, `superseded`, `node-stopped` or `no-evidence`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// Why a role changed. All fields are null until the node knows it, which takes up to two seconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CauseItem {
    /// The word for the cause, for example `preempted` or `peer-silent`.
    pub cause: Option<String>,
    /// The cause as a sentence.
    pub cause_text: Option<String>,
    /// The facts behind the cause.
    pub evidence: Option<Box<EvidenceItem>>,
}

impl CauseItem {
    /// The word for the cause; `trigger`, the reason why the node read the role, if the cause is not known yet.
    pub fn word_or<'a>(&'a self, trigger: &'a str) -> &'a str {
        self.cause.as_deref().unwrap_or(trigger)
    }

    /// The cause as a sentence, or `trigger` if it is not known yet.
    pub fn text_or<'a>(&'a self, trigger: &'a str) -> &'a str {
        self.cause_text.as_deref().unwrap_or(trigger)
    }
}

/// The cause of a transition is known now. The event `transition` did not have it yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CauseEvent {
    /// [`Schema::Cause`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// `node`
    pub source: String,
    /// The sequence number of this event.
    pub seq: i64,
    /// When the cause became known.
    pub at: Timestamp,
    /// The id of the instance.
    pub id: String,
    /// The sequence number of the transition.
    pub transition: i64,
    /// The role before the transition; null if it was not known.
    pub from: Option<RoleKind>,
    /// The role after it.
    pub to: RoleKind,
    /// The cause.
    #[serde(flatten)]
    pub cause: CauseItem,
}
