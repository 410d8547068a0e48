//! The privileged end: runs conntrackd, and nothing else.
//!
//! It ends when the monitor's end of the socket closes, however the monitor ended; a command
//! that runs then ends with it. (The kernel's signal at a parent's death is no help: a parent
//! without privileges has none to give to a child that has them.)

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

use super::{ConntrackReport, requested};

/// What one command may take.
const LIMIT: Duration = Duration::from_secs(10);

/// How much of what a command prints is kept for the log.
const OUTPUT: usize = 400;

/// In place of a request's number: the report is about the helper itself. Requests count from 1.
pub(super) const NO_REQUEST: u32 = 0;

/// Tells the monitor why the helper ends before it has served a request.
pub fn refuse(socket: &OwnedFd, reason: String) {
    let report = ConntrackReport::Failed { command: String::new(), reason };
    // Without a monitor there is no log to write to.
    let _ = send(socket, &report.encode(NO_REQUEST), SendFlags::NOSIGNAL);
}

/// conntrackd's options for a role, in order.
fn options(role: NeutronState) -> &'static [&'static str] {
    match role {
        // Commit the external cache to the kernel, flush both caches, read the kernel's
        // table again, send it to the others.
        NeutronState::Primary => &["-c", "-f", "-R", "-B"],
        // Shorten the timers of what is left, ask the primary for its table.
        NeutronState::Backup => &["-t", "-n"],
    }
}

/// Serves requests from `socket` until it closes.
pub fn serve(socket: &OwnedFd, conf_dir: &Path) {
    let config = conf_dir.join("conntrackd.conf");
    let Ok(ends) = ChildSignals::block() else { return };
    let mut list: Option<List> = None;
    loop {
        match wait(socket, &ends, list.as_ref()) {
            Woken::Request => {
                // Dropping the old list ends its command.
                drop(list.take());
                let mut message = [0; 16];
                let length = match recv(socket, &mut message, RecvFlags::empty()) {
                    Ok((0, _)) | Err(_) => return,
                    Ok((length, _)) => length,
                };
                let Some((generation, role)) = requested(&message[..length]) else {
                    continue;
                };
                let left = options(role).iter();
                list = List { generation, left, running: None }.next(socket, config.as_os_str());
            }
            Woken::Output => {
                if let Some(running) = list.as_mut().and_then(|list| list.running.as_mut()) {
                    running.drain();
                }
            }
            Woken::Ended => {
                if list.as_mut().is_some_and(List::has_ended) {
                    list = list.and_then(|list| list.conclude(socket, config.as_os_str()));
                }
            }
            Woken::Overdue => {
                list = list.and_then(|list| list.conclude(socket, config.as_os_str()));
            }
        }
    }
}

enum Woken {
    Request,
    Output,
    Ended,
    Overdue,
}

fn wait(socket: &OwnedFd, ends: &ChildSignals, list: Option<&List>) -> Woken {
    let running = list.and_then(|list| list.running.as_ref());
    let mut polled = vec![PollFd::new(socket, PollFlags::IN), PollFd::new(ends, PollFlags::IN)];
    if let Some(stderr) = running.and_then(|running| running.stderr.as_ref()) {
        polled.push(PollFd::new(stderr, PollFlags::IN));
    }
    let limit = running
        .map(|running| running.deadline.since(clock::now()))
        .and_then(|left| Timespec::try_from(left).ok());
    // An interrupted wait sets no flag: then the deadline decides.
    let _ = poll(&mut polled, limit.as_ref());
    let is_ready = |at: usize| polled.get(at).is_some_and(|polled| !polled.revents().is_empty());
    if is_ready(0) {
        Woken::Request
    } else if running.is_some_and(|running| running.deadline <= clock::now()) {
        // Before its output: one that never stops talking must stop all the same.
        Woken::Overdue
    } else if is_ready(2) {
        Woken::Output
    } else if is_ready(1) && ends.has_child_ended() {
        // Ours, or one that was killed for a newer request: the list knows.
        Woken::Ended
    } else {
        Woken::Output
    }
}

/// The commands for one request.
struct List {
    generation: u32,
    left: std::slice::Iter<'static, &'static str>,
    running: Option<Running>,
}

impl List {
    /// Starts the next command that can be started; `None` when the list is done.
    fn next(mut self, socket: &OwnedFd, config: &OsStr) -> Option<Self> {
        loop {
            let Some(option) = self.left.next() else {
                self.report(socket, &ConntrackReport::Ended);
                return None;
            };
            let text = format!("conntrackd -C {} {option}", config.display());
            self.report(socket, &ConntrackReport::Executing(text.clone()));
            match Running::start(text.clone(), config.to_owned(), option) {
                Ok(running) => {
                    self.running = Some(running);
                    return Some(self);
                }
                Err(error) => {
                    let reason = format!("cannot start it: {error}");
                    self.report(socket, &ConntrackReport::Failed { command: text, reason });
                    // What cannot be found for one option will not be found for the next.
                    self.left = [].iter();
                }
            }
        }
    }

    /// Whether the command that runs has ended by itself.
    fn has_ended(&mut self) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|running| !matches!(running.child.try_wait(), Ok(None)))
    }

    /// Ends the command, reports if it did not end well by itself, and starts the next.
    fn conclude(mut self, socket: &OwnedFd, config: &OsStr) -> Option<Self> {
        if let Some(mut running) = self.running.take() {
            running.drain();
            let reason = match running.child.try_wait() {
                Ok(Some(status)) if status.success() => None,
                Ok(Some(status)) => Some(format!("{status}{}", running.said())),
                Ok(None) => {
                    let limit = LIMIT.as_secs();
                    Some(format!("not done after {limit} s, killed{}", running.said()))
                }
                Err(error) => Some(format!("cannot be waited for: {error}")),
            };
            if let Some(reason) = reason {
                let command = running.text.clone();
                self.report(socket, &ConntrackReport::Failed { command, reason });
            }
        }
        self.next(socket, config)
    }

    fn report(&self, socket: &OwnedFd, report: &ConntrackReport) {
        // Nobody to report to means that we are about to end anyway.
        let _ = send(socket, &report.encode(self.generation), SendFlags::NOSIGNAL);
    }
}

/// A command that runs. Dropping it kills and reaps it.
struct Running {
    text: String,
    child: Child,
    stderr: Option<ChildStderr>,
    output: Vec<u8>,
    deadline: Moment,
}

impl Running {
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
        let deadline = clock::now() + LIMIT;
        Ok(Self { text, child, stderr, output: Vec::new(), deadline })
    }

    /// Takes what it printed; a command that floods is read and forgotten, not blocked.
    fn drain(&mut self) {
        let Some(stderr) = &mut self.stderr else {
            return;
        };
        let mut buffer = [0; 4096];
        match stderr.read(&mut buffer) {
            Ok(0) => self.stderr = None,
            Ok(length) => {
                let room = OUTPUT.saturating_sub(self.output.len());
                self.output.extend_from_slice(&buffer[..length.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.stderr = None,
        }
    }

    fn said(&self) -> String {
        let text = String::from_utf8_lossy(&self.output);
        let text = text.trim();
        if text.is_empty() { String::new() } else { format!(": {text}") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
