//! `vipwatch node` as a process, and whoever asks it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::monitor::{end_of, output_of};
use crate::wait::{wait_showing, wait_within_showing};

/// Where everything of one node is.
#[derive(Debug, Clone)]
pub struct NodeFixture {
    program: PathBuf,
    directory: PathBuf,
    socket: PathBuf,
    /// The namespace that stands for the machine it runs on, if it is not the test's own.
    netns: Option<String>,
    /// Variables for the node's environment.
    environment: Vec<(String, String)>,
    /// The time of its watchdog, as a service manager says it.
    watchdog: Option<Duration>,
}

impl NodeFixture {
    /// A node below `directory`, run by `program`.
    pub fn new(program: &Path, directory: &Path) -> Self {
        Self {
            program: program.to_owned(),
            directory: directory.to_owned(),
            socket: directory.join("node.sock"),
            netns: None,
            environment: Vec::new(),
            watchdog: None,
        }
    }

    /// The same, with another socket.
    #[must_use]
    pub fn with_socket(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.socket);
        self
    }

    /// The same, with a variable in the environment of the node.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, on a machine for which `netns` stands.
    #[must_use]
    pub fn on(mut self, netns: &crate::TestNetns) -> Self {
        self.netns = Some(netns.name().to_owned());
        self
    }

    /// The same, with a service manager that wants to hear of it within `period`.
    #[must_use]
    pub fn with_watchdog(mut self, period: Duration) -> Self {
        self.watchdog = Some(period);
        self
    }

    /// The program, on its machine.
    pub fn command(&self) -> Command {
        let Some(netns) = &self.netns else { return Command::new(&self.program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns]).arg(&self.program);
        command
    }

    /// Where it answers.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Where its history is.
    pub fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Its configuration.
    pub fn config(&self) -> PathBuf {
        self.directory.join("vipwatch.toml")
    }

    /// Where it is told to find ordinary keepalived.
    pub fn keepalived_conf(&self) -> PathBuf {
        self.directory.join("keepalived.conf")
    }

    /// Writes its configuration, with mode 0640 if it is new: it may hold credentials.
    pub fn configure(&self, text: &str) {
        let file = std::fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o640)
            .open(self.config());
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.expect("a configuration");
    }

    /// What it logs.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Waits for `text` in the log, which is written a little after what it is about.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        let what = format!("{text:?} in the log");
        wait_showing(&what, || self.log(), || self.log().contains(text).then_some(()));
    }

    /// Starts it, and waits until it says that it is ready.
    pub fn start(&self) -> NodeProcess {
        self.start_within(crate::wait::LIMIT)
    }

    /// As [`Self::start`], with a limit of its own.
    pub fn start_within(&self, limit: Duration) -> NodeProcess {
        let notify = self.directory.join("notify");
        let _ = std::fs::remove_file(&notify);
        let manager = UnixDatagram::bind(&notify).expect("a socket");
        manager.set_nonblocking(true).expect("a socket that does not wait");
        if !self.config().exists() {
            self.configure("");
        }
        let log =
            std::fs::File::options().create(true).append(true).open(self.directory.join("log"));
        let mut command = self.node_command();
        command.env("NOTIFY_SOCKET", &notify);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stderr(log.expect("a log"));
        if let Some(period) = self.watchdog {
            command.env("WATCHDOG_USEC", period.as_micros().to_string());
        }
        let child = command.spawn().expect("the node runs");
        let mut process = NodeProcess { child, manager };
        let log = || self.log();
        wait_within_showing(limit, "the node to be ready", log, || {
            assert!(process.is_alive(), "it has ended: {}", self.log());
            process.notices().iter().any(|notice| notice == "READY=1").then_some(())
        });
        process
    }

    /// The command that starts it.
    pub fn node_command(&self) -> Command {
        let mut command = self.command();
        command.arg("node").arg("--config").arg(self.config());
        command.arg("--state-dir").arg(self.state_dir()).arg("--socket").arg(self.socket());
        command.arg("--state-path").arg(&self.directory);
        command.arg("--keepalived-conf").arg(self.keepalived_conf());
        command
    }

    /// Asks it on the command line.
    pub fn ask(&self, words: &[&str]) -> Output {
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

    /// The same, as one text.
    pub fn say(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    }
}

/// A node that runs; killed when dropped.
#[derive(Debug)]
pub struct NodeProcess {
    child: Child,
    manager: UnixDatagram,
}

impl NodeProcess {
    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// Whether it runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// What it has told the service manager since the last call.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let mut buffer = [0; 512];
        while let Ok(length) = self.manager.recv(&mut buffer) {
            notices.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        notices
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("a process of ours");
    }

    /// Has it read its configuration again.
    pub fn reload(&self) {
        let _ = self.notices();
        self.signal(Signal::HUP);
        crate::wait_for("the configuration to be read again", || {
            self.notices().iter().any(|notice| notice == "READY=1").then_some(())
        });
    }

    /// Has it stop; tells how it ended.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        end_of(&mut self.child).expect("it ends")
    }

    /// Kills it, at once.
    pub fn kill(mut self) {
        self.child.kill().expect("a process of ours");
        self.child.wait().expect("a process of ours");
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
