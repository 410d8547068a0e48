// SPDX-License-Identifier: Apache-2.0
//! What the screen shows about the node: the newest documents, and the events after them.

use std::collections::{BTreeMap, VecDeque};

use vipwatch_api::{
    ClusterConnectionState, ClusterState, FindingItem, InstanceDetail, InstanceItem, NodeStatus,
    TimelineItem, Timestamp,
};

/// Maximum number of entries of the history on the screen.
pub(super) const HISTORY_ENTRIES: usize = 500;

/// The documents that are read when a connection begins.
#[derive(Debug)]
pub(super) struct NodeDocuments {
    pub(super) status: NodeStatus,
    pub(super) instances: Vec<InstanceItem>,
    pub(super) findings: Vec<FindingItem>,
}

/// Whether the screen shows the present state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Events arrive.
    Live,
    /// The connection is lost.
    Stale {
        /// When it was lost.
        since: Timestamp,
        /// Why.
        reason: String,
    },
}

/// A document that the screen needs and does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// All instances.
    Instances,
    /// One instance.
    Detail(String),
    /// The newest entries of the history.
    History,
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub(super) enum Answer {
    Instances(Vec<InstanceItem>),
    Detail(Box<InstanceDetail>),
    /// Oldest first.
    History(Vec<TimelineItem>),
    /// The request failed, for this reason.
    Failed(Request, String),
}

/// Everything that is known about the node.
#[derive(Debug)]
pub(super) struct NodeData {
    pub(super) freshness: Freshness,
    pub(super) status: NodeStatus,
    pub(super) instances: BTreeMap<String, InstanceItem>,
    /// The most serious first.
    pub(super) findings: Vec<FindingItem>,
    /// The cluster; `None` before it was read, and if the node does not know it.
    pub(super) cluster: Option<ClusterState>,
    /// Newest first. BOUND: [`HISTORY_ENTRIES`].
    pub(super) history: VecDeque<TimelineItem>,
    /// Why the history could not be read; `None` if it could.
    pub(super) history_error: Option<String>,
    /// The instance of the detail view, as it was read last.
    pub(super) detail: Option<Box<InstanceDetail>>,
    /// Why the instance of the detail view could not be read; `None` if it could.
    pub(super) detail_error: Option<String>,
    /// Whether an event named an instance that is not in `instances`.
    pub(super) has_unknown_instance: bool,
    /// Whether `history` is to be read.
    pub(super) needs_history: bool,
    /// Whether `detail` is older than an event about its instance.
    pub(super) needs_detail: bool,
}

impl NodeData {
    pub(super) fn new(snapshot: NodeDocuments) -> Self {
        let mut data = Self {
            freshness: Freshness::Live,
            status: snapshot.status.clone(),
            instances: BTreeMap::new(),
            findings: Vec::new(),
            cluster: None,
            history: VecDeque::new(),
            history_error: None,
            detail: None,
            detail_error: None,
            has_unknown_instance: false,
            needs_history: true,
            needs_detail: false,
        };
        data.restart(snapshot);
        data
    }

    /// Begins anew with the documents of a new connection.
    pub(super) fn restart(&mut self, snapshot: NodeDocuments) {
        self.freshness = Freshness::Live;
        if snapshot.status.epoch != self.status.epoch {
            // The numbers of events have begun anew.
            self.history.clear();
            self.detail = None;
        }
        self.status = snapshot.status;
        let by_id = |instance: InstanceItem| (instance.id.clone(), instance);
        self.instances = snapshot.instances.into_iter().map(by_id).collect();
        self.findings = snapshot.findings;
        self.sort_findings();
        self.has_unknown_instance = false;
        self.needs_history = true;
        self.needs_detail = true;
    }

    /// The cluster; `None` if none is configured.
    pub(super) fn cluster(&self) -> Option<&ClusterState> {
        let cluster = self.cluster.as_ref();
        cluster.filter(|cluster| cluster.basis.connection != ClusterConnectionState::Off)
    }

    /// The connection is lost. The screen keeps the last state, and says so.
    pub(super) fn lose(&mut self, since: Timestamp, reason: String) {
        if self.freshness == Freshness::Live {
            self.freshness = Freshness::Stale { since, reason };
        }
    }

    /// Takes a new status. It shows whether requests must be repeated.
    pub(super) fn status(&mut self, status: NodeStatus) {
        let known = u64::try_from(self.instances.len()).unwrap_or(u64::MAX);
        self.has_unknown_instance |= status.roles.instances != known;
        self.needs_detail |= self.detail_error.is_some();
        self.needs_history |= self.history_error.is_some();
        self.status = status;
    }

    pub(super) fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Instances(list) => self.replace_instances(list),
            Answer::Detail(detail) => {
                self.detail_error = None;
                self.detail = Some(detail);
                self.extend_timeline();
            }
            Answer::History(entries) => self.replace_history(entries),
            // The next status shows whether instances are still missing.
            Answer::Failed(Request::Instances, _) => {}
            Answer::Failed(Request::Detail(_), reason) => self.detail_error = Some(reason),
            Answer::Failed(Request::History, reason) => self.history_error = Some(reason),
        }
    }

    /// Takes a list of all instances. An instance with a newer event than the list keeps its state.
    fn replace_instances(&mut self, list: Vec<InstanceItem>) {
        let mut known = std::mem::take(&mut self.instances);
        let newest = |listed: InstanceItem| match known.remove(&listed.id) {
            Some(known) if known.seq > listed.seq => (known.id.clone(), known),
            _ => (listed.id.clone(), listed),
        };
        self.instances = list.into_iter().map(newest).collect();
        self.has_unknown_instance = false;
    }

    /// Takes the entries of the history, oldest first. Transitions that are newer stay: the node sends an event before it
    /// writes the transition to its history.
    fn replace_history(&mut self, entries: Vec<TimelineItem>) {
        let seq = |entry: &TimelineItem| match entry {
            TimelineItem::Transition(item) => Some(item.seq),
            TimelineItem::Gap(_) => None,
        };
        let newest = entries.iter().filter_map(seq).max();
        let known = std::mem::take(&mut self.history);
        let newer = known.into_iter().filter(|entry| seq(entry) > newest);
        self.history = newer.chain(entries.into_iter().rev()).take(HISTORY_ENTRIES).collect();
        self.history_error = None;
    }

    pub(super) fn sort_findings(&mut self) {
        self.findings.sort_by(|a, b| (a.severity, &a.id).cmp(&(b.severity, &b.id)));
    }
}

#[cfg(test)]
pub(super) mod tests;
