// SPDX-License-Identifier: Apache-2.0
//! The recordings that every lab has: its setup, the log of the injector, the adverts, the kernels and the answers of the
//! nodes.

use std::path::Path;

use super::answers::NodeAnswers;
use super::periods::ActPeriod;
use super::roles::{self, NodeTimeline};
use super::wire::{self, PortDirection, WireAdvert};
use crate::journal::{self, JournalEntry};
use crate::moment::{Micros, SECOND};
use crate::setup::{InstanceFacts, SetupDocument};
use crate::{FaultsError, LabResult};

/// The recordings of one run.
pub struct RecordedRun {
    pub setup: SetupDocument,
    pub journal: Vec<JournalEntry>,
    /// When all nodes were ready.
    pub start: Micros,
    pub end: Micros,
    pub adverts: Vec<WireAdvert>,
    pub nodes: Vec<RecordedNode>,
}

/// The recordings about one node.
pub struct RecordedNode {
    pub answers: NodeAnswers,
    pub timeline: NodeTimeline,
    /// The addresses of the first instance that keepalived has read, from each change on.
    pub configured: Vec<(Micros, Vec<String>)>,
}

impl RecordedRun {
    pub fn read(directory: &Path) -> LabResult<Self> {
        let setup = std::fs::read_to_string(directory.join("setup.json"))?;
        let journal = journal::read(&directory.join("injector.jsonl"))?;
        let last = |act: &str| journal.iter().rev().find(|entry| entry.act == act);
        let end = last("end").ok_or_else(|| FaultsError("the run has no end".to_owned()))?.at;
        let mut run = Self {
            setup: serde_json::from_str(&setup)?,
            start: last("node-ready").map_or(end, |entry| entry.at),
            end,
            journal,
            adverts: wire::read(&directory.join("wire.pcap"))?,
            nodes: Vec::new(),
        };
        for node in 0..run.setup.priorities.len() {
            run.nodes.push(run.read_node(&directory.join(format!("node{node}")), node)?);
        }
        Ok(run)
    }

    fn read_node(&self, directory: &Path, node: usize) -> LabResult<RecordedNode> {
        let configured = self.read_by_keepalived(node);
        let mut answers = NodeAnswers::default();
        let is_observed = self.is_observed(node);
        if !self.is_cluster() && is_observed {
            answers.read_history(&directory.join("history.json"))?;
            answers.read_deliveries(&directory.join("hook.jsonl"))?;
        }
        if is_observed {
            answers.read_events(&directory.join("events.jsonl"))?;
        }
        let timeline = roles::read(directory, &self.setup.instances, &configured, self.end)?;
        Ok(RecordedNode { answers, timeline, configured })
    }

    /// keepalived reads its file when it starts, and after SIGHUP.
    fn read_by_keepalived(&self, node: usize) -> Vec<(Micros, Vec<String>)> {
        let (mut file, mut read): (&[String], Vec<(Micros, Vec<String>)>) = (&[], Vec::new());
        for entry in self.acts(node, &["configured", "keepalived-start", "signal"]) {
            match entry.act.as_str() {
                "configured" => file = &entry.addresses,
                "signal" if !entry.signals.iter().any(|name| name == "HUP") => continue,
                _ => {}
            }
            let is_read = entry.act != "configured" || read.is_empty();
            if is_read && read.last().is_none_or(|(_, last)| last != file) {
                read.push((entry.at, file.to_vec()));
            }
        }
        read
    }

    /// Whether `vipwatch` runs on a host.
    pub fn is_observed(&self, node: usize) -> bool {
        self.setup.unobserved != Some(node)
    }

    pub fn is_cluster(&self) -> bool {
        self.setup.times.is_some()
    }

    /// The time between two adverts.
    pub fn interval(&self) -> Micros {
        self.setup.advert_millis * 1000
    }

    /// The master-down interval for a priority: RFC 3768 and RFC 5798, section 6.1.
    pub fn down_interval(&self, priority: u8) -> Micros {
        let unit = if self.setup.version == 2 { SECOND } else { self.interval() };
        i64::from(self.setup.down_timer) * self.interval()
            + unit * (256 - i64::from(priority)) / 256
    }

    /// The adverts that the switch delivered to a host.
    pub fn delivered<'a>(
        &'a self,
        host: usize,
        instance: &'a InstanceFacts,
    ) -> impl Iterator<Item = &'a WireAdvert> {
        self.at_port(host, instance, PortDirection::ToHost)
    }

    /// The adverts that a host has sent; the number after the last node is that of the foreign host.
    pub fn sent<'a>(
        &'a self,
        host: usize,
        instance: &'a InstanceFacts,
    ) -> impl Iterator<Item = &'a WireAdvert> {
        self.at_port(host, instance, PortDirection::FromHost)
    }

    /// keepalived receives unicast and multicast adverts by different sockets: each has its own virtual router ids.
    fn at_port<'a>(
        &'a self,
        host: usize,
        instance: &'a InstanceFacts,
        direction: PortDirection,
    ) -> impl Iterator<Item = &'a WireAdvert> {
        let port = self.setup.ports.get(host).copied();
        self.adverts.iter().filter(move |advert| {
            Some(advert.port) == port
                && advert.direction == direction
                && (advert.vrid, advert.is_unicast) == (instance.vrid, instance.is_unicast)
        })
    }

    /// The entries of the log about a node with one of these acts.
    pub fn acts(
        &self,
        node: usize,
        acts: &[&str],
    ) -> impl DoubleEndedIterator<Item = &JournalEntry> {
        let is_own = move |entry: &&JournalEntry| {
            entry.node == Some(node) && acts.contains(&entry.act.as_str())
        };
        self.journal.iter().filter(is_own)
    }

    /// The time of the end of an act that begins with this entry.
    pub fn done(&self, begin: &JournalEntry) -> Micros {
        let is_done = |entry: &&JournalEntry| {
            entry.at >= begin.at
                && entry.phase == "done"
                && (&entry.act, entry.node, &entry.how) == (&begin.act, begin.node, &begin.how)
        };
        self.journal.iter().find(is_done).map_or(self.end, |entry| entry.at)
    }

    /// The periods from one of the acts `begins` to one of the acts `ends`, each with its word.
    pub fn periods(
        &self,
        node: usize,
        begins: &[(&str, &str)],
        ends: &[(&str, &str)],
    ) -> Vec<ActPeriod> {
        let mut periods: Vec<ActPeriod> = Vec::new();
        let is_own = |entry: &&JournalEntry| entry.node == Some(node) && entry.phase == "begin";
        for entry in self.journal.iter().filter(is_own) {
            let act = (entry.act.as_str(), entry.how.as_str());
            let (at, done, end) = (entry.at, self.done(entry), self.end);
            match periods.last_mut().filter(|last| last.heal == end) {
                None if begins.contains(&act) => {
                    periods.push(ActPeriod { from: at, done, heal: end, to: end });
                }
                Some(last) if ends.contains(&act) => {
                    last.heal = at;
                    last.to = done;
                }
                _ => {}
            }
        }
        periods
    }

    /// The periods of faults with one of these words on a node, from the injection to the recovery.
    pub fn fault_periods(&self, node: usize, words: &[&str]) -> Vec<ActPeriod> {
        let mut periods: Vec<ActPeriod> = Vec::new();
        let acts = ["fault-begin", "fault-done", "recover-begin", "recover-done"];
        for entry in self.acts(node, &acts).filter(|entry| words.contains(&entry.fault.as_str())) {
            let (at, end) = (entry.at, self.end);
            match (entry.act.as_str(), periods.last_mut()) {
                ("fault-begin", _) => {
                    periods.push(ActPeriod { from: at, done: end, heal: end, to: end });
                }
                ("fault-done", Some(period)) => period.done = at,
                ("recover-begin", Some(period)) => period.heal = at,
                ("recover-done", Some(period)) => period.to = at,
                _ => {}
            }
        }
        periods
    }

    /// The words of the injected faults.
    pub fn faults(&self) -> Vec<String> {
        let begun = self.journal.iter().filter(|entry| entry.act == "fault-begin");
        begun.map(|entry| entry.fault.clone()).collect()
    }

    /// A time as seconds since the nodes were ready.
    pub fn clock(&self, at: Micros) -> String {
        crate::moment::relative(at, self.start)
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
}

#[cfg(test)]
mod tests {
    use super::examples::run;
    use super::*;

    #[test]
    fn a_fault_lasts_from_its_begin_to_its_recovery() {
        let mut run = run();
        let acts = ["fault-begin", "fault-done", "recover-begin", "recover-done"];
        let entry = |(at, act): (i64, &str)| JournalEntry {
            at,
            act: act.to_owned(),
            node: Some(0),
            fault: "lose-child".to_owned(),
            ..JournalEntry::default()
        };
        run.journal = (1..).zip(acts).map(entry).collect();
        let period = ActPeriod { from: 1, done: 2, heal: 3, to: 4 };
        assert_eq!(run.fault_periods(0, &["freeze-parent", "lose-child"]), [period]);
        assert_eq!(run.fault_periods(0, &["freeze-child"]), []);
        assert_eq!(run.fault_periods(1, &["lose-child"]), []);
    }
}

#[cfg(test)]
pub mod examples {
    //! Recordings without faults, for tests of the rules.

    use super::*;
    use crate::check::periods::Span;
    use crate::setup::InstanceFacts;

    /// The recordings of a node with one role for 200 seconds.
    pub fn node(role: &'static str) -> RecordedNode {
        let (start, end) = (-10 * SECOND, 200 * SECOND);
        RecordedNode {
            answers: NodeAnswers::default(),
            timeline: NodeTimeline {
                roles: vec![vec![Span { start, end, value: role }]],
                link: vec![Span { start, end, value: true }],
            },
            configured: Vec::new(),
        }
    }

    /// Two nodes with one instance, for 200 seconds; node 0 is primary and node 1 is backup.
    pub fn run() -> RecordedRun {
        RecordedRun {
            setup: SetupDocument {
                seed: 0,
                label: String::new(),
                priorities: vec![150, 100],
                version: 2,
                advert_millis: 1000,
                instances: vec![InstanceFacts {
                    name: "VI_1".to_owned(),
                    vrid: 51,
                    addresses: vec!["10.9.0.101/24".to_owned()],
                    address_link: "eth0".to_owned(),
                    advert_link: "eth0".to_owned(),
                    is_unicast: false,
                }],
                ports: vec![3, 4, 5],
                times: None,
                min_backups: None,
                down_timer: 3,
                unobserved: None,
                has_no_copy: false,
                shape: None,
            },
            journal: Vec::new(),
            start: 0,
            end: 200 * SECOND,
            adverts: Vec::new(),
            nodes: vec![node("primary"), node("backup")],
        }
    }

    /// An advert of host `from` that the switch delivered to host `to`.
    pub fn delivered(at: Micros, from: u8, to: u32, priority: u8) -> WireAdvert {
        WireAdvert {
            at,
            port: 3 + to,
            direction: PortDirection::ToHost,
            source: std::net::Ipv4Addr::new(10, 9, 0, from + 1).into(),
            is_unicast: false,
            vrid: 51,
            priority,
            addresses: vec![std::net::Ipv4Addr::new(10, 9, 0, 101).into()],
        }
    }
}
