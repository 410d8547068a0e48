// SPDX-License-Identifier: Apache-2.0
//! The lock that allows one monitor for each router, independent of the pid file.
//!
//! The agent unlinks pid files, before it starts a monitor and after it stops one, so a
//! lock on that file would protect nothing. The lock is an abstract socket address in the router's own network
//! namespace instead. Only one socket can have it, the kernel frees it when the process ends, and no process outside
//! the namespace can take it.
//!
//! A successor also uses the lock to replace the holder: a process of root or of the same user that connects to the
//! socket makes the holder exit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use vipwatch_core::InstanceId;
use vipwatch_linux::privilege::Identity;
use vipwatch_linux::{clock, peer};

use crate::args::PROGRAM;
use crate::failure::{Code, Failure};
use crate::pid_file;

/// How long a new monitor waits until the holder of the lock has exited. Normally that takes one millisecond.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(1);

/// The lock of one router; released when dropped.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    listener: UnixListener,
}

impl InstanceLock {
    /// Takes the lock. A monitor that holds it, but has no pid file any more, is replaced; a monitor with a pid file
    /// makes this fail.
    ///
    /// `started_by` holds the pids of this process and its ancestors at the start. None of them is another monitor.
    pub(crate) fn take(
        instance: &InstanceId,
        pid_file: &Path,
        started_by: &[u32],
    ) -> Result<Self, Failure> {
        // Neutron's own monitor does not take this lock; only its pid file shows that it runs.
        if let Some(pid) = pid_file::running_monitor(pid_file, instance, started_by) {
            let message = format!(
                "Pidfile {} already exist. Daemon already running? (pid {pid})",
                pid_file.display()
            );
            return Err(Failure::new(Code::No, message).hint(format!("stop it first: kill {pid}")));
        }
        let failed = |error: io::Error| {
            let message = format!("cannot take the lock of router {instance}: {error}");
            let code = match error.kind() {
                io::ErrorKind::AddrInUse => Code::No,
                _ => Code::of(&error),
            };
            Failure::new(code, message)
        };
        let address =
            SocketAddr::from_abstract_name(format!("{PROGRAM}/{instance}")).map_err(failed)?;
        let listener = match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                replace_holder(&address).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener })
    }

    /// Accepts one connection. Returns whether it comes from a successor, which replaces this monitor.
    pub(crate) fn is_superseded(&self) -> bool {
        let Ok((caller, _)) = self.listener.accept() else {
            return false;
        };
        let Ok(caller) = peer::credentials(&caller) else {
            return false;
        };
        caller.user == 0 || caller.user == Identity::current().user
    }
}

impl AsFd for InstanceLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Makes the holder of `address` exit by connecting to it, kills it if it does not, and binds `address`.
fn replace_holder(address: &SocketAddr) -> io::Result<UnixListener> {
    let mut connection = UnixStream::connect_addr(address);
    if let Some(listener) = bind_within(TAKEOVER_TIMEOUT, address)? {
        return Ok(listener);
    }
    // The holder does not react. The kernel reports the pid of the listening process; a second
    // connection makes sure that the pid is still current and was not reused.
    if connection.is_err() {
        connection = UnixStream::connect_addr(address);
    }
    let holder = |connection: io::Result<UnixStream>| {
        let connection = connection.ok()?;
        peer::credentials(&connection).ok()?.pid.and_then(Pid::from_raw)
    };
    let first = holder(connection);
    let second = holder(UnixStream::connect_addr(address));
    match (first, second) {
        (Some(pid), Some(again)) if pid == again => kill_holder(pid)?,
        _ => {}
    }
    let in_use = "another monitor of this router holds it and does not exit";
    bind_within(TAKEOVER_TIMEOUT, address)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, in_use))
}

/// Kills the process that holds the lock. A process that has ended by itself meanwhile is no error.
fn kill_holder(pid: Pid) -> io::Result<()> {
    match rustix::process::kill_process(pid, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Binds `address` as soon as it is free; `None` if it is still in use after `timeout`.
fn bind_within(timeout: Duration, address: &SocketAddr) -> io::Result<Option<UnixListener>> {
    const RETRY_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let deadline = clock::now() + timeout;
    loop {
        match UnixListener::bind_addr(address) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
            Err(_) if clock::now() >= deadline => return Ok(None),
            Err(_) => {
                let _ = poll(&mut [], Some(&RETRY_DELAY));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn killing_a_holder_that_has_already_ended_is_no_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        child.wait().unwrap();
        kill_holder(pid).unwrap();
    }
}
