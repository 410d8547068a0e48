//! Ends all processes below this one, also those that have left its session and its process group.
//!
//! A subreaper is the new parent of every process below it that has lost its parent. So a process that has called
//! `setsid` and forked twice stays below the subreaper, and is found by the parents in `/proc`.

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, set_child_subreaper,
};

use vipwatch_core::cause::ProcessExit;

use crate::process_table::{ProcessStat, RunState, exit_from_status, pids, stat};

/// Maximum number of rounds in which new processes are stopped before all of them are killed.
const MAX_STOP_ROUNDS: usize = 100;

/// Makes this process the new parent of the processes below it that lose their parent.
pub fn become_subreaper() -> io::Result<()> {
    Ok(set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// A child of this process that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedChild {
    /// Its pid.
    pub pid: u32,
    /// How it ended.
    pub exit: ProcessExit,
}

/// What [`collect_children`] has found.
#[derive(Debug, Default)]
pub struct CollectedChildren {
    /// The children that have ended since the last call.
    pub ended: Vec<EndedChild>,
    /// Whether other children are left. Below a subreaper without children there is no process.
    pub has_children: bool,
}

/// Collects the children of this process that have ended.
pub fn collect_children() -> CollectedChildren {
    let mut collected = CollectedChildren::default();
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let pid = pid.as_raw_nonzero().get().cast_unsigned();
                collected.ended.push(EndedChild { pid, exit: exit_from_status(status.as_raw()) });
            }
            Ok(None) => {
                collected.has_children = true;
                return collected;
            }
            Err(Errno::INTR) => {}
            // ECHILD: there is no child.
            Err(_) => return collected,
        }
    }
}

/// Kills all processes below this one, except the children `spared` and the processes below those. Returns the number
/// of processes that were found; call it again until it is zero, because a process may need time to end.
///
/// ORDER: all processes are stopped before one is killed. A process with a pending signal cannot fork, and a killed one
/// would make room for another process where their number is limited.
pub fn kill_descendants(spared: &[u32]) -> usize {
    let mut stopped = HashSet::new();
    let mut left = descendants(spared);
    for _ in 0..MAX_STOP_ROUNDS {
        let new: Vec<&ProcessStat> =
            left.iter().filter(|process| stopped.insert(process.id)).collect();
        if new.is_empty() {
            break;
        }
        for process in new {
            send(process, Signal::STOP);
        }
        left = descendants(spared);
    }
    for process in &left {
        send(process, Signal::KILL);
    }
    left.len()
}

/// The processes below this one that have not ended.
fn descendants(spared: &[u32]) -> Vec<ProcessStat> {
    let mut children: HashMap<u32, Vec<ProcessStat>> = HashMap::new();
    for process in pids().unwrap_or_default().into_iter().filter_map(|pid| stat(pid).ok()) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![std::process::id()];
    while let Some(parent) = parents.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            if !spared.contains(&process.id.pid) {
                parents.push(process.id.pid);
                found.push(process);
            }
        }
    }
    found.retain(|process| process.state != RunState::Ended);
    found
}

/// Sends a signal, unless the process has ended and its pid belongs to another one.
fn send(process: &ProcessStat, signal: Signal) {
    let pid = i32::try_from(process.id.pid).ok().and_then(Pid::from_raw);
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return };
    // ORDER: the identity is checked after the descriptor is open. From then on, it cannot become another process.
    if stat(process.id.pid).is_ok_and(|now| now.id == process.id) {
        // A process of another user stays, if this one lacks the right to end it.
        let _ = pidfd_send_signal(&pidfd, signal);
    }
}
