// SPDX-License-Identifier: Apache-2.0
//! Nodes with namespaces of their own that reach etcd over a network, and nodes that need a certificate and a password.

use std::path::Path;

use serde_json::Value;
use vipwatch_testkit::authority::ONE_YEAR;
use vipwatch_testkit::{
    Authority, Etcd, EtcdPlace, EtcdProcessOptions, EtcdTls, Lab, NodeFixture, TestNetns, wait_for,
};

use crate::support::{PROGRAM, query_json, role, wait_for_role, write, write_with_mode};

const INSTANCE: &str =
    "[[instance]]\nid = \"VI_1\"\naddresses = [\"192.0.2.80/24 dev eth0\"]\nvrid = 51\n";

/// A host: a namespace with a link to the namespace of etcd, in which its node runs.
struct Host {
    netns: TestNetns,
    fixture: NodeFixture,
}

impl Host {
    fn new(lab: &Lab, hub: &TestNetns, etcd: &Etcd, name: &str, number: u8) -> Self {
        let netns = lab.netns(name);
        netns.add_link("eth0");
        let link = format!("to-{name}");
        hub.ip(&format!("link add {link} type veth peer name up0 netns {}", netns.name()));
        hub.ip(&format!("link set {link} up"));
        hub.ip(&format!("link set {link} master br0"));
        netns.ip(&format!("address add 10.77.0.{number}/24 dev up0"));
        netns.ip("link set up0 up");
        let directory = lab.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let fixture = NodeFixture::new(Path::new(PROGRAM), &directory).on(&netns);
        write(&fixture.keepalived_conf(), "");
        fixture.configure(&format!(
            "[node]\nname = \"{name}\"\n[cluster]\nendpoints = {:?}\nallow_unencrypted = true\nheartbeat = \"1s\"\n\
             lease = \"3s\"\nsettle = \"500ms\"\n{INSTANCE}",
            etcd.endpoints()
        ));
        Self { netns, fixture }
    }
}

fn connection(fixture: &NodeFixture) -> String {
    let status = query_json(fixture, &["cluster", "status"]);
    status["connection"].as_str().unwrap_or_default().to_owned()
}

/// `NODE STATE` of each node in the view.
fn nodes(fixture: &NodeFixture) -> Vec<String> {
    let list = query_json(fixture, &["cluster", "nodes"]);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    items.iter().map(|item| format!("{} {}", text(item, "node"), text(item, "state"))).collect()
}

#[test]
fn a_node_that_is_cut_off_is_lost_for_the_others_and_says_that_its_view_is_old() {
    let lab = Lab::new();
    let hub = lab.netns("hub");
    hub.ip("link add br0 type bridge");
    hub.ip("link set br0 up");
    hub.ip("address add 10.77.0.1/24 dev br0");
    let place = EtcdPlace::in_netns(&hub, "10.77.0.1".parse().unwrap());
    let etcd = Etcd::start(lab.path(), vec![place], EtcdProcessOptions::default());
    let a = Host::new(&lab, &hub, &etcd, "a", 2);
    let b = Host::new(&lab, &hub, &etcd, "b", 3);
    let (_process_a, _process_b) = (a.fixture.start(), b.fixture.start());
    for host in [&a, &b] {
        wait_for("both nodes", || (nodes(&host.fixture) == ["a live", "b live"]).then_some(()));
    }
    hub.ip("link set to-a down");
    wait_for("the loss", || (nodes(&b.fixture) == ["a lost", "b live"]).then_some(()));
    wait_for("the old view", || (connection(&a.fixture) == "stale").then_some(()));
    let status = query_json(&a.fixture, &["cluster", "status"]);
    assert!(status["stale_since"].is_string(), "{status:#}");
    a.netns.ip("address add 192.0.2.80/24 dev eth0");
    wait_for_role(&a.fixture, "VI_1", "primary");
    hub.ip("link set to-a up");
    wait_for("both nodes again", || (nodes(&b.fixture) == ["a live", "b live"]).then_some(()));
    wait_for("the new role", || {
        let groups = query_json(&b.fixture, &["cluster", "status"]);
        (groups["items"][0]["primaries"] == serde_json::json!(["a"])).then_some(())
    });
    wait_for("the connection", || (connection(&a.fixture) == "connected").then_some(()));
}

#[test]
fn a_node_logs_in_once_the_file_with_the_password_is_there() {
    let lab = Lab::new();
    let authority = Authority::new(&lab.path().join("ca"));
    let place = EtcdPlace::loopback();
    let names = [format!("IP:{}", place.address)];
    let server = authority.sign("server", &names, &ONE_YEAR);
    // etcd reads the user of a client from the common name of its certificate, so the tool has another one than the node.
    let client = authority.sign("root", &names, &ONE_YEAR);
    let tls = EtcdTls {
        server,
        ca: authority.file(),
        needs_client_certificate: false,
        client: client.clone(),
    };
    let options = EtcdProcessOptions { tls: Some(tls), ..EtcdProcessOptions::default() };
    let mut etcd = Etcd::start(lab.path(), vec![place], options);
    etcd.enable_login("vipwatch", "secret word", "/vipwatch/");
    let netns = lab.netns("n");
    netns.add_link("eth0");
    let fixture = NodeFixture::new(Path::new(PROGRAM), lab.path());
    write(&fixture.keepalived_conf(), "");
    let password = lab.path().join("password");
    let instance = INSTANCE.replace("vrid", &format!("netns = {:?}\nvrid", netns.name()));
    fixture.configure(&format!(
        "[node]\nname = \"a\"\n[cluster]\nendpoints = {:?}\nca = {:?}\nuser = \"vipwatch\"\npassword = {password:?}\n{instance}",
        etcd.endpoints(),
        authority.file(),
    ));
    let check = fixture.command().args(["config", "check"]).arg(fixture.config()).output().unwrap();
    let check = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.contains("cluster.password") && check.contains("create the file"), "{check}");
    let _node = fixture.start();
    assert_eq!(role(&fixture, "VI_1"), "backup");
    let findings = || fixture.run_text(&["findings"]);
    assert!(findings().contains("node-cluster"), "{}", findings());
    assert_eq!(connection(&fixture), "connecting");
    write_with_mode(&password, "secret word\n", 0o600);
    wait_for("the connection", || (nodes(&fixture) == ["a live"]).then_some(()));
    assert!(!findings().contains("node-cluster"), "{}", findings());
    let text = [fixture.log(), query_json(&fixture, &["config", "show"]).to_string()].concat();
    assert!(!text.contains("secret word"), "{text}");
}
