// SPDX-License-Identifier: Apache-2.0
//! Everything that was recorded about one run.

use std::path::Path;

use super::answers::{self, NodeAnswers};
use super::processes::{self, ProcessTimeline};
use super::recorded_run::RecordedRun;
use super::roles::{self, NodeTimeline};
use super::wire::{self, PortDirection, WireAdvert};
use crate::FaultsError;
use crate::moment::{Micros, SECOND};

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
    pub run: RecordedRun,
    pub priorities: Vec<u8>,
    pub version: u8,
    pub interval: Micros,
    /// The index of each port of the switch; the last one is that of the foreign host.
    pub ports: Vec<u32>,
    pub nodes: Vec<NodeFacts>,
    pub adverts: Vec<WireAdvert>,
}

impl RunRecord {
    pub fn read(directory: &Path) -> Result<Self, FaultsError> {
        let run = RecordedRun::read(directory)?;
        let setup = &run.setup;
        let priorities = setup.priorities.clone();
        let nodes = (0..priorities.len())
            .map(|node| read_node(directory, node, &run))
            .collect::<Result<Vec<NodeFacts>, FaultsError>>()?;
        Ok(Self {
            version: setup.version,
            interval: run.advert_interval(),
            priorities,
            ports: setup.ports.clone(),
            adverts: wire::read(&directory.join("wire.pcap"))?,
            nodes,
            run,
        })
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
}

fn read_node(directory: &Path, node: usize, run: &RecordedRun) -> Result<NodeFacts, FaultsError> {
    let own = directory.join(format!("node{node}"));
    let configured = run.configured(node);
    Ok(NodeFacts {
        answers: answers::read(&own)?,
        timeline: roles::read(&own, &run.setup.instances, &configured, run.end)?,
        processes: processes::of_node(&run.journal, node, run.end),
        configured,
    })
}

#[cfg(test)]
pub mod examples {
    //! A record without faults, for tests of the rules.

    use super::*;
    use crate::check::recorded_run::examples::run;
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
            run: run(end),
            priorities: vec![150, 100],
            version: 2,
            interval: SECOND,
            ports: vec![3, 4, 5],
            nodes: vec![node("primary"), node("backup")],
            adverts: Vec::new(),
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
