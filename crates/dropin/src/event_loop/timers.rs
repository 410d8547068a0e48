// SPDX-License-Identifier: Apache-2.0
//! The netlink monitor of the event loop, and the timers for its snapshots.

use std::time::Duration;

use vipwatch_core::{Backoff, Jitter, Moment};
use vipwatch_linux::monitor::Monitor;

/// The netlink monitor with the timers and flags of its snapshots.
#[derive(Debug)]
pub(super) struct MonitorTimers {
    pub(super) monitor: Monitor,
    /// When the next snapshot is requested, at the start or after a failure; `None` if none is scheduled.
    pub(super) snapshot_at: Option<Moment>,
    /// When the snapshot under way is given up; `None` if none is under way.
    pub(super) snapshot_deadline: Option<Moment>,
    /// The delay before the next snapshot after a failure: 10 ms to 1 s.
    pub(super) backoff: Backoff,
    pub(super) jitter: Jitter,
    /// A failure was recorded, and no snapshot has succeeded since.
    pub(super) is_failing: bool,
    /// An audit disagreed with the tracked state, and its repetition is under way.
    pub(super) is_audit_repeated: bool,
}

impl MonitorTimers {
    /// Schedules the first snapshot for `now`.
    pub(super) fn new(monitor: Monitor, now: Moment, jitter: Jitter) -> Self {
        Self {
            monitor,
            snapshot_at: Some(now),
            snapshot_deadline: None,
            backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)),
            jitter,
            is_failing: false,
            is_audit_repeated: false,
        }
    }
}
