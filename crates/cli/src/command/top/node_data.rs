//! What the screen shows about the node: the newest documents, and the events after them.

use std::collections::{BTreeMap, VecDeque};

use vipwatch_api::{
    CauseEvent, DeliveryEvent, FailureItem, FindingEvent, FindingItem, FindingState,
    InstanceDetail, InstanceItem, InstanceRole, NodeEvent, NodeStatus, RemovedEvent, TimelineItem,
    Timestamp, TransitionEvent, TransitionItem,
};
use vipwatch_history::Stage;

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
            Answer::History(mut entries) => {
                entries.reverse();
                entries.truncate(HISTORY_ENTRIES);
                self.history = entries.into();
                self.history_error = None;
            }
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

    pub(super) fn event(&mut self, event: NodeEvent) {
        if let (Some(id), Some(detail)) = (event.instance(), &self.detail)
            && detail.instance.id == id
        {
            self.needs_detail = true;
        }
        match event {
            NodeEvent::Transition(event) => self.transition(*event),
            NodeEvent::Removed(event) => self.removal(event),
            NodeEvent::Cause(event) => self.cause(*event),
            NodeEvent::Delivery(event) => self.delivery(event),
            NodeEvent::Finding(event) => self.finding(*event),
            // The feed reads all documents again.
            NodeEvent::Reset(_) | NodeEvent::Dropped(_) => {}
        }
    }

    fn transition(&mut self, event: TransitionEvent) {
        self.remember(transition_item(&event));
        let Some(instance) = self.instances.get_mut(&event.id) else {
            self.has_unknown_instance = true;
            return;
        };
        // The documents at the beginning of a connection may be newer than its first events.
        if event.seq <= instance.seq {
            return;
        }
        instance.role = InstanceRole::from_word(&event.to).unwrap_or(InstanceRole::Unknown);
        instance.reason = event.reason;
        instance.since = Some(event.at);
        instance.seq = event.seq;
        instance.trigger = event.trigger;
        instance.cause = event.cause;
        instance.latencies = event.latencies;
        instance.stages = event.stages;
        for address in event.addresses {
            let known = instance.addresses.iter_mut().find(|known| known.cidr == address.cidr);
            if let Some(known) = known {
                *known = address;
            }
        }
    }

    fn removal(&mut self, event: RemovedEvent) {
        self.instances.remove(&event.id);
        self.remember(TransitionItem {
            seq: event.seq,
            at: event.at,
            id: event.id,
            netns: event.netns,
            from: event.from,
            to: "removed".to_owned(),
            trigger: "config".to_owned(),
            cause: vipwatch_api::CauseItem::default(),
            reason: None,
            latencies: vipwatch_api::LatencyMap::new(),
        });
    }

    /// Adds a transition to the history.
    fn remember(&mut self, item: TransitionItem) {
        let is_newer = match self.history.front() {
            Some(TimelineItem::Transition(newest)) => item.seq > newest.seq,
            Some(TimelineItem::Gap(_)) | None => true,
        };
        if is_newer {
            self.history.push_front(TimelineItem::Transition(item));
            self.history.truncate(HISTORY_ENTRIES);
        }
        self.extend_timeline();
    }

    /// Adds transitions to the timeline of the detail that it does not have: the node sends an event before it writes the
    /// transition to its history.
    fn extend_timeline(&mut self) {
        let Some(detail) = &mut self.detail else { return };
        let last = detail.timeline.last().map_or(i64::MIN, |item| item.seq);
        let newer = self.history.iter().filter_map(|entry| match entry {
            TimelineItem::Transition(item) => Some(item),
            TimelineItem::Gap(_) => None,
        });
        let newer = newer.filter(|item| item.seq > last && item.id == detail.instance.id);
        let newer: Vec<TransitionItem> = newer.cloned().collect();
        detail.timeline.extend(newer.into_iter().rev());
    }

    fn cause(&mut self, event: CauseEvent) {
        let history = self.history.iter_mut().filter_map(|entry| match entry {
            TimelineItem::Transition(item) => Some(item),
            TimelineItem::Gap(_) => None,
        });
        let timeline = self.detail.iter_mut().flat_map(|detail| &mut detail.timeline);
        for item in history.chain(timeline).filter(|item| item.seq == event.transition) {
            item.cause = event.cause.clone();
        }
        let instance = self.instances.get_mut(&event.id);
        if let Some(instance) = instance.filter(|instance| instance.seq == event.transition) {
            instance.cause = event.cause;
        }
    }

    fn delivery(&mut self, event: DeliveryEvent) {
        // Reports and findings have other numbers, and no place on the screen.
        if event.source != "node" || event.finding.is_some() {
            return;
        }
        let instance = event.id.as_ref().and_then(|id| self.instances.get_mut(id));
        let Some(instance) = instance else { return };
        let is_same =
            |known: &FailureItem| known.stage == event.stage && known.target == event.target;
        instance.failures.retain(|known| !is_same(known));
        if let Some(error) = event.error {
            let (stage, target) = (event.stage, event.target);
            instance.failures.push(FailureItem { stage, target, error });
            return;
        }
        let is_stage = Stage::ALL.iter().any(|stage| stage.word() == event.stage);
        if let Some(micros) =
            event.micros.filter(|_| is_stage && event.notification == instance.seq)
        {
            let slowest = instance.latencies.entry(event.stage).or_default();
            *slowest = micros.max(*slowest);
        }
    }

    fn finding(&mut self, event: FindingEvent) {
        let name = event.finding.name.clone();
        let instance = event.id.as_ref().and_then(|id| self.instances.get_mut(id));
        self.findings.retain(|known| !(known.id == event.id && known.name == name));
        let is_open = match event.state {
            FindingState::Open | FindingState::Changed => true,
            FindingState::Closed => false,
        };
        if let Some(instance) = instance {
            instance.findings.retain(|known| *known != name);
            if is_open {
                instance.findings.push(name);
            }
        }
        if is_open {
            self.findings.push(event.finding);
            self.sort_findings();
        }
    }

    fn sort_findings(&mut self) {
        self.findings.sort_by(|a, b| (a.severity, &a.id).cmp(&(b.severity, &b.id)));
    }
}

fn transition_item(event: &TransitionEvent) -> TransitionItem {
    TransitionItem {
        seq: event.seq,
        at: event.at,
        id: event.id.clone(),
        netns: event.netns.clone(),
        from: event.from.clone(),
        to: event.to.clone(),
        trigger: event.trigger.clone(),
        cause: event.cause.clone(),
        reason: event.reason.clone(),
        latencies: event.latencies.clone(),
    }
}

#[cfg(test)]
pub(super) mod tests;
