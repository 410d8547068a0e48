// SPDX-License-Identifier: Apache-2.0
//! Limits the log lines about rejected reports: a client can send thousands of invalid requests in a second.
//!
//! The first rejection of a user for a reason is logged at once. Further ones within [`PERIOD`] are counted, and one
//! line has their number when the period is over.

use std::collections::BTreeMap;
use std::time::Duration;

use vipwatch_core::Moment;

/// The time in which equal rejections are counted instead of logged.
const PERIOD: Duration = Duration::from_mins(1);

/// Maximum number of users and reasons in one period. Rejections beyond that are counted together.
const MAX_KINDS: usize = 32;

/// A user, `None` if the kernel did not report one, and the label of the reason.
type Kind = (Option<u32>, &'static str);

/// The rejections of the current period.
#[derive(Debug, Default)]
pub(super) struct RejectionLog {
    /// The end of the period; `None` if there was no rejection.
    ends: Option<Moment>,
    /// The number of rejections of each kind that were not logged.
    suppressed: BTreeMap<Kind, u64>,
    /// The number of rejections of other kinds.
    others: u64,
}

impl RejectionLog {
    /// Logs a rejection, or counts it.
    pub(super) fn log(
        &mut self,
        user: Option<u32>,
        label: &'static str,
        reason: &str,
        now: Moment,
    ) {
        self.tick(now);
        if self.is_first((user, label), now) {
            tracing::warn!(user = user_text(user), reason, "report rejected");
        }
    }

    /// Logs the numbers of a period that is over.
    pub(super) fn tick(&mut self, now: Moment) {
        if self.ends.is_none_or(|ends| ends > now) {
            return;
        }
        let Self { suppressed, others, .. } = std::mem::take(self);
        let seconds = PERIOD.as_secs();
        for ((user, label), count) in suppressed.into_iter().filter(|(_, count)| *count > 0) {
            let user = user_text(user);
            tracing::warn!(user, reason = label, count, seconds, "more reports were rejected");
        }
        if others > 0 {
            tracing::warn!(count = others, seconds, "more reports were rejected, of other users");
        }
    }

    /// Whether this is the first rejection of its kind in the period; otherwise it is counted.
    fn is_first(&mut self, kind: Kind, now: Moment) -> bool {
        self.ends.get_or_insert(now + PERIOD);
        if let Some(count) = self.suppressed.get_mut(&kind) {
            *count += 1;
            return false;
        }
        if self.suppressed.len() >= MAX_KINDS {
            self.others += 1;
            return false;
        }
        self.suppressed.insert(kind, 0);
        true
    }
}

fn user_text(user: Option<u32>) -> String {
    user.map_or_else(|| "unknown".to_owned(), |user| user.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds))
    }

    #[test]
    fn the_first_rejection_of_a_user_and_reason_is_logged_and_further_ones_are_counted() {
        let mut log = RejectionLog::default();
        let kinds = [(Some(1), "body"), (Some(1), "body"), (Some(2), "body"), (Some(1), "bad_id")];
        assert_eq!(kinds.map(|kind| log.is_first(kind, at(0))), [true, false, true, true]);
        assert_eq!(log.suppressed[&(Some(1), "body")], 1);
        log.tick(at(59));
        assert!(!log.is_first((Some(2), "body"), at(59)));
        log.tick(at(60));
        assert!(log.suppressed.is_empty(), "a new period begins with the next rejection");
        assert!(log.is_first((Some(1), "body"), at(61)));
    }

    #[test]
    fn many_users_use_little_memory() {
        let mut log = RejectionLog::default();
        let logged = (0..1000).filter(|user| log.is_first((Some(*user), "forbidden"), at(0)));
        assert_eq!(logged.count(), MAX_KINDS);
        assert_eq!((log.suppressed.len(), log.others), (MAX_KINDS, 1000 - MAX_KINDS as u64));
    }
}
