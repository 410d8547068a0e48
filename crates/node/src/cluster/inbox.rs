// SPDX-License-Identifier: Apache-2.0
//! The events of the session on their way to the main loop: the newest of each kind, so that their number is limited.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use vipwatch_cluster::session::{ClusterEvent, ClusterObserver};
use vipwatch_linux::wake_queue::WakeQueue;

/// What an event is about. A newer event replaces an older one about the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Connection,
    Name,
    Rejection,
    Surplus,
    Reporter,
    /// A finding, by its id.
    Finding(String),
    View,
    Confirmation,
}

/// The events that the main loop has not taken yet.
///
/// BOUND: one entry for each [`Topic`]: seven, and one for each finding. The main loop empties the queue in every turn.
#[derive(Debug, Clone)]
pub(crate) struct ClusterInbox(WakeQueue<(Topic, ClusterEvent), BTreeMap<Topic, ClusterEvent>>);

impl ClusterInbox {
    pub(super) fn new() -> io::Result<Self> {
        WakeQueue::newest_per_key().map(Self)
    }

    /// Removes and returns all events.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = ClusterEvent> {
        self.0.take_all().into_values()
    }
}

impl ClusterObserver for ClusterInbox {
    fn event(&self, event: ClusterEvent) {
        let topic = match &event {
            ClusterEvent::ViewChanged => Topic::View,
            ClusterEvent::ConnectionChanged(_) => Topic::Connection,
            ClusterEvent::ConfirmationWanted(_) => Topic::Confirmation,
            ClusterEvent::NameTaken | ClusterEvent::NameFree => Topic::Name,
            ClusterEvent::RejectionChanged => Topic::Rejection,
            ClusterEvent::SurplusChanged => Topic::Surplus,
            ClusterEvent::ReporterChanged { .. } => Topic::Reporter,
            ClusterEvent::FindingOpen(finding) | ClusterEvent::FindingClosed(finding) => {
                Topic::Finding(finding.id.clone())
            }
        };
        self.0.push((topic, event));
    }
}

impl AsFd for ClusterInbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
