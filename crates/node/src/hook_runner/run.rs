// SPDX-License-Identifier: Apache-2.0
//! Supervises one run of a hook, in a process of its own.
//!
//! ```text
//!   request ──▶ checked ──▶ program runs ──┬─ ended ──────▶ answer ──▶ wait for what it left running ─┐
//!                                          ├─ time limit ─▶ kill all ──▶ answer                       ├─▶ end
//!                                          └─ node or runner gone ─▶ kill all                         │
//!                                                             time limit: kill all ◀──────────────────┘
//! ```
//!
//! The process is a subreaper: everything that the program starts stays below it, also after `setsid`.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use vipwatch_core::ErrorChain;
use vipwatch_core::cause::ProcessExit;
use vipwatch_linux::descendants::{become_subreaper, collect_children, kill_descendants};
use vipwatch_linux::privilege::Identity;
use vipwatch_linux::program::{CheckedProgram, ProgramError};
use vipwatch_linux::signal::{RunnerSignal, RunnerSignals};

use super::hook_table::{HookTable, Mismatch};
use super::protocol::{self, HookDefinition, RefusalReason, RunAnswer, RunRequest, RunResult};
use crate::config::{HookAccountError, ResolvedAccount};

/// Maximum time for the request of the node to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes of a program's output that are kept.
const MAX_OUTPUT_BYTES: usize = 4 << 10;

/// Maximum number of reads of the output after the program has ended.
const MAX_READS_AFTER_EXIT: usize = 16;

/// How long a killed program may need to end, until the node gets its answer nevertheless.
const MAX_KILL_WAIT: Duration = Duration::from_secs(1);

/// The shortest and the longest time between two attempts to kill the processes that are left.
const KILL_INTERVALS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// Variables of the runner that are not meant for the program.
const PRIVATE_VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
];

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    #[error(
        "invalid request: a notification has no variable {0:?}, or its value has a null byte: restart the older one of the node and the hook runner"
    )]
    Variable(String),
    #[error(transparent)]
    Account(#[from] HookAccountError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(
        "cannot change to user {0}: the node, or the hook runner, needs the capabilities SETUID and SETGID"
    )]
    Identity(u32, #[source] io::Error),
    #[error("cannot start the program")]
    Start(#[source] io::Error),
}

impl Refusal {
    fn reason(&self) -> RefusalReason {
        match self {
            Self::Mismatch(_) | Self::Variable(_) => RefusalReason::Disagreement,
            Self::Account(_) | Self::Program(_) | Self::Identity(..) | Self::Start(_) => {
                RefusalReason::Program
            }
        }
    }
}

/// Reads the request on `connection` and runs the hook. Returns when no process of the run is left. `node` is the user
/// of the process that has sent the request.
pub(super) fn supervise(
    connection: UnixStream,
    node: Identity,
    hooks: &HookTable,
    signals: RunnerSignals,
) -> io::Result<()> {
    connection.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let end = Instant::now() + REQUEST_TIMEOUT;
    let request: RunRequest = protocol::receive(ReadUntil { stream: &connection, end })?;
    become_subreaper()?;
    match start(&request, node, hooks) {
        Ok(started) => Run::new(connection, signals, started).finish(),
        Err(refusal) => {
            let text = ErrorChain(&refusal).to_string();
            protocol::send(&connection, &RunAnswer::refused(refusal.reason(), text))?;
        }
    }
    Ok(())
}

/// Reads from a stream until a point in time, however many reads that takes.
struct ReadUntil<'s> {
    stream: &'s UnixStream,
    end: Instant,
}

impl Read for ReadUntil<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

/// A program that was started.
struct StartedProgram {
    pid: u32,
    output: io::PipeReader,
    /// The time at which everything is killed.
    end: Instant,
}

fn start(
    request: &RunRequest,
    node: Identity,
    hooks: &HookTable,
) -> Result<StartedProgram, Refusal> {
    let definition = hooks.find(request)?;
    let end = Instant::now() + definition.timeout;
    check_variables(&request.environment)?;
    let own = Identity::current();
    let resolved = definition.account.resolve(node)?;
    let path = Path::new(&definition.program[0]);
    let program = CheckedProgram::open(path, resolved.trusted_owners())?;
    let has_account = definition.account.user.is_some() || definition.account.group.is_some();
    let resolved = (has_account || node.user != own.user).then_some(resolved);
    let input = memfd_stdin(&request.input).map_err(Refusal::Start)?;
    let (reader, writer) = io::pipe().map_err(Refusal::Start)?;
    let stderr_writer = writer.try_clone().map_err(Refusal::Start)?;
    let mut command = command(&program, &definition, &request.environment, resolved.as_ref());
    command.stdin(input).stdout(writer).stderr(stderr_writer);
    // The supervisor collects all processes below it, and not this handle.
    let child = command.spawn().map_err(|error| match &resolved {
        Some(resolved) if error.kind() == io::ErrorKind::PermissionDenied && is_eperm(&error) => {
            Refusal::Identity(resolved.run_as.user, error)
        }
        _ => Refusal::Start(error),
    })?;
    Ok(StartedProgram { pid: child.id(), output: reader, end })
}

/// Whether the kernel has refused a change of the user. A program that the user may not execute gives another error.
fn is_eperm(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error())
}

fn command(
    program: &CheckedProgram,
    definition: &HookDefinition,
    variables: &[(String, String)],
    resolved: Option<&ResolvedAccount>,
) -> Command {
    let mut command = program.command();
    command.args(&definition.program[1..]).current_dir("/");
    // ORDER: before the variables of the runner, which a request must not replace.
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    for variable in PRIVATE_VARIABLES {
        command.env_remove(variable);
    }
    // A script has the path of its descriptor as `$0`.
    command.env("VIPWATCH_PROGRAM", &definition.program[0]);
    if let Some(account) = resolved.and_then(|resolved| resolved.account.as_ref()) {
        command.env("USER", &account.name).env("LOGNAME", &account.name);
        command.env("HOME", &account.home).env("SHELL", &account.shell);
    }
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    program.prepare(&mut command, resolved.map(|resolved| &resolved.run_as));
    command
}

/// The node may set the variables of a notification only.
fn check_variables(variables: &[(String, String)]) -> Result<(), Refusal> {
    let is_known = |name: &str| {
        name.strip_prefix("VIPWATCH_").is_some_and(|rest| protocol::VARIABLES.contains(&rest))
    };
    let mut invalid =
        variables.iter().filter(|(name, value)| !is_known(name) || value.contains('\0'));
    invalid.next().map_or(Ok(()), |(name, _)| Err(Refusal::Variable(name.clone())))
}

/// A file in memory with `text`, for the program's standard input. Unlike a pipe it has no length limit, and the
/// program need not read it.
fn memfd_stdin(text: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("change", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// A program that runs, and the processes that it has started.
struct Run {
    /// The node, until it has its answer.
    connection: Option<UnixStream>,
    signals: RunnerSignals,
    program: StartedProgram,
    /// Whether the output has not ended.
    is_output_open: bool,
    output: Output,
    /// Why everything is killed, and since when; `None` before.
    killed: Option<(RunResult, Instant)>,
    kill_interval: Duration,
}

impl Run {
    fn new(connection: UnixStream, signals: RunnerSignals, program: StartedProgram) -> Self {
        Self {
            connection: Some(connection),
            signals,
            program,
            is_output_open: true,
            output: Output::default(),
            killed: None,
            kill_interval: KILL_INTERVALS[0],
        }
    }

    /// Runs until no process is left.
    fn finish(mut self) {
        loop {
            let collected = collect_children();
            let ended = collected.ended.iter().find(|child| child.pid == self.program.pid);
            if let Some(ended) = ended {
                self.read_rest();
                self.answer(match ended.exit {
                    ProcessExit::Code(code) => RunResult::Ended(code),
                    ProcessExit::Signal(signal) => RunResult::Killed(signal),
                    ProcessExit::Unknown => RunResult::Killed(0),
                });
            }
            if !collected.has_children {
                return;
            }
            if self.killed.is_none() && Instant::now() >= self.program.end {
                self.killed = Some((RunResult::Late, Instant::now()));
            }
            if let Some((_, since)) = &self.killed {
                let is_long = since.elapsed() >= MAX_KILL_WAIT;
                let found = kill_descendants(&[]);
                if is_long {
                    if found == 0 && self.connection.is_some() {
                        let pid = self.program.pid;
                        tracing::error!(
                            pid,
                            "cannot find the processes of a hook in /proc, to kill them"
                        );
                    }
                    // A process that waits for a device does not end. The supervisor goes on, and the node does not wait.
                    self.answer(RunResult::Late);
                }
            }
            self.wait();
        }
    }

    /// Sends the answer, unless the node has it or is gone.
    fn answer(&mut self, result: RunResult) {
        let Some(connection) = self.connection.take() else { return };
        let result = self.killed.as_ref().map_or(result, |(reason, _)| reason.clone());
        let output = String::from_utf8_lossy(&self.output.kept).into_owned();
        let answer = RunAnswer { result, output, discarded: self.output.discarded };
        // If the node is gone, no process waits for the answer.
        let _ = protocol::send(&connection, &answer);
    }

    /// Waits for output, a signal, the end of the connection, or the next thing to do.
    fn wait(&mut self) {
        let limit = if self.killed.is_some() {
            let interval = self.kill_interval;
            self.kill_interval = (interval * 2).min(KILL_INTERVALS[1]);
            interval
        } else {
            self.program.end.saturating_duration_since(Instant::now())
        };
        let (is_readable, is_connection_ready) = self.poll(limit);
        while let Some(signal) = self.signals.read() {
            match signal {
                RunnerSignal::ParentEnded => self.stop(),
                // The service manager sends these to all processes; the runner decides.
                RunnerSignal::ChildEnded | RunnerSignal::Stop | RunnerSignal::Reload => {}
            }
        }
        if is_readable {
            self.is_output_open = self.output.read_from(&mut self.program.output).unwrap_or(false);
        }
        // The node sends nothing after its request: it has closed the connection, because it has ended.
        if is_connection_ready {
            self.stop();
        }
    }

    fn stop(&mut self) {
        self.killed.get_or_insert((RunResult::Stopped, Instant::now()));
    }

    /// Whether there is output, and whether something has happened on the connection.
    fn poll(&self, limit: Duration) -> (bool, bool) {
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let output = self.is_output_open.then(|| {
            polled.push(PollFd::from_borrowed_fd(self.program.output.as_fd(), PollFlags::IN));
            polled.len() - 1
        });
        let connection = self.connection.as_ref().filter(|_| self.killed.is_none());
        let connection = connection.map(|connection| {
            polled.push(PollFd::new(connection, PollFlags::IN | PollFlags::RDHUP));
            polled.len() - 1
        });
        // After a signal, the loop looks again.
        if poll(&mut polled, Timespec::try_from(limit).ok().as_ref()).is_err() {
            return (false, false);
        }
        let has_event =
            |index: Option<usize>| index.is_some_and(|index| !polled[index].revents().is_empty());
        (has_event(output), has_event(connection))
    }

    /// Reads the output that is still in the pipe.
    ///
    /// LIMIT: a process that the program has started may keep the pipe open and write to it without end.
    fn read_rest(&mut self) {
        for _ in 0..MAX_READS_AFTER_EXIT {
            let mut polled = [PollFd::from_borrowed_fd(self.program.output.as_fd(), PollFlags::IN)];
            let is_readable =
                poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
            if !self.is_output_open || !is_readable {
                return;
            }
            self.is_output_open = self.output.read_from(&mut self.program.output).unwrap_or(false);
        }
    }
}

/// The output of a program.
#[derive(Debug, Default)]
struct Output {
    /// The first [`MAX_OUTPUT_BYTES`] bytes.
    kept: Vec<u8>,
    /// The number of bytes after those.
    discarded: usize,
}

impl Output {
    /// Reads once; returns false at the end of the output.
    fn read_from(&mut self, reader: &mut io::PipeReader) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        let length = reader.read(&mut buffer)?;
        let kept = length.min(MAX_OUTPUT_BYTES - self.kept.len());
        self.kept.extend_from_slice(&buffer[..kept]);
        self.discarded += length - kept;
        Ok(length > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_can_set_no_variable_that_changes_what_a_program_does() {
        let check =
            |name: &str, value: &str| check_variables(&[(name.to_owned(), value.to_owned())]);
        assert!(check("VIPWATCH_TO", "primary; rm -rf /\n").is_ok());
        let of_others = ["PATH", "LD_PRELOAD", "HOME", "TO", "vipwatch_TO", ""];
        let of_runner = ["PROGRAM", "CONFIG", "SOCKET", "HOOK_RUNNER", "TO=X", "to", ""];
        let of_runner = of_runner.map(|name| format!("VIPWATCH_{name}"));
        for name in of_others.into_iter().chain(of_runner.iter().map(String::as_str)) {
            assert!(matches!(check(name, ""), Err(Refusal::Variable(_))), "{name}");
        }
        assert!(check("VIPWATCH_TO", "a\0b").is_err());
    }

    #[test]
    fn a_request_that_arrives_byte_by_byte_has_one_time_limit() {
        let (mut node, runner) = UnixStream::pair().unwrap();
        node.write_all(b"1234").unwrap();
        let later = Instant::now() + REQUEST_TIMEOUT;
        let mut request = ReadUntil { stream: &runner, end: later };
        request.read_exact(&mut [0; 2]).unwrap();
        let mut request = ReadUntil { stream: &runner, end: Instant::now() };
        let error = request.read_exact(&mut [0; 2]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "although there are bytes to read");
    }
}
