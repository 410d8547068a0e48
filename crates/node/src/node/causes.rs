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
    AddressChanger, AdvertSight, CauseQuestion, ProcessSight, UnknownReason,
};
use vipwatch_core::{Cause, InstanceId, Moment};
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
use crate::witness::{CaptureStatus, advert_interval, expected_down_interval};

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
    deadline: Moment,
}

/// The evidence that was read since a transition.
#[derive(Debug)]
struct ReadEvidence {
    /// When the instance took the role before the transition.
    from_since: Moment,
    changer: Option<AddressChanger>,
    has_adverts: bool,
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
            has_adverts: false,
            has_processes: false,
            is_final: false,
        }
    }
}

/// The transitions without a cause, by instance.
#[derive(Debug, Default)]
pub(super) struct PendingCauses(BTreeMap<InstanceId, PendingCause>);

impl PendingCauses {
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
        let age = known.map(|known| known.since.elapsed().unwrap_or_default());
        let pending = PendingCause {
            transition: Arc::clone(transition),
            reason,
            evidence: ReadEvidence::none(now.before(age.unwrap_or_default())),
            deadline: now + CAUSE_TIMEOUT,
        };
        self.pending_causes.0.insert(instance.id.clone(), pending);
    }

    /// Takes over the evidence that workers have read, and concludes the causes that follow from it or are due. After the
    /// end of a split, the addresses are announced again.
    pub(super) fn take_evidence(&mut self) {
        let mut touched: Vec<InstanceId> = Vec::new();
        for update in self.evidence_updates.take_all() {
            match update {
                EvidenceUpdate::SplitEnded(id) => self.outlets.announce_again(&id),
                EvidenceUpdate::OwnAdvertLate(id) => self.check_processes(&id),
                update => self.pending_causes.take(update, &mut touched),
            }
        }
        let now = clock::now();
        for (id, pending) in &mut self.pending_causes.0 {
            if pending.deadline <= now {
                pending.evidence.is_final = true;
                touched.push(id.clone());
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
        let question = CauseQuestion {
            from: transition.from,
            to: &transition.to,
            trigger: transition.trigger,
            at: transition.read_at,
            from_since: evidence.from_since,
            changer: evidence.changer.as_ref(),
            processes: self.process_sight(instance, evidence),
            adverts: AdvertSight::NotCaptured,
            configured_priority: instance.vrrp.priority,
            interval: advert_interval(instance),
            down_interval: expected_down_interval(instance),
            is_final: evidence.is_final,
        };
        let answer = self.store.witness.read(instance, |found| {
            let adverts = match found.status {
                CaptureStatus::Running if evidence.has_adverts || evidence.is_final => {
                    AdvertSight::Read { witness: found.witness, key: found.key }
                }
                CaptureStatus::Running => AdvertSight::NotRead,
                _ => AdvertSight::NotCaptured,
            };
            CauseQuestion { adverts, ..question }.answer()
        });
        let answer = match answer {
            Some(answer) => answer,
            None => question.answer(),
        };
        answer.map(Arc::new)
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

impl PendingCauses {
    /// Takes over an update, and adds the instances that it concerns to `touched`.
    fn take(&mut self, update: EvidenceUpdate, touched: &mut Vec<InstanceId>) {
        match update {
            EvidenceUpdate::ProcessesRead { id, changer } => {
                if let Some(pending) = self.0.get_mut(&id) {
                    pending.evidence.has_processes = true;
                    pending.evidence.changer = changer;
                    touched.push(id);
                }
            }
            EvidenceUpdate::AdvertsRead(netns) => {
                let members = self.0.iter_mut();
                for (id, pending) in
                    members.filter(|(_, pending)| pending.transition.instance.netns == netns)
                {
                    pending.evidence.has_adverts = true;
                    touched.push(id.clone());
                }
            }
            EvidenceUpdate::ProcessesChanged => touched.extend(self.0.keys().cloned()),
            EvidenceUpdate::SplitEnded(_) | EvidenceUpdate::OwnAdvertLate(_) => {}
        }
    }
}
