// SPDX-License-Identifier: Apache-2.0
//! Ends the old monitor, as the agent does: SIGTERM, and SIGKILL if it has not ended after 10 s.

use std::io;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use vipwatch_linux::clock;
use vipwatch_linux::process_table::{ProcessId, is_alive, stat};

/// How long the agent waits after SIGTERM.
const TERM_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process may need to end after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A process: its pid and its start time in clock ticks since the boot.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StoppedProcess {
    pid: u32,
    started: u64,
}

impl From<ProcessId> for StoppedProcess {
    fn from(id: ProcessId) -> Self {
        Self { pid: id.pid, started: id.started }
    }
}

impl StoppedProcess {
    fn id(self) -> ProcessId {
        ProcessId { pid: self.pid, started: self.started }
    }
}

/// The processes to end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StopOrder {
    pub(crate) monitor: StoppedProcess,
    /// Processes that the monitor has started, and that may outlive it.
    pub(crate) descendants: Vec<StoppedProcess>,
}

/// How the monitor has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StopResult {
    #[default]
    Terminated,
    Killed,
}

/// How a monitor ended.
#[derive(Debug, Default)]
pub(crate) struct StopReport {
    pub(crate) result: StopResult,
    /// Processes that the monitor has left behind and that run on.
    pub(crate) problems: Vec<String>,
}

/// Ends the monitor and everything that it has started.
pub(crate) fn stop(order: &StopOrder) -> io::Result<StopReport> {
    let monitor = order.monitor.id();
    send(monitor, Signal::TERM)?;
    let mut report = StopReport::default();
    if !ends_within(monitor, TERM_TIMEOUT) {
        report.result = StopResult::Killed;
        send(monitor, Signal::KILL)?;
    }
    if !ends_within(monitor, KILL_TIMEOUT) {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end after SIGKILL"));
    }
    for process in &order.descendants {
        // The monitor has ended: its successor is needed, whatever happens to the rest.
        match send(process.id(), Signal::KILL) {
            Ok(()) if ends_within(process.id(), KILL_TIMEOUT) => {}
            Ok(()) => report.problems.push(format!("process {} does not end", process.pid)),
            Err(error) => {
                report.problems.push(format!("cannot end process {}: {error}", process.pid));
            }
        }
    }
    Ok(report)
}

/// Sends a signal. A process that has already ended is no error.
fn send(id: ProcessId, signal: Signal) -> io::Result<()> {
    let Some(pid) = i32::try_from(id.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    let sent = match pidfd_open(pid, PidfdFlags::empty()) {
        // ORDER: the identity is checked after the descriptor is open. It cannot become another process from then on.
        Ok(pidfd) if is_same(id) => pidfd_send_signal(&pidfd, signal),
        // Kernels before 5.3 have no process descriptors, and older filters of containers answer with EPERM.
        Err(Errno::NOSYS | Errno::PERM) if is_same(id) => kill_process(pid, signal),
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    };
    match sent {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn is_same(id: ProcessId) -> bool {
    stat(id.pid).is_ok_and(|stat| stat.id == id)
}

/// Waits until the process has ended; false after `limit`.
fn ends_within(id: ProcessId, limit: Duration) -> bool {
    let end = clock::now() + limit;
    while is_alive(id) {
        if clock::now() >= end {
            return false;
        }
        wait_a_moment();
    }
    true
}

/// Waits 20 ms.
pub(crate) fn wait_a_moment() {
    const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let _ = poll(&mut [], Some(&STEP));
}
