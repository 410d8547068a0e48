// SPDX-License-Identifier: Apache-2.0
//! The command line as an operator uses it: addresses instead of ids, filters, nodes that are dead or hang, watches
//! that survive a restart, silences and versions.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, instance_conf, query_json, vi_1_conf, wait_for_record,
    wait_for_role, write, write_hook,
};
use crate::watch_command::{WatchCommand, last_event};

/// A node with `VI_1` (with a floating address), `DB`, and `FAULT` on a link that does not exist.
fn three_instances(lab: &Lab) -> (TestNetns, NodeFixture) {
    let instances = [
        instance_conf("VI_1", "eth0", &["192.0.2.9/24", "2001:db8::9/64"]),
        instance_conf("DB", "eth0", &["192.0.2.2/24"]),
        instance_conf("FAULT", "eth9", &["192.0.2.3/24"]),
    ];
    fixture_with(lab, &instances)
}

/// The names that `status` prints with these arguments, in the order of their ids.
fn names(fixture: &NodeFixture, args: &[&str]) -> Vec<String> {
    let output = fixture.run(&[&["status", "-o", "name"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let mut names: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn an_address_or_a_filter_selects_instances() {
    let lab = Lab::new();
    let (netns, fixture) = three_instances(&lab);
    let _node = fixture.start();
    let conf = fixture.keepalived_conf();
    for args in [&[][..], &["--keepalived-conf", conf.to_str().unwrap()]] {
        let select = |more: &[&str]| names(&fixture, &[more, args].concat());
        assert_eq!(select(&["192.0.2.9"]), ["VI_1"]);
        assert_eq!(select(&["2001:db8::9"]), ["VI_1"], "an excluded address");
        assert_eq!(select(&["192.0.2.2", "VI"]), ["DB", "VI_1"]);
        assert_eq!(select(&["--role", "fault"]), ["FAULT"]);
        assert_eq!(select(&["--role", "fault,backup", "--netns", netns.name()]).len(), 3);
        assert_eq!(select(&["--netns", ""]), [""; 0]);
        assert_eq!(select(&["--origin", "neutron"]), [""; 0]);
        let shown = query_json(&fixture, &[&["show", "192.0.2.9"], args].concat());
        assert_eq!(shown["instance"]["id"], "VI_1");
        let unknown = fixture.run(&[&["status", "192.0.2.77"], args].concat());
        assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    }
    wait_for_record(&fixture, "DB backup");
    let recorded = query_json(&fixture, &["history", "192.0.2.2"]);
    assert_eq!(recorded["items"][0]["id"], "DB", "{recorded}");
    let table = String::from_utf8(fixture.run(&["status"]).stdout).unwrap();
    assert!(table.lines().nth(1).unwrap().starts_with("FAULT  fault"), "{table}");
    assert!(table.lines().any(|line| line == "2 backup, 1 fault"), "{table}");
    let quiet = fixture.run(&["status", "VI_1", "--expect", "primary", "-q"]);
    assert_eq!((quiet.status.code(), quiet.stdout.len()), (Some(1), 0));
}

#[test]
fn filters_select_the_events_of_watch_and_the_findings_of_doctor() {
    let lab = Lab::new();
    let db = instance_conf("DB", "eth0", &["192.0.2.2/24"]);
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf(), db]);
    // A file blocks the path of the directory of the state files.
    let states = lab.path().join("states");
    write(&states, "not a directory");
    fixture.configure(&format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    let _node = fixture.start();
    let (name, after) = (netns.name(), last_event(&fixture));
    let args = ["--json", "--after", &after, "--role", "primary"];
    let mut watch = WatchCommand::new(&fixture, &args);
    let args = ["--json", "--after", &after, "--netns", name, "--origin", "keepalived"];
    let mut of_netns = WatchCommand::new(&fixture, &args);
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    netns.ip(REMOVE_VIP);
    wait_for_role(&fixture, "VI_1", "backup");
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    for _ in 0..2 {
        assert_eq!(watch.read_transition()["to"], "primary");
    }
    for role in ["primary", "backup", "primary"] {
        assert_eq!(of_netns.read_transition()["to"], role);
    }
    for command in ["doctor", "findings"] {
        let names = |filter: &[&str]| {
            let output = fixture.run(&[&[command, "-o", "name"], filter].concat());
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(names(&["--role", "primary"]), "VI_1/file-failed\n", "{command}");
        assert_eq!(names(&["--role", "backup", "--netns", name]), "DB/file-failed\n");
        assert_eq!(names(&["--origin", "keepalived"]).lines().count(), 2);
        for none in [&["--netns", ""], &["--origin", "neutron"]] {
            assert_eq!(names(none), "", "{command} {none:?}");
        }
    }
}

#[test]
fn an_option_that_the_environment_sets_is_not_shown_as_a_required_one() {
    let lab = Lab::new();
    let mut command = std::process::Command::new(crate::support::PROGRAM);
    command.args(["silence", "--for", "2h"]).env("VIPWATCH_CONFIG", lab.path());
    let output = command.env("VIPWATCH_SOCKET", lab.path()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    let usage = error.lines().find(|line| line.starts_with("Usage:")).unwrap();
    assert_eq!(usage, "Usage: vipwatch silence --for <SPAN> --reason <TEXT> <ID|ADDRESS|--all>");
}

#[test]
fn a_command_without_a_node_says_that_the_kernel_answered() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip(ADD_VIP);
    fixture.configure("");
    let output =
        fixture.run(&["status", "--keepalived-conf", fixture.keepalived_conf().to_str().unwrap()]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(
        note.contains(
            "answered from the kernel; instances without a namespace are read in that of"
        ),
        "{note}"
    );
    fixture.configure(&format!(
        "[find]\nkeepalived_conf = \"{}\"\n",
        fixture.keepalived_conf().display()
    ));
    let output = fixture.run(&["status", "VI_1", "--expect", "primary"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let note = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "vipwatch: no vipwatch node is listening on {}; answered from the kernel",
        fixture.socket().display()
    );
    assert!(note.starts_with(&expected), "{note}");
    let history = fixture.run_text(&["history"]);
    assert!(history.contains("answered from the history in"), "{history}");
    let quiet = fixture.run(&["status", "VI_1", "--expect", "primary", "-q"]);
    let note = String::from_utf8(quiet.stderr).unwrap();
    assert!(note.starts_with(&expected), "a script must notice that no node runs: {note}");
    for args in [&["targets"][..], &["findings"], &["silence", "list"], &["version"]] {
        let output = fixture.run(args);
        assert_eq!(output.status.code(), Some(6), "{args:?}: {output:?}");
    }
}

#[test]
fn the_exit_code_of_doctor_tells_a_missing_node_from_a_healthy_one() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let find = format!("[find]\nkeepalived_conf = \"{}\"\n", fixture.keepalived_conf().display());
    fixture.configure(&find);
    let code = |args: &[&str]| fixture.run(args).status.code();
    let names = |args: &[&str]| -> Vec<String> {
        let answer = query_json(&fixture, args);
        let items = answer["items"].as_array().unwrap().iter();
        items.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let node = fixture.start();
    assert_eq!((code(&["doctor"]), code(&["findings"])), (Some(0), Some(0)));
    assert_eq!(names(&["doctor", "--direct"]), [""; 0], "it is not known whether a node runs");
    assert!(node.stop().success());
    assert_eq!((code(&["doctor"]), code(&["findings"])), (Some(6), Some(6)));
    assert_eq!(code(&["doctor", "--fail-on", "critical", "-q"]), Some(6));
    assert_eq!(names(&["doctor"]), ["node-not-running"]);
    let printed = fixture.run_text(&["doctor"]);
    assert!(printed.contains("systemctl start vipwatch-node"), "{printed}");
    assert_eq!(code(&["doctor", "--direct"]), Some(0), "the node is not asked for");
}

#[test]
fn a_node_that_hangs_is_an_error_and_not_an_answer_from_the_kernel() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    node.signal(Signal::STOP);
    for args in [&["status"][..], &["doctor"], &["history"], &["watch"], &["version"]] {
        let output = fixture.run(args);
        assert_eq!(output.status.code(), Some(6), "{args:?}: {output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.contains("no answer on") && error.contains("within 3 s"),
            "{args:?}: {error}"
        );
        assert!(!error.contains("answered from the kernel"), "{args:?}: {error}");
    }
    node.signal(Signal::CONT);
    assert_eq!(fixture.run(&["status"]).status.code(), Some(0));
    assert!(node.stop().success());
}

#[test]
fn a_watch_continues_without_a_gap_after_a_restart_of_the_node() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    wait_for_record(&fixture, "VI_1 backup");
    let mut watch = WatchCommand::new(&fixture, &["--json", "--after", &last_event(&fixture)]);
    netns.ip(ADD_VIP);
    assert_eq!(watch.read_transition()["to"], "primary");
    wait_for_record(&fixture, "VI_1 primary");
    assert!(node.stop().success());
    wait_for("the message", || watch.errors().contains("connecting again").then_some(()));
    // The next node reads this change when it starts.
    netns.ip(REMOVE_VIP);
    let node = fixture.start();
    let change = watch.read_transition();
    assert_eq!((&change["from"], &change["to"]), (&"primary".into(), &"backup".into()));
    wait_for_record(&fixture, "VI_1 backup");
    assert!(node.stop().success());
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    let mut change = watch.read_transition();
    // A node publishes the roles at its start with the trigger `start`, also unchanged ones.
    while change["trigger"] == "start" {
        change = watch.read_transition();
    }
    assert_eq!((&change["from"], &change["to"]), (&"backup".into(), &"primary".into()));
    wait_for("two connections", || {
        (watch.errors().matches("connected again, continuing after").count() == 2).then_some(())
    });
}

#[test]
fn a_watch_reads_the_roles_again_when_the_history_was_begun_anew() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let mut watch = WatchCommand::new(&fixture, &[]);
    watch.read_line_with("VI_1  backup");
    assert!(node.stop().success());
    std::fs::remove_dir_all(fixture.state_dir()).unwrap();
    let _node = fixture.start();
    watch.read_line_with("VI_1  backup");
    let errors = watch.errors();
    assert!(errors.contains("events are missing: the history was begun anew"), "{errors}");
}

/// Passes bytes between clients and the node, and closes the first connection that asks for events.
fn cut_first_event_stream(listener: &UnixListener, node: &Path) {
    let is_cut = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(node) else { return };
            let (to_client, from_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            let is_cut = &is_cut;
            scope.spawn(move || std::io::copy(&mut &from_server, &mut &to_client));
            scope.spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = (&client).read(&mut buffer) {
                    let is_for_events =
                        buffer[..length].windows(10).any(|text| text == b"/v1/events");
                    if is_for_events && !is_cut.swap(true, Ordering::Relaxed) {
                        break;
                    }
                    let _ = (&server).write_all(&buffer[..length]);
                }
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
}

#[test]
fn a_watch_connects_again_if_the_node_stops_between_the_roles_and_the_events() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let node = lab.path().join("moved.sock");
    std::fs::rename(fixture.socket(), &node).unwrap();
    let listener = UnixListener::bind(fixture.socket()).unwrap();
    std::thread::spawn(move || cut_first_event_stream(&listener, &node));
    let mut watch = WatchCommand::new(&fixture, &[]);
    watch.read_line_with("VI_1  backup");
    netns.ip(ADD_VIP);
    watch.read_line_with("backup → primary");
    assert!(watch.errors().contains("connecting again"), "{}", watch.errors());
}

#[test]
fn a_watch_shows_failed_deliveries() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let hook = write_hook(&lab.path().join("hook"), "exit 7");
    fixture.configure(&format!("[[notify]]\nhook = {{ program = \"{}\" }}\n", hook.display()));
    let _node = fixture.start();
    let mut watch = WatchCommand::new(&fixture, &[]);
    watch.read_line_with("VI_1  backup");
    netns.ip(ADD_VIP);
    let line = watch.read_line_with("backup → primary");
    if !line.contains("failed") {
        watch.read_line_with("failed");
    }
}

#[test]
fn a_watch_shows_removed_instances() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let mut watch = WatchCommand::new(&fixture, &[]);
    watch.read_line_with("VI_1  backup");
    write(&fixture.keepalived_conf(), "");
    watch.read_line_with("VI_1  backup → removed");
}

#[test]
fn a_silence_is_shown_everywhere_until_it_is_removed() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    let added =
        query_json(&fixture, &["silence", "192.0.2.9", "--for", "2h", "--reason", "switch"]);
    assert_eq!((&added["id"], &added["reason"]), (&"VI_1".into(), &"switch".into()), "{added}");
    let number = added["number"].to_string();
    let is_shown = |args: &[&str]| fixture.run_text(args).contains("silenced");
    assert!(is_shown(&["status"]) && is_shown(&["show", "VI_1"]) && is_shown(&["targets"]));
    assert!(fixture.run_text(&["silence", "list"]).contains("switch"));
    assert!(node.stop().success());
    let _node = fixture.start();
    assert!(is_shown(&["status"]), "a silence survives a restart");
    assert_eq!(fixture.run(&["silence", "remove", &number]).status.code(), Some(0));
    assert!(!is_shown(&["status"]));
    assert_eq!(fixture.run(&["silence", "remove", &number]).status.code(), Some(4));
    let unknown = fixture.run(&["silence", "nothing", "--for", "2h", "--reason", "x"]);
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    let too_long = fixture.run(&["silence", "--all", "--for", "31d", "--reason", "x"]);
    assert_eq!(too_long.status.code(), Some(2), "{too_long:?}");
}

#[test]
fn version_shows_the_program_and_the_node() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let client = query_json(&fixture, &["version", "--client"]);
    assert_eq!(
        (&client["client"]["version"], &client["server"]),
        (&env!("CARGO_PKG_VERSION").into(), &Value::Null)
    );
    let node = fixture.start();
    let both = query_json(&fixture, &["version"]);
    assert_eq!(both["server"]["version"], both["client"]["version"], "{both}");
    assert_eq!(both["server"]["config_file"], fixture.config().to_str().unwrap(), "{both}");
    assert!(node.stop().success());
}
