// SPDX-License-Identifier: Apache-2.0
//! Commands that query a running node: status, watch, show, doctor and shell completion.

use std::process::Command;

use serde_json::Value;
use vipwatch_testkit::monitor::{end_of, output_of};
use vipwatch_testkit::{Lab, Routers, wait_for};

use crate::support::{
    ADD_VIP, PROGRAM, fixture_with, instance_conf, node_fixture, query_json, role, vi_1_conf,
    wait_for_record, wait_for_role, write,
};
use crate::watch_command::{WatchCommand, last_event};

#[test]
fn status_of_a_node_shows_each_role_with_its_cause_and_start_time() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    assert_eq!(role(&fixture, "VI"), "backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "VI_1", "primary");
    let answer = query_json(&fixture, &["status", "VI_1"]);
    assert_eq!(
        (&answer["source"], &answer["schema"]),
        (&"node".into(), &"vipwatch.status/2".into())
    );
    let instance = &answer["instances"][0];
    assert_eq!((&instance["trigger"], &instance["seq"]), (&"address".into(), &2.into()));
    let since: jiff::Timestamp = instance["since"].as_str().unwrap().parse().unwrap();
    assert!(since.as_second() > 1_600_000_000, "{instance}");
    wait_for("the change to be counted", || {
        (query_json(&fixture, &["status"])["metrics"]["vipwatch_transitions_total"] == 2)
            .then_some(())
    });
    let status = |args: &[&str]| fixture.run(&[&["status"], args].concat()).status.code();
    assert_eq!(status(&["--expect", "primary"]), Some(0));
    assert_eq!(status(&["--expect", "backup"]), Some(1));
    assert_eq!(status(&["no-such-id"]), Some(4));
    assert!(fixture.run_text(&["status", "no-such-id"]).contains("`vipwatch status` lists"));
    assert_eq!(query_json(&fixture, &["status", "--direct"])["source"], "kernel");
}

#[test]
fn watch_prints_all_current_roles_and_then_each_change_once() {
    let lab = Lab::new();
    let two = [vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.2/24"])];
    let (netns, fixture) = fixture_with(&lab, &two);
    let states = lab.path().join("states");
    fixture.configure(&format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    let node = fixture.start();
    let last = last_event(&fixture);
    let mut all = WatchCommand::new(&fixture, &[]);
    let mut some = WatchCommand::new(&fixture, &["VI", "-o", "json", "-n", "2", "--after", &last]);
    assert!(all.read_line().contains("DB  backup  (since "));
    assert!(all.read_line().contains("VI_1  backup  (since "));
    netns.ip("address add 192.0.2.2/24 dev eth0");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    let line = all.read_line();
    assert!(line.contains("DB  backup → primary  (address, cause not known)  [file "), "{line}");
    assert!(all.read_line().contains("VI_1  backup → primary"));
    let change = some.read_transition();
    assert_eq!((&change["id"], &change["to"]), (&"VI_1".into(), &"primary".into()));
    netns.ip("address del 192.0.2.9/24 dev eth0");
    let change = some.read_transition();
    assert_eq!((&change["from"], &change["to"]), (&"primary".into(), &"backup".into()));
    assert!(end_of(&mut some.child).is_some_and(|status| status.success()));
    assert!(all.read_line().contains("VI_1  primary → backup"));
    assert!(node.stop().success());
}

#[test]
fn a_watch_with_a_count_counts_new_transitions_only() {
    let lab = Lab::new();
    let two = [vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.2/24"])];
    let (netns, fixture) = fixture_with(&lab, &two);
    let node = fixture.start();
    let mut watch = WatchCommand::new(&fixture, &["-n", "1"]);
    assert!(watch.read_line().contains("DB  backup  (since "));
    assert!(watch.read_line().contains("VI_1  backup  (since "));
    netns.ip("address add 192.0.2.2/24 dev eth0");
    watch.read_line_with("DB  backup → primary");
    assert!(end_of(&mut watch.child).is_some_and(|status| status.success()));
    assert!(node.stop().success());
}

#[test]
fn show_prints_the_timeline_and_the_findings_of_one_instance() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("s{}", lab.number()), 2, 2);
    let fixture = node_fixture(&lab);
    let _node = fixture.start();
    let router = &routers.each[0];
    router.take();
    wait_for_role(&fixture, &router.id, "primary");
    wait_for_record(&fixture, &format!("{} primary", router.id));
    let state = lab.path().join("ha_confs").join(&router.id).join("state");
    write(&state, "backup");
    let shown = wait_for("the audit after the change", || {
        let shown = query_json(&fixture, &["show", &router.id]);
        (!shown["findings"].as_array()?.is_empty()).then_some(shown)
    });
    assert_eq!(shown["findings"][0]["name"], "state-file-differs", "{shown}");
    assert_eq!(shown["timeline"].as_array().unwrap().len(), 2);
    let addresses = shown["instance"]["addresses"].as_array().unwrap();
    assert_eq!(addresses.len(), 3);
    assert!(addresses.iter().all(|address| address["held"] == true), "{addresses:?}");
    assert_eq!(addresses[1]["floating"], true);
    let page = fixture.run_text(&["show", &router.id]);
    assert!(
        page.contains("state-file-differs") && page.contains("the state file says backup"),
        "{page}"
    );
    // The beginning of an id must match one instance only.
    let several = fixture.run(&["show", &router.id[..router.id.len() - 1]]);
    assert_eq!(several.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&several.stderr).contains("matches several instances"));
}

#[test]
fn doctor_prints_each_finding_with_its_explanation() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("d{}", lab.number()), 3, 2);
    let fixture = node_fixture(&lab);
    let _node = fixture.start();
    for router in &routers.each {
        let directory = lab.path().join("ha_confs").join(&router.id);
        write(&directory.join("state"), "backup");
    }
    assert_eq!(
        fixture.run(&["doctor"]).status.code(),
        Some(0),
        "{}",
        fixture.run_text(&["doctor"])
    );
    let (stale_file, incomplete) = (&routers.each[0], &routers.each[1]);
    stale_file.take();
    incomplete.take();
    write(&lab.path().join("ha_confs").join(&incomplete.id).join("state"), "primary");
    let (editor, link) = incomplete.editor();
    editor.remove(link, "10.0.0.2/32".parse().unwrap());
    let findings = || -> Vec<String> {
        let answer = query_json(&fixture, &["doctor"]);
        let findings = answer["items"].as_array().unwrap().iter();
        let summary = |finding: &Value| format!("{} {}", finding["id"], finding["name"]);
        findings.map(|finding| summary(finding).replace('"', "")).collect()
    };
    // The most serious findings are first.
    let expected = [
        format!("{} floating-missing", incomplete.id),
        format!("{} state-file-differs", stale_file.id),
    ];
    wait_for("every finding", || (findings() == expected).then_some(()));
    let output = fixture.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("1 of 2 floating addresses are not held"), "{printed}");
    assert!(printed.contains("the monitor does not run or misses events"), "{printed}");
    wait_for("the finding in the log", || {
        fixture.log().contains("state-file-differs").then_some(())
    });
    write(&lab.path().join("ha_confs").join(&stale_file.id).join("state"), "primary");
    wait_for("the finding to end", || (findings().len() == 1).then_some(()));
}

#[test]
fn show_names_the_link_of_an_address_that_is_on_another_link() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.add_link("eth1");
    let _node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    netns.ip(&ADD_VIP.replace("eth0", "eth1"));
    // The node's table reads the watched links only. The audit reads all of them.
    fixture.run(&["doctor"]);
    let shown = query_json(&fixture, &["show", "VI_1"]);
    assert_eq!(shown["instance"]["addresses"][0]["state"], "held on eth1 instead", "{shown}");
}

#[test]
fn doctor_reports_two_instances_with_the_same_vrid_and_address() {
    let lab = Lab::new();
    // Both instances have the same virtual router id and the same address.
    let two = [vi_1_conf(), vi_1_conf().replace("VI_1", "VI_2")];
    let (_netns, fixture) = fixture_with(&lab, &two);
    let _node = fixture.start();
    let printed = fixture.run_text(&["doctor"]);
    assert!(
        printed.contains("vrid-clash") && printed.contains("address-configured-twice"),
        "{printed}"
    );
}

#[test]
fn shell_completion_offers_the_ids_of_existing_instances() {
    let lab = Lab::new();
    let (_netns, fixture) =
        fixture_with(&lab, &[vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.3/24"])]);
    let _node = fixture.start();
    let mut command = Command::new(PROGRAM);
    command.env("COMPLETE", "bash").env("VIPWATCH_SOCKET", fixture.socket());
    command.env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_COMPLETE_COMP_TYPE", "9");
    command.env("_CLAP_COMPLETE_SPACE", "true").env("_CLAP_IFS", "\n");
    let output = output_of(command.args(["--", "vipwatch", "show", "V"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "VI_1", "{output:?}");
}
