// SPDX-License-Identifier: Apache-2.0
//! `vipwatch simulate-agent`: the agents of Neutron, and an agent with each possible failure.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::{Lab, stays, wait_for};

use crate::receiver_process::socket;
use crate::support::PROGRAM;

/// A simulated agent. It is killed when this value is dropped.
struct SimulatedAgent(Child);

impl SimulatedAgent {
    fn start(directory: &Path, mode: &str) -> Self {
        let reports = std::fs::File::create(directory.join("reports")).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["simulate-agent", mode, "--state-path"]).arg(directory);
        Self(command.stdout(reports).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for SimulatedAgent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const REQUEST: &str = "POST / HTTP/1.1\r\nX-Neutron-Router-Id: a\r\nX-Neutron-State: backup\r\n\
                       Connection: close\r\n\r\n";

/// The answer to [`REQUEST`]; empty if the connection is closed without one.
fn answer(directory: &Path) -> String {
    let mut stream = wait_for("the agent", || UnixStream::connect(socket(directory)).ok());
    stream.write_all(REQUEST.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn each_simulated_agent_gives_its_own_answer() {
    let answer_of = |mode: &str| {
        let lab = Lab::new();
        let _agent = SimulatedAgent::start(lab.path(), mode);
        answer(lab.path())
    };
    let threaded = "HTTP/1.1 200 OK\nContent-Type: text/plain; charset=UTF-8\nConnection: close\n\
                    Content-Location': http://127.0.0.1/";
    assert_eq!(answer_of("threaded"), threaded, "byte for byte");
    assert_eq!(answer_of("slow"), threaded);
    assert!(answer_of("eventlet").starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"));
    assert!(answer_of("dribbling").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(answer_of("error").starts_with("HTTP/1.1 500"));
    assert_eq!((answer_of("resetting"), answer_of("closing")), (String::new(), String::new()));
    assert!(answer_of("garbage").contains("not http at all"));
}

#[test]
fn the_eventlet_agent_keeps_the_connection_open_and_answers_again() {
    let lab = Lab::new();
    let _agent = SimulatedAgent::start(lab.path(), "eventlet");
    let mut stream = wait_for("the agent", || UnixStream::connect(socket(lab.path())).ok());
    for _ in 0..3 {
        stream.write_all(REQUEST.replace("Connection: close\r\n", "").as_bytes()).unwrap();
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\n"), "{answer}");
    }
    let reports = std::fs::read_to_string(lab.path().join("reports")).unwrap();
    assert_eq!(reports, "a backup\n".repeat(3));
}

#[test]
fn the_hanging_agent_reads_the_report_and_does_not_answer() {
    let lab = Lab::new();
    let _agent = SimulatedAgent::start(lab.path(), "hanging");
    let mut stream = wait_for("the agent", || UnixStream::connect(socket(lab.path())).ok());
    stream.write_all(REQUEST.as_bytes()).unwrap();
    wait_for("the agent to read the report", || {
        (std::fs::read_to_string(lab.path().join("reports")).ok()? == "a backup\n").then_some(())
    });
    stream.set_nonblocking(true).unwrap();
    stays(Duration::from_secs(1), "no answer", || {
        let error =
            stream.read(&mut [0; 8]).expect_err("neither an answer nor the end of the connection");
        error.kind() == std::io::ErrorKind::WouldBlock
    });
}

#[test]
fn the_absent_agent_has_no_socket_and_the_refusing_agent_has_one() {
    let lab = Lab::new();
    // A killed agent has left its socket file behind.
    drop(std::os::unix::net::UnixListener::bind(socket(lab.path())).unwrap());
    let absent = SimulatedAgent::start(lab.path(), "absent");
    wait_for("the socket to be removed", || (!socket(lab.path()).exists()).then_some(()));
    drop(absent);
    let _refusing = SimulatedAgent::start(lab.path(), "refusing");
    let refused = || UnixStream::connect(socket(lab.path())).err().map(|error| error.kind());
    wait_for("a refused connection", || {
        (refused()? == std::io::ErrorKind::ConnectionRefused).then_some(())
    });
    let kind = std::fs::symlink_metadata(socket(lab.path())).unwrap().file_type();
    assert!(kind.is_socket());
    let second = SimulatedAgent::start(lab.path(), "threaded");
    assert!(!answer(lab.path()).is_empty(), "a socket without a server is replaced");
    drop(second);
}

#[test]
fn the_restarting_agent_closes_its_socket_after_each_report_and_opens_a_new_one() {
    let lab = Lab::new();
    let _agent = SimulatedAgent::start(lab.path(), "restarting");
    for number in 1..=3 {
        let file = || std::fs::symlink_metadata(socket(lab.path())).ok();
        let identity = || file().map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
        let before = wait_for("the socket", identity);
        assert!(answer(lab.path()).starts_with("HTTP/1.1 200 OK\n"), "{number}");
        wait_for("another socket", || (identity() != Some(before)).then_some(()));
    }
    let reports = std::fs::read_to_string(lab.path().join("reports")).unwrap();
    assert_eq!(reports, "a backup\n".repeat(3));
}
