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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::cause::{
    AddressChanger, AdvertSight, CauseQuestion, PreviousCause, ProcessSight, UnknownReason,
};
use vipwatch_core::witness::{LinkWitness, RouterKey};
use vipwatch_core::{Cause, CauseKind, InstanceId, Moment, NetnsName, Role};
use vipwatch_linux::clock;

use super::Node;
use super::transition_log::log_cause;
use crate::cause::cause_record;
use crate::discovery::{InstanceConfig, Origin};
use crate::evidence::EvidenceUpdate;
use crate::notify::instance_outlets::DeliveryReason;
use crate::processes::process_sight;
use crate::state::InstanceEntry;
use crate::transition::Transition;
use crate::witness::{CaptureStatus, advert_interval, configured_settings, expected_down_interval};

/// The longest time between a transition and its cause. Keepalived needs about a second to end after it has given up its
/// addresses.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A transition without a cause.
#[derive(Debug)]
struct PendingCause {
    transition: Arc<Transition>,
    /// Why it is delivered to hooks and webhooks.
    reason: DeliveryReason,
    evidence: ReadEvidence,
    /// The netlink port of the process that changed the addresses; `None` if it is not known.
    changer_port: Option<u32>,
    deadline: Moment,
}

/// The evidence that was read since a transition.
#[derive(Debug)]
struct ReadEvidence {
    /// When the instance took the role before the transition, or its first address if it held some.
    from_since: Moment,
    changer: Option<AddressChanger>,
    /// The adverts shortly after the transition; `None` until they are read. Later ones may be its consequence.
    adverts: Option<AdvertCopy>,
    /// The adverts at the deadline; `None` before it.
    later: Option<AdvertCopy>,
    /// The transition before; `None` if its cause is not known.
    previous: Option<PreviousCause>,
    has_processes: bool,
    /// No more evidence will come, or the deadline has passed.
    is_final: bool,
}

impl ReadEvidence {
    /// Nothing was read yet.
    fn none(from_since: Moment) -> Self {
        Self {
            from_since,
            changer: None,
            adverts: None,
            later: None,
            previous: None,
            has_processes: false,
            is_final: false,
        }
    }
}

/// A copy of the adverts of one virtual router.
#[derive(Debug)]
struct AdvertCopy {
    witness: LinkWitness,
    key: RouterKey,
}

/// The transitions without a cause, by instance.
#[derive(Debug, Default)]
pub(super) struct PendingCauses(BTreeMap<InstanceId, PendingCause>);

impl PendingCauses {
    /// The process that changed the addresses at the last transition of an instance, if its cause is pending and the role
    /// is `partial`: the next transition continues the same change.
    pub(super) fn changer_port(&self, id: &InstanceId) -> Option<u32> {
        let pending = self.0.get(id)?;
        let is_partial = matches!(pending.transition.to, Role::Partial { .. });
        pending.changer_port.filter(|_| is_partial)
    }

    /// When the next deadline passes; `None` without pending causes.
    pub(super) fn due(&self) -> Option<Moment> {
        self.0.values().map(|pending| pending.deadline).min()
    }
}

impl Node {
    /// The cause of a transition that has just been published, if it needs no evidence, or if none can come.
    pub(super) fn immediate_cause(&self, transition: &Transition) -> Option<Arc<Cause>> {
        let instance = &transition.instance;
        let is_final = !self.has_processes(instance) && !self.has_adverts(instance);
        let none = ReadEvidence::none(transition.read_at);
        self.cause_of(transition, &ReadEvidence { is_final, ..none })
    }

    /// Requests the evidence about a transition. [`Self::take_evidence`] concludes its cause. `known` is the entry of the
    /// instance before the transition.
    pub(super) fn await_cause(
        &mut self,
        transition: &Arc<Transition>,
        reason: DeliveryReason,
        changer_port: Option<u32>,
        known: Option<&InstanceEntry>,
    ) {
        let instance = &transition.instance;
        let has_processes = self.has_processes(instance);
        if let Some(worker) = self.process_worker.as_ref().filter(|_| has_processes) {
            worker.check_requests().check_now(&instance.id, changer_port);
        }
        if self.has_adverts(instance) {
            self.witness.drain(instance);
        }
        let now = clock::now();
        // An instance that loses its addresses one after the other is `partial` for a moment.
        let since = known.map(|known| known.held_since.unwrap_or(known.since));
        let age = since.map(|since| since.elapsed().unwrap_or_default());
        let pending = PendingCause {
            transition: Arc::clone(transition),
            reason,
            evidence: ReadEvidence {
                previous: known.and_then(|known| {
                    let at = now.before(known.since.elapsed().unwrap_or_default());
                    Some(PreviousCause { kind: known.cause.as_ref()?.kind, at })
                }),
                ..ReadEvidence::none(now.before(age.unwrap_or_default()))
            },
            changer_port,
            deadline: now + CAUSE_TIMEOUT,
        };
        self.pending_causes.0.insert(instance.id.clone(), pending);
    }

    /// Takes over the evidence that workers have read, and concludes the causes that follow from it or are due. After the
    /// end of a split, the addresses are announced again.
    pub(super) fn take_evidence(&mut self) {
        let mut touched: Vec<InstanceId> = Vec::new();
        for update in self.evidence_updates.take_all() {
            self.take_update(update, &mut touched);
        }
        for id in self.pending_causes.due_at(clock::now()) {
            let later = self.store.entry(&id).and_then(|entry| self.copy_adverts(&entry.instance));
            if let Some(pending) = self.pending_causes.0.get_mut(&id) {
                pending.evidence.later = later;
                pending.evidence.is_final = true;
                touched.push(id);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            let Some(pending) = self.pending_causes.0.get(&id) else { continue };
            if let Some(cause) = self.cause_of(&pending.transition, &pending.evidence) {
                self.conclude_cause(&id, &cause);
            }
        }
    }

    /// Has the processes of an instance's keepalived checked: the kernel does not report that one was stopped or frozen.
    pub(super) fn check_processes(&self, id: &InstanceId) {
        if let Some(worker) = &self.process_worker {
            worker.check_requests().check_now(id, None);
        }
    }

    /// Concludes the cause of the last transition of an instance now, because of `reason`, if it is pending.
    pub(super) fn conclude_pending_cause(&mut self, id: &InstanceId, reason: UnknownReason) {
        let Some(pending) = self.pending_causes.0.get(id) else { return };
        let cause = self.cause_of(&pending.transition, &pending.evidence);
        let cause = cause.unwrap_or_else(|| Arc::new(Cause::unknown(reason)));
        self.conclude_cause(id, &cause);
    }

    /// Concludes all pending causes now, because of `reason`.
    pub(super) fn conclude_all_causes(&mut self, reason: UnknownReason) {
        let ids: Vec<InstanceId> = self.pending_causes.0.keys().cloned().collect();
        for id in ids {
            self.conclude_pending_cause(&id, reason);
        }
    }

    /// Publishes the cause of a transition, and notifies hooks and webhooks of the transition.
    fn conclude_cause(&mut self, id: &InstanceId, cause: &Arc<Cause>) {
        let Some(PendingCause { transition, reason, .. }) = self.pending_causes.0.remove(id) else {
            return;
        };
        let transition = Transition { cause: Some(Arc::clone(cause)), ..(*transition).clone() };
        let transition = Arc::new(transition);
        // ORDER: as for a transition, targets come first and the log comes last.
        self.outlets.deliver_queued(&transition, reason);
        self.history.set_cause(transition.seq, cause_record(cause));
        self.store.amend(id, |entry| {
            if entry.seq == transition.seq {
                entry.cause = Some(Arc::clone(cause));
            }
        });
        self.publish_cause_event(&transition, cause);
        log_cause(&transition, cause);
    }

    /// The cause that follows from the evidence; `None` if more may come.
    fn cause_of(&self, transition: &Transition, evidence: &ReadEvidence) -> Option<Arc<Cause>> {
        let instance = &transition.instance;
        let own = configured_settings(instance);
        let question = CauseQuestion {
            own: &own,
            from: transition.from,
            to: &transition.to,
            trigger: transition.trigger,
            at: transition.read_at,
            from_since: evidence.from_since,
            previous: evidence.previous,
            changer: evidence.changer.as_ref(),
            processes: self.process_sight(instance, evidence),
            adverts: self.advert_sight(instance, evidence),
            configured_priority: instance.vrrp.priority,
            interval: advert_interval(instance),
            down_interval: expected_down_interval(instance),
            is_final: evidence.is_final,
        };
        let cause = Arc::new(question.answer()?);
        let is_certain = cause.kind != CauseKind::Unknown && !cause.evidence.is_inferred;
        Some(if is_certain { cause } else { self.cause_of_group(transition).unwrap_or(cause) })
    }

    /// The cause of another member of the instance's sync group, which has changed its role at the same time: keepalived
    /// moves all members of a group together.
    fn cause_of_group(&self, transition: &Transition) -> Option<Arc<Cause>> {
        let instance = &transition.instance;
        let group = instance.vrrp.sync_group.as_ref()?;
        let is_certain =
            |cause: &Arc<Cause>| cause.kind != CauseKind::Unknown && !cause.evidence.is_inferred;
        let is_member = |entry: &InstanceEntry| {
            let other = &entry.instance;
            let is_other = other.id != instance.id && other.file == instance.file;
            is_other && other.vrrp.sync_group.as_ref() == Some(group)
        };
        let is_same_change = |entry: &InstanceEntry| {
            let between = entry.since.duration_since(transition.at);
            let between = between.unwrap_or_else(|earlier| earlier.duration());
            entry.role.kind() == transition.to.kind() && between <= CAUSE_TIMEOUT
        };
        let view = self.store.view();
        let mut members = view.entries.values().filter(|entry| is_member(entry));
        members.find_map(|entry| {
            entry.cause.clone().filter(|cause| is_same_change(entry) && is_certain(cause))
        })
    }

    fn advert_sight<'a>(
        &self,
        instance: &InstanceConfig,
        evidence: &'a ReadEvidence,
    ) -> AdvertSight<'a> {
        match &evidence.adverts {
            Some(AdvertCopy { witness, key }) => {
                let later = evidence.later.as_ref().map(|later| &later.witness);
                AdvertSight::Read { witness, key: *key, later }
            }
            None if self.has_adverts(instance) => AdvertSight::NotRead,
            None => AdvertSight::NotCaptured,
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

    fn process_sight(&self, instance: &InstanceConfig, evidence: &ReadEvidence) -> ProcessSight {
        if !self.has_processes(instance) {
            return ProcessSight::NotExamined;
        }
        if !evidence.has_processes && !evidence.is_final {
            return ProcessSight::NotRead;
        }
        process_sight(self.store.processes().as_deref(), instance, clock::now())
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
            EvidenceUpdate::ProcessesRead { id, changer } => {
                if let Some(pending) = self.pending_causes.0.get_mut(&id) {
                    pending.evidence.has_processes = true;
                    pending.evidence.changer = changer;
                    touched.push(id);
                }
            }
            EvidenceUpdate::AdvertsRead(netns) => {
                for id in self.pending_causes.without_adverts(netns.as_ref()) {
                    let Some(entry) = self.store.entry(&id) else { continue };
                    let copy = self.copy_adverts(&entry.instance);
                    if let Some(pending) = self.pending_causes.0.get_mut(&id) {
                        // The read may have been requested by an earlier transition.
                        let read_at = pending.transition.read_at;
                        pending.evidence.adverts =
                            copy.filter(|copy| copy.witness.drained_at() >= read_at);
                        touched.push(id);
                    }
                }
            }
            EvidenceUpdate::ProcessesChanged => {
                touched.extend(self.pending_causes.0.keys().cloned());
            }
            EvidenceUpdate::SplitEnded(id) => self.outlets.announce_again(&id),
            EvidenceUpdate::OwnAdvertLate(id) => self.check_processes(&id),
        }
    }
}

impl PendingCauses {
    /// The instances with a deadline that has passed.
    fn due_at(&self, now: Moment) -> Vec<InstanceId> {
        let due = self.0.iter().filter(|(_, pending)| pending.deadline <= now);
        due.map(|(id, _)| id.clone()).collect()
    }

    /// The instances in this namespace that have no adverts yet.
    fn without_adverts(&self, netns: Option<&NetnsName>) -> Vec<InstanceId> {
        let is_wanted = |(_, pending): &(&InstanceId, &PendingCause)| {
            let is_there = pending.transition.instance.netns.as_ref() == netns;
            is_there && pending.evidence.adverts.is_none()
        };
        self.0.iter().filter(is_wanted).map(|(id, _)| id.clone()).collect()
    }
}
