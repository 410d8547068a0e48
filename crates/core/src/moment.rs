// SPDX-License-Identifier: Apache-2.0
//! A point in time of a monotonic clock. The caller reads the clock; this crate does not.

use std::ops::Add;
use std::time::Duration;

/// A point in time, as the duration since the origin of the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment `since_origin` after the clock's origin.
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The moment `ago` before this one, but not before the origin.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        Self(self.0.saturating_sub(ago))
    }

    /// The time from `earlier` to this moment; zero if this moment is not later.
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
