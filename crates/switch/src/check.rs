// SPDX-License-Identifier: Apache-2.0
//! The checks before a monitor is replaced. They change nothing; `--dry-run` runs them too.

use std::process::Stdio;

use vipwatch_core::NeutronState;
use vipwatch_linux::file::read_head;
use vipwatch_linux::netns::NetnsId;

use crate::failure::SwitchFailure;
use crate::monitor::{MonitorProgram, RunningMonitor};
use crate::plan::{start_command, start_environment};
use crate::program::TargetProgram;
use crate::state::{state_in_kernel, word_in_file};

/// The monitors of one router: the one that the agent knows, and remains of Neutron's earlier ones.
#[derive(Debug)]
pub(crate) struct RouterMonitors {
    pub(crate) monitor: RunningMonitor,
    /// Processes that Neutron's monitors have left behind. Those of the script still write the state file.
    pub(crate) remains: Vec<RunningMonitor>,
}

/// A router with more than one monitor.
#[derive(Debug)]
pub(crate) struct DuplicateMonitors {
    /// The one that the pid file names.
    pub(crate) monitor: RunningMonitor,
    pub(crate) failure: SwitchFailure,
}

/// Groups the monitors by router. A router with two monitors is a doubt.
pub(crate) fn by_router(
    monitors: Vec<RunningMonitor>,
) -> Vec<Result<RouterMonitors, Box<DuplicateMonitors>>> {
    let mut groups: Vec<Vec<RunningMonitor>> = Vec::new();
    for monitor in monitors {
        match groups.last_mut() {
            Some(group) if group[0].command.router == monitor.command.router => group.push(monitor),
            _ => groups.push(vec![monitor]),
        }
    }
    groups.into_iter().map(one_monitor).collect()
}

fn one_monitor(mut group: Vec<RunningMonitor>) -> Result<RouterMonitors, Box<DuplicateMonitors>> {
    let known = group.iter().position(is_in_pid_file).unwrap_or(0);
    let monitor = group.remove(known);
    let is_neutrons = |other: &RunningMonitor| {
        matches!(other.program, MonitorProgram::Python | MonitorProgram::Script)
    };
    if group.iter().all(is_neutrons) {
        return Ok(RouterMonitors { monitor, remains: group });
    }
    let pids: Vec<String> = group.iter().map(|other| other.id.pid.to_string()).collect();
    let message = format!(
        "router {}: process {} is its monitor, and {} too",
        monitor.command.router,
        monitor.id.pid,
        pids.join(", ")
    );
    let failure = SwitchFailure::doubt(message)
        .hint("end the process that is not in the pid file (`kill -TERM PID`), then run this command again");
    Err(Box::new(DuplicateMonitors { monitor, failure }))
}

/// Whether the pid file names this monitor.
pub(crate) fn is_in_pid_file(monitor: &RunningMonitor) -> bool {
    let text = read_head(&monitor.command.pid_file, 32).unwrap_or_default();
    String::from_utf8_lossy(&text).trim().parse() == Ok(monitor.id.pid)
}

/// The word for a primary that the monitors of this node use: the one in the state files of primaries. `None` if there is
/// no primary, or if there are both words.
pub(crate) fn primary_word(monitors: &[RunningMonitor]) -> Option<&'static str> {
    let is_primary = |monitor: &&RunningMonitor| {
        state_in_kernel(&monitor.command).is_ok_and(|state| state == NeutronState::Primary)
    };
    let words = monitors.iter().filter(is_primary);
    let words = words.filter_map(|monitor| word_in_file(&monitor.command.conf_dir));
    let mut words: Vec<&str> = words.filter(|word| *word != "backup").collect();
    words.dedup();
    match words.as_slice() {
        [first, rest @ ..] if rest.iter().all(|word| word == first) => Some(first),
        _ => None,
    }
}

/// Fails if there is a doubt about the replacement of `monitor` by `target`.
pub(crate) fn check(
    monitor: &RunningMonitor,
    target: &TargetProgram,
    primary_word: Option<&str>,
) -> Result<(), SwitchFailure> {
    let router = &monitor.command.router;
    let pid = monitor.id.pid;
    if monitor.program == MonitorProgram::Unknown {
        return Err(SwitchFailure::doubt(format!(
            "router {router}: process {pid} runs neither Neutron's program nor vipwatch's"
        ))
        .hint(format!("look at /proc/{pid}/exe and /proc/{pid}/cmdline")));
    }
    if !is_in_pid_file(monitor) {
        return Err(SwitchFailure::doubt(format!(
            "router {router}: the pid file {} does not name its monitor, process {pid}",
            monitor.command.pid_file.display()
        ))
        .hint("the agent may be starting or ending the monitor now: try again after a minute"));
    }
    if !NetnsId::of_name(&monitor.command.netns).is_ok_and(|id| id.is_some()) {
        return Err(SwitchFailure::doubt(format!(
            "router {router}: there is no network namespace {}",
            monitor.command.netns
        ))
        .hint("the agent may be deleting the router now: try again after a minute"));
    }
    if target.kind == MonitorProgram::Vipwatch {
        check_start(monitor, target, primary_word)?;
    }
    Ok(())
}

/// Runs the new program with `--check`: it fails where a start would fail.
fn check_start(
    monitor: &RunningMonitor,
    target: &TargetProgram,
    primary_word: Option<&str>,
) -> Result<(), SwitchFailure> {
    let router = &monitor.command.router;
    let mut start = start_command(monitor, target, &target.path);
    start.arguments.push("--check".to_owned());
    let mut command = start.command(&target.file, &start_environment(monitor));
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        let path = target.path.display();
        SwitchFailure::environment(format!("cannot execute {path}: {error}"))
    })?;
    // Code 1 means problems that do not prevent a start; one of them is that the old monitor still runs.
    if !matches!(output.status.code(), Some(0 | 1)) {
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.lines().next().unwrap_or("no message").to_owned();
        return Err(SwitchFailure::doubt(format!(
            "router {router}: the new program would not start ({}): {reason}",
            output.status
        ))
        .hint(start.line()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.lines().find_map(|line| line.strip_prefix("word ")?.split_whitespace().next());
    match (word, primary_word) {
        (Some(word), Some(known)) if word != known => Err(SwitchFailure::doubt(format!(
            "router {router}: the monitors of this node use the word {known} for a primary, and the new program would \
             use {word}"
        ))
        .hint("set primary_word in /etc/neutron/neutron-keepalived-state-change.conf")),
        _ => Ok(()),
    }
}
