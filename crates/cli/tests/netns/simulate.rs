//! `vipwatch agent --simulate`: each agent of Neutron's, and each way in which it can fail.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::{Lab, stays, wait_for};

use crate::receiver::{command, configure, socket};

/// An agent that is played; killed when dropped.
struct Played(Child);

impl Played {
    fn start(directory: &Path, mode: &str) -> Self {
        configure(directory, None);
        let heard = std::fs::File::create(directory.join("heard")).unwrap();
        let mut command: Command = command(directory, &["--simulate", mode]);
        Self(command.stdout(heard).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const REQUEST: &str = "POST / HTTP/1.1\r\nX-Neutron-Router-Id: a\r\nX-Neutron-State: backup\r\n\
                       Connection: close\r\n\r\n";

fn answer(directory: &Path) -> String {
    let mut stream = wait_for("the agent", || UnixStream::connect(socket(directory)).ok());
    stream.write_all(REQUEST.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn each_agent_of_neutrons_can_be_played() {
    let answer_of = |mode: &str| {
        let lab = Lab::new();
        let _agent = Played::start(lab.path(), mode);
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
fn an_eventlet_keeps_the_line_and_answers_again() {
    let lab = Lab::new();
    let _agent = Played::start(lab.path(), "eventlet");
    let mut stream = wait_for("the agent", || UnixStream::connect(socket(lab.path())).ok());
    for _ in 0..3 {
        stream.write_all(REQUEST.replace("Connection: close\r\n", "").as_bytes()).unwrap();
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\n"), "{answer}");
    }
    let heard = std::fs::read_to_string(lab.path().join("heard")).unwrap();
    assert_eq!(heard, "a backup\n".repeat(3));
}

#[test]
fn an_agent_that_hangs_takes_the_report_and_says_nothing() {
    let lab = Lab::new();
    let _agent = Played::start(lab.path(), "hanging");
    let mut stream = wait_for("the agent", || UnixStream::connect(socket(lab.path())).ok());
    stream.write_all(REQUEST.as_bytes()).unwrap();
    wait_for("it to hear", || {
        (std::fs::read_to_string(lab.path().join("heard")).ok()? == "a backup\n").then_some(())
    });
    stream.set_nonblocking(true).unwrap();
    stays(Duration::from_secs(1), "it to be silent", || {
        let error = stream.read(&mut [0; 8]).expect_err("no answer, and no end");
        error.kind() == std::io::ErrorKind::WouldBlock
    });
}

#[test]
fn an_agent_that_is_absent_has_no_socket_and_one_that_refuses_has() {
    let lab = Lab::new();
    // What a killed agent has left.
    drop(std::os::unix::net::UnixListener::bind(socket(lab.path())).unwrap());
    let absent = Played::start(lab.path(), "absent");
    wait_for("the socket to go", || (!socket(lab.path()).exists()).then_some(()));
    drop(absent);
    let _refusing = Played::start(lab.path(), "refusing");
    let refused = || UnixStream::connect(socket(lab.path())).err().map(|error| error.kind());
    wait_for("to be refused", || {
        (refused()? == std::io::ErrorKind::ConnectionRefused).then_some(())
    });
    let kind = std::fs::symlink_metadata(socket(lab.path())).unwrap().file_type();
    assert!(kind.is_socket());
    let second = Played::start(lab.path(), "threaded");
    assert!(!answer(lab.path()).is_empty(), "a socket that nobody serves is replaced");
    drop(second);
}

#[test]
fn an_agent_that_restarts_is_gone_after_each_report_and_comes_back() {
    let lab = Lab::new();
    let _agent = Played::start(lab.path(), "restarting");
    for number in 1..=3 {
        let file = || std::fs::symlink_metadata(socket(lab.path())).ok();
        let which = || file().map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
        let before = wait_for("the socket", which);
        assert!(answer(lab.path()).starts_with("HTTP/1.1 200 OK\n"), "{number}");
        wait_for("it to go", || (which() != Some(before)).then_some(()));
    }
    let heard = std::fs::read_to_string(lab.path().join("heard")).unwrap();
    assert_eq!(heard, "a backup\n".repeat(3));
}
