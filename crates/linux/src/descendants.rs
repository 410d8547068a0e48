// SPDX-License-Identifier: Apache-2.0
//! Ends all processes below this one, also those that have left its session and its process group.
//!
//! A subreaper is the new parent of every process below it that has lost its parent. So a process that has called
//! `setsid` and forked twice stays below the subreaper, and is found by the parents in `/proc`.

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal,
    set_child_subreaper,
};

use vipwatch_core::cause::ProcessExit;

use crate::process_table::{ProcessId, ProcessStat, RunState, exit_from_status, pids, stat};

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

/// A process below this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Descendant {
    /// A process that `/proc` shows.
    Shown(ProcessId),
    /// A child of this process that `/proc` hides: it is mounted with `hidepid`, and the child has another user. Its pid
    /// belongs to no other process before this one has collected it.
    HiddenChild(u32),
}

/// Kills all processes below this one, except the children `spared` and the processes below those. Returns the number
/// of processes that were found; call it again until it is zero, because a process may need time to end.
///
/// ORDER: all processes are stopped before one is killed. A process with a pending signal cannot fork, and a killed one
/// would make room for another process where their number is limited.
///
/// LIMIT: of the processes that `/proc` hides, only the children of this one are found. The processes below them become
/// children of the subreaper when these end, and the next call finds them.
pub fn kill_descendants(spared: &[u32]) -> usize {
    let mut stopped = HashSet::new();
    let mut left = descendants(spared);
    for _ in 0..MAX_STOP_ROUNDS {
        let new: Vec<&Descendant> =
            left.iter().filter(|process| stopped.insert(**process)).collect();
        if new.is_empty() {
            break;
        }
        for process in new {
            send(*process, Signal::STOP);
        }
        left = descendants(spared);
    }
    for process in &left {
        send(*process, Signal::KILL);
    }
    left.len()
}

/// The processes below this one that have not ended.
fn descendants(spared: &[u32]) -> Vec<Descendant> {
    let mut hidden = own_children();
    let mut children: HashMap<u32, Vec<ProcessStat>> = HashMap::new();
    for process in pids().unwrap_or_default().into_iter().filter_map(|pid| stat(pid).ok()) {
        hidden.remove(&process.id.pid);
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
    let hidden = hidden.into_iter().filter(|pid| !spared.contains(pid));
    let found = found.into_iter().map(|process| Descendant::Shown(process.id));
    found.chain(hidden.map(Descendant::HiddenChild)).collect()
}

/// The pids of the children of this process, also of those that `/proc` hides.
///
/// LIMIT: none on a kernel without `CONFIG_PROC_CHILDREN`. The kernels of the distributions have it.
fn own_children() -> HashSet<u32> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let lists: Vec<String> = lists.filter_map(Result::ok).collect();
    let words = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Sends a signal, unless the process has ended and its pid belongs to another one.
fn send(process: Descendant, signal: Signal) {
    let (Descendant::Shown(ProcessId { pid, .. }) | Descendant::HiddenChild(pid)) = process;
    let Some(raw_pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let pidfd = pidfd_open(raw_pid, PidfdFlags::empty());
    // ORDER: the identity is checked after the descriptor is open. From then on, it cannot become another process.
    let is_same = match process {
        Descendant::Shown(id) => stat(pid).is_ok_and(|now| now.id == id),
        Descendant::HiddenChild(_) => true,
    };
    if !is_same {
        return;
    }
    // A process of another user stays, if this one lacks the right to end it.
    let _ = match pidfd {
        Ok(pidfd) => pidfd_send_signal(&pidfd, signal),
        Err(Errno::SRCH) => Ok(()),
        // Before Linux 5.3 there is no descriptor, filters of containers refuse it, and a limit may be reached. LIMIT: the
        // process may end, and another one get its pid, between the check and the signal.
        Err(_) => kill_process(raw_pid, signal),
    };
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_told_from_the_processes_below_it() {
        // The shell waits for its child, which writes its own pid and then waits for the end of its input.
        let mut shell = Command::new("/bin/sh")
            .args(["-c", "sh -c 'echo $$; read word'; true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(output), &mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        assert_ne!(grandchild, shell.id());
        assert!(own_children().contains(&shell.id()));
        assert!(!own_children().contains(&grandchild));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
