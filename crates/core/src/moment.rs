//! A point on a monotonic clock, given by whoever owns the clock.

use std::ops::Add;
use std::time::Duration;

/// A point in time, counted from an origin that only the clock's owner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment `since_origin` after the clock's origin.
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The moment `ago` before this one; the origin if that was before it.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        Self(self.0.saturating_sub(ago))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
}
