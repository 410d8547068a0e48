// SPDX-License-Identifier: Apache-2.0
//! The facts of a run, from the log of the injector and the recordings of the kernels: when each node could not reach etcd,
//! when etcd could not answer, what each host received, and what its node published.

use super::reach::{NodeBreak, UnstablePeriod};
use crate::check::findings::Condition;
use crate::check::node::obstacles;
use crate::check::periods::{ActPeriod, Holds};
use crate::check::recording::RecordedRun;
use crate::moment::{Micros, SECOND};
use crate::setup::ClusterTimes;
use crate::{FaultsError, LabResult};

/// A node has read and published the beginning or the end of the silence within this time: it reads its capture once a
/// second, waits for one second more, and publishes a changed record within a second.
pub const SILENCE_PUBLISHED: Micros = 3 * SECOND;
/// A node publishes a changed finding within this time.
const FINDING_PUBLISHED: Micros = SECOND;

/// The facts about one node.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    pub breaks: Vec<NodeBreak>,
    /// When the configuration of keepalived had one more address; each with its beginning and its end.
    pub edits: Vec<(Micros, Micros)>,
    /// For each instance, the periods in which the host received no adverts.
    pub silences: Vec<Vec<KnownPeriod>>,
    /// For each instance, the periods in which a finding of the node says that a backup cannot take over.
    pub obstacles: Vec<Vec<KnownPeriod>>,
    /// When the configuration of the node had the first instance in a group.
    pub grouped: Vec<ActPeriod>,
    /// When the host had a router.
    pub routers: Vec<ActPeriod>,
    /// When the router did not hold its address.
    pub released: Vec<ActPeriod>,
    /// When the state file of the router differed from the kernel.
    pub differs: Vec<ActPeriod>,
    /// When a second node ran on the host, with the name of another node.
    pub twins: Vec<ActPeriod>,
    /// When the wall clock of the node differed from that of the machine.
    pub stepped: Vec<ActPeriod>,
}

/// The period of a fact that a node publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPeriod {
    /// The node may know the fact from here on.
    pub possible: Micros,
    /// The node has published the fact from here on; later than `end` if it need not.
    pub certain: Micros,
    /// The end of the fact, such as the next advert.
    pub end: Micros,
    /// The node has published the end of the fact.
    pub gone: Micros,
}

impl KnownPeriod {
    /// The period of a node's finding.
    fn of_finding(condition: &Condition) -> Self {
        let published = |at: Option<Micros>| at.map_or(Micros::MAX, |at| at + FINDING_PUBLISHED);
        Self {
            possible: condition.start,
            certain: published(condition.deadline),
            end: condition.end,
            gone: published(condition.close_by),
        }
    }

    /// Whether the node publishes the fact at a time.
    pub fn holds(&self, at: Micros) -> Holds {
        let is_possible = self.possible <= at && at < self.gone;
        Holds::of([is_possible, is_possible && self.certain <= at && at < self.end])
    }
}

/// The life of the simulated node: from its registration to its removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedLife {
    pub begin: Micros,
    pub ready: Micros,
    pub role: &'static str,
    /// It has two instances in the group.
    pub is_twice: bool,
    /// The end of its heartbeats, without a stop.
    pub silent: Option<Micros>,
    pub stop: Micros,
    pub gone: Micros,
}

/// All facts of a run.
pub struct RecordedFacts {
    pub run: RecordedRun,
    /// In microseconds.
    pub times: ClusterTimes,
    pub min_backups: usize,
    pub hosts: Vec<HostFacts>,
    pub simulated: Vec<SimulatedLife>,
    pub unstable: Vec<UnstablePeriod>,
    /// When a member of etcd was lost, with the end of the act: nodes that use it connect to another one.
    pub lost_members: Vec<(Micros, Micros)>,
    /// The reporter, each time that the injector has looked.
    pub reporters: Vec<(Micros, Option<usize>)>,
}

impl RecordedFacts {
    pub fn of(run: RecordedRun) -> LabResult<Self> {
        let seconds = run.setup.times.ok_or_else(|| FaultsError("no cluster".to_owned()))?;
        let observed = run.journal.iter().filter(|entry| entry.act == "observed");
        Ok(Self {
            times: ClusterTimes {
                heartbeat: seconds.heartbeat * SECOND,
                lease: seconds.lease * SECOND,
                settle: seconds.settle * SECOND,
                slow_settle: seconds.slow_settle * SECOND,
                audit: seconds.audit * SECOND,
            },
            min_backups: run.setup.min_backups.unwrap_or(1),
            hosts: (0..run.nodes.len()).map(|host| HostFacts::of(&run, host)).collect(),
            simulated: simulated(&run),
            unstable: run.unstable(),
            lost_members: run.lost_members(),
            reporters: observed.map(|entry| (entry.at, entry.reporter)).collect(),
            run,
        })
    }

    /// The reporter that the injector saw last before a time; `None` if it is not known.
    pub fn reporter(&self, at: Micros) -> Option<usize> {
        self.reporters.iter().rev().find(|(seen, _)| *seen <= at)?.1
    }

    /// When the leases of a node that stopped renewing them have ended for certain. An election renews all leases.
    pub fn lease_end(&self, from: Micros) -> Micros {
        let lease = self.times.lease + SECOND;
        self.unstable.iter().fold(from + lease, |end, period| {
            if period.from < end && period.to > from { end.max(period.to + lease) } else { end }
        })
    }
}

impl HostFacts {
    fn of(run: &RecordedRun, host: usize) -> Self {
        let between = |begin, end| run.periods(host, &[begin], &[end]);
        let mut edits: Vec<(Micros, Micros)> = Vec::new();
        for entry in run.acts(host, &["configured"]) {
            if entry.is_edited {
                edits.push((entry.at, run.end));
            } else if let Some(last) = edits.last_mut() {
                last.1 = entry.at;
            }
        }
        // The capture of a node is incomplete after a start of the node, and after a change of its link.
        let disturbed = run.acts(host, &["data", "vipwatch"]);
        let disturbed: Vec<Micros> = disturbed.map(|entry| entry.at).collect();
        let silences = run.setup.instances.iter().map(|instance| {
            let adverts = run.delivered(host, instance);
            let adverts = adverts.map(|advert| (advert.at, advert.priority == 0));
            silences(adverts, &disturbed, run.interval(), (run.start, run.end))
        });
        Self {
            breaks: run.breaks(host),
            edits,
            silences: silences.collect(),
            obstacles: (0..run.setup.instances.len())
                .map(|instance| obstacles(run, host, instance))
                .map(|found| found.iter().map(KnownPeriod::of_finding).collect())
                .collect(),
            grouped: between(("group", "set"), ("group", "remove")),
            routers: between(("router", "create"), ("router", "remove")),
            released: between(("router", "release"), ("router", "remove")),
            differs: run.periods(
                host,
                &[("state-file", "wrong"), ("router", "release")],
                &[("state-file", "right")],
            ),
            twins: between(("twin", "start"), ("twin", "stop")),
            stepped: between(("clock", "step"), ("clock", "real")),
        }
    }
}

/// The silent periods of a run. An advert is its time, and whether it has the priority 0: then its sender gives up its
/// role. A master-down interval is longer than three intervals and shorter than four. After each of the times in
/// `disturbed`, the capture is incomplete for one master-down interval.
fn silences(
    adverts: impl Iterator<Item = (Micros, bool)>,
    disturbed: &[Micros],
    interval: Micros,
    (start, end): (Micros, Micros),
) -> Vec<KnownPeriod> {
    let mut periods = Vec::new();
    let (mut last, mut is_last) = (start, true);
    for (next, is_next_last) in adverts.chain([(end, true)]).filter(|(at, _)| *at > start) {
        let possible = if is_last { last } else { last + 3 * interval };
        let between = disturbed.iter().copied().filter(|at| last < *at && *at < next);
        let certain = between.max().unwrap_or(last) + 4 * interval + SILENCE_PUBLISHED;
        if next > possible {
            let gone = next + SILENCE_PUBLISHED;
            periods.push(KnownPeriod { possible, certain, end: next, gone });
        }
        last = next;
        is_last = is_next_last;
    }
    periods
}

/// All lives of the simulated node, in their order.
fn simulated(run: &RecordedRun) -> Vec<SimulatedLife> {
    let mut lives: Vec<SimulatedLife> = Vec::new();
    let acts = run.journal.iter().filter(|entry| entry.act == "simulated");
    for entry in acts.filter(|entry| entry.phase == "begin") {
        let (begin, ready) = (entry.at, run.done(entry));
        match (entry.how.as_str(), lives.last_mut()) {
            ("silent", Some(life)) => life.silent = Some(begin),
            ("stop", Some(life)) => {
                life.stop = begin;
                life.gone = ready;
            }
            (how, _) => lives.push(SimulatedLife {
                begin,
                ready,
                role: if how == "primary" { "primary" } else { "backup" },
                is_twice: how == "two-backups",
                silent: None,
                stop: run.end,
                gone: run.end,
            }),
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(adverts: &[(Micros, bool)], disturbed: &[Micros]) -> Vec<KnownPeriod> {
        let adverts = adverts.iter().map(|(at, is_last)| (at * SECOND, *is_last));
        silences(adverts, disturbed, SECOND, (0, 23 * SECOND))
    }

    #[test]
    fn a_silence_is_certain_after_the_master_down_interval() {
        let adverts = [(1, false), (2, false), (20, false), (22, false)];
        let (possible, certain) = (5 * SECOND, 9 * SECOND);
        let long = KnownPeriod { possible, certain, end: 20 * SECOND, gone: 23 * SECOND };
        let silent = found(&adverts[..3], &[]);
        assert_eq!(silent[1..], [long], "the first one is that before the first advert");
        let disturbed = found(&adverts, &[10 * SECOND]);
        assert_eq!(disturbed[1].certain, 17 * SECOND);
        assert_eq!(disturbed.len(), 2, "one missing advert is no silence");
    }

    #[test]
    fn the_priority_0_ends_the_adverts_of_a_host() {
        assert_eq!(found(&[(1, false), (2, true)], &[])[1].possible, 2 * SECOND);
    }
}
