// SPDX-License-Identifier: Apache-2.0
//! `vipwatch drain-check`: drained, not drained, or not known; with real keepalived where another node takes over.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns, wait_for, wait_showing};

use crate::deliveries::webhook;
use crate::http_server::HttpServer;
use crate::support::{
    ADD_VIP, PROGRAM, REMOVE_VIP, fixture_with, query_json, read, vi_1_conf, wait_for_role, write,
};

/// The exit code of a command, and its standard output and standard error as one text.
fn drain_check(fixture: &NodeFixture, args: &[&str]) -> (Option<i32>, String) {
    let output = fixture.run(&[&["drain-check"], args].concat());
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), text)
}

/// The names of the reasons in one list of the JSON document.
fn reasons(fixture: &NodeFixture, list: &str) -> Vec<String> {
    let answer = query_json(fixture, &["drain-check"]);
    let items = answer[list].as_array().unwrap().iter();
    items.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

/// A running `vipwatch drain-check --wait`. It is killed when this value is dropped.
struct WaitingCommand {
    child: Child,
    errors: PathBuf,
}

impl WaitingCommand {
    fn new(fixture: &NodeFixture, limit: &str) -> Self {
        let errors = fixture.config().with_extension("drain-errors");
        let mut command = Command::new(PROGRAM);
        command.args(["drain-check", "--wait", limit, "--socket"]).arg(fixture.socket());
        command.stdout(File::create(fixture.config().with_extension("drain-output")).unwrap());
        command.stderr(File::create(&errors).unwrap());
        Self { child: command.spawn().unwrap(), errors }
    }

    /// Waits for a text on standard error.
    #[track_caller]
    fn wait_for_progress(&self, text: &str) {
        let shown = || read(&self.errors);
        wait_showing(text, shown, || read(&self.errors).contains(text).then_some(()));
    }

    /// Waits until the command has ended; returns its exit code.
    #[track_caller]
    fn exit_code(&mut self) -> Option<i32> {
        let errors = self.errors.clone();
        let ended = || self.child.try_wait().unwrap();
        wait_showing("the end of the command", || read(&errors), ended).code()
    }
}

impl Drop for WaitingCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A namespace on the switch with real keepalived and a node.
struct Host {
    /// Deleted with this value.
    _netns: TestNetns,
    fixture: NodeFixture,
    keepalived: Keepalived,
    _node: NodeProcess,
}

fn start_host(lab: &Lab, switch: &BridgeSwitch, number: u8, priority: u8) -> Host {
    let netns = lab.netns(&number.to_string());
    switch.plug(&netns, "eth0", &format!("p{number}"));
    netns.ip(&format!("address add 192.0.2.{number}/24 dev eth0"));
    let directory = lab.path().join(number.to_string());
    std::fs::create_dir_all(&directory).unwrap();
    let fixture = NodeFixture::new(PROGRAM.as_ref(), &directory).on(&netns);
    fixture.configure("[witness]\nenabled = true\n");
    let keepalived = Keepalived::start(&netns, &directory, "eth0", "192.0.2.9/24", priority);
    let node = fixture.start();
    Host { _netns: netns, fixture, keepalived, _node: node }
}

#[test]
fn a_primary_is_not_drained_until_another_node_has_taken_over() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let first = start_host(&lab, &switch, 1, 150);
    wait_for_role(&first.fixture, "VR_1", "primary");
    let second = start_host(&lab, &switch, 2, 100);
    wait_for_role(&second.fixture, "VR_1", "backup");
    let (code, text) = drain_check(&first.fixture, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("VR_1: this node is primary"), "{text}");
    assert!(text.contains("a VRRP backup sends no adverts"), "{text}");
    let answer = wait_showing(
        "the backup to be drained, with an advert of its peer",
        || second.fixture.log(),
        || {
            let answer = query_json(&second.fixture, &["drain-check"]);
            let is_known = !answer["instances"][0]["peer"].is_null();
            (answer["verdict"] == "drained" && is_known).then_some(answer)
        },
    );
    let peer = &answer["instances"][0]["peer"];
    assert_eq!((&peer["source"], &peer["advertising"]), (&"192.0.2.1".into(), &true.into()));

    let mut waiting = WaitingCommand::new(&first.fixture, "5m");
    waiting.wait_for_progress("1 primary-here; waiting");
    first.keepalived.stop();
    assert_eq!(waiting.exit_code(), Some(0), "{}", read(&waiting.errors));
    let role = &query_json(&second.fixture, &["status"])["instances"][0]["role"];
    assert_eq!(*role, "primary", "the answer came before the other node had taken over");
    let answer: Value = query_json(&first.fixture, &["drain-check"]);
    let failover = &answer["instances"][0]["last_failover"];
    assert_eq!((&failover["from"], &failover["to"]), (&"primary".into(), &"backup".into()));
    let answer = query_json(&second.fixture, &["drain-check"]);
    let peer = &answer["instances"][0]["peer"];
    assert_eq!(peer["source"], "192.0.2.1", "the last advert of the other node: {answer}");
}

#[test]
fn a_pending_delivery_is_not_drained_until_it_is_delivered() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[503; 1000]);
    fixture.configure(&webhook(&server.url, ""));
    let _node = fixture.start();
    wait_for("the attempt", || server.last_seq());
    let (code, text) = drain_check(&fixture, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("target ops: 1 delivery is pending"), "{text}");
    assert_eq!(reasons(&fixture, "blocking"), ["delivery-pending"]);
    let mut waiting = WaitingCommand::new(&fixture, "5m");
    waiting.wait_for_progress("1 delivery-pending; waiting");
    server.accept_all();
    assert_eq!(waiting.exit_code(), Some(0), "{}", read(&waiting.errors));
}

#[test]
fn a_wait_that_ends_with_a_primary_here_is_not_drained() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip(ADD_VIP);
    let _node = fixture.start();
    let (code, text) = drain_check(&fixture, &["--wait", "1s"]);
    assert_eq!(code, Some(1), "{text}");
    let (code, text) = drain_check(&fixture, &["--wait", "1s", "--quiet"]);
    assert_eq!(code, Some(1));
    assert_eq!(text, "vipwatch: not drained: 1 primary-here\n");
}

#[test]
fn a_node_that_is_dead_or_hangs_gives_no_answer() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip(ADD_VIP);
    let node = fixture.start();
    node.signal(Signal::STOP);
    assert_eq!(drain_check(&fixture, &[]).0, Some(6), "a node that hangs");
    node.signal(Signal::CONT);
    let mut waiting = WaitingCommand::new(&fixture, "20s");
    waiting.wait_for_progress("waiting");
    node.kill();
    waiting.wait_for_progress("connecting again");
    assert_eq!(drain_check(&fixture, &[]).0, Some(6), "a node that is dead");
    assert_eq!(drain_check(&fixture, &["--wait", "5m"]).0, Some(6), "nothing to wait for");
    assert_eq!(waiting.exit_code(), Some(6), "the node did not come back");
}

#[test]
fn a_wait_goes_on_after_a_restart_of_the_node() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip(ADD_VIP);
    let node = fixture.start();
    let mut waiting = WaitingCommand::new(&fixture, "5m");
    waiting.wait_for_progress("1 primary-here; waiting");
    node.kill();
    waiting.wait_for_progress("connecting again");
    let _node = fixture.start();
    netns.ip(REMOVE_VIP);
    assert_eq!(waiting.exit_code(), Some(0), "{}", read(&waiting.errors));
}

#[test]
fn what_the_node_cannot_know_is_never_drained() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    assert_eq!(drain_check(&fixture, &["--wait", "1m"]).0, Some(0));
    // A note about the file hides nothing.
    let valid = read(&fixture.keepalived_conf());
    let note = "global_defs {\n  router_id \"x\n}\n";
    write(&fixture.keepalived_conf(), &format!("{note}{valid}"));
    let status = || query_json(&fixture, &["status"]);
    wait_showing(
        "a note",
        || status()["problems"].to_string(),
        || status()["problems"].to_string().contains("a quote is not closed").then_some(()),
    );
    let (code, text) = drain_check(&fixture, &["--wait", "1m"]);
    assert_eq!(code, Some(0), "{text}");
    // The node keeps the last valid content: it may miss instances of the new one.
    write(&fixture.keepalived_conf(), &format!("{valid}vrrp_instance B {{\n"));
    wait_for("the problem", || {
        let problems = query_json(&fixture, &["status"])["problems"].to_string();
        problems.contains("vrrp_instance B").then_some(())
    });
    let (code, text) = drain_check(&fixture, &[]);
    assert_eq!(code, Some(5), "{text}");
    let uncertain = reasons(&fixture, "uncertain");
    assert!(uncertain.iter().all(|name| name == "configuration-problem"), "{uncertain:?}");
    let (code, text) = drain_check(&fixture, &["--wait", "1s"]);
    assert_eq!(code, Some(5), "a wait does not make it certain: {text}");
    let mut waiting = WaitingCommand::new(&fixture, "5m");
    waiting.wait_for_progress("configuration-problem; waiting");
    write(&fixture.keepalived_conf(), &valid);
    assert_eq!(waiting.exit_code(), Some(0), "{}", read(&waiting.errors));
}

#[test]
fn a_silenced_webhook_does_not_keep_a_node_from_being_drained() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[200; 100]);
    fixture.configure(&webhook(&server.url, ""));
    netns.ip(ADD_VIP);
    let _node = fixture.start();
    wait_for("the first notification", || server.last_seq());
    assert!(fixture.run(&["silence", "--all", "--for", "1h", "--reason", "x"]).status.success());
    netns.ip(REMOVE_VIP);
    wait_for_role(&fixture, "VI_1", "backup");
    let (code, text) = drain_check(&fixture, &["--wait", "1m"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("target ops: 1 notifications wait for the end of a silence"), "{text}");
    let targets = query_json(&fixture, &["targets"]);
    let target = &targets["items"][0];
    assert_eq!((&target["pending"], &target["silenced"]), (&0.into(), &1.into()), "{targets}");
}

#[test]
fn without_a_cluster_nobody_knows_who_would_take_over() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip(ADD_VIP);
    let _node = fixture.start();
    wait_for_role(&fixture, "VI_1", "primary");
    let answer = wait_for("an answer", || {
        let answer = query_json(&fixture, &["drain-check", "--if"]);
        (answer["uncertain"][0]["name"] == "no-cluster").then_some(answer)
    });
    assert_eq!((&answer["question"], &answer["verdict"]), (&"if".into(), &"unknown".into()));
    assert_eq!(drain_check(&fixture, &["--if"]).0, Some(5));
    netns.ip(REMOVE_VIP);
    let drained = || (drain_check(&fixture, &["--if"]).0 == Some(0)).then_some(());
    wait_for("the node to be drained", drained);
}
