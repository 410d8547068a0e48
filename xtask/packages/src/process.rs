// SPDX-License-Identifier: Apache-2.0
//! A process of a machine that runs beside the test.

use std::fs;
use std::process::{Child, Command, ExitStatus};

/// A command that [`crate::Machine::spawn`] has started. It ends when it is dropped.
///
/// The parent of the process is `nsenter`, outside of the machine. A kill of `nsenter` alone would leave a zombie that the
/// machine cannot remove, and the machine's first process would wait for it forever. So only the process itself is killed:
/// `nsenter` collects it, and ends too.
pub struct MachineProcess {
    nsenter: Child,
}

impl MachineProcess {
    pub(crate) fn new(nsenter: Child) -> Self {
        Self { nsenter }
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        self.nsenter.wait().unwrap()
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.nsenter.try_wait().unwrap().is_none()
    }

    /// Kills the process, and waits for its end.
    pub fn kill(&mut self) {
        // `nsenter` may not have started the process yet.
        while self.is_running() {
            let id = self.nsenter.id();
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            match children.unwrap_or_default().split_whitespace().next() {
                Some(child) => {
                    let _ = Command::new("kill").args(["-KILL", child]).output();
                    self.wait();
                }
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for MachineProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
