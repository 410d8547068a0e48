// SPDX-License-Identifier: Apache-2.0
//! Decides which instances the audit examines when: some seconds after each change, and all of them
//! periodically. The caller passes in the time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use vipwatch_core::InstanceId;

use super::GRACE;

/// Time between two steps of the periodic audit. Each step examines a share of the instances.
pub(super) const STEP: Duration = Duration::from_secs(10);

/// The longest time between a change of processes and the examination of their instance.
const MAX_PROCESS_GRACE: Duration = Duration::from_secs(15);

/// An instance with findings is examined again after this time, so that its findings disappear soon after
/// their cause.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of instances with findings that one step examines again. The others follow in the next steps.
const MAX_RECHECKS: usize = 100;

/// While many instances change, audits follow each other closely. The pause after a comparison of the findings is this many
/// times as long as the comparison took, so that comparisons use at most a twentieth of a processor.
const PAUSE_FACTOR: u32 = 20;

/// The longest pause after a comparison.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The shortest pause before findings that were too young are compared again.
const YOUNG_PAUSE: Duration = Duration::from_millis(30);

/// When the findings are compared with those that clients know. A request that comes too soon after a comparison is kept.
#[derive(Debug, Default)]
pub(super) struct ComparisonSchedule {
    is_requested: bool,
    /// `None` before the first comparison.
    earliest: Option<Instant>,
    /// When findings that were too young are compared again. A request does not wait for that.
    young_at: Option<Instant>,
}

impl ComparisonSchedule {
    /// The findings may have changed.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    /// When the next comparison may be made, if the thread must wait for that; `None` if none is wanted.
    pub(super) fn next(&self) -> Option<Instant> {
        self.earliest.filter(|_| self.is_requested).into_iter().chain(self.young_at).min()
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_requested && self.earliest.is_none_or(|earliest| earliest <= now)
            || self.young_at.is_some_and(|at| at <= now)
    }

    /// A comparison has ended after this time. `has_young`: some findings were too young, and must be compared again.
    pub(super) fn completed(&mut self, now: Instant, took: Duration, has_young: bool) {
        let pause = took.saturating_mul(PAUSE_FACTOR).min(MAX_PAUSE);
        let young_at = has_young.then(|| now + pause.max(YOUNG_PAUSE));
        *self = Self { is_requested: false, earliest: Some(now + pause), young_at };
    }
}

/// The instances that are examined individually, because they have changed.
#[derive(Debug, Default)]
pub(super) struct DueInstances {
    by_id: BTreeMap<InstanceId, DueTime>,
}

#[derive(Debug)]
struct DueTime {
    at: Instant,
    /// When the first of the changes that are not examined yet happened.
    first_change: Instant,
    /// The instance is examined now, and again at `at` if that is later.
    is_at_once: bool,
}

impl DueInstances {
    /// Has an instance examined [`GRACE`] after its change.
    pub(super) fn add_changed(&mut self, id: &InstanceId, now: Instant) {
        self.add(id, now).at = now + GRACE;
    }

    /// Has an instance examined [`GRACE`] after the last change of its processes, but not later than [`MAX_PROCESS_GRACE`]
    /// after the first one: a process that starts again and again changes all the time.
    pub(super) fn add_processes_changed(&mut self, id: &InstanceId, now: Instant) {
        let due = self.add(id, now);
        due.at = (now + GRACE).min(due.first_change + MAX_PROCESS_GRACE);
    }

    /// Has an instance examined again after [`GRACE`], unless it is due earlier.
    pub(super) fn add_confirmation(&mut self, id: &InstanceId, now: Instant) {
        self.add(id, now);
    }

    fn add(&mut self, id: &InstanceId, now: Instant) -> &mut DueTime {
        let new = DueTime { at: now + GRACE, first_change: now, is_at_once: false };
        self.by_id.entry(id.clone()).or_insert(new)
    }

    /// Has an instance examined at once.
    pub(super) fn add_now(&mut self, id: &InstanceId, now: Instant) {
        let new = DueTime { at: now, first_change: now, is_at_once: true };
        self.by_id.entry(id.clone()).or_insert(new).is_at_once = true;
    }

    /// When the next instance is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_id.values().map(|due| if due.is_at_once { due.first_change } else { due.at }).min()
    }

    /// Removes and returns the instances that are due.
    pub(super) fn take(&mut self, now: Instant) -> BTreeSet<InstanceId> {
        let is_due = |(_, due): &(&InstanceId, &DueTime)| due.is_at_once || due.at <= now;
        let due = self.by_id.iter().filter(is_due).map(|(id, _)| id.clone()).collect();
        self.by_id.retain(|_, due| {
            due.is_at_once = false;
            due.at > now
        });
        due
    }
}

/// The periodic audit: goes through all instances in the order of their ids, again and again.
#[derive(Debug)]
pub(super) struct PeriodicAudit {
    pub(super) next_step: Instant,
    /// The last examined instance; `None` at the beginning of a round.
    position: Option<InstanceId>,
}

impl PeriodicAudit {
    pub(super) fn new(now: Instant) -> Self {
        Self { next_step: now + STEP, position: None }
    }

    /// The next share of `instances`, if a step is due; all are examined within `interval`.
    pub(super) fn take<T>(
        &mut self,
        instances: &BTreeMap<InstanceId, T>,
        interval: Duration,
        now: Instant,
    ) -> Vec<InstanceId> {
        if now < self.next_step {
            return Vec::new();
        }
        self.next_step = now + STEP;
        let count = share(instances.len(), interval);
        let start = self.position.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let ids = instances.range((start, Bound::Unbounded)).map(|(id, _)| id.clone());
        let ids: Vec<InstanceId> = ids.take(count).collect();
        // After the last instance, the next step begins a new round.
        self.position =
            ids.last().filter(|last| instances.keys().next_back() != Some(last)).cloned();
        ids
    }
}

/// The instances with findings that must be examined again: those that were examined the longest time ago first.
/// `examined` lists every instance with findings, and when it was examined last.
pub(super) fn rechecks(
    examined: impl IntoIterator<Item = (Instant, InstanceId)>,
    now: Instant,
) -> Vec<InstanceId> {
    let is_due = |(at, _): &(Instant, InstanceId)| *at + RECHECK_INTERVAL <= now;
    let mut due: Vec<(Instant, InstanceId)> = examined.into_iter().filter(is_due).collect();
    due.sort_unstable();
    due.into_iter().take(MAX_RECHECKS).map(|(_, id)| id).collect()
}

/// How many of `all` instances each step examines, so that all are examined within `interval`.
fn share(all: usize, interval: Duration) -> usize {
    let steps = interval.as_secs() / STEP.as_secs();
    all.div_ceil(usize::try_from(steps).unwrap_or(usize::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> InstanceId {
        format!("r{number}").parse().unwrap()
    }

    #[test]
    fn the_periodic_audit_examines_all_instances_and_begins_again() {
        let instances: BTreeMap<InstanceId, usize> =
            (0..5).map(|number| (id(number), number)).collect();
        let now = Instant::now();
        let mut audit = PeriodicAudit::new(now);
        // 5 instances within 25 s: 3 and 2 in two steps of 10 s.
        let interval = Duration::from_secs(25);
        for step in [1, 3] {
            let mut seen = audit.take(&instances, interval, now + step * STEP);
            seen.extend(audit.take(&instances, interval, now + (step + 1) * STEP));
            assert!(seen.iter().eq(instances.keys()), "{seen:?}");
        }
        assert_eq!(audit.take(&instances, interval, now + 4 * STEP), [], "no step is due");
    }

    #[test]
    fn all_instances_are_examined_in_each_step_if_the_interval_is_one_step() {
        let instances: BTreeMap<InstanceId, usize> =
            (0..2).map(|number| (id(number), number)).collect();
        let now = Instant::now();
        let mut audit = PeriodicAudit::new(now);
        for step in 1..=3 {
            let seen = audit.take(&instances, STEP, now + step * STEP);
            assert!(seen.iter().eq(instances.keys()), "step {step}: {seen:?}");
        }
    }

    fn millis((one, other): (u64, u64)) -> (Duration, Duration) {
        (Duration::from_millis(one), Duration::from_millis(other))
    }

    #[test]
    fn findings_of_an_audit_shortly_after_a_comparison_are_compared_after_a_pause() {
        let start = Instant::now();
        let mut schedule = ComparisonSchedule::default();
        assert!(!schedule.is_due(start), "nothing was audited");
        schedule.request();
        assert!(schedule.is_due(start));
        for (took, pause) in [(1, 20), (50, 1_000), (3_000, 1_000)].map(millis) {
            schedule.completed(start, took, false);
            assert_eq!(schedule.next(), None, "there is nothing to wait for");
            schedule.request();
            assert!(!schedule.is_due(start));
            let next = schedule.next().unwrap();
            assert!(schedule.is_due(next) && next == start + pause);
        }
    }

    #[test]
    fn an_audit_does_not_wait_until_findings_that_were_too_young_are_compared_again() {
        let start = Instant::now();
        let mut schedule = ComparisonSchedule::default();
        schedule.completed(start, Duration::ZERO, true);
        assert_eq!(schedule.next(), Some(start + YOUNG_PAUSE));
        assert!(!schedule.is_due(start) && schedule.is_due(start + YOUNG_PAUSE));
        schedule.request();
        assert!(schedule.is_due(start));
    }

    #[test]
    fn a_share_is_at_least_one_and_at_most_all() {
        assert_eq!(share(0, Duration::from_mins(1)), 0);
        assert_eq!(share(1, Duration::from_hours(24)), 1);
        assert_eq!(share(1000, Duration::from_secs(5)), 1000);
        assert_eq!(share(1000, Duration::from_secs(100)), 100);
    }

    #[test]
    fn a_changed_instance_is_due_after_the_grace_period_of_its_last_change() {
        let now = Instant::now();
        let mut due = DueInstances::default();
        due.add_changed(&id(1), now);
        due.add_changed(&id(1), now + GRACE / 2);
        assert_eq!(due.take(now + GRACE), BTreeSet::new());
        assert_eq!(due.next(), Some(now + GRACE / 2 + GRACE));
        assert_eq!(due.take(now + GRACE / 2 + GRACE), BTreeSet::from([id(1)]));
        assert_eq!(due.next(), None);
    }

    #[test]
    fn a_second_examination_does_not_put_off_one_that_is_due_earlier() {
        let now = Instant::now();
        let mut due = DueInstances::default();
        due.add_changed(&id(1), now);
        due.add_confirmation(&id(1), now + GRACE / 2);
        due.add_confirmation(&id(2), now + GRACE / 2);
        assert_eq!(due.take(now + GRACE), BTreeSet::from([id(1)]));
        assert_eq!(due.take(now + GRACE / 2 + GRACE), BTreeSet::from([id(2)]));
    }

    #[test]
    fn processes_that_change_all_the_time_do_not_put_off_the_examination() {
        let now = Instant::now();
        let mut due = DueInstances::default();
        for second in 0..20 {
            due.add_processes_changed(&id(1), now + Duration::from_secs(second));
        }
        assert_eq!(due.next(), Some(now + MAX_PROCESS_GRACE));
        assert_eq!(due.take(now + MAX_PROCESS_GRACE), BTreeSet::from([id(1)]));
    }

    #[test]
    fn every_instance_with_findings_is_examined_again_however_many_there_are() {
        let began = Instant::now();
        let mut examined: BTreeMap<InstanceId, Instant> =
            (0..=2 * MAX_RECHECKS).map(|number| (id(number), began)).collect();
        let mut due = |now: Instant| {
            let due = rechecks(examined.iter().map(|(id, at)| (*at, id.clone())), now);
            examined.extend(due.iter().map(|id| (id.clone(), now)));
            due.len()
        };
        assert_eq!(due(began + RECHECK_INTERVAL / 2), 0);
        let steps = [0, 1, 2].map(|step| due(began + RECHECK_INTERVAL + step * STEP));
        assert_eq!(steps, [MAX_RECHECKS, MAX_RECHECKS, 1]);
        assert_eq!(due(began + 2 * RECHECK_INTERVAL), MAX_RECHECKS, "the first ones again");
    }
}
