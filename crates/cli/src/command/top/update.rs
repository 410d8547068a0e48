// SPDX-License-Identifier: Apache-2.0
//! Applies events to the known state of the node.

use vipwatch_api::{
    CauseEvent, CauseItem, DeliveryEvent, FailureItem, FindingEvent, FindingState, LatencyMap,
    NodeEvent, RemovedEvent, TimelineItem, TransitionEvent, TransitionItem,
};
use vipwatch_history::Stage;

use super::node_data::{HISTORY_ENTRIES, NodeData};

impl NodeData {
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
        instance.role = event.to;
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
            cause: CauseItem::default(),
            reason: None,
            latencies: LatencyMap::new(),
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
    pub(super) fn extend_timeline(&mut self) {
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
        self.findings.retain(|known| !known.is_same(&event.finding));
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
}

fn transition_item(event: &TransitionEvent) -> TransitionItem {
    TransitionItem {
        seq: event.seq,
        at: event.at,
        id: event.id.clone(),
        netns: event.netns.clone(),
        from: event.from,
        to: event.to.word().to_owned(),
        trigger: event.trigger.clone(),
        cause: event.cause.clone(),
        reason: event.reason.clone(),
        latencies: event.latencies.clone(),
    }
}
