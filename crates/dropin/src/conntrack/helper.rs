// SPDX-License-Identifier: Apache-2.0
//! The privileged helper process: it runs conntrackd, and nothing else.
//!
//! The helper ends when the monitor's end of the socket closes, however the monitor ended; a running command ends with
//! it. (The signal that the kernel can send at the death of a parent does not work here: the parent has no privileges,
//! so the kernel does not deliver its signal to a child that has them.)

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vipwatch_core::{Moment, NeutronState};
use vipwatch_linux::signal::ChildSignals;
use vipwatch_linux::{clock, process};

use super::{ConntrackReport, decode_request};

/// A command that runs longer than this is killed.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// How many bytes of a command's standard error are kept for the log; the rest is read and dropped.
const MAX_OUTPUT_BYTES: usize = 400;

/// The generation of a report about the helper itself. Requests count from 1.
pub(super) const NO_REQUEST: u32 = 0;

/// Reports to the monitor why the helper ends before it has served a request.
pub fn report_failure(socket: &OwnedFd, reason: String) {
    let report = ConntrackReport::Failed { command: String::new(), reason };
    // If the monitor has ended, there is no log to write to.
    let _ = send(socket, &report.encode(NO_REQUEST), SendFlags::NOSIGNAL);
}

/// conntrackd's options for a state: one command for each, in this order.
fn options(state: NeutronState) -> &'static [&'static str] {
    match state {
        // Commit the external cache to the kernel, flush both caches, read the kernel's
        // table again, send it to the other nodes.
        NeutronState::Primary => &["-c", "-f", "-R", "-B"],
        // Shorten the timers of the remaining entries, request the table from the primary.
        NeutronState::Backup => &["-t", "-n"],
    }
}

/// Serves requests from `socket` until the monitor closes its end.
pub fn serve(socket: &OwnedFd, conf_dir: &Path) {
    let config = conf_dir.join("conntrackd.conf");
    let Ok(child_signals) = ChildSignals::block() else { return };
    let mut list: Option<CommandList> = None;
    loop {
        match wait(socket, &child_signals, list.as_ref()) {
            WakeReason::Request => {
                // Dropping the old list kills its command.
                drop(list.take());
                let mut message = [0; 16];
                let length = match recv(socket, &mut message, RecvFlags::empty()) {
                    Ok((0, _)) | Err(_) => return,
                    Ok((length, _)) => length,
                };
                let Some((generation, state)) = decode_request(&message[..length]) else {
                    continue;
                };
                let remaining = options(state).iter();
                let commands = CommandList { generation, remaining, running: None };
                list = commands.start_next(socket, config.as_os_str());
            }
            WakeReason::Output => {
                if let Some(running) = list.as_mut().and_then(|list| list.running.as_mut()) {
                    running.drain();
                }
            }
            WakeReason::Ended => {
                if list.as_mut().is_some_and(CommandList::has_ended) {
                    list = list.and_then(|list| list.conclude(socket, config.as_os_str()));
                }
            }
            WakeReason::TimedOut => {
                list = list.and_then(|list| list.conclude(socket, config.as_os_str()));
            }
        }
    }
}

/// Why the helper woke up.
enum WakeReason {
    /// A request arrived, or the monitor closed its end.
    Request,
    /// The command wrote to standard error, or nothing happened.
    Output,
    /// A child process ended.
    Ended,
    /// The command exceeded [`COMMAND_TIMEOUT`].
    TimedOut,
}

fn wait(socket: &OwnedFd, child_signals: &ChildSignals, list: Option<&CommandList>) -> WakeReason {
    let running = list.and_then(|list| list.running.as_ref());
    let mut polled =
        vec![PollFd::new(socket, PollFlags::IN), PollFd::new(child_signals, PollFlags::IN)];
    if let Some(stderr) = running.and_then(|running| running.stderr.as_ref()) {
        polled.push(PollFd::new(stderr, PollFlags::IN));
    }
    let timeout = running
        .map(|running| running.deadline.since(clock::now()))
        .and_then(|left| Timespec::try_from(left).ok());
    // An interrupted poll sets no flag: only the deadline is checked then.
    let _ = poll(&mut polled, timeout.as_ref());
    let is_ready = |at: usize| polled.get(at).is_some_and(|polled| !polled.revents().is_empty());
    if is_ready(0) {
        WakeReason::Request
    } else if running.is_some_and(|running| running.deadline <= clock::now()) {
        // ORDER: before the output, so that a command that prints without end is killed too.
        WakeReason::TimedOut
    } else if is_ready(2) {
        WakeReason::Output
    } else if is_ready(1) && child_signals.has_child_ended() {
        // The running command, or one that was killed for a newer request: `has_ended` checks which.
        WakeReason::Ended
    } else {
        WakeReason::Output
    }
}

/// The commands of one request.
struct CommandList {
    /// Number of the request.
    generation: u32,
    /// Options of the commands that have not started yet.
    remaining: std::slice::Iter<'static, &'static str>,
    running: Option<RunningCommand>,
}

impl CommandList {
    /// Starts the next command that can be started; `None` when all commands have ended.
    fn start_next(mut self, socket: &OwnedFd, config: &OsStr) -> Option<Self> {
        loop {
            let Some(option) = self.remaining.next() else {
                self.report(socket, &ConntrackReport::Ended);
                return None;
            };
            let text = format!("conntrackd -C {} {option}", config.display());
            self.report(socket, &ConntrackReport::Executing(text.clone()));
            match RunningCommand::start(text.clone(), config.to_owned(), option) {
                Ok(running) => {
                    self.running = Some(running);
                    return Some(self);
                }
                Err(error) => {
                    let reason = format!("cannot start it: {error}");
                    self.report(socket, &ConntrackReport::Failed { command: text, reason });
                    // If conntrackd cannot be started with one option, it cannot be started with the next.
                    self.remaining = [].iter();
                }
            }
        }
    }

    /// Whether the running command has ended by itself.
    fn has_ended(&mut self) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|running| !matches!(running.child.try_wait(), Ok(None)))
    }

    /// Ends the running command, reports a failure or a timeout, and starts the next command.
    fn conclude(mut self, socket: &OwnedFd, config: &OsStr) -> Option<Self> {
        if let Some(mut running) = self.running.take() {
            running.drain();
            let reason = match running.child.try_wait() {
                Ok(Some(status)) if status.success() => None,
                Ok(Some(status)) => Some(format!("{status}{}", running.output_suffix())),
                Ok(None) => {
                    let limit = COMMAND_TIMEOUT.as_secs();
                    Some(format!("not done after {limit} s, killed{}", running.output_suffix()))
                }
                Err(error) => Some(format!("cannot wait for its end: {error}")),
            };
            if let Some(reason) = reason {
                let command = running.text.clone();
                self.report(socket, &ConntrackReport::Failed { command, reason });
            }
        }
        self.start_next(socket, config)
    }

    fn report(&self, socket: &OwnedFd, report: &ConntrackReport) {
        // If the monitor has ended, the closed socket ends the helper next.
        let _ = send(socket, &report.encode(self.generation), SendFlags::NOSIGNAL);
    }
}

/// A running command. Dropping it kills and reaps the process.
struct RunningCommand {
    /// The command line, for reports.
    text: String,
    child: Child,
    /// `None` after the command has closed it.
    stderr: Option<ChildStderr>,
    /// The first [`MAX_OUTPUT_BYTES`] of standard error.
    output: Vec<u8>,
    deadline: Moment,
}

impl RunningCommand {
    fn start(text: String, config: OsString, option: &str) -> io::Result<Self> {
        let mut command = Command::new("conntrackd");
        command.arg("-C").arg(config).arg(option);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        process::bind_to_this_process(&mut command);
        let mut child = command.spawn()?;
        let stderr = child.stderr.take();
        if let Some(stderr) = &stderr {
            rustix::io::ioctl_fionbio(stderr, true)?;
        }
        let deadline = clock::now() + COMMAND_TIMEOUT;
        Ok(Self { text, child, stderr, output: Vec::new(), deadline })
    }

    /// Reads standard error. Output beyond the limit is dropped, so that the command never blocks on a full pipe.
    fn drain(&mut self) {
        let Some(stderr) = &mut self.stderr else {
            return;
        };
        let mut buffer = [0; 4096];
        match stderr.read(&mut buffer) {
            Ok(0) => self.stderr = None,
            Ok(length) => {
                let room = MAX_OUTPUT_BYTES.saturating_sub(self.output.len());
                self.output.extend_from_slice(&buffer[..length.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.stderr = None,
        }
    }

    /// The captured output after a colon; empty if there is none.
    fn output_suffix(&self) -> String {
        let text = String::from_utf8_lossy(&self.output);
        let text = text.trim();
        if text.is_empty() { String::new() } else { format!(": {text}") }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
