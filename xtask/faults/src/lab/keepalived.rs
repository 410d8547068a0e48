// SPDX-License-Identifier: Apache-2.0
//! keepalived on one host: its file, its two processes, and the file that makes its track script fail.

use std::path::PathBuf;

use super::host::LabHost;
use super::{output, wait_for, write_file};
use crate::setup::{ConfigEdit, LabSetup};
use crate::{FaultsError, LabResult};

/// The pids of keepalived, in the pid namespace of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepalivedPids {
    pub parent: u32,
    pub child: u32,
}

impl LabHost {
    /// The track script fails while this file exists.
    pub fn script_file(&self) -> PathBuf {
        self.file("script-fails")
    }

    pub fn configure(&self, setup: &LabSetup, edit: ConfigEdit) -> LabResult {
        let text = setup.keepalived_conf(self.index, edit, &self.script_file());
        write_file(&self.file("keepalived.conf"), &text)
    }

    /// Starts keepalived in the background and waits for both processes.
    pub fn start_keepalived(&self) -> LabResult {
        // The shell ends at once, so that keepalived is a child of the host's first process, as a daemon is.
        let line =
            "keepalived -n -P -l -D -f \"$1\" -p \"$2\" -r \"$3\" >> \"$4\" 2>&1 < /dev/null &";
        let mut command = self.command("setsid");
        command.args(["sh", "-c", line, "sh"]);
        for file in ["keepalived.conf", "parent.pid", "child.pid", "keepalived.log"] {
            command.arg(self.file(file));
        }
        output(&mut command)?;
        wait_for("keepalived's processes", || Ok(self.keepalived_pids().ok())).map(drop)
    }

    /// The pids in the pid files; an error if a process does not exist.
    pub fn keepalived_pids(&self) -> LabResult<KeepalivedPids> {
        let is_running = self.is_service_alive("parent") && self.is_service_alive("child");
        if !is_running {
            return Err(FaultsError(format!("keepalived does not run on host {}", self.index)));
        }
        Ok(KeepalivedPids { parent: self.pid("parent")?, child: self.pid("child")? })
    }
}
