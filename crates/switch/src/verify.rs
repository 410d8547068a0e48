// SPDX-License-Identifier: Apache-2.0
//! Verifies a new monitor: it runs and its pid file names it, its state file agrees with the kernel, and the agent has
//! received the state.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use vipwatch_core::{ErrorChain, Moment};
use vipwatch_linux::clock;
use vipwatch_linux::file::read_head;
use vipwatch_linux::process_table::ProcessId;

use crate::agent;
use crate::command_line::MonitorCommand;
use crate::monitor::{MonitorProgram, RunningMonitor, monitor_at};
use crate::program::TargetProgram;
use crate::release::neutron_release;
use crate::state::{StateMark, state_in_kernel, state_of_word, word_in_file};
use crate::stop::wait_a_moment;

/// Maximum size of the new part of a log that is searched, in bytes.
const MAX_LOG: u64 = 16 << 20;
/// How much of a log is searched for lines of a monitor that has started earlier, in bytes.
const MAX_OLD_LOG: u64 = 1 << 20;

/// How long a process of Neutron's program must run if nothing else shows that it works.
const TRIAL: Duration = Duration::from_secs(5);

/// The conditions that a new monitor must fulfil.
#[derive(Debug)]
pub(crate) struct Expectation<'a> {
    pub(crate) command: &'a MonitorCommand,
    pub(crate) target: &'a TargetProgram,
    pub(crate) log: LogMark,
    /// The state file before the new monitor has started; `None` if it has started in an earlier run.
    pub(crate) state: Option<StateMark>,
    /// The word for a primary that monitors of this node use; `None` if no router is primary.
    pub(crate) primary_word: Option<&'static str>,
    pub(crate) needs_agent: bool,
    pub(crate) timeout: Duration,
}

/// A monitor that was verified.
#[derive(Debug)]
pub(crate) struct VerifiedMonitor {
    pub(crate) pid: u32,
    pub(crate) word: &'static str,
    pub(crate) agent: AgentEvidence,
}

/// How it is known that the agent has the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum AgentEvidence {
    /// The monitor's log says that the agent has answered.
    MonitorLog,
    /// The agent has answered a report of this program.
    OwnReport,
    /// It was not checked, because of `--without-agent`.
    NotChecked,
}

/// Why a monitor is not verified.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerifyError {
    /// The program has failed at its start. No monitor runs.
    #[error("the new program has failed: {0}")]
    StartFailed(String),
    /// The time is over.
    #[error("the new monitor is not verified after {} s: {missing}", timeout.as_secs())]
    TimedOut { missing: String, timeout: Duration, is_running: bool },
}

impl VerifyError {
    /// Whether a new monitor runs nevertheless.
    pub(crate) fn has_monitor(&self) -> bool {
        matches!(self, Self::TimedOut { is_running: true, .. })
    }
}

/// The end of a log file before the new monitor starts.
#[derive(Debug, Clone)]
pub(crate) struct LogMark {
    path: PathBuf,
    inode: Option<u64>,
    size: u64,
}

impl LogMark {
    pub(crate) fn at_end_of(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).ok();
        let size = metadata.as_ref().map_or(0, std::fs::Metadata::len);
        Self { path: path.to_owned(), inode: metadata.map(|metadata| metadata.ino()), size }
    }

    /// The last lines of a log, for a monitor that has started earlier.
    pub(crate) fn before_end_of(path: &Path) -> Self {
        let mark = Self::at_end_of(path);
        Self { size: mark.size.saturating_sub(MAX_OLD_LOG), ..mark }
    }

    /// Whether a line after the mark contains `text` and the pid of the process that has written it. If the file was
    /// replaced since, all of its lines are new.
    fn has_new(&self, text: &str, pid: u32) -> bool {
        let lines = self.new_lines().unwrap_or_default();
        let pid = format!(" {pid} ");
        lines.lines().any(|line| line.contains(&pid) && line.contains(text))
    }

    fn new_lines(&self) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if Some(metadata.ino()) == self.inode && metadata.len() >= self.size {
            file.seek(SeekFrom::Start(self.size))?;
        }
        let mut bytes = Vec::new();
        file.take(MAX_LOG).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Waits until the new monitor fulfils `expected`. `child` is the process that became the new program.
pub(crate) fn verify(
    expected: &Expectation<'_>,
    mut child: Option<&mut Child>,
) -> Result<VerifiedMonitor, VerifyError> {
    let end = clock::now() + expected.timeout;
    let mut trial = Trial::default();
    loop {
        let missing = match attempt(expected, &mut trial) {
            Ok(verified) => return Ok(verified),
            Err(missing) => missing,
        };
        if let Some(reason) = child.as_mut().and_then(|child| failure_of(child)) {
            return Err(VerifyError::StartFailed(reason));
        }
        if clock::now() >= end {
            let is_running = running(expected).is_ok();
            let timeout = expected.timeout;
            return Err(VerifyError::TimedOut { missing, timeout, is_running });
        }
        wait_a_moment();
    }
}

/// Checks all conditions once. The error names the first one that is not met.
fn attempt(expected: &Expectation<'_>, trial: &mut Trial) -> Result<VerifiedMonitor, String> {
    let monitor = running(expected)?;
    trial.check(expected, &monitor)?;
    let word = right_word(expected)?;
    let agent = agent_evidence(expected, &monitor, word)?;
    // ORDER: the kernel is read again after the report, so that the agent has not received a state of the past.
    if right_word(expected)? != word {
        return Err("the state changes at this moment".to_owned());
    }
    Ok(VerifiedMonitor { pid: monitor.id.pid, word, agent })
}

/// How long the same process of Neutron's program has run.
#[derive(Debug, Default)]
struct Trial {
    seen: Option<(ProcessId, Moment)>,
}

impl Trial {
    /// Fails as long as nothing shows that the new monitor works. A monitor of vipwatch shows it in its log. Neutron's
    /// programs write the pid file first, and the word in the state file may be that of the old monitor.
    fn check(
        &mut self,
        expected: &Expectation<'_>,
        monitor: &RunningMonitor,
    ) -> Result<(), String> {
        if monitor.program == MonitorProgram::Vipwatch {
            return Ok(());
        }
        let conf_dir = &expected.command.conf_dir;
        let pid = monitor.id.pid;
        if let Some(mark) = &expected.state {
            if *mark != StateMark::of(conf_dir) {
                return Ok(());
            }
            if writes_first_state(expected.target) {
                let file = conf_dir.join("state");
                return Err(format!("process {pid} has not written {}", file.display()));
            }
        }
        let began = match self.seen {
            Some((id, began)) if id == monitor.id => began,
            _ => clock::now(),
        };
        self.seen = Some((monitor.id, began));
        if clock::now() >= began + TRIAL.min(expected.timeout / 2) {
            return Ok(());
        }
        Err(format!("process {pid} has run for a short time only"))
    }
}

/// Whether a program of Neutron writes the state file at its start in any case. Python daemons before release 18 may
/// wait for a change of an address.
fn writes_first_state(target: &TargetProgram) -> bool {
    match target.kind {
        MonitorProgram::Script => true,
        MonitorProgram::Python => {
            neutron_release(&target.path).is_some_and(|release| release >= 18)
        }
        MonitorProgram::Vipwatch | MonitorProgram::Unknown => false,
    }
}

/// The monitor that the pid file names.
fn running(expected: &Expectation<'_>) -> Result<RunningMonitor, String> {
    let command = expected.command;
    let shown = command.pid_file.display();
    let text = read_head(&command.pid_file, 32)
        .map_err(|error| format!("cannot read the pid file {shown}: {error}"))?;
    let pid = String::from_utf8_lossy(&text).trim().parse::<u32>();
    let pid = pid.map_err(|error| format!("the pid file {shown} has no pid: {error}"))?;
    let monitor = monitor_at(pid)
        .filter(|monitor| monitor.command.is_same_instance(command))
        .ok_or_else(|| format!("process {pid} of the pid file {shown} is no monitor"))?;
    if !expected.target.is_run_by(&monitor) {
        let program = monitor.program.word();
        return Err(format!(
            "process {pid} of the pid file {shown} runs another program: {program}"
        ));
    }
    Ok(monitor)
}

/// The word in the state file, if it agrees with the kernel.
fn right_word(expected: &Expectation<'_>) -> Result<&'static str, String> {
    let command = expected.command;
    let file = command.conf_dir.join("state");
    let kernel = state_in_kernel(command).map_err(|error| ErrorChain(&error).to_string())?;
    let word = word_in_file(&command.conf_dir)
        .ok_or_else(|| format!("{} has no state", file.display()))?;
    if state_of_word(word) != kernel {
        return Err(format!(
            "{} says {word}, and by the addresses in {} it is {}",
            file.display(),
            command.netns,
            kernel.as_str()
        ));
    }
    match expected.primary_word {
        Some(known) if word != "backup" && word != known => Err(format!(
            "{} says {word}, and the monitors of this node used the word {known}",
            file.display()
        )),
        _ => Ok(word),
    }
}

fn agent_evidence(
    expected: &Expectation<'_>,
    monitor: &RunningMonitor,
    word: &str,
) -> Result<AgentEvidence, String> {
    if !expected.needs_agent {
        return Ok(AgentEvidence::NotChecked);
    }
    let command = expected.command;
    let router = &command.router;
    let has_log_line = monitor.program == MonitorProgram::Vipwatch
        || (monitor.program == MonitorProgram::Python && command.has_debug);
    if has_log_line {
        let notified = format!("Notified agent router {router}, state ");
        let pid = monitor.id.pid;
        if expected.log.has_new(&format!("{notified}{word}"), pid) {
            return Ok(AgentEvidence::MonitorLog);
        }
        if expected.state.is_some() && !expected.log.has_new(&notified, pid) {
            let path = expected.log.path.display();
            return Err(format!("{path} has no line {notified:?} of process {pid}"));
        }
        // A monitor logs its later reports only with --debug: it has reported another state, and the state has changed. The
        // log of a monitor that has started in an earlier run may have been rotated.
    }
    // The script of Neutron 29 reports its first state only when an address changes, and the Python daemon does not log
    // its reports without --debug.
    agent::report(&command.state_path, router, word)
        .map(|()| AgentEvidence::OwnReport)
        .map_err(|error| ErrorChain(&error).to_string())
}

/// How the process that became the new program has failed; `None` if it runs, or has ended well.
fn failure_of(child: &mut Child) -> Option<String> {
    let status = child.try_wait().ok().flatten()?;
    (!status.success()).then(|| status.to_string())
}
