//! The thread that audits: it waits for a trigger, has the instances examined, and logs findings that are new
//! or over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vipwatch_core::InstanceId;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use super::schedule::{DueInstances, PeriodicAudit, rechecks};
use super::{Audit, DatedFinding};
use crate::state::PublishedState;

/// The handle to the thread.
#[derive(Debug)]
pub(crate) struct AuditWorker {
    triggers: Arc<Triggers>,
}

/// What the main loop shares with the thread.
#[derive(Debug)]
struct Triggers {
    due: Mutex<DueInstances>,
    wakeup: Condvar,
    /// All instances are audited within so many seconds.
    interval_secs: AtomicU64,
}

impl AuditWorker {
    /// Starts the thread, which never ends. All instances are audited within `interval`.
    pub(crate) fn start(audit: Arc<Audit>, interval: Duration) -> std::io::Result<Self> {
        let triggers = Arc::new(Triggers {
            due: Mutex::default(),
            wakeup: Condvar::new(),
            interval_secs: AtomicU64::new(interval.as_secs()),
        });
        let shared = Arc::clone(&triggers);
        spawn_worker("audit", move |heartbeat| run(&shared, &audit, heartbeat))?;
        Ok(Self { triggers })
    }

    /// From now on, all instances are audited within `interval`.
    pub(crate) fn set_interval(&self, interval: Duration) {
        self.triggers.interval_secs.store(interval.as_secs(), Ordering::Relaxed);
    }

    /// Has an instance audited some seconds from now, because its role or configuration has changed.
    pub(crate) fn instance_changed(&self, id: &InstanceId) {
        if let Ok(mut due) = self.triggers.due.lock() {
            due.add_changed(id, Instant::now());
        }
        self.triggers.wakeup.notify_one();
    }
}

fn run(triggers: &Triggers, audit: &Audit, heartbeat: &Heartbeat) -> ! {
    let mut logged = LoggedFindings::default();
    let mut query = NetnsQuery::open().ok();
    let mut periodic = PeriodicAudit::new(Instant::now());
    loop {
        let mut due = triggers.wait(periodic.next_step, heartbeat);
        let interval = Duration::from_secs(triggers.interval_secs.load(Ordering::Relaxed));
        let share = {
            let view = audit.store.view();
            logged.retain(|id| view.entries.contains_key(id));
            if periodic.next_step <= Instant::now() {
                due.extend(rechecks(with_findings(&view), Instant::now()));
            }
            periodic.take(&view.entries, interval, Instant::now())
        };
        audit.run(due.iter().cloned(), &mut query, || heartbeat.beat());
        let namespaces = audit.run(share.iter().cloned(), &mut query, || heartbeat.beat());
        audit.store.counters.audits.fetch_add(namespaces as u64, Ordering::Relaxed);
        for id in due.iter().chain(&share) {
            // An instance that has changed meanwhile has no current result, and is audited again soon.
            let Some(entry) = audit.store.entry(id) else { continue };
            let Some(result) = entry.current_audit() else { continue };
            logged.log(id, &result.findings);
        }
    }
}

/// The instances with findings, and when they were audited. An audit that a client has requested counts too.
fn with_findings(view: &PublishedState) -> impl Iterator<Item = (Instant, InstanceId)> {
    view.entries.iter().filter_map(|(id, entry)| {
        let result = entry.current_audit().filter(|result| !result.findings.is_empty())?;
        Some((result.taken, id.clone()))
    })
}

impl Triggers {
    /// Waits until an instance is due, or until `next_step`; returns the instances that are due.
    fn wait(&self, next_step: Instant, heartbeat: &Heartbeat) -> BTreeSet<InstanceId> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            heartbeat.beat();
            let now = Instant::now();
            let until = due.next().map_or(next_step, |next| next.min(next_step));
            if until <= now {
                return due.take(now);
            }
            let pause = until.saturating_duration_since(now).min(beat_every());
            let waited = self.wakeup.wait_timeout(due, pause);
            due = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The names of the findings that were logged and are not over, by instance.
#[derive(Debug, Default)]
struct LoggedFindings(BTreeMap<InstanceId, Vec<&'static str>>);

impl LoggedFindings {
    fn retain(&mut self, is_followed: impl Fn(&InstanceId) -> bool) {
        self.0.retain(|id, _| is_followed(id));
    }

    /// Logs the findings that are new, and those that are over.
    fn log(&mut self, id: &InstanceId, findings: &[DatedFinding]) {
        let known = self.0.remove(id).unwrap_or_default();
        let mut names = Vec::new();
        for DatedFinding { finding, .. } in findings {
            let (name, severity) = (finding.name, finding.severity.as_str());
            if names.contains(&name) {
                continue;
            }
            if !known.contains(&name) {
                let detail = finding.text.as_str();
                tracing::warn!(instance = %id, finding = name, severity, detail, "audit finding");
            }
            names.push(name);
        }
        for name in known.into_iter().filter(|name| !names.contains(name)) {
            tracing::info!(instance = %id, finding = name, "audit finding is over");
        }
        if !names.is_empty() {
            self.0.insert(id.clone(), names);
        }
    }
}
