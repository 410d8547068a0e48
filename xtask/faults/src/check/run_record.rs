// SPDX-License-Identifier: Apache-2.0
//! Everything that was recorded about one run.

use std::path::Path;

use serde_json::Value;

use super::answers::{self, NodeAnswers};
use super::processes::{self, ProcessTimeline};
use super::roles::{self, NodeTimeline};
use super::wire::{self, PortDirection, WireAdvert};
use crate::FaultsError;
use crate::journal::{self, JournalEntry};
use crate::moment::{Micros, SECOND};

/// An instance of the lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceFacts {
    pub name: String,
    pub vrid: u8,
    pub addresses: Vec<String>,
    pub address_link: String,
}

/// The recordings about one node.
pub struct NodeFacts {
    pub answers: NodeAnswers,
    pub timeline: NodeTimeline,
    pub processes: ProcessTimeline,
    /// The configured addresses of the first instance, from each change on.
    pub configured: Vec<(Micros, Vec<String>)>,
}

/// The recordings about one run.
pub struct RunRecord {
    pub seed: u64,
    pub label: String,
    pub priorities: Vec<u8>,
    pub version: u8,
    pub interval: Micros,
    pub instances: Vec<InstanceFacts>,
    /// The index of each port of the switch; the last one is that of the foreign host.
    pub ports: Vec<u32>,
    pub journal: Vec<JournalEntry>,
    pub nodes: Vec<NodeFacts>,
    pub adverts: Vec<WireAdvert>,
    /// When all nodes were ready.
    pub start: Micros,
    pub end: Micros,
}

pub fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

pub fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(|item| T::try_from(item.as_u64()?).ok()).collect()
}

impl RunRecord {
    pub fn read(directory: &Path) -> Result<Self, FaultsError> {
        let setup: Value =
            serde_json::from_str(&std::fs::read_to_string(directory.join("setup.json"))?)?;
        let journal = journal::read(&directory.join("injector.jsonl"))?;
        let last = |act: &str| journal.iter().rev().find(|entry| entry.act == act);
        let end = last("end").ok_or_else(|| FaultsError("the run has no end".to_owned()))?.at;
        let start = last("node-ready").map_or(end, |entry| entry.at);
        let instances = instances(&setup);
        let priorities: Vec<u8> = numbers(&setup["priorities"]);
        let nodes = (0..priorities.len())
            .map(|node| read_node(directory, node, &journal, &instances, end))
            .collect::<Result<Vec<NodeFacts>, FaultsError>>()?;
        Ok(Self {
            seed: setup["seed"].as_u64().unwrap_or_default(),
            label: setup["label"].as_str().unwrap_or_default().to_owned(),
            version: u8::try_from(setup["version"].as_u64().unwrap_or(2))?,
            interval: setup["advert_millis"].as_i64().unwrap_or(1000) * 1000,
            priorities,
            instances,
            ports: numbers(&setup["ports"]),
            adverts: wire::read(&directory.join("wire.pcap"))?,
            journal,
            nodes,
            start,
            end,
        })
    }

    /// The words of the injected faults.
    pub fn faults(&self) -> Vec<String> {
        let begun = self.journal.iter().filter(|entry| entry.act == "fault-begin");
        begun.map(|entry| entry.fault.clone()).collect()
    }

    /// The adverts that the switch delivered to a node.
    pub fn delivered(&self, node: usize, vrid: u8) -> impl Iterator<Item = &WireAdvert> {
        let port = self.ports.get(node).copied();
        self.adverts.iter().filter(move |advert| {
            Some(advert.port) == port
                && advert.direction == PortDirection::ToHost
                && advert.vrid == vrid
        })
    }

    /// The adverts that a host has sent; the number after the last node is that of the foreign host.
    pub fn sent(&self, host: usize, vrid: u8) -> impl Iterator<Item = &WireAdvert> {
        let port = self.ports.get(host).copied();
        self.adverts.iter().filter(move |advert| {
            Some(advert.port) == port
                && advert.direction == PortDirection::FromHost
                && advert.vrid == vrid
        })
    }

    /// The master-down interval for a priority: RFC 3768 and RFC 5798, section 6.1.
    pub fn down_interval(&self, priority: u8) -> Micros {
        let unit = if self.version == 2 { SECOND } else { self.interval };
        3 * self.interval + unit * (256 - i64::from(priority)) / 256
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

pub fn instances(setup: &Value) -> Vec<InstanceFacts> {
    let items = setup["instances"].as_array().into_iter().flatten();
    let instance = |item: &Value| InstanceFacts {
        name: item["name"].as_str().unwrap_or_default().to_owned(),
        vrid: u8::try_from(item["vrid"].as_u64().unwrap_or_default()).unwrap_or_default(),
        addresses: strings(&item["addresses"]),
        address_link: item["address_link"].as_str().unwrap_or_default().to_owned(),
    };
    items.map(instance).collect()
}

fn read_node(
    directory: &Path,
    node: usize,
    journal: &[JournalEntry],
    instances: &[InstanceFacts],
    end: Micros,
) -> Result<NodeFacts, FaultsError> {
    let own = directory.join(format!("node{node}"));
    let configured: Vec<(Micros, Vec<String>)> = journal
        .iter()
        .filter(|entry| entry.act == "configured" && entry.node == Some(node))
        .map(|entry| (entry.at, strings(&entry.details["addresses"])))
        .collect();
    Ok(NodeFacts {
        answers: answers::read(&own)?,
        timeline: roles::read(&own, instances, &configured, end)?,
        processes: processes::of_node(journal, node, end),
        configured,
    })
}

#[cfg(test)]
pub mod examples {
    //! A record without faults, for tests of the rules.

    use super::*;
    use crate::check::roles::Span;

    /// Two nodes with one instance, for 200 seconds; node 0 is primary and node 1 is backup.
    pub fn record() -> RunRecord {
        let end = 200 * SECOND;
        let node = |role: &'static str| NodeFacts {
            answers: NodeAnswers::default(),
            timeline: NodeTimeline {
                roles: vec![vec![Span { start: 0, end, value: role }]],
                link: vec![Span { start: 0, end, value: true }],
            },
            processes: ProcessTimeline::default(),
            configured: Vec::new(),
        };
        RunRecord {
            seed: 0,
            label: String::new(),
            priorities: vec![150, 100],
            version: 2,
            interval: SECOND,
            instances: vec![InstanceFacts {
                name: "VI_1".to_owned(),
                vrid: 51,
                addresses: vec!["10.9.0.101/24".to_owned()],
                address_link: "eth0".to_owned(),
            }],
            ports: vec![3, 4, 5],
            journal: Vec::new(),
            nodes: vec![node("primary"), node("backup")],
            adverts: Vec::new(),
            start: 0,
            end,
        }
    }

    /// An advert of node `from` that the switch delivers to node `to`.
    pub fn delivered(at: Micros, from: u8, to: u32, priority: u8) -> WireAdvert {
        WireAdvert {
            at,
            port: 3 + to,
            direction: PortDirection::ToHost,
            source: std::net::Ipv4Addr::new(10, 9, 0, from + 1).into(),
            version: 2,
            vrid: 51,
            priority,
            interval_millis: 1000,
            addresses: vec![std::net::Ipv4Addr::new(10, 9, 0, 101).into()],
        }
    }
}
