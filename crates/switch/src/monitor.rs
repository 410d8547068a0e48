// SPDX-License-Identifier: Apache-2.0
//! The running monitors of this machine, found in `/proc`.
//!
//! A monitor may have further processes: the script of Neutron 29 runs a subshell and `ip monitor`, the drop-in a helper
//! for conntrackd. They are descendants of the monitor and end with it.
//!
//! LIMIT: a process counts only if root or the owner of the agent's state directory runs it, and if it uses that
//! directory. Any user can start a process with the command line of a monitor; the arguments of such a process must not
//! reach a program that root starts.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vipwatch_core::{ErrorChain, NetnsName};
use vipwatch_linux::netns::NetnsId;
use vipwatch_linux::process_table::{self, ProcessId, ProcessStat, RunState};

use crate::command_line::{MonitorCommand, PROGRAM, base_name, interpreter_family};
use crate::failure::{SwitchCode, SwitchFailure};

/// The program that a monitor runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MonitorProgram {
    /// The drop-in of this project.
    Vipwatch,
    /// Neutron's Python daemon, up to release 28.
    Python,
    /// Neutron's shell script, from release 29 on.
    Script,
    /// Neither of them.
    Unknown,
}

impl MonitorProgram {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Vipwatch => "vipwatch",
            Self::Python => "neutron-python",
            Self::Script => "neutron-script",
            Self::Unknown => "unknown",
        }
    }

    /// The program of a process, by its executable. The interpreter decides about Neutron's programs: the file that it
    /// reads may have been replaced since.
    fn of(executable: &Path, first_word: &str) -> Self {
        let path = executable.to_string_lossy();
        match interpreter_family(&path) {
            Some("python") => Self::Python,
            Some(_) => Self::Script,
            // The shell of a small container is one of many names of this program.
            None if base_name(&path) == "busybox"
                && interpreter_family(first_word) == Some("sh") =>
            {
                Self::Script
            }
            None if base_name(&path) == PROGRAM => Self::Vipwatch,
            None => Self::Unknown,
        }
    }
}

/// Where a monitor runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MonitorPlace {
    /// It sees the same files as this process.
    Here,
    /// It has another root directory: that of a container.
    Container,
}

/// A running monitor.
#[derive(Debug, Clone)]
pub(crate) struct RunningMonitor {
    pub(crate) id: ProcessId,
    pub(crate) program: MonitorProgram,
    pub(crate) command: MonitorCommand,
    pub(crate) user: u32,
    pub(crate) place: MonitorPlace,
    /// Whether the agent has started it with `ip netns exec`, as releases up to 15 do.
    pub(crate) is_started_inside: bool,
    /// The processes below it.
    pub(crate) descendants: Vec<ProcessId>,
}

/// Why the running monitors are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorListError {
    #[error("cannot list the processes in /proc")]
    Processes(#[source] io::Error),
    #[error("there is no directory {}: Neutron's L3 agent is not installed here, or uses another directory", path.display())]
    NoStatePath { path: PathBuf },
    #[error("cannot examine {}", path.display())]
    StatePath { path: PathBuf, source: io::Error },
    #[error("cannot examine process {pid}{of}")]
    Process { pid: u32, of: String, source: io::Error },
}

impl MonitorListError {
    /// The hint for the operator.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Process { .. } => {
                "run this command as root; in a container it needs the capability CAP_SYS_PTRACE"
            }
            Self::Processes(_) | Self::NoStatePath { .. } | Self::StatePath { .. } => {
                "--state-path names the agent's directory; run this command where the agent runs"
            }
        }
    }

    fn of_process(pid: u32, of: String) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Process { pid, of, source }
    }

    /// Whether the process has ended while it was read.
    fn is_vanished(&self) -> bool {
        matches!(self, Self::Process { source, .. } if process_table::is_vanished(source))
    }
}

impl From<MonitorListError> for SwitchFailure {
    fn from(error: MonitorListError) -> Self {
        let is_denied = matches!(&error, MonitorListError::Process { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied);
        let code = if is_denied { SwitchCode::NotPermitted } else { SwitchCode::Environment };
        Self::new(code, ErrorChain(&error)).hint(error.hint())
    }
}

/// Finds the monitors that use the agent's directory `state_path`, sorted by router.
pub(crate) fn running_monitors(state_path: &Path) -> Result<Vec<RunningMonitor>, MonitorListError> {
    let owner = owner_of(state_path)?;
    let table = process_stats().map_err(MonitorListError::Processes)?;
    let mut candidates: Vec<RunningMonitor> = Vec::new();
    for stat in table.values() {
        let is_wanted =
            |user: u32, command: &MonitorCommand| is_of_agent(user, command, state_path, owner);
        match examine(*stat, is_wanted) {
            Ok(monitor) => candidates.extend(monitor),
            // A process may end while it is read; then it is no monitor.
            Err(error) if error.is_vanished() => {}
            Err(error) => return Err(error),
        }
    }
    // A child process of a monitor that has the same command line is a part of that monitor.
    let parts: Vec<bool> = candidates.iter().map(|one| is_part(one, &candidates, &table)).collect();
    let mut parts = parts.into_iter();
    candidates.retain(|_| parts.next() == Some(false));
    let readers = address_readers(&table);
    for monitor in &mut candidates {
        monitor.descendants = descendants(monitor.id.pid, &table);
        let fifo = monitor.command.conf_dir.join("ip-monitor");
        monitor.descendants.extend(readers.iter().filter(|one| one.fifo == fifo).map(|one| one.id));
    }
    candidates.sort_by(|a, b| (&a.command.router, a.id).cmp(&(&b.command.router, b.id)));
    Ok(candidates)
}

/// The number of processes that have the command line of a monitor, but do not belong to the agent with this directory.
pub(crate) fn foreign_monitors(state_path: &Path) -> Result<usize, MonitorListError> {
    let owner = owner_of(state_path)?;
    let table = process_stats().map_err(MonitorListError::Processes)?;
    let is_foreign =
        |user: u32, command: &MonitorCommand| !is_of_agent(user, command, state_path, owner);
    // A process may end while it is read; then it is no monitor.
    Ok(table.values().filter_map(|stat| examine(*stat, is_foreign).ok().flatten()).count())
}

fn is_of_agent(user: u32, command: &MonitorCommand, state_path: &Path, owner: u32) -> bool {
    (user == 0 || user == owner) && command.state_path == state_path
}

/// The running monitor with this pid; `None` if the process is not a monitor, or has ended.
pub(crate) fn monitor_at(pid: u32) -> Option<RunningMonitor> {
    examine(process_table::stat(pid).ok()?, |_, _| true).ok().flatten()
}

fn owner_of(state_path: &Path) -> Result<u32, MonitorListError> {
    let failed = |source: io::Error| {
        let path = state_path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => MonitorListError::NoStatePath { path },
            _ => MonitorListError::StatePath { path, source },
        }
    };
    Ok(std::fs::metadata(state_path).map_err(failed)?.uid())
}

fn process_stats() -> io::Result<HashMap<u32, ProcessStat>> {
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

/// Reads a process; `None` if it is not a monitor, or not a wanted one. A monitor that cannot be read is an error: it
/// must not be missing in a list without a message.
fn examine(
    stat: ProcessStat,
    is_wanted: impl FnOnce(u32, &MonitorCommand) -> bool,
) -> Result<Option<RunningMonitor>, MonitorListError> {
    let pid = stat.id.pid;
    let unknown = || MonitorListError::of_process(pid, String::new());
    let words = process_table::command_line(pid).map_err(unknown())?;
    let Some(command) = MonitorCommand::parse(&words) else { return Ok(None) };
    let user = process_table::user(pid).map_err(unknown())?;
    if !is_wanted(user, &command) {
        return Ok(None);
    }
    let of = format!(", the monitor of router {}", command.router);
    let first_word = words.first().map_or("", String::as_str);
    read_monitor(stat, user, command, first_word)
        .map(Some)
        .map_err(MonitorListError::of_process(pid, of))
}

fn read_monitor(
    stat: ProcessStat,
    user: u32,
    command: MonitorCommand,
    first_word: &str,
) -> io::Result<RunningMonitor> {
    let pid = stat.id.pid;
    let executable = process_table::executable(pid)?;
    let process = |entry: &str| PathBuf::from(format!("/proc/{pid}/{entry}"));
    let has_same = |entry: &str| -> io::Result<bool> {
        let own = process_table::file_identity(&Path::new("/proc/self").join(entry))?;
        Ok(process_table::file_identity(&process(entry))? == own)
    };
    let place = if has_same("root")? { MonitorPlace::Here } else { MonitorPlace::Container };
    let is_inside = NetnsId::of_name(&command.netns)? == Some(process_table::netns(pid)?)
        && has_mounts_of_netns(&std::fs::read_to_string(process("mountinfo"))?, &command.netns);
    Ok(RunningMonitor {
        id: stat.id,
        program: MonitorProgram::of(&executable, first_word),
        user,
        is_started_inside: is_inside && place == MonitorPlace::Here,
        command,
        place,
        descendants: Vec::new(),
    })
}

/// Whether `ip netns exec` has started a process, by its `/proc/PID/mountinfo`: it mounts `/sys` again, with the name of the
/// namespace as the source. Other mounts of its own prove nothing: an agent with `PrivateTmp=` has them, and every
/// monitor of vipwatch is in the namespace of its router.
fn has_mounts_of_netns(mounts: &str, netns: &NetnsName) -> bool {
    // "ID PARENT DEVICE ROOT PLACE OPTIONS [TAG…] - TYPE SOURCE OPTIONS"
    let suffix = |line: &str| line.split_once(" - ").map(|(_, suffix)| suffix.to_owned());
    mounts.lines().filter_map(suffix).any(|suffix| {
        let mut fields = suffix.split(' ');
        fields.next() == Some("sysfs") && fields.next() == Some(netns.as_str())
    })
}

/// Whether an ancestor of `monitor` is a monitor of the same router.
fn is_part(
    monitor: &RunningMonitor,
    all: &[RunningMonitor],
    table: &HashMap<u32, ProcessStat>,
) -> bool {
    let parent = |pid: &u32| table.get(pid).map(|stat| stat.parent);
    let ancestors = std::iter::successors(parent(&monitor.id.pid), parent).take(64);
    ancestors.into_iter().any(|pid| {
        let same = |one: &&RunningMonitor| one.command.is_same_instance(&monitor.command);
        all.iter().filter(same).any(|one| one.id.pid == pid)
    })
}

fn descendants(pid: u32, table: &HashMap<u32, ProcessStat>) -> Vec<ProcessId> {
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
struct AddressReader {
    id: ProcessId,
    fifo: PathBuf,
}

fn address_readers(table: &HashMap<u32, ProcessStat>) -> Vec<AddressReader> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_state_path_says_that_the_agent_is_not_installed() {
        let directory = tempfile::tempdir().unwrap();
        let error = running_monitors(&directory.path().join("neutron")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("neutron: Neutron's L3 agent is not installed here"), "{text}");
    }
}
