// SPDX-License-Identifier: Apache-2.0
//! Periods between an act of the injector and the act that ends its effect.

use std::collections::BTreeSet;

use super::{done, is_begin};
use crate::journal::JournalEntry;
use crate::moment::Micros;

/// A period between two acts. While an act lasts, it is not known whether it has had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActPeriod {
    /// The beginning of the first act.
    pub from: Micros,
    /// Its end.
    pub done: Micros,
    /// The beginning of the act that ends the period; the end of the run without one.
    pub heal: Micros,
    /// Its end.
    pub to: Micros,
}

/// The periods of a host. `change` says for an entry whether it begins a period or ends it; `None` for other entries.
pub fn periods(
    journal: &[JournalEntry],
    host: usize,
    end: Micros,
    change: impl Fn(&JournalEntry) -> Option<bool>,
) -> Vec<ActPeriod> {
    let mut periods: Vec<ActPeriod> = Vec::new();
    for entry in journal.iter().filter(|entry| entry.node == Some(host) && is_begin(entry)) {
        let is_open = periods.last().is_some_and(|last| last.heal == end);
        match (change(entry), periods.last_mut().filter(|_| is_open)) {
            (Some(true), None) => periods.push(ActPeriod {
                from: entry.at,
                done: done(journal, entry, end),
                heal: end,
                to: end,
            }),
            (Some(false), Some(last)) => {
                last.heal = entry.at;
                last.to = done(journal, entry, end);
            }
            _ => {}
        }
    }
    periods
}

/// Whether a moment between `since` and `at` can be in one of the periods, and whether one can be outside of them.
pub fn during(periods: &[ActPeriod], since: Micros, at: Micros) -> BTreeSet<bool> {
    let is_inside = periods.iter().any(|period| period.from <= at && period.to > since);
    let is_always = periods.iter().any(|period| period.done <= since && at < period.heal);
    let values = [(true, is_inside), (false, !is_always)];
    values.into_iter().filter(|(_, is_possible)| *is_possible).map(|(value, _)| value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_values_are_possible_during_an_act_and_after_it() {
        let period = [ActPeriod { from: 10, done: 12, heal: 30, to: 31 }];
        let values = |at: Micros| during(&period, at - 3, at).into_iter().collect::<Vec<bool>>();
        assert_eq!(values(9), [false]);
        assert_eq!(values(10), [false, true]);
        assert_eq!(values(14), [false, true], "it was not certain three moments before");
        assert_eq!(values(15), [true]);
        assert_eq!(values(30), [false, true]);
        assert_eq!(values(33), [false, true]);
        assert_eq!(values(34), [false]);
    }
}
