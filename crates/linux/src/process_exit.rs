//! Reports the end of other processes at once, by one pidfd for each in one epoll set.
//!
//! A pidfd stays with its process: it never refers to a later process with the same pid. Linux has them since
//! version 5.3; without them, and beyond the limit of open files, the caller must look itself.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process_table::{ProcessId, stat};

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
    _pidfd: OwnedFd,
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
            self.processes.insert(id.pid, WatchedProcess { id, _pidfd: pidfd });
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
    pub fn take_ended(&mut self) -> Vec<ProcessId> {
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
                ended.extend(self.processes.remove(&pid).map(|watched| watched.id));
            }
        }
    }
}

impl AsFd for ExitWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
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
        assert_eq!(watcher.take_ended(), [id]);
        assert!(!is_readable(&watcher) && !watcher.is_watched(id));
        child.wait().unwrap();
        assert!(!watcher.watch(id), "it has ended");
    }
}
