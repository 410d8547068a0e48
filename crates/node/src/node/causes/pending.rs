// SPDX-License-Identifier: Apache-2.0
//! The transitions that wait for their cause, with the evidence that was read for each.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::cause::{AddressChanger, PreviousCause};
use vipwatch_core::witness::{LinkWitness, RouterKey};
use vipwatch_core::{Cause, CauseKind, InstanceId, Moment, NetnsName, Role};
use vipwatch_linux::netns_watcher::ChangerMark;

use crate::notify::instance_outlets::DeliveryReason;
use crate::transition::Transition;

/// BOUND: so many transitions of one instance wait. Another one has the oldest concluded at once.
const MAX_PENDING: usize = 8;

/// A read of adverts takes no longer than this.
const LAST_READ: Duration = Duration::from_millis(50);

/// A transition that waits for its cause, or for the cause of an earlier one.
#[derive(Debug)]
pub(super) struct PendingCause {
    pub(super) transition: Arc<Transition>,
    /// Why it is delivered to hooks and webhooks.
    pub(super) reason: DeliveryReason,
    pub(super) evidence: ReadEvidence,
    /// The process that changed the addresses; `None` if it is not known.
    pub(super) changer: Option<ChangerMark>,
    pub(super) deadline: Moment,
    /// Whether the deadline was put off for the last read of adverts.
    pub(super) is_put_off: bool,
}

/// The evidence that was read since a transition.
#[derive(Debug)]
pub(super) struct ReadEvidence {
    /// When the instance took the role before the transition, or its first address if it held some.
    pub(super) from_since: Moment,
    pub(super) changer: Option<AddressChanger>,
    /// The adverts shortly after the transition; `None` until they are read. Later ones may be its consequence.
    pub(super) adverts: Option<AdvertCopy>,
    /// The adverts at the deadline; `None` before it.
    pub(super) later: Option<AdvertCopy>,
    /// The transition before; `None` if its cause is not known.
    pub(super) previous: Option<PreviousCause>,
    /// The cause of a partner in the sync group that changed its role at the same time.
    pub(super) of_partner: Option<Arc<Cause>>,
    pub(super) has_processes: bool,
    /// No more evidence will come, or the deadline has passed.
    pub(super) is_final: bool,
}

impl ReadEvidence {
    /// Nothing was read yet.
    pub(super) fn none(from_since: Moment) -> Self {
        Self {
            from_since,
            changer: None,
            adverts: None,
            later: None,
            previous: None,
            of_partner: None,
            has_processes: false,
            is_final: false,
        }
    }
}

/// A copy of the adverts of one virtual router.
#[derive(Debug, Clone)]
pub(super) struct AdvertCopy {
    pub(super) witness: LinkWitness,
    pub(super) key: RouterKey,
}

/// The transitions that wait, by instance, the oldest one first. No queue is empty.
#[derive(Debug, Default)]
pub(in crate::node) struct PendingCauses(BTreeMap<InstanceId, VecDeque<PendingCause>>);

impl PendingCauses {
    /// The process that changed the addresses at the last transition of an instance, if its cause is pending and the role
    /// is `partial`: the next transition continues the same change.
    pub(in crate::node) fn changer(&self, id: &InstanceId) -> Option<ChangerMark> {
        let pending = self.0.get(id)?.back()?;
        let is_partial = matches!(pending.transition.to, Role::Partial { .. });
        pending.changer.filter(|_| is_partial)
    }

    /// When the next deadline passes; `None` without pending causes.
    pub(in crate::node) fn due(&self) -> Option<Moment> {
        self.0.values().flatten().filter_map(PendingCause::due).min()
    }

    pub(super) fn ids(&self) -> Vec<InstanceId> {
        self.0.keys().cloned().collect()
    }

    /// The transitions of an instance that wait, the oldest one first.
    pub(super) fn of_instance(&self, id: &InstanceId) -> impl Iterator<Item = &PendingCause> {
        self.0.get(id).into_iter().flatten()
    }

    /// All transitions that wait.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut PendingCause> {
        self.0.values_mut().flatten()
    }

    pub(super) fn is_full(&self, id: &InstanceId) -> bool {
        self.0.get(id).is_some_and(|queue| queue.len() >= MAX_PENDING)
    }

    pub(super) fn add(&mut self, pending: PendingCause) {
        self.0.entry(pending.transition.instance.id.clone()).or_default().push_back(pending);
    }

    /// Removes the oldest transition of an instance, which has this cause. The next one knows it as its previous one.
    pub(super) fn remove_first(
        &mut self,
        id: &InstanceId,
        kind: CauseKind,
    ) -> Option<PendingCause> {
        let queue = self.0.get_mut(id)?;
        let first = queue.pop_front()?;
        match queue.front_mut() {
            Some(next) => {
                let at = first.transition.read_at;
                next.evidence.previous = Some(PreviousCause { kind, at });
            }
            None => drop(self.0.remove(id)),
        }
        Some(first)
    }

    /// The instances with a deadline that has passed.
    pub(super) fn ids_due_at(&self, now: Moment) -> Vec<InstanceId> {
        let is_due = |queue: &VecDeque<PendingCause>| queue.iter().any(|one| one.is_due_at(now));
        self.0.iter().filter(|(_, queue)| is_due(queue)).map(|(id, _)| id.clone()).collect()
    }

    /// Puts off the deadlines of an instance that have passed, once: the newest adverts may not be read yet. Returns whether
    /// there is one.
    pub(super) fn put_off(&mut self, id: &InstanceId, now: Moment) -> bool {
        let all = self.0.get_mut(id).into_iter().flatten();
        all.fold(false, |is_any, one| {
            let is_due = one.is_due_at(now) && !one.is_put_off;
            if is_due {
                (one.is_put_off, one.deadline) = (true, now + LAST_READ);
            }
            is_any || is_due
        })
    }

    /// Ends the wait for evidence about the transitions of an instance with a deadline that has passed. `later` are the
    /// adverts at this moment.
    pub(super) fn set_due(&mut self, id: &InstanceId, now: Moment, later: Option<&AdvertCopy>) {
        for pending in self.0.get_mut(id).into_iter().flatten().filter(|one| one.is_due_at(now)) {
            pending.evidence.later = later.cloned();
            pending.evidence.is_final = true;
        }
    }

    /// The instances in this namespace with a transition that has no adverts yet.
    pub(super) fn without_adverts(&self, netns: Option<&NetnsName>) -> Vec<InstanceId> {
        let is_wanted = |pending: &PendingCause| {
            let is_there = pending.transition.instance.netns.as_ref() == netns;
            is_there && pending.evidence.adverts.is_none()
        };
        let wanted = self.0.iter().filter(|(_, queue)| queue.iter().any(is_wanted));
        wanted.map(|(id, _)| id.clone()).collect()
    }

    /// Adds the adverts to each transition that has none, if they were read after it. The read may have been requested by
    /// an earlier transition.
    pub(super) fn set_adverts(&mut self, id: &InstanceId, copy: &AdvertCopy) {
        for pending in self.0.get_mut(id).into_iter().flatten() {
            let is_after = copy.witness.drained_at() >= pending.transition.read_at;
            if is_after && pending.evidence.adverts.is_none() {
                pending.evidence.adverts = Some(copy.clone());
            }
        }
    }

    /// The processes were read for the transition with this sequence number.
    pub(super) fn set_processes(
        &mut self,
        id: &InstanceId,
        transition: i64,
        changer: Option<AddressChanger>,
    ) {
        let mut queue = self.0.get_mut(id).into_iter().flatten();
        if let Some(pending) = queue.find(|pending| pending.transition.seq == transition) {
            pending.evidence.has_processes = true;
            pending.evidence.changer = changer;
        }
    }
}

impl PendingCause {
    /// When the wait for evidence ends; `None` if it has ended, or if the cause is known.
    fn due(&self) -> Option<Moment> {
        let is_waiting = !self.evidence.is_final && self.transition.cause.is_none();
        is_waiting.then_some(self.deadline)
    }

    fn is_due_at(&self, now: Moment) -> bool {
        self.due().is_some_and(|due| due <= now)
    }
}
