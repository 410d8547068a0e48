// SPDX-License-Identifier: Apache-2.0
//! A lab with routers, an agent, and copies of the programs that root alone can change.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use vipwatch_testkit::monitor::{is_alive, output_of, read_pid};
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, MonitorProcess, Release, Router, run, wait_for};

/// A node with an agent and monitors.
pub(crate) struct SwitchLab {
    pub(crate) agent: Option<FakeAgent>,
    /// The drop-in, as an older version.
    pub(crate) old: PathBuf,
    /// The drop-in, as the installed version.
    pub(crate) new: PathBuf,
    /// A directory that root alone can change. The agent's user may own that of the lab.
    pub(crate) roots: TempDir,
    // ORDER: dropped last.
    pub(crate) lab: Lab,
}

/// The program that `cargo xtask` has built.
pub(crate) fn dropin() -> PathBuf {
    let path = std::env::var_os("VIPWATCH_SUBJECT");
    path.expect("VIPWATCH_SUBJECT is set by `cargo xtask test`").into()
}

impl SwitchLab {
    pub(crate) fn new() -> Self {
        let lab = Lab::new();
        let agent = Some(FakeAgent::listen(lab.path(), Behaviour::Threaded));
        let roots = tempfile::tempdir().expect("create a temporary directory");
        std::fs::set_permissions(roots.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        let [old, new] = ["old", "new"].map(|name| copy_of(&dropin(), &roots.path().join(name)));
        // Bytes after the end of an executable do not change what it does: another version for the switch.
        run(Command::new("sh").args(["-c", "echo old >> \"$1\"", "sh"]).arg(&old));
        Self { agent, old, new, roots, lab }
    }

    pub(crate) fn router(&self, number: u32) -> Router {
        Router::numbered(&self.lab, Release::V28, number)
    }

    /// The command `vipwatch-neutron-switch WORDS` for this lab; a word is separated by a space.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vipwatch-neutron-switch"));
        command.args(words.split_whitespace());
        command.arg("--state-path").arg(self.lab.path());
        command.arg("--log").arg(self.log_path());
        command.arg("--records").arg(self.records());
        command.stdin(Stdio::null());
        command
    }

    /// Runs `to-vipwatch` with the installed version.
    pub(crate) fn to_vipwatch(&self, words: &str) -> Output {
        output_of(self.command(&format!("to-vipwatch {words}")).arg("--program").arg(&self.new))
    }

    /// Runs `to-neutron` with this program; the way back leads to the older version.
    pub(crate) fn to_neutron(&self, program: &Path, words: &str) -> Output {
        let mut command = self.command(&format!("to-neutron {words}"));
        output_of(command.arg("--program").arg(program).arg("--program").arg(&self.old))
    }

    pub(crate) fn records(&self) -> PathBuf {
        self.roots.path().join("records")
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.lab.path().join("log/switch.log")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub(crate) fn record_count(&self) -> usize {
        let entries = std::fs::read_dir(self.records());
        let entries = entries.into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "json")).count()
    }
}

/// Copies a program to `directory`, under its name, so that only its owner can change it.
pub(crate) fn copy_of(program: &Path, directory: &Path) -> PathBuf {
    std::fs::create_dir_all(directory).expect("create a directory");
    let copy = directory.join("neutron-keepalived-state-change");
    // A child process writes the copy: a program that this process has open for writing cannot be started.
    run(Command::new("install").args(["-m", "0755"]).arg(program).arg(&copy));
    copy
}

/// The pid that the pid file of a router has.
pub(crate) fn pid_of(router: &Router) -> i32 {
    read_pid(&router.pid_file()).expect("a pid file")
}

/// The executable of a process.
pub(crate) fn executable(pid: i32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).expect("a running process")
}

/// Waits until the process has ended.
pub(crate) fn wait_until_ended(pid: i32) {
    wait_for("the process to end", || (!is_alive(pid)).then_some(()));
}

/// Kills the monitor that the pid file names when it is dropped.
pub(crate) struct EndOfTest<'a>(pub(crate) &'a Router);

impl Drop for EndOfTest<'_> {
    fn drop(&mut self) {
        if let Some(pid) = read_pid(&self.0.pid_file()).and_then(rustix_pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

pub(crate) fn rustix_pid(pid: i32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid)
}

/// The output of a failed run, for a message.
pub(crate) fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}\n{err}", output.status)
}

/// Starts a monitor of the older version, and waits until the agent knows its state.
pub(crate) fn start_old(lab: &SwitchLab, router: &Router) -> MonitorProcess {
    let monitor = router.start(&lab.old);
    router.wait_for_log("Notified agent");
    monitor
}
