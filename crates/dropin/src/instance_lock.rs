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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use vipwatch_core::InstanceId;
use vipwatch_linux::peer;
use vipwatch_linux::privilege::Identity;

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
    pub(crate) fn take(instance: &InstanceId, pid_file: &Path) -> Result<Self, Failure> {
        // A monitor of another make takes no lock of ours; its pid file speaks for it.
        if let Some(pid) = pid_file::running_monitor(pid_file, instance) {
            let message = format!(
                "Pidfile {} already exist. Daemon already running? (pid {pid})",
                pid_file.display()
            );
            return Err(Failure::new(Code::No, message).hint(format!("stop it first: kill {pid}")));
        }
        let failed = |error: io::Error| {
            let message = format!("cannot take the lock of router {instance}: {error}");
            Failure::new(Code::of(&error), message)
        };
        let address =
            SocketAddr::from_abstract_name(format!("{PROGRAM}/{instance}")).map_err(failed)?;
        let listener = match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                succeed(&address).map_err(failed)?;
                UnixListener::bind_addr(&address).map_err(|error| {
                    failed(error).hint("another monitor of this router is starting")
                })?
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

/// Asks the holder of `address` to leave, and sees it off.
fn succeed(address: &SocketAddr) -> io::Result<()> {
    // It may leave by itself just now; then there is nobody to connect to.
    let Ok(call) = UnixStream::connect_addr(address) else {
        return Ok(());
    };
    let pid = peer::credentials(&call)?.pid.and_then(Pid::from_raw);
    let Some(pid) = pid else {
        let message = "its holder lives in another container";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
    };
    // The kernel says that this process held the lock when we called; the handle stays
    // with that process, even if the number is used again.
    let Ok(holder) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return Ok(());
    };
    if !has_ended(&holder) {
        rustix::process::pidfd_send_signal(&holder, Signal::KILL)?;
        has_ended(&holder);
    }
    Ok(())
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut waiting = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec::try_from(PATIENCE).ok();
    poll(&mut waiting, limit.as_ref()).is_ok_and(|ready| ready > 0)
}
