//! The receiver: `vipwatch agent` as a process, and whoever reports to it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::wait::wait_within;
use vipwatch_testkit::{Lab, wait_for};

use crate::PROGRAM;

/// A receiver; killed when dropped.
pub(crate) struct ReceiverProcess {
    pub(crate) child: Child,
    directory: PathBuf,
}

pub(crate) fn command(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("agent").args(words).arg("--state-path").arg(directory);
    command.arg("--config").arg(directory.join("vipwatch.toml"));
    command.arg("--state-dir").arg(directory.join("claims"));
    command.arg("--status-socket").arg(directory.join("agent.sock"));
    command
}

/// Writes its configuration, which may hold credentials; without a text, an empty one if there is none.
pub(crate) fn configure(directory: &Path, text: Option<&str>) {
    let path = directory.join("vipwatch.toml");
    if text.is_some() || !path.exists() {
        crate::write_with_mode(&path, text.unwrap_or_default(), 0o640);
    }
}

pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("keepalived-state-change")
}

impl ReceiverProcess {
    pub(crate) fn start(directory: &Path, words: &[&str]) -> Self {
        configure(directory, None);
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log"));
        let child = command(directory, words).stderr(log.unwrap()).stdout(Stdio::null()).spawn();
        Self::of(child.unwrap(), directory)
    }

    /// One that was started, when it can be asked.
    pub(crate) fn of(child: Child, directory: &Path) -> Self {
        let agent = Self { child, directory: directory.to_owned() };
        wait_within(std::time::Duration::from_mins(1), "the receiver", || agent.answer());
        agent
    }

    /// What it says of itself, if it does.
    fn answer(&self) -> Option<Value> {
        let mut command = Command::new(PROGRAM);
        command.args(["agent", "status", "--format", "json", "--status-socket"]);
        let output = output_of(command.arg(self.directory.join("agent.sock")));
        serde_json::from_slice(&output.stdout).ok()
    }

    pub(crate) fn status(&self) -> Value {
        self.answer().unwrap_or_else(|| panic!("no answer: {}", self.log()))
    }

    /// Ends it at once, as nothing that can be prepared for.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Has it read its configuration again.
    pub(crate) fn reload(&self) {
        let pid = self.child.id().to_string();
        vipwatch_testkit::run(Command::new("kill").args(["-HUP", &pid]));
    }

    /// What it logs.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap()
    }

    /// Waits for `text` in the log, which is written a little after what it is about.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().contains(text).then_some(()));
    }

    /// One of its duties.
    pub(crate) fn duty(&self, party: &str) -> Value {
        let status = self.status();
        let duties = status["duties"].as_array().unwrap();
        let of = |duty: &&Value| duty["party"].as_str().unwrap().starts_with(party);
        duties.iter().find(of).cloned().unwrap_or_else(|| panic!("no {party}: {status}"))
    }

    /// How many have settled as `word`.
    pub(crate) fn settled(&self, word: &str) -> usize {
        let status = self.status();
        status["routers"].as_array().unwrap().iter().filter(|one| one["settled"] == word).count()
    }
}

impl Drop for ReceiverProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports as curl does; the status, if there is an answer.
pub(crate) fn report(directory: &Path, id: &str, word: &str) -> Option<u16> {
    let mut stream = UnixStream::connect(socket(directory)).ok()?;
    // Who is never answered fails, and does not hang.
    stream.set_read_timeout(Some(std::time::Duration::from_mins(1))).ok()?;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Neutron-Router-Id: {id}\r\nX-Neutron-State: {word}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// Reports until it is taken, as a monitor does.
fn report_until_taken(directory: &Path, id: &str, word: &str) {
    wait_within(std::time::Duration::from_mins(1), "a promise", || {
        (report(directory, id, word) == Some(200)).then_some(())
    });
}

#[test]
fn a_receiver_that_is_killed_in_the_middle_of_a_thousand_breaks_no_promise() {
    let lab = Lab::new();
    let mut agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..20 {
            let (taken, directory) = (&taken, lab.path());
            scope.spawn(move || {
                for number in 0..50 {
                    let id = format!("r{worker}-{number}");
                    for word in ["backup", "primary", "backup"] {
                        report_until_taken(directory, &id, word);
                    }
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for share in [200, 500, 800] {
            wait_within(std::time::Duration::from_mins(1), "some reports", || {
                (taken.load(Ordering::Relaxed) >= share).then_some(())
            });
            agent.child.kill().unwrap();
            agent.child.wait().unwrap();
            agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
        }
    });
    wait_for("everybody's last word", || (agent.settled("backup") == 1000).then_some(()));
    assert_eq!(agent.settled("primary"), 0);
}

#[test]
fn a_primary_that_is_taken_back_in_time_is_never_told() {
    let lab = Lab::new();
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "1h"]);
    for word in ["backup", "primary", "backup"] {
        assert_eq!(report(lab.path(), "a", word), Some(200));
    }
    assert_eq!(report(lab.path(), "b", "primary"), Some(200));
    let status = agent.status();
    assert_eq!(status["routers"][0]["state"], "standby", "{status}");
    assert_eq!(status["routers"][1]["held"], true, "{status}");
    agent.wait_for_log("standby");
    assert!(!agent.log().contains("active"), "{}", agent.log());
}

#[test]
fn a_full_disk_is_answered_with_503_and_the_service_goes_on() {
    let lab = Lab::new();
    let claims = lab.path().join("claims");
    std::fs::create_dir(&claims).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=512k", "tmpfs"];
    vipwatch_testkit::run(Command::new("mount").args(mount).arg(&claims));
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "backup"), Some(200));
    // Everything that is left.
    let mut ballast = std::fs::File::create(claims.join("ballast")).unwrap();
    while ballast.write_all(&[0; 1024]).is_ok() {}
    let mut answers = Vec::new();
    for number in 0..500 {
        answers.push(report(lab.path(), &format!("r{number}"), "backup"));
        if answers.last() == Some(&Some(503)) {
            break;
        }
    }
    assert_eq!(answers.last(), Some(&Some(503)), "{answers:?}");
    let promised = answers.iter().filter(|answer| **answer == Some(200)).count();
    drop(ballast);
    std::fs::remove_file(claims.join("ballast")).unwrap();
    // The kernel counts what has become free a moment later.
    report_until_taken(lab.path(), "z", "backup");
    assert_eq!(agent.settled("backup"), promised + 2);
    assert!(agent.status()["unable"].as_u64() > Some(0));
    drop(agent);
    vipwatch_testkit::run(Command::new("umount").arg(&claims));
}

#[test]
fn one_socket_has_one_receiver_and_strangers_are_named() {
    let lab = Lab::new();
    let _agent = ReceiverProcess::start(lab.path(), &[]);
    configure(lab.path(), None);
    let second = output_of(&mut command(lab.path(), &[]));
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(String::from_utf8_lossy(&second.stderr).contains("somebody answers on"));
    let unknown = output_of(&mut command(lab.path(), &["--allow", "no-such-user"]));
    assert_eq!(unknown.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no user \"no-such-user\""));
    let wrong = output_of(&mut command(lab.path(), &["--simulate", "friendly"]));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("threaded, eventlet"));
}

#[test]
fn ten_thousand_idlers_are_neither_waited_for_nor_paid_for() {
    let lab = Lab::new();
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    let files = vipwatch_linux::process::raise_file_limit();
    assert!(files > 10_100, "this test needs more than 10,000 files, and may have {files}");
    let idlers: Vec<UnixStream> =
        (0..10_000).map(|_| UnixStream::connect(socket(lab.path())).unwrap()).collect();
    for number in 0..100 {
        assert_eq!(report(lab.path(), &format!("r{number}"), "backup"), Some(200));
    }
    let status = agent.status();
    assert_eq!(status["accepted"], 100, "{status}");
    assert!(status["connections"].as_u64() <= Some(4096), "{status}");
    // How many made room, and how many were silent for too long, is a question of speed.
    assert!(status["rejected"]["made_room"].as_u64() > Some(0), "{status}");
    let path = format!("/proc/{}/status", agent.child.id());
    let memory = std::fs::read_to_string(path).unwrap();
    let memory = memory.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = memory.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 64 << 10, "{kilobytes} KiB");
    drop(idlers);
}

#[test]
fn a_receiver_that_may_open_no_more_files_goes_on_when_it_may() {
    let lab = Lab::new();
    configure(lab.path(), None);
    // Its own files, and few more.
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=40").args(["--", PROGRAM]);
    let inner = command(lab.path(), &["--interval", "0s"]);
    let log = std::fs::File::create(lab.path().join("log")).unwrap();
    let child = limited.args(inner.get_args()).stderr(log).spawn().unwrap();
    let agent = ReceiverProcess { child, directory: lab.path().to_owned() };
    wait_for("the receiver", || UnixStream::connect(socket(lab.path())).ok());
    // Each has said something, so nobody makes room.
    let mut begun: Vec<UnixStream> = Vec::new();
    for _ in 0..60 {
        let mut stream = UnixStream::connect(socket(lab.path())).unwrap();
        stream.write_all(b"POST").unwrap();
        begun.push(stream);
    }
    wait_for("it to be full", || agent.log().contains("cannot accept connections").then_some(()));
    drop(begun);
    wait_for("a promise", || (report(lab.path(), "a", "backup") == Some(200)).then_some(()));
}

#[test]
fn a_receiver_whose_socket_another_server_has_replaced_says_so_and_leaves_it_when_it_stops() {
    let lab = Lab::new();
    let mut agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    // As Neutron's agent does: it removes what is there and binds anew.
    let other =
        vipwatch_testkit::FakeAgent::listen(lab.path(), vipwatch_testkit::Behaviour::Threaded);
    agent.wait_for_log("another process has replaced the socket file");
    let problem = &agent.status()["problems"][0];
    assert_eq!(problem["name"], "socket", "{problem}");
    vipwatch_testkit::run(Command::new("kill").args(["-TERM", &agent.child.id().to_string()]));
    assert!(agent.child.wait().unwrap().success());
    assert_eq!(report(lab.path(), "a", "primary"), Some(200), "the other server is reached");
    assert_eq!(other.count(), 1);
}

/// Makes a socket, and becomes a program that has it, as a service manager does.
const ACTIVATE: &str = "\
import os, socket, sys
made = socket.socket(socket.AF_UNIX)
made.bind(sys.argv[1])
made.listen(100)
os.dup2(made.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn a_socket_of_a_service_manager_is_used_and_stays_his() {
    let lab = Lab::new();
    configure(lab.path(), None);
    let inner = command(lab.path(), &["--interval", "0s"]);
    let log = std::fs::File::create(lab.path().join("log")).unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", ACTIVATE]).arg(socket(lab.path())).arg(PROGRAM).args(inner.get_args());
    let child = python.stderr(log).spawn().unwrap();
    let mut agent = ReceiverProcess { child, directory: lab.path().to_owned() };
    wait_for("the receiver", || agent.answer());
    assert_eq!(report(lab.path(), "a", "backup"), Some(200));
    // How it looks is not ours to change, and nobody is turned away for it.
    configure(lab.path(), Some("[agent]\nmode = \"600\"\n"));
    agent.reload();
    wait_for("the log", || agent.log().contains("socket settings ignored").then_some(()));
    assert_eq!(report(lab.path(), "a", "primary"), Some(200));
    let pid = agent.child.id().to_string();
    vipwatch_testkit::run(Command::new("kill").args(["-TERM", &pid]));
    assert!(agent.child.wait().unwrap().success());
    assert!(socket(lab.path()).exists());
}

#[test]
fn sigusr1_and_sigusr2_do_not_end_a_receiver() {
    let lab = Lab::new();
    let mut agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    for signal in ["-USR1", "-USR2"] {
        let pid = agent.child.id().to_string();
        vipwatch_testkit::run(Command::new("kill").args([signal, &pid]));
        assert_eq!(report(lab.path(), "r1", "primary"), Some(200), "{signal}");
        assert!(agent.child.try_wait().unwrap().is_none(), "{signal}");
    }
}
