// SPDX-License-Identifier: Apache-2.0
//! A Neutron HA router and its monitor (the drop-in), started the way the agent of a release starts it.

use std::ffi::OsString;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::release::{MonitorCall, Release};
use crate::wait::{wait_for, wait_showing};
use crate::{AddressEditor, Lab, TestNetns};

/// One HA router: a namespace with a link, and the directories of the agent.
#[derive(Debug)]
pub struct Router {
    /// Router id.
    pub id: String,
    /// Namespace of the router.
    pub netns: TestNetns,
    /// Name of the HA link.
    pub link: String,
    /// Virtual address with prefix length, as the agent writes it.
    pub cidr: String,
    /// `<state_path>/ha_confs/<id>`.
    pub conf_dir: PathBuf,
    /// `<state_path>/external/pids`.
    pub pids: PathBuf,
    /// `state_path` of the agent.
    pub state_path: PathBuf,
    /// The release of Neutron that starts the monitor.
    pub release: Release,
    /// User and group id, passed as `--user` and `--group`.
    pub owner: (u32, u32),
    /// Passed as `--enable_conntrackd`.
    pub conntrackd: bool,
    /// Passed as `--debug`.
    pub debug: bool,
    /// Further arguments, after those of the agent.
    pub extra: Vec<String>,
}

impl Router {
    /// Creates a router in `lab`, with the usual arguments of the release.
    pub fn new(lab: &Lab, release: Release) -> Self {
        Self::numbered(lab, release, 1)
    }

    /// Creates one of several routers of the same agent; `number` distinguishes them.
    pub fn numbered(lab: &Lab, release: Release, number: u32) -> Self {
        let id = format!("5c7d3a1e-0b1f-4c55-{:04x}-{number:012x}", lab.number() & 0xffff);
        let netns = lab.netns(&format!("r{number}"));
        let link = "ha-5c7d3a1e-0b".to_owned();
        netns.add_link(&link);
        let state_path = lab.path().to_owned();
        let conf_dir = state_path.join("ha_confs").join(&id);
        let pids = state_path.join("external/pids");
        for directory in [&conf_dir, &pids] {
            std::fs::create_dir_all(directory).expect("create a directory in the lab");
        }
        Self {
            id,
            netns,
            link,
            cidr: "169.254.0.1/24".to_owned(),
            conf_dir,
            pids,
            state_path,
            release,
            owner: (0, 0),
            conntrackd: false,
            debug: true,
            extra: Vec::new(),
        }
    }

    /// Makes `user` the agent's user: the owner of its directories and its socket, and the user that the
    /// monitor switches to. Panics without permission to change the owner.
    pub fn give_to(&mut self, user: u32) {
        self.owner = (user, user);
        let socket = self.state_path.join("keepalived-state-change");
        for path in [&self.state_path, &self.conf_dir, &self.pids, &socket] {
            std::os::unix::fs::chown(path, Some(user), Some(user))
                .expect("change the owner (needs root, or a second user id)");
        }
    }

    /// An address editor in the router's namespace, and the index of its link.
    pub fn editor(&self) -> (AddressEditor, u32) {
        let editor = self.netns.editor();
        let link = editor.link(&self.link);
        (editor, link)
    }

    /// Adds the virtual address to the link.
    pub fn take_vip(&self) {
        self.netns.ip(&format!("address add {} dev {}", self.cidr, self.link));
    }

    /// Removes the virtual address from the link.
    pub fn drop_vip(&self) {
        self.netns.ip(&format!("address del {} dev {}", self.cidr, self.link));
    }

    /// Removes the link-local addresses and stops the kernel from creating new ones. After this, the kernel
    /// reports only the address changes of the test.
    pub fn remove_link_local_addresses(&self) {
        for link in [&self.link, &crate::peer_of(&self.link)] {
            // ORDER: in the other order, a link that gets its carrier between the two steps would get a new address.
            self.netns.ip(&format!("link set {link} addrgenmode none"));
            self.netns.ip(&format!("-6 address flush dev {link} scope link"));
        }
    }

    /// The arguments that the agent passes.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = self.release.arguments(&self.call());
        arguments.extend(self.extra.iter().cloned());
        arguments
    }

    /// The command that the agent runs, with `program` in place of the installed monitor. Its standard output
    /// is discarded.
    pub fn command(&self, program: &Path) -> Command {
        let mut line: Vec<OsString> =
            self.release.wrapper(&self.call()).into_iter().map(OsString::from).collect();
        line.push(program.into());
        line.extend(self.arguments().into_iter().map(OsString::from));
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdout(Stdio::null());
        command
    }

    /// Starts the monitor as the agent of the release does, and waits for its pid file.
    pub fn start(&self, program: &Path) -> MonitorProcess {
        let mut command = self.command(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let pid_file = self.pid_file();
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let spawned = if self.release.waits() {
            // Like `communicate()` in Python: waits until the process has ended and all copies of its pipes are
            // closed.
            let pid = Pid::from_child(&child);
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            std::thread::spawn(move || sender.send(child.wait_with_output()));
            let output = receiver.recv_timeout(crate::wait::LIMIT).unwrap_or_else(|_late| {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                panic!(
                    "the process, or a copy of its output pipes, does not end: the agent would hang"
                )
            });
            let output = output.expect("wait for the program");
            assert!(output.status.success(), "the monitor has failed: {output:?}");
            assert!(pid_file.exists(), "no pid file when the foreground process has ended");
            None
        } else {
            Some(child)
        };
        let pid = wait_for("the pid file", || read_pid(&pid_file));
        MonitorProcess { pid, spawned, pid_file }
    }

    /// Stops the monitor with the pid in the pid file, for tests that have started it with their own command.
    pub fn stop(&self) {
        let pid = read_pid(&self.pid_file()).and_then(Pid::from_raw);
        let pid = pid.expect("a pid file of a running monitor");
        rustix::process::kill_process(pid, Signal::TERM).expect("a running monitor");
        wait_for("the monitor to be gone", || (!is_alive(pid.as_raw_pid())).then_some(()));
    }

    /// Runs the monitor with changed arguments to its end, for command lines that should fail.
    pub fn attempt(&self, program: &Path, change: impl FnOnce(&mut Vec<String>)) -> Output {
        let mut arguments = self.arguments();
        change(&mut arguments);
        output_of(Command::new(program).args(arguments))
    }

    /// Path of the monitor's pid file.
    pub fn pid_file(&self) -> PathBuf {
        self.pids.join(self.release.pid_file(&self.id))
    }

    /// The content of the state file; `None` if it does not exist.
    pub fn state(&self) -> Option<String> {
        std::fs::read_to_string(self.conf_dir.join("state")).ok()
    }

    /// Waits until the state file contains `word`.
    #[track_caller]
    pub fn wait_for_state(&self, word: &str) {
        let diagnostics = || format!("the state file has {:?}; log:\n{}", self.state(), self.log());
        wait_showing(&format!("the state file to contain {word}"), diagnostics, || {
            (self.state().as_deref() == Some(word)).then_some(())
        });
    }

    /// The monitor's log file.
    pub fn log(&self) -> String {
        let path = self.conf_dir.join("neutron-keepalived-state-change.log");
        std::fs::read(path)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        let what = format!("{text:?} in the log");
        wait_showing(&what, || self.log(), || self.log().contains(text).then_some(()));
    }

    fn call(&self) -> MonitorCall<'_> {
        MonitorCall {
            router: &self.id,
            netns: self.netns.name(),
            conf_dir: &self.conf_dir,
            link: &self.link,
            cidr: &self.cidr,
            pids: &self.pids,
            state_path: &self.state_path,
            user: self.owner.0,
            group: self.owner.1,
            conntrackd: self.conntrackd,
            debug: self.debug,
        }
    }
}

/// A running monitor. Dropping it kills the process.
#[derive(Debug)]
pub struct MonitorProcess {
    /// Process id from the pid file, which is the one that the agent uses.
    pub pid: i32,
    /// The agent's child process; `None` before release 29: those agents wait for the foreground process to end.
    spawned: Option<Child>,
    pid_file: PathBuf,
}

impl MonitorProcess {
    /// Sends a signal to the monitor, as the agent does.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Whether the process exists and is not a zombie.
    pub fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }

    /// Whether the agent considers the monitor active: the process of the pid file has `ROUTER.monitor` in its
    /// command line.
    pub fn is_active(&self, router: &str) -> bool {
        let Some(pid) = read_pid(&self.pid_file) else {
            return false;
        };
        command_line(pid).contains(&format!("{router}.monitor"))
    }

    /// Waits until the process has ended. Returns its exit status if it is a child of the test.
    #[track_caller]
    pub fn wait_until_gone(&mut self) -> Option<ExitStatus> {
        wait_for("the monitor to be gone", || {
            let ended = self.spawned.as_mut().and_then(|child| child.try_wait().ok().flatten());
            (!self.is_alive()).then_some(ended)
        })
    }
}

impl Drop for MonitorProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut child) = self.spawned.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Until then it holds the lock of its namespace, and another monitor of the test would not start.
        if !std::thread::panicking() {
            self.wait_until_gone();
        }
    }
}

/// Runs `command` to its end. A process that does not end in time is killed, which its status shows. The output
/// goes to files, because a process that `command` leaves running would keep a pipe open.
pub fn output_of(command: &mut Command) -> Output {
    output_within(crate::wait::LIMIT, command)
}

/// The same with a time limit of its own, for a program that works for a minute.
pub fn output_within(limit: Duration, command: &mut Command) -> Output {
    let [mut stdout, mut stderr] =
        [(); 2].map(|()| tempfile::tempfile().expect("create a temporary file"));
    let sink = |file: &std::fs::File| Stdio::from(file.try_clone().expect("duplicate a file"));
    command.stdin(Stdio::null()).stdout(sink(&stdout)).stderr(sink(&stderr));
    let mut child = command.spawn().expect("start the program");
    let status = end_within(limit, &mut child).unwrap_or_else(|| {
        let _ = child.kill();
        child.wait().expect("wait for the program")
    });
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("read the output");
        bytes
    };
    Output { status, stdout: read(&mut stdout), stderr: read(&mut stderr) }
}

/// Waits for `child`, and returns its exit status; `None` if it does not end in time.
pub fn end_of(child: &mut Child) -> Option<ExitStatus> {
    end_within(crate::wait::LIMIT, child)
}

fn end_within(limit: Duration, child: &mut Child) -> Option<ExitStatus> {
    let end = std::time::Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if std::time::Instant::now() < end => {
                crate::pause(Duration::from_millis(2));
            }
            result => return result.ok().flatten(),
        }
    }
}

/// The pid in a pid file; `None` if there is none.
pub fn read_pid(path: &Path) -> Option<i32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether a process exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The state follows the last parenthesis: the name before it may contain any character.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The arguments of a process, separated by spaces.
pub fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The child processes of `pid`.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|child| parent(*child) == Some(pid))
        .collect()
}

/// The parent of a process; `None` if the process does not exist.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
