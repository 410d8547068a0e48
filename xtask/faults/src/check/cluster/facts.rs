// SPDX-License-Identifier: Apache-2.0
//! The facts of a run, from the log of the injector and the recordings of the kernels: when each node could not reach etcd,
//! when etcd could not answer, and which roles each kernel showed.

pub mod periods;
mod reach;
mod silence;
mod simulated;

use std::path::Path;

use serde_json::Value;

pub use self::periods::ActPeriod;
use self::periods::periods;
pub use self::reach::{NodeBreak, UnstablePeriod};
pub use self::silence::{SILENCE_PUBLISHED, SilentPeriod};
pub use self::simulated::SimulatedLife;
use crate::FaultsError;
use crate::check::recorded_run::RecordedRun;
use crate::check::roles::{self, Span};
use crate::check::wire::{self, WireAdvert};
use crate::journal::JournalEntry;
use crate::moment::{Micros, SECOND};
use crate::setup::{HOSTS, InstanceFacts};

/// The settings of the lab.
#[derive(Debug, Clone)]
pub struct LabTimes {
    pub advert: Micros,
    pub heartbeat: Micros,
    pub lease: Micros,
    pub settle: Micros,
    pub slow_settle: Micros,
    /// The time within which a node audits each instance.
    pub audit: Micros,
}

/// The facts about one node.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// For each instance, its roles.
    pub roles: Vec<Vec<Span<&'static str>>>,
    pub breaks: Vec<NodeBreak>,
    /// When the configuration of keepalived had one more address; each with its beginning and its end.
    pub edits: Vec<(Micros, Micros)>,
    /// For each instance, the periods in which the host received no adverts.
    pub silences: Vec<Vec<SilentPeriod>>,
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

/// All facts of a run.
pub struct RecordedFacts {
    pub run: RecordedRun,
    pub times: LabTimes,
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
    pub fn read(directory: &Path) -> Result<Self, FaultsError> {
        let run = RecordedRun::read(directory)?;
        let (journal, end) = (&run.journal, run.end);
        let adverts = wire::read(&directory.join("wire.pcap"))?;
        let hosts = (0..HOSTS)
            .map(|host| HostFacts::read(directory, &run, &adverts, host))
            .collect::<Result<Vec<HostFacts>, FaultsError>>()?;
        let times = run.setup.times.ok_or_else(|| FaultsError("no cluster".to_owned()))?;
        Ok(Self {
            times: LabTimes {
                advert: run.advert_interval(),
                heartbeat: times.heartbeat * SECOND,
                lease: times.lease * SECOND,
                settle: times.settle * SECOND,
                slow_settle: times.slow_settle * SECOND,
                audit: times.audit * SECOND,
            },
            min_backups: run.setup.min_backups.unwrap_or(1),
            hosts,
            simulated: simulated::lives(journal, end),
            unstable: reach::unstable(journal, end),
            lost_members: reach::lost_members(journal, end),
            reporters: reporters(journal),
            run,
        })
    }

    /// The reporter that the injector saw last before a time; `None` if it is not known.
    pub fn reporter(&self, at: Micros) -> Option<usize> {
        self.reporters
            .iter()
            .rev()
            .find(|(seen, _)| *seen <= at)
            .and_then(|(_, reporter)| *reporter)
    }

    /// When the leases of a node that stopped renewing them have ended for certain. An election renews all leases.
    pub fn lease_end(&self, from: Micros) -> Micros {
        let mut end = from + self.times.lease + SECOND;
        for period in &self.unstable {
            if period.from < end && period.to > from {
                end = end.max(period.to + self.times.lease + SECOND);
            }
        }
        end
    }
}

impl HostFacts {
    fn read(
        directory: &Path,
        run: &RecordedRun,
        adverts: &[WireAdvert],
        host: usize,
    ) -> Result<Self, FaultsError> {
        let (journal, end) = (&run.journal, run.end);
        let own = directory.join(format!("node{host}"));
        let timeline = roles::read(&own, &run.setup.instances, &run.configured(host), end)?;
        let between = |acts: &[(&str, &str, bool)]| {
            periods(journal, host, end, |entry| {
                let is_act =
                    |(act, word, _): &&(&str, &str, bool)| entry.act == *act && how(entry) == *word;
                acts.iter().find(is_act).map(|(_, _, is_begin)| *is_begin)
            })
        };
        Ok(Self {
            roles: timeline.roles,
            breaks: reach::breaks(journal, host, end),
            edits: edits(journal, host, end),
            silences: silences(run, adverts, host),
            grouped: between(&[("group", "set", true), ("group", "remove", false)]),
            routers: between(&[("router", "create", true), ("router", "remove", false)]),
            released: between(&[("router", "release", true), ("router", "remove", false)]),
            differs: between(&[
                ("state-file", "wrong", true),
                ("router", "release", true),
                ("state-file", "right", false),
            ]),
            twins: between(&[("twin", "start", true), ("twin", "stop", false)]),
            stepped: between(&[("clock", "step", true), ("clock", "real", false)]),
        })
    }
}

/// The silent periods of a host, for each instance.
fn silences(run: &RecordedRun, adverts: &[WireAdvert], host: usize) -> Vec<Vec<SilentPeriod>> {
    // The capture of a node is incomplete after a start of the node, and after a change of its link.
    let is_disturbing = |entry: &&JournalEntry| {
        entry.node == Some(host) && matches!(entry.act.as_str(), "data" | "vipwatch")
    };
    let disturbed: Vec<Micros> =
        run.journal.iter().filter(is_disturbing).map(|entry| entry.at).collect();
    let port = run.setup.ports.get(host).copied().unwrap_or_default();
    let of_instance = |instance: &InstanceFacts| {
        let delivered = silence::delivered(adverts, port, instance.vrid);
        let range = (run.start, run.end);
        silence::silences(&delivered, &disturbed, run.advert_interval(), range)
    };
    run.setup.instances.iter().map(of_instance).collect()
}

fn how(entry: &JournalEntry) -> &str {
    entry.details["how"].as_str().unwrap_or_default()
}

fn is_begin(entry: &JournalEntry) -> bool {
    entry.details["phase"] == "begin"
}

/// The time of the end of an act that begins with this entry.
fn done(journal: &[JournalEntry], begin: &JournalEntry, end: Micros) -> Micros {
    let same = |entry: &&JournalEntry| {
        entry.at >= begin.at
            && entry.act == begin.act
            && entry.node == begin.node
            && how(entry) == how(begin)
            && entry.details["phase"] == "done"
    };
    journal.iter().find(same).map_or(end, |entry| entry.at)
}

fn edits(journal: &[JournalEntry], host: usize, end: Micros) -> Vec<(Micros, Micros)> {
    let mut edits: Vec<(Micros, Micros)> = Vec::new();
    for entry in
        journal.iter().filter(|entry| entry.act == "configured" && entry.node == Some(host))
    {
        if entry.details["is_edited"] == true {
            edits.push((entry.at, end));
        } else if let Some(last) = edits.last_mut() {
            last.1 = entry.at;
        }
    }
    edits
}

fn reporters(journal: &[JournalEntry]) -> Vec<(Micros, Option<usize>)> {
    let observed = journal.iter().filter(|entry| entry.act == "observed");
    let host = |value: &Value| value.as_u64().and_then(|host| usize::try_from(host).ok());
    observed.map(|entry| (entry.at, host(&entry.details["reporter"]))).collect()
}
