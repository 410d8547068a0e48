// SPDX-License-Identifier: Apache-2.0
//! When a heartbeat is due, and what the main loop has confirmed.
//!
//! ```text
//!   due ──▶ renew the lease (revision R) ──▶ ask the main loop ──▶ confirmed ──▶ publish ──▶ heartbeat, seen = R
//!                                                          └─▶ no answer in time ─────────▶ heartbeat, seen as before
//! ```

use std::time::Duration;

use tokio::time::Instant;
use vipwatch_core::InstanceId;

use super::{ConfirmationId, ConfirmationRequest};

/// How long a heartbeat waits for the main loop.
const CONFIRMATION_LIMIT: Duration = Duration::from_secs(1);

/// The heartbeats of this process.
#[derive(Debug)]
pub(super) struct HeartbeatState {
    interval: Duration,
    count: u64,
    next: Instant,
    /// The time of the heartbeat that waits for the main loop.
    write_at: Option<Instant>,
    /// The revision that the main loop has confirmed last; 0 before the first time.
    seen: i64,
    last_id: u64,
    /// The confirmation that the main loop has not answered yet.
    asked: Option<AskedConfirmation>,
}

#[derive(Debug, Clone, Copy)]
struct AskedConfirmation {
    id: ConfirmationId,
    seen: i64,
}

impl HeartbeatState {
    pub(super) fn new(interval: Duration) -> Self {
        let next = Instant::now();
        Self { interval, count: 0, next, write_at: None, seen: 0, last_id: 0, asked: None }
    }

    /// The next heartbeat is due now.
    pub(super) fn make_due(&mut self) {
        self.next = Instant::now();
    }

    /// Whether the lease must be renewed, and the main loop asked.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// The lease was renewed: the heartbeat waits for the main loop.
    pub(super) fn begin(&mut self, now: Instant) {
        self.next = now + self.interval;
        self.write_at.get_or_insert(now + CONFIRMATION_LIMIT.min(self.interval / 2));
    }

    /// Whether a heartbeat must be written.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.write_at.is_some_and(|at| now >= at)
    }

    /// The number of the next heartbeat of this process.
    pub(super) fn next_count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// A heartbeat was written.
    pub(super) fn written(&mut self) {
        self.write_at = None;
    }

    /// The revision that the main loop has confirmed.
    pub(super) fn seen(&self) -> i64 {
        self.seen
    }

    /// The revision that the main loop has confirmed, or is asked to.
    pub(super) fn asked_seen(&self) -> i64 {
        self.asked.map_or(self.seen, |asked| asked.seen)
    }

    /// A request to the main loop.
    pub(super) fn ask(&mut self, seen: i64, instances: Vec<InstanceId>) -> ConfirmationRequest {
        self.last_id += 1;
        let id = ConfirmationId(self.last_id);
        self.asked = Some(AskedConfirmation { id, seen });
        ConfirmationRequest { id, instances }
    }

    /// The main loop has answered. A heartbeat with its confirmation is due at once. Returns false for an old answer.
    pub(super) fn confirm(&mut self, id: ConfirmationId) -> bool {
        let Some(asked) = self.asked.filter(|asked| asked.id == id) else { return false };
        self.asked = None;
        self.seen = self.seen.max(asked.seen);
        self.write_at = Some(Instant::now());
        true
    }

    /// A new registration: the main loop has not confirmed the roles that follow it.
    pub(super) fn restart(&mut self) {
        self.make_due();
        self.asked = None;
        self.seen = 0;
    }

    /// The next time that something is due.
    pub(super) fn deadline(&self) -> Instant {
        self.write_at.map_or(self.next, |at| at.min(self.next))
    }
}
