// SPDX-License-Identifier: Apache-2.0
//! Finds the processes that have started since the last call, without a list of all processes.
//!
//! The kernel gives pids in ascending order and publishes the last one in `/proc/loadavg`. As long as that number
//! stands still, no process has started, and one small read is enough. Otherwise the numbers in between are the new
//! processes. After very many starts, the newest of them are examined, and all processes are listed soon. After a
//! wrap-around, all processes are listed.
//!
//! A process may run another program after its start (`execve`), at any time. So each new pid is returned again in the
//! calls of the next [`RECHECK_SPAN`], and all processes are listed from time to time.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::pids;

/// How long a new process is examined again, because a shell or a service manager may run the wanted program in it.
const RECHECK_SPAN: Duration = Duration::from_secs(5);

/// Maximum number of pids that one call examines one by one, the newest ones. A list has the others.
const MAX_RANGE: u32 = 2048;

/// Shortest time between two lists of all processes.
const LIST_INTERVAL: Duration = Duration::from_secs(30);

/// A list of all processes may take this share of the time: one part in so many.
const LIST_SHARE: u32 = 2000;

/// Shortest time between two lists while new processes are not examined one by one: less than the time after which a
/// keepalived counts as gone.
const OVERFLOW_LIST_INTERVAL: Duration = Duration::from_secs(2);

/// The share of the time that such lists may take: one part in so many.
const OVERFLOW_LIST_SHARE: u32 = 100;

/// Which processes may be new.
#[derive(Debug, Default)]
pub struct NewProcesses {
    /// The last pid of the last call; `None` before the first one.
    last: Option<u32>,
    /// The ranges of pids that are examined again: when they appeared, the first pid and the last one.
    recent: VecDeque<PidRange>,
    next_list: Option<Instant>,
    /// The earliest time of a list while new processes are not examined one by one.
    next_overflow_list: Option<Instant>,
    /// Until when only lists have some of the new processes.
    overflow_until: Option<Instant>,
}

#[derive(Debug)]
struct PidRange {
    seen: Instant,
    first: u32,
    last: u32,
}

/// The processes to examine.
#[derive(Debug, PartialEq, Eq)]
pub enum Candidates {
    /// All processes of the system.
    All(Vec<u32>),
    /// Processes that may be new; some of these pids may not exist, or may be threads.
    New(Vec<u32>),
}

impl NewProcesses {
    /// The processes that have started since the last call, and some older ones; all of them in the first call.
    pub fn take(&mut self, now: Instant) -> io::Result<Candidates> {
        match self.advance(last_pid()?, now) {
            Some(pids) if !self.is_list_due(now) => Ok(Candidates::New(pids)),
            _ => {
                let began = Instant::now();
                let pids = pids()?;
                self.listed(now, began.elapsed());
                Ok(Candidates::All(pids))
            }
        }
    }

    fn is_list_due(&self, now: Instant) -> bool {
        let is_reached = |at: Option<Instant>| at.is_none_or(|at| at <= now);
        is_reached(self.next_list)
            || self.overflow_until.is_some() && is_reached(self.next_overflow_list)
    }

    /// Plans the next lists after one at `now` that took the time `taken`.
    fn listed(&mut self, now: Instant, taken: Duration) {
        // The caller reads each of them, which takes a few times as long as the list.
        self.next_list = Some(now + LIST_INTERVAL.max(taken * LIST_SHARE));
        self.next_overflow_list =
            Some(now + OVERFLOW_LIST_INTERVAL.max(taken * OVERFLOW_LIST_SHARE));
        self.overflow_until = self.overflow_until.filter(|until| now < *until);
    }

    /// The pids from the last call to `last`, and those of recent calls, without the oldest ones if they are too many; `None`
    /// if all processes must be listed.
    fn advance(&mut self, last: u32, now: Instant) -> Option<Vec<u32>> {
        let before = self.last.replace(last);
        while self.recent.front().is_some_and(|range| range.seen + RECHECK_SPAN < now) {
            self.recent.pop_front();
        }
        let before = before?;
        if last < before {
            return None;
        }
        if last > before {
            self.recent.push_back(PidRange { seen: now, first: before + 1, last });
        }
        let count = |range: &PidRange| range.last - range.first + 1;
        let mut excess = self.recent.iter().map(count).sum::<u32>().saturating_sub(MAX_RANGE);
        if excess > 0 {
            self.overflow_until = Some(now + RECHECK_SPAN);
        }
        while let Some(oldest) = self.recent.front_mut().filter(|_| excess > 0) {
            let dropped = excess.min(count(oldest));
            oldest.first += dropped;
            excess -= dropped;
            if oldest.first > oldest.last {
                self.recent.pop_front();
            }
        }
        Some(self.recent.iter().flat_map(|range| range.first..=range.last).collect())
    }
}

/// The pid of the process or thread that was created last in the pid namespace of this process.
fn last_pid() -> io::Result<u32> {
    let text = crate::file::read_head(Path::new("/proc/loadavg"), 256)?;
    let last = text.trim_ascii().rsplit(|byte| *byte == b' ').next();
    let last = last.and_then(|last| std::str::from_utf8(last).ok()?.parse().ok());
    last.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pids_since_the_last_call_are_new_and_they_are_examined_again_for_a_while() {
        let mut new = NewProcesses::default();
        let now = Instant::now();
        assert_eq!(new.advance(100, now), None, "the first call lists all");
        assert_eq!(new.advance(100, now), Some(vec![]));
        assert_eq!(new.advance(102, now), Some(vec![101, 102]));
        let later = now + RECHECK_SPAN / 2;
        assert_eq!(new.advance(103, later), Some(vec![101, 102, 103]));
        assert_eq!(new.advance(103, now + RECHECK_SPAN * 5 / 4), Some(vec![103]));
        assert_eq!(new.advance(103, now + RECHECK_SPAN * 2), Some(vec![]));
    }

    #[test]
    fn very_many_starts_do_not_list_all_processes_in_every_call() {
        let mut new = NewProcesses::default();
        let began = Instant::now();
        let at = |second: u64| began + Duration::from_secs(second);
        assert_eq!(new.advance(1_000, began), None);
        new.listed(began, Duration::from_millis(1));
        let (mut last, mut lists) = (1_000, Vec::new());
        for second in 1..10 {
            last += 1_500;
            let pids = new.advance(last, at(second));
            let newest = if second == 1 { last - 1_499 } else { last - MAX_RANGE + 1 };
            assert_eq!(pids, Some((newest..=last).collect()), "the newest ones");
            if new.is_list_due(at(second)) {
                // This list takes longer.
                new.listed(at(second), Duration::from_millis(if second == 6 { 30 } else { 1 }));
                lists.push(second);
            }
        }
        assert_eq!(lists, [2, 4, 6, 9]);
        last += 3 * MAX_RANGE;
        let pids = new.advance(last, at(20));
        assert_eq!(pids, Some((last - MAX_RANGE + 1..=last).collect()));
    }

    #[test]
    fn a_process_behind_very_many_starts_is_listed_also_when_it_runs_its_program_later() {
        let mut new = NewProcesses::default();
        let began = Instant::now();
        let at = |second: u64| began + Duration::from_secs(second);
        assert_eq!(new.advance(1_000, began), None);
        new.listed(began, Duration::from_millis(1));
        let mut lists = Vec::new();
        for second in 1..20 {
            new.advance(1_000 + 2 * MAX_RANGE, at(second)).unwrap();
            if new.is_list_due(at(second)) {
                new.listed(at(second), Duration::from_millis(1));
                lists.push(second);
            }
        }
        assert_eq!(lists, [2, 4, 6]);
    }

    #[test]
    fn all_processes_are_listed_after_a_wrap_around() {
        let mut new = NewProcesses::default();
        let now = Instant::now();
        assert_eq!(new.advance(30_000, now), None);
        assert_eq!(new.advance(400, now), None);
        assert_eq!(new.advance(401, now), Some(vec![401]));
    }

    #[test]
    fn the_first_call_lists_this_process() {
        let mut new = NewProcesses::default();
        let Candidates::All(pids) = new.take(Instant::now()).unwrap() else {
            panic!("not a list of all processes")
        };
        assert!(pids.contains(&std::process::id()));
        assert!(matches!(new.take(Instant::now()), Ok(Candidates::New(_))));
    }
}
