// SPDX-License-Identifier: Apache-2.0
//! The times at which buckets are to be evaluated again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use vipwatch_core::Moment;

use crate::key::Bucket;

/// The next time of each bucket. An evaluation looks at all groups of the bucket and sets the next time again, so that one
/// time is enough.
// BOUND: one time for each bucket of the view. The evaluation of a bucket that is gone removes its time.
#[derive(Debug, Default)]
pub(super) struct EvaluationSchedule {
    by_bucket: BTreeMap<Bucket, Moment>,
    /// The same, the earliest first.
    by_time: BTreeSet<(Moment, Bucket)>,
}

impl EvaluationSchedule {
    /// The bucket is to be evaluated at this time, or earlier if an earlier time is set.
    pub(super) fn add(&mut self, at: Moment, bucket: &Bucket) {
        match self.by_bucket.entry(bucket.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(at);
            }
            Entry::Occupied(entry) if *entry.get() <= at => return,
            Entry::Occupied(mut entry) => {
                let later = entry.insert(at);
                self.by_time.remove(&(later, bucket.clone()));
            }
        }
        self.by_time.insert((at, bucket.clone()));
    }

    /// Forgets the time of a bucket, at the beginning of its evaluation.
    pub(super) fn remove(&mut self, bucket: &Bucket) {
        if let Some((bucket, at)) = self.by_bucket.remove_entry(bucket) {
            self.by_time.remove(&(at, bucket));
        }
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns the buckets with a time that has come.
    pub(super) fn take_due(&mut self, now: Moment) -> BTreeSet<Bucket> {
        let mut due = BTreeSet::new();
        while let Some((at, _)) = self.by_time.first()
            && *at <= now
        {
            due.extend(self.by_time.pop_first().map(|(_, bucket)| bucket));
        }
        for bucket in &due {
            self.by_bucket.remove(bucket);
        }
        due
    }

    /// The number of times.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_bucket.len(), self.by_time.len());
        self.by_time.len()
    }
}
