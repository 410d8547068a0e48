// SPDX-License-Identifier: Apache-2.0
//! The queue of one target, and the workers that deliver from it. All retries of the node happen here.
//!
//! ```text
//!   submit ──▶ subjects: a ─┐ place        ┌─▶ ready ──▶ workers ──▶ attempt ─┐
//!                        b ─┼──────────────┼─▶ timers: settle, retry          │ finish
//!                        c ─┘              └─▶ silenced                       │
//!              ▲                                                              │
//!              └──────────── the rules of core::notification ◀────────────────┘
//! ```
//!
//! The notifications of one subject are delivered in order. Submitting never blocks. Each target has workers of its
//! own, which are started when there is work and end after [`WORKER_IDLE_TIMEOUT`] without work. A reload that changes
//! the settings of a target keeps its queue.

mod earlier_run;
mod jobs;
mod records;
mod results;
mod state;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use vipwatch_api::TargetItem;
use vipwatch_core::notification::{BacklogPart, BacklogRange};
use vipwatch_core::{DeliveryMode, InstanceId, Moment};
use vipwatch_history::{DeliverySource, DeliveryStore};
use vipwatch_linux::clock;

pub(super) use self::state::StoredSubject;
use self::state::{Job, TargetQueueState};
use super::attempt::Sender;
use super::backlog::SharedJournal;
use super::earlier_run::{EarlierFailure, RecordedFindings};
use super::notification::{Notification, ReportQueue, Subject};
use super::slots::{Slots, WakeTarget};
use super::target::TargetSettings;
use crate::event::NodeIdentity;
use crate::hook_runner::client::HookRunner;
use crate::silence::Silences;

/// How long a worker thread waits for work before it ends.
const WORKER_IDLE_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 10_000 });

/// Stack size of a worker thread in bytes.
const WORKER_STACK_BYTES: usize = 256 << 10;

/// Reads undelivered notifications of one source about an instance from the disk, for the target with these settings;
/// `None` if they cannot be read now.
pub(super) type BacklogReader = dyn Fn(
        &TargetSettings,
        DeliverySource,
        &InstanceId,
        BacklogRange,
    ) -> Option<BacklogPart<Arc<dyn Notification>>>
    + Send
    + Sync;

/// What the queues of all targets have in common.
pub(super) struct QueueContext {
    pub(super) identity: NodeIdentity,
    /// Where conclusions are stored; `None` in tests without a disk.
    pub(super) store: Option<DeliveryStore>,
    /// Where the node's main loop reads the results of all targets; `None` in a receiver process, which has no events.
    pub(super) reports: Option<ReportQueue>,
    pub(super) silences: Arc<Silences>,
    pub(super) read_backlog: Arc<BacklogReader>,
    /// The journal that `read_backlog` reads for the receiver.
    pub(super) journal: SharedJournal,
    pub(super) slots: Arc<Slots>,
    /// Maximum number of processes of one hook at the same time.
    pub(super) hooks_at_once: usize,
    pub(super) hook_runner: Arc<HookRunner>,
}

/// The queue of one target.
pub(super) struct TargetQueue {
    shared: Arc<SharedQueue>,
}

struct SharedQueue {
    /// Identifies the queue among all of this process.
    number: usize,
    state: Mutex<TargetQueueState>,
    /// Notified after each change of `state`.
    changed: Condvar,
    sender: Sender,
    context: Arc<QueueContext>,
}

impl TargetQueue {
    /// A queue; `stored` is what earlier runs have concluded.
    pub(super) fn new(
        settings: TargetSettings,
        source: DeliverySource,
        stored: BTreeMap<Subject, StoredSubject>,
        context: &Arc<QueueContext>,
    ) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let sender = Sender::new(context.identity.clone(), Arc::clone(&context.hook_runner));
        sender.prepare(&settings);
        let state = TargetQueueState::new(settings, source, stored, Arc::clone(context));
        let shared = SharedQueue {
            number,
            state: Mutex::new(state),
            changed: Condvar::new(),
            sender,
            context: Arc::clone(context),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Adds a notification.
    pub(super) fn submit(&self, notification: &Arc<dyn Notification>) {
        self.change(|state, now| state.submit(notification, now));
    }

    /// As [`Self::submit`], for the first notification about an instance in this run. A target for every transition
    /// reads those that are missing before it from the history.
    pub(super) fn resume(&self, notification: &Arc<dyn Notification>, is_unchanged: bool) {
        self.change(|state, now| state.resume(notification, is_unchanged, now));
    }

    /// Starts a worker if one is needed, because an earlier attempt to start a thread may have failed.
    pub(super) fn start_workers(&self) {
        SharedQueue::start_workers(&self.shared, &mut self.shared.lock());
    }

    /// Replaces the settings. Waiting notifications stay, and those that wait for another attempt are sent now.
    pub(super) fn reconfigure(&self, settings: &TargetSettings) {
        self.shared.sender.prepare(settings);
        self.change(|state, now| state.reconfigure(settings, now));
    }

    /// Looks again at notifications that a silence has held back.
    pub(super) fn silences_changed(&self) {
        self.change(TargetQueueState::place_silenced);
    }

    /// The number after which the history has the failures of an earlier run; `None` if it left none.
    pub(super) fn oldest_failure(&self) -> Option<i64> {
        self.shared.lock().oldest_failure()
    }

    /// Restores the failures of an earlier run; returns the instances with one.
    pub(super) fn restore_failures(
        &self,
        failed: impl Fn(&InstanceId) -> Option<EarlierFailure>,
    ) -> Vec<(InstanceId, EarlierFailure)> {
        self.shared.lock().restore_failures(failed)
    }

    /// The lowest of the last concluded numbers of the findings that an earlier run has left pending.
    pub(super) fn oldest_unread_finding(&self) -> Option<i64> {
        self.shared.lock().unread_findings().map(|(_, seq)| seq).min()
    }

    /// Continues with the findings that an earlier run has left pending.
    pub(super) fn resume_findings(
        &self,
        recorded: &RecordedFindings,
        is_wanted: impl Fn(&InstanceId) -> bool,
    ) {
        self.change(|state, now| state.resume_findings(recorded, is_wanted, now));
    }

    /// Removes an instance that no longer exists.
    pub(super) fn forget(&self, subject: &Subject) {
        self.change(|state, _| state.forget(subject));
    }

    /// Stores the conclusions again, because the file was replaced.
    pub(super) fn store_again(&self) {
        self.shared.lock().store_again();
    }

    /// Whether the target must receive every notification.
    pub(super) fn is_for_every(&self) -> bool {
        self.shared.lock().policy.deliver == DeliveryMode::Every
    }

    /// The current settings.
    pub(super) fn settings(&self) -> TargetSettings {
        self.shared.lock().settings.clone()
    }

    /// Whether the target has received the notification `seq` about `subject`, or is not to receive it.
    pub(super) fn is_done(&self, subject: &Subject, seq: i64) -> bool {
        self.shared.lock().is_done(subject, seq)
    }

    /// Whether an earlier run or this one has concluded a notification about `subject`.
    pub(super) fn knows(&self, subject: &Subject) -> bool {
        self.shared.lock().knows(subject)
    }

    /// The error of the last attempt for `subject`; `None` if it was successful.
    pub(super) fn failure(&self, subject: &Subject) -> Option<String> {
        self.shared.lock().failing.get(subject).map(|failed| failed.error.clone())
    }

    /// Counters and pending notifications.
    pub(super) fn view(&self) -> TargetItem {
        self.shared.lock().view()
    }

    /// From now on, no failure is final: the service manager may end hooks when it stops the process, and the next
    /// process delivers the notification again.
    pub(super) fn close(&self) {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_all();
    }

    /// Waits until no attempt runs, or `end`; returns the number of notifications that are left.
    pub(super) fn wait_until_idle(&self, end: Moment) -> usize {
        let mut state = self.shared.lock();
        while state.has_work() {
            let left = end.since(clock::now());
            if left.is_zero() {
                break;
            }
            state = self.shared.wait(state, left);
        }
        state.pending()
    }

    /// Lets failures be final again.
    pub(super) fn reopen(&self) {
        self.shared.lock().is_closing = false;
    }

    /// The last concluded sequence number of each instance.
    pub(super) fn concluded_seqs(&self) -> Vec<(InstanceId, i64)> {
        self.shared.lock().concluded_seqs()
    }

    /// The instances with a conclusion or a pending notification.
    pub(super) fn instances(&self) -> Vec<InstanceId> {
        self.shared.lock().instances()
    }

    /// Removes the target; returns what it has concluded.
    pub(super) fn retire(&self) -> BTreeMap<Subject, StoredSubject> {
        let mut state = self.shared.lock();
        state.is_removed = true;
        let stored = state.take_concluded();
        drop(state);
        self.shared.changed.notify_all();
        stored
    }

    fn change<T>(&self, change: impl FnOnce(&mut TargetQueueState, Moment) -> T) -> T {
        let mut state = self.shared.lock();
        let result = change(&mut state, clock::now());
        SharedQueue::start_workers(&self.shared, &mut state);
        drop(state);
        self.shared.changed.notify_one();
        result
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, TargetQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, TargetQueueState>,
        limit: Duration,
    ) -> MutexGuard<'a, TargetQueueState> {
        let waited = self.changed.wait_timeout(state, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Starts a worker if there is more work than workers that wait for it.
    fn start_workers(shared: &Arc<Self>, state: &mut TargetQueueState) {
        let limit = state.settings.at_once(shared.context.hooks_at_once);
        // An idle worker may have been notified for an earlier notification without having woken up yet.
        let is_needed =
            state.ready_jobs() > state.idle_workers || (state.workers == 0 && state.has_timers());
        if !is_needed || state.workers >= limit {
            return;
        }
        let is_first = state.workers == 0;
        let wake = || -> WakeTarget {
            let queue = Arc::downgrade(shared);
            Arc::new(move || wake(&queue))
        };
        if !is_first && !shared.context.slots.take(shared.number, wake) {
            return;
        }
        state.workers += 1;
        let worker = Arc::clone(shared);
        let spawned = std::thread::Builder::new()
            .name(state.settings.kind().word().to_owned())
            .stack_size(WORKER_STACK_BYTES)
            .spawn(move || Self::run_worker(&worker, is_first));
        if spawned.is_err() {
            // The other workers go on, and the next notification tries again to start a thread.
            state.workers -= 1;
            if !is_first {
                shared.context.slots.give_back();
            }
        }
    }

    /// The worker thread: delivers until there is no work for some time.
    fn run_worker(shared: &Arc<Self>, is_first: bool) {
        let mut state = shared.lock();
        let mut idle_since = clock::now();
        loop {
            let now = clock::now();
            let next = match state.take_job(now) {
                Job::Wait(next) => next,
                job => {
                    // More work may be ready than this worker has taken.
                    Self::start_workers(shared, &mut state);
                    drop(state);
                    shared.run(job);
                    state = shared.lock();
                    idle_since = clock::now();
                    shared.changed.notify_all();
                    continue;
                }
            };
            let is_idle = now.since(idle_since) >= WORKER_IDLE_TIMEOUT;
            // A busy worker does not see a timer before its attempt ends.
            let is_watched = next.is_none() || state.idle_workers > 0;
            if state.is_removed || (is_idle && is_watched) {
                state.workers -= 1;
                break;
            }
            let idle_end = idle_since + WORKER_IDLE_TIMEOUT;
            let end = next.map_or(idle_end, |next| if is_idle { next } else { next.min(idle_end) });
            let pause = end.since(now).max(Duration::from_millis(1));
            state.idle_workers += 1;
            state = shared.wait(state, pause);
            state.idle_workers -= 1;
        }
        drop(state);
        if !is_first {
            shared.context.slots.give_back();
        }
    }

    /// Does a job, without the lock.
    fn run(&self, job: Job) {
        match job {
            Job::Wait(_) => {}
            Job::Attempt(taken) => {
                let settings = self.lock().settings.clone();
                let events: Vec<_> = taken.iter().map(|taken| taken.event.clone()).collect();
                let may_divide = || {
                    let state = self.lock();
                    !state.is_closing && !state.is_removed
                };
                let attempts = self.sender.deliver(&settings, &events, &may_divide);
                self.lock().finish(&taken, attempts, clock::now());
            }
            Job::ReadBacklog { subject, instance, range } => {
                let state = self.lock();
                let (settings, source) = (state.settings.clone(), state.source);
                drop(state);
                let part = (self.context.read_backlog)(&settings, source, &instance, range);
                self.lock().add_backlog(&subject, part, clock::now());
            }
        }
    }
}

/// Lets the target try again to start a worker.
fn wake(queue: &Weak<SharedQueue>) {
    if let Some(shared) = queue.upgrade() {
        let mut state = shared.lock();
        SharedQueue::start_workers(&shared, &mut state);
    }
}

impl std::fmt::Debug for TargetQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetQueue").field("number", &self.shared.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
