// SPDX-License-Identifier: Apache-2.0
//! The findings about several nodes that this node has recorded, and those that it delivers as the reporter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vipwatch_api::{ClusterFindingItem, FindingEvent, FindingScope};
use vipwatch_cluster::record::FindingRecord;
use vipwatch_core::InstanceId;

/// A finding that the history of this node has as open.
#[derive(Debug)]
pub(super) struct KnownFinding {
    pub(super) item: ClusterFindingItem,
    /// The instance of this node in the group; `None` if it has none, and for a finding of an earlier run.
    pub(super) instance: Option<InstanceId>,
    /// The sequence number of its last event.
    pub(super) seq: i64,
}

impl KnownFinding {
    /// Whether a newer text is the same fault. Evidence and times change often.
    pub(super) fn is_same(&self, record: &FindingRecord) -> bool {
        self.item.severity == record.severity && self.item.confidence == record.confidence.as_ref()
    }
}

/// A notification about a finding in the queues of targets.
#[derive(Debug)]
pub(super) struct QueuedFinding {
    /// The id of the finding.
    pub(super) id: String,
    /// Whether it is the end of the finding.
    pub(super) is_closed: bool,
    /// The targets; of the end of a finding, those that have not received it yet.
    targets: BTreeSet<Arc<str>>,
}

/// The findings about several nodes.
#[derive(Debug, Default)]
pub(super) struct ClusterFindings {
    known: BTreeMap<String, KnownFinding>,
    /// By the sequence number of the notification.
    ///
    /// BOUND: a finding that has ended is removed when it has left the queues of all targets.
    queued: BTreeMap<i64, QueuedFinding>,
}

impl ClusterFindings {
    /// Continues with the findings that an earlier run has recorded as open.
    pub(super) fn restored(events: Vec<FindingEvent>) -> Self {
        let known = events.into_iter().filter_map(|event| {
            let item = *event.cluster.filter(|_| event.scope == FindingScope::Cluster)?;
            let known = KnownFinding { item, instance: None, seq: event.seq };
            Some((known.item.id.clone(), known))
        });
        Self { known: known.collect(), queued: BTreeMap::new() }
    }

    pub(super) fn get(&self, id: &str) -> Option<&KnownFinding> {
        self.known.get(id)
    }

    pub(super) fn insert(&mut self, finding: KnownFinding) {
        self.known.insert(finding.item.id.clone(), finding);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<KnownFinding> {
        self.known.remove(id)
    }

    /// Whether the record is not known as it is.
    pub(super) fn is_new(&self, record: &FindingRecord) -> bool {
        self.known.get(&record.id).is_none_or(|known| !known.is_same(record))
    }

    /// The ids of the known findings that are not open any more.
    pub(super) fn gone(&self, open: &BTreeSet<&str>) -> Vec<String> {
        self.known.keys().filter(|id| !open.contains(id.as_str())).cloned().collect()
    }

    /// Notes that a notification was given to the queues of these targets.
    pub(super) fn queued(&mut self, id: &str, seq: i64, is_closed: bool, targets: Vec<Arc<str>>) {
        if is_closed {
            // Its opening is delivered before, or replaced by the end.
            self.queued.retain(|_, queued| queued.id != id || queued.is_closed);
        }
        if targets.is_empty() {
            return;
        }
        let new = || QueuedFinding { id: id.to_owned(), is_closed, targets: BTreeSet::new() };
        self.queued.entry(seq).or_insert_with(new).targets.extend(targets);
    }

    /// Whether the opening of a finding was given to the queue of this target.
    pub(super) fn is_queued(&self, id: &str, target: &str) -> bool {
        self.is_in_queue(id, target, false)
    }

    /// Whether the end of a finding was given to the queue of this target.
    pub(super) fn is_end_queued(&self, id: &str, target: &str) -> bool {
        self.is_in_queue(id, target, true)
    }

    fn is_in_queue(&self, id: &str, target: &str, is_closed: bool) -> bool {
        self.queued.values().any(|queued| {
            queued.id == id && queued.is_closed == is_closed && queued.targets.contains(target)
        })
    }

    /// The notification with this number has left the queue of a target, which has received it or not. A target that has
    /// received the opening of a finding stays here, so that it gets the end too.
    pub(super) fn concluded(
        &mut self,
        seq: i64,
        target: &str,
        is_delivered: bool,
    ) -> Option<QueuedFinding> {
        let queued = self.queued.get_mut(&seq)?;
        let (id, is_closed) = (queued.id.clone(), queued.is_closed);
        if is_closed || !is_delivered {
            queued.targets.remove(target);
            if queued.targets.is_empty() {
                self.queued.remove(&seq);
            }
        }
        Some(QueuedFinding { id, is_closed, targets: BTreeSet::new() })
    }

    /// Forgets the targets that are not configured any more.
    pub(super) fn retain_targets(&mut self, is_configured: impl Fn(&str) -> bool) {
        self.queued.retain(|_, queued| {
            queued.targets.retain(|target| is_configured(target));
            !queued.targets.is_empty()
        });
    }

    /// Forgets all notifications in the queues; returns the ids of their findings.
    pub(super) fn forget_deliveries(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.queued).into_values().map(|queued| queued.id).collect()
    }
}
