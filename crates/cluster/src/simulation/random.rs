// SPDX-License-Identifier: Apache-2.0
//! Pseudo-random numbers that are the same for the same seed.

use std::time::Duration;

/// The generator `SplitMix64`.
#[derive(Debug, Clone)]
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    /// A generator for one purpose: another one with the same seed gives other numbers.
    pub(super) fn new(seed: u64, purpose: u64) -> Self {
        let mut random = Self(seed ^ purpose.rotate_left(32));
        random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `limit`, which must not be 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or(0) % limit
    }

    /// The same for revisions.
    pub(super) fn number(&mut self, limit: i64) -> i64 {
        let limit = usize::try_from(limit).unwrap_or(1);
        i64::try_from(self.below(limit)).unwrap_or(0)
    }

    /// True in `percent` of 100 cases.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which must not be empty.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A duration from `min` up to `max`.
    pub(super) fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let span = max.saturating_sub(min).as_millis();
        let span = usize::try_from(span).unwrap_or(usize::MAX - 1);
        min + Duration::from_millis(self.below(span + 1) as u64)
    }

    /// Puts the items into a random order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }
}
