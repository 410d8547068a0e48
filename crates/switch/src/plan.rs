//! How a new monitor is started: the command, the environment, the directory and the cgroup that the old one has from the
//! agent.

use std::io;
use std::path::{Path, PathBuf};

use vipwatch_linux::process_table;

use crate::cgroup::cgroups_to_join;
use crate::launch::StartPlan;
use crate::monitor::{MonitorProgram, RunningMonitor};
use crate::program::TargetProgram;
use crate::stop::StopOrder;

/// The search path of root if the old monitor's environment cannot be trusted.
const ROOT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables that a monitor which runs as the agent's user may pass on to a program that starts as root.
const HARMLESS: [&str; 8] =
    ["HOME", "LANG", "LOGNAME", "PROCESS_TAG", "SHELL", "TERM", "TZ", "USER"];

/// The command line with `path` as the program: as the agent would execute it.
pub(crate) fn command_words(
    monitor: &RunningMonitor,
    target: &TargetProgram,
    path: &Path,
) -> Vec<String> {
    let mut words = Vec::new();
    if monitor.is_started_inside {
        words.extend(["ip", "netns", "exec", monitor.command.netns.as_str()].map(str::to_owned));
    }
    words.push(path.display().to_string());
    match target.kind {
        MonitorProgram::Script => words.extend(monitor.command.spaced_arguments()),
        _ => words.extend(monitor.command.arguments.iter().cloned()),
    }
    words
}

/// The environment for the new monitor. Only root can have put variables into that of a process of root.
pub(crate) fn start_environment(monitor: &RunningMonitor) -> Vec<String> {
    let words = process_table::environment(monitor.id.pid).unwrap_or_default();
    if monitor.user == 0 {
        return words;
    }
    let is_harmless = |word: &String| {
        let name = word.split('=').next().unwrap_or_default();
        HARMLESS.contains(&name) || name.starts_with("LC_") || name.starts_with("SUDO_")
    };
    let mut words: Vec<String> = words.into_iter().filter(is_harmless).collect();
    words.push(ROOT_PATH.to_owned());
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
        line: command_words(monitor, target, path),
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
