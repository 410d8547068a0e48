// SPDX-License-Identifier: Apache-2.0
//! `vipwatch reload`: it waits for the result of the reload and returns it.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;
use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{ErrorCode, ReloadOutcome};
use vipwatch_testkit::Lab;
use vipwatch_testkit::monitor::output_of;

use crate::access::as_other_user;
use crate::receiver_process::{ReceiverProcess, configure};
use crate::support::{PROGRAM, fixture_with, query_json, vi_1_conf};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn reload_applies_the_file_and_returns_the_number_of_the_reload() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    fixture.configure("[node]\naudit_every = \"1h\"\n");
    let output = fixture.run(&["reload"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains(&format!("process {}: applied ", node.pid())), "{printed}");
    assert_eq!(query_json(&fixture, &["config", "show"])["settings"]["node"]["audit_every"], "1h");
    let answer = query_json(&fixture, &["reload"]);
    assert_eq!(answer["schema"], "vipwatch.reload/1");
    assert_eq!(answer["reload"]["number"], 2, "{answer}");
    assert_eq!(answer["reload"]["needs_restart"], serde_json::json!([]));
    let version = query_json(&fixture, &["version"]);
    assert_eq!(version["server"]["last_reload"], answer["reload"]);
    let notices = node.notices();
    let is_reloading = |notice: &String| notice.starts_with("RELOADING=1\nMONOTONIC_USEC=");
    assert_eq!(notices.iter().filter(|notice| is_reloading(notice)).count(), 2, "{notices:?}");
}

#[test]
fn reload_names_the_settings_that_need_a_restart() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    fixture.configure("[node]\naudit_every = \"1h\"\n[history]\nkeep_days = 7\n");
    for _ in 0..2 {
        let output = fixture.run(&["reload"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = printed.lines().skip(1).collect();
        assert_eq!(lines, ["  not in force before a restart: history.keep_days"], "{printed}");
    }
}

#[test]
fn reload_of_a_wrong_file_prints_every_error_with_its_position_and_fails() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\naudit_every = \"1h\"\n");
    let _node = fixture.start();
    fixture.configure("[node]\nsokcet = 1\naudit_every = 5\n");
    let output = fixture.run(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stderr(&output);
    let file = fixture.config().display().to_string();
    assert!(text.contains(&format!("{file}:2:")) && text.contains("sokcet"), "{text}");
    assert!(text.contains(&format!("{file}:3:")) && text.contains("\n  hint: "), "{text}");
    assert_eq!(text.matches("sokcet").count(), 1, "the command repeats no error: {text}");
    let output = fixture.run(&["reload", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["reload"]["error"].as_str().unwrap().contains("sokcet"), "{answer}");
    assert_eq!(query_json(&fixture, &["config", "show"])["settings"]["node"]["audit_every"], "1h");
}

#[test]
fn each_of_many_reloads_at_once_has_the_result_of_a_reload_after_its_request() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    for hours in 1..=8 {
        let is_valid = hours % 2 == 0;
        let text =
            format!("[node]\naudit_every = \"{hours}{}\"\n", if is_valid { "h" } else { "" });
        fixture.configure(&text);
        let reload = || Client::new(fixture.socket()).reload().unwrap().reload;
        let outcomes: Vec<ReloadOutcome> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(reload)).collect();
            // Another reload begins and ends meanwhile.
            node.signal(Signal::HUP);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for outcome in outcomes {
            assert_eq!(outcome.error.is_none(), is_valid, "{hours}: {outcome:?}");
        }
    }
}

#[test]
fn only_root_and_the_user_of_the_node_may_reload() {
    const GROUP: u32 = 4243;
    let lab = Lab::new();
    std::fs::set_permissions(lab.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure(&format!("[node]\nsocket_group = \"{GROUP}\"\n"));
    let _node = fixture.start();
    let socket = fixture.socket();
    let refused = as_other_user(&[GROUP], || {
        let client = Client::new(&socket);
        (client.version().is_ok(), client.reload().unwrap_err())
    });
    let (true, ClientError::Problem(problem)) = refused else { panic!("{refused:?}") };
    assert_eq!(problem.code, ErrorCode::NotPermitted);
    assert!(Client::new(&socket).reload().is_ok(), "root may");
}

#[test]
fn reload_without_a_node_says_what_to_do() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("");
    let output = fixture.run(&["reload"]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(stderr(&output).contains("hint: start `vipwatch node`"), "{}", stderr(&output));
}

#[test]
fn the_receiver_process_reloads_and_returns_the_result() {
    let lab = Lab::new();
    configure(lab.path(), Some("[receiver]\ninterval = \"0s\"\n"));
    let _receiver = ReceiverProcess::start(lab.path(), &[]);
    let reload = || {
        let mut command = Command::new(PROGRAM);
        command.args(["reload", "--receiver", "--json", "--status-socket"]);
        output_of(command.arg(lab.path().join("agent.sock")))
    };
    configure(lab.path(), Some("[receiver]\ninterval = \"5s\"\n"));
    let output = reload();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["service"], &answer["reload"]["number"]), (&"receiver".into(), &1.into()));
    configure(lab.path(), Some("[receiver]\nintervall = \"5s\"\n"));
    let output = reload();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("did you mean interval?"), "{}", stderr(&output));
    let config = Client::new(lab.path().join("agent.sock")).config().unwrap();
    assert_eq!(config.settings["receiver"]["interval"], "5s", "the earlier settings");
}
