//! Waiting longer after each failure, and never in step with the neighbours.

use std::time::Duration;

/// A small deterministic random source (SplitMix64): jitter, not secrets.
#[derive(Debug, Clone)]
pub struct Jitter(u64);

impl Jitter {
    /// Dice that fall the same way for the same seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between half of `wait` and all of it.
    pub fn jitter(&mut self, wait: Duration) -> Duration {
        let half = wait / 2;
        let parts = u32::try_from(self.roll() & 0x3ff).unwrap_or(0);
        half + half * parts / 1024
    }
}

/// A wait that doubles from `first` to `longest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// A backoff that has not failed yet.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The wait after one more failure, with jitter.
    pub fn fail(&mut self, dice: &mut Jitter) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        dice.jitter(wait)
    }

    /// From now on the wait grows up to `longest`.
    pub fn extend_to(&mut self, longest: Duration) {
        self.longest = longest;
    }

    /// Forgets the failures.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_over() {
        let ms = Duration::from_millis;
        let mut dice = Jitter::new(1);
        let mut backoff = Backoff::new(ms(10), ms(35));
        for longest in [10, 20, 35, 35] {
            let wait = backoff.fail(&mut dice);
            assert!(wait >= ms(longest) / 2 && wait <= ms(longest), "{wait:?} of {longest}");
        }
        backoff.reset();
        assert!(backoff.fail(&mut dice) <= ms(10));
    }

    #[test]
    fn neighbours_with_other_seeds_do_not_retry_in_step() {
        let wait = Duration::from_secs(1);
        let first: Vec<_> = (0..100).map(|seed| Jitter::new(seed).jitter(wait)).collect();
        let mut distinct = first.clone();
        distinct.sort();
        distinct.dedup();
        assert!(distinct.len() > 80, "{} of 100 differ", distinct.len());
    }
}
