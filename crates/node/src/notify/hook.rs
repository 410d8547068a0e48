//! Runs a program for a change: the change as JSON on its standard input, and in its environment.
//!
//! It has a deadline, after which it is killed with everything it started. What it says is logged,
//! as far as it is short. It runs with our rights, so a program that others may write to is not
//! run.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use vipwatch_core::escape_untrusted;
use vipwatch_history::Stage;
use vipwatch_linux::process::bind_to_this_process;

use super::outlet::{DeliveryReport, Notification, ReportCallback};
use super::queue::{TargetQueue, TargetSettings as _};
use crate::config::Hook;
use crate::notify::keyed_queue::Next;

/// What of a program's words is logged: so many bytes, and so many lines.
const OUTPUT: usize = 4 << 10;
const LINES: usize = 20;

/// How often its output is read once more when it has ended.
const LAST_WORDS: usize = 16;

/// The longest list of addresses that is put into the environment.
const LONGEST_VARIABLE: usize = 64 << 10;

/// When one that was stopped from outside is run again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a program that has closed its output is waited for between two looks.
const STEP: Duration = Duration::from_millis(20);

/// One letter for one program.
#[derive(Debug)]
pub(crate) struct HookJob {
    pub(crate) letter: Arc<dyn Notification>,
    pub(crate) node: Arc<str>,
}

/// Why a program has not done its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("others than its owner may write to it: chmod go-w")]
    Exposed,
    #[error("it belongs to user {0}, not to root or to us")]
    Foreign(u32),
    #[error("it cannot be started")]
    Start(#[source] io::Error),
    #[error("it cannot be waited for")]
    Wait(#[source] io::Error),
    #[error("it took longer than {} ms and was killed", .0.as_millis())]
    Late(Duration),
    #[error("it ended with code {0}")]
    Code(i32),
    #[error("it was killed by signal {0}")]
    Killed(i32),
}

/// The queue of one hook, of which at most `at_once` run at a time.
pub(crate) fn queue(
    hook: &Arc<Hook>,
    at_once: usize,
    sink: ReportCallback,
) -> TargetQueue<Hook, HookJob> {
    TargetQueue::new("hook", hook, at_once, |settings| {
        move |job: &mut HookJob| work(&settings.current(), job, &sink)
    })
}

/// Runs a job, logs what was said, and reports.
fn work(hook: &Hook, job: &HookJob, sink: &ReportCallback) -> Next {
    let HookJob { letter, node } = job;
    let id = letter.instance();
    let program = hook.program[0].as_str();
    let mut output = Output::default();
    let outcome = run(hook, &letter.json(node), &mut output);
    let lines = output.lines();
    for line in lines.iter().take(LINES) {
        tracing::info!(instance = %id, program, seq = letter.seq(), "hook says: {line}");
    }
    if output.left_out > 0 || lines.len() > LINES {
        let bytes = output.left_out + output.kept.len();
        tracing::warn!(instance = %id, program, bytes, "the hook says too much to be logged");
    }
    let was_stopped = outcome.as_ref().is_err_and(HookError::is_from_outside);
    let mut report = DeliveryReport::new(&**letter, Stage::Hook, &hook.name());
    report.outcome = outcome.map_err(|error| vipwatch_core::ErrorChain(&error).to_string());
    report.is_final = !was_stopped;
    sink(report);
    if was_stopped { Next::Again(AGAIN) } else { Next::Done }
}

impl HookError {
    /// Whether somebody else has stopped it: a service manager that stops us, too, for example.
    fn is_from_outside(&self) -> bool {
        let by = |signal: Signal| matches!(self, Self::Killed(by) if *by == signal.as_raw());
        by(Signal::TERM) || by(Signal::INT) || by(Signal::HUP)
    }
}

fn run(hook: &Hook, letter: &Value, output: &mut Output) -> Result<(), HookError> {
    let end = Instant::now() + hook.deadline;
    let program = Path::new(&hook.program[0]);
    examine(program)?;
    let input = paper(&format!("{letter}\n")).map_err(HookError::Start)?;
    let (mut reader, writer) = io::pipe().map_err(HookError::Start)?;
    let again = writer.try_clone().map_err(HookError::Start)?;
    let mut command = Command::new(program);
    command.args(&hook.program[1..]).envs(environment(letter));
    for ours in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(ours);
    }
    command.current_dir("/").process_group(0);
    command.stdin(input).stdout(writer).stderr(again);
    bind_to_this_process(&mut command);
    let mut child = command.spawn().map_err(HookError::Start)?;
    // Our copies of the ends it writes to.
    drop(command);
    let status = attend(&mut child, &mut reader, end, output);
    if !matches!(status, Ok(Some(_))) {
        kill(&child);
        let _ = child.wait();
    }
    match status.map_err(HookError::Wait)? {
        None => Err(HookError::Late(hook.deadline)),
        Some(status) => verdict(status),
    }
}

/// Something to read from, of any length, that nobody waits for: a program need not read it.
fn paper(text: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("change", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Whether it is safe to run.
pub(crate) fn examine(program: &Path) -> Result<(), HookError> {
    let metadata = std::fs::metadata(program).map_err(HookError::Start)?;
    let ours = rustix::process::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != ours {
        return Err(HookError::Foreign(metadata.uid()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(HookError::Exposed);
    }
    Ok(())
}

/// The same as the JSON has, for shells: everything that is one word, and the addresses.
fn environment(letter: &Value) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (key, value) in letter.as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Array(_) | Value::Object(_) => continue,
            other => other.to_string(),
        };
        variables.push((format!("VIPWATCH_{}", key.to_uppercase()), text));
    }
    if let Some(addresses) = letter["addresses"].as_array() {
        let addresses: Vec<&str> =
            addresses.iter().filter_map(|address| address["cidr"].as_str()).collect();
        let addresses = addresses.join(" ");
        // More than the kernel would let through; the JSON has them all.
        if addresses.len() <= LONGEST_VARIABLE {
            variables.push(("VIPWATCH_ADDRESSES".to_owned(), addresses));
        }
    }
    variables
}

/// Reads what it says until it ends; `None` if it does not in time.
fn attend(
    child: &mut Child,
    reader: &mut io::PipeReader,
    end: Instant,
    output: &mut Output,
) -> io::Result<Option<ExitStatus>> {
    let mut is_open = true;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            // What it said last; a child of its own may hold the pipe open, and write, for ever.
            for _ in 0..LAST_WORDS {
                is_open = is_open && is_readable(reader, Duration::ZERO)? && output.take(reader)?;
            }
            return Ok(Some(status));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // Its end closes the pipe as a rule; one that closed it before is looked at in steps.
        if is_open {
            if is_readable(reader, left.min(Duration::from_millis(100)))? {
                is_open = output.take(reader)?;
            }
        } else {
            let _ = poll(&mut [], Timespec::try_from(pause.min(left)).ok().as_ref());
            pause = (pause * 2).min(STEP);
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

/// Ends it, and what it started.
fn kill(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = pid {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn verdict(status: ExitStatus) -> Result<(), HookError> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(HookError::Code(code)),
        (None, signal) => Err(HookError::Killed(signal.unwrap_or(0))),
    }
}

/// What a program said, as far as it is kept.
#[derive(Debug, Default)]
struct Output {
    kept: Vec<u8>,
    left_out: usize,
}

impl Output {
    /// Takes what is there; false at the end.
    fn take(&mut self, reader: &mut io::PipeReader) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        let length = reader.read(&mut buffer)?;
        let room = OUTPUT - self.kept.len();
        let kept = length.min(room);
        self.kept.extend_from_slice(&buffer[..kept]);
        self.left_out += length - kept;
        Ok(length > 0)
    }

    /// The output line by line, escaped.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.kept);
        text.lines().map(escape_untrusted).filter(|line| !line.is_empty()).collect()
    }
}
