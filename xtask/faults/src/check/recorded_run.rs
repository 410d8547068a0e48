// SPDX-License-Identifier: Apache-2.0
//! The recordings that every lab has: its setup, and the log of the injector.

use std::path::Path;

use serde_json::Value;

use crate::FaultsError;
use crate::journal::{self, JournalEntry};
use crate::moment::Micros;
use crate::setup::SetupDocument;

/// The setup and the log of one run.
pub struct RecordedRun {
    pub setup: SetupDocument,
    pub journal: Vec<JournalEntry>,
    /// When all nodes were ready.
    pub start: Micros,
    pub end: Micros,
}

impl RecordedRun {
    pub fn read(directory: &Path) -> Result<Self, FaultsError> {
        let setup = std::fs::read_to_string(directory.join("setup.json"))?;
        let journal = journal::read(&directory.join("injector.jsonl"))?;
        let last = |act: &str| journal.iter().rev().find(|entry| entry.act == act);
        let end = last("end").ok_or_else(|| FaultsError("the run has no end".to_owned()))?.at;
        let start = last("node-ready").map_or(end, |entry| entry.at);
        Ok(Self { setup: serde_json::from_str(&setup)?, journal, start, end })
    }

    /// The time between two adverts.
    pub fn advert_interval(&self) -> Micros {
        self.setup.advert_millis * 1000
    }

    /// The configured addresses of the first instance of a node, from each change on.
    pub fn configured(&self, node: usize) -> Vec<(Micros, Vec<String>)> {
        self.journal
            .iter()
            .filter(|entry| entry.act == "configured" && entry.node == Some(node))
            .map(|entry| (entry.at, strings(&entry.details["addresses"])))
            .collect()
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

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
pub mod examples {
    use super::*;
    use crate::setup::InstanceFacts;

    /// A run with one instance and without faults.
    pub fn run(end: Micros) -> RecordedRun {
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
                }],
                ports: vec![3, 4, 5],
                times: None,
                min_backups: None,
            },
            journal: Vec::new(),
            start: 0,
            end,
        }
    }
}
