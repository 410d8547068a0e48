// SPDX-License-Identifier: Apache-2.0
//! Notices the end of a split from the adverts: another host has advertised the addresses while this node held them, and
//! has stopped.
//!
//! The neighbours may then have the MAC of the other host, so the survivor announces its addresses again.

use super::adverts::{AdvertQuestion, SETTLE};
use crate::Role;
use crate::witness::{AdvertOrigin, SourceRecord};

/// Whether another host advertises the addresses of one instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SplitWatch {
    /// The number of the role for which `has_other_primary` is true.
    role_number: i64,
    /// Another host has advertised the addresses while this node held them.
    has_other_primary: bool,
}

impl SplitWatch {
    /// Looks at the adverts. Returns true once after the last other host has stopped to advertise, if this node is still
    /// primary by the same role. `role_number` is different after each change of the role.
    ///
    /// The other host may still advertise for an advert interval and [`SETTLE`] after this node has become primary: such
    /// adverts belong to the election.
    pub fn has_ended(&mut self, question: &AdvertQuestion<'_>, role_number: i64) -> bool {
        if *question.role != Role::Primary || role_number != self.role_number {
            *self = Self { role_number, has_other_primary: false };
        }
        if *question.role != Role::Primary {
            return false;
        }
        let is_other_primary = |record: &&SourceRecord| {
            record.origin == AdvertOrigin::Foreign && question.may_hold(record)
        };
        let is_after_election =
            |record: &SourceRecord| record.at >= question.role_since + record.interval + SETTLE;
        let mut others =
            question.both_kinds(question.judged_at()).filter(is_other_primary).peekable();
        if others.peek().is_some() {
            self.has_other_primary |= others.any(is_after_election);
            return false;
        }
        if !self.has_other_primary || question.may_have_missed_adverts() {
            return false;
        }
        self.has_other_primary = false;
        true
    }

    /// Whether another host has advertised while this node held the addresses, and its end was not reported yet.
    pub fn has_other_primary(&self) -> bool {
        self.has_other_primary
    }
}

impl AdvertQuestion<'_> {
    /// Whether adverts of the other host may be missing: packets were lost after its last one, less than its master-down
    /// interval ago.
    fn may_have_missed_adverts(&self) -> bool {
        let both = self.witness.both_kinds(self.key);
        let foreign = both.filter_map(|router| router.last_foreign(self.now));
        let Some(last) = foreign.map(|last| last.record).max_by_key(|record| record.at) else {
            return false;
        };
        let overrun = self.witness.overrun().map(|overrun| overrun.to);
        let complete_from = overrun.map_or(self.witness.since(), |to| to.max(self.witness.since()));
        complete_from > last.at && self.now.since(complete_from) <= last.down_interval()
    }
}

#[cfg(test)]
mod tests;
