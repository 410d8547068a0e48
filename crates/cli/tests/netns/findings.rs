// SPDX-License-Identifier: Apache-2.0
//! Findings that no other test produces, through the command line of a real node.
//!
//! `docs/operations/finding-tests.md` lists the test of each finding.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vipwatch_testkit::keepalived::Keepalived;
use vipwatch_testkit::{Lab, NodeFixture, Routers, run, script, wait_for, wait_within_showing};

use crate::receiver_process::report;
use crate::storage::Disk;
use crate::support::{
    ADD_VIP, PROGRAM, REMOVE_VIP, fixture_with, instance_conf, node_fixture, query_json,
    transitions, vi_1_conf, wait_for_record, wait_for_role, write, write_hook,
};
use crate::threads::stop_thread;

/// Longest time until a finding opens: its settle time, and that of a busy machine.
const FINDING_LIMIT: std::time::Duration = std::time::Duration::from_mins(1);

/// The names of the findings about an instance, or about the node, sorted.
pub(crate) fn finding_names(fixture: &NodeFixture, id: Option<&str>) -> Vec<String> {
    let answer = query_json(fixture, &["doctor"]);
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let is_wanted = |item: &&Value| item["id"].as_str() == id;
    let names = items.iter().filter(is_wanted).filter_map(|item| item["name"].as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// Waits until `doctor` has exactly these findings about an instance, or about the node.
#[track_caller]
pub(crate) fn wait_for_findings(fixture: &NodeFixture, id: Option<&str>, expected: &[&str]) {
    let details = || format!("{}\n{}", fixture.run_text(&["doctor"]), fixture.log());
    wait_within_showing(FINDING_LIMIT, &format!("{expected:?} of {id:?}"), details, || {
        (finding_names(fixture, id) == expected).then_some(())
    });
}

/// A fixture: its node has all capabilities of the test except for these.
fn without_capabilities(lab: &Lab, capabilities: &[&str]) -> NodeFixture {
    let program = lab.path().join("restricted");
    let list = capabilities.iter().map(|one| format!("-{one}")).collect::<Vec<_>>().join(",");
    let setpriv = format!("setpriv --bounding-set {list} --inh-caps {list}");
    script(&program, &format!("exec {setpriv} {PROGRAM} \"$@\""));
    NodeFixture::new(&program, lab.path())
}

/// Writes a file of the router with this id.
fn write_of_router(lab: &Lab, id: &str, name: &str, text: &str) {
    write(&lab.path().join("ha_confs").join(id).join(name), text);
}

#[test]
fn a_link_or_a_namespace_that_is_missing_is_found_until_it_is_there() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip("link set eth0p down");
    let name = netns.name().to_owned();
    let _node = fixture.start();
    wait_for_findings(&fixture, Some("VI_1"), &["link-fault"]);
    netns.ip("link set eth0p up");
    wait_for_findings(&fixture, Some("VI_1"), &[]);
    netns.delete();
    wait_for_findings(&fixture, Some("VI_1"), &["namespace-missing"]);
    let netns = vipwatch_testkit::TestNetns::create(&name);
    netns.add_link("eth0");
    wait_for_findings(&fixture, Some("VI_1"), &[]);
}

/// The number of log lines with this message about a finding.
fn lines(fixture: &NodeFixture, message: &str, finding: &str) -> usize {
    let is_about = |line: &&str| line.contains(message) && line.contains(finding);
    fixture.log().lines().filter(is_about).count()
}

/// The states of a finding in the recorded events, for example `open`, `closed`.
fn recorded_states(fixture: &NodeFixture, finding: &str) -> Vec<String> {
    let mut sqlite = Command::new("sqlite3");
    let query = format!(
        "SELECT json_extract(body, '$.state') FROM event WHERE name = 'finding' \
         AND json_extract(body, '$.finding.name') = '{finding}' ORDER BY seq"
    );
    sqlite.arg("-readonly").arg(fixture.state_dir().join("history.sqlite")).arg(query);
    vipwatch_testkit::run(&mut sqlite).lines().map(str::to_owned).collect()
}

#[test]
fn a_finding_opens_changes_and_closes_once_in_log_and_history() {
    let lab = Lab::new();
    let vips = ["192.0.2.9/24", "192.0.2.10/24", "192.0.2.11/24"];
    let (netns, fixture) = fixture_with(&lab, &[instance_conf("VI_1", "eth0", &vips)]);
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_findings(&fixture, Some("VI_1"), &["partly-held"]);
    let wait_for_states = |expected: &[&str]| {
        let states = || recorded_states(&fixture, "partly-held");
        wait_within_showing(
            FINDING_LIMIT,
            &format!("{expected:?}"),
            || fixture.log(),
            || (states() == expected).then_some(()),
        );
    };
    wait_for_states(&["open"]);
    // Several audits, and a restart, find it again.
    fixture.run(&["doctor"]);
    assert!(node.stop().success());
    let _node = fixture.start();
    wait_for_findings(&fixture, Some("VI_1"), &["partly-held"]);
    netns.ip("address add 192.0.2.10/24 dev eth0");
    wait_for_states(&["open", "changed"]);
    netns.ip("address add 192.0.2.11/24 dev eth0");
    wait_for_states(&["open", "changed", "closed"]);
    for message in ["audit finding", "finding has changed", "finding is over"] {
        // The log is written by a thread of its own, after the history.
        wait_for(message, || (lines(&fixture, message, "partly-held") > 0).then_some(()));
        assert_eq!(lines(&fixture, message, "partly-held"), 1, "{message}: {}", fixture.log());
    }
}

#[test]
fn a_restart_of_the_node_does_not_repeat_the_finding_of_a_failing_webhook() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    // No server listens on this port.
    fixture.configure("[[notify]]\nwebhook = { url = \"http://127.0.0.1:9/\" }\n");
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_findings(&fixture, Some("VI_1"), &["webhook-failed"]);
    wait_for("the event", || {
        (recorded_states(&fixture, "webhook-failed") == ["open"]).then_some(())
    });
    assert!(node.stop().success());
    let _node = fixture.start();
    wait_for_findings(&fixture, Some("VI_1"), &["webhook-failed"]);
    assert_eq!(recorded_states(&fixture, "webhook-failed"), ["open"], "{}", fixture.log());
}

#[test]
fn the_age_of_a_finding_is_that_of_its_fact() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    netns.ip("link set eth0p down");
    wait_for_role(&fixture, "VI_1", "fault");
    let since = query_json(&fixture, &["status", "VI_1"])["instances"][0]["since"].clone();
    wait_for_findings(&fixture, Some("VI_1"), &["link-fault"]);
    let of_finding = || query_json(&fixture, &["doctor"])["items"][0]["since"].clone();
    assert_eq!(of_finding(), since, "the finding is as old as the fault");
    assert!(node.stop().success());
    let _node = fixture.start();
    assert_eq!(of_finding(), since, "also after a restart of the node");
}

#[test]
fn an_address_on_another_link_is_misplaced() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.add_link("eth1");
    netns.ip(&ADD_VIP.replace("eth0", "eth1"));
    let _node = fixture.start();
    wait_for_findings(&fixture, Some("VI_1"), &["address-misplaced"]);
    netns.ip(&REMOVE_VIP.replace("eth0", "eth1"));
    wait_for_findings(&fixture, Some("VI_1"), &[]);
}

#[test]
fn a_namespace_that_the_node_may_not_read_is_found() {
    let lab = Lab::new();
    let netns = lab.netns("k");
    netns.add_link("eth0");
    let fixture = without_capabilities(&lab, &["net_admin", "sys_admin"]);
    let conf = format!("net_namespace {}\n{}", netns.name(), vi_1_conf());
    write(&fixture.keepalived_conf(), &conf);
    let _node = fixture.start();
    wait_for_findings(&fixture, Some("VI_1"), &["kernel-not-read"]);
    assert!(fixture.run_text(&["doctor"]).contains("CAP_NET_ADMIN"));
}

#[test]
fn a_role_that_the_main_loop_has_missed_is_found() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    // The audit has a thread of its own. The API answers for 30 s after the last turn of the main loop.
    let mut tracer = stop_thread(&node, "vipwatch");
    netns.ip(ADD_VIP);
    wait_for_findings(&fixture, Some("VI_1"), &["published-role-wrong"]);
    drop(tracer.stdin.take());
    assert!(tracer.wait().unwrap().success());
    wait_for_role(&fixture, "VI_1", "primary");
    wait_for_findings(&fixture, Some("VI_1"), &[]);
}

#[test]
fn each_fault_of_a_state_file_is_found() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("f{}", lab.number()), 3, 0);
    let fixture = node_fixture(&lab);
    let ids: Vec<&str> = routers.each.iter().map(|router| router.id.as_str()).collect();
    let [missing, nonsense, unreadable] = *ids else { panic!("{ids:?}") };
    write_of_router(&lab, nonsense, "state", "leader");
    // The read of a directory fails for root, too.
    std::fs::create_dir(lab.path().join("ha_confs").join(unreadable).join("state")).unwrap();
    let _node = fixture.start();
    wait_for_findings(&fixture, Some(missing), &["state-file-missing"]);
    wait_for_findings(&fixture, Some(nonsense), &["state-file-nonsense"]);
    wait_for_findings(&fixture, Some(unreadable), &["state-file-unreadable"]);
    for id in [missing, nonsense] {
        write_of_router(&lab, id, "state", "backup");
        wait_for_findings(&fixture, Some(id), &[]);
    }
}

#[test]
fn floating_addresses_that_a_backup_has_kept_are_found() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("l{}", lab.number()), 1, 2);
    let router = &routers.each[0];
    write_of_router(&lab, &router.id, "state", "backup");
    let fixture = node_fixture(&lab);
    let (editor, link) = router.editor();
    editor.add(link, "10.0.0.1/32".parse().unwrap());
    let _node = fixture.start();
    wait_for_findings(&fixture, Some(&router.id), &["floating-left"]);
    editor.remove(link, "10.0.0.1/32".parse().unwrap());
    wait_for_findings(&fixture, Some(&router.id), &[]);
}

#[test]
fn a_monitor_that_has_ended_is_found_by_its_pid_file() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("m{}", lab.number()), 1, 0);
    let id = &routers.each[0].id;
    write_of_router(&lab, id, "state", "backup");
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let pid_file = lab.path().join(format!("external/pids/{id}.monitor.pid"));
    write(&pid_file, &ended.id().to_string());
    let fixture = node_fixture(&lab);
    let _node = fixture.start();
    wait_for_findings(&fixture, Some(id), &["monitor-gone"]);
    write(&pid_file, &std::process::id().to_string());
    wait_for_findings(&fixture, Some(id), &[]);
}

#[test]
fn an_instance_that_changes_its_role_too_often_is_found() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    for _ in 0..3 {
        netns.ip(ADD_VIP);
        wait_for_role(&fixture, "VI_1", "primary");
        netns.ip(REMOVE_VIP);
        wait_for_role(&fixture, "VI_1", "backup");
    }
    wait_for_findings(&fixture, Some("VI_1"), &["flapping"]);
}

#[test]
fn an_announcement_that_the_kernel_refuses_is_found() {
    let lab = Lab::new();
    let netns = lab.netns("k");
    netns.add_link("eth0");
    let fixture = without_capabilities(&lab, &["net_raw"]);
    fixture.configure("[[notify]]\nannounce = true\n");
    let conf = format!("net_namespace {}\n{}", netns.name(), vi_1_conf());
    write(&fixture.keepalived_conf(), &conf);
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_findings(&fixture, Some("VI_1"), &["announce-failed"]);
}

#[test]
fn a_report_that_a_target_does_not_accept_is_found() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let hook = write_hook(&lab.path().join("hook"), "exit 3");
    fixture.configure(&format!(
        "[receiver]\ninterval = \"0s\"\n[[receiver.hook]]\nprogram = [\"{}\"]\n",
        hook.display()
    ));
    let _node = fixture.start();
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    let expected = ["delivery-failed", "report-for-unknown-instance"];
    wait_for_findings(&fixture, Some("r1"), &expected);
}

#[test]
fn a_journal_of_the_receiver_that_cannot_be_written_is_found() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let disk = Disk::new(&fixture.state_dir());
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    disk.fill();
    let _node = fixture.start();
    wait_for_findings(&fixture, None, &["node-history", "receiver-journal"]);
    disk.free_space();
    wait_for_findings(&fixture, None, &[]);
}

/// Creates a SQLite file with format 99, and returns its content.
fn create_format_99(path: &Path) -> Vec<u8> {
    let statements = "CREATE TABLE x (y); PRAGMA user_version = 99";
    run(Command::new("sqlite3").arg(path).arg(statements));
    std::fs::read(path).unwrap()
}

#[test]
fn a_history_and_a_journal_of_another_format_are_kept_and_found_and_the_node_follows() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    let directory = fixture.state_dir();
    std::fs::create_dir_all(&directory).unwrap();
    let names = ["history", "journal"];
    let contents = names.map(|name| create_format_99(&directory.join(format!("{name}.sqlite"))));
    let node = fixture.start();
    wait_for_findings(&fixture, None, &["node-history-format", "receiver-journal-format"]);
    let kept = names.map(|name| {
        let start = format!("{name}.format-99-");
        let files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let is_kept =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&start);
        files.filter(is_kept).collect::<Vec<_>>()
    });
    let findings = fixture.run_text(&["doctor"]);
    for ((name, kept), content) in names.iter().zip(&kept).zip(&contents) {
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!(std::fs::read(&kept[0]).unwrap(), *content);
        let file = kept[0].file_name().unwrap().to_str().unwrap();
        assert!(findings.contains(&format!("{name}.sqlite had format 99")), "{findings}");
        assert!(findings.contains(file), "{findings}");
        fixture.wait_for_log(&format!("{name} file has another format; a new one is begun"));
    }
    netns.ip(ADD_VIP);
    wait_for_record(&fixture, "VI_1 primary");
    assert_eq!(report(lab.path(), "VI_1", "primary"), Some(200));
    assert!(node.stop().success());
    for file in kept.iter().flatten() {
        std::fs::remove_file(file).unwrap();
    }
    let _node = fixture.start();
    wait_for_findings(&fixture, None, &[]);
    assert!(transitions(&fixture, &[]).len() >= 2, "the new history is used");
}

/// A keepalived in a namespace with an instance of this name, which no other test uses.
fn start_keepalived(netns: &vipwatch_testkit::TestNetns, lab: &Lab, name: &str) -> Keepalived {
    let directory = lab.path().join("keepalived");
    std::fs::create_dir_all(&directory).unwrap();
    let text = instance_conf(name, "eth0", &["192.0.2.9/24"]);
    let keepalived = Keepalived::start_with(netns, &directory, &text);
    wait_for("keepalived to hold the address", || {
        netns.addresses("eth0").contains("192.0.2.9/24").then_some(())
    });
    keepalived
}

#[test]
fn a_stopped_keepalived_without_its_address_cannot_take_over() {
    let lab = Lab::new();
    let netns = lab.netns("k");
    netns.add_link("eth0");
    netns.ip("address add 192.0.2.1/24 dev eth0");
    let name = format!("STANDBY_{}", lab.number());
    let _keepalived = start_keepalived(&netns, &lab, &name);
    let fixture = NodeFixture::new(Path::new(PROGRAM), lab.path()).with_processes();
    let _node = fixture.start();
    let pid = std::fs::read_to_string(lab.path().join("keepalived/keepalived-vrrp.pid")).unwrap();
    vipwatch_testkit::run(Command::new("kill").args(["-STOP", pid.trim()]));
    netns.ip(REMOVE_VIP);
    wait_for_findings(&fixture, Some(&name), &["keepalived-frozen"]);
    vipwatch_testkit::run(Command::new("kill").args(["-CONT", pid.trim()]));
    netns.ip(ADD_VIP);
    wait_for_findings(&fixture, Some(&name), &[]);
}

#[test]
fn a_keepalived_that_the_node_may_not_read_is_not_taken_for_dead() {
    let lab = Lab::new();
    let netns = lab.netns("k");
    netns.add_link("eth0");
    netns.ip("address add 192.0.2.1/24 dev eth0");
    let name = format!("HIDDEN_{}", lab.number());
    let _keepalived = start_keepalived(&netns, &lab, &name);
    // Without this capability, a process with more capabilities than the node cannot be read.
    let fixture = without_capabilities(&lab, &["sys_ptrace"]).with_processes();
    let text = instance_conf(&name, "eth0", &["192.0.2.9/24"]);
    write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{text}", netns.name()));
    let _node = fixture.start();
    wait_for_findings(&fixture, Some(&name), &["keepalived-not-readable"]);
}
