// SPDX-License-Identifier: Apache-2.0
//! The thread that audits: it waits for a trigger, has the instances examined, and reports findings that
//! are new or over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vipwatch_core::InstanceId;
use vipwatch_core::finding::FindingEvidence;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use super::open_findings::OpenFindings;
use super::schedule::{ComparisonSchedule, DueInstances, PeriodicAudit, rechecks};
use super::{Audit, DatedFinding, FindingChanges};
use crate::state::PublishedState;
use crate::view::FindingSources;

/// The handle to the thread.
#[derive(Debug)]
pub(crate) struct AuditWorker {
    triggers: Arc<Triggers>,
}

/// Requests of clients that all instances are audited now.
#[derive(Debug, Clone)]
pub struct AuditRequests(Arc<Triggers>);

impl AuditRequests {
    /// Has all instances audited as soon as possible, and then calls `completed` on the thread that audits. Requests
    /// that wait for the thread share one audit.
    pub fn submit(&self, completed: impl FnOnce() + Send + 'static) {
        let mut requests = self.0.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push(CompletionCallback(Box::new(completed)));
        drop(requests);
        // ORDER: the thread reads the requests while it holds this lock, so the wakeup cannot be lost between its
        // check and its wait.
        drop(self.0.due.lock());
        self.0.wakeup.notify_one();
    }
}

impl AuditRequests {
    /// Has the findings compared now with those that clients know, because a problem of the node has begun or ended.
    pub fn compare_findings(&self) {
        self.0.compare_findings();
    }

    /// Has an instance audited at once, because evidence about it has changed.
    pub(crate) fn evidence_changed(&self, id: &InstanceId) {
        if let Ok(mut due) = self.0.due.lock() {
            due.add_now(id, Instant::now());
        }
        self.0.wakeup.notify_one();
    }

    /// Has an instance audited some seconds from now, or earlier if it is due earlier.
    pub(crate) fn facts_changed(&self, id: &InstanceId) {
        if let Ok(mut due) = self.0.due.lock() {
            due.add_confirmation(id, Instant::now());
        }
        self.0.wakeup.notify_one();
    }

    /// Has an instance audited some seconds from now, because the processes of its keepalived have changed.
    pub(crate) fn processes_changed(&self, id: &InstanceId) {
        if let Ok(mut due) = self.0.due.lock() {
            due.add_processes_changed(id, Instant::now());
        }
        self.0.wakeup.notify_one();
    }
}

/// What a request calls when its audit has ended.
struct CompletionCallback(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for CompletionCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompletionCallback")
    }
}

/// What the main loop shares with the thread.
#[derive(Debug)]
struct Triggers {
    due: Mutex<DueInstances>,
    /// LIMIT: each connection of the API has at most one request.
    requests: Mutex<Vec<CompletionCallback>>,
    wakeup: Condvar,
    /// The findings are compared now, because the node has changed one of them.
    is_comparison_due: AtomicBool,
    /// All instances are audited within so many seconds.
    interval_secs: AtomicU64,
}

impl AuditWorker {
    /// Starts the thread, which never ends. All instances are audited within `interval`.
    /// Puts findings that appear or go into `changes`.
    pub(crate) fn start(
        audit: Arc<Audit>,
        interval: Duration,
        sources: FindingSources,
        changes: FindingChanges,
    ) -> std::io::Result<Self> {
        let triggers = Arc::new(Triggers {
            due: Mutex::default(),
            requests: Mutex::default(),
            wakeup: Condvar::new(),
            is_comparison_due: AtomicBool::new(false),
            interval_secs: AtomicU64::new(interval.as_secs()),
        });
        let shared = Arc::clone(&triggers);
        let open = OpenFindings::new(sources, changes);
        spawn_worker("audit", move |heartbeat| run(&shared, &audit, open, heartbeat))?;
        Ok(Self { triggers })
    }

    /// A handle for requests of clients.
    pub(crate) fn requests(&self) -> AuditRequests {
        AuditRequests(Arc::clone(&self.triggers))
    }

    /// From now on, all instances are audited within `interval`.
    pub(crate) fn set_interval(&self, interval: Duration) {
        self.triggers.interval_secs.store(interval.as_secs(), Ordering::Relaxed);
    }

    /// Has the findings compared now with those that clients know. Otherwise this happens after each audit.
    pub(crate) fn compare_findings(&self) {
        self.triggers.compare_findings();
    }

    /// Has an instance audited some seconds from now, because its role or configuration has changed.
    pub(crate) fn instance_changed(&self, id: &InstanceId) {
        if let Ok(mut due) = self.triggers.due.lock() {
            due.add_changed(id, Instant::now());
        }
        self.triggers.wakeup.notify_one();
    }
}

fn run(triggers: &Triggers, audit: &Audit, mut open: OpenFindings, heartbeat: &Heartbeat) -> ! {
    let mut comparisons = ComparisonSchedule::default();
    let mut query = NetnsQuery::open().ok();
    let mut periodic = PeriodicAudit::new(Instant::now());
    loop {
        let next = comparisons.next().map_or(periodic.next_step, |at| at.min(periodic.next_step));
        let mut due = triggers.wait(next, heartbeat);
        // ORDER: the requests are taken before the audit reads the kernel, so that each gets an audit that began later.
        let requests = triggers.take_requests();
        let is_requested =
            triggers.is_comparison_due.swap(false, Ordering::Relaxed) || !requests.is_empty();
        let interval = Duration::from_secs(triggers.interval_secs.load(Ordering::Relaxed));
        let share = {
            let view = audit.store.view();
            if !requests.is_empty() {
                due.extend(view.entries.keys().cloned());
            }
            if periodic.next_step <= Instant::now() {
                due.extend(rechecks(with_findings(&view), Instant::now()));
            }
            periodic.take(&view.entries, interval, Instant::now())
        };
        audit.add_group_representatives(&mut due);
        // The audit reads state files, pid files and the history, in between what it reads of the kernel. So the guard covers
        // both, and the watchdog does not end an audit that waits for something else.
        let disk = heartbeat.disk();
        if !(due.is_empty() && share.is_empty()) {
            audit.remember(|| {
                open.restore(Instant::now());
                open.times()
            });
        }
        audit.run(due.iter().cloned(), &mut query, || heartbeat.beat());
        let namespaces = audit.run(share.iter().cloned(), &mut query, || heartbeat.beat());
        audit.store.counters.audits.fetch_add(namespaces as u64, Ordering::Relaxed);
        triggers.add_confirmations(due.iter().chain(&share).filter(|id| audit.is_unconfirmed(id)));
        if is_requested || !due.is_empty() || !share.is_empty() {
            comparisons.request();
        }
        if is_requested || comparisons.is_due(Instant::now()) {
            let began = Instant::now();
            open.update(began);
            comparisons.completed(Instant::now(), began.elapsed(), open.has_young());
        }
        drop(disk);
        for CompletionCallback(completed) in requests {
            completed();
        }
    }
}

/// The instances with findings that must be examined again, and when they were audited. An audit that a client has
/// requested counts too. Findings about processes that do not run are left out: there may be thousands, and each change
/// has its instance audited.
fn with_findings(view: &PublishedState) -> impl Iterator<Item = (Instant, InstanceId)> {
    view.entries.iter().filter_map(|(id, entry)| {
        let is_periodic = |dated: &DatedFinding| {
            dated.finding.kind.evidence() != FindingEvidence::Processes || dated.is_young(entry)
        };
        let result = entry.current_audit()?;
        if !result.findings.iter().any(is_periodic) {
            return None;
        }
        Some((result.taken, id.clone()))
    })
}

impl Triggers {
    fn compare_findings(&self) {
        self.is_comparison_due.store(true, Ordering::Relaxed);
        // ORDER: as in [`AuditRequests::submit`].
        drop(self.due.lock());
        self.wakeup.notify_one();
    }

    fn has_requests(&self) -> bool {
        !self.requests.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Has these instances audited once more, some seconds from now.
    fn add_confirmations<'a>(&self, ids: impl Iterator<Item = &'a InstanceId>) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        ids.for_each(|id| due.add_confirmation(id, Instant::now()));
    }

    fn take_requests(&self) -> Vec<CompletionCallback> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until an instance is due, or until `next`; returns the instances that are due.
    fn wait(&self, next: Instant, heartbeat: &Heartbeat) -> BTreeSet<InstanceId> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            heartbeat.beat();
            let now = Instant::now();
            let until = due.next().map_or(next, |at| at.min(next));
            if until <= now || self.has_requests() || self.is_comparison_due.load(Ordering::Relaxed)
            {
                return due.take(now);
            }
            let pause = until.saturating_duration_since(now).min(beat_every());
            let waited = self.wakeup.wait_timeout(due, pause);
            due = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
