//! The monitor, as the spine looks after it.

use std::time::Duration;

use vipwatch_core::{Backoff, Jitter, Moment};
use vipwatch_linux::monitor::Monitor;

/// The monitor, and the times that belong to it.
#[derive(Debug)]
pub(super) struct MonitorTimers {
    pub(super) monitor: Monitor,
    /// When to ask (again), after a failure or for the first time.
    pub(super) look_at: Option<Moment>,
    /// When the look under way is given up.
    pub(super) look_limit: Option<Moment>,
    pub(super) backoff: Backoff,
    pub(super) dice: Jitter,
    /// A failure was said, and no look has gone well since.
    pub(super) is_failing: bool,
    /// An audit disagreed once; it is repeated before it is believed, because the event
    /// that explains it may be on its way.
    pub(super) is_suspicious: bool,
}

impl MonitorTimers {
    /// Ready to look at once.
    pub(super) fn new(monitor: Monitor, now: Moment, dice: Jitter) -> Self {
        Self {
            monitor,
            look_at: Some(now),
            look_limit: None,
            backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)),
            dice,
            is_failing: false,
            is_suspicious: false,
        }
    }
}
