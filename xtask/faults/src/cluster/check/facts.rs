// SPDX-License-Identifier: Apache-2.0
//! The facts of a run, from the log of the injector and the recordings of the kernels: when each node could not reach etcd,
//! when etcd could not answer, and which roles each kernel showed.

use std::path::Path;

use serde_json::Value;

use crate::FaultsError;
use crate::check::roles::{self, Span};
use crate::check::run_record::{self, InstanceFacts};
use crate::cluster::setup::HOSTS;
use crate::journal::{self, JournalEntry};
use crate::moment::{Micros, SECOND};

/// etcd elects a leader within this time after a member was lost or came back.
const ELECTION: Micros = 4 * SECOND;

/// The settings of the lab.
#[derive(Debug, Clone)]
pub struct LabTimes {
    pub advert: Micros,
    pub heartbeat: Micros,
    pub lease: Micros,
    pub settle: Micros,
    pub slow_settle: Micros,
}

/// A period in which a node could not reach etcd, for a reason of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeBreak {
    /// The beginning of the act that caused it.
    pub from: Micros,
    /// The end of that act.
    pub done: Micros,
    /// The beginning of the act that ended it; the end of the run without one.
    pub heal: Micros,
    /// The end of that act.
    pub to: Micros,
    /// The node was stopped with SIGTERM.
    pub is_orderly: bool,
    /// The process ran, but without the network: its answers can be read, and are old.
    pub is_network: bool,
}

/// A period without a certain answer of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnstablePeriod {
    pub from: Micros,
    pub to: Micros,
    /// Fewer than two members could be reached in a part of it.
    pub is_quorum_lost: bool,
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

/// The life of the simulated node: from its registration to its removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedLife {
    pub begin: Micros,
    pub ready: Micros,
    pub role: &'static str,
    /// The end of its heartbeats, without a stop.
    pub silent: Option<Micros>,
    pub stop: Micros,
    pub gone: Micros,
}

/// All facts of a run.
pub struct RecordedFacts {
    pub seed: u64,
    pub label: String,
    pub times: LabTimes,
    pub min_backups: usize,
    pub instances: Vec<InstanceFacts>,
    pub journal: Vec<JournalEntry>,
    pub hosts: Vec<HostFacts>,
    pub simulated: Vec<SimulatedLife>,
    pub unstable: Vec<UnstablePeriod>,
    /// When a member of etcd was lost, with the end of the act: nodes that use it connect to another one.
    pub lost_members: Vec<(Micros, Micros)>,
    /// The reporter, each time that the injector has looked.
    pub reporters: Vec<(Micros, Option<usize>)>,
    pub start: Micros,
    pub end: Micros,
}

impl RecordedFacts {
    pub fn read(directory: &Path) -> Result<Self, FaultsError> {
        let setup: Value =
            serde_json::from_str(&std::fs::read_to_string(directory.join("setup.json"))?)?;
        let journal = journal::read(&directory.join("injector.jsonl"))?;
        let last = |act: &str| journal.iter().rev().find(|entry| entry.act == act);
        let end = last("end").ok_or_else(|| FaultsError("the run has no end".to_owned()))?.at;
        let start = last("node-ready").map_or(end, |entry| entry.at);
        let instances = run_record::instances(&setup);
        let mut hosts = Vec::new();
        for host in 0..HOSTS {
            let own = directory.join(format!("node{host}"));
            let configured: Vec<(Micros, Vec<String>)> = journal
                .iter()
                .filter(|entry| entry.act == "configured" && entry.node == Some(host))
                .map(|entry| (entry.at, run_record::strings(&entry.details["addresses"])))
                .collect();
            let timeline = roles::read(&own, &instances, &configured, end)?;
            let breaks = breaks(&journal, host, end);
            let edits = edits(&journal, host, end);
            hosts.push(HostFacts { roles: timeline.roles, breaks, edits });
        }
        let seconds = |name: &str| setup["times"][name].as_i64().unwrap_or(0) * SECOND;
        Ok(Self {
            seed: setup["seed"].as_u64().unwrap_or_default(),
            label: setup["label"].as_str().unwrap_or_default().to_owned(),
            times: LabTimes {
                advert: setup["advert_millis"].as_i64().unwrap_or(1000) * 1000,
                heartbeat: seconds("heartbeat"),
                lease: seconds("lease"),
                settle: seconds("settle"),
                slow_settle: seconds("slow_settle"),
            },
            min_backups: usize::try_from(setup["min_backups"].as_u64().unwrap_or(1))?,
            instances,
            hosts,
            simulated: simulated(&journal, end),
            unstable: unstable(&journal, end),
            lost_members: lost_members(&journal, end),
            reporters: reporters(&journal),
            journal,
            start,
            end,
        })
    }

    /// A time as seconds since the nodes were ready.
    pub fn clock(&self, at: Micros) -> String {
        crate::moment::relative(at, self.start)
    }

    /// The words of the injected faults.
    pub fn faults(&self) -> Vec<String> {
        let begun = self.journal.iter().filter(|entry| entry.act == "fault-begin");
        begun.map(|entry| entry.fault.clone()).collect()
    }

    /// The fault that is in force at a time, or the last one before it.
    pub fn context(&self, at: Micros) -> String {
        let acts = ["fault-begin", "fault-done", "recover-begin", "recover-done"];
        let mut before = self.journal.iter().rev().filter(|entry| entry.at <= at);
        let entry = before.find(|entry| acts.contains(&entry.act.as_str()));
        entry.map_or("before the first fault".to_owned(), |entry| {
            let (node, since) = (entry.node.unwrap_or_default(), self.clock(entry.at));
            format!("{} of {} on node {node} at {since} s", entry.act, entry.fault)
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

/// The periods in which a node could not reach etcd because of its process or its link.
fn breaks(journal: &[JournalEntry], host: usize, end: Micros) -> Vec<NodeBreak> {
    let mut breaks: Vec<NodeBreak> = Vec::new();
    let mut reasons: Vec<&str> = Vec::new();
    for entry in journal {
        let is_own = entry.node == Some(host) && matches!(entry.act.as_str(), "vipwatch" | "mgmt");
        if !is_own || !is_begin(entry) {
            continue;
        }
        let is_good = matches!(how(entry), "start" | "continue" | "heal");
        if is_good {
            reasons.retain(|reason| *reason != entry.act);
            if let Some(last) =
                breaks.last_mut().filter(|last| last.to == end && reasons.is_empty())
            {
                last.heal = entry.at;
                last.to = done(journal, entry, end);
            }
            continue;
        }
        if reasons.is_empty() {
            breaks.push(NodeBreak {
                from: entry.at,
                done: done(journal, entry, end),
                heal: end,
                to: end,
                is_orderly: how(entry) == "stop",
                is_network: entry.act == "mgmt",
            });
        } else if let Some(last) = breaks.last_mut() {
            last.is_network = false;
        }
        reasons.push(&entry.act);
    }
    breaks
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

fn simulated(journal: &[JournalEntry], end: Micros) -> Vec<SimulatedLife> {
    let mut lives: Vec<SimulatedLife> = Vec::new();
    for entry in journal.iter().filter(|entry| entry.act == "simulated" && is_begin(entry)) {
        let ended = done(journal, entry, end);
        match how(entry) {
            "silent" => {
                lives.iter_mut().last().into_iter().for_each(|life| life.silent = Some(entry.at));
            }
            "stop" => lives.iter_mut().last().into_iter().for_each(|life| {
                life.stop = entry.at;
                life.gone = ended;
            }),
            role => lives.push(SimulatedLife {
                begin: entry.at,
                ready: ended,
                role: if role == "primary" { "primary" } else { "backup" },
                silent: None,
                stop: end,
                gone: end,
            }),
        }
    }
    lives
}

fn reporters(journal: &[JournalEntry]) -> Vec<(Micros, Option<usize>)> {
    let observed = journal.iter().filter(|entry| entry.act == "observed");
    let host = |value: &Value| value.as_u64().and_then(|host| usize::try_from(host).ok());
    observed.map(|entry| (entry.at, host(&entry.details["reporter"]))).collect()
}

/// The losses of members of etcd.
fn lost_members(journal: &[JournalEntry], end: Micros) -> Vec<(Micros, Micros)> {
    let is_loss = |entry: &&JournalEntry| {
        matches!(entry.act.as_str(), "etcd" | "mgmt")
            && is_begin(entry)
            && !matches!(how(entry), "start" | "continue" | "heal")
    };
    journal.iter().filter(is_loss).map(|entry| (entry.at, done(journal, entry, end))).collect()
}

/// The periods in which etcd may have no leader.
fn unstable(journal: &[JournalEntry], end: Micros) -> Vec<UnstablePeriod> {
    let mut periods: Vec<UnstablePeriod> = Vec::new();
    let mut leader = None;
    let mut is_up = [[true; 2]; HOSTS];
    for entry in journal {
        if entry.act == "observed" {
            leader = entry.details["leader"].as_u64().and_then(|host| usize::try_from(host).ok());
        }
        let Some(host) = entry.node.filter(|host| *host < HOSTS) else { continue };
        let reason = match entry.act.as_str() {
            "etcd" => 0,
            "mgmt" => 1,
            _ => continue,
        };
        if !is_begin(entry) {
            continue;
        }
        let is_good = matches!(how(entry), "start" | "continue" | "heal");
        is_up[host][reason] = is_good;
        let has_quorum = is_up.iter().filter(|up| **up == [true, true]).count() >= 2;
        let is_leader_lost = !is_good && leader.is_none_or(|leader| leader == host);
        if is_good || is_leader_lost || !has_quorum {
            let to = if has_quorum { done(journal, entry, end) + ELECTION } else { end };
            add_period(
                &mut periods,
                UnstablePeriod { from: entry.at, to, is_quorum_lost: !has_quorum },
            );
        }
        if is_leader_lost {
            leader = None;
        }
    }
    periods
}

/// Adds a period, which may continue the last one or end it.
fn add_period(periods: &mut Vec<UnstablePeriod>, period: UnstablePeriod) {
    match periods.last_mut().filter(|last| last.to >= period.from) {
        Some(last) => {
            last.to = period.to;
            last.is_quorum_lost |= period.is_quorum_lost;
        }
        None => periods.push(period),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: i64, act: &str, node: usize, how: &str, phase: &str) -> JournalEntry {
        let details = serde_json::json!({ "how": how, "phase": phase });
        JournalEntry {
            at: at * SECOND,
            act: act.to_owned(),
            node: Some(node),
            fault: String::new(),
            details,
        }
    }

    fn observed(at: i64, leader: usize) -> JournalEntry {
        let details = serde_json::json!({ "leader": leader, "reporter": 0 });
        JournalEntry {
            at: at * SECOND,
            act: "observed".to_owned(),
            node: None,
            fault: String::new(),
            details,
        }
    }

    #[test]
    fn a_break_lasts_until_all_of_its_reasons_have_ended() {
        let journal = [
            entry(1, "mgmt", 0, "cut", "begin"),
            entry(2, "vipwatch", 0, "freeze", "begin"),
            entry(5, "mgmt", 0, "heal", "begin"),
            entry(7, "vipwatch", 0, "continue", "begin"),
            entry(8, "vipwatch", 0, "continue", "done"),
        ];
        let breaks = breaks(&journal, 0, 100 * SECOND);
        assert_eq!(breaks.len(), 1);
        assert_eq!((breaks[0].heal, breaks[0].to), (7 * SECOND, 8 * SECOND));
        assert!(!breaks[0].is_network);
    }

    #[test]
    fn the_loss_of_a_member_that_is_not_the_leader_is_no_election() {
        let cut = entry(10, "mgmt", 1, "cut", "begin");
        assert!(unstable(&[observed(5, 0), cut.clone()], 100 * SECOND).is_empty());
        assert_eq!(unstable(&[observed(5, 1), cut], 100 * SECOND).len(), 1);
    }

    #[test]
    fn the_loss_of_the_quorum_lasts_until_a_second_member_is_back() {
        let journal = [
            observed(5, 0),
            entry(10, "etcd", 0, "kill", "begin"),
            entry(11, "etcd", 1, "kill", "begin"),
            entry(20, "etcd", 0, "start", "begin"),
            entry(20, "etcd", 0, "start", "done"),
        ];
        let periods = unstable(&journal, 100 * SECOND);
        let expected = UnstablePeriod { from: 10 * SECOND, to: 24 * SECOND, is_quorum_lost: true };
        assert_eq!(periods, [expected]);
    }
}
