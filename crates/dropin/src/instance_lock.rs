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
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use vipwatch_core::InstanceId;
use vipwatch_linux::file::read_head;
use vipwatch_linux::privilege::Identity;
use vipwatch_linux::process_table::socket_inodes;
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
        let name = format!("{PROGRAM}/{instance}");
        let address = SocketAddr::from_abstract_name(&name).map_err(failed)?;
        let listener = match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                replace_holder(&address, &name).map_err(failed)?
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

/// Makes the holder of `address` exit by connecting to it, kills it if it does not, and binds `address`, which has this
/// abstract name.
fn replace_holder(address: &SocketAddr, name: &str) -> io::Result<UnixListener> {
    let mut connection = UnixStream::connect_addr(address);
    if let Some(listener) = bind_within(TAKEOVER_TIMEOUT, address)? {
        return Ok(listener);
    }
    // The holder does not react.
    if connection.is_err() {
        connection = UnixStream::connect_addr(address);
    }
    if let Ok(connection) = connection {
        kill_holder(&connection, name)?;
    }
    let in_use = "another monitor of this router holds it and does not exit";
    bind_within(TAKEOVER_TIMEOUT, address)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, in_use))
}

/// Kills the process that has created the lock. If it has ended, a process that it had started holds the lock, and another
/// one may have its pid: none of them is killed.
fn kill_holder(connection: &UnixStream, name: &str) -> io::Result<()> {
    let killed = match peer::process(connection) {
        Ok(process) => pidfd_send_signal(&process, Signal::KILL),
        Err(error) if error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error()) => {
            kill_by_pid(connection, name)
        }
        Err(_ended) => Ok(()),
    };
    match killed {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// For kernels before 6.5. LIMIT: before 5.3, another process can get the pid between the check and the signal.
fn kill_by_pid(connection: &UnixStream, name: &str) -> Result<(), Errno> {
    let pid = peer::credentials(connection).ok().and_then(|peer| peer.pid);
    let Some(pid) = pid.and_then(Pid::from_raw) else { return Ok(()) };
    // ORDER: the process descriptor comes before the check: it stays with the process that is checked.
    let process = pidfd_open(pid, PidfdFlags::empty());
    if !holds_listener(pid, name) {
        return Ok(());
    }
    match process {
        Ok(process) => pidfd_send_signal(&process, Signal::KILL),
        // Older filters of containers answer with EPERM.
        Err(Errno::NOSYS | Errno::PERM) => kill_process(pid, Signal::KILL),
        Err(errno) => Err(errno),
    }
}

/// Whether a process has the socket open that listens on the abstract name in this network namespace.
fn holds_listener(pid: Pid, name: &str) -> bool {
    const MAX_TABLE: u64 = 1 << 20;
    let table = read_head(Path::new("/proc/net/unix"), MAX_TABLE).unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    // "Num RefCount Protocol Flags Type St Inode @NAME"; the flag says that the socket listens.
    let listener = table.lines().find_map(|line| {
        let mut fields = line.strip_suffix(name)?.strip_suffix('@')?.split_ascii_whitespace();
        let is_listening = fields.nth(3)? == "00010000";
        fields.nth(2)?.parse().ok().filter(|_| is_listening)
    });
    let open = socket_inodes(pid.as_raw_nonzero().get().cast_unsigned()).unwrap_or_default();
    listener.is_some_and(|inode: u64| open.contains(&inode))
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

    /// As on a kernel before 6.5, with a pid that belongs to another process by now.
    #[test]
    fn only_the_process_with_the_listening_socket_holds_the_lock() {
        let name = format!("{PROGRAM}/test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!holds_listener(rustix::process::getpid(), &name));
        let listener = UnixListener::bind_addr(&address).unwrap();
        let holders = [rustix::process::getpid(), Pid::from_child(&other)]
            .map(|pid| holds_listener(pid, &name));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(holders, [true, false]);
        drop(listener);
    }
}
