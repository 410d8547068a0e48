// SPDX-License-Identifier: Apache-2.0
//! The processes of this machine, and which of them belong to one monitor.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use vipwatch_linux::process_table::{self, ProcessId, ProcessStat, RunState};

use crate::command_line::{MonitorCommand, base_name};

/// All processes that run, by pid.
pub(super) fn process_stats() -> io::Result<HashMap<u32, ProcessStat>> {
    let mut table = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if let Ok(stat) = process_table::stat(pid)
            && stat.state != RunState::Ended
        {
            table.insert(pid, stat);
        }
    }
    Ok(table)
}

/// Whether an ancestor of the process `pid` is a monitor of the same router.
pub(super) fn is_part(
    pid: u32,
    command: &MonitorCommand,
    all: &HashMap<u32, MonitorCommand>,
    table: &HashMap<u32, ProcessStat>,
) -> bool {
    let parent = |pid: &u32| table.get(pid).map(|stat| stat.parent);
    let mut ancestors = std::iter::successors(parent(&pid), parent).take(64);
    ancestors.any(|pid| all.get(&pid).is_some_and(|one| one.is_same_instance(command)))
}

pub(super) fn descendants(pid: u32, table: &HashMap<u32, ProcessStat>) -> Vec<ProcessId> {
    let mut found: Vec<ProcessId> = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for stat in table.values().filter(|stat| stat.parent == parent) {
            found.push(stat.id);
            parents.push(stat.id.pid);
        }
    }
    found
}

/// A process `ip monitor` that Neutron's script has started. If the script is killed, it is no descendant any more; its
/// output still shows the router that it belongs to.
pub(super) struct AddressReader {
    pub(super) id: ProcessId,
    pub(super) fifo: PathBuf,
}

pub(super) fn address_readers(table: &HashMap<u32, ProcessStat>) -> Vec<AddressReader> {
    let is_reader = |stat: &&ProcessStat| {
        let words = process_table::command_line(stat.id.pid).unwrap_or_default();
        words.first().is_some_and(|word| base_name(word) == "ip")
            && words.iter().any(|word| word == "monitor")
    };
    let output = |stat: &ProcessStat| {
        let link = std::fs::read_link(format!("/proc/{}/fd/1", stat.id.pid)).ok()?;
        // The next script deletes the name and creates a new one.
        let fifo = PathBuf::from(link.to_str()?.trim_end_matches(" (deleted)"));
        Some(AddressReader { id: stat.id, fifo })
    };
    table.values().filter(is_reader).filter_map(output).collect()
}
