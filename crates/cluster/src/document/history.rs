// SPDX-License-Identifier: Apache-2.0
//! The history of the cluster: the last transitions of each instance, and the findings.

use std::collections::BTreeMap;

use vipwatch_api::{
    ClusterBasis, ClusterHistory, ClusterHistoryItem, FindingScope, Schema, Timestamp,
};

use super::{finding_item, limits};
use crate::group::Group;
use crate::record::FindingRecord;
use crate::view::ClusterView;

/// The part of the history that an answer contains.
#[derive(Debug, Clone, Copy)]
pub struct ClusterHistorySelection<'a> {
    /// Only events of this group; `None` for all groups, and findings about nodes.
    pub group: Option<&'a str>,
    /// Only events not before this time, by the clock of their node; `None` for all.
    pub since: Option<Timestamp>,
    /// The maximum number of events. The newest remain.
    pub limit: usize,
}

/// The place of an event: its time, then its origin, so that the order of equal times is fixed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EventOrder {
    at: Timestamp,
    origin: String,
    number: i64,
}

/// The newest events, at most a number of them.
struct NewestEvents<'a> {
    selection: ClusterHistorySelection<'a>,
    events: BTreeMap<EventOrder, ClusterHistoryItem>,
}

/// The answer to `GET /v1/cluster/history`.
pub fn history(
    view: &ClusterView,
    basis: ClusterBasis,
    selection: ClusterHistorySelection<'_>,
) -> ClusterHistory {
    let mut newest = NewestEvents { selection, events: BTreeMap::new() };
    for group in view.groups() {
        if selection.group.is_none_or(|id| id == group.id) {
            newest.add_transitions(&group);
        }
    }
    for finding in view.findings().chain(view.closed_findings()) {
        if selection.group.is_none() || selection.group == finding.group.as_deref() {
            newest.add_finding(finding);
        }
    }
    let items = newest.events.into_values().collect();
    ClusterHistory { schema: Schema::ClusterHistory, basis: limits::add(basis, view), items }
}

impl NewestEvents<'_> {
    fn add_transitions(&mut self, group: &Group) {
        for member in &group.members {
            let (node, instance) = (member.node.to_string(), &member.record.instance);
            for transition in &member.record.recent {
                let (at, number) = (transition.at, transition.seq);
                let order = EventOrder { at, origin: format!("{node}/{instance}"), number };
                self.add(order, || ClusterHistoryItem::Transition {
                    at,
                    group: group.id.clone(),
                    node: node.clone(),
                    instance: instance.clone(),
                    seq: transition.seq,
                    from: transition.from,
                    to: transition.to,
                    cause: transition.cause.clone(),
                });
            }
        }
    }

    fn add_finding(&mut self, record: &FindingRecord) {
        let item = || finding_item(record, FindingScope::Cluster);
        let order = |at, number| EventOrder { at, origin: record.id.clone(), number };
        let at = record.opened;
        self.add(order(at, 0), || ClusterHistoryItem::FindingOpened { at, finding: item() });
        if let Some(at) = record.closed {
            self.add(order(at, 1), || ClusterHistoryItem::FindingClosed { at, finding: item() });
        }
    }

    fn add(&mut self, order: EventOrder, item: impl FnOnce() -> ClusterHistoryItem) {
        let is_old = self.selection.since.is_some_and(|since| order.at < since);
        let is_full = self.events.len() >= self.selection.limit;
        let is_before_all = self.events.first_key_value().is_none_or(|(first, _)| order < *first);
        if is_old || (is_full && is_before_all) {
            return;
        }
        self.events.insert(order, item());
        if self.events.len() > self.selection.limit {
            self.events.pop_first();
        }
    }
}
