// SPDX-License-Identifier: Apache-2.0
//! The two interfaces between the session and the node: the records to publish, and the events of the session.

use std::time::Duration;

use vipwatch_api::ClusterConnectionState;
use vipwatch_core::InstanceId;

use crate::key::{Bucket, FindingId, SilenceId};
use crate::record::{FindingRecord, RoleRecord, SilenceRecord};

/// The records that a node wants to publish. The session calls it on its own thread, while the main loop runs: an
/// implementation reads the node's published state, and neither waits for the main loop nor reads the kernel.
pub trait RecordSource: Send + Sync {
    /// The ids of all instances that are to be published. The session deletes the keys of all others.
    fn instances(&self) -> Vec<InstanceId>;

    /// The record of one instance as it is now; `None` if the instance no longer exists.
    ///
    /// The session calls it after a mark ([`ClusterHandle::mark`](super::ClusterHandle::mark)), and for all instances
    /// after it has registered with etcd. Equal records must be equal in all fields: the session compares the encoded
    /// values and writes only differences. A record must not contain the time of the call.
    fn role(&self, instance: &InstanceId) -> Option<WantedRole>;

    /// Values of the next heartbeat.
    fn facts(&self) -> HeartbeatFacts;

    /// Whether the node has a target for findings.
    fn notifies(&self) -> bool;

    /// The silences in force that were added on this node, each with the time that is left, at most
    /// [`MAX_SILENCES_OF_NODE`](crate::view::MAX_SILENCES_OF_NODE). The session calls it after
    /// [`ClusterHandle::mark_silences`](super::ClusterHandle::mark_silences), and sets `schema`.
    fn silences(&self) -> Vec<WantedSilence>;
}

/// A silence of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedSilence {
    /// The id.
    pub id: SilenceId,
    /// The time that is left.
    pub left: Duration,
    /// The value. The session replaces the id of a group by the one that all nodes know it by.
    pub record: SilenceRecord,
}

/// A record and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRole {
    /// The bucket of the instance. If it differs from that of the last record, the session deletes the key in the old
    /// bucket in the transaction that writes the new one.
    pub bucket: Bucket,
    /// The value. The session sets `schema`, `node` and `epoch`.
    pub record: RoleRecord,
}

/// Values of a heartbeat that the node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatFacts {
    /// The sequence number of the node's last event.
    pub seq: i64,
    /// The number of instances that the node follows.
    pub instances: u64,
}

/// The number of a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfirmationId(pub(crate) u64);

/// The session asks the main loop to confirm the roles of the node.
///
/// The main loop reads all events of the kernel that are waiting, reads the namespaces of `instances` again, marks the
/// instances with changed records ([`ClusterHandle::mark`](super::ClusterHandle::mark)), and then calls
/// [`ClusterHandle::confirm`](super::ClusterHandle::confirm). The session publishes the marked records before the heartbeat that carries the
/// confirmation. A newer request replaces an older one that is not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmationRequest {
    /// The number, for the answer.
    pub id: ConfirmationId,
    /// The instances that another live node claims too. Empty for a regular heartbeat: then it is enough that the main
    /// loop has read the waiting events.
    pub instances: Vec<InstanceId>,
}

/// A target has received the opening or the end of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveredFinding {
    /// The finding.
    pub id: FindingId,
    /// The name of the target.
    pub target: String,
    /// Whether it is the end of the finding.
    pub is_closed: bool,
}

/// What the session reports to the node.
#[derive(Debug, Clone, PartialEq)]
pub enum ClusterEvent {
    /// The view has changed. Several changes within a short time are one event.
    ViewChanged,
    /// The connection has changed; [`ClusterHandle::basis`](super::ClusterHandle::basis) has the details.
    ConnectionChanged(ClusterConnectionState),
    /// The main loop is to confirm the roles of the node.
    ConfirmationWanted(ConfirmationRequest),
    /// Another process publishes under this node's name. This node publishes nothing until that key is gone;
    /// [`ClusterHandle::name_holder`](super::ClusterHandle::name_holder) has the process.
    NameTaken,
    /// This node publishes under its name again.
    NameFree,
    /// etcd rejects the records of this node from now on, or accepts them again;
    /// [`ClusterHandle::basis`](super::ClusterHandle::basis) has the error.
    RejectionChanged,
    /// The number of records beyond the limits of the view has changed, or that of open findings has reached its limit or left it;
    /// [`ClusterView::ignored`](crate::view::ClusterView::ignored) and
    /// [`ClusterHandle::is_full_of_findings`](super::ClusterHandle::is_full_of_findings) have the state.
    SurplusChanged,
    /// This node delivers the findings of the cluster from now on, or no longer.
    ReporterChanged {
        /// Whether this node is the reporter.
        is_reporter: bool,
    },
    /// Only on the reporter: it has found that the finding is open. The node delivers it to the targets that are not in `notified_open`,
    /// and calls [`ClusterHandle::notified`](super::ClusterHandle::notified) for each. After an election, the event comes again when the new
    /// reporter has found the condition itself; a record in etcd alone is no event.
    FindingOpen(Box<FindingRecord>),
    /// Only on the reporter: the finding has ended. The node delivers it to the targets that are in `notified_open` and not in
    /// `notified_closed`. The event comes again after an election for findings with an end that some targets have not received. A reporter
    /// that has not found the finding itself uses only the kind and the subject of its record.
    FindingClosed(Box<FindingRecord>),
}

/// Receives the events of the session, on the thread of the session: an implementation puts them into a queue and
/// returns at once.
pub trait ClusterObserver: Send + Sync {
    /// An event.
    fn event(&self, event: ClusterEvent);
}
