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
use crate::findings::{
    ClusterFindingChange, EvaluationTime, Evaluator, EvaluatorSettings, FindingBasis,
};
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
    /// The maximum number of findings in a transaction. It shrinks to find the one that etcd does not accept.
    batch_limit: usize,
    /// Findings that etcd has not accepted since the last evaluation.
    deferred: BTreeSet<FindingId>,
}

/// The maximum number of findings in a transaction.
const MAX_BATCH: usize = MAX_OPERATIONS;

/// The maximum number of comparisons in a transaction: etcd counts them as it counts operations.
const MAX_COMPARES: usize = MAX_OPERATIONS;

#[derive(Debug)]
struct ReportedFinding {
    record: FindingRecord,
    /// The revision of the last write of a reporter; 0 before the first one, and 1 if it is not known whether there was one.
    revision: i64,
    /// Whether etcd has acknowledged a write.
    is_written: bool,
    /// Whether the node gets an event after the next write.
    is_new: bool,
    /// Whether this reporter has found it itself. The opening of another one is not delivered.
    is_evaluated: bool,
    /// The lease of its key after its end; `None` before.
    lease: Option<LeaseId>,
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

    /// Whether the transaction writes findings, and does not only delete some that have ended.
    pub(super) fn has_findings(&self) -> bool {
        !self.written.is_empty()
    }

    /// The leases of the findings that have ended.
    fn leases(&self) -> BTreeMap<FindingId, LeaseId> {
        let leased = self
            .writes
            .iter()
            .filter_map(|write| Some((write.key.rsplit_once('/')?.1, write.lease?)));
        leased.filter_map(|(id, lease)| Some((id.parse().ok()?, lease))).collect()
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
            // 0 stands for a finding that no reporter has written.
            let revision = view.finding(&id).map_or(1, |stored| stored.mod_revision);
            let lease = view.closed_lease(&id).map(LeaseId);
            let (is_new, is_evaluated) = (false, false);
            let is_written = true;
            let finding =
                ReportedFinding { record, revision, is_written, is_new, is_evaluated, lease };
            Some((id, finding))
        });
        Self {
            keys: view.keys().clone(),
            create_revision,
            findings: reported.collect(),
            changed: BTreeSet::new(),
            surplus: BTreeSet::new(),
            ready: Vec::new(),
            batch_limit: MAX_BATCH,
            deferred: BTreeSet::new(),
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
        let is_shown = |finding: &&ReportedFinding| {
            finding.record.closed.is_none() && is_delivered(&finding.record)
        };
        let open = found.filter(is_shown);
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
        self.deferred.clear();
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
            // The end of the silence changes the record, and the write is followed by the event.
            finding.is_new = !is_delivered(&record);
            if !finding.is_new {
                self.ready.push(event(record));
            }
        }
    }

    fn set(&mut self, mut record: FindingRecord, is_new: bool, is_evaluated: bool) {
        let Ok(id) = record.id.parse::<FindingId>() else { return };
        let before = self.findings.remove(&id);
        if record.closed.is_some() && before.as_ref().is_some_and(|before| before.revision == 0) {
            // Its opening was never written: a change on its way has ended the condition.
            self.changed.remove(&id);
            return;
        }
        if let Some(before) = &before {
            // The view may not have the last deliveries yet.
            merge(&mut record.notified_open, &before.record.notified_open);
            merge(&mut record.notified_closed, &before.record.notified_closed);
        }
        let revision = before.as_ref().map_or(0, |before| before.revision);
        let lease = before.as_ref().and_then(|before| before.lease);
        let is_new = is_new || before.as_ref().is_some_and(|before| before.is_new);
        self.changed.insert(id.clone());
        let is_written = before.as_ref().is_some_and(|before| before.is_written);
        let finding = ReportedFinding { record, revision, is_written, is_new, is_evaluated, lease };
        self.findings.insert(id, finding);
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
            let (revision, is_new, is_evaluated) = (1, false, false);
            let lease = view.closed_lease(id).map(LeaseId);
            let is_written = true;
            record.map(|record| ReportedFinding {
                record,
                revision,
                is_written,
                is_new,
                is_evaluated,
                lease,
            })
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

    /// Whether a finding that has ended must be written for the first time, for which the next batch needs a lease.
    pub(super) fn needs_retention_lease(&self) -> bool {
        let is_closed = |id: &FindingId| {
            let finding = self.findings.get(id);
            finding.is_some_and(|it| it.record.closed.is_some() && it.lease.is_none())
        };
        self.changed.iter().any(is_closed)
    }

    /// The next transaction; `None` if etcd has all findings that it accepts now. A finding that is to be deleted is not
    /// written before: etcd refuses a transaction that does both.
    pub(super) fn next_batch(&self, retention: Option<LeaseId>) -> Option<FindingBatch> {
        let reporter = self.keys.text(&ClusterKey::Reporter);
        let mut batch = FindingBatch {
            compares: vec![Compare::create_revision_is(&reporter, self.create_revision)],
            writes: Vec::new(),
            bytes: 0,
            written: Vec::new(),
            deleted: Vec::new(),
        };
        for id in self.changed.difference(&self.surplus).filter(|id| !self.deferred.contains(*id)) {
            let Some(finding) = self.findings.get(id) else { continue };
            let basis = self.basis(finding);
            // A finding needs up to two operations.
            let is_full = batch.writes.len() + 2 > MAX_OPERATIONS
                || batch.bytes >= MAX_BATCH_BYTES
                || batch.written.len() >= self.batch_limit
                || batch.compares.len() + basis.len() > MAX_COMPARES;
            if is_full && !batch.written.is_empty() {
                break;
            }
            let value = encode(&finding.record);
            let open = self.keys.text(&ClusterKey::Finding(id.clone()));
            if finding.record.closed.is_some() {
                batch.delete(open);
                let lease = finding.lease.or(retention);
                batch.put(self.keys.text(&ClusterKey::Closed(id.clone())), value, lease);
            } else {
                batch.put(open, value, None);
                batch.compares.extend(basis);
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

    /// The comparisons of an opening that is not written yet. Each is true unless the role or the process of a member has
    /// changed since the evaluation.
    fn basis(&self, finding: &ReportedFinding) -> Vec<Compare> {
        if finding.is_written {
            return Vec::new();
        }
        let basis = self.evaluator.basis(&finding.record).iter();
        let compares = basis.map(|basis| match basis {
            FindingBasis::Role { key, mod_revision } => {
                let key = self.keys.text(&ClusterKey::Role(key.clone()));
                Compare::mod_revision_is(&key, *mod_revision)
            }
            FindingBasis::Node { name, create_revision } => {
                let key = self.keys.text(&ClusterKey::Node(name.clone()));
                Compare::create_revision_is(&key, *create_revision)
            }
            FindingBasis::Member { name, mod_revision } => {
                let key = self.keys.text(&ClusterKey::Member(name.clone()));
                Compare::mod_revision_is(&key, *mod_revision)
            }
        });
        compares.take(MAX_COMPARES - 1).collect()
    }

    /// etcd has not accepted the transaction: a comparison was false, or a value is refused. Smaller ones find the finding that
    /// is the reason; the others are written. Returns it if it is found.
    pub(super) fn refused(&mut self, batch: &FindingBatch) -> Option<FindingId> {
        if let [id] = batch.written.as_slice() {
            self.deferred.insert(id.clone());
            return Some(id.clone());
        }
        self.batch_limit = (batch.written.len() / 2).max(1);
        None
    }

    /// A lease of findings that have ended has ended: they are written with another one.
    pub(super) fn forget_leases(&mut self) {
        self.findings.values_mut().for_each(|finding| finding.lease = None);
    }

    /// It is not known whether the transaction was carried out.
    pub(super) fn uncertain(&mut self, batch: &FindingBatch) {
        for id in &batch.written {
            if let Some(finding) = self.findings.get_mut(id) {
                finding.revision = finding.revision.max(1);
            }
        }
    }

    /// The transaction was carried out at this revision: the node delivers the news in it.
    pub(super) fn committed(&mut self, batch: FindingBatch, revision: i64) -> Vec<ClusterEvent> {
        self.batch_limit = (self.batch_limit * 2).min(MAX_BATCH);
        for id in &batch.deleted {
            self.surplus.remove(id);
            self.changed.remove(id);
            self.findings.remove(id);
        }
        let leases = batch.leases();
        let mut events = Vec::new();
        for id in batch.written {
            self.changed.remove(&id);
            let Some(finding) = self.findings.get_mut(&id) else { continue };
            finding.revision = revision;
            finding.is_written = true;
            finding.lease = leases.get(&id).copied().or(finding.lease);
            let is_held = finding.record.closed.is_none() && !is_delivered(&finding.record);
            if !is_held && std::mem::take(&mut finding.is_new) {
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

/// Whether the opening of a finding is delivered: no silence covers it, and no other finding stands for it.
fn is_delivered(record: &FindingRecord) -> bool {
    record.silenced.is_none() && record.part_of.is_none()
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

#[cfg(test)]
mod tests;
