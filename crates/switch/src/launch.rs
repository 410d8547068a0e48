// SPDX-License-Identifier: Apache-2.0
//! Starts a monitor as the agent would have started it.
//!
//! ```text
//!   switch ── spawns ──▶ launcher            joins the old monitor's cgroup, starts a session
//!     │ ◀──── "ready" ──────┤
//!     ├────── "go" ────────▶│                ends the old monitor
//!     │ ◀──── "stopped" ────┤
//!     │                     └── becomes the new program (exec)
//! ```
//!
//! The launcher is this program in a process of its own. After "go" it needs the switch no longer: if the switch is
//! killed, the new monitor starts all the same. Without "go" it ends and nothing has changed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};
use vipwatch_core::ErrorChain;
use vipwatch_linux::process;
use vipwatch_linux::program::CheckedProgram;

use crate::args::LAUNCHER;
use crate::cgroup;
use crate::program::open;
use crate::stop::{StopOrder, StopReport, StopResult, stop};

/// The command that starts a monitor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StartCommand {
    /// The namespace that `ip netns exec` enters before it starts the program.
    pub(crate) inside: Option<String>,
    /// The program, by the name that the monitor's command line shows.
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
}

impl StartCommand {
    /// The command line, for messages.
    pub(crate) fn line(&self) -> String {
        let inside = self.inside.as_ref().map(|netns| format!("ip netns exec {netns} "));
        let (program, arguments) = (self.program.display(), self.arguments.join(" "));
        format!("{}{program} {arguments}", inside.unwrap_or_default())
    }

    /// The command that starts `file`, the checked program at [`Self::program`], with these variables `NAME=VALUE`.
    ///
    /// A binary is executed by its descriptor. A script, and a program behind `ip netns exec`, is executed by its path:
    /// with a descriptor, the command line would have `/proc/self/fd/N` in place of the name by which the agent and the
    /// drop-in recognise a monitor. The check has shown that root alone can change the file, every link and every
    /// directory on its path, so that no other user can put another file there afterwards.
    pub(crate) fn command(&self, file: &CheckedProgram, environment: &[String]) -> Command {
        let mut command = match &self.inside {
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(&self.program);
                command
            }
            None if file.is_script() => Command::new(&self.program),
            None => {
                let mut command = file.command();
                command.arg0(&self.program);
                command
            }
        };
        command.args(&self.arguments).env_clear();
        command.envs(environment.iter().filter_map(|word| word.split_once('=')));
        command
    }
}

/// Everything that is needed to start a monitor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StartPlan {
    pub(crate) command: StartCommand,
    /// Words `NAME=VALUE`.
    pub(crate) environment: Vec<String>,
    pub(crate) directory: PathBuf,
    /// Files of cgroups to join.
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) oom_score_adj: Option<String>,
    /// Where the program's messages at its start go. `None` for the script of Neutron 29, which writes to standard
    /// error as long as it runs: the output is discarded.
    pub(crate) messages: Option<PathBuf>,
    /// The monitor to end first; `None` if none runs.
    pub(crate) stop: Option<StopOrder>,
}

/// Why a monitor was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("cannot start the helper process")]
    Spawn(#[source] io::Error),
    #[error("the helper process ended without an answer")]
    NoAnswer,
    #[error("cannot prepare the start of the new monitor: {0}")]
    Preparation(String),
    #[error("cannot end the old monitor: {0}")]
    Stop(String),
}

/// A launcher that is ready. Dropping it before [`ReadyLauncher::go`] ends it without an effect.
#[derive(Debug)]
pub(crate) struct ReadyLauncher {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl ReadyLauncher {
    /// Starts a launcher for `plan`, and waits until it is ready. It keeps `lock` until it becomes the new program: if it
    /// outlives the switch, no other one begins before that.
    pub(crate) fn start(plan: &StartPlan, lock: Option<OwnedFd>) -> Result<Self, LaunchError> {
        let program = std::env::current_exe().map_err(LaunchError::Spawn)?;
        let mut command = Command::new(program);
        command.arg(LAUNCHER).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A descriptor that a child process inherits without `unsafe` is one of its standard files.
        command.stderr(lock.map_or_else(Stdio::null, Stdio::from));
        let mut child = command.spawn().map_err(LaunchError::Spawn)?;
        let answers = child.stdout.take().map(BufReader::new).ok_or(LaunchError::NoAnswer)?;
        let mut launcher = Self { child, answers };
        let mut text = serde_json::to_vec(plan).unwrap_or_default();
        text.push(b'\n');
        launcher.send(&text)?;
        match launcher.answer()?.split_once(' ') {
            None => Ok(launcher),
            Some((_, reason)) => Err(LaunchError::Preparation(reason.to_owned())),
        }
    }

    /// Ends the old monitor and starts the new one. Returns the process that became the new program.
    pub(crate) fn go(mut self) -> Result<(Child, StopReport), LaunchError> {
        self.send(b"go\n")?;
        let answer = self.answer()?;
        let (word, rest) = answer.split_once(' ').unwrap_or((&answer, ""));
        let result = match word {
            "stopped" => StopResult::Terminated,
            "killed" => StopResult::Killed,
            _ => return Err(LaunchError::Stop(rest.to_owned())),
        };
        let problems = Some(rest.to_owned()).filter(|rest| !rest.is_empty());
        Ok((self.child, StopReport { result, problems: problems.into_iter().collect() }))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), LaunchError> {
        let input = self.child.stdin.as_mut().ok_or(LaunchError::NoAnswer)?;
        input.write_all(bytes).and_then(|()| input.flush()).map_err(LaunchError::Spawn)
    }

    fn answer(&mut self) -> Result<String, LaunchError> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(LaunchError::Spawn)?;
        match line.trim_end() {
            "" => Err(LaunchError::NoAnswer),
            answer => Ok(answer.to_owned()),
        }
    }
}

/// The launcher's own process. It returns only if it has failed or was not needed.
pub(crate) fn run_launcher() -> io::Result<()> {
    let mut input = BufReader::new(io::stdin());
    let mut line = String::new();
    input.read_line(&mut line)?;
    let plan: StartPlan = serde_json::from_str(&line)?;
    // ORDER: everything that can fail comes before the old monitor ends.
    let prepared = open(&plan.command.program)
        .map_err(io::Error::other)
        .and_then(|file| Ok((file, prepare(&plan)?)));
    let (file, messages) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return answer(&format!("failed {}", ErrorChain(&error))),
    };
    answer("ready")?;
    line.clear();
    input.read_line(&mut line)?;
    if line != "go\n" {
        return Ok(());
    }
    let stopped = plan.stop.as_ref().map_or_else(|| Ok(StopReport::default()), stop);
    // An answer that cannot be sent means that the switch was killed. The new monitor is needed all the same.
    match stopped {
        Ok(report) => {
            let word = if report.result == StopResult::Killed { "killed" } else { "stopped" };
            let _ = answer(&format!("{word} {}", report.problems.join("; ")));
        }
        Err(error) => return answer(&format!("failed {error}")),
    }
    become_monitor(&plan, &file, messages.as_ref())
}

/// Prepares the start; returns the file for the messages of the new program.
fn prepare(plan: &StartPlan) -> io::Result<Option<File>> {
    cgroup::join(&plan.cgroups).map_err(|error| {
        let place = plan.cgroups.first().map(|path| path.display().to_string()).unwrap_or_default();
        io::Error::new(
            error.kind(),
            format!("cannot join the old monitor's cgroup ({place}): {error}"),
        )
    })?;
    rustix::process::setsid()?;
    rustix::process::chdir(&plan.directory).or_else(|_gone| rustix::process::chdir("/"))?;
    // As for a service and for sudo.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if let Some(value) = &plan.oom_score_adj {
        let path = "/proc/self/oom_score_adj";
        File::options().write(true).open(path)?.write_all(value.as_bytes())?;
    }
    // Messages are for an error only. Without room for them the output is discarded.
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    Ok(plan.messages.as_ref().and_then(|path| options.open(path).ok()))
}

/// Becomes the new program. Its standard files are `/dev/null`, as for a daemon.
fn become_monitor(
    plan: &StartPlan,
    program: &CheckedProgram,
    messages: Option<&File>,
) -> io::Result<()> {
    // This closes the lock too, which is standard error until now.
    process::silence_standard_files()?;
    if let Some(file) = messages {
        rustix::stdio::dup2_stderr(file)?;
    }
    let error = plan.command.command(program, &plan.environment).exec();
    let _ = writeln!(io::stderr(), "cannot execute {}: {error}", plan.command.program.display());
    Err(error)
}

fn answer(text: &str) -> io::Result<()> {
    let mut output = io::stdout();
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    output.write_all(line.as_bytes())?;
    output.write_all(b"\n")?;
    output.flush()
}
