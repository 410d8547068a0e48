// SPDX-License-Identifier: Apache-2.0
//! Waits between retries: each is longer than the one before, and random within a range, so that many
//! processes do not retry at the same time.

use std::time::Duration;

/// A small deterministic random generator (`SplitMix64`). It is for waits, not for secrets.
#[derive(Debug, Clone)]
pub struct Jitter(u64);

impl Jitter {
    /// A generator that gives the same sequence for the same seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random duration between half of `wait` and `wait`.
    pub fn shorten(&mut self, wait: Duration) -> Duration {
        let half = wait / 2;
        let fraction = u32::try_from(self.next_u64() & 0x3ff).unwrap_or(0);
        half + half * fraction / 1024
    }
}

/// Waits that double from `first` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// A backoff that starts with the wait `first`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The wait after a failure, with jitter. The following wait is twice as long, up to the maximum.
    pub fn next_wait(&mut self, jitter: &mut Jitter) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.max);
        jitter.shorten(wait)
    }

    /// Replaces the maximum wait.
    pub fn set_max_wait(&mut self, max: Duration) {
        self.max = max;
    }

    /// Starts again with the first wait, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_and_start_again_after_a_reset() {
        let ms = Duration::from_millis;
        let mut jitter = Jitter::new(1);
        let mut backoff = Backoff::new(ms(10), ms(35));
        for longest in [10, 20, 35, 35] {
            let wait = backoff.next_wait(&mut jitter);
            assert!(wait >= ms(longest) / 2 && wait <= ms(longest), "{wait:?} of {longest} ms");
        }
        backoff.reset();
        assert!(backoff.next_wait(&mut jitter) <= ms(10));
    }

    #[test]
    fn different_seeds_give_different_waits() {
        let wait = Duration::from_secs(1);
        let mut waits: Vec<_> = (0..100).map(|seed| Jitter::new(seed).shorten(wait)).collect();
        waits.sort();
        waits.dedup();
        assert!(waits.len() > 80, "{} of 100 differ", waits.len());
    }
}
