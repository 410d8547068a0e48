// SPDX-License-Identifier: Apache-2.0
//! The life cycle of a node: start, stop, kill, signals, its configuration, its socket and its state directory.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, wait_for};

use crate::support::{
    PROGRAM, fixture_with, node_fixture, query_json, recorded, vi_1_conf, wait_for_record,
    wait_for_role, write,
};

#[test]
fn the_history_and_the_start_time_of_a_role_survive_a_stop_and_a_kill() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let refused = fixture.run(&["history", "--state-dir", lab.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(4), "there is no history yet");
    let first = fixture.start();
    wait_for_record(&fixture, "VI_1 backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_record(&fixture, "VI_1 primary");
    let since = query_json(&fixture, &["status"])["instances"][0]["since"].clone();
    assert!(first.stop().success());
    assert!(!fixture.socket().exists(), "the node removes its socket when it stops");

    for _ in 0..2 {
        let node = fixture.start();
        let after = &query_json(&fixture, &["status"])["instances"][0];
        assert_eq!(after["since"], since, "a restart does not change the start time of the role");
        assert!(node.stop().success());
    }
    let second = fixture.start();
    netns.ip("link set eth0p down");
    netns.ip("address del 192.0.2.9/24 dev eth0");
    wait_for_record(&fixture, "VI_1 fault");
    second.kill();

    let _third = fixture.start();
    fixture.wait_for_log("the last run was killed");
    let printed = fixture.run_text(&["history", "VI", "--since", "1h"]);
    assert!(
        printed.contains("no node ran") && printed.contains("the node was killed"),
        "{printed}"
    );
    assert!(printed.contains("eth0 has no carrier"), "{printed}");
    let all = recorded(&fixture);
    assert_eq!(all[..2], ["VI_1 backup", "VI_1 primary"], "{all:?}");
    assert_eq!(fixture.run(&["history", "no-such-id"]).status.code(), Some(4));
    let flaps = query_json(&fixture, &["history", "--flaps"])["items"][0].clone();
    assert_eq!((&flaps["id"], &flaps["primary"]), (&"VI_1".into(), &1.into()), "{flaps}");
    assert!(fixture.run_text(&["history", "--flaps"]).contains("TRANSITIONS"));
}

#[test]
fn a_second_node_with_the_same_state_directory_or_socket_is_refused() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let _first = fixture.start();
    let state = fixture.state_dir();
    let state = state.to_str().unwrap();
    let output = fixture.run(&["node", "--state-dir", state]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("another vipwatch node uses the state directory")
    );
    let elsewhere = lab.path().join("elsewhere");
    let output = fixture.run(&["node", "--state-dir", elsewhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("another process is already listening on")
    );
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_that_is_no_socket_is_left_alone() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.start().kill();
    assert!(fixture.socket().exists(), "a killed node leaves its socket file behind");
    let node = fixture.start();
    let mode = std::fs::metadata(fixture.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert!(node.stop().success());
    write(&fixture.socket(), "a file");
    let output = fixture.run(&["node", "--state-dir", fixture.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a socket"), "{output:?}");
    assert_eq!(std::fs::read_to_string(fixture.socket()).unwrap(), "a file");
}

#[test]
fn a_node_reports_that_its_socket_was_replaced_and_does_not_remove_the_new_one() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let node = fixture.start();
    let moved = lab.path().join("moved.sock");
    std::fs::rename(fixture.socket(), &moved).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(fixture.socket()).unwrap();
    let doctor = || {
        let mut command = Command::new(PROGRAM);
        command.args(["doctor", "--config"]).arg(fixture.config()).arg("--socket").arg(&moved);
        String::from_utf8(output_of(&mut command).stdout).unwrap()
    };
    wait_for("the finding", || {
        let printed = doctor();
        (printed.contains("node-socket") && printed.contains("has replaced the socket file"))
            .then_some(())
    });
    fixture.wait_for_log("clients cannot reach this node");
    assert!(node.stop().success());
    assert!(
        UnixStream::connect(fixture.socket()).is_ok(),
        "the socket of the other server still exists"
    );
}

#[test]
fn a_wrong_configuration_prevents_the_start_but_does_not_end_a_running_node() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\nsokcet = \"/x\"\n");
    let output = fixture.run(&["node"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("vipwatch.toml:2: there is no key sokcet in node; did you mean socket?")
    );
    assert!(printed.contains("vipwatch config example"), "{printed}");
    let checked = Command::new(PROGRAM).args(["config", "check"]).arg(fixture.config()).output();
    assert_eq!(checked.unwrap().status.code(), Some(1));
    fixture.configure("");
    let node = fixture.start();
    fixture.configure("[node\n");
    node.reload();
    fixture.wait_for_log("the previous one stays in use");
    let printed = fixture.run_text(&["doctor"]);
    assert!(printed.contains("node-configuration") && printed.contains(" anyway"), "{printed}");
    fixture.configure("");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "VI_1", "primary");
    node.reload();
    assert_eq!(fixture.run(&["doctor"]).status.code(), Some(0));
}

#[test]
fn a_configuration_that_others_may_write_is_refused() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.configure("");
    let writable_by_all = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(fixture.config(), writable_by_all).unwrap();
    let output = fixture.run(&["node", "--state-dir", fixture.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("may be written by others") && printed.contains("chmod go-w"),
        "{printed}"
    );
}

#[test]
fn a_missing_state_directory_is_created_and_an_impossible_one_is_an_error() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.configure("");
    write(&lab.path().join("file"), "");
    let deep = lab.path().join("a/b/c");
    let below_a_file = lab.path().join("file/x");
    let output = fixture.run(&["node", "--state-dir", below_a_file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("cannot use the directory") && printed.contains("--state-dir"),
        "{printed}"
    );
    fixture.configure(&format!("[node]\nstate_dir = \"{}\"\n", deep.display()));
    let mut child = Command::new(PROGRAM)
        .args(["node", "--config"])
        .arg(fixture.config())
        .arg("--socket")
        .arg(fixture.socket())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the history", || deep.join("history.sqlite").exists().then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn sigusr1_and_sigusr2_do_not_end_a_node() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let mut node = fixture.start();
    for signal in [rustix::process::Signal::USR1, rustix::process::Signal::USR2] {
        node.signal(signal);
        assert_eq!(query_json(&fixture, &["status"])["source"], "node", "{signal:?}");
        // The node reads signals in order: after the reload it has read this one too.
        node.reload();
        assert!(node.is_alive(), "{signal:?}");
    }
    assert!(node.stop().success());
}
