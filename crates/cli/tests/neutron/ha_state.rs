// SPDX-License-Identifier: Apache-2.0
//! The cluster view against `ha_state` of Neutron's own API server.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::Value;
use vipwatch_testkit::authority::ONE_YEAR;
use vipwatch_testkit::neutron::{KeystoneServer, NeutronServer, NeutronServerOptions};
use vipwatch_testkit::{
    Authority, Etcd, Lab, NodeFixture, NodeProcess, Routers, wait_for, wait_showing,
};

const FINDING: &str = "cluster-neutron-differs";

/// A node with the name `a`, the only one of its cluster and so the reporter, with one router.
struct ReporterLab {
    lab: Lab,
    etcd: Etcd,
    routers: Routers,
    fixture: NodeFixture,
}

impl ReporterLab {
    fn new() -> Self {
        let lab = Lab::new();
        let etcd = Etcd::single(lab.path());
        let prefix = format!("{:08x}-{}", std::process::id(), lab.number());
        let routers = Routers::new(lab.path(), &prefix, 1, 0);
        let fixture = NodeFixture::new(Path::new(env!("CARGO_BIN_EXE_vipwatch")), lab.path());
        std::fs::File::create(fixture.keepalived_conf()).unwrap();
        routers.each[0].take();
        Self { lab, etcd, routers, fixture }
    }

    /// Starts the node, which compares its router with Neutron once a second.
    fn start(&self, neutron: &str) -> NodeProcess {
        let endpoints = self.etcd.endpoints();
        self.fixture.configure(&format!(
            "[node]\nname = \"a\"\n[cluster]\nendpoints = {endpoints:?}\nheartbeat = \"1s\"\nlease = \"3s\"\n\
             [cluster.neutron]\ninterval = \"1s\"\nsettle = \"1s\"\n{neutron}"
        ));
        self.fixture.start()
    }

    fn router(&self) -> &str {
        &self.routers.each[0].id
    }

    fn query(&self, args: &[&str]) -> Value {
        let output = self.fixture.run(&[args, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}\n{}", self.fixture.log()))
    }

    fn neutron(&self) -> Value {
        self.query(&["cluster", "status"])["neutron"].clone()
    }

    /// Waits until the last comparison has one router with this result, and no error.
    fn wait_for_result(&self, result: &str) {
        wait_showing(
            result,
            || format!("{:#}\n{}", self.neutron(), self.fixture.log()),
            || {
                let neutron = self.neutron();
                let is_result = neutron["routers"][result] == 1 && neutron["error"].is_null();
                is_result.then_some(())
            },
        );
    }

    fn wait_for_error(&self, text: &str) {
        wait_showing(
            text,
            || format!("{:#}\n{}", self.neutron(), self.fixture.log()),
            || self.neutron()["error"].as_str()?.contains(text).then_some(()),
        );
        assert!(!self.neutron()["failing_since"].is_null());
    }

    /// The open finding about Neutron.
    fn finding(&self) -> Option<Value> {
        let findings = self.query(&["cluster", "findings"]);
        findings["items"].as_array()?.iter().find(|item| item["name"] == FINDING).cloned()
    }

    /// The value of a metric.
    fn metric(&self, sample: &str) -> Option<f64> {
        let mut command = std::process::Command::new("curl");
        command.args(["-sS", "-H", "accept: text/plain", "--unix-socket"]);
        command.arg(self.fixture.socket()).arg("http://node/metrics");
        let text = vipwatch_testkit::run(&mut command);
        let is_sample =
            |line: &&str| line.strip_prefix(sample).is_some_and(|it| it.starts_with(' '));
        text.lines().find(is_sample)?.rsplit(' ').next()?.parse().ok()
    }
}

fn write_secret(path: &Path, text: &str) {
    let mut options = std::fs::File::options();
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_difference_from_neutron_is_a_finding_until_it_is_over() {
    let lab = ReporterLab::new();
    let mut options = NeutronServerOptions::new();
    let authority = Authority::new(&lab.lab.path().join("authority"));
    let names = [format!("IP:{}", options.address)];
    options.tls = Some(authority.sign("neutron", &names, &ONE_YEAR));
    let directory = lab.lab.path().join("neutron");
    let mut server = NeutronServer::start(&directory, &options);
    let router = lab.router().to_owned();
    server.add_router(&router, &["a", "b"]);
    server.set_state(&router, "a", "active");
    let _node = lab.start(&format!("url = {:?}\nca = {:?}\n", server.url(), authority.file()));
    lab.wait_for_result("equal");
    assert_eq!(lab.finding(), None);

    server.set_state(&router, "a", "standby");
    server.set_state(&router, "b", "active");
    let finding = wait_for("the finding", || lab.finding());
    assert_eq!(finding["group"], format!("router:{router}"));
    assert_eq!(finding["nodes"], serde_json::json!(["a"]), "b is not a node of the cluster");
    assert!(
        finding["text"].as_str().unwrap().ends_with("Neutron's active host is b"),
        "{finding:#}"
    );
    assert_eq!(finding["evidence"][0], "Neutron has b as active");
    assert_eq!(lab.metric("vipwatch_cluster_neutron_routers{result=\"different\"}"), Some(1.0));

    drop(server);
    lab.wait_for_error("does not answer");
    let status = lab.fixture.run_text(&["cluster", "status"]);
    assert!(status.contains("\nNeutron: not reachable since "), "{status}");
    assert!(lab.finding().is_some(), "without an answer nothing is known to have changed");
    let errors = "vipwatch_cluster_neutron_errors_total{kind=\"connection\"}";
    let (compared, failed) = (lab.neutron()["compared"].clone(), lab.metric(errors).unwrap());
    wait_for("more errors", || (lab.metric(errors)? > failed + 1.5).then_some(()));
    assert_eq!(lab.neutron()["compared"], compared, "without an answer nothing is compared");

    let mut server = NeutronServer::start(&directory, &options);
    lab.wait_for_result("different");
    server.set_state(&router, "b", "standby");
    server.set_state(&router, "a", "active");
    wait_for("the end of the finding", || lab.finding().is_none().then_some(()));
    lab.wait_for_result("equal");
    let status = lab.fixture.run_text(&["cluster", "status"]);
    assert!(
        status.contains("\nNeutron: compared ") && status.contains("1 router: 1 equal"),
        "{status}"
    );
}

#[test]
fn hosts_with_other_names_and_unknown_routers_are_not_compared() {
    let lab = ReporterLab::new();
    let options = NeutronServerOptions::new();
    let mut server = NeutronServer::start(&lab.lab.path().join("neutron"), &options);
    let _node = lab.start(&format!("url = {:?}\n", server.url()));
    lab.wait_for_result("not-compared");
    let router = lab.router().to_owned();
    server.add_router(&router, &["a.example.net", "b.example.net"]);
    server.set_state(&router, "b.example.net", "active");
    lab.wait_for_result("unmatched");
    assert_eq!(lab.finding(), None);
}

#[test]
fn keystone_issues_and_replaces_tokens_for_an_application_credential_and_for_a_password() {
    let lab = ReporterLab::new();
    let mut keystone = KeystoneServer::start(&lab.lab.path().join("keystone"));
    let mut options = NeutronServerOptions::new();
    options.keystone = Some(keystone.url.clone());
    let mut server = NeutronServer::start(&lab.lab.path().join("neutron"), &options);
    let router = lab.router().to_owned();
    server.add_router(&router, &["a", "b"]);
    server.set_state(&router, "a", "active");
    let secret = lab.lab.path().join("secret");
    let urls = format!("url = {:?}\nauth_url = {:?}\n", server.url(), keystone.url);

    write_secret(&secret, "wrong\n");
    let id = &keystone.credential_id;
    let credential =
        format!("application_credential_id = {id:?}\napplication_credential_secret = {secret:?}\n");
    let node = lab.start(&format!("{urls}{credential}"));
    lab.wait_for_error("Keystone rejects the login with status 401");
    write_secret(&secret, &keystone.credential_secret);
    lab.wait_for_result("equal");
    let errors = || lab.metric("vipwatch_cluster_neutron_errors_total{kind=\"login\"}").unwrap();
    let failed = errors();
    keystone.replace_keys();
    let compared = || lab.neutron()["compared"].as_str().unwrap_or_default().to_owned();
    let before = compared();
    // The comparison after the next one has begun after the replacement.
    let next = wait_for("a comparison", || Some(compared()).filter(|one| *one != before));
    wait_for("another comparison", || (compared() != next).then_some(()));
    lab.wait_for_result("equal");
    assert!((errors() - failed).abs() < 0.5, "a token that is not valid any more is replaced");
    assert!(!lab.fixture.log().contains(&keystone.credential_secret));
    assert!(node.stop().success());

    write_secret(&secret, "vipwatch-secret");
    let user = format!("user = \"vipwatch\"\npassword = {secret:?}\nproject = \"admin\"\n");
    let _node = lab.start(&format!("{urls}{user}"));
    lab.wait_for_result("equal");
}
