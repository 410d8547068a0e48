// SPDX-License-Identifier: Apache-2.0
//! Reports the end of other processes at once, by one pidfd for each in one epoll set.
//!
//! A pidfd stays with its process: it never refers to a later process with the same pid. Linux has them since
//! version 5.3; without them, and beyond the limit of open files, the caller must look itself.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::ioctl;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use vipwatch_core::cause::ProcessExit;

use crate::process_table::{ProcessId, exit_from_status, exit_of_ended, stat};

/// The processes that are watched for their end. The descriptor is readable when one of them has ended.
#[derive(Debug)]
pub struct ExitWatcher {
    epoll: OwnedFd,
    /// By pid, which is the data of each entry of the epoll set.
    processes: HashMap<u32, WatchedProcess>,
}

#[derive(Debug)]
struct WatchedProcess {
    id: ProcessId,
    /// Held open: the kernel removes a closed descriptor from the set.
    pidfd: OwnedFd,
}

/// A process that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedProcess {
    /// The process.
    pub id: ProcessId,
    /// How it ended.
    pub exit: ProcessExit,
}

impl ExitWatcher {
    /// A watcher without processes.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, processes: HashMap::new() })
    }

    /// Watches a process. False if the kernel has no pidfd for it, or if it has ended already.
    pub fn watch(&mut self, id: ProcessId) -> bool {
        if self.is_watched(id) {
            return true;
        }
        self.open(id).is_ok_and(|pidfd| {
            // An earlier process with the same pid has ended; the caller knows, because it has found this one.
            self.processes.insert(id.pid, WatchedProcess { id, pidfd });
            true
        })
    }

    fn open(&self, id: ProcessId) -> io::Result<OwnedFd> {
        let pid = i32::try_from(id.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // ORDER: the identity is checked after the descriptor is open. From then on, it cannot become another process.
        if stat(id.pid)?.id != id {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let data = epoll::EventData::new_u64(u64::from(id.pid));
        epoll::add(&self.epoll, &pidfd, data, epoll::EventFlags::IN)?;
        Ok(pidfd)
    }

    /// Whether the end of this process will be reported.
    pub fn is_watched(&self, id: ProcessId) -> bool {
        self.processes.get(&id.pid).is_some_and(|watched| watched.id == id)
    }

    /// The number of watched processes.
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Stops to watch a process.
    pub fn forget(&mut self, id: ProcessId) {
        if self.is_watched(id) {
            self.processes.remove(&id.pid);
        }
    }

    /// The processes that have ended since the last call. They are watched no longer.
    pub fn take_ended(&mut self) -> Vec<EndedProcess> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut ended = Vec::new();
        loop {
            events.clear();
            let waited =
                epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default()));
            if !waited.is_ok_and(|count| count > 0) {
                return ended;
            }
            for event in &events {
                let pid = u32::try_from(event.data.u64()).unwrap_or_default();
                ended.extend(
                    self.processes
                        .remove(&pid)
                        .map(|watched| EndedProcess { id: watched.id, exit: exit_of(&watched) }),
                );
            }
        }
    }
}

as_fd!(ExitWatcher.epoll);

/// How a process has ended.
///
/// ORDER: the kernel has the status in `/proc` until the parent has collected it, and from then on in the pidfd (Linux
/// 6.15). The parent may collect it between the first two reads, so the pidfd is read twice.
fn exit_of(process: &WatchedProcess) -> ProcessExit {
    let of_pidfd = || exit_of_pidfd(process.pidfd.as_fd());
    of_pidfd()
        .or_else(|| exit_of_ended(process.id))
        .or_else(of_pidfd)
        .unwrap_or(ProcessExit::Unknown)
}

/// The first version of the kernel's `struct pidfd_info`, as far as it is used here.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    /// The requested facts; afterwards, those that the kernel has filled in.
    mask: u64,
    unused: [u32; 13],
    exit_status: i32,
}

/// How the process of a pidfd has ended; `None` if the kernel does not know, or is older than 6.15.
fn exit_of_pidfd(pidfd: BorrowedFd<'_>) -> Option<ProcessExit> {
    /// `_IOWR(0xFF, 11, struct pidfd_info)`
    const PIDFD_GET_INFO: ioctl::Opcode = ioctl::opcode::read_write::<PidfdInfo>(0xFF, 11);
    /// `PIDFD_INFO_EXIT`
    const EXIT: u64 = 1 << 3;
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel reads and writes at most the 64 bytes that the number of the request names, which is the size
    // of `info`; every value of its fields is valid.
    let result =
        unsafe { ioctl::ioctl(pidfd, ioctl::Updater::<PIDFD_GET_INFO, _>::new(&mut info)) };
    (result.is_ok() && info.mask & EXIT != 0).then(|| exit_from_status(info.exit_status))
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn is_readable(watcher: &ExitWatcher) -> bool {
        poll(&mut [PollFd::new(watcher, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn the_end_of_a_process_is_reported_once() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = stat(child.id()).unwrap().id;
        let mut watcher = ExitWatcher::new().unwrap();
        assert!(watcher.watch(id) && watcher.watch(id) && watcher.is_watched(id));
        assert!(!watcher.watch(ProcessId { started: id.started + 1, ..id }), "another process");
        assert!(!is_readable(&watcher));
        child.kill().unwrap();
        poll(&mut [PollFd::new(&watcher, PollFlags::IN)], None).unwrap();
        // This process has not collected the status yet.
        let exit = ProcessExit::Signal(9);
        assert_eq!(watcher.take_ended(), [EndedProcess { id, exit }]);
        assert!(!is_readable(&watcher) && !watcher.is_watched(id));
        child.wait().unwrap();
        assert!(!watcher.watch(id), "it has ended");
    }

    #[test]
    fn the_exit_code_of_a_process_is_known_before_it_is_collected() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line; exit 3"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let id = stat(child.id()).unwrap().id;
        let mut watcher = ExitWatcher::new().unwrap();
        assert!(watcher.watch(id));
        drop(child.stdin.take());
        poll(&mut [PollFd::new(&watcher, PollFlags::IN)], None).unwrap();
        let exit = ProcessExit::Code(3);
        assert_eq!(watcher.take_ended(), [EndedProcess { id, exit }]);
        child.wait().unwrap();
    }
}
