// SPDX-License-Identifier: Apache-2.0
//! The running monitors of this machine, found in `/proc`.
//!
//! A monitor may have further processes: the script of Neutron 29 runs a subshell and `ip monitor`, the drop-in a helper
//! for conntrackd. They are descendants of the monitor and end with it.
//!
//! LIMIT: a process counts only if root or the owner of the agent's state directory runs it, if it uses that directory, and
//! if it has the user namespace and the root directory of this process. Any user can start a process with the command
//! line of a monitor, and root in a container has the user id 0 too; the arguments of such a process must not reach a
//! program that root starts. Nothing else of a process in a container is read.

mod family;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vipwatch_core::{ErrorChain, NetnsName};
use vipwatch_linux::file::read_head;
use vipwatch_linux::netns::NetnsId;
use vipwatch_linux::process_table::{self, ProcessId, ProcessStat};

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

/// A running monitor.
#[derive(Debug, Clone)]
pub(crate) struct RunningMonitor {
    pub(crate) id: ProcessId,
    pub(crate) program: MonitorProgram,
    pub(crate) command: MonitorCommand,
    pub(crate) user: u32,
    /// Whether the agent has started it with `ip netns exec`, as releases up to 15 do.
    pub(crate) is_started_inside: bool,
    /// The processes below it.
    pub(crate) descendants: Vec<ProcessId>,
}

/// A process in a container with the command line of one of the agent's monitors.
#[derive(Debug)]
pub(crate) struct ContainerMonitor {
    pub(crate) pid: u32,
    pub(crate) user: u32,
    pub(crate) command: MonitorCommand,
}

/// All processes with the command line of a monitor.
#[derive(Debug, Default)]
pub(crate) struct MonitorList {
    /// The agent's monitors.
    pub(crate) here: Vec<RunningMonitor>,
    pub(crate) in_containers: Vec<ContainerMonitor>,
    /// How many others there are: with another `state_path` or user.
    pub(crate) foreign: usize,
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

impl MonitorList {
    /// Finds the monitors that use the agent's directory `state_path`, sorted by router.
    pub(crate) fn read(state_path: &Path) -> Result<Self, MonitorListError> {
        let owner = owner_of(state_path)?;
        let table = family::process_stats().map_err(MonitorListError::Processes)?;
        let mut list = Self::default();
        for stat in table.values() {
            let is_wanted = |user: u32, command: &MonitorCommand| {
                (user == 0 || user == owner) && command.state_path == state_path
            };
            match examine(*stat, is_wanted) {
                Ok(Examined::Monitor(monitor)) => list.here.push(monitor),
                Ok(Examined::InContainer(monitor)) => list.in_containers.push(monitor),
                Ok(Examined::Foreign) => list.foreign += 1,
                Ok(Examined::NoMonitor) => {}
                // A process may end while it is read; then it is no monitor.
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        list.join_families(&table);
        Ok(list)
    }

    /// A child process of a monitor that has the same command line is a part of that monitor.
    fn join_families(&mut self, table: &HashMap<u32, ProcessStat>) {
        let commands = self.here.iter().map(|one| (one.id.pid, one.command.clone())).collect();
        self.here.retain(|one| !family::is_part(one.id.pid, &one.command, &commands, table));
        let commands =
            self.in_containers.iter().map(|one| (one.pid, one.command.clone())).collect();
        self.in_containers.retain(|one| !family::is_part(one.pid, &one.command, &commands, table));
        let readers = family::address_readers(table);
        for monitor in &mut self.here {
            monitor.descendants = family::descendants(monitor.id.pid, table);
            let fifo = monitor.command.conf_dir.join("ip-monitor");
            let left = readers.iter().filter(|one| one.fifo == fifo).map(|one| one.id);
            monitor.descendants.extend(left);
        }
        self.here.sort_by(|a, b| (&a.command.router, a.id).cmp(&(&b.command.router, b.id)));
        let key = |one: &ContainerMonitor| (one.command.router.clone(), one.pid);
        self.in_containers.sort_by_key(key);
    }
}

/// The agent's monitors with the directory `state_path`, sorted by router.
pub(crate) fn running_monitors(state_path: &Path) -> Result<Vec<RunningMonitor>, MonitorListError> {
    Ok(MonitorList::read(state_path)?.here)
}

/// The running monitor with this pid; `None` if the process is not a monitor, is in a container, or has ended.
pub(crate) fn monitor_at(pid: u32) -> Option<RunningMonitor> {
    match examine(process_table::stat(pid).ok()?, |_, _| true) {
        Ok(Examined::Monitor(monitor)) => Some(monitor),
        _ => None,
    }
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

/// What a process is.
enum Examined {
    Monitor(RunningMonitor),
    InContainer(ContainerMonitor),
    /// It has the command line of a monitor, but is not a wanted one.
    Foreign,
    NoMonitor,
}

/// Reads a process. A monitor that cannot be read is an error: it must not be missing in a list without a message.
fn examine(
    stat: ProcessStat,
    is_wanted: impl FnOnce(u32, &MonitorCommand) -> bool,
) -> Result<Examined, MonitorListError> {
    let pid = stat.id.pid;
    let unknown = || MonitorListError::of_process(pid, String::new());
    let words = process_table::command_line(pid).map_err(unknown())?;
    let Some(command) = MonitorCommand::parse(&words) else { return Ok(Examined::NoMonitor) };
    let user = process_table::user(pid).map_err(unknown())?;
    if !is_wanted(user, &command) {
        return Ok(Examined::Foreign);
    }
    let of = format!(", the monitor of router {}", command.router);
    let failed = || MonitorListError::of_process(pid, of.clone());
    // ORDER: before anything else of the process is read.
    if !process_table::shares_root(pid).map_err(failed())? {
        return Ok(Examined::InContainer(ContainerMonitor { pid, user, command }));
    }
    let first_word = words.first().map_or("", String::as_str);
    read_monitor(stat, user, command, first_word).map(Examined::Monitor).map_err(failed())
}

fn read_monitor(
    stat: ProcessStat,
    user: u32,
    command: MonitorCommand,
    first_word: &str,
) -> io::Result<RunningMonitor> {
    let pid = stat.id.pid;
    let executable = process_table::executable(pid)?;
    let is_inside = NetnsId::of_name(&command.netns)? == Some(process_table::netns(pid)?)
        && has_mounts_of_netns(&mounts(pid)?, &command.netns);
    Ok(RunningMonitor {
        id: stat.id,
        program: MonitorProgram::of(&executable, first_word),
        user,
        is_started_inside: is_inside,
        command,
        descendants: Vec::new(),
    })
}

/// The mounts of a process. A name of a mount need not be UTF-8.
fn mounts(pid: u32) -> io::Result<String> {
    const MAX_BYTES: u64 = 16 << 20;
    let text = read_head(Path::new(&format!("/proc/{pid}/mountinfo")), MAX_BYTES)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
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
