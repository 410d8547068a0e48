//! Who was told of what, who was not yet, and why not: on the disk for the next process, and here for
//! whoever asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vipwatch_core::InstanceId;
use vipwatch_receiver::DeliveryStore;

use crate::notify::outlet::{DeliveryReport, ReportCallback};

/// One party.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportTargetView {
    /// Who it is not told about yet, and of which report.
    pub owed: BTreeMap<InstanceId, i64>,
    /// How often it was told.
    pub told: u64,
    /// How often it could not be told.
    pub failures: u64,
    /// How many letters were left out for newer ones.
    pub superseded: u64,
    /// Where the last attempt failed, and why.
    pub failing: BTreeMap<InstanceId, String>,
}

/// All notes.
#[derive(Debug)]
pub struct DeliveryLog {
    store: DeliveryStore,
    parties: Mutex<BTreeMap<Arc<str>, ReportTargetView>>,
    /// We are being stopped, and so may be the programs we run: what fails now is not done.
    is_closing: AtomicBool,
}

impl DeliveryLog {
    pub(crate) fn new(store: DeliveryStore) -> Self {
        Self { store, parties: Mutex::default(), is_closing: AtomicBool::new(false) }
    }

    /// From now on, what fails is left to the next process.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Everybody, as it is now.
    pub fn parties(&self) -> BTreeMap<Arc<str>, ReportTargetView> {
        self.parties.lock().map(|parties| parties.clone()).unwrap_or_default()
    }

    /// These are the parties, and no others; tells which of them are new.
    pub(super) fn enrol(&self, names: &[Arc<str>]) -> Vec<Arc<str>> {
        let Ok(mut parties) = self.parties.lock() else { return Vec::new() };
        parties.retain(|name, _| names.contains(name));
        let is_new = |name: &&Arc<str>| !parties.contains_key(*name);
        let new: Vec<Arc<str>> = names.iter().filter(is_new).cloned().collect();
        parties.extend(new.iter().map(|name| (Arc::clone(name), ReportTargetView::default())));
        new
    }

    /// Of whom a party is not told yet.
    pub(super) fn owed(&self, party: &Arc<str>) -> BTreeMap<InstanceId, i64> {
        let parties = self.parties.lock();
        let owed = parties.ok().and_then(|parties| Some(parties.get(party)?.owed.clone()));
        owed.unwrap_or_default()
    }

    /// Letters were left out for newer ones.
    pub(super) fn superseded(&self, party: &Arc<str>, count: usize) {
        if count > 0 {
            self.amend(party, |view| view.superseded += count as u64);
        }
    }

    /// Nobody is told of this one any more.
    pub(super) fn forget(&self, instance: &InstanceId) {
        let Ok(mut parties) = self.parties.lock() else { return };
        for view in parties.values_mut() {
            view.owed.remove(instance);
            view.failing.remove(instance);
        }
    }

    /// Where workers for `party` leave their reports.
    pub(super) fn sink(self: &Arc<Self>, party: &Arc<str>) -> ReportCallback {
        let (notes, party) = (Arc::clone(self), Arc::clone(party));
        Arc::new(move |report: DeliveryReport| {
            let DeliveryReport { instance, seq, outcome, is_final, .. } = report;
            match outcome {
                Ok(()) => notes.told(&party, &instance, seq),
                Err(why) => notes.failed(&party, &instance, seq, &why, is_final),
            }
        })
    }

    /// `party` is to be told.
    pub(super) fn owe(&self, party: &Arc<str>, instance: &InstanceId, seq: i64) {
        self.amend(party, |view| {
            view.owed.insert(instance.clone(), seq);
        });
    }

    /// `party` was told.
    pub(super) fn told(&self, party: &Arc<str>, instance: &InstanceId, seq: i64) {
        tracing::debug!(%instance, seq, %party, "told");
        self.store.record(party, instance, seq);
        self.amend(party, |view| {
            view.told += 1;
            view.settle(instance, seq);
            let was_failing = view.failing.remove(instance).is_some();
            if was_failing && view.failing.is_empty() {
                tracing::info!(%party, "can be told again");
            }
        });
    }

    /// `party` could not be told; what is final is not tried again.
    pub(super) fn failed(
        &self,
        party: &Arc<str>,
        instance: &InstanceId,
        seq: i64,
        why: &str,
        is_final: bool,
    ) {
        let is_final = is_final && !self.is_closing.load(Ordering::Relaxed);
        if is_final {
            self.store.record(party, instance, seq);
        }
        self.amend(party, |view| {
            view.failures += 1;
            if is_final {
                view.settle(instance, seq);
            }
            // A thousand that fail for one reason, and are tried again, are one line.
            if is_final || view.failing.values().all(|known| known != why) {
                let again = if is_final { "given up" } else { "it is tried again" };
                tracing::warn!(%instance, seq, %party, again, "not told: {why}");
            }
            view.failing.insert(instance.clone(), why.to_owned());
        });
    }

    fn amend(&self, party: &Arc<str>, change: impl FnOnce(&mut ReportTargetView)) {
        // One that is no party any more may still report.
        if let Ok(mut parties) = self.parties.lock()
            && let Some(view) = parties.get_mut(party)
        {
            change(view);
        }
    }
}

impl ReportTargetView {
    /// It is done with everything up to `seq`.
    fn settle(&mut self, instance: &InstanceId, seq: i64) {
        if self.owed.get(instance).is_some_and(|owed| *owed <= seq) {
            self.owed.remove(instance);
        }
    }
}
