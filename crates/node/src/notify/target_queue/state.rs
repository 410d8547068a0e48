//! The notifications of one target: which are ready, which wait, and what is concluded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use vipwatch_api::{FailingDelivery, TargetItem};
use vipwatch_core::notification::{
    AfterAttempt, AttemptResult, BacklogPart, BacklogRange, Concluded, DeliveryPolicy,
    InstanceDelivery, NextStep, QueuedEvent,
};
use vipwatch_core::{Conclusion, DeliveryMode, EventKind, InstanceId, Jitter, Moment};
use vipwatch_history::{ConcludedRow, DeliveryKey, DeliverySource};
use vipwatch_linux::clock;

use super::QueueContext;
use crate::event;
use crate::notify::attempt::{Attempt, OutgoingEvent};
use crate::notify::notification::{DeliveryReport, Notification, Subject};
use crate::notify::target::TargetSettings;

/// Maximum number of failing instances in a view.
const MAX_LISTED: usize = 20;

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
    subject: Subject,
    pub(super) event: OutgoingEvent,
}

/// One subject.
struct TrackedSubject {
    delivery: InstanceDelivery<Arc<dyn Notification>>,
    /// The subject is in `ready`.
    is_ready: bool,
    /// A worker reads its backlog.
    is_reading: bool,
    /// The instance is no longer configured. It is forgotten when its removal is concluded.
    is_removed: bool,
}

impl TrackedSubject {
    fn new(concluded: Option<Concluded>, missed: u32) -> Self {
        let delivery = InstanceDelivery::new(concluded, missed);
        Self { delivery, is_ready: false, is_reading: false, is_removed: false }
    }
}

/// Numbers since the process started.
#[derive(Default)]
struct TargetCounters {
    delivered: u64,
    failures: u64,
    given_up: u64,
    superseded: u64,
    filtered: u64,
    dropped: u64,
}

/// The state of a queue.
pub(super) struct QueueState {
    pub(super) settings: TargetSettings,
    policy: DeliveryPolicy,
    name: Arc<str>,
    source: DeliverySource,
    context: Arc<QueueContext>,
    subjects: BTreeMap<Subject, TrackedSubject>,
    /// Subjects with a notification that may be delivered now.
    ready: VecDeque<Subject>,
    /// When the first of `ready` became ready; `None` if it is empty.
    ready_since: Option<Moment>,
    /// Subjects that wait for the end of `settle` or for the next attempt.
    timers: BTreeMap<Subject, Moment>,
    silenced: BTreeSet<Subject>,
    /// The earliest time of the next batch.
    next_batch_at: Moment,
    /// The error of the last attempt.
    pub(super) failing: BTreeMap<Subject, String>,
    counters: TargetCounters,
    jitter: Jitter,
    running: usize,
    pub(super) workers: usize,
    pub(super) idle_workers: usize,
    pub(super) is_closing: bool,
    pub(super) is_removed: bool,
}

impl QueueState {
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
            policy: settings.policy(source),
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

    fn tracked(&mut self, subject: &Subject) -> &mut TrackedSubject {
        self.subjects.entry(subject.clone()).or_insert_with(|| TrackedSubject::new(None, 0))
    }

    /// Adds a notification.
    pub(super) fn submit(&mut self, notification: &Arc<dyn Notification>, now: Moment) {
        let subject = notification.subject();
        let (seq, kind) = (notification.seq(), notification.kind());
        let is_selected = self.settings.selects(kind);
        // A finding that the target is not configured for needs no entry.
        if !is_selected && kind == EventKind::Finding {
            return;
        }
        let policy = self.policy;
        let event = QueuedEvent { seq, kind, content: Arc::clone(notification) };
        let tracked = self.tracked(&subject);
        tracked.is_removed = kind == EventKind::Removed;
        let submitted = tracked.delivery.submit(event, is_selected, now, &policy);
        self.counters.superseded += submitted.superseded;
        if submitted.dropped > 0 {
            self.counters.dropped += u64::from(submitted.dropped);
            let target = &*self.name;
            tracing::warn!(instance = %subject, target, "queue is full: oldest notification dropped");
        }
        if submitted.is_concluded {
            self.counters.filtered += 1;
            self.store(&subject, 0);
        }
        self.place(&subject, now);
    }

    /// As [`Self::submit`], for the first notification about an instance in this run. `is_unchanged`: the notification
    /// is not new, an earlier run had it already.
    pub(super) fn resume(
        &mut self,
        notification: &Arc<dyn Notification>,
        is_unchanged: bool,
        now: Moment,
    ) {
        let (subject, seq) = (notification.subject(), notification.seq());
        let policy = self.policy;
        if policy.deliver == DeliveryMode::Every && policy.has_history {
            let delivery = &mut self.tracked(&subject).delivery;
            match delivery.concluded() {
                // A new target for every transition gets those from now on.
                None if is_unchanged => {
                    delivery.skip_to(seq);
                    return self.store(&subject, 0);
                }
                Some(_) if delivery.is_idle() && delivery.is_new(seq) => {
                    delivery.expect_backlog(&policy);
                }
                _ => {}
            }
        }
        self.submit(notification, now);
    }

    pub(super) fn reconfigure(&mut self, settings: &TargetSettings, now: Moment) {
        if self.settings == *settings {
            return;
        }
        self.settings = settings.clone();
        self.policy = settings.policy(self.source);
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
    fn place(&mut self, subject: &Subject, now: Moment) {
        loop {
            let is_silenced = self.is_silenced(subject);
            let policy = self.policy;
            let Some(tracked) = self.subjects.get_mut(subject) else { return };
            if tracked.is_reading {
                return;
            }
            self.timers.remove(subject);
            match tracked.delivery.next_step(now, is_silenced, &policy) {
                NextStep::Attempt | NextStep::ReadBacklog(_) => {
                    if !std::mem::replace(&mut tracked.is_ready, true) {
                        self.ready.push_back(subject.clone());
                        self.ready_since.get_or_insert(now);
                    }
                    return;
                }
                NextStep::WaitUntil(at) => {
                    self.timers.insert(subject.clone(), at);
                    return;
                }
                NextStep::Silenced => {
                    self.silenced.insert(subject.clone());
                    return;
                }
                NextStep::Concluded(conclusion) => {
                    self.count(conclusion);
                    self.store(subject, 0);
                    if self.failing.remove(subject).is_some() {
                        self.report_filtered(subject);
                    }
                }
                NextStep::Running => return,
                NextStep::Idle => return self.remove_if_over(subject),
            }
        }
    }

    fn is_silenced(&self, subject: &Subject) -> bool {
        if !self.settings.can_be_silenced() {
            return false;
        }
        let tracked = self.subjects.get(subject);
        let first = tracked.and_then(|tracked| tracked.delivery.first());
        let Some(first) = first else { return false };
        let until = self.context.silences.until(first.content.instance(), SystemTime::now());
        until.is_some()
    }

    /// Forgets a subject that will not change any more: a closed finding, or an instance that was removed.
    fn remove_if_over(&mut self, subject: &Subject) {
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
            && let (Some(store), Some(key)) = (&self.context.store, self.key(subject))
        {
            store.delete(key);
        }
    }

    /// The next job.
    pub(super) fn take_job(&mut self, now: Moment) -> Job {
        if self.is_removed {
            return Job::Wait(None);
        }
        let due: Vec<Subject> =
            self.timers.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for subject in due {
            self.place(&subject, now);
        }
        let max = match self.batch_wait(now) {
            Some(at) => {
                return Job::Wait([Some(at), self.next_timer()].into_iter().flatten().min());
            }
            None => self.settings.batch().map_or(1, |batch| batch.max),
        };
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(subject) = self.ready.pop_front()
        {
            match self.take(&subject, now) {
                Some(Job::Attempt(events)) => taken.extend(events),
                Some(job) if taken.is_empty() => return self.after_take(job),
                Some(_) => {
                    // The backlog is read after this batch.
                    if let Some(tracked) = self.subjects.get_mut(&subject) {
                        tracked.is_reading = false;
                        tracked.is_ready = true;
                    }
                    self.ready.push_front(subject);
                    break;
                }
                None => {}
            }
        }
        if taken.is_empty() {
            self.ready_since = None;
            return Job::Wait(self.next_timer());
        }
        self.running += taken.len();
        self.after_take(Job::Attempt(taken))
    }

    fn after_take(&mut self, job: Job) -> Job {
        if self.ready.is_empty() {
            self.ready_since = None;
        }
        job
    }

    /// How long a batch must wait: for the interval between two, or for more notifications.
    fn batch_wait(&self, now: Moment) -> Option<Moment> {
        let batch = self.settings.batch()?;
        let ready_since = self.ready_since?;
        let is_full = self.ready.len() >= batch.max || self.is_closing;
        let collected_at = if is_full { ready_since } else { ready_since + batch.wait };
        let next_at = if self.is_closing { now } else { self.next_batch_at };
        Some(collected_at.max(next_at)).filter(|at| *at > now)
    }

    /// Begins an attempt for a subject that was ready; `None` if it is not ready any more.
    fn take(&mut self, subject: &Subject, now: Moment) -> Option<Job> {
        let is_silenced = self.is_silenced(subject);
        let policy = self.policy;
        let tracked = self.subjects.get_mut(subject)?;
        tracked.is_ready = false;
        match tracked.delivery.next_step(now, is_silenced, &policy) {
            NextStep::Attempt => {
                let missed = tracked.delivery.missed();
                let notification = Arc::clone(&tracked.delivery.begin()?.content);
                let event = OutgoingEvent { notification, missed };
                Some(Job::Attempt(vec![TakenEvent { subject: subject.clone(), event }]))
            }
            NextStep::ReadBacklog(range) => {
                let Subject::Instance(instance) = subject else { return None };
                tracked.is_reading = true;
                let (subject, instance) = (subject.clone(), instance.clone());
                Some(Job::ReadBacklog { subject, instance, range })
            }
            _ => {
                self.place(subject, now);
                None
            }
        }
    }

    /// Ends an attempt.
    pub(super) fn finish(&mut self, taken: &[TakenEvent], attempts: Vec<Attempt>, now: Moment) {
        self.running = self.running.saturating_sub(taken.len());
        let is_batch = self.settings.batch().is_some();
        let mut wait = self.settings.batch().map_or(Duration::ZERO, |batch| batch.interval);
        // The notifications of a failed batch are tried again at the same time.
        let batch_jitter = self.jitter.clone();
        for (taken, attempt) in taken.iter().zip(attempts) {
            let mut jitter = batch_jitter.clone();
            let jitter = if is_batch { &mut jitter } else { &mut self.jitter };
            let mut result = attempt.result;
            if self.is_closing && result != AttemptResult::Delivered {
                result = AttemptResult::Interrupted;
            }
            let Some(tracked) = self.subjects.get_mut(&taken.subject) else {
                log_removed(&self.name, taken, attempt.error.as_deref());
                continue;
            };
            let after = tracked.delivery.finish(result, now, &self.policy, jitter);
            if let Some(AfterAttempt::RetryAfter(pause)) = after {
                wait = wait.max(pause);
            }
            self.record(taken, after, attempt.error);
            self.place(&taken.subject, now);
        }
        if is_batch {
            self.next_batch_at = now + wait;
            self.jitter.shorten(Duration::ZERO);
        }
    }

    /// Counts, stores, logs and reports the result of an attempt.
    fn record(&mut self, taken: &TakenEvent, after: Option<AfterAttempt>, error: Option<String>) {
        let TakenEvent { subject, event } = taken;
        let conclusion = match after {
            Some(AfterAttempt::Concluded(conclusion)) => Some(conclusion),
            Some(AfterAttempt::RetryAfter(_)) | None => None,
        };
        if let Some(conclusion) = conclusion {
            self.count(conclusion);
            let is_delivered = conclusion == Conclusion::Delivered;
            self.store(subject, if is_delivered { event.missed } else { 0 });
        }
        let mut is_news = true;
        if let Some(error) = &error {
            is_news = self.note_failure(subject, event, conclusion, error);
        } else {
            self.note_success(subject, event);
        }
        if is_news {
            self.report(&*event.notification, conclusion, error);
        }
    }

    fn note_success(&mut self, subject: &Subject, event: &OutgoingEvent) {
        let (target, seq) = (&*self.name, event.notification.seq());
        tracing::debug!(instance = %subject, seq, target, "delivered");
        if self.failing.remove(subject).is_some() && self.failing.is_empty() {
            tracing::info!(target, "delivery works again");
        }
    }

    /// Logs a failure, unless it is known: many instances that fail with the same error, and are retried, are logged
    /// once. Returns false if the same subject failed with the same error before.
    fn note_failure(
        &mut self,
        subject: &Subject,
        event: &OutgoingEvent,
        conclusion: Option<Conclusion>,
        error: &str,
    ) -> bool {
        self.counters.failures += 1;
        if conclusion.is_some() || self.failing.values().all(|known| known != error) {
            let (target, seq) = (&*self.name, event.notification.seq());
            let next = match conclusion {
                None => "retry",
                Some(Conclusion::GivenUp) => "given up",
                Some(conclusion) => conclusion.as_str(),
            };
            tracing::warn!(instance = %subject, seq, target, error, next, "delivery failed");
        }
        let known = self.failing.insert(subject.clone(), error.to_owned());
        conclusion.is_some() || known.as_deref() != Some(error)
    }

    fn report(
        &self,
        notification: &dyn Notification,
        conclusion: Option<Conclusion>,
        error: Option<String>,
    ) {
        let Subject::Instance(id) = notification.subject() else { return };
        if self.source != DeliverySource::Node {
            return;
        }
        let (seq, from) = (notification.seq(), notification.measured_from());
        let mut report = DeliveryReport::new(&id, seq, from, self.settings.stage(), &self.name);
        report.outcome = error.map_or(Ok(()), Err);
        report.is_final = conclusion.is_some();
        report.conclusion = conclusion;
        self.context.reports.push(report);
    }

    /// Reports that a notification which has failed before is not wanted any more.
    fn report_filtered(&self, subject: &Subject) {
        let (Subject::Instance(id), DeliverySource::Node) = (subject, self.source) else { return };
        let concluded = self.subjects.get(subject).and_then(|tracked| tracked.delivery.concluded());
        let Some(Concluded { seq, conclusion, .. }) = concluded else { return };
        let stage = self.settings.stage();
        let mut report = DeliveryReport::new(id, seq, None, stage, &self.name);
        report.conclusion = Some(conclusion);
        self.context.reports.push(report);
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

    fn count(&mut self, conclusion: Conclusion) {
        let counter = match conclusion {
            Conclusion::Delivered => &mut self.counters.delivered,
            Conclusion::GivenUp => &mut self.counters.given_up,
            Conclusion::Superseded => &mut self.counters.superseded,
            Conclusion::Filtered => &mut self.counters.filtered,
        };
        *counter += 1;
    }

    fn key(&self, subject: &Subject) -> Option<DeliveryKey> {
        // Findings are found again by the audit of the next run.
        let Subject::Instance(id) = subject else { return None };
        let (target, source) = (Arc::clone(&self.name), self.source);
        Some(DeliveryKey { target, source, instance: id.to_string() })
    }

    /// Has the history store what is concluded about `subject`.
    fn store(&self, subject: &Subject, reported_missed: u32) {
        let tracked = self.subjects.get(subject);
        let concluded = tracked.and_then(|tracked| tracked.delivery.concluded());
        let (Some(store), Some(key)) = (&self.context.store, self.key(subject)) else { return };
        if let Some(Concluded { seq, conclusion, delivered }) = concluded {
            let role = delivered.map(EventKind::as_str);
            let outcome = conclusion.as_str();
            store.record(key, ConcludedRow { seq, outcome, role, reported_missed });
        }
    }

    pub(super) fn store_again(&self) {
        for subject in self.subjects.keys() {
            self.store(subject, 0);
        }
    }

    pub(super) fn is_done(&self, subject: &Subject, seq: i64) -> bool {
        let tracked = self.subjects.get(subject);
        let concluded = tracked.and_then(|tracked| tracked.delivery.concluded());
        concluded.is_some_and(|concluded| {
            concluded.seq > seq
                || (concluded.seq == seq && concluded.conclusion != Conclusion::GivenUp)
        })
    }

    pub(super) fn knows(&self, subject: &Subject) -> bool {
        self.subjects.contains_key(subject)
    }

    pub(super) fn has_subjects(&self) -> bool {
        !self.subjects.is_empty()
    }

    pub(super) fn instances(&self) -> Vec<InstanceId> {
        let instances = self.subjects.keys().filter_map(|subject| match subject {
            Subject::Instance(id) => Some(id.clone()),
            Subject::Finding(_) => None,
        });
        instances.collect()
    }

    pub(super) fn import(&mut self, subject: &Subject, seq: i64) {
        if self.subjects.contains_key(subject) {
            return;
        }
        let concluded = Concluded { seq, conclusion: Conclusion::Delivered, delivered: None };
        self.subjects.insert(subject.clone(), TrackedSubject::new(Some(concluded), 0));
        self.store(subject, 0);
    }

    pub(super) fn take_concluded(&mut self) -> BTreeMap<Subject, StoredSubject> {
        let subjects = std::mem::take(&mut self.subjects).into_iter();
        let stored = subjects.filter_map(|(subject, tracked)| {
            let concluded = tracked.delivery.concluded()?;
            Some((subject, StoredSubject { concluded, missed: tracked.delivery.missed() }))
        });
        stored.collect()
    }

    /// Number of workers that the ready notifications need.
    pub(super) fn ready_jobs(&self) -> usize {
        self.ready.len().min(if self.settings.batch().is_some() { 1 } else { usize::MAX })
    }

    pub(super) fn has_timers(&self) -> bool {
        !self.timers.is_empty()
    }

    fn next_timer(&self) -> Option<Moment> {
        self.timers.values().min().copied()
    }

    /// Whether an attempt runs or is about to.
    pub(super) fn has_work(&self) -> bool {
        self.running > 0 || !self.ready.is_empty()
    }

    pub(super) fn pending(&self) -> usize {
        self.subjects.values().map(|tracked| tracked.delivery.pending()).sum()
    }

    pub(super) fn view(&self) -> TargetItem {
        let pending = self.subjects.values().filter_map(|tracked| tracked.delivery.first());
        let oldest = pending.map(|first| first.content.read_at()).min();
        let failing = self.failing.iter().take(MAX_LISTED).map(|(subject, error)| {
            FailingDelivery { id: subject.to_string(), error: error.clone() }
        });
        TargetItem {
            name: self.name.to_string(),
            kind: self.settings.kind(),
            source: self.source.as_str().to_owned(),
            pending: self.pending() as u64,
            oldest_pending: oldest
                .map(|oldest| event::time(SystemTime::now() - clock::now().since(oldest))),
            delivered: self.counters.delivered,
            failures: self.counters.failures,
            given_up: self.counters.given_up,
            superseded: self.counters.superseded,
            filtered: self.counters.filtered,
            dropped: self.counters.dropped,
            failing: failing.collect(),
        }
    }
}

/// Logs the end of an attempt to deliver to a target that a reload has removed meanwhile.
fn log_removed(target: &str, taken: &TakenEvent, error: Option<&str>) {
    let seq = taken.event.notification.seq();
    tracing::info!(instance = %taken.subject, seq, target, error, "delivery to a removed target ended");
}
