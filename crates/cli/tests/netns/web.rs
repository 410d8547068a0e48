// SPDX-License-Identifier: Apache-2.0
//! The API over TCP on a loopback address, with real curl.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use vipwatch_api::{HealthDocument, NodeStatus, SilenceList};
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::curl::{CurlAnswer, get, parse_answer};
use crate::support::{ADD_VIP, fixture_with, vi_1_conf};

fn node_with_web(lab: &Lab, more: &str) -> (TestNetns, NodeFixture) {
    let (netns, fixture) = fixture_with(lab, &[vi_1_conf()]);
    fixture.configure(&format!("[web]\nlisten = [\"127.0.0.1:0\", \"[::1]:0\"]\n{more}"));
    (netns, fixture)
}

/// The addresses on which the node listens, from its log.
pub(crate) fn addresses(fixture: &NodeFixture) -> Vec<SocketAddr> {
    // A later line of the same log.
    fixture.wait_for_log("node is ready");
    let log = fixture.log();
    let lines = log.lines().filter(|line| line.contains("web server listens"));
    let words = lines.filter_map(|line| line.split("address=").nth(1)?.split_whitespace().next());
    words.map(|word| word.trim_matches('"').parse().unwrap()).collect()
}

fn curl(address: SocketAddr, args: &[&str], path: &str) -> CurlAnswer {
    let mut command = Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "30", "--globoff", "--path-as-is"]);
    command.args(args).arg(format!("http://{address}{path}"));
    let output = output_of(&mut command);
    parse_answer(&output.stdout).unwrap_or_else(|| panic!("curl {args:?} {path}: {output:?}"))
}

#[test]
fn the_routes_are_readable_over_tcp_and_nothing_can_be_changed() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_web(&lab, "");
    let _node = fixture.start();
    let addresses = addresses(&fixture);
    assert_eq!(addresses.len(), 2, "{}", fixture.log());
    netns.ip(ADD_VIP);
    for address in addresses {
        wait_for("the primary", || {
            let status: NodeStatus = curl(address, &[], "/v1/status").document();
            (status.roles.primary == 1).then_some(())
        });
        assert_eq!(curl(address, &["--head"], "/v1/instances").status, 200);
        assert_eq!(curl(address, &[], "/v1/unknown").problem(), (404, "unknown-route"));
        let silence = ["-X", "POST", "-H", "content-type: application/json", "-d", "{}"];
        for (args, path) in [
            (&silence[..], "/v1/silences"),
            (&["-X", "DELETE"], "/v1/silences/1"),
            (&["-X", "POST"], "/v1/audit"),
            (&["-X", "OPTIONS"], "/v1/status"),
            (&["-X", "PUT"], "/unknown"),
        ] {
            let answer = curl(address, args, path);
            assert_eq!(answer.problem(), (405, "read-only"), "{args:?}");
            assert!(answer.headers.contains("allow: GET,HEAD"), "{}", answer.headers);
        }
    }
    assert!(get::<SilenceList>(&fixture, "/v1/silences").items.is_empty());
}

#[test]
fn a_page_with_a_name_that_was_rebound_to_this_machine_cannot_read() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_web(&lab, "hosts = [\"node1.example\"]\n");
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    // The resolver of the victim answers with this machine's address, as an attacker's name server does.
    let rebound = |name: &str| {
        let mut command = Command::new("curl");
        let resolve = format!("{name}:{}:127.0.0.1", address.port());
        command.args(["-sS", "-i", "--max-time", "30", "--resolve", &resolve]);
        command.arg(format!("http://{name}:{}/v1/status", address.port()));
        parse_answer(&output_of(&mut command).stdout).unwrap()
    };
    let refused = rebound("attacker.example");
    assert_eq!(refused.problem(), (421, "unknown-host"));
    assert!(!refused.body.contains("instances"), "{refused:?}");
    assert_eq!(rebound("node1.example").status, 200);
    assert_eq!(rebound("localhost").status, 200);
}

#[test]
fn a_page_of_another_server_cannot_read_and_every_answer_has_the_headers_for_that() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_web(&lab, "");
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let own = format!("origin: http://{address}");
    let foreign = (403, "foreign-origin");
    for path in ["/v1/status", "/v1/events", "/healthz", "/unknown"] {
        for header in ["origin: http://other.example", "origin: null", "sec-fetch-site: cross-site"]
        {
            assert_eq!(curl(address, &["-H", header], path).problem(), foreign, "{header} {path}");
        }
    }
    let answers = [
        curl(address, &["-H", &own], "/v1/status"),
        curl(address, &["-H", "origin: null"], "/v1/status"),
        curl(address, &[], "/unknown"),
        curl(address, &["-X", "OPTIONS", "-H", "origin: null"], "/v1/status"),
    ];
    assert_eq!(answers[0].status, 200);
    for answer in answers {
        let has = |header: &str| answer.headers.lines().any(|line| line.starts_with(header));
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
            "cross-origin-opener-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(has(header), "{header}: {}", answer.headers);
        }
        assert!(!has("access-control"), "{}", answer.headers);
    }
}

#[test]
fn slow_clients_on_tcp_delay_no_other_client() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_web(&lab, "");
    let _node = fixture.start();
    let address = addresses(&fixture)[0];
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let mut half = open(b"GET /healthz HTTP/1.1\r\nho");
    let idle: Vec<TcpStream> = (0..200).map(|_| open(b"")).collect();
    assert_eq!(curl(address, &[], "/healthz").document::<HealthDocument>().status, "ok");
    let status: NodeStatus = get(&fixture, "/v1/status");
    assert!(status.metrics["vipwatch_web_connections"] <= 64, "{status:?}");
    assert_eq!(status.metrics["vipwatch_api_connections"], 1, "the unix socket has its own places");
    let mut answer = Vec::new();
    half.read_to_end(&mut answer).unwrap();
    assert_eq!(parse_answer(&answer).unwrap().problem(), (408, "request-timeout"));
    drop(idle);
    let large = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let mut answer = Vec::new();
    open(large.as_bytes()).read_to_end(&mut answer).unwrap();
    assert_eq!(parse_answer(&answer).unwrap().problem(), (413, "too-large"));
}

#[test]
fn a_node_that_cannot_listen_does_not_start_and_says_why() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    fixture.configure(&format!("[web]\nlisten = \"{address}\"\n"));
    let output = output_of(&mut fixture.node_command());
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("cannot listen on {address}")), "{printed}");
    assert!(printed.contains("hint: another process uses the port"), "{printed}");
}

#[test]
fn a_change_of_the_address_needs_a_restart_and_the_log_says_so() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_web(&lab, "");
    let node = fixture.start();
    let address = addresses(&fixture)[0];
    fixture.configure("[web]\nlisten = []\n");
    node.reload();
    fixture.wait_for_log("this setting changes only after a restart");
    let line = fixture.log().lines().find(|line| line.contains("key=\"web.listen\"")).is_some();
    assert!(line, "{}", fixture.log());
    assert_eq!(curl(address, &[], "/healthz").status, 200);
}
