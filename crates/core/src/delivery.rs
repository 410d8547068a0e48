//! When to say a role to a receiver, and when to say it again.
//!
//! The rule is level-triggered: the receiver must end up knowing the role we want it to
//! know, not every step on the way. What makes that hard is upstream's receiver. It delays
//! a primary by one advert interval, and while it waits it *replaces* what it was told; if
//! the word has changed when it wakes up, it applies neither. So a `primary` repeated by a
//! respawned monitor and followed at once by `backup` leaves the agent on `primary` for
//! good. Hence three rules beyond plain retrying:
//!
//! - a role that followed another word within the receiver's window is **confirmed**: said
//!   once more when the window has surely passed;
//! - an attempt without an answer **may have been heard**: the current role is said again
//!   even if it equals the last acknowledged one;
//! - a receiver that was **born again** remembers nothing: it is told at once.
//!
//! Beyond that an unchanged role is not repeated.

use std::time::Duration;

use crate::{Backoff, Jitter, Moment, NeutronState};

/// A receiver that is busy for longer than this is not just dealing with a burst. Its monitors, of which there can be a
/// thousand, then wait up to [`LONGEST_BUSY_WAIT`] between two attempts.
const BUSY_PERIOD: Duration = Duration::from_secs(2);
const LONGEST_BUSY_WAIT: Duration = Duration::from_secs(2);

/// Why an attempt did not end in an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryFailure {
    /// There is no receiver to talk to.
    Absent,
    /// There is one, and it does not let us in, or is not the one we trust.
    Refusing,
    /// It is there, with its hands full.
    Busy,
    /// It may have heard us; no sensible answer came.
    Unanswered,
    /// It understood and said no: a defect, not a condition that passes.
    Rejected,
}

impl DeliveryFailure {
    /// Whether the receiver may act on what it was told all the same.
    pub fn may_be_heard(self) -> bool {
        match self {
            Self::Unanswered | Self::Rejected => true,
            Self::Absent | Self::Refusing | Self::Busy => false,
        }
    }

    fn backoff(self) -> Backoff {
        let ms = Duration::from_millis;
        match self {
            // Its return is noticed by other means; this is only the safety net.
            Self::Absent => Backoff::new(ms(100), ms(5_000)),
            // Between bind and listen a new agent refuses for a moment: begin quickly.
            Self::Refusing => Backoff::new(ms(4), ms(5_000)),
            // The queue of a live agent moves all the time. See [`BUSY_PERIOD`] for one that does not.
            Self::Busy => Backoff::new(ms(2), ms(64)),
            Self::Unanswered => Backoff::new(ms(20), ms(5_000)),
            Self::Rejected => Backoff::new(ms(60_000), ms(60_000)),
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver acknowledged it.
    Taken,
    /// It did not.
    Failed(DeliveryFailure),
}

/// An attempt that has begun and not ended.
#[derive(Debug)]
struct Attempt {
    role: NeutronState,
    began: Moment,
    /// The receiver was replaced since: an acknowledgement no longer counts.
    is_outdated: bool,
}

/// Attempts that failed one after the other, all in the same way.
#[derive(Debug)]
struct ConfigProblem {
    setback: DeliveryFailure,
    /// When the first of them failed.
    since: Moment,
    backoff: Backoff,
}

/// What one receiver should know, and what it is known to know.
#[derive(Debug)]
pub struct Delivery {
    /// How long the receiver may hold a word back before it acts on it.
    window: Duration,
    wanted: Option<NeutronState>,
    /// True between a change of role and the moment it may be told.
    is_withheld: bool,
    /// What this receiver acknowledged last.
    taken: Option<NeutronState>,
    /// Something was said after `taken` that may or may not have been heard.
    is_unsure: bool,
    /// When it last heard, or may have heard, anything about us.
    last_heard: Option<Moment>,
    /// What the receiver took on top of its window, by its last answer.
    slack: Duration,
    confirm_at: Option<Moment>,
    retry_at: Option<Moment>,
    trouble: Option<ConfigProblem>,
    under_way: Option<Attempt>,
    dice: Jitter,
}

impl Delivery {
    /// A delivery to a receiver with this `window`, of which nothing is known.
    pub fn new(window: Duration, dice: Jitter) -> Self {
        Self {
            window,
            wanted: None,
            is_withheld: false,
            taken: None,
            is_unsure: false,
            last_heard: None,
            slack: Duration::ZERO,
            confirm_at: None,
            retry_at: None,
            trouble: None,
            under_way: None,
            dice,
        }
    }

    /// The receiver's window is this long, as is now known.
    pub fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    /// The receiver heard from somebody before us: a predecessor of this process.
    pub fn heard_before(&mut self, at: Moment) {
        self.last_heard = Some(at);
    }

    /// From now on the receiver should know `role`.
    pub fn want(&mut self, role: NeutronState) {
        self.is_withheld = false;
        if self.wanted != Some(role) {
            self.wanted = Some(role);
            self.retry_at = None;
        }
    }

    /// What it was to know is out of date; say nothing until the next [`Self::want`].
    pub fn withhold(&mut self) {
        self.is_withheld = true;
    }

    /// A new receiver stands where the old one was.
    pub fn receiver_appeared(&mut self) {
        if let Some(attempt) = &mut self.under_way {
            attempt.is_outdated = true;
        }
        self.taken = None;
        self.is_unsure = false;
        // `last_heard` stays: should it be the old one after all, its window still runs.
        self.confirm_at = None;
        self.retry_at = None;
        self.trouble = None;
    }

    /// Whether nothing is left to be said, now or later.
    pub fn is_settled(&self) -> bool {
        !self.is_withheld && self.under_way.is_none() && self.due().is_none()
    }

    /// When [`Self::begin`] will have something to say; `None` if nothing is planned, or
    /// an attempt is under way.
    pub fn due(&self) -> Option<Moment> {
        let wanted = self.wanted?;
        if self.is_withheld || self.under_way.is_some() {
            return None;
        }
        let is_news = self.taken != Some(wanted) || self.is_unsure;
        let due = if is_news { Moment::new(Duration::ZERO) } else { self.confirm_at? };
        // Whatever is to be said, a receiver that just failed is given its time.
        Some(self.retry_at.map_or(due, |retry| retry.max(due)))
    }

    /// The role to say now, if it is time. The attempt is then under way.
    pub fn begin(&mut self, now: Moment) -> Option<NeutronState> {
        if self.due()? > now {
            return None;
        }
        let role = self.wanted?;
        self.under_way = Some(Attempt { role, began: now, is_outdated: false });
        Some(role)
    }

    /// The attempt under way has ended.
    pub fn finish(&mut self, outcome: Outcome, now: Moment) {
        let Some(attempt) = self.under_way.take() else {
            return;
        };
        match outcome {
            Outcome::Taken if attempt.is_outdated => {}
            Outcome::Taken => self.taken(&attempt, now),
            Outcome::Failed(setback) => {
                if setback.may_be_heard() && !attempt.is_outdated {
                    self.is_unsure = true;
                    self.last_heard = Some(now);
                }
                let wait = self.wait_after(setback, now);
                // What was wanted meanwhile is news, and has not failed yet.
                self.retry_at = (self.wanted == Some(attempt.role)).then(|| now + wait);
            }
        }
    }

    fn taken(&mut self, attempt: &Attempt, now: Moment) {
        // A receiver that answers slowly also wakes up late.
        let slack = now.since(attempt.began) * 4;
        let quiet = self.window + self.margin() + self.slack.max(slack);
        let followed = self.last_heard.is_some_and(|heard| attempt.began.since(heard) < quiet);
        self.confirm_at = followed.then(|| now + quiet);
        self.slack = slack;
        self.last_heard = Some(now);
        self.taken = Some(attempt.role);
        self.is_unsure = false;
        self.retry_at = None;
        self.trouble = None;
    }

    /// What a receiver may take on top of its window, being a busy process.
    fn margin(&self) -> Duration {
        (self.window / 4).max(Duration::from_millis(500))
    }

    fn wait_after(&mut self, setback: DeliveryFailure, now: Moment) -> Duration {
        let mut trouble = match self.trouble.take() {
            Some(trouble) if trouble.setback == setback => trouble,
            Some(_) | None => ConfigProblem { setback, since: now, backoff: setback.backoff() },
        };
        if setback == DeliveryFailure::Busy && now.since(trouble.since) >= BUSY_PERIOD {
            trouble.backoff.extend_to(LONGEST_BUSY_WAIT);
        }
        let wait = trouble.backoff.fail(&mut self.dice);
        self.trouble = Some(trouble);
        wait
    }
}

#[cfg(test)]
mod tests;
