// SPDX-License-Identifier: Apache-2.0
//! The HTTP API of vipwatch: the types of all requests, responses, events and errors, with their schema names.
//!
//! The server (`web`), the client, notifications of hooks and webhooks, and `vipwatch -o json` use these types, so a
//! document has the same shape wherever it appears. A document names its schema in the field `schema`, for example
//! `vipwatch.status/2`. The number grows when a field is removed or changes its meaning; new fields may appear at any
//! time, and readers ignore fields that they do not know.
//!
//! All times are RFC 3339 in UTC.

mod adverts;
mod announcement;
mod balance;
mod cause;
#[cfg(feature = "client")]
pub mod client;
mod cluster;
mod cluster_change;
mod config_check;
mod drain;
mod event;
mod filter;
mod finding;
mod history;
mod instance;
mod notification;
#[cfg(feature = "openapi")]
pub mod openapi;
mod problem;
mod receiver;
mod schema;
mod silence;
mod status;
mod target;

pub use jiff::Timestamp;
pub use vipwatch_core::{FindingKind, RoleKind, Severity};

pub use self::adverts::{
    AdvertPresence, AdvertSignature, AdvertSourceItem, AdvertsItem, CaptureState,
};
pub use self::announcement::{
    AnnounceDocument, AnnouncedItem, DuplicateItem, FailedItem, RefusedItem,
};
pub use self::balance::{ClusterBalance, NodeShare, PossibleMove, balance};
pub use self::cause::{CauseEvent, CauseItem, EvidenceItem};
pub use self::cluster::{
    ClusterBasis, ClusterConnectionState, ClusterFindingItem, ClusterFindingList, ClusterGroupItem,
    ClusterGroupList, ClusterHistory, ClusterHistoryItem, ClusterMemberItem, ClusterNeutron,
    ClusterNodeItem, ClusterNodeList, ClusterNodeState, ClusterScope, ClusterSilenceItem,
    ClusterSource, ClusterStatus, FindingScope, GroupState, GroupSummary, IgnoredSummary,
    NeutronRouterSummary, NodeSummary,
};
pub use self::cluster_change::{
    ClusterChange, ClusterChangeCount, ClusterChangeKind, ClusterState,
};
pub use self::config_check::{ConfigCheckDocument, ConfigErrorItem};
pub use self::drain::{
    DrainCheckDocument, DrainFacts, DrainFailover, DrainInstance, DrainPeer, DrainQuestion,
    DrainReason, DrainVerdict, drain_check, drain_check_of_cluster,
};
pub use self::event::{
    DeliveryEvent, DroppedEvent, EventId, FindingEvent, FindingState, InvalidEventId, NodeEvent,
    RemovedEvent, ResetEvent, ResetReason, TransitionEvent,
};
pub use self::filter::{ClusterFilter, EventFilter, HistoryFilter, InstanceFilter, escape};
pub use self::finding::{ContainerKeepalived, FindingItem, FindingList};
pub use self::history::{GapItem, GapReason, HistoryDocument, TimelineItem, TransitionItem};
pub use self::instance::{
    AddressItem, AgentItem, AnswerSource, ConfigProblemItem, FailureItem, InstanceDetail,
    InstanceItem, InstanceList, KeepalivedItem, LatencyMap,
};
pub use self::notification::{
    BatchDocument, NotificationBody, NotificationDocument, ReportDocument, StatesDocument,
};
pub use self::problem::{ErrorCode, ProblemDocument};
pub use self::receiver::{ReceiverProblem, ReportItem, ReportList};
pub use self::schema::Schema;
pub use self::silence::{SilenceItem, SilenceList, SilenceRequest};
pub use self::status::{
    ConfigDocument, HealthDocument, NodeStatus, ReloadDocument, ReloadOutcome, RoleSummary,
    SeveritySummary, VersionDocument,
};
pub use self::target::{FailingDelivery, TargetItem, TargetKind, TargetList};

/// The milliseconds since the Unix epoch as a time. A value out of range becomes the nearest possible time.
pub fn timestamp_from_millis(millis: i64) -> Timestamp {
    let nearest = if millis < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(millis).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339_in_utc() {
        let time = timestamp_from_millis(1_763_300_000_123);
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2025-11-16T13:33:20.123Z\"");
        assert_eq!(timestamp_from_millis(i64::MAX), Timestamp::MAX);
    }
}
