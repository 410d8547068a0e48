// SPDX-License-Identifier: Apache-2.0
//! The notifications of one target: ready, waiting and concluded ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use vipwatch_api::FindingState;
use vipwatch_core::notification::{
    BacklogPart, BacklogRange, Concluded, DeliveryPolicy, DeliveryStep, InstanceDelivery,
    QueuedEvent, Submitted,
};
use vipwatch_core::{Conclusion, EventKind, InstanceId, Jitter, Moment};
use vipwatch_history::DeliverySource;

use super::QueueContext;
use crate::notify::attempt::OutgoingEvent;
use crate::notify::notification::{Notification, Subject};
use crate::notify::target::TargetSettings;

/// The wait until the history is read again, if it could not be read or is not written yet.
const BACKLOG_WAIT: Duration = Duration::from_millis(200);

/// What earlier runs have concluded about one subject.
#[derive(Debug, Clone, Copy)]
pub(in crate::notify) struct StoredSubject {
    pub(in crate::notify) concluded: Concluded,
    /// Number of notifications that retention deleted undelivered.
    pub(in crate::notify) missed: u32,
}

/// Work for a worker.
pub(super) enum Job {
    /// Deliver these notifications in one attempt.
    Attempt(Vec<TakenEvent>),
    /// Read notifications from the history.
    ReadBacklog { subject: Subject, instance: InstanceId, range: BacklogRange },
    /// Nothing before this time; `None` if nothing is pending.
    Wait(Option<Moment>),
}

/// A notification that a worker has taken.
pub(super) struct TakenEvent {
    pub(super) subject: Subject,
    pub(super) event: OutgoingEvent,
}

/// An attempt that failed.
pub(super) struct FailedAttempt {
    pub(super) error: String,
    /// The attempt was made by an earlier run, so the log of this one does not have it.
    pub(super) is_of_earlier_run: bool,
}

/// One subject.
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts about the subject")]
pub(super) struct TrackedSubject {
    pub(super) delivery: InstanceDelivery<Arc<dyn Notification>>,
    /// The subject is in `ready`.
    pub(super) is_ready: bool,
    /// A worker reads its backlog.
    pub(super) is_reading: bool,
    /// The instance is no longer configured. It is forgotten when its removal is concluded.
    pub(super) is_removed: bool,
    /// Whether the target was notified that the finding is open, before those that a silence holds back.
    pub(super) was_open: bool,
}

impl TrackedSubject {
    pub(super) fn new(concluded: Option<Concluded>, missed: u32) -> Self {
        let delivery = InstanceDelivery::new(concluded, missed);
        Self { delivery, is_ready: false, is_reading: false, is_removed: false, was_open: false }
    }

    /// Whether the last notification was given up, and no newer one is pending.
    pub(super) fn is_given_up(&self) -> bool {
        let concluded = self.delivery.concluded();
        let is_given_up = |concluded: Concluded| concluded.conclusion == Conclusion::GivenUp;
        self.delivery.is_idle() && concluded.is_some_and(is_given_up)
    }
}

/// Numbers since the process started.
#[derive(Default)]
pub(super) struct TargetCounters {
    pub(super) delivered: u64,
    pub(super) failures: u64,
    pub(super) given_up: u64,
    pub(super) superseded: u64,
    pub(super) filtered: u64,
    pub(super) dropped: u64,
}

/// The state of a queue.
pub(super) struct TargetQueueState {
    pub(super) settings: TargetSettings,
    pub(super) policy: DeliveryPolicy,
    pub(super) name: Arc<str>,
    pub(super) source: DeliverySource,
    pub(super) context: Arc<QueueContext>,
    pub(super) subjects: BTreeMap<Subject, TrackedSubject>,
    /// Subjects with a notification that may be delivered now.
    pub(super) ready: VecDeque<Subject>,
    /// When the first of `ready` became ready; `None` if it is empty.
    pub(super) ready_since: Option<Moment>,
    /// Subjects that wait for the end of `settle` or for the next attempt.
    pub(super) timers: BTreeMap<Subject, Moment>,
    pub(super) silenced: BTreeSet<Subject>,
    /// The earliest time of the next batch.
    pub(super) next_batch_at: Moment,
    /// The subjects for which the last attempt failed.
    pub(super) failing: BTreeMap<Subject, FailedAttempt>,
    pub(super) counters: TargetCounters,
    pub(super) jitter: Jitter,
    pub(super) running: usize,
    pub(super) workers: usize,
    pub(super) idle_workers: usize,
    pub(super) is_closing: bool,
    pub(super) is_removed: bool,
}

impl TargetQueueState {
    pub(super) fn new(
        settings: TargetSettings,
        source: DeliverySource,
        stored: BTreeMap<Subject, StoredSubject>,
        context: Arc<QueueContext>,
    ) -> Self {
        let tracked = |(subject, stored): (Subject, StoredSubject)| {
            (subject, TrackedSubject::new(Some(stored.concluded), stored.missed))
        };
        Self {
            policy: settings.policy(),
            name: settings.name().into(),
            settings,
            source,
            context,
            subjects: stored.into_iter().map(tracked).collect(),
            ready: VecDeque::new(),
            ready_since: None,
            timers: BTreeMap::new(),
            silenced: BTreeSet::new(),
            next_batch_at: Moment::new(Duration::ZERO),
            failing: BTreeMap::new(),
            counters: TargetCounters::default(),
            jitter: Jitter::new(u64::from(std::process::id())),
            running: 0,
            workers: 0,
            idle_workers: 0,
            is_closing: false,
            is_removed: false,
        }
    }

    pub(super) fn tracked(&mut self, subject: &Subject) -> &mut TrackedSubject {
        self.subjects.entry(subject.clone()).or_insert_with(|| TrackedSubject::new(None, 0))
    }

    /// Adds a notification.
    pub(super) fn submit(&mut self, notification: &Arc<dyn Notification>, now: Moment) {
        self.add(notification, now, InstanceDelivery::submit);
    }

    /// As [`Self::submit`], for the first notification about an instance in this run. `is_unchanged`: the notification
    /// is not new, an earlier run had it already.
    pub(super) fn resume(
        &mut self,
        notification: &Arc<dyn Notification>,
        is_unchanged: bool,
        now: Moment,
    ) {
        self.add(notification, now, |delivery, event, is_selected, now, policy| {
            delivery.resume(event, is_selected, is_unchanged, now, policy)
        });
    }

    fn add(
        &mut self,
        notification: &Arc<dyn Notification>,
        now: Moment,
        submit: impl FnOnce(
            &mut InstanceDelivery<Arc<dyn Notification>>,
            QueuedEvent<Arc<dyn Notification>>,
            bool,
            Moment,
            &DeliveryPolicy,
        ) -> Submitted,
    ) {
        let subject = notification.subject();
        let (seq, kind) = (notification.seq(), notification.kind());
        let mut is_selected = self.settings.selects_at(&**notification, &self.context.silences);
        // A finding that the target is not configured for needs no entry.
        if !is_selected && kind == EventKind::Finding {
            return;
        }
        let is_finding = kind == EventKind::Finding;
        let mut content = Arc::clone(notification);
        if is_finding {
            self.begin_finding(&subject, seq);
            let held = self.hold_finding(&subject, notification);
            is_selected = held.is_some();
            content = held.unwrap_or(content);
        }
        // Only transitions and reports are read from the disk when the queue is full.
        let has_history = self.policy.has_history && !is_finding;
        let policy = DeliveryPolicy { has_history, ..self.policy };
        let event = QueuedEvent { seq, kind, content };
        let tracked = self.tracked(&subject);
        tracked.is_removed = kind == EventKind::Removed;
        let submitted = submit(&mut tracked.delivery, event, is_selected, now, &policy);
        self.counters.superseded += submitted.superseded;
        if submitted.dropped > 0 {
            self.counters.dropped += u64::from(submitted.dropped);
            let target = &*self.name;
            let (instance, finding) = (subject.instance_word(), subject.finding());
            tracing::warn!(instance, finding, target, "queue is full: oldest notification dropped");
        }
        if is_finding && !is_selected {
            self.report(&**notification, Some(Conclusion::Filtered), None);
        }
        if submitted.is_concluded {
            self.counters.filtered += u64::from(!is_selected);
            self.store(&subject, 0);
            if !is_selected && self.failing.remove(&subject).is_some() {
                self.report_filtered(&subject);
            }
        }
        self.place(&subject, now);
    }

    /// A finding is a state: what a silence holds back is replaced by `newer`, so that the target receives the current state
    /// after the silence. Returns the notification to deliver; `None` if the finding has appeared and gone.
    fn hold_finding(
        &mut self,
        subject: &Subject,
        newer: &Arc<dyn Notification>,
    ) -> Option<Arc<dyn Notification>> {
        let (settings, silences) = (&self.settings, &self.context.silences);
        let is_held = |held: &Arc<dyn Notification>| settings.is_silenced_at(&**held, silences);
        let state = newer.finding_state().filter(|_| is_held(newer));
        let (Some(state), Some(tracked)) = (state, self.subjects.get_mut(subject)) else {
            return Some(Arc::clone(newer));
        };
        let replaced = tracked.delivery.withdraw(is_held);
        if replaced.is_empty() {
            tracked.was_open = state != FindingState::Open;
        }
        let was_open = tracked.was_open;
        self.counters.superseded += replaced.len() as u64;
        for replaced in replaced {
            self.report(&*replaced, Some(Conclusion::Superseded), None);
        }
        match state {
            FindingState::Closed if !was_open => None,
            FindingState::Changed if !was_open => newer.as_opening(),
            FindingState::Open | FindingState::Changed | FindingState::Closed => {
                Some(Arc::clone(newer))
            }
        }
    }

    pub(super) fn reconfigure(&mut self, settings: &TargetSettings, now: Moment) {
        if self.settings == *settings {
            return;
        }
        self.settings = settings.clone();
        self.policy = settings.policy();
        let policy = self.policy;
        let pending = self.subjects.iter_mut().filter(|(_, tracked)| !tracked.delivery.is_idle());
        let pending: Vec<Subject> = pending
            .map(|(subject, tracked)| {
                tracked.delivery.retry_now(&policy);
                subject.clone()
            })
            .collect();
        self.next_batch_at = now;
        for subject in pending {
            self.place(&subject, now);
        }
    }

    /// Looks again at notifications that a silence has held back.
    pub(super) fn place_silenced(&mut self, now: Moment) {
        for subject in std::mem::take(&mut self.silenced) {
            self.place(&subject, now);
        }
    }

    /// Puts a subject where it belongs now: ready, waiting for a time, or silenced.
    pub(super) fn place(&mut self, subject: &Subject, now: Moment) {
        loop {
            let is_silenced = self.is_silenced(subject);
            let policy = self.policy;
            let Some(tracked) = self.subjects.get_mut(subject) else { return };
            if tracked.is_reading {
                return;
            }
            self.timers.remove(subject);
            match tracked.delivery.next_step(now, is_silenced, &policy) {
                DeliveryStep::Attempt | DeliveryStep::ReadBacklog(_) => {
                    if !std::mem::replace(&mut tracked.is_ready, true) {
                        self.ready.push_back(subject.clone());
                        self.ready_since.get_or_insert(now);
                    }
                    return;
                }
                DeliveryStep::WaitUntil(at) => {
                    self.timers.insert(subject.clone(), at);
                    return;
                }
                DeliveryStep::Silenced => {
                    self.silenced.insert(subject.clone());
                    return;
                }
                DeliveryStep::Concluded(conclusion) => {
                    self.count(conclusion);
                    self.store(subject, 0);
                    if self.failing.remove(subject).is_some() {
                        self.report_filtered(subject);
                    }
                }
                DeliveryStep::Running => return,
                DeliveryStep::Idle => return self.remove_if_over(subject),
            }
        }
    }

    pub(super) fn is_silenced(&self, subject: &Subject) -> bool {
        if !self.settings.can_be_silenced() {
            return false;
        }
        let tracked = self.subjects.get(subject);
        let first = tracked.and_then(|tracked| tracked.delivery.first());
        let Some(first) = first else { return false };
        let until = self.context.silences.until(first.content.instance(), SystemTime::now());
        first.content.is_local() && until.is_some()
    }

    /// Forgets a subject without pending notifications: a finding, or an instance that was removed.
    pub(super) fn remove_if_over(&mut self, subject: &Subject) {
        let Some(tracked) = self.subjects.get(subject) else { return };
        let is_over = match subject {
            Subject::Finding(_) => true,
            Subject::Instance(_) => tracked.is_removed,
        };
        if is_over {
            self.forget(subject);
        }
    }

    /// Removes a subject, also from the disk.
    pub(super) fn forget(&mut self, subject: &Subject) {
        self.timers.remove(subject);
        self.silenced.remove(subject);
        self.failing.remove(subject);
        self.ready.retain(|ready| ready != subject);
        if self.subjects.remove(subject).is_some()
            && let Some(store) = &self.context.store
        {
            store.delete(self.key(subject));
        }
    }

    /// Adds what was read from the history; `None` if it could not be read.
    pub(super) fn add_backlog(
        &mut self,
        subject: &Subject,
        part: Option<BacklogPart<Arc<dyn Notification>>>,
        now: Moment,
    ) {
        let Some(tracked) = self.subjects.get_mut(subject) else { return };
        tracked.is_reading = false;
        let Some(part) = part else {
            self.timers.insert(subject.clone(), now + BACKLOG_WAIT);
            return;
        };
        let missed = part.missed.saturating_sub(tracked.delivery.missed());
        let is_concluded = tracked.delivery.add_backlog(part);
        if missed > 0 {
            self.counters.dropped += u64::from(missed);
            let target = &*self.name;
            tracing::warn!(instance = %subject, target, missed, "retention deleted undelivered transitions");
        }
        if is_concluded {
            self.store(subject, 0);
        }
        self.place(subject, now);
    }

    /// Number of workers that the ready notifications need.
    pub(super) fn ready_jobs(&self) -> usize {
        self.ready.len().min(if self.settings.batch().is_some() { 1 } else { usize::MAX })
    }

    pub(super) fn has_timers(&self) -> bool {
        !self.timers.is_empty()
    }

    pub(super) fn next_timer(&self) -> Option<Moment> {
        self.timers.values().min().copied()
    }

    /// Whether an attempt runs or is about to.
    pub(super) fn has_work(&self) -> bool {
        self.running > 0 || !self.ready.is_empty()
    }
}
