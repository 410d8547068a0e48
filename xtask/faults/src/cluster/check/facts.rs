// SPDX-License-Identifier: Apache-2.0
//! The facts of a run, from the log of the injector and the recordings of the kernels: when each node could not reach etcd,
//! when etcd could not answer, and which roles each kernel showed.

mod reach;
mod simulated;

use std::path::Path;

use serde_json::Value;

pub use self::reach::{NodeBreak, UnstablePeriod};
pub use self::simulated::SimulatedLife;
use crate::FaultsError;
use crate::check::recorded_run::RecordedRun;
use crate::check::roles::{self, Span};
use crate::cluster::setup::HOSTS;
use crate::journal::JournalEntry;
use crate::moment::{Micros, SECOND};

/// The settings of the lab.
#[derive(Debug, Clone)]
pub struct LabTimes {
    pub advert: Micros,
    pub heartbeat: Micros,
    pub lease: Micros,
    pub settle: Micros,
    pub slow_settle: Micros,
}

/// The facts about one node.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// For each instance, its roles.
    pub roles: Vec<Vec<Span<&'static str>>>,
    pub breaks: Vec<NodeBreak>,
    /// When the configuration of keepalived had one more address; each with its beginning and its end.
    pub edits: Vec<(Micros, Micros)>,
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
        let mut hosts = Vec::new();
        for host in 0..HOSTS {
            let own = directory.join(format!("node{host}"));
            let timeline = roles::read(&own, &run.instances, &run.configured(host), end)?;
            let breaks = reach::breaks(journal, host, end);
            let edits = edits(journal, host, end);
            hosts.push(HostFacts { roles: timeline.roles, breaks, edits });
        }
        let seconds = |name: &str| run.setup["times"][name].as_i64().unwrap_or(0) * SECOND;
        Ok(Self {
            times: LabTimes {
                advert: run.advert_interval(),
                heartbeat: seconds("heartbeat"),
                lease: seconds("lease"),
                settle: seconds("settle"),
                slow_settle: seconds("slow_settle"),
            },
            min_backups: usize::try_from(run.setup["min_backups"].as_u64().unwrap_or(1))?,
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
