//! How many announcements a node may make: a burst, then a steady rate.

use std::time::Duration;

use crate::Moment;

/// A limit over all addresses of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Announcements per second, in the long run.
    pub per_second: u32,
    /// How many may come at once after a quiet time.
    pub burst: u32,
}

impl RateLimit {
    /// A failover of a thousand addresses is announced at once; more take their turn.
    pub const DEFAULT: Self = Self { per_second: 1000, burst: 1000 };

    /// Between two announcements, in the long run.
    pub(crate) fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }
}

/// What is left of a [`RateLimit`].
#[derive(Debug, Clone)]
pub struct RateLimiter {
    rate: RateLimit,
    /// When everything taken so far would have been taken at the steady rate (the generic
    /// cell rate algorithm): one moment instead of a bucket that must be refilled.
    paid_until: Option<Moment>,
}

impl RateLimiter {
    /// All of it.
    pub fn new(rate: RateLimit) -> Self {
        Self { rate, paid_until: None }
    }

    /// Takes one announcement; false if there is none to be had now.
    pub fn take(&mut self, now: Moment) -> bool {
        let interval = self.rate.interval();
        let paid_until = self.paid_until.map_or(now, |paid| paid.max(now));
        if paid_until.since(now) > interval * self.rate.burst.max(1).saturating_sub(1) {
            return false;
        }
        self.paid_until = Some(paid_until + interval);
        true
    }

    /// From when on [`Self::take`] succeeds, if nothing is taken before.
    pub fn ready_at(&self) -> Moment {
        let ahead = self.rate.interval() * self.rate.burst.max(1).saturating_sub(1);
        self.paid_until.map_or(Moment::new(Duration::ZERO), |paid| paid.before(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut allowance = RateLimiter::new(RateLimit { per_second: 100, burst: 5 });
        let taken =
            |allowance: &mut RateLimiter, now| (0..50).filter(|_| allowance.take(now)).count();
        assert_eq!(taken(&mut allowance, at(0)), 5);
        assert_eq!(taken(&mut allowance, at(9)), 0);
        assert_eq!(taken(&mut allowance, at(30)), 3);
        assert_eq!(
            taken(&mut allowance, at(10_000)),
            5,
            "a quiet time saves up one burst, not more"
        );
    }

    #[test]
    fn nothing_is_slower_than_one_per_second() {
        let mut allowance = RateLimiter::new(RateLimit { per_second: 0, burst: 0 });
        assert!(allowance.take(at(0)) && !allowance.take(at(999)) && allowance.take(at(1000)));
    }
}
