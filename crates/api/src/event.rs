// SPDX-License-Identifier: Apache-2.0
//! Events: `GET /v1/events`, a stream of server-sent events.
//!
//! All events of a node have one sequence. The id of an event is `EPOCH-SEQ`; the epoch names one life of the
//! node's history. A client that reconnects sends the last id in `Last-Event-ID` or `?after=ID` and receives what it
//! has missed.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    AddressItem, CauseEvent, CauseItem, ClusterFindingItem, FindingItem, FindingScope, LatencyMap,
    RoleKind, Schema,
};

/// The id of an event: `EPOCH-SEQ`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    /// The epoch of the history.
    pub epoch: String,
    /// The sequence number.
    pub seq: i64,
}

/// The text is not `EPOCH-SEQ`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEventId(String);

impl fmt::Display for InvalidEventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an event id: it is EPOCH-SEQ, for example 5f3a9c21-1042", self.0)
    }
}

impl std::error::Error for InvalidEventId {}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.seq)
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidEventId(text.chars().take(80).collect());
        let (epoch, seq) = text.rsplit_once('-').ok_or_else(invalid)?;
        let is_epoch = !epoch.is_empty() && epoch.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_number = !seq.is_empty() && seq.bytes().all(|byte| byte.is_ascii_digit());
        let seq = seq.parse().ok().filter(|_| is_epoch && is_number).ok_or_else(invalid)?;
        Ok(Self { epoch: epoch.to_owned(), seq })
    }
}

/// A change of role. Hooks and webhooks receive the same document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransitionEvent {
    /// [`Schema::Transition`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// `node`: the node read the change from the kernel.
    pub source: String,
    /// The sequence number. (node, epoch, source, id, seq) identifies a notification that is delivered twice.
    pub seq: i64,
    /// When the node read the change.
    pub at: Timestamp,
    /// The id of the instance.
    pub id: String,
    /// The network namespace; null for the node's own.
    pub netns: Option<String>,
    /// `neutron`, `keepalived` or `vipwatch`.
    pub origin: String,
    /// The role before; null if it was not known.
    pub from: Option<RoleKind>,
    /// The role after.
    pub to: RoleKind,
    /// Why the node read the role: `start`, `address`, `link`, `namespace`, `resync`, `config`, `advert` or `audit`.
    pub trigger: String,
    /// Why the role changed. In the event stream, an event `cause` follows if it was not known yet.
    #[serde(flatten)]
    pub cause: CauseItem,
    /// Details of the role after; null if there are none.
    pub reason: Option<String>,
    /// The addresses that decide the role.
    pub addresses: Vec<AddressItem>,
    /// The latencies of the stages that have delivered already.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, i64>))]
    pub latencies: LatencyMap,
    /// The stages that deliver this transition; empty in a notification.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<String>,
}

/// An instance is no longer configured. Hooks and webhooks receive the same document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedEvent {
    /// [`Schema::Removed`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// `node`
    pub source: String,
    /// The sequence number.
    pub seq: i64,
    /// When the node noticed it.
    pub at: Timestamp,
    /// The id of the instance.
    pub id: String,
    /// The network namespace; null for the node's own.
    pub netns: Option<String>,
    /// Its last role.
    pub from: Option<RoleKind>,
}

/// The result of an attempt to deliver a notification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryEvent {
    /// [`Schema::Delivery`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// Where the notification comes from: `node` for a transition, a removal or a finding, `receiver` for a settled
    /// report.
    pub source: String,
    /// The sequence number of this event.
    pub seq: i64,
    /// When the attempt ended.
    pub at: Timestamp,
    /// The id of the instance; null for a finding about the node.
    pub id: Option<String>,
    /// The name of the finding that the notification is about; null for any other notification.
    pub finding: Option<String>,
    /// The sequence number of the notification: of an event of the node, or of a report in the receiver's journal.
    pub notification: i64,
    /// The kind of outlet: `file`, `announce`, `hook`, `webhook`, `agent`, `upstream` or `ipv6`.
    pub stage: String,
    /// The name of the target.
    pub target: String,
    /// The microseconds from the kernel's event, or from the end of a report's debounce, to the end of the attempt; null for a delivery that is repeated after
    /// a restart or a reload, or that was read from the history.
    pub micros: Option<i64>,
    /// The error; null after a success.
    pub error: Option<String>,
    /// Whether the delivery has ended: the target has the notification, or it was given up.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// Whether a finding has appeared, changed or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FindingState {
    /// The finding has appeared.
    Open,
    /// The finding is open, and its severity or its text has changed: it is another fault of the same kind.
    Changed,
    /// The finding has gone.
    Closed,
}

/// A finding has appeared, changed or gone. Hooks and webhooks receive the same document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FindingEvent {
    /// [`Schema::Finding`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The epoch of the history.
    pub epoch: String,
    /// `node`
    pub source: String,
    /// The sequence number.
    pub seq: i64,
    /// When it appeared, changed or went.
    pub at: Timestamp,
    /// The id of the instance; null for a finding about the node.
    pub id: Option<String>,
    /// Whether it has appeared, changed or gone.
    pub state: FindingState,
    /// The finding.
    pub finding: FindingItem,
    /// `cluster` for a finding about several nodes, which the reporter of the cluster delivers; else `local`.
    pub scope: FindingScope,
    /// The finding about several nodes, with its group, its nodes and its evidence; left out if the scope is `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Box<ClusterFindingItem>>,
}

/// Why a stream cannot continue after the id that the client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResetReason {
    /// The id has another epoch: the history was begun anew.
    OtherEpoch,
    /// Retention has deleted events after this id.
    Expired,
    /// The id is later than every event of this node.
    Future,
    /// The history cannot be read.
    HistoryUnavailable,
}

/// The client must read the instances again: events may be missing before the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResetEvent {
    /// [`Schema::Reset`]
    pub schema: Schema,
    /// The reason.
    pub reason: ResetReason,
    /// The id after which the stream continues.
    pub next_after: String,
}

/// The client read too slowly, and the server dropped events for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DroppedEvent {
    /// [`Schema::Dropped`]
    pub schema: Schema,
    /// The number of dropped events.
    pub count: u64,
}

/// An event. The name of the variant is the `event:` field of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum NodeEvent {
    /// `transition`
    Transition(Box<TransitionEvent>),
    /// `removed`
    Removed(RemovedEvent),
    /// `cause`
    Cause(Box<CauseEvent>),
    /// `delivery`
    Delivery(DeliveryEvent),
    /// `finding`
    Finding(Box<FindingEvent>),
    /// `reset`; it has no id.
    Reset(ResetEvent),
    /// `dropped`; it has no id.
    Dropped(DroppedEvent),
}

impl NodeEvent {
    /// The id; `None` for the events about the stream itself.
    pub fn id(&self) -> Option<EventId> {
        let id = |epoch: &String, seq| Some(EventId { epoch: epoch.clone(), seq });
        match self {
            Self::Transition(event) => id(&event.epoch, event.seq),
            Self::Removed(event) => id(&event.epoch, event.seq),
            Self::Cause(event) => id(&event.epoch, event.seq),
            Self::Delivery(event) => id(&event.epoch, event.seq),
            Self::Finding(event) => id(&event.epoch, event.seq),
            Self::Reset(_) | Self::Dropped(_) => None,
        }
    }

    /// The id of the instance that the event is about; `None` for an event about the node or the stream.
    pub fn instance(&self) -> Option<&str> {
        match self {
            Self::Transition(event) => Some(&event.id),
            Self::Removed(event) => Some(&event.id),
            Self::Cause(event) => Some(&event.id),
            Self::Delivery(event) => event.id.as_deref(),
            Self::Finding(event) => event.id.as_deref(),
            Self::Reset(_) | Self::Dropped(_) => None,
        }
    }

    /// Reads the data of an event with this name; `None` for the name of a later release.
    pub fn from_data(name: &str, data: &str) -> Option<serde_json::Result<Self>> {
        Some(match name {
            "transition" => serde_json::from_str(data).map(Self::Transition),
            "removed" => serde_json::from_str(data).map(Self::Removed),
            "cause" => serde_json::from_str(data).map(Self::Cause),
            "delivery" => serde_json::from_str(data).map(Self::Delivery),
            "finding" => serde_json::from_str(data).map(Self::Finding),
            "reset" => serde_json::from_str(data).map(Self::Reset),
            "dropped" => serde_json::from_str(data).map(Self::Dropped),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_is_an_epoch_and_a_number() {
        let id: EventId = "5f3a9c21-1042".parse().unwrap();
        assert_eq!((id.epoch.as_str(), id.seq), ("5f3a9c21", 1042));
        assert_eq!(id.to_string(), "5f3a9c21-1042");
        for text in ["", "5", "-5", "5-", "a-+5", "a b-5", "a-99999999999999999999", "a--5"] {
            assert!(text.parse::<EventId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_event_is_read_back_by_its_name() {
        let event = NodeEvent::Dropped(DroppedEvent { schema: Schema::Dropped, count: 3 });
        let data = serde_json::to_string(&event).unwrap();
        assert_eq!(data, r#"{"schema":"vipwatch.dropped/1","count":3}"#);
        assert_eq!(NodeEvent::from_data((&event).into(), &data).unwrap().unwrap(), event);
        assert!(NodeEvent::from_data("later", &data).is_none());
    }
}
