//! Which address is due when.

use std::time::Duration;

use super::AnnouncePlan;
use crate::{LinkAddress, RateLimiter};
use crate::{LinkIndex, Moment};

/// How long to wait when the rate limit is reached: long enough to let a batch gather.
const THROTTLE: Duration = Duration::from_millis(10);
/// How long to wait before a round that failed is tried again, and how often.
const RETRY: Duration = Duration::from_secs(1);
const FAILURES: u8 = 3;

/// One address under way.
#[derive(Debug, Clone, Copy)]
struct Item {
    target: LinkAddress,
    /// Rounds that are over, and how many of them went out.
    rounds: u16,
    sent: u16,
    /// How often the round under way has failed.
    failures: u8,
    /// When the next one is due; `None` while it is in the caller's hand, or waits for its
    /// link.
    next: Option<Moment>,
}

/// An address whose round is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueAnnouncement {
    /// Since when.
    pub since: Moment,
    /// Which.
    pub target: LinkAddress,
}

/// A round that went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceRound {
    /// Its number in the plan; 1 is the first.
    pub number: u16,
    /// None went out before it.
    pub is_first: bool,
}

/// The times of all addresses that are being announced.
#[derive(Debug)]
pub struct Schedule {
    plan: AnnouncePlan,
    allowance: RateLimiter,
    /// Sorted by target.
    items: Vec<Item>,
    throttled_until: Option<Moment>,
    /// Whether addresses are refreshed when their bursts are over.
    is_refreshing: bool,
}

impl Schedule {
    /// A schedule of nothing.
    pub fn new(plan: AnnouncePlan) -> Self {
        let allowance = RateLimiter::new(plan.rate);
        Self { plan, allowance, items: Vec::new(), throttled_until: None, is_refreshing: true }
    }

    /// Begins with `target`, from its first round; one that is under way begins again.
    pub fn start(&mut self, target: LinkAddress, now: Moment) {
        let item = Item { target, rounds: 0, sent: 0, failures: 0, next: Some(now) };
        match self.find(target) {
            Ok(at) => self.items[at] = item,
            Err(at) => self.items.insert(at, item),
        }
    }

    /// Whether refreshes are wanted from now on.
    pub fn set_refreshing(&mut self, is_refreshing: bool) {
        self.is_refreshing = is_refreshing;
    }

    /// Forgets `target`.
    pub fn cancel(&mut self, target: LinkAddress) {
        if let Ok(at) = self.find(target) {
            self.items.remove(at);
        }
    }

    /// Forgets all that is not in `kept`.
    pub fn retain(&mut self, kept: impl Fn(LinkAddress) -> bool) {
        self.items.retain(|item| kept(item.target));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.items.clear();
        self.throttled_until = None;
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// When [`Self::take_due`] has something to give.
    pub fn due(&self) -> Option<Moment> {
        let next = self.items.iter().filter_map(|item| item.next).min()?;
        Some(self.throttled_until.map_or(next, |until| until.max(next)))
    }

    /// What is due, longest overdue first. Each waits, until it is said to have been
    /// [sent](Self::sent), [put back](Self::put_back), [woken](Self::wake) or cancelled.
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

    /// Whether one more announcement may be made now; if not, nothing is due for a while.
    pub fn allow(&mut self, now: Moment) -> bool {
        let is_allowed = self.allowance.take(now);
        if !is_allowed {
            self.throttled_until = Some(now + self.plan.rate.interval().max(THROTTLE));
        }
        is_allowed
    }

    /// What was taken was not touched: it is as due as before.
    pub fn put_back(&mut self, due: DueAnnouncement) {
        if let Ok(at) = self.find(due.target) {
            self.items[at].next = Some(due.since);
        }
    }

    /// A round of `target` has gone out.
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

    /// A round of `target` was not taken; it is due again soon. After a few times it is given
    /// up, and the next one has its turn; true then.
    pub fn failed(&mut self, target: LinkAddress, now: Moment) -> bool {
        let Ok(at) = self.find(target) else { return true };
        let item = &mut self.items[at];
        item.failures += 1;
        if item.failures <= FAILURES {
            item.next = Some(now + RETRY);
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

    /// Whoever waits may try at `then`.
    pub fn wake(&mut self, then: Moment) {
        for item in &mut self.items {
            item.next.get_or_insert(then);
        }
    }

    /// Something about `link` changed: whoever waits for it may try.
    pub fn wake_link(&mut self, link: LinkIndex, now: Moment) {
        for item in self.items.iter_mut().filter(|item| item.target.link == link) {
            item.next.get_or_insert(now);
        }
    }

    /// Something about `target` changed: if it waits, it may try.
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

    /// Sends whatever is due until `end`; when, and what.
    fn play(schedule: &mut Schedule, end: u64) -> Vec<(u64, LinkAddress)> {
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
    fn the_first_round_comes_at_once_and_the_rest_above_the_lock_time() {
        let mut schedule = Schedule::new(AnnouncePlan::PRIMARY);
        schedule.start(target(1), at(0));
        let sent = play(&mut schedule, 60_000);
        assert_eq!(times(&sent), [0, 1100, 2200, 12_200, 13_300, 14_400]);
        assert!(schedule.is_empty() && schedule.due().is_none());
    }

    #[test]
    fn neutrons_three_rounds_are_two_seconds_apart() {
        let mut schedule = Schedule::new(AnnouncePlan::LEGACY);
        schedule.start(target(1), at(5));
        assert_eq!(times(&play(&mut schedule, 60_000)), [5, 2005, 4005]);
    }

    #[test]
    fn a_refresh_goes_on_until_it_is_cancelled() {
        let refresh = Some(Duration::from_secs(5));
        let plan = AnnouncePlan { count: 1, second_burst: None, refresh, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        schedule.start(target(1), at(0));
        assert_eq!(times(&play(&mut schedule, 12_000)), [0, 5000, 10_000]);
        schedule.cancel(target(1));
        assert!(play(&mut schedule, 100_000).is_empty());
    }

    #[test]
    fn nothing_is_refreshed_while_that_is_not_wanted() {
        let refresh = Some(Duration::from_secs(5));
        let plan = AnnouncePlan { count: 1, second_burst: None, refresh, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        schedule.set_refreshing(false);
        schedule.start(target(1), at(0));
        assert_eq!(times(&play(&mut schedule, 100_000)), [0]);
    }

    #[test]
    fn the_first_that_goes_out_is_told_apart() {
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
    fn whoever_waits_for_a_link_keeps_its_round_and_goes_on_when_woken() {
        let mut schedule = Schedule::new(AnnouncePlan::LEGACY);
        schedule.start(target(1), at(0));
        assert_eq!(schedule.take_due(at(0)), [DueAnnouncement { since: at(0), target: target(1) }]);
        assert_eq!(schedule.due(), None, "it waits for as long as it takes");
        schedule.wake_link(LinkIndex(8), at(500));
        assert_eq!(schedule.due(), None, "another link is none of its business");
        schedule.wake_link(LinkIndex(7), at(900));
        assert_eq!(times(&play(&mut schedule, 60_000)), [900, 2900, 4900]);
    }

    #[test]
    fn a_round_that_fails_is_tried_again_but_not_for_ever() {
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
    fn first_rounds_of_the_late_come_before_second_rounds_of_the_early() {
        let rate = RateLimit { per_second: 10, burst: 1 };
        let gap = Duration::from_millis(150);
        let plan =
            AnnouncePlan { count: 2, gap, second_burst: None, rate, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        for n in 0..4 {
            schedule.start(target(n), at(0));
        }
        let sent = play(&mut schedule, 60_000);
        let first: Vec<_> = sent[..4].iter().map(|(_, target)| *target).collect();
        assert_eq!(first, [target(0), target(1), target(2), target(3)]);
        assert_eq!(sent.len(), 8, "nothing is left out");
        assert!(sent.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 100), "{sent:?}");
    }
}
