// SPDX-License-Identifier: Apache-2.0
//! The delivery of one instance's notifications to one target: pending and concluded notifications.
//!
//! ```text
//!            submit                        begin               accepted
//!   idle ──────────────▶ pending ─────────────────▶ running ─────────────▶ concluded: delivered
//!                         │  ▲  │                     │
//!                         │  │  └─ settle, silence    │ failed
//!                         │  └──── retry after a wait ┤
//!                         │                           └─ no retry left ──▶ concluded: given up
//!                         ├─ a newer one replaces it (`latest`) ─────────▶ concluded: superseded
//!                         └─ not in `on`, silenced, role unchanged ──────▶ concluded: filtered
//! ```
//!
//! The last concluded sequence number is the only part that is stored on disk. After a restart, a kill or a reload,
//! everything with a higher number is pending. The rules read no clock and no database: the notifier of the node
//! passes in the time, and stores the conclusions.

mod kind;

use std::collections::VecDeque;
use std::time::Duration;

pub use self::kind::{Conclusion, DeliveryMode, EventKind};
use crate::{Backoff, Jitter, Moment};

/// Maximum number of notifications of one instance that wait in memory for one target. Further ones are read from
/// the history when their turn comes, or dropped and counted where there is no history.
pub const MAX_QUEUED: usize = if cfg!(test) { 8 } else { 64 };

/// The wait after a hook was ended by a signal of another process, which does not count as a failure.
const WAIT_AFTER_INTERRUPTION: Duration = Duration::from_secs(1);

/// The rules of one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryPolicy {
    /// Whether a newer notification replaces older ones.
    pub deliver: DeliveryMode,
    /// How long a role must last before the target is notified; zero for no wait.
    pub settle: Duration,
    /// Number of attempts after the first failed one; `None` for no limit.
    pub retries: Option<u32>,
    /// The wait after the first failed attempt.
    pub first_wait: Duration,
    /// The longest wait between two attempts.
    pub max_wait: Duration,
    /// Whether notifications that do not fit into memory can be read again from the history.
    pub has_history: bool,
}

/// The last notification that is concluded, as it is stored on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concluded {
    /// Its sequence number. Notifications up to this number are not pending.
    pub seq: i64,
    /// How it was concluded.
    pub conclusion: Conclusion,
    /// The event that the target received last; `None` if it has received none, if the role has changed since to one
    /// that the target is not configured for, or if that is uncertain: a process that was killed may have delivered
    /// more than it has stored.
    pub delivered: Option<EventKind>,
}

/// One notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedEvent<N> {
    /// The sequence number of the transition or report.
    pub seq: i64,
    /// What happened.
    pub kind: EventKind,
    /// The content, which these rules do not read.
    pub content: N,
}

/// The result of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// The target has the notification.
    Delivered,
    /// The target does not have it, and another attempt may succeed.
    Failed,
    /// The target rejected it, and would reject it again.
    Rejected,
    /// The attempt was ended from outside, for example because the service is stopping. It does not count.
    Interrupted,
    /// The attempt could not be made, because a part of the program that it needs does not work. It does not count.
    Unavailable,
}

/// What follows from an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterAttempt {
    /// The notification is concluded.
    Concluded(Conclusion),
    /// The notification stays pending, and the next attempt is after this wait.
    RetryAfter(Duration),
}

/// The next step of the target's queue for one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryStep {
    /// Nothing is pending.
    Idle,
    /// Start an attempt now, with [`InstanceDelivery::begin`].
    Attempt,
    /// Ask again at this time.
    WaitUntil(Moment),
    /// Nothing until the running attempt ends.
    Running,
    /// Nothing until a silence ends.
    Silenced,
    /// A notification was concluded without an attempt: store it, and ask again.
    Concluded(Conclusion),
    /// Read these notifications from the history, and pass them to [`InstanceDelivery::add_backlog`].
    ReadBacklog(BacklogRange),
}

/// What adding a notification did to those that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Submitted {
    /// Number of waiting notifications that were replaced.
    pub superseded: u64,
    /// Number of waiting notifications that were dropped because the queue was full.
    pub dropped: u32,
    /// Whether [`InstanceDelivery::concluded`] has changed.
    pub is_concluded: bool,
}

/// The deliveries of one instance to one target.
#[derive(Debug, Clone)]
pub struct InstanceDelivery<N> {
    concluded: Option<Concluded>,
    /// Number of events that were lost before the next one: the target is notified of the number.
    missed: u32,
    /// `None` while nothing is pending. Boxed, because a node has thousands of instances, and few of them change.
    pending: Option<Box<Pending<N>>>,
}

#[derive(Debug, Clone)]
struct Pending<N> {
    /// Oldest first. The first one is being delivered if `is_running`.
    events: VecDeque<WaitingEvent<N>>,
    is_running: bool,
    /// The highest sequence number that was submitted, also of an event that was filtered.
    newest_seq: i64,
    /// Number of failed attempts of the first event.
    failures: u32,
    backoff: Backoff,
    /// The time of the next attempt after a failed one; `None` before the first attempt.
    retry_at: Option<Moment>,
    /// A silence held the first event of a target for the latest one back: it is sent only if it differs from the last
    /// delivered one.
    was_silenced: bool,
    /// Events that are in the history only; `None` if all pending events are in `events`.
    backlog: Option<BacklogRange>,
}

#[derive(Debug, Clone)]
struct WaitingEvent<N> {
    event: QueuedEvent<N>,
    /// The end of the settle time.
    settled_at: Moment,
    /// False for an event that the target does not select. It is concluded without an attempt once it has
    /// settled, and then the target does not have the current role.
    is_selected: bool,
}

/// Sequence numbers of events that are in the history and not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacklogRange {
    /// The last number before them.
    pub after: i64,
    /// The first number after them that is in memory; `i64::MAX` if none is.
    pub before: i64,
    /// Number of events in the range that were in memory before. Those that the history does not have are lost.
    pub moved: u32,
}

/// Events that were read from the history.
#[derive(Debug, Clone)]
pub struct BacklogPart<N> {
    /// The range that was read. Further notifications may have been submitted meanwhile.
    pub range: BacklogRange,
    /// The events that the target selects, oldest first.
    pub events: Vec<QueuedEvent<N>>,
    /// The highest sequence number that was read, also of an event that the target does not select.
    pub read_to: i64,
    /// Number of events that were read, also of those that the target does not select.
    pub rows: u32,
    /// Number of events that retention deleted before the target received them.
    pub missed: u32,
    /// Whether the range has no further events.
    pub is_complete: bool,
}

impl<N> InstanceDelivery<N> {
    /// An instance without pending notifications. `concluded` is the entry that the last run has stored, `missed` the number
    /// of notifications that the target did not receive and was not informed of yet.
    pub fn new(concluded: Option<Concluded>, missed: u32) -> Self {
        Self { concluded, missed, pending: None }
    }

    /// The last concluded notification; `None` if the target is new for this instance.
    pub fn concluded(&self) -> Option<Concluded> {
        self.concluded
    }

    /// Number of notifications in memory that are not concluded.
    pub fn pending(&self) -> usize {
        let events = self.pending.iter().flat_map(|pending| &pending.events);
        events.filter(|waiting| waiting.is_selected).count()
    }

    /// Whether nothing is pending.
    pub fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// Whether an attempt is running.
    pub fn is_running(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.is_running)
    }

    /// The oldest pending notification.
    pub fn first(&self) -> Option<&QueuedEvent<N>> {
        self.pending.as_ref()?.events.front().map(|first| &first.event)
    }

    /// Number of lost notifications that the next delivered one must mention.
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// Whether the notification `seq` is not concluded and not pending yet.
    pub fn is_new(&self, seq: i64) -> bool {
        let is_concluded = self.concluded.is_some_and(|concluded| concluded.seq >= seq);
        let newest = self.pending.as_ref().map_or(i64::MIN, |pending| pending.newest_seq);
        !is_concluded && newest < seq
    }

    /// As [`Self::submit`], for the first notification of a run or after a reload. A target for every event reads those
    /// that are missing before it from the history. `is_unchanged`: an earlier run had this notification, or the target
    /// was not configured when it happened.
    pub fn resume(
        &mut self,
        event: QueuedEvent<N>,
        is_selected: bool,
        is_unchanged: bool,
        now: Moment,
        policy: &DeliveryPolicy,
    ) -> Submitted {
        if policy.reads_history() && self.is_idle() {
            match self.concluded {
                // A new target for every event gets those from now on.
                None if is_unchanged => {
                    let is_concluded = self.conclude(event.seq, Conclusion::Filtered, None);
                    return Submitted { is_concluded, ..Submitted::default() };
                }
                Some(_) if self.is_new(event.seq) => self.expect_backlog(policy),
                _ => {}
            }
        }
        self.submit(event, is_selected, now, policy)
    }

    /// Adds a notification. `is_selected` is false if the target is not configured for this kind of event, or is one for
    /// every event and a silence covered it when it happened.
    pub fn submit(
        &mut self,
        event: QueuedEvent<N>,
        is_selected: bool,
        now: Moment,
        policy: &DeliveryPolicy,
    ) -> Submitted {
        let mut submitted = Submitted::default();
        if !self.is_new(event.seq) {
            return submitted;
        }
        let seq = event.seq;
        if self.concluded.is_none() && self.is_idle() && policy.reads_history() {
            // Without a stored number, the next run takes the target for a new one, and retention deletes the event.
            submitted.is_concluded = self.conclude(seq - 1, Conclusion::Filtered, None);
        }
        let pending = self.pending.get_or_insert_with(|| Box::new(Pending::new(policy)));
        pending.newest_seq = seq;
        if policy.deliver == DeliveryMode::Latest {
            submitted.superseded = pending.remove_waiting(policy);
        }
        let has_received = self.concluded.is_some_and(|concluded| concluded.delivered.is_some());
        let is_latest = policy.deliver == DeliveryMode::Latest;
        if is_selected || (is_latest && (has_received || pending.is_running)) {
            let waiting = WaitingEvent { event, settled_at: now + policy.settle, is_selected };
            submitted.dropped = pending.push(waiting, policy.has_history);
            self.missed = self.missed.saturating_add(submitted.dropped);
        } else if pending.is_empty() {
            self.pending = None;
            submitted.is_concluded = self.conclude(seq, Conclusion::Filtered, None);
        }
        submitted
    }

    /// Records that the history has notifications after the last concluded one which are not in memory. They come
    /// before the one that is submitted next.
    fn expect_backlog(&mut self, policy: &DeliveryPolicy) {
        let Some(concluded) = self.concluded.filter(|_| self.pending.is_none()) else { return };
        let mut pending = Pending::new(policy);
        pending.backlog = Some(BacklogRange { after: concluded.seq, before: i64::MAX, moved: 0 });
        pending.newest_seq = concluded.seq;
        self.pending = Some(Box::new(pending));
    }

    /// Adds notifications that were read from the history before those that are in memory. Returns whether
    /// [`Self::concluded`] has changed. A part of a range that does not exist any more is ignored, and
    /// [`Self::next_step`] asks for the current one.
    pub fn add_backlog(&mut self, part: BacklogPart<N>) -> bool {
        let Some(pending) = &mut self.pending else { return false };
        let Some(range) = pending.backlog else { return false };
        let is_unlimited = part.range.before == i64::MAX;
        // A range without an upper limit may have events that are in memory now.
        if part.range.after != range.after || (is_unlimited && range.before != i64::MAX) {
            return false;
        }
        // Retention has counted some of those that the history does not have.
        let counted = part.missed.saturating_sub(self.missed);
        let unread = part.range.moved.saturating_sub(part.rows).saturating_sub(counted);
        // Events that were moved into the range while it was read.
        let moved = range.moved.saturating_sub(part.range.moved);
        let is_extended = range.before != part.range.before;
        let (lost, moved) = if part.is_complete { (unread, moved) } else { (0, moved + unread) };
        self.missed = self.missed.max(part.missed).saturating_add(lost);
        let after = if part.is_complete && is_extended {
            // The range that was read ends before an event that was in memory.
            part.range.before - 1
        } else {
            part.read_to.max(range.after)
        };
        let is_complete = part.is_complete && !is_extended;
        pending.backlog = (!is_complete).then_some(BacklogRange { after, moved, ..range });
        for event in part.events.into_iter().rev() {
            let settled_at = Moment::new(Duration::ZERO);
            pending.events.push_front(WaitingEvent { event, settled_at, is_selected: true });
        }
        if !pending.is_empty() {
            return false;
        }
        let seq = pending.newest_seq.max(after);
        self.pending = None;
        self.conclude(seq, Conclusion::Filtered, None)
    }

    /// What to do next. `is_silenced`: a maintenance silence covers the instance now, so pending notifications wait. A
    /// target for every event does not select those that happened during the silence, and gets all others after it.
    pub fn next_step(
        &mut self,
        now: Moment,
        is_silenced: bool,
        policy: &DeliveryPolicy,
    ) -> DeliveryStep {
        let Some(pending) = &mut self.pending else { return DeliveryStep::Idle };
        if pending.is_running {
            return DeliveryStep::Running;
        }
        let first = pending.events.front();
        let is_before =
            |range: &BacklogRange| first.is_none_or(|first| first.event.seq >= range.before);
        if let Some(range) = pending.backlog.filter(is_before) {
            return DeliveryStep::ReadBacklog(range);
        }
        let Some(WaitingEvent { event, settled_at, is_selected }) = first else {
            self.pending = None;
            return DeliveryStep::Idle;
        };
        if is_silenced {
            pending.was_silenced |= policy.deliver == DeliveryMode::Latest;
            return DeliveryStep::Silenced;
        }
        let at = pending.retry_at.map_or(*settled_at, |retry_at| retry_at.max(*settled_at));
        if at > now {
            return DeliveryStep::WaitUntil(at);
        }
        // A finding that was opened and one that was closed are events of the same kind.
        let must_differ =
            (pending.was_silenced || !policy.settle.is_zero()) && event.kind != EventKind::Finding;
        let last = self.concluded.and_then(|concluded| concluded.delivered);
        if !is_selected || (must_differ && last == Some(event.kind)) {
            return DeliveryStep::Concluded(self.conclude_first(Conclusion::Filtered, policy));
        }
        DeliveryStep::Attempt
    }

    /// Begins an attempt to deliver the oldest notification.
    pub fn begin(&mut self) -> Option<&QueuedEvent<N>> {
        let pending = self.pending.as_mut()?;
        pending.is_running = true;
        pending.events.front().map(|first| &first.event)
    }

    /// Ends the running attempt.
    pub fn finish(
        &mut self,
        result: AttemptResult,
        now: Moment,
        policy: &DeliveryPolicy,
        jitter: &mut Jitter,
    ) -> Option<AfterAttempt> {
        let pending = self.pending.as_mut()?;
        pending.is_running = false;
        let seq = pending.events.front()?.event.seq;
        let is_replaced = policy.deliver == DeliveryMode::Latest && pending.newest_seq > seq;
        let has_retry = policy.retries.is_none_or(|retries| pending.failures < retries);
        let conclusion = match result {
            AttemptResult::Delivered => Some(Conclusion::Delivered),
            AttemptResult::Interrupted => None,
            _ if is_replaced => Some(Conclusion::Superseded),
            AttemptResult::Unavailable => None,
            AttemptResult::Failed if has_retry => None,
            AttemptResult::Failed | AttemptResult::Rejected => Some(Conclusion::GivenUp),
        };
        if let Some(conclusion) = conclusion {
            return Some(AfterAttempt::Concluded(self.conclude_first(conclusion, policy)));
        }
        let wait = match result {
            AttemptResult::Interrupted => WAIT_AFTER_INTERRUPTION,
            AttemptResult::Unavailable => pending.backoff.next_wait(jitter),
            AttemptResult::Delivered | AttemptResult::Failed | AttemptResult::Rejected => {
                pending.failures += 1;
                pending.backoff.next_wait(jitter)
            }
        };
        pending.retry_at = Some(now + wait);
        Some(AfterAttempt::RetryAfter(wait))
    }

    /// Removes the newest waiting events for which `is_withdrawn` is true, and returns them. An event with an attempt stays:
    /// the target may have received it.
    pub fn withdraw(&mut self, is_withdrawn: impl Fn(&N) -> bool) -> Vec<N> {
        let Some(pending) = &mut self.pending else { return Vec::new() };
        let attempted = usize::from(pending.is_running || pending.retry_at.is_some());
        let mut withdrawn = Vec::new();
        while pending.events.len() > attempted
            && let Some(last) = pending.events.pop_back_if(|last| is_withdrawn(&last.event.content))
        {
            withdrawn.push(last.event.content);
        }
        withdrawn
    }

    /// Lets the next attempt begin now, because the settings of the target have changed.
    pub fn retry_now(&mut self, policy: &DeliveryPolicy) {
        let Some(pending) = &mut self.pending else { return };
        pending.backoff = policy.backoff();
        pending.retry_at = None;
    }

    /// Concludes the oldest notification.
    fn conclude_first(&mut self, conclusion: Conclusion, policy: &DeliveryPolicy) -> Conclusion {
        let Some(pending) = &mut self.pending else { return conclusion };
        let Some(first) = pending.events.pop_front() else { return conclusion };
        if !first.is_selected
            && let Some(concluded) = &mut self.concluded
        {
            concluded.delivered = None;
        }
        if conclusion == Conclusion::Delivered {
            self.missed = 0;
        }
        pending.reset_attempts(policy);
        let mut seq = first.event.seq;
        if pending.is_empty() {
            // A filtered event that came later is concluded together with the last one.
            seq = seq.max(pending.newest_seq);
            self.pending = None;
        }
        self.conclude(seq, conclusion, Some(first.event.kind));
        conclusion
    }

    /// Sets the last concluded notification; false if a newer one is concluded already.
    fn conclude(&mut self, seq: i64, conclusion: Conclusion, kind: Option<EventKind>) -> bool {
        let before = self.concluded;
        if before.is_some_and(|before| before.seq >= seq) {
            return false;
        }
        let delivered = match conclusion {
            Conclusion::Delivered => kind,
            Conclusion::GivenUp | Conclusion::Superseded | Conclusion::Filtered => {
                before.and_then(|before| before.delivered)
            }
        };
        self.concluded = Some(Concluded { seq, conclusion, delivered });
        true
    }
}

impl<N> Pending<N> {
    fn new(policy: &DeliveryPolicy) -> Self {
        Self {
            events: VecDeque::new(),
            is_running: false,
            newest_seq: i64::MIN,
            failures: 0,
            backoff: policy.backoff(),
            retry_at: None,
            was_silenced: false,
            backlog: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.backlog.is_none()
    }

    /// Removes the events that are not being delivered, and returns their number.
    fn remove_waiting(&mut self, policy: &DeliveryPolicy) -> u64 {
        let kept = usize::from(self.is_running);
        let removed = self.events.len().saturating_sub(kept);
        self.events.truncate(kept);
        // The backlog of a target that was configured for every event before.
        self.backlog = None;
        if !self.is_running && removed > 0 {
            let was_silenced = self.was_silenced;
            self.reset_attempts(policy);
            self.was_silenced = was_silenced;
        }
        removed as u64
    }

    /// Adds an event; returns the number of events that were dropped to make room for it.
    fn push(&mut self, waiting: WaitingEvent<N>, has_history: bool) -> u32 {
        let mut dropped = 0;
        let is_full = self.events.len() >= MAX_QUEUED;
        if let Some(range) = &mut self.backlog {
            // The last event is in the history too, and the new one comes after it.
            let moved = self.events.pop_back_if(|last| last.event.seq >= range.before);
            range.moved += u32::from(moved.is_some());
        } else if is_full && has_history {
            self.events.pop_back();
            let after = self.events.back().map_or(i64::MIN, |last| last.event.seq);
            self.backlog = Some(BacklogRange { after, before: i64::MAX, moved: 1 });
        } else if is_full {
            self.events.remove(usize::from(self.is_running));
            dropped = 1;
        }
        if let Some(range) = &mut self.backlog {
            range.before = waiting.event.seq;
        }
        self.events.push_back(waiting);
        dropped
    }

    /// The next event begins with its first attempt.
    fn reset_attempts(&mut self, policy: &DeliveryPolicy) {
        self.failures = 0;
        self.backoff = policy.backoff();
        self.retry_at = None;
        self.was_silenced = false;
    }
}

impl DeliveryPolicy {
    /// Whether the target gets every event, also those that are in the history only.
    fn reads_history(&self) -> bool {
        self.deliver == DeliveryMode::Every && self.has_history
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(self.first_wait, self.max_wait)
    }
}

#[cfg(test)]
mod tests;
