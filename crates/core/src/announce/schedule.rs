//! Which address is due when.

use std::time::Duration;

use super::{Allowance, AnnouncePlan, Target};
use crate::Moment;

/// How long to wait when the rate limit is reached: long enough to let a batch gather.
const THROTTLE: Duration = Duration::from_millis(10);

/// How long to wait before a round that failed is tried again, and how often.
const RETRY: Duration = Duration::from_secs(1);
const FAILURES: u8 = 3;

/// One address under way.
#[derive(Debug, Clone, Copy)]
struct Item {
    target: Target,
    /// Rounds that have gone out.
    rounds: u16,
    /// How often the round under way has failed.
    failures: u8,
    /// When the next one is due; `None` while it is in the caller's hand, or waits for its
    /// link.
    next: Option<Moment>,
}

/// The times of all addresses that are being announced.
#[derive(Debug)]
pub struct Schedule {
    plan: AnnouncePlan,
    allowance: Allowance,
    /// Sorted by target.
    items: Vec<Item>,
    throttled_until: Option<Moment>,
}

impl Schedule {
    /// A schedule of nothing.
    pub fn new(plan: AnnouncePlan) -> Self {
        let allowance = Allowance::new(plan.rate);
        Self { plan, allowance, items: Vec::new(), throttled_until: None }
    }

    /// Begins with `target`, from its first round; one that is under way begins again.
    pub fn start(&mut self, target: Target, now: Moment) {
        let item = Item { target, rounds: 0, failures: 0, next: Some(now) };
        match self.find(target) {
            Ok(at) => self.items[at] = item,
            Err(at) => self.items.insert(at, item),
        }
    }

    /// Forgets `target`.
    pub fn cancel(&mut self, target: Target) {
        if let Ok(at) = self.find(target) {
            self.items.remove(at);
        }
    }

    /// Forgets all that is not in `kept`.
    pub fn retain(&mut self, kept: impl Fn(Target) -> bool) {
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

    /// What is due and allowed, longest overdue first. Each waits, until it is said to have
    /// been [sent](Self::sent), or [woken](Self::wake), or cancelled.
    pub fn take_due(&mut self, now: Moment) -> Vec<Target> {
        if self.throttled_until.is_some_and(|until| until > now) {
            return Vec::new();
        }
        self.throttled_until = None;
        let is_due = |item: &Item| item.next.filter(|next| *next <= now);
        let mut due: Vec<(Moment, usize)> = (0..)
            .zip(&self.items)
            .filter_map(|(at, item)| is_due(item).map(|next| (next, at)))
            .collect();
        due.sort_unstable();
        let mut taken = Vec::new();
        for (_, at) in due {
            if !self.allowance.take(now) {
                self.throttled_until = Some(now + THROTTLE);
                break;
            }
            self.items[at].next = None;
            taken.push(self.items[at].target);
        }
        taken
    }

    /// A round of `target` has gone out; tells which.
    pub fn sent(&mut self, target: Target, now: Moment) -> u16 {
        let Ok(at) = self.find(target) else { return 0 };
        let item = &mut self.items[at];
        item.rounds = item.rounds.saturating_add(1);
        item.failures = 0;
        let rounds = item.rounds;
        match self.plan.wait_after(rounds) {
            Some(wait) => item.next = Some(now + wait),
            None => {
                self.items.remove(at);
            }
        }
        rounds
    }

    /// A round of `target` was not taken; it is due again soon. After a few times it counts as
    /// sent: what the kernel does not take for so long, it will not take at all.
    pub fn failed(&mut self, target: Target, now: Moment) {
        let Ok(at) = self.find(target) else { return };
        let item = &mut self.items[at];
        item.failures += 1;
        if item.failures > FAILURES {
            self.sent(target, now);
        } else {
            item.next = Some(now + RETRY);
        }
    }

    /// Something about the links changed: whoever waits may try.
    pub fn wake(&mut self, now: Moment) {
        for item in &mut self.items {
            item.next.get_or_insert(now);
        }
    }

    /// Something about `target` changed: if it waits, it may try.
    pub fn wake_target(&mut self, target: Target, now: Moment) {
        if let Ok(at) = self.find(target) {
            self.items[at].next.get_or_insert(now);
        }
    }

    fn find(&self, target: Target) -> Result<usize, usize> {
        self.items.binary_search_by_key(&target, |item| item.target)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::LinkIndex;
    use crate::announce::Rate;

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    fn target(n: u32) -> Target {
        Target { link: LinkIndex(7), ip: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)) }
    }

    /// Sends whatever is due until `end`; when, and what.
    fn play(schedule: &mut Schedule, end: u64) -> Vec<(u64, Target)> {
        let mut sent = Vec::new();
        while let Some(due) = schedule.due().filter(|due| *due <= at(end)) {
            for target in schedule.take_due(due) {
                schedule.sent(target, due);
                let millis = u64::try_from(due.since(at(0)).as_millis()).unwrap();
                sent.push((millis, target));
            }
        }
        sent
    }

    fn times(sent: &[(u64, Target)]) -> Vec<u64> {
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
    fn whoever_waits_for_a_link_keeps_its_round_and_goes_on_when_woken() {
        let mut schedule = Schedule::new(AnnouncePlan::LEGACY);
        schedule.start(target(1), at(0));
        assert_eq!(schedule.take_due(at(0)), [target(1)]);
        assert_eq!(schedule.due(), None, "it waits for as long as it takes");
        schedule.wake(at(900));
        assert_eq!(times(&play(&mut schedule, 60_000)), [900, 2900, 4900]);
    }

    #[test]
    fn a_round_that_fails_is_tried_again_but_not_for_ever() {
        let plan = AnnouncePlan { count: 1, second_burst: None, ..AnnouncePlan::PRIMARY };
        let mut schedule = Schedule::new(plan);
        schedule.start(target(1), at(0));
        let mut tried = Vec::new();
        while let Some(due) = schedule.due() {
            assert_eq!(schedule.take_due(due), [target(1)]);
            schedule.failed(target(1), due);
            tried.push(due);
        }
        assert_eq!(tried, [at(0), at(1000), at(2000), at(3000)]);
    }

    #[test]
    fn first_rounds_of_the_late_come_before_second_rounds_of_the_early() {
        let rate = Rate { per_second: 10, burst: 1 };
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
