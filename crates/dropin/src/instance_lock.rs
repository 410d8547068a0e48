//! One monitor per router, whatever becomes of the pid file.
//!
//! The agent unlinks pid files, before it starts a monitor and after it stops one, so a
//! lock on that file would protect nothing. The lock is a name in the router's own network
//! namespace instead: an abstract socket address, which only one socket can have, which is
//! gone with its process, and which nobody outside the namespace can take.
//!
//! It is also the way to say "I am your successor": whoever connects, and is root or the
//! same user, asks the holder to leave.

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

/// How long a predecessor may take to leave; it needs a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);

/// Held for as long as this monitor is the router's only one.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    listener: UnixListener,
}

impl InstanceLock {
    /// Takes the lock, from a predecessor that the agent has forgotten if need be.
    ///
    /// `started_by`: this process and its ancestors as they were when it was started. None of them is another monitor.
    pub(crate) fn take(
        instance: &InstanceId,
        pid_file: &Path,
        started_by: &[u32],
    ) -> Result<Self, Failure> {
        // A monitor of another make takes no lock of ours; its pid file speaks for it.
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
                succeed(&address).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener })
    }

    /// Whether a successor is at the door.
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

/// Asks the holder of `address` to leave, sees it off, and takes its place.
fn succeed(address: &SocketAddr) -> io::Result<UnixListener> {
    let mut call = UnixStream::connect_addr(address);
    if let Some(listener) = bind_within(PATIENCE, address)? {
        return Ok(listener);
    }
    // It does not listen. The kernel says which process holds the lock, as of now; a second
    // call makes sure that it is not a number from the past.
    if call.is_err() {
        call = UnixStream::connect_addr(address);
    }
    let holder = |call: io::Result<UnixStream>| {
        call.ok().and_then(|call| peer::credentials(&call).ok()?.pid).and_then(Pid::from_raw)
    };
    let first = holder(call);
    let second = holder(UnixStream::connect_addr(address));
    match (first, second) {
        (Some(pid), Some(again)) if pid == again => end_holder(pid)?,
        _ => {}
    }
    let in_use = "another monitor of this router holds it and does not leave";
    bind_within(PATIENCE, address)?.ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, in_use))
}

/// Ends the process that holds the lock. It may have ended by itself since the kernel named it.
fn end_holder(pid: Pid) -> io::Result<()> {
    match rustix::process::kill_process(pid, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Binds `address` as soon as it is free; `None` if it is not within `limit`.
fn bind_within(limit: Duration, address: &SocketAddr) -> io::Result<Option<UnixListener>> {
    const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let end = clock::now() + limit;
    loop {
        match UnixListener::bind_addr(address) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
            Err(_) if clock::now() >= end => return Ok(None),
            Err(_) => {
                let _ = poll(&mut [], Some(&STEP));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_has_ended_meanwhile_is_no_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        child.wait().unwrap();
        end_holder(pid).unwrap();
    }
}
