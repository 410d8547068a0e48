// SPDX-License-Identifier: Apache-2.0
//! The times at which buckets are to be evaluated again.

use std::collections::BTreeSet;

use vipwatch_core::Moment;

use crate::key::Bucket;

/// Times, the earliest first.
// BOUND: one entry for each pending condition; a condition that is gone leaves its entry until its time.
#[derive(Debug, Default)]
pub(super) struct EvaluationSchedule(BTreeSet<(Moment, Bucket)>);

impl EvaluationSchedule {
    pub(super) fn add(&mut self, at: Moment, bucket: &Bucket) {
        self.0.insert((at, bucket.clone()));
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes and returns the buckets with a time that has come.
    pub(super) fn take_due(&mut self, now: Moment) -> BTreeSet<Bucket> {
        let mut due = BTreeSet::new();
        while let Some((at, _)) = self.0.first()
            && *at <= now
        {
            due.extend(self.0.pop_first().map(|(_, bucket)| bucket));
        }
        due
    }
}
