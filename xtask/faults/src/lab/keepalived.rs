// SPDX-License-Identifier: Apache-2.0
//! keepalived on one host: its file, its two processes, and the file that makes its track script fail.

use std::path::PathBuf;
use std::process::Command;

use super::host::LabHost;
use super::{output, wait_for, write_file};
use crate::setup::{ConfigEdit, HealthyShape, LabSetup};
use crate::{FaultsError, LabResult};

/// The pids of keepalived, in the pid namespace of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepalivedPids {
    pub parent: u32,
    pub child: u32,
}

/// The paths of the programs of other releases, separated by colons.
const VERSIONS_VARIABLE: &str = "VIPWATCH_KEEPALIVED_VERSIONS";
/// Runs a program as another user, with the capabilities that keepalived needs.
const OTHER_USER: &str = "setpriv --reuid 1234 --regid 1234 --clear-groups \
     --inh-caps +net_admin,+net_raw,+net_broadcast --ambient-caps +net_admin,+net_raw,+net_broadcast ";

/// The command that runs keepalived on a host: `VIPWATCH_KEEPALIVED`, or the program of the lab.
pub fn command(setup: &LabSetup, host: usize) -> LabResult<String> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let (given, versions) = (variable("VIPWATCH_KEEPALIVED"), variable(VERSIONS_VARIABLE));
    let program = match setup.release(host) {
        _ if !given.is_empty() => given,
        None => "keepalived".to_owned(),
        Some(release) => {
            let part = format!("/{release}/");
            let path = versions.split(':').find(|path| path.contains(&part));
            let none = || FaultsError(format!("{VERSIONS_VARIABLE} has no {release}"));
            path.ok_or_else(none)?.to_owned()
        }
    };
    let prefix = if setup.shape == Some(HealthyShape::OtherUser) { OTHER_USER } else { "" };
    Ok(format!("{prefix}{program}"))
}

/// Whether the keepalived of all labs knows `down_timer_adverts`; the releases of a lab are chosen for it.
pub fn has_down_timer() -> LabResult<bool> {
    let given = std::env::var("VIPWATCH_KEEPALIVED").unwrap_or_default();
    let program = if given.is_empty() { "keepalived" } else { &given };
    let output = Command::new(program).arg("--version").output()?;
    Ok(knows_down_timer(&String::from_utf8_lossy(&output.stderr)))
}

/// The same for the text of `--version`, for example `Keepalived v2.1.5 (07/13,2020)`.
fn knows_down_timer(text: &str) -> bool {
    let version = text.split_whitespace().nth(1).and_then(|word| word.strip_prefix('v'));
    let numbers: Vec<u32> =
        version.unwrap_or_default().split('.').map_while(|number| number.parse().ok()).collect();
    numbers >= vec![2, 2, 4]
}

impl LabHost {
    /// The track script fails while this file exists.
    pub fn script_file(&self) -> PathBuf {
        self.file("script-fails")
    }

    pub fn configure(&self, setup: &LabSetup, edit: ConfigEdit) -> LabResult {
        let text = setup.keepalived_conf(self.index, edit, &self.script_file());
        write_file(&self.file("keepalived.conf"), &text)?;
        if setup.shape == Some(HealthyShape::OtherUser) {
            let path = |name: &str| self.file(name).display().to_string();
            self.run(&format!("chmod 644 {}", path("keepalived.conf")))?;
            self.run(&format!("chmod 777 {}", path("")))?;
        }
        Ok(())
    }

    /// Starts keepalived in the background and waits for both processes.
    pub fn start_keepalived(&self) -> LabResult {
        // The shell ends at once, so that keepalived is a child of the host's first process, as a daemon is.
        let options = "-n -P -l -D -f \"$1\" -p \"$2\" -r \"$3\" >> \"$4\" 2>&1 < /dev/null &";
        let mut command = self.command("setsid");
        command.args(["sh", "-c", &format!("{} {options}", self.keepalived), "sh"]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepalived_knows_the_down_timer_from_2_2_4_on() {
        for (version, expected) in
            [("2.1.5", false), ("1.4", false), ("2.2.0", false), ("2.2.4", true), ("3.0", true)]
        {
            let text = format!("Keepalived v{version} (01/16,2022)\n\nCopyright(C) 2001");
            assert_eq!(knows_down_timer(&text), expected, "{version}");
        }
    }
}
