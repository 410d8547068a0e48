// SPDX-License-Identifier: Apache-2.0
//! Periods of recorded facts: with exact ends, or between acts of the injector, which have their effect at an unknown moment.

use crate::moment::Micros;

/// A period in which a value did not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span<T> {
    pub start: Micros,
    pub end: Micros,
    pub value: T,
}

impl<T> Span<T> {
    pub fn overlaps(&self, start: Micros, end: Micros) -> bool {
        self.start < end && start < self.end
    }
}

/// Adds the value from a time on; it ends with the next other value, or with `end`.
pub fn push<T: PartialEq>(spans: &mut Vec<Span<T>>, start: Micros, end: Micros, value: T) {
    if let Some(last) = spans.last_mut() {
        if last.value == value {
            return;
        }
        last.end = start;
    }
    spans.push(Span { start, end, value });
}

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

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    No,
    Maybe,
    Yes,
}

impl Holds {
    /// From the possible values of the condition.
    pub fn of(values: impl IntoIterator<Item = bool>) -> Self {
        let (mut can_be_true, mut can_be_false) = (false, false);
        for value in values {
            can_be_true |= value;
            can_be_false |= !value;
        }
        match (can_be_true, can_be_false) {
            (true, false) => Self::Yes,
            (true, true) => Self::Maybe,
            (false, _) => Self::No,
        }
    }

    /// The possible values.
    pub fn values(self) -> &'static [bool] {
        match self {
            Self::No => &[false],
            Self::Maybe => &[false, true],
            Self::Yes => &[true],
        }
    }

    pub fn can_be(self, value: bool) -> bool {
        self.values().contains(&value)
    }
}

/// Whether a moment between `since` and `at` is in one of the periods.
pub fn during(periods: &[ActPeriod], since: Micros, at: Micros) -> Holds {
    let is_inside = periods.iter().any(|period| period.from <= at && period.to > since);
    let is_always = periods.iter().any(|period| period.done <= since && at < period.heal);
    Holds::of([is_inside, is_always])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_values_are_possible_during_an_act_and_after_it() {
        let period = [ActPeriod { from: 10, done: 12, heal: 30, to: 31 }];
        let holds = |at: Micros| during(&period, at - 3, at);
        assert_eq!(holds(9), Holds::No);
        assert_eq!(holds(10), Holds::Maybe);
        assert_eq!(holds(14), Holds::Maybe, "it was not certain three moments before");
        assert_eq!(holds(15), Holds::Yes);
        assert_eq!(holds(30), Holds::Maybe);
        assert_eq!(holds(33), Holds::Maybe);
        assert_eq!(holds(34), Holds::No);
    }
}
