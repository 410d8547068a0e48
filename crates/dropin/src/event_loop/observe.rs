// SPDX-License-Identifier: Apache-2.0
//! Reads the kernel: events, snapshots, and the audit that compares the tracked state with a snapshot.

use std::time::Duration;

use vipwatch_core::{Moment, Observation, Snapshot, SnapshotReason, StateChange, Tracker};
use vipwatch_linux::clock;
use vipwatch_linux::monitor::{MonitorEvent, QueueState, WatchError};

use super::EventLoop;
use crate::event::{Event, EventLog};

/// A snapshot that is not complete after this time has lost its end. It is requested again.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(1);

impl<L: EventLog> EventLoop<L> {
    /// Reads one batch of events from the kernel, applies all of them, and publishes the last state if it is new.
    pub(super) fn read_events(&mut self) {
        let Some(timers) = &mut self.timers else {
            return;
        };
        let mut events = std::mem::take(&mut self.events);
        // If the batch was full, the socket stays ready and the next poll returns at once.
        let result = timers.monitor.read(&mut events);
        if !timers.monitor.is_snapshot_pending() {
            timers.snapshot_deadline = None;
        } else if timers.snapshot_deadline.is_none() {
            // The monitor requested this snapshot itself, because it lost events.
            timers.snapshot_deadline = Some(clock::now() + SNAPSHOT_TIMEOUT);
        }
        let mut last = None;
        for event in events.drain(..) {
            match event {
                MonitorEvent::Observed(observation) => {
                    last = self.observe(&observation).or(last);
                }
                MonitorEvent::Lost(loss) => self.log.record(&Event::EventsLost(loss)),
            }
        }
        self.events = events;
        if let Some(change) = last
            && self.published != Some(change.to)
        {
            self.publish(&change);
        }
        match result {
            Ok(QueueState::Empty | QueueState::MoreToCome) => {}
            Err(error) => self.retry_snapshot(&error),
        }
    }

    /// Passes one observation to the tracker and to the announcer. Returns the change of state, if there is one.
    fn observe(&mut self, observation: &Observation) -> Option<StateChange> {
        let change = self.track(observation);
        if let Some(announcer) = &mut self.announcer {
            announcer.observe(observation, clock::now());
        }
        if let Some(change) = &change {
            self.update_announcer(change);
        }
        change
    }

    /// Applies one observation to the tracker. Returns the change of state, if there is one.
    fn track(&mut self, observation: &Observation) -> Option<StateChange> {
        if let Observation::Snapshot { reason, snapshot } = observation
            && !self.accept_snapshot(*reason, snapshot)
        {
            return None;
        }
        let tracker = self.tracker.as_mut()?;
        let change = tracker.apply(observation, clock::now());
        if matches!(observation, Observation::Snapshot { .. }) {
            let is_first = self.first_snapshot_deadline.take().is_some();
            if is_first && !tracker.has_link() {
                self.log.record(&Event::LinkMissing);
            }
        }
        if let Some(change) = &change {
            self.log.record(&Event::StateChanged(change));
        }
        change
    }

    /// Whether the snapshot may be applied. An audit that disagrees with the tracked state is repeated once, because
    /// the event that explains the difference may still be queued. The second audit is applied in any case.
    fn accept_snapshot(&mut self, reason: SnapshotReason, snapshot: &Snapshot) -> bool {
        let (Some(tracker), Some(timers)) = (&self.tracker, &mut self.timers) else {
            return true;
        };
        timers.is_failing = false;
        timers.backoff.reset();
        let agrees = tracker.state() == Some(tracker.state_in(snapshot));
        if reason != SnapshotReason::Audit || agrees {
            timers.is_audit_repeated = false;
            return true;
        }
        if timers.is_audit_repeated {
            timers.is_audit_repeated = false;
            self.audit_mismatches += 1;
            self.log.record(&Event::AuditDisagreed(self.audit_mismatches));
            return true;
        }
        timers.is_audit_repeated = true;
        timers.snapshot_deadline = Some(clock::now() + SNAPSHOT_TIMEOUT);
        if let Err(error) = timers.monitor.request_snapshot(SnapshotReason::Audit) {
            self.retry_snapshot(&error);
        }
        false
    }

    /// Requests a snapshot if its time has come, and gives up one that has taken too long.
    pub(super) fn query_snapshot_if_due(&mut self, now: Moment) {
        let Some(timers) = &mut self.timers else { return };
        if timers.snapshot_deadline.is_some_and(|deadline| deadline <= now) {
            timers.monitor.cancel_snapshot();
            self.retry_snapshot(&WatchError::Incomplete);
            return;
        }
        if timers.snapshot_at.is_none_or(|at| at > now) {
            return;
        }
        let is_informed = self.tracker.as_ref().is_some_and(Tracker::is_informed);
        let reason = if is_informed { SnapshotReason::Resync } else { SnapshotReason::First };
        timers.snapshot_at = None;
        timers.snapshot_deadline = Some(now + SNAPSHOT_TIMEOUT);
        match timers.monitor.request_snapshot(reason) {
            // The kernel has already queued its answer: reading it now saves one poll.
            Ok(()) => self.read_events(),
            Err(error) => self.retry_snapshot(&error),
        }
    }

    /// Schedules another snapshot after a failure. Only the first failure of a series is recorded.
    fn retry_snapshot(&mut self, error: &WatchError) {
        let Some(timers) = &mut self.timers else {
            return;
        };
        let wait = timers.backoff.next_wait(&mut timers.jitter);
        timers.snapshot_at = Some(clock::now() + wait);
        timers.snapshot_deadline = None;
        if !std::mem::replace(&mut timers.is_failing, true) {
            self.log.record(&Event::SnapshotFailed(error));
        }
    }

    /// Publishes backup, because no snapshot was read in time or no valid address is configured.
    pub(super) fn assume_backup(&mut self, now: Moment) {
        let observation = Observation::FirstSnapshotOverdue;
        let change = match &mut self.tracker {
            Some(tracker) => tracker.apply(&observation, now),
            None => Some(StateChange::assumed(now)),
        };
        if let Some(change) = change {
            self.log.record(&Event::StateChanged(&change));
            self.update_announcer(&change);
            self.publish(&change);
        }
    }

    /// Checks the directories, the namespace and the state file, and requests a snapshot to compare with the
    /// tracked state.
    pub(super) fn audit(&mut self) {
        self.watch_directories();
        // Some network file systems send no directory notifications: this finds a new socket there.
        self.agent.socket_appeared();
        if self.is_netns_removed() {
            self.leave_netns();
            return;
        }
        if self.state_file.was_changed() {
            self.log.record(&Event::StateFileOverwritten);
            if let Some(state) = self.published {
                self.write_state_file(state);
            }
        }
        let Some(timers) = &mut self.timers else {
            return;
        };
        if timers.monitor.is_snapshot_pending() || timers.snapshot_at.is_some() {
            return;
        }
        match timers.monitor.request_snapshot(SnapshotReason::Audit) {
            Ok(()) => timers.snapshot_deadline = Some(clock::now() + SNAPSHOT_TIMEOUT),
            Err(error) => self.retry_snapshot(&error),
        }
    }
}
