// SPDX-License-Identifier: Apache-2.0
//! Finds the cause of each transition, after the transition is published.
//!
//! ```text
//!   transition ──▶ state file, announcements, agent, history, event `transition`      at once
//!        │
//!        └──▶ pending ──▶ adverts read, processes read ──▶ core::cause ──▶ hooks and webhooks
//!                └─────── deadline: CAUSE_TIMEOUT ───────────────┘    └──▶ history, published state, event `cause`, log
//! ```
//!
//! Hooks and webhooks wait for the cause, because their document contains it. Most causes are known within some
//! milliseconds. A cause that needs no evidence, or for which no evidence can come, is known with the transition.
//!
//! Several transitions of one instance may wait at the same time. They are delivered in their order. Steps of one change,
//! for example `primary → partial → backup`, have the same cause: an earlier step without evidence of its own takes the
//! cause of a later one.

mod pending;
mod sync_group;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::cause::{
    AdvertEvidence, CauseQuestion, PreviousCause, ProcessEvidence, UnknownReason,
};
use vipwatch_core::{Cause, CauseKind, InstanceId, RoleKind, Trigger};
use vipwatch_linux::clock;
use vipwatch_linux::netns_watcher::ChangerMark;

pub(super) use self::pending::PendingCauses;
use self::pending::{AdvertCopy, PendingCause, ReadEvidence};
use super::Node;
use super::transition_log::log_cause;
use crate::cause::cause_record;
use crate::discovery::{InstanceConfig, Origin};
use crate::evidence::EvidenceUpdate;
use crate::notify::instance_outlets::DeliveryReason;
use crate::processes::{ProcessCheckRequest, process_evidence};
use crate::state::InstanceEntry;
use crate::transition::Transition;
use crate::witness::{CaptureStatus, advert_interval, configured_settings, expected_down_interval};

/// The longest time between a transition and its cause. Keepalived needs about a second to end after it has given up its
/// addresses.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The steps of one change follow each other within this time.
const STEP_SPAN: Duration = Duration::from_secs(1);

impl Node {
    /// The cause of a transition that has just been published, if it needs no evidence, or if none can come.
    pub(super) fn immediate_cause(&self, transition: &Transition) -> Option<Arc<Cause>> {
        let instance = &transition.instance;
        let is_final = !self.has_processes(instance) && !self.has_adverts(instance);
        let none = ReadEvidence::none(transition.read_at);
        self.cause_of(transition, &ReadEvidence { is_final, ..none })
    }

    /// Whether an earlier transition of the instance waits for its cause.
    fn awaits_cause(&self, id: &InstanceId) -> bool {
        self.pending_causes.of_instance(id).next().is_some()
    }

    /// Requests the evidence about a transition. [`Self::take_evidence`] concludes its cause. `known` is the entry of the
    /// instance before the transition.
    pub(super) fn await_cause(
        &mut self,
        transition: &Arc<Transition>,
        reason: DeliveryReason,
        changer: Option<ChangerMark>,
        known: Option<&InstanceEntry>,
    ) {
        let instance = &transition.instance;
        if let Some(worker) = &self.process_worker
            && self.has_processes(instance)
        {
            let request = ProcessCheckRequest::of_transition(transition, changer);
            worker.check_requests().check_now(request);
        }
        if self.has_adverts(instance) {
            self.witness.drain(instance);
        }
        let now = clock::now();
        // An instance that loses its addresses one after the other is `partial` for a moment.
        let since = known.map(|known| known.held_since.unwrap_or(known.role_since));
        let previous = known.and_then(|known| {
            Some(PreviousCause { kind: known.cause.as_ref()?.kind, at: known.role_since })
        });
        let none = ReadEvidence::none(since.unwrap_or(now));
        let mut pending = PendingCause {
            transition: Arc::clone(transition),
            reason,
            evidence: ReadEvidence {
                previous,
                of_partner: self.cause_of_partner(transition),
                ..none
            },
            changer,
            deadline: now + CAUSE_TIMEOUT,
            is_put_off: false,
        };
        // The first step of a change may need the cause of a later one at its deadline.
        if let Some(last) = self.pending_causes.of_instance(&instance.id).last()
            && is_same_change(last, &pending)
        {
            pending.deadline = last.deadline;
        }
        self.add_pending(pending);
    }

    /// Delivers a transition with a known cause to hooks and webhooks, after the earlier ones of its instance.
    pub(super) fn deliver_in_order(
        &mut self,
        transition: &Arc<Transition>,
        reason: DeliveryReason,
    ) {
        let id = &transition.instance.id;
        if !self.awaits_cause(id) {
            self.outlets.deliver_queued(transition, reason);
            return;
        }
        let now = clock::now();
        self.add_pending(PendingCause {
            transition: Arc::clone(transition),
            reason,
            evidence: ReadEvidence::none(now),
            changer: None,
            deadline: now + CAUSE_TIMEOUT,
            is_put_off: false,
        });
        self.conclude_known_causes(id);
    }

    fn add_pending(&mut self, pending: PendingCause) {
        let id = pending.transition.instance.id.clone();
        while self.pending_causes.is_full(&id) {
            self.conclude_first_cause(&id, UnknownReason::Superseded);
        }
        self.pending_causes.add(pending);
    }

    /// Takes over the evidence that workers have read, and concludes the causes that follow from it or are due. After the
    /// end of a split, the addresses are announced again.
    pub(super) fn take_evidence(&mut self) {
        let mut touched: Vec<InstanceId> = Vec::new();
        for update in self.evidence_updates.take_all() {
            self.take_update(update, &mut touched);
        }
        for id in self.pending_causes.ids_due_at(clock::now()) {
            let entry = self.store.entry(&id);
            if self.pending_causes.put_off(&id, clock::now())
                && let Some(entry) = &entry
            {
                self.witness.drain(&entry.instance);
            }
            let later = entry.and_then(|entry| self.copy_adverts(&entry.instance));
            self.pending_causes.set_due(&id, clock::now(), later.as_ref());
            touched.push(id);
        }
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            self.conclude_known_causes(&id);
        }
    }

    /// Has the processes of an instance's keepalived checked: the kernel does not report that one was stopped or frozen.
    pub(super) fn check_processes(&self, id: &InstanceId) {
        if let Some(worker) = &self.process_worker {
            worker.check_requests().check_now(ProcessCheckRequest::of_instance(id));
        }
    }

    /// Concludes the pending causes of an instance now, because of `reason`.
    pub(super) fn conclude_pending_causes(&mut self, id: &InstanceId, reason: UnknownReason) {
        while self.awaits_cause(id) {
            self.conclude_first_cause(id, reason);
        }
    }

    /// Concludes all pending causes now, because of `reason`.
    pub(super) fn conclude_all_causes(&mut self, reason: UnknownReason) {
        for id in self.pending_causes.ids() {
            self.conclude_pending_causes(&id, reason);
        }
    }

    /// Concludes the oldest pending cause of an instance now, because of `reason`.
    fn conclude_first_cause(&mut self, id: &InstanceId, reason: UnknownReason) {
        let cause = self.first_pending_cause(id);
        let cause = cause.unwrap_or_else(|| Arc::new(Cause::unknown(reason)));
        for partner in self.conclude_cause(id, &cause) {
            self.conclude_known_causes(&partner);
        }
    }

    /// Concludes the pending causes of an instance that follow from the evidence, in the order of the transitions; then
    /// those of its partners. A sync group may have thousands of members.
    fn conclude_known_causes(&mut self, id: &InstanceId) {
        let mut ids = vec![id.clone()];
        while let Some(id) = ids.pop() {
            while let Some(cause) = self.first_pending_cause(&id) {
                ids.extend(self.conclude_cause(&id, &cause));
            }
        }
    }

    /// The cause of the oldest pending transition of an instance; `None` if it is not known yet.
    fn first_pending_cause(&self, id: &InstanceId) -> Option<Arc<Cause>> {
        let mut queue = self.pending_causes.of_instance(id);
        let first = queue.next()?;
        let own = self.cause_of(&first.transition, &first.evidence);
        if own.as_deref().is_some_and(is_certain) {
            return own;
        }
        let steps = queue.take_while(|later| is_same_change(first, later));
        let mut causes =
            steps.filter_map(|later| self.cause_of(&later.transition, &later.evidence));
        causes.find(|cause| is_certain(cause)).or(own)
    }

    /// Publishes the cause of a transition, and notifies hooks and webhooks of the transition. Returns the partners that
    /// know the cause now.
    fn conclude_cause(&mut self, id: &InstanceId, cause: &Arc<Cause>) -> Vec<InstanceId> {
        let Some(PendingCause { transition, reason, evidence, .. }) =
            self.pending_causes.remove_first(id, cause.kind)
        else {
            return Vec::new();
        };
        if transition.cause.is_some() {
            self.outlets.deliver_queued(&transition, reason);
            return Vec::new();
        }
        let transition = Transition { cause: Some(Arc::clone(cause)), ..(*transition).clone() };
        let transition = Arc::new(transition);
        // A cause that a partner has shared is known to all partners.
        let is_shared = evidence.of_partner.is_some();
        let partners =
            if is_shared { Vec::new() } else { self.share_with_partners(&transition, cause) };
        // ORDER: as for a transition, targets come first and the log comes last.
        self.outlets.deliver_queued(&transition, reason);
        self.history.set_cause(transition.seq, cause_record(cause));
        if let Some(cluster) = &self.cluster {
            cluster.set_cause(id, transition.seq, cause);
        }
        self.store.amend(id, |entry| {
            if entry.seq == transition.seq {
                entry.cause = Some(Arc::clone(cause));
            }
        });
        self.publish_cause_event(&transition, cause);
        log_cause(&transition, cause);
        partners
    }

    /// The cause that follows from the evidence; `None` if more may come.
    fn cause_of(&self, transition: &Transition, evidence: &ReadEvidence) -> Option<Arc<Cause>> {
        if let Some(known) = &transition.cause {
            return Some(Arc::clone(known));
        }
        let instance = &transition.instance;
        let own = configured_settings(instance);
        let question = CauseQuestion {
            own: &own,
            from: transition.from,
            to: &transition.to,
            direction: transition.direction,
            trigger: transition.trigger,
            at: transition.read_at,
            from_since: evidence.from_since,
            previous: evidence.previous,
            changer: evidence.changer.as_ref(),
            processes: self.process_evidence(instance, evidence),
            adverts: self.advert_evidence(instance, evidence),
            configured_priority: instance.vrrp.priority,
            interval: advert_interval(instance),
            down_interval: expected_down_interval(instance),
            startup_delay: instance.vrrp.startup_delay.after_start,
            is_final: evidence.is_final,
        };
        let answer = question.answer().map(|cause| without_addresses(transition, cause));
        let Some(cause) = answer.map(Arc::new) else {
            // All evidence of its own was read, and explains nothing.
            let is_complete = evidence.has_processes && evidence.adverts.is_some();
            return evidence.of_partner.clone().filter(|_| is_complete);
        };
        if is_certain(&cause) {
            return Some(cause);
        }
        let shared = evidence.of_partner.clone().or_else(|| self.cause_of_partner(transition));
        Some(shared.unwrap_or(cause))
    }

    fn advert_evidence<'a>(
        &self,
        instance: &InstanceConfig,
        evidence: &'a ReadEvidence,
    ) -> AdvertEvidence<'a> {
        match &evidence.adverts {
            Some(AdvertCopy { witness, key }) => {
                let later = evidence.later.as_ref().map(|later| &later.witness);
                AdvertEvidence::Read { witness, key: *key, later }
            }
            None if self.has_adverts(instance) => AdvertEvidence::NotRead,
            None => AdvertEvidence::NotCaptured,
        }
    }

    /// The adverts of an instance at this moment; `None` if they are not captured.
    fn copy_adverts(&self, instance: &InstanceConfig) -> Option<AdvertCopy> {
        let copy = self.store.witness.read(instance, |found| {
            let is_running = *found.status == CaptureStatus::Running;
            is_running
                .then(|| AdvertCopy { witness: found.witness.only(found.key), key: found.key })
        });
        copy.flatten()
    }

    fn process_evidence(
        &self,
        instance: &InstanceConfig,
        evidence: &ReadEvidence,
    ) -> ProcessEvidence {
        if !self.has_processes(instance) {
            return ProcessEvidence::NotExamined;
        }
        if !evidence.has_processes && !evidence.is_final {
            return ProcessEvidence::NotRead;
        }
        process_evidence(self.store.processes().as_deref(), instance)
    }

    /// Whether the processes of the instance's keepalived are followed.
    fn has_processes(&self, instance: &InstanceConfig) -> bool {
        self.process_worker.is_some() && instance.origin != Origin::Own
    }

    /// Whether the adverts of the instance are captured.
    fn has_adverts(&self, instance: &InstanceConfig) -> bool {
        let is_running = self
            .store
            .witness
            .read(instance, |evidence| *evidence.status == CaptureStatus::Running);
        is_running.unwrap_or(false)
    }
}

impl Node {
    /// Takes over an update about pending causes, and adds the instances that it concerns to `touched`.
    fn take_update(&mut self, update: EvidenceUpdate, touched: &mut Vec<InstanceId>) {
        match update {
            EvidenceUpdate::ProcessesRead { id, transition, changer } => {
                self.pending_causes.set_processes(&id, transition, changer);
                touched.push(id);
            }
            EvidenceUpdate::AdvertsRead(netns) => {
                for id in self.pending_causes.without_adverts(netns.as_ref()) {
                    let Some(entry) = self.store.entry(&id) else { continue };
                    let copy = self.copy_adverts(&entry.instance);
                    if let Some(copy) = copy {
                        self.pending_causes.set_adverts(&id, &copy);
                    }
                    touched.push(id);
                }
            }
            EvidenceUpdate::ProcessesChanged => {
                touched.extend(self.pending_causes.ids());
            }
            EvidenceUpdate::SplitEnded(id) => self.outlets.announce_again(&id),
            EvidenceUpdate::OwnAdvertLate(id) => self.check_processes(&id),
        }
    }
}

/// Replaces a cause that only addresses can have, for an instance without any.
fn without_addresses(transition: &Transition, cause: Cause) -> Cause {
    let is_of_addresses = matches!(cause.kind, CauseKind::AddressAdded | CauseKind::AddressRemoved)
        || cause.evidence.unknown == Some(UnknownReason::ProcessNotNamed);
    // An election explains no role that was not known before.
    let was_unknown = transition.from == Some(RoleKind::Unknown);
    let is_wrong = !transition.instance.has_addresses()
        && transition.trigger == Trigger::Advert
        && (is_of_addresses || was_unknown);
    if is_wrong { Cause::unknown(UnknownReason::NoEvidence) } else { cause }
}

/// Whether a cause rests on facts, and not on their absence.
fn is_certain(cause: &Cause) -> bool {
    cause.kind != CauseKind::Unknown && !cause.evidence.is_inferred
}

/// Whether two transitions of one instance are steps of the same change.
fn is_same_change(earlier: &PendingCause, later: &PendingCause) -> bool {
    let between = later.transition.read_at.since(earlier.transition.read_at);
    earlier.transition.direction == later.transition.direction && between <= STEP_SPAN
}
