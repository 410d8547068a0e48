// SPDX-License-Identifier: Apache-2.0
//! A node with a receiver: reported states beside the roles that the node reads from the kernel.

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::routers::Routers;
use vipwatch_testkit::{Lab, wait_for};

use crate::receiver_process::report;
use crate::support::{node_fixture, query_json};

/// Name and text of the findings about the reports of one router.
fn report_findings(fixture: &vipwatch_testkit::NodeFixture, id: &str) -> Vec<(String, String)> {
    let answer = query_json(fixture, &["doctor"]);
    let findings = answer["items"].as_array().unwrap().iter();
    let text = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap().to_owned();
    findings
        .filter(|finding| finding["id"] == id)
        .map(|finding| (text(finding, "name"), text(finding, "text")))
        .filter(|(name, _)| name.contains("monitor") || name.contains("report"))
        .collect()
}

#[test]
fn a_node_shows_reported_states_and_finds_wrong_and_missing_reports() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("c{}", lab.number()), 2, 0);
    let fixture = node_fixture(&lab);
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    let _node = fixture.start();
    let (wrong, silent) = (&routers.each[0].id, &routers.each[1].id);
    assert_eq!(report(lab.path(), wrong, "primary"), Some(200));
    assert_eq!(report(lab.path(), "deleted", "primary"), Some(200));
    let finding = wait_for("the wrong report", || report_findings(&fixture, wrong).pop());
    let text = "the monitor reports primary, the kernel says backup";
    assert_eq!(finding, ("report-differs".to_owned(), text.to_owned()));
    assert_eq!(
        wait_for("the missing report", || report_findings(&fixture, silent).pop()).0,
        "report-missing"
    );
    assert_eq!(report_findings(&fixture, "deleted")[0].0, "report-for-unknown-instance");
    let shown = query_json(&fixture, &["show", wrong]);
    let reported = &shown["instance"]["report"];
    assert_eq!((&reported["reported"], &reported["state"]), (&"primary".into(), &"active".into()));
    assert_eq!(shown["instance"]["role"], "backup", "the role comes from the kernel");
    assert!(fixture.run_text(&["show", wrong]).contains("reported        primary"));
    // `vipwatch receiver status` prints the same, as a table and as metrics.
    let socket = fixture.socket().display().to_string();
    let status = |more: &[&str]| {
        let mut command = std::process::Command::new(crate::support::PROGRAM);
        command.args(["receiver", "status", "--status-socket", &socket]).args(more);
        String::from_utf8(output_of(&mut command).stdout).unwrap()
    };
    assert!(status(&[]).lines().any(|line| line.starts_with(wrong.as_str())), "{}", status(&[]));
    let metrics = status(&["--metrics"]);
    assert!(metrics.contains("vipwatch_receiver_routers{state=\"active\"} 2\n"), "{metrics}");
    // Correct reports end the findings.
    assert_eq!(report(lab.path(), wrong, "backup"), Some(200));
    assert_eq!(report(lab.path(), silent, "backup"), Some(200));
    assert_eq!(
        (report_findings(&fixture, wrong), report_findings(&fixture, silent)),
        (Vec::new(), Vec::new())
    );
}

#[test]
fn a_node_runs_without_a_receiver_while_another_server_has_the_socket() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    let other =
        vipwatch_testkit::FakeAgent::listen(lab.path(), vipwatch_testkit::Behaviour::Threaded);
    let node = fixture.start();
    let printed = fixture.run_text(&["doctor"]);
    assert!(
        printed.contains("node-receiver")
            && printed.contains("another process is already listening on"),
        "{printed}"
    );
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200), "answered by the other server");
    drop(other);
    node.reload();
    assert!(!fixture.run_text(&["doctor"]).contains("node-receiver"));
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    assert!(fixture.state_dir().join("journal.sqlite").exists(), "answered by the node");
}

#[test]
fn a_node_reports_that_the_socket_of_its_receiver_was_replaced_and_does_not_remove_it() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    let node = fixture.start();
    let other =
        vipwatch_testkit::FakeAgent::listen(lab.path(), vipwatch_testkit::Behaviour::Threaded);
    wait_for("the finding", || {
        let printed = fixture.run_text(&["doctor"]);
        (printed.contains("receiver-socket") && printed.contains("has replaced the socket file"))
            .then_some(())
    });
    fixture.configure("");
    node.reload();
    assert!(node.stop().success());
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    assert_eq!(other.count(), 1, "the other server gets the report");
}

#[test]
fn a_removed_receiver_that_waits_for_its_hook_does_not_block_the_node() {
    let lab = Lab::new();
    let (netns, fixture) = crate::support::fixture_with(&lab, &[crate::support::vi_1_conf()]);
    let (started, gate) = (lab.path().join("started"), lab.path().join("gate"));
    let text = format!(
        "echo > {}; while [ ! -e {} ]; do sleep 0.05; done",
        started.display(),
        gate.display()
    );
    let hook = crate::support::write_hook(&lab.path().join("hook"), &text);
    let hanging = format!(
        "[receiver]\ninterval = \"0s\"\n[[receiver.hook]]\nprogram = \"{}\"\n",
        hook.display()
    );
    fixture.configure(&hanging);
    let node = fixture.start();
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    wait_for("the hook", || started.exists().then_some(()));
    fixture.configure("");
    node.reload();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for("the change", || (crate::support::role(&fixture, "VI_1") == "primary").then_some(()));
    // The receiver is configured again before the first one has ended: the second one starts afterwards.
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    node.reload();
    let closed = "receiver stopped";
    fixture.wait_for_log(closed);
    let log = fixture.log();
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text}: {log}"));
    assert!(
        at("to=\"primary\"") < at(closed),
        "the change came before the shutdown of the receiver: {log}"
    );
    wait_for("the next receiver", || {
        (report(lab.path(), "r1", "backup") == Some(200)).then_some(())
    });
    crate::support::write(&gate, "");
    assert!(node.stop().success());
}

#[test]
fn a_reload_starts_moves_and_stops_the_receiver_of_a_node() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let node = fixture.start();
    let socket = crate::receiver_process::socket(lab.path());
    assert!(!socket.exists(), "there is no receiver unless it is configured");
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    node.reload();
    wait_for("a receiver", || (report(lab.path(), "r1", "primary") == Some(200)).then_some(()));
    // The receiver moves to another socket.
    let other = lab.path().join("other.sock");
    fixture.configure(&format!("[receiver]\nsocket = \"{}\"\nmode = \"600\"\n", other.display()));
    node.reload();
    wait_for("the other socket", || other.exists().then_some(()));
    wait_for("the first socket to be removed", || (!socket.exists()).then_some(()));
    let mode = std::fs::metadata(&other).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o600);
    fixture.configure("");
    node.reload();
    wait_for("the other socket to be removed", || (!other.exists()).then_some(()));
    assert!(node.stop().success());
}

#[test]
fn an_error_of_the_receiver_section_ends_when_the_section_is_reverted() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let valid = "[receiver]\ninterval = \"0s\"\n";
    fixture.configure(valid);
    let node = fixture.start();
    // Another server has the socket of the second configuration.
    let directory = lab.path().join("other");
    std::fs::create_dir(&directory).unwrap();
    let _other =
        vipwatch_testkit::FakeAgent::listen(&directory, vipwatch_testkit::Behaviour::Threaded);
    let taken = crate::receiver_process::socket(&directory);
    fixture.configure(&format!("{valid}socket = \"{}\"\n", taken.display()));
    node.reload();
    wait_for("the error", || fixture.run_text(&["doctor"]).contains("node-receiver").then_some(()));
    let version: vipwatch_api::VersionDocument = crate::curl::get(&fixture, "/v1/version");
    let error = version.last_reload.unwrap().error.expect("[receiver] was not applied");
    assert!(error.contains(taken.to_str().unwrap()), "{error}");
    fixture.configure(valid);
    node.reload();
    wait_for("the end of the error", || {
        (!fixture.run_text(&["doctor"]).contains("node-receiver")).then_some(())
    });
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
}

#[test]
fn the_targets_of_a_receiver_that_a_reload_removed_are_gone_until_it_is_configured_again() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let server = crate::http_server::HttpServer::new(&[503; 1000]);
    let receiver = format!(
        "[receiver]\ninterval = \"0s\"\n[[receiver.webhook]]\nname = \"ops\"\nurl = \"{}\"\n",
        server.url
    );
    fixture.configure(&receiver);
    let node = fixture.start();
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    wait_for("the attempt", || (server.statuses_left() < 1000).then_some(()));
    let targets = || {
        let document: vipwatch_api::TargetList = crate::curl::get(&fixture, "/v1/targets");
        let of_receiver = document.items.into_iter().filter(|target| target.source == "receiver");
        of_receiver.map(|target| target.name).collect::<Vec<_>>()
    };
    assert_eq!(targets(), ["ops"]);
    fixture.configure("");
    node.reload();
    wait_for("the end of the target", || targets().is_empty().then_some(()));
    server.accept_all();
    fixture.configure(&receiver);
    node.reload();
    wait_for("the notification", || (server.accepted() == ["primary"]).then_some(()));
}
