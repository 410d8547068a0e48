//! Runs a program for each notification, which it gets as JSON on its standard input and in its environment.
//!
//! After its deadline, the program is killed together with the processes that it started. The beginning of its output
//! is logged. It runs with the rights of the node, so a program that other users may write to is not run.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, MemfdFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use vipwatch_api::{NotificationBody, NotificationDocument};
use vipwatch_core::escape_untrusted;
use vipwatch_core::notification::AttemptResult;
use vipwatch_linux::process::bind_to_this_process;

use super::attempt::Attempt;
use super::notification::Notification;
use crate::config::Hook;

/// Maximum number of bytes and of lines of a program's output that are logged.
const MAX_OUTPUT_BYTES: usize = 4 << 10;
const MAX_OUTPUT_LINES: usize = 20;

/// Maximum number of reads of the output after the program has ended.
const MAX_READS_AFTER_EXIT: usize = 16;

/// Maximum length of the list of addresses in the environment, in bytes.
const MAX_ADDRESSES_BYTES: usize = 64 << 10;

/// Maximum time between two checks whether a program that has closed its output has ended.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Why a run of a program failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("users other than its owner can write to the program file: chmod go-w")]
    Exposed,
    #[error("the program belongs to user {0}, not to root or the node's user")]
    Foreign(u32),
    #[error("it is not a file")]
    NotAFile,
    #[error("the program file is not executable: chmod +x")]
    NotExecutable,
    #[error("cannot start the program")]
    Start(#[source] io::Error),
    #[error("cannot wait for the end of the program")]
    Wait(#[source] io::Error),
    #[error("the program took longer than {} ms and was killed", .0.as_millis())]
    Late(Duration),
    #[error("the program ended with code {0}")]
    Code(i32),
    #[error("the program was killed by signal {0}")]
    Killed(i32),
}

/// Runs the program once and logs its output.
pub(super) fn deliver(
    hook: &Hook,
    notification: &dyn Notification,
    document: &NotificationDocument,
) -> Attempt {
    let (subject, seq) = (notification.subject(), notification.seq());
    let program = hook.program[0].as_str();
    let mut output = Output::default();
    let outcome = run(hook, document, &mut output);
    let lines = output.lines();
    for line in lines.iter().take(MAX_OUTPUT_LINES) {
        tracing::info!(instance = %subject, program, seq, "hook output: {line}");
    }
    if output.discarded > 0 || lines.len() > MAX_OUTPUT_LINES {
        let bytes = output.discarded + output.kept.len();
        tracing::warn!(instance = %subject, program, bytes, "hook output too long: the rest is not logged");
    }
    match outcome {
        Ok(()) => Attempt::DELIVERED,
        Err(error) => {
            let is_interrupted = error.is_ended_by_signal();
            let result =
                if is_interrupted { AttemptResult::Interrupted } else { AttemptResult::Failed };
            Attempt { result, error: Some(vipwatch_core::ErrorChain(&error).to_string()) }
        }
    }
}

impl HookError {
    /// Whether another process has ended the program with a signal: for example the service manager, when it stops
    /// the node.
    fn is_ended_by_signal(&self) -> bool {
        let by = |signal: Signal| matches!(self, Self::Killed(by) if *by == signal.as_raw());
        by(Signal::TERM) || by(Signal::INT) || by(Signal::HUP)
    }
}

fn run(hook: &Hook, document: &NotificationDocument, output: &mut Output) -> Result<(), HookError> {
    let end = Instant::now() + hook.deadline;
    let program = Path::new(&hook.program[0]);
    examine(program)?;
    let value = serde_json::to_value(document).unwrap_or_default();
    let input = memfd_stdin(&format!("{value}\n")).map_err(HookError::Start)?;
    let (mut reader, writer) = io::pipe().map_err(HookError::Start)?;
    let stderr_writer = writer.try_clone().map_err(HookError::Start)?;
    let mut command = Command::new(program);
    command.args(&hook.program[1..]).envs(environment(document, &value));
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(variable);
    }
    command.current_dir("/").process_group(0);
    command.stdin(input).stdout(writer).stderr(stderr_writer);
    bind_to_this_process(&mut command);
    let mut child = command.spawn().map_err(HookError::Start)?;
    // Closes this process's copies of the write end, so that the pipe ends with the program.
    drop(command);
    let status = wait_for_exit(&mut child, &mut reader, end, output);
    if !matches!(status, Ok(Some(_))) {
        kill(&child);
        let _ = child.wait();
    }
    match status.map_err(HookError::Wait)? {
        None => Err(HookError::Late(hook.deadline)),
        Some(status) => exit_result(status),
    }
}

/// A file in memory with `text`, for the program's standard input. Unlike a pipe it has no length limit, and the
/// program need not read it.
fn memfd_stdin(text: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("change", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// An error if the program cannot be run, or if users other than root and the node's own user may change it.
pub(crate) fn examine(program: &Path) -> Result<(), HookError> {
    let metadata = std::fs::metadata(program).map_err(HookError::Start)?;
    if !metadata.is_file() {
        return Err(HookError::NotAFile);
    }
    if rustix::fs::access(program, Access::EXEC_OK).is_err() {
        return Err(HookError::NotExecutable);
    }
    let own_user = rustix::process::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != own_user {
        return Err(HookError::Foreign(metadata.uid()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(HookError::Exposed);
    }
    Ok(())
}

/// The environment variables of the program: the simple values of the JSON object, and the addresses.
fn environment(document: &NotificationDocument, value: &Value) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Array(_) | Value::Object(_) => continue,
            other => other.to_string(),
        };
        variables.push((format!("VIPWATCH_{}", key.to_uppercase()), text));
    }
    if let NotificationBody::Transition(event) = &document.body {
        let addresses: Vec<&str> =
            event.addresses.iter().map(|address| address.cidr.as_str()).collect();
        let addresses = addresses.join(" ");
        // LIMIT: the kernel accepts at most 128 KiB for one environment variable. The JSON has all addresses.
        if addresses.len() <= MAX_ADDRESSES_BYTES {
            variables.push(("VIPWATCH_ADDRESSES".to_owned(), addresses));
        }
    }
    variables
}

/// Reads the output of the program until it ends; `None` if it runs longer than `end`.
fn wait_for_exit(
    child: &mut Child,
    reader: &mut io::PipeReader,
    end: Instant,
    output: &mut Output,
) -> io::Result<Option<ExitStatus>> {
    let mut is_open = true;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            // LIMIT: reads the output that is still in the pipe. A process that the program started may keep the
            // pipe open and write to it without end.
            for _ in 0..MAX_READS_AFTER_EXIT {
                is_open =
                    is_open && is_readable(reader, Duration::ZERO)? && output.read_from(reader)?;
            }
            return Ok(Some(status));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // The end of the program closes the pipe, which wakes the poll. A program that has closed its output
        // before is checked at intervals.
        if is_open {
            if is_readable(reader, left.min(Duration::from_millis(100)))? {
                is_open = output.read_from(reader)?;
            }
        } else {
            let _ = poll(&mut [], Timespec::try_from(pause.min(left)).ok().as_ref());
            pause = (pause * 2).min(MAX_CHECK_INTERVAL);
        }
    }
}

fn is_readable(reader: &io::PipeReader, limit: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
    match poll(&mut polled, Timespec::try_from(limit).ok().as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Kills the program and the processes of its group.
fn kill(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = pid {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn exit_result(status: ExitStatus) -> Result<(), HookError> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(HookError::Code(code)),
        (None, signal) => Err(HookError::Killed(signal.unwrap_or(0))),
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
        let room = MAX_OUTPUT_BYTES - self.kept.len();
        let kept = length.min(room);
        self.kept.extend_from_slice(&buffer[..kept]);
        self.discarded += length - kept;
        Ok(length > 0)
    }

    /// The output line by line, escaped.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.kept);
        text.lines().map(escape_untrusted).filter(|line| !line.is_empty()).collect()
    }
}
