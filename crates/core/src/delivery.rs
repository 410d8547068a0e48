// SPDX-License-Identifier: Apache-2.0
//! When to report a state to the agent, and when to report it again.
//!
//! The goal is that the agent ends with the wanted state; it need not get every intermediate one. The
//! difficulty is Neutron's server in the agent. It delays a `primary` by one advert interval, here called
//! the *window*. A state that arrives during the window replaces the delayed one, and if they differ at its
//! end, the agent applies neither. So a `primary` that a restarted monitor repeats, directly followed by a
//! `backup`, leaves the agent on `primary` for good. Hence three rules beyond plain retries:
//!
//! - A state that followed another one within the window is **confirmed**: it is reported once more when
//!   the window has passed for sure.
//! - An attempt without an answer **may have arrived**: the current state is reported again, even if it
//!   equals the last acknowledged one.
//! - An agent that **restarted** remembers nothing: the state is reported at once.
//!
//! Otherwise an unchanged state is not repeated.

use std::time::Duration;

use crate::{Backoff, Jitter, Moment, NeutronState};

/// An agent that is busy for longer than this is overloaded. Its monitors, of which there can be a
/// thousand, then wait up to [`MAX_BUSY_WAIT`] between two attempts.
const BUSY_PERIOD: Duration = Duration::from_secs(2);
/// Maximum wait between two attempts to reach an overloaded agent.
const MAX_BUSY_WAIT: Duration = Duration::from_secs(2);

/// Why an attempt did not end in an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryFailure {
    /// The socket does not exist.
    Absent,
    /// The socket cannot be used: no listener, no permission, or an untrusted owner.
    Refusing,
    /// The agent's accept queue is full.
    Busy,
    /// The report may have arrived, but no valid answer came.
    Unanswered,
    /// The agent answered with an error: a defect, which does not disappear by itself.
    Rejected,
}

impl DeliveryFailure {
    /// Whether the agent may act on the report although the attempt failed.
    pub fn may_have_arrived(self) -> bool {
        match self {
            Self::Unanswered | Self::Rejected => true,
            Self::Absent | Self::Refusing | Self::Busy => false,
        }
    }

    fn backoff(self) -> Backoff {
        let ms = Duration::from_millis;
        match self {
            // The caller watches the socket's directory; the retry is only a safety net.
            Self::Absent => Backoff::new(ms(100), ms(5_000)),
            // A new agent refuses for a moment between bind and listen: start with a short wait.
            Self::Refusing => Backoff::new(ms(4), ms(5_000)),
            // The queue of a working agent moves all the time. See [`BUSY_PERIOD`] for an overloaded one.
            Self::Busy => Backoff::new(ms(2), ms(64)),
            Self::Unanswered => Backoff::new(ms(20), ms(5_000)),
            Self::Rejected => Backoff::new(ms(60_000), ms(60_000)),
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The agent acknowledged the report.
    Acknowledged,
    /// The agent did not acknowledge the report.
    Failed(DeliveryFailure),
}

/// An attempt that has begun and not ended.
#[derive(Debug)]
struct Attempt {
    state: NeutronState,
    began: Moment,
    /// The agent restarted since the attempt began: an acknowledgement does not count.
    is_outdated: bool,
}

/// Consecutive attempts that failed in the same way.
#[derive(Debug)]
struct FailureStreak {
    failure: DeliveryFailure,
    /// When the first attempt of the streak failed.
    since: Moment,
    backoff: Backoff,
}

/// The delivery of one instance's state to one agent.
#[derive(Debug)]
pub struct Delivery {
    /// How long the agent may delay a state before it acts on it.
    window: Duration,
    /// The state that the agent should have; `None` before the first one is known.
    wanted: Option<NeutronState>,
    /// True after [`Self::withhold`]: the wanted state is out of date.
    is_withheld: bool,
    /// The last state that the agent acknowledged.
    acknowledged: Option<NeutronState>,
    /// Whether a later report than the acknowledged one may have arrived.
    is_uncertain: bool,
    /// When the agent has acted for sure on every report that arrived, or may have arrived.
    windows_end: Option<Moment>,
    /// When to confirm the acknowledged state; `None` if no confirmation is needed.
    confirm_at: Option<Moment>,
    /// No attempt before this moment; `None` if the last attempt did not fail.
    retry_at: Option<Moment>,
    /// The failures since the last acknowledgement.
    streak: Option<FailureStreak>,
    /// The attempt in progress.
    attempt: Option<Attempt>,
    jitter: Jitter,
}

impl Delivery {
    /// A delivery to an agent with this `window` and an unknown state.
    pub fn new(window: Duration, jitter: Jitter) -> Self {
        Self {
            window,
            wanted: None,
            is_withheld: false,
            acknowledged: None,
            is_uncertain: false,
            windows_end: None,
            confirm_at: None,
            retry_at: None,
            streak: None,
            attempt: None,
            jitter,
        }
    }

    /// Replaces the agent's window.
    pub fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    /// Records that another process, a predecessor of this one, reported to the agent at `at`.
    pub fn predecessor_reported(&mut self, at: Moment) {
        self.extend_windows(at, Duration::ZERO);
    }

    /// Sets the state that the agent should have.
    pub fn want(&mut self, state: NeutronState) {
        self.is_withheld = false;
        if self.wanted != Some(state) {
            self.wanted = Some(state);
            self.retry_at = None;
        }
    }

    /// Marks the wanted state as out of date: no attempt begins before the next [`Self::want`].
    pub fn withhold(&mut self) {
        self.is_withheld = true;
    }

    /// Records that a new agent listens on the socket.
    pub fn agent_restarted(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.is_outdated = true;
        }
        self.acknowledged = None;
        self.is_uncertain = false;
        // `windows_end` stays: if it is the old agent after all, its window still runs.
        self.confirm_at = None;
        self.retry_at = None;
        self.streak = None;
    }

    /// Whether no attempt is in progress or planned.
    pub fn is_settled(&self) -> bool {
        !self.is_withheld && self.attempt.is_none() && self.due().is_none()
    }

    /// When to call [`Self::begin`]; `None` if no attempt is planned, or one is in progress.
    pub fn due(&self) -> Option<Moment> {
        let wanted = self.wanted?;
        if self.is_withheld || self.attempt.is_some() {
            return None;
        }
        let is_new = self.acknowledged != Some(wanted) || self.is_uncertain;
        let due = if is_new { Moment::new(Duration::ZERO) } else { self.confirm_at? };
        // The wait after a failure applies to confirmations too.
        Some(self.retry_at.map_or(due, |retry| retry.max(due)))
    }

    /// Begins an attempt if one is due; returns the state to report.
    pub fn begin(&mut self, now: Moment) -> Option<NeutronState> {
        if self.due()? > now {
            return None;
        }
        let state = self.wanted?;
        self.attempt = Some(Attempt { state, began: now, is_outdated: false });
        Some(state)
    }

    /// Ends the attempt in progress.
    pub fn finish(&mut self, outcome: Outcome, now: Moment) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        match outcome {
            Outcome::Acknowledged if attempt.is_outdated => {}
            Outcome::Acknowledged => self.acknowledge(&attempt, now),
            Outcome::Failed(failure) => {
                if failure.may_have_arrived() && !attempt.is_outdated {
                    self.is_uncertain = true;
                    self.extend_windows(now, now.since(attempt.began));
                }
                let wait = self.wait_after(failure, now);
                // A state that became wanted during the attempt has not failed yet: no wait.
                self.retry_at = (self.wanted == Some(attempt.state)).then(|| now + wait);
            }
        }
    }

    fn acknowledge(&mut self, attempt: &Attempt, now: Moment) {
        let is_within_window = self.windows_end.is_some_and(|end| attempt.began < end);
        let end = self.extend_windows(now, now.since(attempt.began));
        self.confirm_at = is_within_window.then_some(end);
        self.acknowledged = Some(attempt.state);
        self.is_uncertain = false;
        self.retry_at = None;
        self.streak = None;
    }

    /// Records that a report arrived at `at`, after an attempt that took `slowness`; returns the end of all windows. A fast
    /// answer does not shorten the window of an earlier, slow one.
    fn extend_windows(&mut self, at: Moment, slowness: Duration) -> Moment {
        // An agent that answers slowly also ends its window late.
        let end = at + self.window + self.margin() + slowness * 4;
        *self.windows_end.insert(self.windows_end.map_or(end, |earlier| earlier.max(end)))
    }

    /// How much longer than its window an agent under normal load may delay a state.
    fn margin(&self) -> Duration {
        (self.window / 4).max(Duration::from_millis(500))
    }

    fn wait_after(&mut self, failure: DeliveryFailure, now: Moment) -> Duration {
        let mut streak = match self.streak.take() {
            Some(streak) if streak.failure == failure => streak,
            Some(_) | None => FailureStreak { failure, since: now, backoff: failure.backoff() },
        };
        if failure == DeliveryFailure::Busy && now.since(streak.since) >= BUSY_PERIOD {
            streak.backoff.set_max_wait(MAX_BUSY_WAIT);
        }
        let wait = streak.backoff.next_wait(&mut self.jitter);
        self.streak = Some(streak);
        wait
    }
}

#[cfg(test)]
mod tests;
