// SPDX-License-Identifier: Apache-2.0
//! The reporter: one node of the cluster evaluates the groups of all nodes, and writes the findings to etcd.
//!
//! The key `reporter` has the lease of the process, so that another node is elected seconds after the reporter is gone.
//! Every write of a finding compares the revision that created this key: a process that is no longer the reporter writes
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use vipwatch_core::{InstanceId, Moment};

use super::publish::MAX_BATCH_BYTES;
use super::{ClusterEvent, DeliveredFinding};
use crate::etcd::messages::{Compare, RequestOp};
use crate::etcd::{LeaseId, MAX_OPERATIONS};
use crate::findings::{ClusterFindingChange, EvaluationTime, Evaluator, EvaluatorSettings};
use crate::key::{ClusterKey, ClusterName, FindingId, KeySpace};
use crate::neutron::NeutronAnswer;
use crate::record::{FindingRecord, encode};
use crate::view::{ClusterView, StoredValue, ViewChange};

/// The maximum number of findings in etcd that have ended. Every node has them in memory.
// BOUND: the oldest are deleted.
const MAX_CLOSED_FINDINGS: usize = 2000;

/// The work of the reporter, while this node is it.
pub(super) struct ReporterWork {
    keys: KeySpace,
    /// The revision that created the key `reporter`.
    create_revision: i64,
    evaluator: Evaluator,
    /// The findings that are open, and those that have ended and were not delivered to all targets.
    findings: BTreeMap<FindingId, ReportedFinding>,
    /// The findings that differ from etcd.
    changed: BTreeSet<FindingId>,
    /// The oldest findings that have ended, which are too many.
    surplus: BTreeSet<FindingId>,
    /// Events that need no write.
    ready: Vec<ClusterEvent>,
}

#[derive(Debug)]
struct ReportedFinding {
    record: FindingRecord,
    /// The revision of the last write of a reporter; 0 before the first one.
    revision: i64,
    /// Whether the node gets an event after the next write.
    is_new: bool,
    /// Whether this reporter has found it itself. The opening of another one is not delivered.
    is_evaluated: bool,
}

/// The findings of one transaction.
#[derive(Debug)]
pub(super) struct FindingBatch {
    pub(super) compares: Vec<Compare>,
    writes: Vec<FindingWrite>,
    pub(super) bytes: usize,
    written: Vec<FindingId>,
    deleted: Vec<FindingId>,
}

/// A key that the reporter writes or deletes.
#[derive(Debug)]
struct FindingWrite {
    key: String,
    /// `None` deletes the key.
    value: Option<Vec<u8>>,
    /// The lease of the key; `None` if it has none.
    lease: Option<LeaseId>,
}

impl FindingBatch {
    /// The operations of the transaction.
    pub(super) fn operations(&self) -> Vec<RequestOp> {
        let operation = |write: &FindingWrite| match &write.value {
            Some(value) => RequestOp::put(&write.key, value.as_slice(), write.lease),
            None => RequestOp::delete(&write.key),
        };
        self.writes.iter().map(operation).collect()
    }

    /// The changes that the watches will deliver, after the transaction was carried out at this revision.
    pub(super) fn changes(&self, mod_revision: i64) -> impl Iterator<Item = ViewChange> {
        self.writes.iter().map(move |write| {
            let (key, lease) = (write.key.clone(), write.lease.map_or(0, |lease| lease.0));
            match write.value.clone() {
                Some(value) => {
                    let create_revision = mod_revision;
                    ViewChange::Put(StoredValue {
                        key,
                        value,
                        mod_revision,
                        create_revision,
                        lease,
                    })
                }
                None => ViewChange::Deleted { key, mod_revision },
            }
        })
    }

    fn put(&mut self, key: String, value: Vec<u8>, lease: Option<LeaseId>) {
        self.bytes += value.len();
        self.writes.push(FindingWrite { key, value: Some(value), lease });
    }

    fn delete(&mut self, key: String) {
        self.writes.push(FindingWrite { key, value: None, lease: None });
    }
}

impl ReporterWork {
    /// Continues the findings of the reporter before, in a view that follows etcd since `connected`. Their records are those of any client of etcd: an opening is delivered when
    /// this reporter has found the condition itself, and an end without words of the record.
    pub(super) fn new(
        view: &ClusterView,
        settings: &EvaluatorSettings,
        node: &ClusterName,
        create_revision: i64,
        connected: Moment,
    ) -> Self {
        let open: Vec<FindingRecord> = view.findings().cloned().collect();
        let ended = view.closed_findings().filter(|record| !is_notified(record));
        let ended = ended.map(|record| record.clone().restated(node.as_str()));
        let reported = open.iter().cloned().chain(ended).filter_map(|record| {
            let id: FindingId = record.id.parse().ok()?;
            let revision = view.finding(&id).map_or(0, |stored| stored.mod_revision);
            Some((id, ReportedFinding { record, revision, is_new: false, is_evaluated: false }))
        });
        Self {
            keys: view.keys().clone(),
            create_revision,
            findings: reported.collect(),
            changed: BTreeSet::new(),
            surplus: BTreeSet::new(),
            ready: Vec::new(),
            evaluator: Evaluator::new(settings.clone(), node, Some(connected), open),
        }
    }

    /// The events for findings with an end that some target may not have received.
    pub(super) fn events(&self) -> Vec<ClusterEvent> {
        let records = self.findings.values().map(|finding| &finding.record);
        records.filter(|record| record.closed.is_some()).cloned().map(event).collect()
    }

    /// The events for the openings that this reporter has found and written, for targets that are new.
    pub(super) fn openings(&self) -> Vec<ClusterEvent> {
        let found =
            self.findings.values().filter(|finding| finding.is_evaluated && !finding.is_new);
        let open = found.filter(|finding| finding.record.closed.is_none());
        open.map(|finding| event(finding.record.clone())).collect()
    }

    /// Removes and returns the events that need no write.
    pub(super) fn take_events(&mut self) -> Vec<ClusterEvent> {
        std::mem::take(&mut self.ready)
    }

    /// The revision that created the key `reporter`.
    pub(super) fn create_revision(&self) -> i64 {
        self.create_revision
    }

    /// Whether there are so many open findings that no more are opened.
    pub(super) fn is_full(&self) -> bool {
        self.evaluator.is_full()
    }

    /// The view no longer follows etcd.
    pub(super) fn interrupt(&mut self) {
        self.evaluator.interrupt();
    }

    /// The time of the next evaluation without a change of the view.
    pub(super) fn next_check(&self) -> Option<Moment> {
        self.evaluator.next_check()
    }

    /// Neutron has answered about a router.
    pub(super) fn neutron_answered(
        &mut self,
        router: InstanceId,
        answer: NeutronAnswer,
        requested: Moment,
    ) {
        self.evaluator.neutron_answered(router, answer, requested);
    }

    /// Evaluates the view.
    pub(super) fn evaluate(&mut self, view: &ClusterView, time: EvaluationTime) {
        for change in self.evaluator.evaluate(view, time) {
            match change {
                ClusterFindingChange::Opened(record)
                | ClusterFindingChange::Found { record, is_changed: true } => {
                    self.set(record, true, true);
                }
                ClusterFindingChange::Closed(record) => self.set(record, true, false),
                ClusterFindingChange::Changed(record) => self.set(record, false, true),
                ClusterFindingChange::Found { record, is_changed: false } => self.found(record),
            }
        }
        self.surplus = view.surplus_closed_findings(MAX_CLOSED_FINDINGS).into_iter().collect();
    }

    /// The record in etcd is right already.
    fn found(&mut self, record: FindingRecord) {
        let Ok(id) = record.id.parse::<FindingId>() else { return };
        if let Some(finding) = self.findings.get_mut(&id) {
            finding.record = record.clone();
            finding.is_evaluated = true;
            self.ready.push(event(record));
        }
    }

    fn set(&mut self, mut record: FindingRecord, is_new: bool, is_evaluated: bool) {
        let Ok(id) = record.id.parse::<FindingId>() else { return };
        let before = self.findings.remove(&id);
        if let Some(before) = &before {
            // The view may not have the last deliveries yet.
            merge(&mut record.notified_open, &before.record.notified_open);
            merge(&mut record.notified_closed, &before.record.notified_closed);
        }
        let revision = before.as_ref().map_or(0, |before| before.revision);
        let is_new = is_new || before.is_some_and(|before| before.is_new);
        self.changed.insert(id.clone());
        self.findings.insert(id, ReportedFinding { record, revision, is_new, is_evaluated });
    }

    /// The key of an open finding has changed at this revision. If another client has changed or deleted it, it is written
    /// again.
    pub(super) fn observe(&mut self, id: &FindingId, revision: i64) {
        let known = self.findings.get(id).filter(|finding| finding.record.closed.is_none());
        if known.is_some_and(|finding| revision > finding.revision) {
            self.changed.insert(id.clone());
        }
    }

    /// All findings were read again: those that are missing or different are written again.
    pub(super) fn compare(&mut self, view: &ClusterView) {
        let open = self.findings.iter().filter(|(_, finding)| finding.record.closed.is_none());
        let differs = |id: &FindingId, finding: &ReportedFinding| {
            view.finding(id).is_none_or(|stored| stored.mod_revision > finding.revision)
        };
        let different = open.filter(|(id, finding)| differs(id, finding)).map(|(id, _)| id.clone());
        self.changed.extend(different);
    }

    /// The retention of a finding that has ended is over: targets that have not received its end do not get it any more.
    pub(super) fn forget_ended(&mut self, id: &FindingId) {
        if self.findings.get(id).is_some_and(|finding| finding.record.closed.is_some()) {
            self.findings.remove(id);
            self.changed.remove(id);
        }
    }

    /// A target has received a finding.
    pub(super) fn delivered(&mut self, view: &ClusterView, delivered: DeliveredFinding) {
        let DeliveredFinding { id, target, is_closed } = delivered;
        let ended = |id: &FindingId| {
            let record = view.closed_findings().find(|record| record.id == id.as_str()).cloned();
            let (revision, is_new, is_evaluated) = (0, false, false);
            record.map(|record| ReportedFinding { record, revision, is_new, is_evaluated })
        };
        let known = self.findings.remove(&id).or_else(|| ended(&id));
        let Some(mut finding) = known else { return };
        let record = &mut finding.record;
        let list = if is_closed { &mut record.notified_closed } else { &mut record.notified_open };
        if !list.contains(&target) {
            list.push(target);
            list.sort();
            self.changed.insert(id.clone());
        }
        self.findings.insert(id, finding);
    }

    /// Whether a finding that has ended must be written, for which the next batch needs a lease.
    pub(super) fn needs_retention_lease(&self) -> bool {
        let is_closed = |id: &FindingId| {
            self.findings.get(id).is_some_and(|finding| finding.record.closed.is_some())
        };
        self.changed.iter().any(is_closed)
    }

    /// The next transaction; `None` if etcd has all findings.
    pub(super) fn next_batch(&self, retention: Option<LeaseId>) -> Option<FindingBatch> {
        let reporter = self.keys.text(&ClusterKey::Reporter);
        let mut batch = FindingBatch {
            compares: vec![Compare::create_revision_is(&reporter, self.create_revision)],
            writes: Vec::new(),
            bytes: 0,
            written: Vec::new(),
            deleted: Vec::new(),
        };
        for id in &self.changed {
            // A finding needs up to two operations.
            if batch.writes.len() + 2 > MAX_OPERATIONS || batch.bytes >= MAX_BATCH_BYTES {
                break;
            }
            let Some(finding) = self.findings.get(id) else { continue };
            let value = encode(&finding.record);
            let open = self.keys.text(&ClusterKey::Finding(id.clone()));
            if finding.record.closed.is_some() {
                batch.delete(open);
                batch.put(self.keys.text(&ClusterKey::Closed(id.clone())), value, retention);
            } else {
                batch.put(open, value, None);
            }
            batch.written.push(id.clone());
        }
        let room = MAX_OPERATIONS.saturating_sub(batch.writes.len());
        for id in self.surplus.iter().take(room) {
            batch.delete(self.keys.text(&ClusterKey::Closed(id.clone())));
            batch.deleted.push(id.clone());
        }
        (!batch.writes.is_empty()).then_some(batch)
    }

    /// The transaction was carried out at this revision: the node delivers the news in it.
    pub(super) fn committed(&mut self, batch: FindingBatch, revision: i64) -> Vec<ClusterEvent> {
        for id in &batch.deleted {
            self.surplus.remove(id);
        }
        let mut events = Vec::new();
        for id in batch.written {
            self.changed.remove(&id);
            let Some(finding) = self.findings.get_mut(&id) else { continue };
            finding.revision = revision;
            if std::mem::take(&mut finding.is_new) {
                events.push(event(finding.record.clone()));
            }
            let is_over = finding.record.closed.is_some() && is_notified(&finding.record);
            if is_over {
                self.findings.remove(&id);
            }
        }
        events
    }
}

/// Whether every target that has received the opening has received the end.
fn is_notified(record: &FindingRecord) -> bool {
    record.notified_open.iter().all(|target| record.notified_closed.contains(target))
}

fn event(record: FindingRecord) -> ClusterEvent {
    if record.closed.is_some() {
        ClusterEvent::FindingClosed(Box::new(record))
    } else {
        ClusterEvent::FindingOpen(Box::new(record))
    }
}

fn merge(list: &mut Vec<String>, more: &[String]) {
    list.extend(more.iter().cloned());
    list.sort();
    list.dedup();
}
