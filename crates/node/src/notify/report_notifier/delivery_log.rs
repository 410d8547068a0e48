//! Records which report each target has received, which are pending, and the last errors: in the receiver's journal for
//! the next process, and in memory for status queries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vipwatch_core::InstanceId;
use vipwatch_receiver::DeliveryStore;

use crate::notify::outlet::{DeliveryReport, ReportCallback};

/// The deliveries to one target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportTargetView {
    /// The instances with a pending report, and its sequence number.
    pub pending: BTreeMap<InstanceId, i64>,
    /// Number of notifications that the target has received.
    pub delivered: u64,
    /// Number of failed attempts.
    pub failures: u64,
    /// Number of notifications that were replaced by newer ones before they were delivered.
    pub superseded: u64,
    /// The instances for which the last attempt failed, with the error.
    pub failing: BTreeMap<InstanceId, String>,
}

/// The deliveries to all targets.
#[derive(Debug)]
pub struct DeliveryLog {
    store: DeliveryStore,
    targets: Mutex<BTreeMap<Arc<str>, ReportTargetView>>,
    /// The process is shutting down. The service manager may end hooks, too, so a failure is not recorded as final.
    is_closing: AtomicBool,
}

impl DeliveryLog {
    pub(crate) fn new(store: DeliveryStore) -> Self {
        Self { store, targets: Mutex::default(), is_closing: AtomicBool::new(false) }
    }

    /// From now on, no failure is final: the next process delivers the notification again.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// A copy of the deliveries to all targets, by name of the target.
    pub fn targets(&self) -> BTreeMap<Arc<str>, ReportTargetView> {
        self.targets.lock().map(|targets| targets.clone()).unwrap_or_default()
    }

    /// Replaces the list of targets; returns the names of those that are new.
    pub(super) fn set_targets(&self, names: &[Arc<str>]) -> Vec<Arc<str>> {
        let Ok(mut targets) = self.targets.lock() else { return Vec::new() };
        targets.retain(|name, _| names.contains(name));
        let is_new = |name: &&Arc<str>| !targets.contains_key(*name);
        let new: Vec<Arc<str>> = names.iter().filter(is_new).cloned().collect();
        targets.extend(new.iter().map(|name| (Arc::clone(name), ReportTargetView::default())));
        new
    }

    /// The instances with a report that `target` has not received, and its sequence number.
    pub(super) fn pending(&self, target: &Arc<str>) -> BTreeMap<InstanceId, i64> {
        let targets = self.targets.lock();
        let pending = targets.ok().and_then(|targets| Some(targets.get(target)?.pending.clone()));
        pending.unwrap_or_default()
    }

    /// Counts notifications that were replaced by newer ones.
    pub(super) fn superseded(&self, target: &Arc<str>, count: usize) {
        if count > 0 {
            self.amend(target, |view| view.superseded += count as u64);
        }
    }

    /// Removes the pending report and the last error of an instance from all targets.
    pub(super) fn forget(&self, instance: &InstanceId) {
        let Ok(mut targets) = self.targets.lock() else { return };
        for view in targets.values_mut() {
            view.pending.remove(instance);
            view.failing.remove(instance);
        }
    }

    /// The callback for the reports of the workers of `target`.
    pub(super) fn callback(self: &Arc<Self>, target: &Arc<str>) -> ReportCallback {
        let (log, target) = (Arc::clone(self), Arc::clone(target));
        Arc::new(move |report: DeliveryReport| {
            let DeliveryReport { instance, seq, outcome, is_final, .. } = report;
            match outcome {
                Ok(()) => log.delivered(&target, &instance, seq),
                Err(why) => log.failed(&target, &instance, seq, &why, is_final),
            }
        })
    }

    /// Records that a notification for `target` is pending.
    pub(super) fn mark_pending(&self, target: &Arc<str>, instance: &InstanceId, seq: i64) {
        self.amend(target, |view| {
            view.pending.insert(instance.clone(), seq);
        });
    }

    /// Records that `target` has received a notification.
    pub(super) fn delivered(&self, target: &Arc<str>, instance: &InstanceId, seq: i64) {
        tracing::debug!(%instance, seq, %target, "delivered");
        self.store.record(target, instance, seq);
        self.amend(target, |view| {
            view.delivered += 1;
            view.conclude(instance, seq);
            let was_failing = view.failing.remove(instance).is_some();
            if was_failing && view.failing.is_empty() {
                tracing::info!(%target, "delivery works again");
            }
        });
    }

    /// Records that an attempt failed with error `why`. If it is final, there is no further attempt.
    pub(super) fn failed(
        &self,
        target: &Arc<str>,
        instance: &InstanceId,
        seq: i64,
        why: &str,
        is_final: bool,
    ) {
        let is_final = is_final && !self.is_closing.load(Ordering::Relaxed);
        if is_final {
            self.store.record(target, instance, seq);
        }
        self.amend(target, |view| {
            view.failures += 1;
            if is_final {
                view.conclude(instance, seq);
            }
            // Many instances that fail with the same error, and are retried, are logged once.
            if is_final || view.failing.values().all(|known| known != why) {
                let next = if is_final { "given up" } else { "retry" };
                tracing::warn!(%instance, seq, %target, error = why, next, "delivery failed");
            }
            view.failing.insert(instance.clone(), why.to_owned());
        });
    }

    fn amend(&self, target: &Arc<str>, change: impl FnOnce(&mut ReportTargetView)) {
        // A worker of a removed target may still report.
        if let Ok(mut targets) = self.targets.lock()
            && let Some(view) = targets.get_mut(target)
        {
            change(view);
        }
    }
}

impl ReportTargetView {
    /// Removes the pending report of `instance` if it is not newer than `seq`.
    fn conclude(&mut self, instance: &InstanceId, seq: i64) {
        if self.pending.get(instance).is_some_and(|pending| *pending <= seq) {
            self.pending.remove(instance);
        }
    }
}
