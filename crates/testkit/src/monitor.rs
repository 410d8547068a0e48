//! A router, and the monitor of it as its agent starts it.

use std::ffi::OsString;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal};

use crate::release::{MonitorCall, Release};
use crate::wait::{wait_for, wait_showing, wait_within_showing};
use crate::{AddressEditor, Lab, TestNetns};

/// One HA router: a namespace with a link, and the agent's directories.
#[derive(Debug)]
pub struct Router {
    /// Its id.
    pub id: String,
    /// Its namespace.
    pub netns: TestNetns,
    /// Its link.
    pub link: String,
    /// Its virtual address, as the agent writes it.
    pub cidr: String,
    /// `<state_path>/ha_confs/<id>`.
    pub conf_dir: PathBuf,
    /// `<state_path>/external/pids`.
    pub pids: PathBuf,
    /// The agent's state directory.
    pub state_path: PathBuf,
    /// Which release calls.
    pub release: Release,
    /// Passed as `--user` and `--group`.
    pub owner: (u32, u32),
    /// Passed as `--enable_conntrackd`.
    pub conntrackd: bool,
    /// Passed as `--debug`.
    pub debug: bool,
    /// More words than the agent passes, behind its own.
    pub extra: Vec<String>,
}

impl Router {
    /// A router in `lab`, with the release's usual argv.
    pub fn new(lab: &Lab, release: Release) -> Self {
        Self::numbered(lab, release, 1)
    }

    /// One of many routers of the same agent.
    pub fn numbered(lab: &Lab, release: Release, number: u32) -> Self {
        let id = format!("5c7d3a1e-0b1f-4c55-{:04x}-{number:012x}", lab.number() & 0xffff);
        let netns = lab.netns(&format!("r{number}"));
        let link = "ha-5c7d3a1e-0b".to_owned();
        netns.add_link(&link);
        let state_path = lab.path().to_owned();
        let conf_dir = state_path.join("ha_confs").join(&id);
        let pids = state_path.join("external/pids");
        for directory in [&conf_dir, &pids] {
            std::fs::create_dir_all(directory).expect("a directory in the lab");
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

    /// Has the agent be `user`: its directories and its socket belong to it, and it is what
    /// the monitor is told to become. Panics without the right to give files away.
    pub fn give_to(&mut self, user: u32) {
        self.owner = (user, user);
        let socket = self.state_path.join("keepalived-state-change");
        for path in [&self.state_path, &self.conf_dir, &self.pids, &socket] {
            std::os::unix::fs::chown(path, Some(user), Some(user))
                .expect("root, or a second user id, to give directories away");
        }
    }

    /// A hand in its namespace, and the index of its link.
    pub fn editor(&self) -> (AddressEditor, u32) {
        let editor = self.netns.editor();
        let link = editor.link(&self.link);
        (editor, link)
    }

    /// Puts the address on the link.
    pub fn take_vip(&self) {
        self.netns.ip(&format!("address add {} dev {}", self.cidr, self.link));
    }

    /// Takes it off.
    pub fn drop_vip(&self) {
        self.netns.ip(&format!("address del {} dev {}", self.cidr, self.link));
    }

    /// Removes the link-local addresses, and keeps the kernel from making others: from now on the kernel
    /// reports no address of the namespace unless the test changes one.
    pub fn remove_link_local_addresses(&self) {
        for link in [&self.link, &crate::peer_of(&self.link)] {
            // ORDER: a link that gets its carrier between the two would have a new one.
            self.netns.ip(&format!("link set {link} addrgenmode none"));
            self.netns.ip(&format!("-6 address flush dev {link} scope link"));
        }
    }

    /// The arguments the agent would pass.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = self.release.arguments(&self.call());
        arguments.extend(self.extra.iter().cloned());
        arguments
    }

    /// The command the agent would run, with `program` in place of the name it looks up. What
    /// it prints does not get between the lines of the test's own report.
    pub fn command(&self, program: &Path) -> Command {
        let mut line: Vec<OsString> =
            self.release.wrapper(&self.call()).into_iter().map(OsString::from).collect();
        line.push(program.into());
        line.extend(self.arguments().into_iter().map(OsString::from));
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdout(Stdio::null());
        command
    }

    /// Starts the monitor the way the release's agent does.
    pub fn start(&self, program: &Path) -> MonitorProcess {
        let mut command = self.command(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let pid_file = self.pid_file();
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let spawned = if self.release.waits() {
            // As `communicate()`: until it has ended and every copy of the pipes is closed.
            let pid = Pid::from_child(&child);
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            std::thread::spawn(move || sender.send(child.wait_with_output()));
            let output = receiver.recv_timeout(crate::wait::LIMIT).unwrap_or_else(|_late| {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                panic!("the agent would wait for ever for its end, or for that of its output")
            });
            let output = output.expect("the program can be waited for");
            assert!(output.status.success(), "the agent saw it fail: {output:?}");
            assert!(pid_file.exists(), "there is no pid file when the foreground has ended");
            None
        } else {
            Some(child)
        };
        let pid = wait_for("the pid file", || read_pid(&pid_file));
        MonitorProcess { pid, spawned, pid_file }
    }

    /// Ends the monitor that the pid file names, for tests that started it by a command of their own.
    pub fn stop(&self) {
        let pid = read_pid(&self.pid_file()).and_then(Pid::from_raw);
        let pid = pid.expect("a pid file of a running monitor");
        rustix::process::kill_process(pid, Signal::TERM).expect("a running monitor");
        wait_for("the monitor to be gone", || (!is_alive(pid.as_raw_pid())).then_some(()));
    }

    /// Runs it to its end, for command lines that should fail.
    pub fn attempt(&self, program: &Path, change: impl FnOnce(&mut Vec<String>)) -> Output {
        let mut arguments = self.arguments();
        change(&mut arguments);
        output_of(Command::new(program).args(arguments))
    }

    /// Where its pid file is.
    pub fn pid_file(&self) -> PathBuf {
        self.pids.join(self.release.pid_file(&self.id))
    }

    /// What the state file says; `None` if there is none.
    pub fn state(&self) -> Option<String> {
        std::fs::read_to_string(self.conf_dir.join("state")).ok()
    }

    /// Waits until the state file says `word`.
    #[track_caller]
    pub fn wait_for_state(&self, word: &str) {
        let diagnostics = || format!("it says {:?}; log:\n{}", self.state(), self.log());
        wait_showing(&format!("the state file to say {word}"), diagnostics, || {
            (self.state().as_deref() == Some(word)).then_some(())
        });
    }

    /// What was logged.
    pub fn log(&self) -> String {
        let path = self.conf_dir.join("neutron-keepalived-state-change.log");
        std::fs::read(path)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        wait_within_showing(
            std::time::Duration::from_secs(18),
            &format!("{text:?} in the log"),
            || self.log(),
            || self.log().contains(text).then_some(()),
        );
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

/// A monitor that was started; killed when dropped.
#[derive(Debug)]
pub struct MonitorProcess {
    /// Its process id, as the agent knows it.
    pub pid: i32,
    /// What the agent holds on to, from 29 on.
    spawned: Option<Child>,
    pid_file: PathBuf,
}

impl MonitorProcess {
    /// Sends it a signal, as the agent does.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Whether the process is there, and not a zombie.
    pub fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }

    /// Whether the agent would find it: `RID.monitor` is in the command line of the pid in
    /// the pid file.
    pub fn is_active(&self, router: &str) -> bool {
        let Some(pid) = read_pid(&self.pid_file) else {
            return false;
        };
        command_line(pid).contains(&format!("{router}.monitor"))
    }

    /// Waits until it is gone; its exit status, if it was the process we spawned.
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
    }
}

/// Runs `command` to its end, which must come: one that stays is ended, and its status says
/// so. Its output goes to files: what it leaves running would hold a pipe open.
pub fn output_of(command: &mut Command) -> Output {
    let [mut stdout, mut stderr] = [(); 2].map(|()| tempfile::tempfile().expect("a scratch file"));
    let sink = |file: &std::fs::File| Stdio::from(file.try_clone().expect("another handle"));
    command.stdin(Stdio::null()).stdout(sink(&stdout)).stderr(sink(&stderr));
    let mut child = command.spawn().expect("the program runs");
    let status = end_of(&mut child).unwrap_or_else(|| {
        let _ = child.kill();
        child.wait().expect("the program can be waited for")
    });
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("what it has written");
        bytes
    };
    Output { status, stdout: read(&mut stdout), stderr: read(&mut stderr) }
}

/// How `child` ended; `None` if it does not end.
pub fn end_of(child: &mut Child) -> Option<ExitStatus> {
    let end = std::time::Instant::now() + crate::wait::LIMIT;
    loop {
        match child.try_wait() {
            Ok(None) if std::time::Instant::now() < end => {
                crate::pause(std::time::Duration::from_millis(2));
            }
            result => return result.ok().flatten(),
        }
    }
}

/// The pid in a pid file.
pub fn read_pid(path: &Path) -> Option<i32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether a process is there, and not a zombie.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The state follows the last parenthesis: the name may hold any character.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// A process's arguments, separated by spaces, as the agent joins them.
pub fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Processes whose parent is `pid`.
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

/// Whose child a process is.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
