// SPDX-License-Identifier: Apache-2.0
//! Limits how often something may happen: a burst, then a steady rate.
//!
//! The announcements of all addresses share one limiter, and so do the snapshots of all namespaces.

use std::time::Duration;

use crate::Moment;

/// A rate with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Events per second in the long run; 0 counts as 1.
    pub per_second: u32,
    /// Number of events that may happen at once after a pause; 0 counts as 1.
    pub burst: u32,
}

impl RateLimit {
    /// The default for announcements: a failover of a thousand addresses is announced at once.
    pub const DEFAULT: Self = Self { per_second: 1000, burst: 1000 };

    /// The time between two events at the steady rate.
    pub(crate) fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }
}

/// Counts events against a [`RateLimit`].
#[derive(Debug, Clone)]
pub struct RateLimiter {
    rate: RateLimit,
    /// The theoretical arrival time of the generic cell rate algorithm: when the next event would happen
    /// if all events so far had come at the steady rate. `None` before the first event.
    next_steady: Option<Moment>,
}

impl RateLimiter {
    /// A limiter with a full burst.
    pub fn new(rate: RateLimit) -> Self {
        Self { rate, next_steady: None }
    }

    /// Counts one event if the limit allows it now; returns whether it does.
    pub fn take(&mut self, now: Moment) -> bool {
        let interval = self.rate.interval();
        let next_steady = self.next_steady.map_or(now, |next| next.max(now));
        if next_steady.since(now) > self.burst_length() {
            return false;
        }
        self.next_steady = Some(next_steady + interval);
        true
    }

    /// The earliest moment at which [`Self::take`] succeeds.
    pub fn ready_at(&self) -> Moment {
        let start = Moment::new(Duration::ZERO);
        self.next_steady.map_or(start, |next| next.before(self.burst_length()))
    }

    /// How long a full burst would take at the steady rate, without its first event.
    fn burst_length(&self) -> Duration {
        self.rate.interval() * self.rate.burst.max(1).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    #[test]
    fn after_a_burst_the_steady_rate_applies() {
        let mut limiter = RateLimiter::new(RateLimit { per_second: 100, burst: 5 });
        let taken = |limiter: &mut RateLimiter, now| (0..50).filter(|_| limiter.take(now)).count();
        assert_eq!(taken(&mut limiter, at(0)), 5);
        assert_eq!(taken(&mut limiter, at(9)), 0);
        assert_eq!(taken(&mut limiter, at(30)), 3);
        assert_eq!(taken(&mut limiter, at(10_000)), 5, "a pause allows one burst, not more");
    }

    #[test]
    fn a_rate_of_zero_counts_as_one_per_second() {
        let mut limiter = RateLimiter::new(RateLimit { per_second: 0, burst: 0 });
        assert!(limiter.take(at(0)) && !limiter.take(at(999)) && limiter.take(at(1000)));
    }
}
