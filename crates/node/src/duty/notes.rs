//! Who was told of what, who was not yet, and why not: on the disk for the next process, and here for
//! whoever asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use vipwatch_core::InstanceId;
use vipwatch_receiver::Ledger;

use crate::outlet::{Report, Sink};

/// One party.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartyView {
    /// Who it is not told about yet, and of which report.
    pub owed: BTreeMap<InstanceId, i64>,
    /// How often it was told.
    pub told: u64,
    /// How often it could not be told.
    pub failures: u64,
    /// Where the last attempt failed, and why.
    pub failing: BTreeMap<InstanceId, String>,
}

/// All notes.
#[derive(Debug)]
pub struct Notes {
    ledger: Ledger,
    parties: Mutex<BTreeMap<Arc<str>, PartyView>>,
}

impl Notes {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self { ledger, parties: Mutex::default() }
    }

    /// Everybody, as it is now.
    pub fn parties(&self) -> BTreeMap<Arc<str>, PartyView> {
        self.parties.lock().map(|parties| parties.clone()).unwrap_or_default()
    }

    /// A new party; of several with one name, each has one of its own.
    pub(super) fn enrol(&self, name: &str) -> Arc<str> {
        let Ok(mut parties) = self.parties.lock() else { return name.into() };
        let again = (2..).map(|number| format!("{name} #{number}"));
        let mut names = std::iter::once(name.to_owned()).chain(again);
        let free = names.find(|name| !parties.contains_key(name.as_str()));
        let name: Arc<str> = free.unwrap_or_default().into();
        parties.insert(Arc::clone(&name), PartyView::default());
        name
    }

    /// Where workers for `party` leave their reports.
    pub(super) fn sink(self: &Arc<Self>, party: &Arc<str>) -> Sink {
        let (notes, party) = (Arc::clone(self), Arc::clone(party));
        Arc::new(move |report: Report| {
            let Report { instance, seq, outcome, is_final, .. } = report;
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
        self.ledger.told(party, instance, seq);
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
        if is_final {
            self.ledger.told(party, instance, seq);
        }
        self.amend(party, |view| {
            view.failures += 1;
            if is_final {
                view.settle(instance, seq);
            }
            // A thousand that fail for one reason are one line.
            if view.failing.values().all(|known| known != why) {
                let again = if is_final { "given up" } else { "it is tried again" };
                tracing::warn!(%instance, seq, %party, again, "not told: {why}");
            }
            view.failing.insert(instance.clone(), why.to_owned());
        });
    }

    fn amend(&self, party: &Arc<str>, change: impl FnOnce(&mut PartyView)) {
        if let Ok(mut parties) = self.parties.lock() {
            change(parties.entry(Arc::clone(party)).or_default());
        }
    }
}

impl PartyView {
    /// It is done with everything up to `seq`.
    fn settle(&mut self, instance: &InstanceId, seq: i64) {
        if self.owed.get(instance).is_some_and(|owed| *owed <= seq) {
            self.owed.remove(instance);
        }
    }
}
