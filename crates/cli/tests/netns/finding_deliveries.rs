// SPDX-License-Identifier: Apache-2.0
//! Findings and failures over a restart: pending findings are delivered once, and a failure stays known.

use std::path::Path;

use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, wait_for};

use crate::deliveries::{stored, webhook};
use crate::http_server::HttpServer;
use crate::support::{
    ADD_VIP, fixture_with, instance_conf, query_json, read, vi_1_conf, write, write_hook,
};

/// The findings that a server has accepted, as `ID NAME STATE`.
fn accepted_findings(server: &HttpServer) -> Vec<String> {
    let text = |body: &Value| {
        let id = body["finding"]["id"].as_str().unwrap_or("node");
        let (name, state) = (body["finding"]["name"].as_str(), body["state"].as_str());
        format!("{id} {} {}", name.unwrap_or_default(), state.unwrap_or_default())
    };
    server.accepted_bodies().iter().map(text).collect()
}

/// A webhook for findings, and a state file for each instance below `states`.
fn rule_with_state_files(server: &HttpServer, states: &Path, options: &str) -> String {
    let rule = webhook(&server.url, &format!("on = \"finding\"\n{options}"));
    let state_file = format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", states.display());
    rule.replace("[[notify]]\n", &state_file)
}

/// Waits until the pending findings in the history are these, and their events are recorded.
fn wait_for_pending(fixture: &NodeFixture, expected: &str) {
    let query = "SELECT group_concat(instance) FROM delivery WHERE instr(instance, ' ') > 0";
    wait_for(&format!("pending: {expected}"), || {
        (stored(fixture, query) == expected).then_some(())
    });
}

#[test]
fn a_pending_finding_is_delivered_once_after_a_kill_and_delivered_ones_are_not_repeated() {
    let lab = Lab::new();
    let db = instance_conf("DB", "eth0", &["192.0.2.3/24"]);
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf(), db]);
    let (server, states) = (HttpServer::new(&[]), lab.path().join("states"));
    fixture.configure(&rule_with_state_files(&server, &states, ""));
    // A file blocks the path of the directory of the state file.
    write(&states.join("VI_1"), "not a directory");
    let node = fixture.start();
    let vi_1 = "VI_1 file-failed open";
    wait_for("the first finding", || (accepted_findings(&server) == [vi_1]).then_some(()));
    wait_for_pending(&fixture, "");
    server.answer_next(&vec![503; 10_000]);
    std::fs::remove_dir_all(states.join("DB")).unwrap();
    write(&states.join("DB"), "not a directory");
    netns.ip("address add 192.0.2.3/24 dev eth0");
    wait_for_pending(&fixture, "DB file-failed");
    let left = server.statuses_left();
    wait_for("another attempt", || (server.statuses_left() < left).then_some(()));
    node.kill();
    server.accept_all();
    let node = fixture.start();
    let db = "DB file-failed open";
    wait_for("the pending finding", || (accepted_findings(&server) == [vi_1, db]).then_some(()));
    wait_for_pending(&fixture, "");
    node.kill();
    let node = fixture.start();
    fixture.configure("[nodes]\n");
    node.reload();
    let last = "node node-configuration open";
    wait_for("a new finding", || {
        let accepted = accepted_findings(&server);
        (accepted.last().map(String::as_str) == Some(last)).then_some(())
    });
    assert_eq!(accepted_findings(&server), [vi_1, db, last]);
}

#[test]
fn a_target_for_every_event_gets_the_open_and_the_closed_finding_after_a_kill() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (server, states) = (HttpServer::new(&[503; 1000]), lab.path().join("states"));
    let rule = rule_with_state_files(&server, &states, "deliver = \"every\"");
    fixture.configure(&rule);
    let node = fixture.start();
    fixture.configure("[nodes]\n");
    node.reload();
    wait_for_pending(&fixture, "node-configuration");
    fixture.configure(&rule);
    node.reload();
    let closed = "SELECT count(*) FROM event WHERE name = 'finding' AND body LIKE '%closed%'";
    wait_for("the closed finding", || (stored(&fixture, closed) == "1").then_some(()));
    node.kill();
    server.accept_all();
    let _node = fixture.start();
    let name = "node node-configuration";
    let expected = [format!("{name} open"), format!("{name} closed")];
    wait_for("both findings", || (accepted_findings(&server) == expected).then_some(()));
    wait_for_pending(&fixture, "");
}

/// Silences all targets.
fn begin_silence(fixture: &NodeFixture) {
    let silence = ["silence", "--all", "--for", "1h", "--reason", "upgrade"];
    assert!(fixture.run(&silence).status.success(), "{}", fixture.run_text(&silence));
}

fn end_silence(fixture: &NodeFixture, number: &str) {
    let end = ["silence", "remove", number];
    assert!(fixture.run(&end).status.success(), "{}", fixture.run_text(&end));
}

/// Waits until the history has this number of events about findings in this state.
fn wait_for_recorded(fixture: &NodeFixture, state: &str, count: usize) {
    let query = format!(
        "SELECT count(*) FROM event WHERE name = 'finding' AND body LIKE '%\"state\":\"{state}\"%'"
    );
    wait_for(state, || (stored(fixture, &query) == count.to_string()).then_some(()));
}

/// A webhook for the latest state, and one for every event.
fn both_webhooks(latest: &HttpServer, every: &HttpServer, states: &Path) -> String {
    let first = rule_with_state_files(latest, states, "");
    let second = webhook(&every.url, "on = \"finding\"\ndeliver = \"every\"");
    first + &second.replace("ops", "every")
}

/// The directory of the state file is replaced by a file, and the next role cannot be written.
fn break_state_file(states: &Path) {
    std::fs::remove_dir_all(states.join("VI_1")).unwrap();
    write(&states.join("VI_1"), "not a directory");
}

#[test]
fn a_finding_that_a_silence_holds_is_delivered_after_a_restart_and_the_end_of_the_silence() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (latest, every) = (HttpServer::new(&[]), HttpServer::new(&[]));
    let states = lab.path().join("states");
    fixture.configure(&both_webhooks(&latest, &every, &states));
    let node = fixture.start();
    begin_silence(&fixture);
    break_state_file(&states);
    netns.ip(ADD_VIP);
    wait_for_pending(&fixture, "VI_1 file-failed,VI_1 file-failed");
    assert!(node.stop().success());
    let _node = fixture.start();
    assert_eq!(accepted_findings(&latest), [""; 0]);
    assert_eq!(accepted_findings(&every), [""; 0]);
    end_silence(&fixture, "1");
    for server in [latest, every] {
        let finding = "VI_1 file-failed open";
        wait_for("the finding", || (accepted_findings(&server) == [finding]).then_some(()));
    }
}

#[test]
fn a_hook_runs_after_a_silence_for_the_finding_that_opened_in_it_and_is_still_open() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (states, received) = (lab.path().join("states"), lab.path().join("received"));
    let script = format!("cat >> {0}; echo >> {0}", received.display());
    let hook = write_hook(&lab.path().join("hook"), &script);
    let config = format!(
        "[[notify]]\nstate_file = \"{}/{{id}}\"\nhook = {{ program = \"{}\", on = [\"finding\"] }}\n",
        states.display(),
        hook.display()
    );
    fixture.configure(&config);
    let node = fixture.start();
    begin_silence(&fixture);
    break_state_file(&states);
    netns.ip(ADD_VIP);
    wait_for_pending(&fixture, "VI_1 file-failed");
    // Another finding opens and closes.
    fixture.configure("[nodes]\n");
    node.reload();
    wait_for_recorded(&fixture, "open", 2);
    fixture.configure(&config);
    node.reload();
    wait_for_recorded(&fixture, "closed", 1);
    wait_for_pending(&fixture, "VI_1 file-failed");
    end_silence(&fixture, "1");
    wait_for_pending(&fixture, "");
    std::fs::remove_file(states.join("VI_1")).unwrap();
    let expected = ["file-failed open", "file-failed closed"];
    wait_for("the hook", || {
        let text = read(&received);
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events =
            lines.map(|event| word(&event["finding"]["name"]) + " " + &word(&event["state"]));
        (events.collect::<Vec<_>>() == expected).then_some(())
    });
}

#[test]
fn a_finding_that_opens_and_closes_in_a_silence_is_not_delivered_and_the_end_of_a_known_one_is() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (latest, every) = (HttpServer::new(&[]), HttpServer::new(&[]));
    let states = lab.path().join("states");
    let config = both_webhooks(&latest, &every, &states);
    fixture.configure(&config);
    let node = fixture.start();
    break_state_file(&states);
    netns.ip(ADD_VIP);
    let open = "VI_1 file-failed open";
    for server in [&latest, &every] {
        wait_for("the finding", || (accepted_findings(server) == [open]).then_some(()));
    }
    wait_for_pending(&fixture, "");
    begin_silence(&fixture);
    // One finding opens, the node restarts, and the finding closes.
    fixture.configure("[nodes]\n");
    node.reload();
    wait_for_pending(&fixture, "node-configuration, node-configuration");
    node.kill();
    fixture.configure(&config);
    let _node = fixture.start();
    wait_for_recorded(&fixture, "closed", 1);
    wait_for_pending(&fixture, "");
    // The finding of before the silence closes.
    std::fs::remove_file(states.join("VI_1")).unwrap();
    wait_for_recorded(&fixture, "closed", 2);
    wait_for_pending(&fixture, "VI_1 file-failed,VI_1 file-failed");
    end_silence(&fixture, "1");
    wait_for_pending(&fixture, "");
    for server in [latest, every] {
        assert_eq!(accepted_findings(&server), [open, "VI_1 file-failed closed"]);
    }
}

#[test]
fn a_restart_does_not_report_that_the_failure_of_a_given_up_delivery_is_over() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (server, findings) = (HttpServer::new(&[400]), HttpServer::new(&[]));
    let for_findings = webhook(&findings.url, "on = \"finding\"").replace("ops", "findings");
    fixture.configure(&format!("{}{for_findings}", webhook(&server.url, "")));
    let node = fixture.start();
    let open = "VI_1 webhook-failed open";
    wait_for("the finding", || (accepted_findings(&findings) == [open]).then_some(()));
    assert!(node.stop().success());
    let _node = fixture.start();
    let text = "ops: the server rejected the request with status 400";
    let list = query_json(&fixture, &["findings"]);
    let failed = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        let mut failed = items.filter(|item| item["name"] == "webhook-failed");
        failed.next().map(|item| item["text"].as_str().unwrap().to_owned())
    };
    assert_eq!(failed(&list).as_deref(), Some(text), "{list}");
    netns.ip(ADD_VIP);
    let closed = "VI_1 webhook-failed closed";
    wait_for("the end", || (accepted_findings(&findings) == [open, closed]).then_some(()));
    assert_eq!(server.accepted(), ["primary"], "the given up role is not sent again");
}
