// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster` with real nodes, which share their roles through a real etcd.

use std::path::Path;

use vipwatch_testkit::{Etcd, Lab, NodeFixture, TestNetns, wait_showing};

use crate::cluster_etcd::ClusterWatch;
use crate::support::{PROGRAM, vi_1_conf, wait_for_role, write};

const ADD: &str = "address add 192.0.2.80/24 dev eth0";
const REMOVE: &str = "address del 192.0.2.80/24 dev eth0";

/// A node with one instance, which is in a namespace of its own.
fn cluster_node(lab: &Lab, name: &str, etcd: &Etcd) -> (TestNetns, NodeFixture) {
    let netns = lab.netns(name);
    netns.add_link("eth0");
    let directory = lab.path().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let fixture = NodeFixture::new(Path::new(PROGRAM), &directory);
    write(&fixture.keepalived_conf(), "");
    let instance = format!(
        "[[instance]]\nid = \"VI_1\"\nnetns = \"{}\"\naddresses = [\"192.0.2.80/24 dev eth0\"]\nvrid = 51\n",
        netns.name()
    );
    let endpoints = etcd.endpoints();
    fixture.configure(&format!(
        "[node]\nname = \"{name}\"\n[cluster]\nendpoints = {endpoints:?}\nheartbeat = \"1s\"\nlease = \"3s\"\n{instance}"
    ));
    (netns, fixture)
}

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
    let (netns_a, a) = cluster_node(&lab, "a", &etcd);
    let (netns_b, b) = cluster_node(&lab, "b", &etcd);
    netns_a.ip(ADD);
    let (_process_a, process_b) = (a.start(), b.start());
    wait_for_output(&a, &["cluster", "status", "192.0.2.80"], "one-primary");
    wait_for_output(&a, &["cluster", "nodes"], "b     live");
    let socket = a.socket().display().to_string();
    let watch = ClusterWatch::new(lab.path(), &["cluster", "watch", "--socket", &socket]);
    watch.wait_for_line(&["now", "vrrp:ipv4:51:192.0.2.80", "one-primary: a"]);
    netns_a.ip(REMOVE);
    watch.wait_for_line(&["a/VI_1", "primary → backup"]);
    netns_b.ip(ADD);
    watch.wait_for_line(&["b/VI_1", "backup → primary"]);
    process_b.kill();
    watch.wait_for_line(&["node b", "live → lost"]);
    watch.wait_for_line(&["finding cluster-node-lost"]);
    wait_for_output(&a, &["top", "--once", "--width", "160"], "cluster: 1 group");
}

#[test]
fn a_stale_view_has_its_age_and_no_favourable_exit_code() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let (netns, fixture) = cluster_node(&lab, "a", &etcd);
    netns.ip(ADD);
    let _process = fixture.start();
    wait_for_output(&fixture, &["cluster", "status"], "one-primary");
    let (code, text) = run(&fixture, &["cluster", "status", "--expect", "one-primary"]);
    assert_eq!(code, 0, "{text}");
    etcd.kill(0);
    wait_for_output(&fixture, &["cluster", "status"], "stale since ");
    let (code, text) = run(&fixture, &["cluster", "status", "--expect", "one-primary"]);
    assert_eq!(code, 5, "{text}");
    assert!(text.starts_with("stale since ") && text.contains("one-primary"), "{text}");
    let (code, text) = run(&fixture, &["cluster", "nodes", "--expect", "live", "-q"]);
    assert_eq!(code, 5, "{text}");
    let (code, text) = run(&fixture, &["cluster", "findings", "-q"]);
    assert_eq!(code, 5, "{text}");
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

#[test]
fn the_completion_offers_nodes_and_groups_of_the_cluster() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let (netns, fixture) = cluster_node(&lab, "net-a", &etcd);
    netns.ip(ADD);
    let _process = fixture.start();
    wait_for_output(&fixture, &["cluster", "status"], "one-primary");
    // The script of bash calls the program like this.
    let complete = |words: &[&str]| {
        let mut command = fixture.command();
        command.env("COMPLETE", "bash").env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9");
        command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("VIPWATCH_SOCKET", fixture.socket()).arg("--").args(words);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(complete(&["vipwatch", "cluster", "status", "--node", "ne"]).trim(), "net-a");
    let groups = complete(&["vipwatch", "cluster", "status", "--group", "vrrp"]);
    assert_eq!(groups.trim(), "vrrp:ipv4:51:192.0.2.80");
}
