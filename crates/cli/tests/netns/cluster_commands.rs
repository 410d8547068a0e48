// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster` with real nodes, which share their roles through a real etcd.

use vipwatch_testkit::{Etcd, Lab, NodeFixture, wait_for, wait_showing};

use crate::cluster_etcd::ClusterWatch;
use crate::cluster_node::{ADD, ClusterNode, GROUP, REMOVE};
use crate::support::{vi_1_conf, wait_for_role};

/// The exit code and all output of a command.
fn run(fixture: &NodeFixture, args: &[&str]) -> (i32, String) {
    let output = fixture.run(args);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Waits until the output of a command has a text.
#[track_caller]
fn wait_for_output(fixture: &NodeFixture, args: &[&str], text: &str) {
    let shown = || format!("{:?}\n{}", run(fixture, args), fixture.log());
    wait_showing(text, shown, || run(fixture, args).1.contains(text).then_some(()));
}

#[test]
fn a_watch_of_a_node_prints_a_failover_and_the_loss_of_another_node() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), ""));
    a.netns.ip(ADD);
    let (_process_a, process_b) = (a.start(), b.start());
    a.wait_for_members(&["a live primary", "b live backup"]);
    let socket = a.fixture.socket().display().to_string();
    let watch = ClusterWatch::new(lab.path(), &["cluster", "watch", "--socket", &socket]);
    watch.wait_for_line(&["now", GROUP, "one-primary: a"]);
    a.netns.ip(REMOVE);
    watch.wait_for_line(&["a/VI_1", "primary → backup"]);
    b.netns.ip(ADD);
    watch.wait_for_line(&["b/VI_1", "backup → primary"]);
    process_b.kill();
    watch.wait_for_line(&["node b", "live → lost"]);
    watch.wait_for_line(&["finding cluster-node-lost"]);
    wait_for_output(&a.fixture, &["top", "--once", "--width", "160"], "cluster: 1 group");
}

#[test]
fn a_stale_view_has_its_age_and_no_favourable_exit_code() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let node = ClusterNode::new(&lab, "a", &etcd.endpoints(), "");
    node.netns.ip(ADD);
    let _process = node.start();
    let fixture = &node.fixture;
    wait_for_output(fixture, &["cluster", "status"], "one-primary");
    let (code, text) = run(fixture, &["cluster", "status", "--expect", "one-primary"]);
    assert_eq!(code, 0, "{text}");
    etcd.kill(0);
    wait_for_output(fixture, &["cluster", "status"], "stale since ");
    let (code, text) = run(fixture, &["cluster", "status", "--expect", "one-primary"]);
    assert_eq!(code, 5, "{text}");
    assert!(text.starts_with("stale since ") && text.contains("one-primary"), "{text}");
    let (code, text) = run(fixture, &["cluster", "nodes", "--expect", "live", "-q"]);
    assert_eq!(code, 5, "{text}");
    let (code, text) = run(fixture, &["cluster", "findings", "-q"]);
    assert_eq!(code, 5, "{text}");
}

#[test]
fn a_node_that_has_never_reached_etcd_has_a_finding() {
    let lab = Lab::new();
    let node = ClusterNode::new(&lab, "a", &["http://127.0.0.1:9".to_owned()], "");
    let _process = node.start();
    wait_for_output(&node.fixture, &["findings"], "the node has not read etcd since it started");
}

#[test]
fn records_that_a_full_etcd_rejects_are_a_finding_and_give_no_favourable_exit_code() {
    let lab = Lab::new();
    let etcd = Etcd::small(lab.path());
    let node = ClusterNode::new(&lab, "a", &etcd.endpoints(), "");
    node.netns.ip(ADD);
    let _process = node.start();
    let fixture = &node.fixture;
    wait_for_output(fixture, &["cluster", "status"], "one-primary");
    etcd.fill();
    wait_for_output(fixture, &["cluster", "status"], "etcd rejects the records of this node");
    let (code, text) = run(fixture, &["cluster", "status", "--expect", "one-primary", "-q"]);
    assert_eq!(code, 5, "{text}");
    wait_for_output(fixture, &["findings"], "etcd rejects the records of this node");
}

#[test]
fn without_a_reporter_there_is_no_favourable_exit_code_of_findings() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let node = ClusterNode::new(&lab, "a", &etcd.endpoints(), "");
    let process = node.start();
    let findings = ["cluster", "findings", "--etcd", &etcd.endpoint(0), "-q"];
    wait_for("a reporter", || (run(&node.fixture, &findings).0 == 0).then_some(()));
    process.kill();
    wait_for("no reporter", || {
        let (code, text) = run(&node.fixture, &findings);
        (code == 5 && text.contains("no node reports findings of the cluster")).then_some(())
    });
}

#[test]
fn a_node_without_a_cluster_says_how_to_configure_one() {
    let lab = Lab::new();
    let (_netns, fixture) = crate::support::fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("");
    let _process = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    for command in ["status", "watch", "findings", "history", "balance", "nodes"] {
        let (code, text) = run(&fixture, &["cluster", command]);
        assert_eq!(code, 4, "{command}: {text}");
        assert!(text.contains("no cluster is configured on this node"), "{command}: {text}");
        assert!(text.contains("hint: set `endpoints` in [cluster]"), "{command}: {text}");
    }
}

/// The words that the completion of bash offers for the last of these words.
fn complete(fixture: &NodeFixture, words: &[&str]) -> String {
    // The script of bash calls the program like this.
    let mut command = fixture.command();
    command.env("COMPLETE", "bash").env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9");
    command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    command.env("VIPWATCH_SOCKET", fixture.socket()).env("VIPWATCH_CONFIG", fixture.config());
    let output = command.arg("--").args(words).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_completion_offers_nodes_and_groups_of_the_cluster() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let node = ClusterNode::new(&lab, "net-a", &etcd.endpoints(), "");
    node.netns.ip(ADD);
    let process = node.start();
    node.wait_for_members(&["net-a live primary"]);
    let of_node = ["vipwatch", "cluster", "status", "--node", "ne"];
    let of_group = ["vipwatch", "cluster", "status", "--group", "vrrp"];
    assert_eq!(complete(&node.fixture, &of_node), "net-a");
    assert_eq!(complete(&node.fixture, &of_group), GROUP);
    // Without the node, etcd has the names: that of the configuration, or that of the command line.
    assert!(process.stop().success());
    assert_eq!(complete(&node.fixture, &of_node), "net-a");
    assert_eq!(complete(&node.fixture, &of_group), GROUP);
    node.fixture.configure("");
    assert_eq!(complete(&node.fixture, &of_node), "");
    let url = etcd.endpoint(0);
    let words = [&["vipwatch", "--etcd", &url], &of_node[1..]].concat();
    assert_eq!(complete(&node.fixture, &words), "net-a");
    // bash divides the URL.
    let (host, port) = url.strip_prefix("http://").unwrap().rsplit_once(':').unwrap();
    let host = format!("//{host}");
    let divided = [&["vipwatch", "--etcd", "http", ":", &host, ":", port], &of_node[1..]].concat();
    assert_eq!(complete(&node.fixture, &divided), "net-a");
}

#[test]
fn without_a_node_the_etcd_of_the_configuration_answers_and_the_command_says_so() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let node = ClusterNode::new(&lab, "a", &etcd.endpoints(), "");
    node.netns.ip(ADD);
    let process = node.start();
    node.wait_for_members(&["a live primary"]);
    process.kill();
    let fixture = &node.fixture;
    let config = fixture.config().display().to_string();
    for command in ["status", "findings", "history", "balance", "nodes"] {
        let (_, text) = run(fixture, &["cluster", command]);
        assert!(text.contains("no vipwatch node is listening on"), "{command}: {text}");
        assert!(text.contains("; reading etcd at http://"), "{command}: {text}");
        assert!(text.contains("read from etcd: domain default"), "{command}: {text}");
    }
    let socket = fixture.socket().display().to_string();
    let watch = ClusterWatch::new(
        lab.path(),
        &["cluster", "watch", "--config", &config, "--socket", &socket],
    );
    watch.wait_for_line(&["now", GROUP]);
    etcd.kill(0);
    watch.wait_for_line(&["etcd  stale"]);
    let (code, text) = run(fixture, &["cluster", "status"]);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("reading etcd at") && text.contains("cannot connect to"), "{text}");
}
