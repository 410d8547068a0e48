// SPDX-License-Identifier: Apache-2.0
//! How a new monitor is started: the command, the environment, the directory and the cgroup that the old one has from the
//! agent.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use vipwatch_linux::process_table;

use crate::cgroup::cgroups_to_join;
use crate::command_line::MonitorCommand;
use crate::launch::{StartCommand, StartPlan};
use crate::monitor::{MonitorProgram, RunningMonitor};
use crate::program::TargetProgram;
use crate::release::neutron_release;
use crate::stop::StopOrder;

/// The search path of root if the old monitor's environment cannot be trusted.
const ROOT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables that a monitor which runs as the agent's user may pass on to a program that starts as root.
const HARMLESS: [&str; 8] =
    ["HOME", "LANG", "LOGNAME", "PROCESS_TAG", "SHELL", "TERM", "TZ", "USER"];

/// The releases of Neutron with an agent that passes `PROCESS_TAG` to a monitor.
const TAGGING: RangeInclusive<u32> = 22..=28;

/// The command with `path` as the program: as the agent would execute it.
pub(crate) fn start_command(
    monitor: &RunningMonitor,
    target: &TargetProgram,
    path: &Path,
) -> StartCommand {
    let command = &monitor.command;
    StartCommand {
        inside: monitor.is_started_inside.then(|| command.netns.to_string()),
        program: path.to_owned(),
        arguments: arguments_for(target, command),
    }
}

/// The arguments of a monitor in the form that `target` reads.
pub(crate) fn arguments_for(target: &TargetProgram, command: &MonitorCommand) -> Vec<String> {
    match target.kind {
        MonitorProgram::Script => command.spaced_arguments(),
        _ => command.arguments.clone(),
    }
}

/// The environment for the new monitor.
///
/// Neutron's Python daemon has none that can be read: a library writes the title of the process over it. The agent's own
/// variables are restored then: conntrackd is found by `PATH`, and vipwatch recognises Neutron 22 to 28 by `PROCESS_TAG`.
pub(crate) fn start_environment(monitor: &RunningMonitor) -> Vec<String> {
    let words = process_table::environment(monitor.id.pid).unwrap_or_default();
    let is_lost = monitor.program == MonitorProgram::Python && !has_path(&words);
    if is_lost {
        let release = neutron_release(&monitor.command.program);
        return restored_environment(&monitor.command, release);
    }
    passed_environment(words, monitor.user)
}

fn has_path(words: &[String]) -> bool {
    words.iter().any(|word| word.starts_with("PATH="))
}

/// The variables that the agent of this release gives to a monitor.
fn restored_environment(command: &MonitorCommand, release: Option<u32>) -> Vec<String> {
    let mut words = vec![ROOT_PATH.to_owned()];
    if command.has_joined_values() && release.is_some_and(|release| TAGGING.contains(&release)) {
        words.push(format!(
            "PROCESS_TAG=neutron-keepalived-state-change-monitor-{}.monitor",
            command.router
        ));
    }
    words
}

/// The variables of the old monitor that are passed on. Only root can have put variables into the environment of a
/// process of root.
fn passed_environment(mut words: Vec<String>, user: u32) -> Vec<String> {
    if user != 0 {
        words.retain(|word| {
            let name = word.split('=').next().unwrap_or_default();
            HARMLESS.contains(&name) || name.starts_with("LC_") || name.starts_with("SUDO_")
        });
    }
    if !has_path(&words) {
        words.push(ROOT_PATH.to_owned());
    }
    words
}

/// The plan to replace `monitor` by `target`, which is executed under the name `path`. `remains` are processes of
/// earlier monitors, which end too.
pub(crate) fn start_plan(
    monitor: &RunningMonitor,
    remains: &[RunningMonitor],
    target: &TargetProgram,
    path: &Path,
    messages: PathBuf,
) -> io::Result<StartPlan> {
    let pid = monitor.id.pid;
    // The helper of the drop-in ends with it. The Python daemon leaves a process behind that reads netlink messages, and
    // the script leaves its subshell and `ip monitor` behind if it is killed.
    let mut descendants = Vec::new();
    if monitor.program != MonitorProgram::Vipwatch {
        descendants.extend(monitor.descendants.iter().copied());
    }
    for remainder in remains {
        descendants.push(remainder.id);
        descendants.extend(remainder.descendants.iter().copied());
    }
    let oom_score_adj = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok();
    Ok(StartPlan {
        command: start_command(monitor, target, path),
        environment: start_environment(monitor),
        directory: process_table::working_directory(pid).unwrap_or_else(|_gone| "/".into()),
        cgroups: cgroups_to_join(pid)?,
        oom_score_adj: oom_score_adj.map(|value| value.trim().to_owned()),
        messages: (target.kind != MonitorProgram::Script).then_some(messages),
        stop: Some(StopOrder {
            monitor: monitor.id.into(),
            descendants: descendants.into_iter().map(Into::into).collect(),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(separator: &str) -> MonitorCommand {
        let text = "--router_id=R --namespace=N --conf_dir=/c --monitor_interface=i \
                    --monitor_cidr=169.254.0.1/24 --pid_file=/p";
        let words: Vec<String> =
            text.replace('=', separator).split_whitespace().map(str::to_owned).collect();
        MonitorCommand::of_arguments(&words).unwrap()
    }

    #[test]
    fn a_lost_environment_is_restored_as_the_agent_of_the_release_sets_it() {
        let tag = "PROCESS_TAG=neutron-keepalived-state-change-monitor-R.monitor";
        let cases = [
            (Some(21), "=", false),
            (Some(22), "=", true),
            (Some(28), "=", true),
            (Some(29), "=", false),
            (Some(28), " ", false),
            (None, "=", false),
        ];
        for (release, separator, has_tag) in cases {
            let words = restored_environment(&command(separator), release);
            assert_eq!(words[0], ROOT_PATH);
            assert_eq!(words.iter().any(|word| word == tag), has_tag, "{release:?} {separator:?}");
        }
    }

    #[test]
    fn every_environment_has_a_search_path_and_only_root_chooses_it() {
        let words = ["PATH=/opt", "LD_PRELOAD=/x", "TZ=UTC"].map(str::to_owned);
        assert_eq!(passed_environment(words.to_vec(), 0), words);
        assert_eq!(passed_environment(words.to_vec(), 42), ["TZ=UTC", ROOT_PATH]);
        assert_eq!(passed_environment(Vec::new(), 0), [ROOT_PATH]);
    }
}
