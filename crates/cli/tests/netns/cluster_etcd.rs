// SPDX-License-Identifier: Apache-2.0
//! `vipwatch --etcd URL cluster`: real etcd, records as nodes write them, and no node.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use serde_json::Value;
use vipwatch_api::{RoleKind, Severity, Timestamp};
use vipwatch_cluster::key::{Bucket, ClusterKey, ClusterName, KeySpace, RoleKey};
use vipwatch_cluster::record::{
    Confidence, FORMAT, FindingRecord, MemberRecord, MemberState, NodeRecord, ReceivedAdverts,
    RoleRecord, encode,
};
use vipwatch_testkit::authority::ONE_YEAR;
use vipwatch_testkit::{
    Authority, Etcd, EtcdPlace, EtcdProcessOptions, EtcdTls, Lab, wait_showing,
};

use crate::support::{PROGRAM, read, write_with_mode};

/// Writes records as the nodes of one domain do.
struct Publisher<'a> {
    etcd: &'a Etcd,
    keys: KeySpace,
}

impl<'a> Publisher<'a> {
    fn new(etcd: &'a Etcd, domain: &str) -> Self {
        Self { etcd, keys: KeySpace::new(&domain.parse().unwrap()) }
    }

    fn put(&self, key: &ClusterKey, value: &[u8]) {
        let value = String::from_utf8(value.to_vec()).unwrap();
        self.etcd.ctl(&["put", &self.keys.text(key), &value]);
    }

    fn delete(&self, key: &ClusterKey) {
        self.etcd.ctl(&["del", &self.keys.text(key)]);
    }

    /// A live node, which has confirmed its roles.
    fn node(&self, name: &str) {
        self.node_at(name, i64::MAX);
    }

    /// A live node that has confirmed its roles at revision `seen`.
    fn node_at(&self, name: &str, seen: i64) {
        let at = Timestamp::now();
        let node = NodeRecord {
            schema: FORMAT,
            node: name.to_owned(),
            epoch: "5f3a9c21".to_owned(),
            process: "p".to_owned(),
            version: "0.1.0".to_owned(),
            heartbeat: 1,
            seen,
            seq: 1,
            instances: 1,
            at,
            started: at,
            heartbeat_ms: 5000,
            lease_s: 15,
            notifies: true,
        };
        let member = MemberRecord {
            schema: FORMAT,
            node: name.to_owned(),
            epoch: node.epoch.clone(),
            state: MemberState::Running,
            lease: 0,
            at,
        };
        let name: ClusterName = name.parse().unwrap();
        self.put(&ClusterKey::Member(name.clone()), &encode(&member));
        self.put(&ClusterKey::Node(name), &encode(&node));
    }

    /// The role of VRID 51 on a node.
    fn role(&self, node: &str, role: RoleKind, priority: u8) {
        let record = RoleRecord {
            schema: FORMAT,
            node: node.to_owned(),
            instance: "VI_1".to_owned(),
            name: "VI_1".to_owned(),
            epoch: "5f3a9c21".to_owned(),
            seq: 1,
            role,
            reason: None,
            since: Some(Timestamp::now()),
            cause: Some("peer-silent".to_owned()),
            origin: "keepalived".to_owned(),
            netns: None,
            interface: "eth0".to_owned(),
            vrid: Some(51),
            priority: Some(priority),
            advert_ms: Some(1000),
            vrrp_version: Some(2),
            addresses: vec!["192.0.2.10/24".parse().unwrap()],
            adverts: ReceivedAdverts::Unknown,
            keepalived: Some(true),
            source: None,
            sync_group: None,
            findings: Vec::new(),
            recent: Vec::new(),
        };
        let bucket = Bucket::Vrrp { is_ipv6: false, vrid: Some(51) };
        let (node, instance) = (node.parse().unwrap(), "VI_1".parse().unwrap());
        self.put(&ClusterKey::Role(RoleKey { bucket, node, instance }), &encode(&record));
    }

    /// An open finding about VRID 51.
    fn finding(&self) {
        let at = Timestamp::now();
        let record = FindingRecord {
            schema: FORMAT,
            id: "7-cluster-two-primaries".to_owned(),
            name: "cluster-two-primaries".to_owned(),
            severity: Severity::Critical,
            confidence: Confidence::Certain,
            group: Some("vrrp:ipv4:51:192.0.2.10".to_owned()),
            nodes: vec!["net-1".to_owned(), "net-2".to_owned()],
            text: "net-1 and net-2 hold 192.0.2.10".to_owned(),
            hint: "look at both nodes".to_owned(),
            evidence: vec!["net-1 is primary".to_owned()],
            opened: at,
            changed: at,
            closed: None,
            reporter: "net-1".to_owned(),
            notified_open: Vec::new(),
            notified_closed: Vec::new(),
            silenced: None,
            part_of: None,
            about: Vec::new(),
        };
        self.put(&Self::finding_key(), &encode(&record));
    }

    fn finding_key() -> ClusterKey {
        ClusterKey::Finding("7-cluster-two-primaries".parse().unwrap())
    }
}

/// A command that has no node: its configuration and socket do not exist.
fn vipwatch(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).env("VIPWATCH_SOCKET", "/nonexistent/node.sock");
    command
}

/// The exit code and all output.
fn run(args: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = vipwatch(args).output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// The JSON of a command of the cluster.
fn json(etcd: &str, args: &[&str]) -> Value {
    let output = vipwatch(&[&["--etcd", etcd, "cluster"], args, &["-o", "json"]].concat()).output();
    let output = output.unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A running `cluster watch`, which writes its output to a file. It is killed when this value is dropped.
pub(crate) struct ClusterWatch {
    child: Child,
    output: PathBuf,
}

impl ClusterWatch {
    pub(crate) fn new(directory: &Path, args: &[&str]) -> Self {
        let output = directory.join("watch-output");
        let mut command = vipwatch(args);
        command
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(directory.join("watch-errors")).unwrap());
        Self { child: command.spawn().unwrap(), output }
    }

    /// Waits until a line contains all these texts.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, parts: &[&str]) {
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        wait_showing(
            &parts.join(" "),
            || read(&self.output),
            || read(&self.output).lines().any(has).then_some(()),
        );
    }
}

impl Drop for ClusterWatch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_laptop_with_the_address_of_etcd_sees_nodes_groups_findings_and_balance() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let publisher = Publisher::new(&etcd, "default");
    publisher.node("net-1");
    publisher.node("net-2");
    publisher.role("net-1", RoleKind::Primary, 100);
    publisher.role("net-2", RoleKind::Primary, 50);
    publisher.finding();
    let url = etcd.endpoint(0);

    let status = json(&url, &["status", "192.0.2.10"]);
    assert_eq!(status["items"][0]["state"], "two-primaries", "{status}");
    assert_eq!(status["items"][0]["primaries"], serde_json::json!(["net-1", "net-2"]));
    assert_eq!(
        (&status["source"], &status["scope"], &status["connection"]),
        (&"etcd".into(), &"full".into(), &"connected".into())
    );
    assert_eq!(json(&url, &["nodes"])["items"].as_array().unwrap().len(), 2);
    assert_eq!(json(&url, &["findings"])["items"][0]["name"], "cluster-two-primaries");
    assert_eq!(json(&url, &["balance"])["mean"], 1.0);
    assert_eq!(json(&url, &["history"])["items"][0]["kind"], "finding-opened");

    let (code, text) = run(&["--etcd", &url, "cluster", "status", "--expect", "one-primary"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("1 of 1 are not one-primary"), "{text}");
    let (code, text) = run(&["cluster", "--etcd", &url, "findings", "-q"]);
    assert_eq!(code, 1, "{text}");
    publisher.role("net-2", RoleKind::Backup, 50);
    let (code, text) = run(&["cluster", "status", "--etcd", &url, "--expect", "one-primary"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = run(&["cluster", "status", "--etcd", &url, "--address", "192.0.2.99"]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("no group has the address 192.0.2.99"), "{text}");
}

#[test]
fn a_watch_prints_changes_of_roles_nodes_and_findings_and_survives_a_restart_of_etcd() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let publisher = Publisher::new(&etcd, "default");
    publisher.node("net-1");
    publisher.node("net-2");
    publisher.role("net-1", RoleKind::Primary, 100);
    publisher.role("net-2", RoleKind::Backup, 50);
    let url = etcd.endpoint(0);
    let watch = ClusterWatch::new(lab.path(), &["cluster", "watch", "--etcd", &url]);
    watch.wait_for_line(&["now", "vrrp:ipv4:51:192.0.2.10", "one-primary: net-1"]);

    publisher.role("net-2", RoleKind::Primary, 50);
    watch.wait_for_line(&["net-2/VI_1", "backup → primary", "[two-primaries: net-1, net-2]"]);
    publisher.finding();
    watch.wait_for_line(&["finding cluster-two-primaries: net-1 and net-2 hold", "(critical)"]);
    publisher.role("net-1", RoleKind::Backup, 100);
    publisher.delete(&Publisher::finding_key());
    watch.wait_for_line(&["net-1/VI_1", "primary → backup"]);
    watch.wait_for_line(&["finding cluster-two-primaries has ended"]);
    publisher.delete(&ClusterKey::Node("net-1".parse().unwrap()));
    watch.wait_for_line(&["node net-1", "live → lost"]);

    etcd.kill(0);
    watch.wait_for_line(&["etcd  stale"]);
    etcd.restart(0);
    watch.wait_for_line(&["etcd  connected"]);
    Publisher::new(&etcd, "default").node("net-1");
    watch.wait_for_line(&["node net-1", "lost → live"]);
}

#[test]
fn a_silence_is_added_listed_and_removed_from_a_laptop() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let publisher = Publisher::new(&etcd, "default");
    publisher.node("net-1");
    publisher.role("net-1", RoleKind::Primary, 100);
    let url = etcd.endpoint(0);
    let silence = |args: &[&str]| run(&[&["--etcd", &url, "cluster", "silence"], args].concat());
    let (code, text) = silence(&["net-1", "--for", "1h", "--reason", "kernel update"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(": node net-1 until"), "{text}");
    let (code, text) = silence(&["192.0.2.10", "--for", "2h", "--reason", "new switch"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(": vrrp:ipv4:51:192.0.2.10 until"), "{text}");
    let (_, text) = silence(&["list"]);
    assert!(text.contains("kernel update") && text.contains("new switch"), "{text}");
    let status = json(&url, &["status"]);
    let silences = status["silences"].as_array().unwrap();
    assert_eq!((silences.len(), &silences[0]["node"]), (2, &"net-1".into()), "{status}");
    let id = silences[0]["id"].as_str().unwrap();
    let (code, text) = silence(&["remove", id]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(json(&url, &["status"])["silences"].as_array().unwrap().len(), 1);
    let (code, text) = silence(&["remove", id]);
    assert_eq!((code, text.contains("there is no silence")), (4, true), "{text}");
    let (code, text) = silence(&["net-9", "--for", "1h", "--reason", "x"]);
    assert_eq!(code, 4, "{text}");
    for wrong in
        [["net-1", "--for", "31d", "--reason", "x"], ["net-1", "--for", "1h", "--reason", " "]]
    {
        let (code, text) = silence(&wrong);
        assert_eq!(code, 2, "{text}");
    }
}

#[test]
fn an_empty_domain_lists_the_domains_that_exist() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let url = etcd.endpoint(0);
    let (code, text) = run(&["--etcd", &url, "cluster", "status"]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("no node has published in the domain default"), "{text}");
    assert!(text.contains("hint: there is no other domain either"), "{text}");
    Publisher::new(&etcd, "prod").node("net-1");
    Publisher::new(&etcd, "prod").node("net-2");
    Publisher::new(&etcd, "test").node("net-1");
    let (code, text) = run(&["--etcd", &url, "cluster", "status"]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("there are: prod, test"), "{text}");
    let (code, text) = run(&["--etcd", &url, "--domain", "prod", "cluster", "nodes"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn without_a_node_and_without_an_address_the_hint_names_both() {
    for command in ["status", "watch", "findings", "history", "balance", "nodes"] {
        let (code, text) = run(&["cluster", command]);
        assert_eq!(code, 6, "{command}: {text}");
        assert!(text.contains("no vipwatch node is listening"), "{command}: {text}");
        assert!(text.contains("or the address of etcd with --etcd"), "{command}: {text}");
    }
}

#[test]
fn a_status_names_the_nodes_with_claims_that_are_not_confirmed() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let publisher = Publisher::new(&etcd, "default");
    publisher.node("net-1");
    publisher.node_at("net-2", 0);
    publisher.role("net-1", RoleKind::Primary, 100);
    publisher.role("net-2", RoleKind::Primary, 50);
    let status = json(&etcd.endpoint(0), &["status"]);
    assert_eq!(status["items"][0]["state"], "unknown", "{status}");
    let sentences = status["unknown"].to_string();
    assert!(sentences.contains("has the claims of net-1 and net-2, and not all"), "{sentences}");
}

#[test]
fn an_unknown_node_and_options_without_an_address_are_errors() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    Publisher::new(&etcd, "default").node("net-1");
    let url = etcd.endpoint(0);
    for command in ["status", "watch", "findings", "history"] {
        let (code, text) = run(&["--etcd", &url, "cluster", command, "--node", "net-9"]);
        assert_eq!(code, 4, "{command}: {text}");
        assert!(text.contains("there is no node \"net-9\" in the cluster"), "{command}: {text}");
    }
    let (code, text) = run(&["cluster", "status", "--domain", "prod"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("need --etcd"), "{text}");
}

#[test]
fn an_unreachable_etcd_is_an_error_and_the_next_address_is_tried() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    Publisher::new(&etcd, "default").node("net-1");
    let (code, text) = run(&["--etcd", "http://127.0.0.1:9", "cluster", "status"]);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("cannot connect to http://127.0.0.1:9"), "{text}");
    assert!(text.contains("hint: check that etcd runs there"), "{text}");
    let both = format!("http://127.0.0.1:9,{}", etcd.endpoint(0));
    let (code, text) = run(&["--etcd", &both, "cluster", "nodes"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_wrong_authority_and_a_wrong_password_are_errors_with_hints() {
    let lab = Lab::new();
    let authority = Authority::new(&lab.path().join("ca"));
    let place = EtcdPlace::loopback();
    let names = [format!("IP:{}", place.address)];
    let server = authority.sign("server", &names, &ONE_YEAR);
    let client = authority.sign("client", &names, &ONE_YEAR);
    let ca = authority.file();
    let tls = EtcdTls { server, ca: ca.clone(), needs_client_certificate: false, client };
    let options = EtcdProcessOptions { tls: Some(tls), ..EtcdProcessOptions::default() };
    let mut etcd = Etcd::start(lab.path(), vec![place], options);
    Publisher::new(&etcd, "default").node("net-1");
    etcd.enable_login("reader", "right", "/vipwatch/v1/default/");
    let (url, ca) = (etcd.endpoint(0), ca.display().to_string());

    let other = Authority::new(&lab.path().join("other")).file().display().to_string();
    let (code, text) = run(&["--etcd", &url, "--etcd-ca", &other, "cluster", "nodes"]);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("TLS failed") && text.contains("hint: check --etcd-ca"), "{text}");

    let file = lab.path().join("password").display().to_string();
    let login =
        ["--etcd", &url, "--etcd-ca", &ca, "--etcd-user", "reader", "--etcd-password-file", &file];
    let nodes = |password: &str, domain: &str| {
        write_with_mode(Path::new(&file), password, 0o600);
        run(&[&login[..], &["--domain", domain, "cluster", "nodes"]].concat())
    };
    let (code, text) = nodes("wrong\n", "default");
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("rejects the login"), "{text}");
    assert!(text.contains("hint: check --etcd-user and --etcd-password-file"), "{text}");
    let (code, text) = nodes("right\n", "default");
    assert_eq!(code, 0, "{text}");
    let (code, text) = nodes("right\n", "other");
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("read /vipwatch/v1/other/"), "{text}");
}
