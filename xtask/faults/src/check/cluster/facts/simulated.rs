// SPDX-License-Identifier: Apache-2.0
//! The node that exists only as records in etcd, which the injector writes.

use super::{done, how, is_begin};
use crate::journal::JournalEntry;
use crate::moment::Micros;

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

/// All lives of the simulated node, in their order.
pub fn lives(journal: &[JournalEntry], end: Micros) -> Vec<SimulatedLife> {
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
                is_twice: role == "two-backups",
                silent: None,
                stop: end,
                gone: end,
            }),
        }
    }
    lives
}
