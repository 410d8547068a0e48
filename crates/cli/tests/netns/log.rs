// SPDX-License-Identifier: Apache-2.0
//! The log as JSON, on journald and on a pipe: a slow reader delays nothing and loses no line.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, wait_for};

use crate::http_server::HttpServer;
use crate::receiver_process::{ReceiverProcess, configure, receiver_command, report};
use crate::support::{ADD_VIP, REMOVE_VIP, fixture_with, role, vi_1_conf, write};

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
    assert_eq!(role["message"], "instance became primary");
    assert_eq!((&role["netns"], &role["address"]), (&netns.name().into(), &"192.0.2.9/24".into()));
    assert!(node.stop().success());
    let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
    assert!(fixture.log().lines().all(is_json), "{}", fixture.log());
    assert!(
        fixture.log().lines().last().unwrap().contains("stopped"),
        "the last line is written before the process ends"
    );
    assert_eq!((&role["level"], &role["trigger"]), (&"INFO".into(), &"address".into()));
}

/// The lines of a JSON log with this message.
fn lines_with(fixture: &NodeFixture, message: &str) -> Vec<Value> {
    let log = fixture.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

/// Waits for a line of the JSON log with this message.
fn wait_for_line(fixture: &NodeFixture, message: &str) -> Value {
    wait_for(message, || lines_with(fixture, message).into_iter().next())
}

#[test]
fn a_fault_is_a_warning_and_its_end_is_logged() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\nlog = \"json\"\n");
    let _node = fixture.start();
    netns.ip("link set eth0 down");
    let fault = wait_for_line(&fixture, "instance has a fault");
    assert_eq!((&fault["level"], &fault["from"]), (&"WARN".into(), &"backup".into()));
    assert!(fault["reason"].as_str().unwrap().contains("eth0"), "{fault}");
    netns.ip("link set eth0 up");
    let over = wait_for_line(&fixture, "fault is over: instance became backup");
    assert_eq!((&over["level"], &over["instance"]), (&"INFO".into(), &"VI_1".into()));
}

#[test]
fn lines_about_deliveries_findings_and_removals_name_the_place_of_the_instance() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (server, states) = (HttpServer::new(&[400; 1000]), lab.path().join("states"));
    // A file blocks the path of the directory of the state files.
    write(&states, "not a directory");
    fixture.configure(&format!(
        "[node]\nlog = \"json\"\n[[notify]]\nstate_file = \"{}/{{id}}\"\n\
         webhook = {{ url = \"{}\", on = [\"backup\", \"finding\"] }}\n",
        states.display(),
        server.url
    ));
    let _node = fixture.start();
    let place = (Value::from(netns.name()), Value::from("192.0.2.9/24"));
    let wait_for_delivery = |what: &str, is_wanted: &dyn Fn(&Value) -> bool| {
        let line = wait_for(what, || {
            lines_with(&fixture, "delivery failed").into_iter().find(|line| is_wanted(line))
        });
        assert_eq!(line["instance"], "VI_1", "{line}");
        line
    };
    let file = wait_for_delivery("the state file", &|line| line["stage"] == "file");
    assert_eq!((file["netns"].clone(), file["address"].clone()), place);
    let role = wait_for_delivery("the role", &|line| !line["next"].is_null());
    assert_eq!((role["netns"].clone(), role["address"].clone()), place);
    assert!(role["finding"].is_null(), "{role}");
    wait_for_delivery("the finding", &|line| line["finding"] == "file-failed");
    netns.ip("link set eth0 down");
    let finding = wait_for_line(&fixture, "audit finding");
    assert_eq!((finding["netns"].clone(), finding["address"].clone()), place);
    write(&fixture.keepalived_conf(), "");
    let removed = wait_for_line(&fixture, "instance removed");
    assert_eq!((removed["netns"].clone(), removed["address"].clone()), place);
}

#[test]
fn an_instance_that_begins_to_flap_is_logged_once() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\nlog = \"json\"\n");
    let _node = fixture.start();
    for number in 0..8 {
        let (action, expected) =
            if number % 2 == 0 { (ADD_VIP, "primary") } else { (REMOVE_VIP, "backup") };
        netns.ip(action);
        wait_for(expected, || (role(&fixture, "VI_1") == expected).then_some(()));
    }
    wait_for("eight transitions", || {
        let count = |message| lines_with(&fixture, message).len();
        (count("instance became primary") + count("instance became backup") == 8).then_some(())
    });
    let flapping = lines_with(&fixture, "instance began to flap");
    assert_eq!(flapping.len(), 1, "{}", fixture.log());
    assert_eq!((&flapping[0]["level"], &flapping[0]["transitions"]), (&"WARN".into(), &6.into()));
    assert_eq!(flapping[0]["address"], "192.0.2.9/24");
}

#[test]
fn a_reload_logs_what_it_has_changed() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node_section = "[node]\nlog = \"json\"\n";
    fixture.configure(&format!("{node_section}[[notify]]\nhook = {{ program = \"/bin/true\" }}\n"));
    let node = fixture.start();
    let instance = format!(
        "[[instance]]\nid = \"own\"\nnetns = {:?}\naddresses = [\"192.0.2.10/24 dev eth0\"]\n",
        netns.name()
    );
    fixture.configure(&format!(
        "{node_section}audit_every = \"1h\"\nhooks_at_once = 9\n{instance}\
         [[notify]]\nhook = {{ program = [\"/bin/echo\", \"x\"] }}\n"
    ));
    node.reload();
    let reloaded = wait_for_line(&fixture, "configuration reloaded");
    assert_eq!((&reloaded["targets_added"], &reloaded["targets_removed"]), (&1.into(), &1.into()));
    assert_eq!(
        (&reloaded["settings_changed"], &reloaded["instances_added"]),
        (&2.into(), &1.into())
    );
    let one = |message: &str| wait_for_line(&fixture, message);
    assert_eq!(one("target added")["name"], "hook /bin/echo x");
    assert_eq!(one("target removed")["name"], "hook /bin/true");
    assert_eq!(one("instance added")["instance"], "own");
    let changed = one("setting changed");
    let expected = ["node.audit_every", "30m", "1h"].map(Value::from);
    assert_eq!([&changed["key"], &changed["from"], &changed["to"]], expected.each_ref());
    let later = one("this setting changes only after a restart");
    assert_eq!((&later["key"], &later["level"]), (&"node.hooks_at_once".into(), &"WARN".into()));
    let shown = fixture.run_text(&["config", "show"]);
    let is_in_force = |line: &str| line.starts_with("node.hooks_at_once") && line.ends_with(" 8");
    assert!(shown.lines().any(is_in_force), "the value in force: {shown}");
}

#[test]
fn a_delivery_that_works_again_is_logged() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    // A file in place of the directory: root can write to every directory.
    let states = lab.path().join("states");
    std::fs::File::create(&states).unwrap();
    let states_text = states.display();
    fixture.configure(&format!(
        "[node]\nlog = \"json\"\n[[notify]]\nstate_file = \"{states_text}/{{id}}\"\n"
    ));
    let _node = fixture.start();
    let failed = wait_for_line(&fixture, "delivery failed");
    assert_eq!((&failed["level"], &failed["stage"]), (&"WARN".into(), &"file".into()));
    std::fs::remove_file(&states).unwrap();
    let again = wait_for_line(&fixture, "delivery works again");
    assert_eq!((&again["level"], &again["instance"]), (&"INFO".into(), &"VI_1".into()));
}

#[test]
fn rejected_reports_are_logged_with_user_and_reason_and_not_repeated() {
    let lab = Lab::new();
    configure(lab.path(), Some("[receiver]\ninterval = \"0s\"\n"));
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    for _ in 0..50 {
        assert_eq!(report(lab.path(), "r1", "leader"), Some(400));
    }
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    wait_for("the settled report", || receiver.log().contains("settled").then_some(()));
    let log = receiver.log();
    let rejected: Vec<&str> = log.lines().filter(|line| line.contains("report rejected")).collect();
    assert_eq!(rejected.len(), 1, "{log}");
    assert!(
        rejected[0].contains("user=\"0\"") && rejected[0].contains("invalid X-Neutron-State"),
        "{log}"
    );
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
        let is_change = |entry: &&String| entry.contains("TRIGGER=address\n");
        (entries.iter().filter(is_change).count() == changes).then_some(())
    });
    let entry = entries.iter().find(|entry| entry.contains("TO=primary\n")).unwrap();
    for expected in [
        "INSTANCE=VI_1\n",
        "SYSLOG_IDENTIFIER=vipwatch\n",
        "PRIORITY=6\n",
        "SYSLOG_TIMESTAMP=2",
        "MESSAGE=instance became primary seq=",
        " instance=VI_1 ",
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
