//! The log: who reads it, and who does not.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use serde_json::Value;
use vipwatch_testkit::{Lab, wait_for};

use crate::receiver::{ReceiverProcess, command, configure, report};
use crate::{one, role, stage};

#[test]
fn the_log_can_be_read_by_programs() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    place.configure("[node]\nlog = \"json\"\n");
    let node = place.start();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    let role: Value = wait_for("the line", || {
        let log = place.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["to"] == "primary")
    });
    assert_eq!((&role["instance"], &role["from"]), (&"VI_1".into(), &"backup".into()));
    assert!(node.stop().success());
    let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
    assert!(place.log().lines().all(is_json), "{}", place.log());
    assert!(place.log().lines().last().unwrap().contains("stopped"), "written to its end");
    assert_eq!((&role["level"], &role["cause"]), (&"INFO".into(), &"address".into()));
}

#[test]
fn journald_gets_fields_and_holds_nobody_up() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    // This /run is the test's own. The protocol: systemd.io/JOURNAL_NATIVE_PROTOCOL.
    std::fs::create_dir_all("/run/systemd/journal").unwrap();
    let journal = UnixDatagram::bind("/run/systemd/journal/socket").unwrap();
    journal.set_nonblocking(true).unwrap();
    // Others have said so much already that nothing more can be said.
    let others = UnixDatagram::unbound().unwrap();
    others.set_nonblocking(true).unwrap();
    while others.send_to(b"MESSAGE=of others\n", "/run/systemd/journal/socket").is_ok() {}
    place.configure("[node]\nlog = \"journald\"\n");
    let _node = place.start();
    // It takes nothing, while we say more than the kernel keeps for it.
    let waiting = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
    let changes = waiting.trim().parse::<usize>().unwrap() + 10;
    for number in 0..changes {
        let (word, expected) = if number % 2 == 0 { ("add", "primary") } else { ("del", "backup") };
        netns.ip(&format!("address {word} 192.0.2.9/24 dev eth0"));
        wait_for(expected, || (role(&place, "VI_1") == expected).then_some(()));
    }
    // Now it does, and nothing is lost.
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
fn a_log_that_nobody_reads_holds_nobody_up() {
    // By a pipe that waits, and by one that says that it would.
    for flags in [OFlags::empty(), OFlags::NONBLOCK] {
        report_while_nobody_reads(flags);
    }
}

fn report_while_nobody_reads(flags: OFlags) {
    let lab = Lab::new();
    configure(lab.path(), Some("[agent]\ninterval = \"0s\"\n"));
    let (reader, writer) = std::io::pipe().unwrap();
    // As little as a pipe can hold: some thirty lines.
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    let child = command(lab.path(), &[]).stderr(writer).stdout(Stdio::null()).spawn().unwrap();
    let agent = ReceiverProcess::of(child, lab.path());
    for number in 0..300 {
        assert_eq!(report(lab.path(), &format!("r{number}"), "primary"), Some(200));
    }
    assert_eq!(agent.settled("primary"), 300);
    // For somebody who reads it after all, nothing is lost.
    let heard = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&heard);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            theirs.lock().unwrap().push(line);
        }
    });
    let is_about = |line: &str, id: &str| {
        line.contains("settled") && line.contains(&format!("instance={id} "))
    };
    wait_for("the last line", || {
        heard.lock().unwrap().iter().any(|line| is_about(line, "r299")).then_some(())
    });
    let heard = heard.lock().unwrap();
    let settled: Vec<&String> = heard.iter().filter(|line| line.contains("settled")).collect();
    assert_eq!(settled.len(), 300);
    for (number, line) in settled.into_iter().enumerate() {
        assert!(is_about(line, &format!("r{number}")), "in order: {line}");
    }
}
