//! The log as JSON, on journald and on a pipe: a slow reader delays nothing and loses no line.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use serde_json::Value;
use vipwatch_testkit::{Lab, wait_for};

use crate::receiver_process::{ReceiverProcess, configure, receiver_command, report};
use crate::support::{fixture_with, role, vi_1_conf};

#[test]
fn the_json_log_has_one_object_per_line() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\nlog = \"json\"\n");
    let node = fixture.start();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    let role: Value = wait_for("the line", || {
        let log = fixture.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["to"] == "primary")
    });
    assert_eq!((&role["instance"], &role["from"]), (&"VI_1".into(), &"backup".into()));
    assert!(node.stop().success());
    let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
    assert!(fixture.log().lines().all(is_json), "{}", fixture.log());
    assert!(
        fixture.log().lines().last().unwrap().contains("stopped"),
        "the last line is written before the process ends"
    );
    assert_eq!((&role["level"], &role["cause"]), (&"INFO".into(), &"address".into()));
}

#[test]
fn journald_gets_fields_and_a_full_journald_socket_delays_nothing() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    // `cargo xtask test` gives the tests their own /run. The protocol: systemd.io/JOURNAL_NATIVE_PROTOCOL.
    std::fs::create_dir_all("/run/systemd/journal").unwrap();
    let journal = UnixDatagram::bind("/run/systemd/journal/socket").unwrap();
    journal.set_nonblocking(true).unwrap();
    // Another process fills the queue of the socket, so that the node cannot send.
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"MESSAGE=from another process\n", "/run/systemd/journal/socket").is_ok() {}
    fixture.configure("[node]\nlog = \"journald\"\n");
    let _node = fixture.start();
    // The test does not read, and causes more entries than the queue of the socket holds.
    let queue_length = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
    let changes = queue_length.trim().parse::<usize>().unwrap() + 10;
    for number in 0..changes {
        let (action, expected) =
            if number % 2 == 0 { ("add", "primary") } else { ("del", "backup") };
        netns.ip(&format!("address {action} 192.0.2.9/24 dev eth0"));
        wait_for(expected, || (role(&fixture, "VI_1") == expected).then_some(()));
    }
    // Now the test reads the socket: no entry is lost.
    let mut entries: Vec<String> = Vec::new();
    let mut buffer = [0; 8192];
    wait_for("all entries", || {
        while let Ok(length) = journal.recv(&mut buffer) {
            entries.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        let is_change = |entry: &&String| entry.contains("CAUSE=address\n");
        (entries.iter().filter(is_change).count() == changes).then_some(())
    });
    let entry = entries.iter().find(|entry| entry.contains("TO=primary\n")).unwrap();
    for expected in [
        "INSTANCE=VI_1\n",
        "SYSLOG_IDENTIFIER=vipwatch\n",
        "PRIORITY=6\n",
        "SYSLOG_TIMESTAMP=2",
        "MESSAGE=",
    ] {
        assert!(entry.contains(expected), "{expected}: {entry}");
    }
}

#[test]
fn a_log_pipe_that_is_not_read_delays_nothing() {
    // A write to a full pipe blocks, or fails with EAGAIN if the pipe is non-blocking.
    for flags in [OFlags::empty(), OFlags::NONBLOCK] {
        assert_reports_are_accepted_while_the_log_is_not_read(flags);
    }
}

fn assert_reports_are_accepted_while_the_log_is_not_read(flags: OFlags) {
    let lab = Lab::new();
    configure(lab.path(), Some("[receiver]\ninterval = \"0s\"\n"));
    let (reader, writer) = std::io::pipe().unwrap();
    // The smallest size of a pipe: about thirty log lines.
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    let child =
        receiver_command(lab.path(), &[]).stderr(writer).stdout(Stdio::null()).spawn().unwrap();
    let receiver = ReceiverProcess::from_child(child, lab.path());
    for number in 0..300 {
        assert_eq!(report(lab.path(), &format!("r{number}"), "primary"), Some(200));
    }
    assert_eq!(receiver.count_settled("primary"), 300);
    // The test begins to read: no line is lost.
    let lines = Arc::new(Mutex::new(Vec::new()));
    let lines_of_thread = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            lines_of_thread.lock().unwrap().push(line);
        }
    });
    let is_about = |line: &str, id: &str| {
        line.contains("settled") && line.contains(&format!("instance={id} "))
    };
    wait_for("the last line", || {
        lines.lock().unwrap().iter().any(|line| is_about(line, "r299")).then_some(())
    });
    let lines = lines.lock().unwrap();
    let settled: Vec<&String> = lines.iter().filter(|line| line.contains("settled")).collect();
    assert_eq!(settled.len(), 300);
    for (number, line) in settled.into_iter().enumerate() {
        assert!(is_about(line, &format!("r{number}")), "the lines are in order: {line}");
    }
}
