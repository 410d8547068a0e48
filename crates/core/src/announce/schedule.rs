// SPDX-License-Identifier: Apache-2.0
//! When each address is announced next.
//!
//! The schedule sends nothing. The caller takes the due addresses and reports for each whether its round
//! was sent, failed, or must wait.

use std::time::Duration;

use super::AnnouncePlan;
use crate::{LinkAddress, LinkIndex, Moment, RateLimiter};

/// Minimum wait after the rate limit was reached, so that several announcements become due together.
const MIN_THROTTLE_WAIT: Duration = Duration::from_millis(10);
/// Wait before a failed round is tried again.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// Number of retries of one round before it is given up.
const MAX_RETRIES: u8 = 3;

/// One address that is being announced.
#[derive(Debug, Clone, Copy)]
struct Item {
    target: LinkAddress,
    /// Number of rounds that have ended, sent or given up.
    rounds: u16,
    /// Number of rounds that were sent.
    sent: u16,
    /// Number of failed attempts of the current round.
    failures: u8,
    /// When the current round is due; `None` while the caller has taken it, or while it waits for its
    /// link.
    next: Option<Moment>,
}

/// An address that is due for a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueAnnouncement {
    /// When the round became due.
    pub since: Moment,
    /// The address to announce.
    pub target: LinkAddress,
}

/// A round that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceRound {
    /// The number of the round in the plan; 1 is the first, 0 means that the address was cancelled.
    pub number: u16,
    /// Whether no earlier round of the address was sent.
    pub is_first: bool,
}

/// The announcement times of all addresses.
#[derive(Debug)]
pub struct Schedule {
    plan: AnnouncePlan,
    limiter: RateLimiter,
    /// Sorted by target.
    items: Vec<Item>,
    /// The end of the wait that the rate limit requires; `None` below the limit.
    throttled_until: Option<Moment>,
    /// Whether addresses are refreshed after their bursts.
    is_refreshing: bool,
}

impl Schedule {
    /// A schedule without addresses.
    pub fn new(plan: AnnouncePlan) -> Self {
        let limiter = RateLimiter::new(plan.rate);
        Self { plan, limiter, items: Vec::new(), throttled_until: None, is_refreshing: true }
    }

    /// Schedules `target` from its first round; an address that is already scheduled starts again.
    pub fn start(&mut self, target: LinkAddress, now: Moment) {
        let item = Item { target, rounds: 0, sent: 0, failures: 0, next: Some(now) };
        match self.find(target) {
            Ok(at) => self.items[at] = item,
            Err(at) => self.items.insert(at, item),
        }
    }

    /// Switches refreshes on or off.
    pub fn set_refreshing(&mut self, is_refreshing: bool) {
        self.is_refreshing = is_refreshing;
    }

    /// Removes `target`.
    pub fn cancel(&mut self, target: LinkAddress) {
        if let Ok(at) = self.find(target) {
            self.items.remove(at);
        }
    }

    /// Removes every address for which `is_kept` returns false.
    pub fn retain(&mut self, is_kept: impl Fn(LinkAddress) -> bool) {
        self.items.retain(|item| is_kept(item.target));
    }

    /// Removes all addresses and ends the wait for the rate limit.
    pub fn clear(&mut self) {
        self.items.clear();
        self.throttled_until = None;
    }

    /// Whether no address is scheduled.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// When to call [`Self::take_due`]; `None` if no address is due.
    pub fn due(&self) -> Option<Moment> {
        let next = self.items.iter().filter_map(|item| item.next).min()?;
        Some(self.throttled_until.map_or(next, |until| until.max(next)))
    }

    /// Takes the due addresses, the longest overdue first. An address that was taken is not due again until
    /// the caller reports it as [sent](Self::sent) or [failed](Self::failed), [puts it
    /// back](Self::put_back) or [wakes](Self::wake) it.
    pub fn take_due(&mut self, now: Moment) -> Vec<DueAnnouncement> {
        if self.throttled_until.is_some_and(|until| until > now) {
            return Vec::new();
        }
        self.throttled_until = None;
        let mut taken = Vec::new();
        for item in &mut self.items {
            if let Some(since) = item.next.take_if(|next| *next <= now) {
                taken.push(DueAnnouncement { since, target: item.target });
            }
        }
        taken.sort_unstable();
        taken
    }

    /// Whether the rate limit allows one more announcement now. If it does not, no address is due for at
    /// least 10 ms.
    pub fn allow(&mut self, now: Moment) -> bool {
        let is_allowed = self.limiter.take(now);
        if !is_allowed {
            self.throttled_until = Some(now + self.plan.rate.interval().max(MIN_THROTTLE_WAIT));
        }
        is_allowed
    }

    /// Returns an address that was taken and not sent: it is due as before.
    pub fn put_back(&mut self, due: DueAnnouncement) {
        if let Ok(at) = self.find(due.target) {
            self.items[at].next = Some(due.since);
        }
    }

    /// Records that a round of `target` was sent.
    pub fn sent(&mut self, target: LinkAddress, now: Moment) -> AnnounceRound {
        let Ok(at) = self.find(target) else {
            return AnnounceRound { number: 0, is_first: false };
        };
        let item = &mut self.items[at];
        item.sent = item.sent.saturating_add(1);
        let round =
            AnnounceRound { number: item.rounds.saturating_add(1), is_first: item.sent == 1 };
        self.end_round(at, now);
        round
    }

    /// Records that a round of `target` could not be sent. Returns true if the round is given up and the next
    /// round of the plan follows; otherwise the round is retried.
    pub fn failed(&mut self, target: LinkAddress, now: Moment) -> bool {
        let Ok(at) = self.find(target) else { return true };
        let item = &mut self.items[at];
        item.failures += 1;
        if item.failures <= MAX_RETRIES {
            item.next = Some(now + RETRY_WAIT);
            return false;
        }
        self.end_round(at, now);
        true
    }

    fn end_round(&mut self, at: usize, now: Moment) {
        let item = &mut self.items[at];
        item.failures = 0;
        item.rounds = item.rounds.saturating_add(1);
        match self.plan.wait_after(item.rounds, self.is_refreshing) {
            Some(wait) => item.next = Some(now + wait),
            None => {
                self.items.remove(at);
            }
        }
    }

    /// Makes all waiting addresses due at `at`.
    pub fn wake(&mut self, at: Moment) {
        for item in &mut self.items {
            item.next.get_or_insert(at);
        }
    }

    /// Makes the waiting addresses of `link` due: the link has changed.
    pub fn wake_link(&mut self, link: LinkIndex, now: Moment) {
        for item in self.items.iter_mut().filter(|item| item.target.link == link) {
            item.next.get_or_insert(now);
        }
    }

    /// Makes `target` due if it waits: the address has changed.
    pub fn wake_target(&mut self, target: LinkAddress, now: Moment) {
        if let Ok(at) = self.find(target) {
            self.items[at].next.get_or_insert(now);
        }
    }

    fn find(&self, target: LinkAddress) -> Result<usize, usize> {
        self.items.binary_search_by_key(&target, |item| item.target)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::RateLimit;

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    fn target(n: u32) -> LinkAddress {
        LinkAddress { link: LinkIndex(7), ip: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)) }
    }

    /// Sends every due address until `end` (ms); returns the time in ms and the address of each.
    fn send_until(schedule: &mut Schedule, end: u64) -> Vec<(u64, LinkAddress)> {
        let mut sent = Vec::new();
        while let Some(due) = schedule.due().filter(|due| *due <= at(end)) {
            for taken in schedule.take_due(due) {
                if !schedule.allow(due) {
                    schedule.put_back(taken);
                    continue;
                }
                schedule.sent(taken.target, due);
                let millis = u64::try_from(due.since(at(0)).as_millis()).unwrap();
                sent.push((millis, taken.target));
            }
        }
        sent
    }

    fn times(sent: &[(u64, LinkAddress)]) -> Vec<u64> {
        sent.iter().map(|(time, _)| *time).collect()
    }

    #[test]
    fn the_first_round_is_sent_at_once_and_the_others_after_the_lock_time() {
        let mut schedule = Schedule::new(AnnouncePlan::PRIMARY);
        schedule.start(target(1), at(0));
        let sent = send_until(&mut schedule, 60_000);
        assert_eq!(times(&sent), [0, 1100, 2200, 12_200, 13_300, 14_400]);
        assert!(schedule.is_empty() && schedule.due().is_none());
    }

    #[test]
    fn neutrons_three_rounds_are_two_seconds_apart() {
        let mut schedule = Schedule::new(AnnouncePlan::LEGACY);
        schedule.start(target(1), at(5));
        assert_eq!(times(&send_until(&mut schedule, 60_000)), [5, 2005, 4005]);
    }

    #[test]
    fn refreshes_continue_until_the_address_is_cancelled() {
        let refresh = Some(Duration::from_secs(5));
        let plan = AnnouncePlan { count: 1, second_burst: None, refresh, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        schedule.start(target(1), at(0));
        assert_eq!(times(&send_until(&mut schedule, 12_000)), [0, 5000, 10_000]);
        schedule.cancel(target(1));
        assert!(send_until(&mut schedule, 100_000).is_empty());
    }

    #[test]
    fn no_address_is_refreshed_while_refreshes_are_off() {
        let refresh = Some(Duration::from_secs(5));
        let plan = AnnouncePlan { count: 1, second_burst: None, refresh, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        schedule.set_refreshing(false);
        schedule.start(target(1), at(0));
        assert_eq!(times(&send_until(&mut schedule, 100_000)), [0]);
    }

    #[test]
    fn the_first_round_that_is_sent_is_marked() {
        let mut schedule = Schedule::new(AnnouncePlan::LEGACY);
        schedule.start(target(1), at(0));
        for time in [0, 1000, 2000, 3000] {
            schedule.take_due(at(time));
            schedule.failed(target(1), at(time));
        }
        assert_eq!(schedule.sent(target(1), at(5000)), AnnounceRound { number: 2, is_first: true });
        assert_eq!(
            schedule.sent(target(1), at(7000)),
            AnnounceRound { number: 3, is_first: false }
        );
    }

    #[test]
    fn an_address_that_waits_for_its_link_continues_with_its_round() {
        let mut schedule = Schedule::new(AnnouncePlan::LEGACY);
        schedule.start(target(1), at(0));
        assert_eq!(schedule.take_due(at(0)), [DueAnnouncement { since: at(0), target: target(1) }]);
        assert_eq!(schedule.due(), None, "the address waits without a time limit");
        schedule.wake_link(LinkIndex(8), at(500));
        assert_eq!(schedule.due(), None, "a change of another link has no effect");
        schedule.wake_link(LinkIndex(7), at(900));
        assert_eq!(times(&send_until(&mut schedule, 60_000)), [900, 2900, 4900]);
    }

    #[test]
    fn a_failed_round_is_retried_three_times() {
        let plan = AnnouncePlan { count: 1, second_burst: None, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        schedule.start(target(1), at(0));
        let mut tried = Vec::new();
        while let Some(due) = schedule.due() {
            assert_eq!(schedule.take_due(due).len(), 1);
            tried.push((due, schedule.failed(target(1), due)));
        }
        let expected = [(0, false), (1000, false), (2000, false), (3000, true)];
        assert_eq!(tried, expected.map(|(time, is_given_up)| (at(time), is_given_up)));
    }

    #[test]
    fn at_the_rate_limit_all_first_rounds_precede_the_second_rounds() {
        let rate = RateLimit { per_second: 10, burst: 1 };
        let gap = Duration::from_millis(150);
        let plan =
            AnnouncePlan { count: 2, gap, second_burst: None, rate, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        for n in 0..4 {
            schedule.start(target(n), at(0));
        }
        let sent = send_until(&mut schedule, 60_000);
        let first: Vec<_> = sent[..4].iter().map(|(_, target)| *target).collect();
        assert_eq!(first, [target(0), target(1), target(2), target(3)]);
        assert_eq!(sent.len(), 8, "every round is sent");
        assert!(sent.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 100), "{sent:?}");
    }
}
