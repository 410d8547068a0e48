// SPDX-License-Identifier: Apache-2.0
//! Nodes that share their roles through a real etcd. Each node is a process of its own, with an instance in a namespace of
//! its own.

use serde_json::Value;
use vipwatch_testkit::{Etcd, Lab, wait_for, wait_showing};

use crate::cluster_node::{ADD, ClusterNode, GROUP, REMOVE};
use crate::http_server::HttpServer;
use crate::support::query_json;

#[test]
fn two_nodes_see_the_role_of_each_other_and_each_change_of_it() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), ""));
    a.netns.ip(ADD);
    let (_process_a, _process_b) = (a.start(), b.start());
    for node in [&a, &b] {
        node.wait_for_members(&["a live primary", "b live backup"]);
    }
    a.netns.ip(REMOVE);
    b.netns.ip(ADD);
    for node in [&a, &b] {
        node.wait_for_members(&["a live backup", "b live primary"]);
    }
    let history = query_json(&a.fixture, &["cluster", "history"]);
    let transitions = history["items"].as_array().unwrap().iter();
    let of_b: Vec<&Value> = transitions.filter(|item| item["node"] == "b").collect();
    assert!(of_b.iter().any(|item| item["to"] == "primary"), "{history:#}");
}

#[test]
fn a_killed_node_is_lost_and_a_stopped_one_is_not() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b, c] = ["a", "b", "c"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), ""));
    a.netns.ip(ADD);
    let (process_a, _process_b, process_c) = (a.start(), b.start(), c.start());
    b.wait_for_members(&["a live primary", "b live backup", "c live backup"]);
    assert!(process_c.stop().success());
    b.wait_for_members(&["a live primary", "b live backup", "c stopped backup"]);
    process_a.kill();
    b.wait_for_members(&["a lost primary", "b live backup", "c stopped backup"]);
    b.wait_for_finding("cluster-node-lost");
    let findings = query_json(&b.fixture, &["cluster", "findings"]);
    let lost = findings["items"].as_array().unwrap().iter();
    let lost: Vec<&Value> = lost.filter(|item| item["name"] == "cluster-node-lost").collect();
    assert_eq!(lost.len(), 1, "{findings:#}");
    assert_eq!(lost[0]["nodes"], serde_json::json!(["a"]));
    let _process_a = a.start();
    b.wait_for_members(&["a live primary", "b live backup", "c stopped backup"]);
    wait_for("the end of the finding", || {
        (!b.findings().iter().any(|name| name == "cluster-node-lost")).then_some(())
    });
}

#[test]
fn a_node_works_on_without_etcd_and_catches_up_when_etcd_is_back() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), ""));
    a.netns.ip(ADD);
    let (_process_a, _process_b) = (a.start(), b.start());
    b.wait_for_members(&["a live primary", "b live backup"]);
    etcd.kill(0);
    wait_for("an old view", || (b.connection() == "stale").then_some(()));
    let doctor = || b.fixture.run_text(&["doctor"]);
    wait_for("the finding", || doctor().contains("node-cluster").then_some(()));
    a.netns.ip(REMOVE);
    b.netns.ip(ADD);
    crate::support::wait_for_role(&b.fixture, "VI_1", "primary");
    crate::support::wait_for_role(&a.fixture, "VI_1", "backup");
    b.wait_for_members(&["a live primary", "b live backup"]);
    etcd.restart(0);
    for node in [&a, &b] {
        node.wait_for_members(&["a live backup", "b live primary"]);
        assert_eq!(node.connection(), "connected");
    }
    wait_for("the end of the finding", || (!doctor().contains("node-cluster")).then_some(()));
}

#[test]
fn two_primaries_are_reported_once_to_a_webhook_of_the_cluster() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let server = HttpServer::new(&[503]);
    let webhook = webhook("operations", &server);
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), &webhook));
    a.netns.ip(ADD);
    let (_process_a, _process_b) = (a.start(), b.start());
    b.wait_for_members(&["a live primary", "b live backup"]);
    b.netns.ip(ADD);
    for node in [&a, &b] {
        node.wait_for_finding("cluster-two-primaries");
    }
    let bodies = || -> Vec<Value> {
        let bodies = server.accepted_bodies().into_iter();
        bodies.filter(|body| body["finding"]["name"] == "cluster-two-primaries").collect()
    };
    wait_for("the notification", || (!bodies().is_empty()).then_some(()));
    wait_for("the record of the delivery", || {
        let findings = query_json(&a.fixture, &["cluster", "findings"]);
        (findings["items"][0]["delivered"] == serde_json::json!(["operations"])).then_some(())
    });
    let doctor = a.fixture.run_text(&["findings"]);
    assert!(doctor.contains("cluster-two-primaries"), "{doctor}");
    b.netns.ip(REMOVE);
    wait_for("the end of the finding", || (bodies().len() == 2).then_some(()));
    let bodies = bodies();
    let states: Vec<&Value> = bodies.iter().map(|body| &body["state"]).collect();
    assert_eq!(states, ["open", "closed"], "each is delivered once: {bodies:#?}");
    assert_eq!(bodies[0]["scope"], "cluster");
    assert_eq!(bodies[0]["cluster"]["group"], GROUP);
    assert_eq!(bodies[0]["cluster"]["nodes"], serde_json::json!(["a", "b"]));
}

#[test]
fn a_node_without_instances_reports_if_only_it_has_a_target() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let server = HttpServer::new(&[]);
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), ""));
    let c = ClusterNode::new(&lab, "c", &etcd.endpoints(), "");
    let (config, _instance) = c.config.split_once("[[instance]]").unwrap();
    c.fixture.configure(&format!("{config}{}", webhook("operations", &server)));
    for node in [&a, &b] {
        node.netns.ip(ADD);
    }
    let (_process_a, _process_b) = (a.start(), b.start());
    a.wait_for_finding("cluster-two-primaries");
    let _process_c = c.start();
    let is_open = |body: &Value| body["finding"]["name"] == "cluster-two-primaries";
    wait_showing(
        "the notification",
        || c.fixture.log(),
        || server.accepted_bodies().iter().any(is_open).then_some(()),
    );
}

#[test]
fn a_silence_of_the_reporter_withholds_no_finding_about_other_nodes() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let server = HttpServer::new(&[]);
    let webhook = webhook("operations", &server);
    let nodes =
        ["a", "b", "c"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), &webhook));
    let [a, b, c] = &nodes;
    let _process_c = c.start();
    wait_for("the reporter", || {
        (metric(c, "vipwatch_cluster_reporter") == Some(1.0)).then_some(())
    });
    c.fixture.run_text(&["silence", "--all", "--for", "1h", "--reason", "reboot"]);
    wait_for("the silence in etcd", || (etcd.entries(SILENCES).len() == 1).then_some(()));
    a.netns.ip(ADD);
    let (_process_a, _process_b) = (a.start(), b.start());
    b.wait_for_members(&["a live primary", "b live backup", "c live backup"]);
    b.netns.ip(ADD);
    wait_showing(
        "the notification",
        || c.fixture.log(),
        || server.accepted_bodies().iter().any(is_split).then_some(()),
    );
    assert_eq!(metric(c, "vipwatch_cluster_reporter"), Some(1.0));
}

#[test]
fn a_silence_that_is_added_without_etcd_holds_here_and_is_published_later() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let server = HttpServer::new(&[]);
    let url = &server.url;
    let target =
        format!("[[notify]]\n[[notify.webhook]]\nname = \"operations\"\nurl = \"{url}\"\n");
    let a = ClusterNode::new(&lab, "a", &etcd.endpoints(), &target);
    let _process = a.start();
    a.wait_for_members(&["a live backup"]);
    etcd.kill(0);
    wait_for("an old view", || (a.connection() == "stale").then_some(()));
    a.fixture.run_text(&["silence", "--all", "--for", "1h", "--reason", "reboot"]);
    let is_primary = |body: &Value| body["to"] == "primary";
    a.netns.ip(ADD);
    crate::support::wait_for_role(&a.fixture, "VI_1", "primary");
    etcd.restart(0);
    wait_for("the silence in etcd", || {
        etcd.entries(SILENCES).iter().any(|(key, _)| key.ends_with("/a.1")).then_some(())
    });
    assert!(!server.accepted_bodies().iter().any(is_primary), "{:#?}", server.accepted_bodies());
    a.fixture.run_text(&["silence", "remove", "1"]);
    wait_for("the role after it", || server.accepted_bodies().iter().any(is_primary).then_some(()));
    wait_for("its end in etcd", || etcd.entries(SILENCES).is_empty().then_some(()));
}

#[test]
fn a_silence_from_elsewhere_is_logged_and_listed_on_the_node_that_it_mutes() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = ClusterNode::new(&lab, "a", &etcd.endpoints(), "");
    let _process = a.start();
    a.wait_for_members(&["a live backup"]);
    let silence = |args: &[&str]| a.fixture.run_text(&[&["cluster", "silence"], args].concat());
    silence(&["a", "--for", "1h", "--reason", "x\u{202e}y"]);
    let listed = || {
        let list = query_json(&a.fixture, &["silence", "list"]);
        list["items"][0]["cluster_id"].as_str().unwrap_or_default().to_owned()
    };
    wait_showing("the silence", listed, || listed().starts_with("cli.").then_some(()));
    assert_eq!(metric(&a, "vipwatch_silences"), Some(1.0));
    assert!(a.fixture.run_text(&["silence", "list"]).contains("x\\u{202e}y"));
    silence(&["remove", &listed()]);
    wait_for("its end", || listed().is_empty().then_some(()));
    for event in ["silence of the cluster began", "silence of the cluster ended"] {
        a.fixture.wait_for_log(event);
        let log = a.fixture.log();
        let line = log.lines().find(|line| line.contains(event)).unwrap();
        assert!(line.contains("cli.") && line.contains("x\\u{202e}y"), "{line}");
    }
}

const SILENCES: &str = "/vipwatch/v1/default/silence/";

/// Whether the notification is about two primaries.
fn is_split(body: &Value) -> bool {
    body["finding"]["name"] == "cluster-two-primaries" && body["state"] == "open"
}

/// A webhook for findings.
fn webhook(name: &str, server: &HttpServer) -> String {
    let url = &server.url;
    format!(
        "[[notify]]\n[[notify.webhook]]\nname = \"{name}\"\nurl = \"{url}\"\non = [\"finding\"]\n"
    )
}

#[test]
fn a_target_that_a_reload_adds_receives_the_open_findings_of_the_cluster() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let (first, second) = (HttpServer::new(&[]), HttpServer::new(&[]));
    let before = webhook("first", &first);
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), &before));
    a.netns.ip(ADD);
    let processes = [a.start(), b.start()];
    b.wait_for_members(&["a live primary", "b live backup"]);
    b.netns.ip(ADD);
    let states = |server: &HttpServer| -> Vec<String> {
        let bodies = server.accepted_bodies().into_iter();
        let bodies = bodies.filter(|body| body["finding"]["name"] == "cluster-two-primaries");
        bodies.filter_map(|body| Some(body["state"].as_str()?.to_owned())).collect()
    };
    wait_for("the first notification", || (states(&first) == ["open"]).then_some(()));
    let after = webhook("second", &second);
    for (node, process) in [&a, &b].into_iter().zip(&processes) {
        node.fixture.configure(&format!("{}{before}{after}", node.config));
        process.reload();
    }
    wait_for("the notification of the new target", || (states(&second) == ["open"]).then_some(()));
    b.netns.ip(REMOVE);
    for server in [&first, &second] {
        wait_for("the end", || (states(server) == ["open", "closed"]).then_some(()));
    }
}

/// The value of a metric of a node.
fn metric(node: &ClusterNode, sample: &str) -> Option<f64> {
    let answer = crate::curl::curl(&node.fixture, &["-H", "accept: text/plain"], "/metrics");
    let line = answer
        .body
        .lines()
        .find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')));
    line?.rsplit(' ').next()?.parse().ok()
}

#[test]
fn another_node_reports_after_the_loss_of_the_reporter_without_a_second_notification() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let server = HttpServer::new(&[]);
    let webhook = webhook("operations", &server);
    let nodes =
        ["a", "b", "c"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), &webhook));
    let [a, b, c] = &nodes;
    a.netns.ip(ADD);
    // The first node that starts becomes the reporter.
    let process_c = c.start();
    wait_for("the reporter", || {
        (metric(c, "vipwatch_cluster_reporter") == Some(1.0)).then_some(())
    });
    let (_process_a, _process_b) = (a.start(), b.start());
    b.wait_for_members(&["a live primary", "b live backup", "c live backup"]);
    b.netns.ip(ADD);
    let states = || -> Vec<String> {
        let bodies = server.accepted_bodies().into_iter();
        let bodies = bodies.filter(|body| body["finding"]["name"] == "cluster-two-primaries");
        bodies.filter_map(|body| Some(body["state"].as_str()?.to_owned())).collect()
    };
    wait_for("the record of the delivery", || {
        let findings = query_json(&a.fixture, &["cluster", "findings"]);
        let items = findings["items"].as_array()?;
        let item = items.iter().find(|item| item["name"] == "cluster-two-primaries")?;
        (item["delivered"] == serde_json::json!(["operations"])).then_some(())
    });
    let count = |node, name: &str, severity: &str| {
        let labels = format!("name=\"{name}\",severity=\"{severity}\"");
        metric(node, &format!("vipwatch_cluster_findings{{{labels}}}"))
    };
    wait_for("the metric of the finding", || {
        (count(c, "cluster-two-primaries", "critical") == Some(1.0)).then_some(())
    });
    assert_eq!(count(c, "cluster-no-primary", "critical"), Some(0.0));
    for other in [a, b] {
        assert_eq!(count(other, "cluster-two-primaries", "critical"), None, "no reporter");
    }
    process_c.kill();
    wait_for("another reporter", || {
        let sum = [a, b].map(|node| metric(node, "vipwatch_cluster_reporter").unwrap_or_default());
        (sum.iter().sum::<f64>() > 0.5).then_some(())
    });
    a.wait_for_finding("cluster-node-lost");
    b.netns.ip(REMOVE);
    wait_for("the end of the finding", || (states().len() > 1).then_some(()));
    assert_eq!(states(), ["open", "closed"]);
}

#[test]
fn a_second_node_with_the_same_name_does_not_publish_and_says_so() {
    let lab = Lab::new();
    let mut etcd = Etcd::single(lab.path());
    let first = ClusterNode::new(&lab, "a", &etcd.endpoints(), "");
    let process = first.start();
    first.wait_for_members(&["a live backup"]);
    let other = Lab::new();
    let second = ClusterNode::new(&other, "a", &etcd.endpoints(), "");
    let _second_process = second.start();
    let findings = || second.fixture.run_text(&["findings"]);
    wait_for("the finding", || findings().contains("node-cluster").then_some(()));
    assert!(findings().contains("publishes as a"), "{}", findings());
    assert_eq!(metric(&second, "vipwatch_cluster_registered"), Some(0.0));
    let status = second.fixture.run_text(&["cluster", "status"]);
    assert!(status.contains("not known: etcd does not have this node"), "{status}");
    // The finding stays after a lost connection.
    etcd.kill(0);
    wait_for("the old view", || findings().contains("is old").then_some(()));
    etcd.restart(0);
    wait_for("the finding again", || findings().contains("publishes as a").then_some(()));
    assert!(process.stop().success());
    wait_for("the name", || {
        (metric(&second, "vipwatch_cluster_registered") == Some(1.0)).then_some(())
    });
    wait_for("the end of the finding", || (!findings().contains("node-cluster")).then_some(()));
}

#[test]
fn a_drain_check_decides_by_the_other_nodes_of_the_cluster() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), ""));
    a.netns.ip(ADD);
    let process_a = a.start();
    a.wait_for_members(&["a live primary"]);
    let ask = |node: &ClusterNode, args: &[&str], list: &str| -> Vec<String> {
        let check = query_json(&node.fixture, &[&["drain-check"], args].concat());
        let reasons = check[list].as_array().cloned().unwrap_or_default();
        reasons.iter().filter_map(|reason| Some(reason["name"].as_str()?.to_owned())).collect()
    };
    let names = |node: &ClusterNode, list: &str| ask(node, &[], list);
    assert_eq!(names(&a, "blocking"), ["primary-here"]);
    assert_eq!(ask(&a, &["--if"], "blocking"), ["no-backup-elsewhere"]);
    let _process_b = b.start();
    a.wait_for_members(&["a live primary", "b live backup"]);
    b.wait_for_members(&["a live primary", "b live backup"]);
    assert_eq!(names(&a, "blocking"), ["primary-here"]);
    // No keepalived runs here, so nobody knows whether one would take over.
    assert!(ask(&a, &["--if"], "blocking").is_empty());
    assert!(ask(&a, &["--if"], "uncertain").contains(&"backup-not-certain".to_owned()));
    let last_backup = || (names(&b, "notes") == ["last-backup"]).then_some(());
    let answer = || query_json(&b.fixture, &["drain-check"]).to_string();
    wait_showing("the note about the last backup", answer, last_backup);
    assert_eq!(names(&b, "blocking"), [""; 0]);
    process_a.kill();
    b.wait_for_members(&["a lost primary", "b live backup"]);
    assert_eq!(names(&b, "blocking"), ["no-primary"]);
}

#[test]
fn a_finding_about_a_group_is_in_the_history_of_its_nodes_across_a_restart() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b] =
        ["a", "b"].map(|name| ClusterNode::with_lease(&lab, name, &etcd.endpoints(), "60s", ""));
    a.netns.ip(ADD);
    let (process_a, _process_b) = (a.start(), b.start());
    b.wait_for_members(&["a live primary", "b live backup"]);
    b.netns.ip(ADD);
    let states = |node: &ClusterNode| -> Vec<String> {
        let path = node.fixture.state_dir().join(vipwatch_history::FILE);
        let query = "SELECT json_extract(body, '$.state') || ' ' || instance FROM event WHERE name = 'finding' \
                     AND json_extract(body, '$.finding.name') = 'cluster-two-primaries' ORDER BY seq";
        let mut command = std::process::Command::new("sqlite3");
        let output = vipwatch_testkit::run(command.arg("-readonly").arg(path).arg(query));
        output.lines().map(str::to_owned).collect()
    };
    for node in [&a, &b] {
        wait_for("the event", || (states(node) == ["open VI_1"]).then_some(()));
    }
    // The lease goes on, so that the other node does not notice the restart.
    process_a.kill();
    let _process_a = a.start();
    a.wait_for_finding("cluster-two-primaries");
    b.netns.ip(REMOVE);
    let show =
        || format!("{:?} {:?}\n{}\n{}", states(&a), states(&b), a.fixture.log(), b.fixture.log());
    for node in [&a, &b] {
        wait_showing("the end", show, || {
            (states(node) == ["open VI_1", "closed VI_1"]).then_some(())
        });
    }
}

/// A finding that no node has found.
fn forged(id: &str, notified: &[&str]) -> String {
    let record = serde_json::json!({
        "schema": 1, "id": id, "name": "cluster-two-primaries", "severity": "critical", "confidence": "certain",
        "group": GROUP, "nodes": ["a", "b"], "text": "CANARY \u{1b}[2J", "hint": "CANARY", "evidence": ["CANARY"],
        "opened": "2026-01-01T00:00:00Z", "changed": "2026-01-01T00:00:00Z", "reporter": "CANARY",
        "notified_open": notified,
    });
    record.to_string()
}

const DOMAIN: &str = "/vipwatch/v1/default";

#[test]
fn a_forged_finding_calls_no_target_for_its_opening_and_its_end_has_none_of_its_words() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let server = HttpServer::new(&[]);
    let webhook = webhook("operations", &server);
    let [a, b] = ["a", "b"].map(|name| ClusterNode::new(&lab, name, &etcd.endpoints(), &webhook));
    a.netns.ip(ADD);
    let (_process_a, _process_b) = (a.start(), b.start());
    b.wait_for_members(&["a live primary", "b live backup"]);
    for (id, notified) in [("forged-1", &[][..]), ("forged-2", &["operations"])] {
        etcd.ctl(&["put", &format!("{DOMAIN}/finding/{id}"), &forged(id, notified)]);
    }
    etcd.ctl(&["del", &format!("{DOMAIN}/reporter")]);
    wait_showing(
        "the end of both",
        || a.fixture.log(),
        || etcd.entries(&format!("{DOMAIN}/finding/")).is_empty().then_some(()),
    );
    // A finding that is true comes after them.
    b.netns.ip(ADD);
    let bodies = || -> Vec<Value> {
        let bodies = server.accepted_bodies().into_iter();
        bodies.filter(|body| body["finding"]["name"] == "cluster-two-primaries").collect()
    };
    let is_open = |body: &Value| body["state"] == "open";
    let show = || format!("{:#?}", bodies());
    wait_showing("the opening", show, || bodies().iter().any(is_open).then_some(()));
    let bodies = bodies();
    assert_eq!(bodies.iter().filter(|body| is_open(body)).count(), 1, "{bodies:#?}");
    let ended: Vec<&Value> = bodies.iter().filter(|body| body["state"] == "closed").collect();
    assert_eq!(ended.len(), 1, "{bodies:#?}");
    assert_eq!(ended[0]["cluster"]["group"], GROUP);
    let words = [a.fixture.log(), b.fixture.log(), format!("{bodies:?}")].concat();
    assert!(!words.contains("CANARY"), "{words}");
}

#[test]
fn a_node_with_too_many_records_in_etcd_says_so_and_follows_its_instances() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let node = ClusterNode::new(&lab, "a", &etcd.endpoints(), "");
    // Another process is the reporter, so that no node closes them.
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    let other = r#"{"schema":1,"node":"x","process":"x","at":"2026-01-01T00:00:00Z"}"#;
    etcd.ctl(&["put", &format!("{DOMAIN}/reporter"), other, "--lease", lease]);
    for batch in 0..120 {
        let put = |number: i32| {
            let id = format!("f-{batch}-{number}");
            let value = forged(&id, &[]).replace('"', "\\\"").replace("\\u", "\\\\u");
            format!("put {DOMAIN}/finding/{id} \"{value}\"\n")
        };
        let puts: String = (0..100).map(put).collect();
        etcd.ctl_with_input(&["txn"], &format!("\n{puts}\n\n"));
    }
    let _process = node.start();
    let findings = || node.fixture.run_text(&["findings"]);
    wait_for("the finding", || {
        findings().contains("2000 records more than this node keeps").then_some(())
    });
    assert!(findings().contains("node-cluster"), "{}", findings());
    let ignored = query_json(&node.fixture, &["cluster", "status"]);
    assert!(ignored.to_string().contains("beyond the limits"), "{ignored:#}");
    // The kernel decides the role, whatever etcd has.
    node.netns.ip(ADD);
    crate::support::wait_for_role(&node.fixture, "VI_1", "primary");
    node.wait_for_members(&["a live primary"]);
    etcd.ctl(&["del", "--prefix", &format!("{DOMAIN}/finding/")]);
    wait_for("the end of the finding", || (!findings().contains("node-cluster")).then_some(()));
}
