// SPDX-License-Identifier: Apache-2.0
//! `vipwatch node` as a process, and CLI commands that query it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::monitor::{end_of, output_of};
use crate::wait::{wait_showing, wait_within_showing};

/// The files, settings and environment of one node under test.
#[derive(Debug, Clone)]
pub struct NodeFixture {
    program: PathBuf,
    directory: PathBuf,
    socket: PathBuf,
    /// Network namespace in which the node runs; `None` for the one of the test.
    netns: Option<String>,
    /// Further variables of the node's environment.
    environment: Vec<(String, String)>,
    /// Watchdog time, passed as `WATCHDOG_USEC`; `None` for no watchdog.
    watchdog: Option<Duration>,
    /// Whether the node reads the processes of keepalived. Tests share their processes with tests that run at the same
    /// time, and most have no keepalived.
    has_processes: bool,
}

impl NodeFixture {
    /// A node with all its files below `directory`. `program` is the `vipwatch` binary.
    pub fn new(program: &Path, directory: &Path) -> Self {
        Self {
            program: program.to_owned(),
            directory: directory.to_owned(),
            socket: directory.join("node.sock"),
            netns: None,
            environment: Vec::new(),
            watchdog: None,
            has_processes: false,
        }
    }

    /// Has the node read the processes of keepalived, also those of other tests.
    #[must_use]
    pub fn with_processes(mut self) -> Self {
        self.has_processes = true;
        self
    }

    /// Uses another path for the node's socket.
    #[must_use]
    pub fn with_socket(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.socket);
        self
    }

    /// Sets a variable in the node's environment.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs the node and the commands in `netns`.
    #[must_use]
    pub fn on(mut self, netns: &crate::TestNetns) -> Self {
        self.netns = Some(netns.name().to_owned());
        self
    }

    /// Sets the watchdog time.
    #[must_use]
    pub fn with_watchdog(mut self, period: Duration) -> Self {
        self.watchdog = Some(period);
        self
    }

    /// A command that runs the program in the node's namespace.
    pub fn command(&self) -> Command {
        let Some(netns) = &self.netns else { return Command::new(&self.program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns]).arg(&self.program);
        command
    }

    /// Path of the node's socket.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Directory of the history and the journal.
    pub fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Path of the configuration file.
    pub fn config(&self) -> PathBuf {
        self.directory.join("vipwatch.toml")
    }

    /// Path of the keepalived configuration that the node reads.
    pub fn keepalived_conf(&self) -> PathBuf {
        self.directory.join("keepalived.conf")
    }

    /// Writes the configuration file. A new file has mode 0640, because a configuration may contain credentials.
    ///
    /// Most tests add addresses by hand and run no keepalived, so that no node sends adverts, and a backup would have the
    /// finding `no-primary`. The witness is therefore off, unless the text has the section `[witness]`. `processes = false`
    /// is added to `[find]`, unless [`Self::with_processes`] was called.
    pub fn configure(&self, text: &str) {
        const SETTING: &str = "[find]\nprocesses = false\n";
        let witness =
            if text.contains("[witness]") { "" } else { "\n[witness]\nenabled = false\n" };
        let text = format!("{text}{witness}");
        let text = match text.as_str() {
            _ if self.has_processes => text,
            with_find if with_find.contains("[find]\n") => text.replacen("[find]\n", SETTING, 1),
            without => format!("{without}\n{SETTING}"),
        };
        let file = std::fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o640)
            .open(self.config());
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.expect("write the configuration");
    }

    /// The node's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Waits for `text` in the log. The node writes its log a little after each event.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        let what = format!("{text:?} in the log");
        wait_showing(&what, || self.log(), || self.log().contains(text).then_some(()));
    }

    /// Starts the node and waits for its `READY=1`.
    pub fn start(&self) -> NodeProcess {
        self.start_within(crate::wait::LIMIT)
    }

    /// As [`Self::start`], with another limit.
    pub fn start_within(&self, limit: Duration) -> NodeProcess {
        let notify = self.directory.join("notify");
        let _ = std::fs::remove_file(&notify);
        let manager = UnixDatagram::bind(&notify).expect("bind the notify socket");
        manager.set_nonblocking(true).expect("set the socket to non-blocking");
        if !self.config().exists() {
            self.configure("");
        }
        let log =
            std::fs::File::options().create(true).append(true).open(self.directory.join("log"));
        let mut command = self.node_command();
        command.env("NOTIFY_SOCKET", &notify);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stderr(log.expect("open the log"));
        if let Some(period) = self.watchdog {
            command.env("WATCHDOG_USEC", period.as_micros().to_string());
        }
        let child = command.spawn().expect("start the node");
        let mut process = NodeProcess { child, manager };
        let log = || self.log();
        wait_within_showing(limit, "the node to be ready", log, || {
            assert!(process.is_alive(), "the node has ended: {}", self.log());
            process.notices().iter().any(|notice| notice == "READY=1").then_some(())
        });
        process
    }

    /// The command that starts the node.
    pub fn node_command(&self) -> Command {
        let mut command = self.command();
        command.arg("node").arg("--config").arg(self.config());
        command.arg("--state-dir").arg(self.state_dir()).arg("--socket").arg(self.socket());
        command.arg("--state-path").arg(&self.directory);
        command.arg("--keepalived-conf").arg(self.keepalived_conf());
        command
    }

    /// Runs a `vipwatch` command that queries this node.
    pub fn run(&self, words: &[&str]) -> Output {
        let mut command = self.command();
        output_of(
            command
                .args(words)
                .arg("--config")
                .arg(self.config())
                .arg("--socket")
                .arg(self.socket()),
        )
    }

    /// As [`Self::run`]; returns standard output and standard error as one text.
    pub fn run_text(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    }
}

/// A running node. Dropping it kills the process.
#[derive(Debug)]
pub struct NodeProcess {
    child: Child,
    manager: UnixDatagram,
}

impl NodeProcess {
    /// Process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid fits into an i32")
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// The messages to the service manager since the last call.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let mut buffer = [0; 512];
        while let Ok(length) = self.manager.recv(&mut buffer) {
            notices.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        notices
    }

    /// Sends a signal to the node.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the node is a child of the test");
    }

    /// Makes the node read its configuration again, and waits until it has.
    pub fn reload(&self) {
        let _ = self.notices();
        self.signal(Signal::HUP);
        crate::wait_for("the configuration to be read again", || {
            self.notices().iter().any(|notice| notice == "READY=1").then_some(())
        });
    }

    /// Stops the node with SIGTERM, and returns its exit status.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        end_of(&mut self.child).expect("the node ends")
    }

    /// Kills the node.
    pub fn kill(mut self) {
        self.child.kill().expect("the node is a child of the test");
        self.child.wait().expect("the node is a child of the test");
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
