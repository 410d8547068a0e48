// SPDX-License-Identifier: Apache-2.0
//! The process `vipwatch receiver` and a client that reports to it as a monitor does.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::wait::wait_within;
use vipwatch_testkit::wait_for;

use crate::support::PROGRAM;

/// A running receiver. It is killed when this value is dropped.
pub(crate) struct ReceiverProcess {
    pub(crate) child: Child,
    directory: PathBuf,
}

/// The command that starts a receiver with its files in `directory`.
pub(crate) fn receiver_command(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("receiver").args(args).arg("--state-path").arg(directory);
    command.arg("--config").arg(directory.join("vipwatch.toml"));
    command.arg("--state-dir").arg(directory.join("receiver"));
    command.arg("--status-socket").arg(directory.join("agent.sock"));
    command
}

/// Writes the configuration file, with a mode that permits credentials. `None` writes an empty file unless
/// there is one.
pub(crate) fn configure(directory: &Path, text: Option<&str>) {
    let path = directory.join("vipwatch.toml");
    if text.is_some() || !path.exists() {
        crate::support::write_with_mode(&path, text.unwrap_or_default(), 0o640);
    }
}

/// The path of the socket on which monitors report.
pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("keepalived-state-change")
}

impl ReceiverProcess {
    pub(crate) fn start(directory: &Path, args: &[&str]) -> Self {
        configure(directory, None);
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log"));
        let child =
            receiver_command(directory, args).stderr(log.unwrap()).stdout(Stdio::null()).spawn();
        Self::from_child(child.unwrap(), directory)
    }

    /// Waits until the started receiver answers `vipwatch receiver status`.
    pub(crate) fn from_child(child: Child, directory: &Path) -> Self {
        let receiver = Self::starting(child, directory);
        wait_within(std::time::Duration::from_mins(1), "the receiver", || receiver.try_status());
        receiver
    }

    /// A receiver that may not answer yet.
    pub(crate) fn starting(child: Child, directory: &Path) -> Self {
        Self { child, directory: directory.to_owned() }
    }

    /// The JSON output of `vipwatch receiver status`; `None` if the receiver does not answer.
    pub(crate) fn try_status(&self) -> Option<Value> {
        let mut command = Command::new(PROGRAM);
        command.args(["receiver", "status", "-o", "json", "--status-socket"]);
        let output = output_of(command.arg(self.directory.join("agent.sock")));
        serde_json::from_slice(&output.stdout).ok()
    }

    pub(crate) fn status(&self) -> Value {
        self.try_status().unwrap_or_else(|| panic!("no answer: {}", self.log()))
    }

    /// Ends the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGHUP: the receiver reads its configuration again.
    pub(crate) fn reload(&self) {
        let pid = self.child.id().to_string();
        vipwatch_testkit::run(Command::new("kill").args(["-HUP", &pid]));
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap()
    }

    /// Waits for `text` in the log, which a separate thread writes after the event.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().contains(text).then_some(()));
    }

    /// The deliveries to the first target of this kind.
    pub(crate) fn target(&self, kind: &str) -> Value {
        let status = self.status();
        let targets = status["targets"].as_array().unwrap();
        let has_kind = |target: &&Value| target["kind"] == kind;
        targets.iter().find(has_kind).cloned().unwrap_or_else(|| panic!("no {kind}: {status}"))
    }

    /// The number of routers with the settled state `state`.
    pub(crate) fn count_settled(&self, state: &str) -> usize {
        let status = self.status();
        let routers = status["items"].as_array().unwrap();
        routers.iter().filter(|router| router["settled"] == state).count()
    }
}

impl Drop for ReceiverProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports a state as curl does; returns the HTTP status, or `None` without an answer.
pub(crate) fn report(directory: &Path, id: &str, state: &str) -> Option<u16> {
    let mut stream = UnixStream::connect(socket(directory)).ok()?;
    // Without an answer the test fails and does not hang.
    stream.set_read_timeout(Some(std::time::Duration::from_mins(1))).ok()?;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Neutron-Router-Id: {id}\r\nX-Neutron-State: {state}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// Repeats a report until the receiver answers 200, as a monitor does.
pub(crate) fn report_until_accepted(directory: &Path, id: &str, state: &str) {
    wait_within(std::time::Duration::from_mins(1), "the report to be accepted", || {
        (report(directory, id, state) == Some(200)).then_some(())
    });
}
