// SPDX-License-Identifier: Apache-2.0
//! The last transitions of each instance, for its record in etcd.
//!
//! The main loop adds each transition. Those of earlier runs come from the history when the first record of an instance
//! is made, on the thread of the session.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vipwatch_api::{RoleKind, timestamp_from_millis};
use vipwatch_cluster::record::{MAX_RECENT, RecentTransition};
use vipwatch_core::{Cause, InstanceId};
use vipwatch_history::{Query, Reader, Record};

use crate::cause::recorded_cause_item;
use crate::transition::{Transition, millis};

/// One transition. There are [`MAX_RECENT`] for each instance, so it is small.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptTransition {
    seq: i64,
    /// Milliseconds since the Unix epoch.
    at: i64,
    from: Option<RoleKind>,
    to: RoleKind,
    cause: Option<Cow<'static, str>>,
}

#[derive(Debug, Default)]
struct InstanceTransitions {
    /// Oldest first, at most [`MAX_RECENT`].
    kept: Vec<KeptTransition>,
    /// Whether the history was read.
    is_complete: bool,
}

/// The last transitions of all instances.
#[derive(Debug)]
pub(super) struct RecentTransitions {
    state_dir: PathBuf,
    instances: Mutex<BTreeMap<InstanceId, InstanceTransitions>>,
    /// Open while the first records are made.
    reader: Mutex<Option<Reader>>,
}

impl RecentTransitions {
    pub(super) fn new(state_dir: PathBuf) -> Self {
        Self { state_dir, instances: Mutex::default(), reader: Mutex::default() }
    }

    /// Adds a transition of this run.
    pub(super) fn add(&self, transition: &Transition) {
        let kept = KeptTransition {
            seq: transition.seq,
            at: millis(transition.at),
            from: transition.from,
            to: transition.to.kind(),
            cause: transition.cause.as_deref().map(|cause| Cow::Borrowed(cause.kind.as_str())),
        };
        self.lock().entry(transition.instance.id.clone()).or_default().add(kept);
    }

    /// Sets the cause of a transition, which is known later.
    pub(super) fn set_cause(&self, id: &InstanceId, seq: i64, cause: &Cause) {
        let mut instances = self.lock();
        let kept = instances.get_mut(id).map(|one| one.kept.as_mut_slice()).unwrap_or_default();
        if let Some(transition) = kept.iter_mut().find(|transition| transition.seq == seq) {
            transition.cause = Some(Cow::Borrowed(cause.kind.as_str()));
        }
    }

    /// Forgets an instance that is no longer configured.
    pub(super) fn forget(&self, id: &InstanceId) {
        self.lock().remove(id);
    }

    /// The last transitions of an instance, oldest first. The first call for an instance reads the history.
    pub(super) fn of(&self, id: &InstanceId) -> Vec<RecentTransition> {
        let is_complete = self.lock().get(id).is_some_and(|one| one.is_complete);
        // The lock is not held during the read: the main loop must not wait for the disk.
        let stored = if is_complete { Vec::new() } else { self.read(id) };
        let mut instances = self.lock();
        let one = instances.entry(id.clone()).or_default();
        for kept in stored {
            one.add(kept);
        }
        one.is_complete = true;
        one.kept.iter().map(KeptTransition::record).collect()
    }

    /// Closes the history, which is open after the first records.
    pub(super) fn close_history(&self) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn read(&self, id: &InstanceId) -> Vec<KeptTransition> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if reader.is_none() {
            *reader = Reader::open(&self.state_dir).ok();
        }
        let query = Query {
            instance: Some(id.to_string()),
            exact: true,
            limit: Some(MAX_RECENT as u64),
            ..Query::default()
        };
        // Without the history, only the transitions of this run are known.
        let entries = reader.as_ref().and_then(|reader| reader.transitions(&query).ok());
        let records = entries.unwrap_or_default().into_iter().map(|entry| entry.record);
        records.filter_map(|record| KeptTransition::of_record(&record)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<InstanceId, InstanceTransitions>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InstanceTransitions {
    fn add(&mut self, transition: KeptTransition) {
        match self.kept.binary_search_by_key(&transition.seq, |kept| kept.seq) {
            // The one of this run knows its cause.
            Ok(_) => {}
            Err(index) => {
                // Most instances have one or two transitions; without this, the memory has room for four.
                self.kept.reserve_exact(1);
                self.kept.insert(index, transition);
            }
        }
        let surplus = self.kept.len().saturating_sub(MAX_RECENT);
        self.kept.drain(..surplus);
    }
}

impl KeptTransition {
    /// `None` for a removal, which is no role.
    fn of_record(record: &Record) -> Option<Self> {
        Some(Self {
            seq: record.seq,
            at: record.at,
            from: record.from,
            to: record.to?,
            cause: recorded_cause_item(record.cause.as_ref()).cause.map(Cow::Owned),
        })
    }

    fn record(&self) -> RecentTransition {
        RecentTransition {
            seq: self.seq,
            at: timestamp_from_millis(self.at),
            from: self.from,
            to: self.to,
            cause: self.cause.as_deref().map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(seq: i64) -> KeptTransition {
        let (from, to) = (Some(RoleKind::Backup), RoleKind::Primary);
        KeptTransition { seq, at: seq, from, to, cause: None }
    }

    #[test]
    fn the_newest_transitions_stay_in_order_whichever_comes_first() {
        let mut transitions = InstanceTransitions::default();
        for seq in [9, 3, 5, 9, 1, 7, 2] {
            transitions.add(kept(seq));
        }
        let seqs: Vec<i64> = transitions.kept.iter().map(|kept| kept.seq).collect();
        assert_eq!(seqs, [3, 5, 7, 9]);
    }

    #[test]
    fn without_a_history_only_the_transitions_of_this_run_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let recent = RecentTransitions::new(directory.path().to_owned());
        assert_eq!(recent.of(&"a".parse().unwrap()), []);
    }
}
