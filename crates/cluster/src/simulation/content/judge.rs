// SPDX-License-Identifier: Apache-2.0
//! Whether a finding may be opened, and whether it must be open.

use vipwatch_core::FindingKind;
use vipwatch_core::flapping::{FLAP_SPAN, MIN_TRANSITIONS};

use super::{Content, Interval, Subject};
use crate::simulation::{GROUPS, NODES};

/// How long the view of the reporter may lag behind etcd without a fault, in milliseconds.
const USUAL_LAG: u64 = 1000;

/// A condition that has held for this long in quiet times has a finding: the settle time, a lease, an election and a wait
/// before a new connection.
const OPEN_LIMIT: u64 = 45_000;

/// The same for findings that do not interrupt traffic.
const SLOW_OPEN_LIMIT: u64 = 95_000;

/// A finding is closed within this time in quiet times.
const CLOSE_LIMIT: u64 = 40_000;

/// An orderly restart that is shorter does not end a condition.
const RESTART_LIMIT: u64 = 15_000;

/// The kinds that must be open while their condition holds.
const KINDS: [FindingKind; 4] = [
    FindingKind::ClusterTwoPrimaries,
    FindingKind::ClusterNoPrimary,
    FindingKind::ClusterTooFewBackups,
    FindingKind::ClusterNodeLost,
];

/// A time in which the view of a node may lag behind etcd, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(in crate::simulation) struct Disturbance {
    pub(in crate::simulation) from: u64,
    pub(in crate::simulation) to: u64,
    pub(in crate::simulation) lag: u64,
    /// How long a reporter may not see etcd at all: it sees the end of a condition, and its beginning, afterwards.
    pub(in crate::simulation) outage: u64,
}

impl Content {
    pub(in crate::simulation) fn disturb(&mut self, disturbance: Disturbance) {
        self.disturbances.push(disturbance);
    }

    /// A node was stopped in an orderly way, and has started again.
    pub(in crate::simulation) fn restarted(&mut self, from: u64, to: u64) {
        if to - from <= RESTART_LIMIT {
            self.restarts.push(Interval { from, to: Some(to) });
        }
    }

    /// How long the view of the reporter may lag behind etcd.
    fn lag(&self, at: u64) -> u64 {
        self.present(at).map(|it| it.lag).max().unwrap_or(0) + USUAL_LAG
    }

    fn outage(&self, at: u64) -> u64 {
        self.present(at).map(|it| it.outage).max().unwrap_or(0)
    }

    fn present(&self, at: u64) -> impl Iterator<Item = &Disturbance> {
        let lasts = move |it: &&Disturbance| it.from <= at && at <= it.to + it.lag + it.outage;
        self.disturbances.iter().filter(lasts)
    }

    /// A reporter opens a finding: its condition must have held for the settle time, and not since an earlier finding.
    pub(super) fn judge_opening(&mut self, subject: Subject, id: &str, at: u64) {
        if self.open.values().any(|open| open.subject == subject) {
            self.fail(at, subject, &format!("{id} is opened, and another one is open"));
        }
        let lag = self.lag(at);
        if !self.may_open(subject, at, lag) {
            self.fail(at, subject, &format!("{id} is opened without its condition"));
        }
        let closed = self.last_closed.get(&subject).copied();
        let outage = lag + self.outage(at);
        if let Some(closed) = closed.filter(|closed| self.lasts(subject, *closed, at, outage)) {
            let text = format!("{id} is opened, and its condition lasts since before {closed}");
            self.fail(at, subject, &text);
        }
    }

    fn may_open(&self, subject: Subject, at: u64, lag: u64) -> bool {
        if subject.kind == FindingKind::ClusterFlapping {
            let span = u64::try_from(FLAP_SPAN.as_millis()).unwrap_or(u64::MAX) + lag;
            let changes = self.claim_changes[subject.number].iter();
            return changes.filter(|change| **change + span >= at).count() >= MIN_TRANSITIONS;
        }
        if subject.kind == FindingKind::ClusterGroupsWithoutPrimary {
            // It follows from the findings of the groups, which are judged.
            return true;
        }
        let settle = settle(subject.kind).saturating_sub(lag);
        let has_held = |interval: &Interval| {
            let to = interval.to.unwrap_or(at);
            to + lag >= at && to - interval.from >= settle
        };
        let mixed = if lag > USUAL_LAG { self.mixed(subject) } else { &[] };
        self.merged(subject).iter().chain(mixed).any(has_held)
    }

    /// When a view with a late watch may show the condition: the changes of two watches are not in order. A late role and a
    /// punctual heartbeat look like a confirmation, and a late membership and a deleted process like a lost node.
    fn mixed(&self, subject: Subject) -> &[Interval] {
        match subject.kind {
            FindingKind::ClusterTwoPrimaries => &self.claims[subject.number],
            FindingKind::ClusterNodeLost => &self.absences[subject.number],
            _ => &[],
        }
    }

    /// Whether the condition has held all the time from `closed` to `at`.
    fn lasts(&self, subject: Subject, closed: u64, at: u64, lag: u64) -> bool {
        let kinds = [FindingKind::ClusterFlapping, FindingKind::ClusterGroupsWithoutPrimary];
        !kinds.contains(&subject.kind)
            && self.merged(subject).iter().any(|interval| {
                interval.from + lag <= closed && interval.to.is_none_or(|to| to >= at)
            })
    }

    /// The intervals of a condition. An orderly restart of a node does not end one about a group.
    fn merged(&self, subject: Subject) -> Vec<Interval> {
        let intervals = self.intervals.get(&subject).map(Vec::as_slice).unwrap_or_default();
        let mut merged: Vec<Interval> = Vec::new();
        for interval in intervals {
            let gap = merged.last().and_then(|last| last.to).map(|to| (to, interval.from));
            let is_restart = |(from, to): (u64, u64)| {
                let covers = |it: &Interval| {
                    it.from <= from + USUAL_LAG
                        && it.to.is_some_and(|end| to <= end + 2 * USUAL_LAG)
                };
                subject.kind != FindingKind::ClusterNodeLost && self.restarts.iter().any(covers)
            };
            if gap.is_some_and(is_restart) {
                if let Some(last) = merged.last_mut() {
                    last.to = interval.to;
                }
            } else {
                merged.push(*interval);
            }
        }
        merged
    }

    /// After a quiet time, exactly the conditions that last have an open finding.
    pub(in crate::simulation) fn judge_quiet(&mut self, at: u64) {
        let nodes = (0..NODES).map(|number| (FindingKind::ClusterNodeLost, number));
        let groups = KINDS[..3].iter().flat_map(|kind| (0..GROUPS).map(|number| (*kind, number)));
        for (kind, number) in groups.chain(nodes).collect::<Vec<_>>() {
            let subject = Subject { kind, number };
            let count = self.open.values().filter(|open| open.subject == subject).count();
            let last = self.intervals.get(&subject).and_then(|all| all.last()).copied();
            let since = last.filter(|last| last.to.is_none()).map(|last| last.from);
            let ended = last.map_or(Some(0), |last| last.to);
            if count > 1 {
                self.fail(at, subject, &format!("{count} findings are open"));
            }
            if count == 0 && since.is_some_and(|since| since + open_limit(kind) <= at) {
                self.fail(at, subject, &format!("has no finding, and holds since {since:?}"));
            }
            if count > 0 && ended.is_some_and(|ended| ended + CLOSE_LIMIT <= at) {
                self.fail(at, subject, &format!("is open, and its condition ended at {ended:?}"));
            }
        }
    }

    fn fail(&mut self, at: u64, subject: Subject, text: &str) {
        let Subject { kind, number } = subject;
        self.failures.push(format!("{at}: {} {number}: {text}", kind.name()));
    }
}

fn open_limit(kind: FindingKind) -> u64 {
    if kind == FindingKind::ClusterTooFewBackups { SLOW_OPEN_LIMIT } else { OPEN_LIMIT }
}

/// How long a condition must hold, in milliseconds: the default settle time, and adverts of a second each.
fn settle(kind: FindingKind) -> u64 {
    match kind {
        FindingKind::ClusterTwoPrimaries => 4000,
        FindingKind::ClusterNoPrimary => 7000,
        FindingKind::ClusterNodeLost => 3000,
        FindingKind::ClusterTooFewBackups => 60_000,
        // No other condition ever holds.
        _ => u64::MAX,
    }
}
