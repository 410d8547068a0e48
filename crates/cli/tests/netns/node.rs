//! A running node: its life cycle, its configuration, and the commands that query it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::monitor::{end_of, output_of};
use vipwatch_testkit::routers::{VIP, write_conf};
use vipwatch_testkit::{Lab, NodeFixture, Routers, wait_for};

use crate::support::{
    PROGRAM, fixture_with, instance_conf, node_fixture, query_json, role, vi_1_conf, wait_for_role,
    write,
};

/// "ID ROLE" of each recorded change, oldest first.
fn recorded(fixture: &NodeFixture) -> Vec<String> {
    let answer = query_json(fixture, &["history"]);
    let changes = answer["changes"].as_array().unwrap().iter();
    changes.map(|change| format!("{} {}", change["id"], change["to"]).replace('"', "")).collect()
}

/// Waits until the change "ID ROLE" is recorded.
fn wait_for_record(fixture: &NodeFixture, expected: &str) {
    wait_for(expected, || recorded(fixture).iter().any(|line| line == expected).then_some(()));
}

#[test]
fn status_of_a_node_shows_each_role_with_its_cause_and_start_time() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    assert_eq!(role(&fixture, "VI"), "backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "VI_1", "primary");
    let answer = query_json(&fixture, &["status", "VI_1"]);
    assert_eq!(
        (&answer["source"], &answer["schema"]),
        (&"node".into(), &"vipwatch.status/1".into())
    );
    let instance = &answer["instances"][0];
    assert_eq!((&instance["cause"], &instance["seq"]), (&"address".into(), &2.into()));
    assert!(instance["since"].as_i64() > Some(1_600_000_000_000));
    wait_for("the change to be counted", || {
        (query_json(&fixture, &["status"])["metrics"]["vipwatch_transitions_total"] == 2)
            .then_some(())
    });
    let status = |args: &[&str]| fixture.ask(&[&["status"], args].concat()).status.code();
    assert_eq!(status(&["--expect", "primary"]), Some(0));
    assert_eq!(status(&["--expect", "backup"]), Some(1));
    assert_eq!(status(&["no-such-id"]), Some(4));
    assert!(fixture.say(&["status", "no-such-id"]).contains("vipwatch discover"));
    assert_eq!(query_json(&fixture, &["status", "--direct"])["source"], "kernel");
}

#[test]
fn the_history_and_the_start_time_of_a_role_survive_a_stop_and_a_kill() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let refused = fixture.ask(&["history", "--state-dir", lab.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(4), "there is no history yet");
    let first = fixture.start();
    wait_for_record(&fixture, "VI_1 backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_record(&fixture, "VI_1 primary");
    let since = query_json(&fixture, &["status"])["instances"][0]["since"].clone();
    assert!(first.stop().success());
    assert!(!fixture.socket().exists(), "the node removes its socket when it stops");

    for _ in 0..2 {
        let node = fixture.start();
        let after = &query_json(&fixture, &["status"])["instances"][0];
        assert_eq!(after["since"], since, "a restart does not change the start time of the role");
        assert!(node.stop().success());
    }
    let second = fixture.start();
    netns.ip("link set eth0p down");
    netns.ip("address del 192.0.2.9/24 dev eth0");
    wait_for_record(&fixture, "VI_1 fault");
    second.kill();

    let _third = fixture.start();
    fixture.wait_for_log("the node before was killed");
    let printed = fixture.say(&["history", "--since", "1h", "--id", "VI"]);
    assert!(printed.contains("(stopped)") && printed.contains("(killed)"), "{printed}");
    assert!(printed.contains("eth0 has no carrier"), "{printed}");
    let all = recorded(&fixture);
    assert_eq!(all[..2], ["VI_1 backup", "VI_1 primary"], "{all:?}");
    assert!(
        fixture.say(&["history", "--id", "no-such-id"]).contains("nothing of that is recorded")
    );
    let flaps = query_json(&fixture, &["history"])["flaps"][0].clone();
    assert_eq!((&flaps["id"], &flaps["primary"]), (&"VI_1".into(), &1.into()), "{flaps}");
    assert!(fixture.say(&["history", "--flaps"]).contains("CHANGES"));
}

#[test]
fn a_second_node_with_the_same_state_directory_or_socket_is_refused() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let _first = fixture.start();
    let state = fixture.state_dir();
    let state = state.to_str().unwrap();
    let output = fixture.ask(&["node", "--state-dir", state]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("another vipwatch node records in"));
    let elsewhere = lab.path().join("elsewhere");
    let output = fixture.ask(&["node", "--state-dir", elsewhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("somebody answers on"));
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_that_is_no_socket_is_left_alone() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.start().kill();
    assert!(fixture.socket().exists(), "a killed node leaves its socket file behind");
    let node = fixture.start();
    let mode = std::fs::metadata(fixture.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert!(node.stop().success());
    write(&fixture.socket(), "a file");
    let output = fixture.ask(&["node", "--state-dir", fixture.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a socket"), "{output:?}");
    assert_eq!(std::fs::read_to_string(fixture.socket()).unwrap(), "a file");
}

#[test]
fn a_node_reports_that_its_socket_was_replaced_and_does_not_remove_the_new_one() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let node = fixture.start();
    let moved = lab.path().join("moved.sock");
    std::fs::rename(fixture.socket(), &moved).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(fixture.socket()).unwrap();
    let doctor = || {
        let mut command = Command::new(PROGRAM);
        command.args(["doctor", "--config"]).arg(fixture.config()).arg("--socket").arg(&moved);
        String::from_utf8(output_of(&mut command).stdout).unwrap()
    };
    wait_for("the finding", || {
        let printed = doctor();
        (printed.contains("node-socket") && printed.contains("has replaced the socket file"))
            .then_some(())
    });
    fixture.wait_for_log("commands do not reach this node");
    assert!(node.stop().success());
    assert!(
        UnixStream::connect(fixture.socket()).is_ok(),
        "the socket of the other server still exists"
    );
}

#[test]
fn a_new_instance_is_followed_and_an_incomplete_file_changes_nothing() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let conf = |text: &str| {
        let text = format!("net_namespace {}\n{text}", netns.name());
        write(&fixture.keepalived_conf(), &text);
    };
    // No reload is needed: the node watches the directory of the file.
    let two = vi_1_conf() + &instance_conf("VI_2", "eth0", &["192.0.2.2/24"]);
    conf(&two);
    wait_for_record(&fixture, "VI_2 backup");
    // The file is incomplete: the node follows both instances as before.
    conf(&two[..two.len() - 20]);
    fixture.wait_for_log("is not closed");
    netns.ip("address add 192.0.2.2/24 dev eth0");
    wait_for_record(&fixture, "VI_2 primary");
    node.reload();
    let expected = ["VI_1 backup", "VI_2 backup", "VI_2 primary"];
    assert_eq!(recorded(&fixture), expected, "VI_1 has not changed");
    assert!(fixture.say(&["doctor"]).contains("configuration-problem"));
    // The file is complete again and does not contain VI_2.
    conf(&vi_1_conf());
    wait_for("VI_2 to be removed", || {
        (fixture.ask(&["status", "VI_2"]).status.code() == Some(4)).then_some(())
    });
    assert_eq!(fixture.ask(&["doctor"]).status.code(), Some(0), "{}", fixture.say(&["doctor"]));
}

/// A running `vipwatch watch` and its output. It is killed when this value is dropped.
struct WatchCommand {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl WatchCommand {
    fn new(fixture: &NodeFixture, args: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("watch").args(args).arg("--socket").arg(fixture.socket());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for WatchCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watch_prints_all_current_roles_and_then_each_change_once() {
    let lab = Lab::new();
    let two = [vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.2/24"])];
    let (netns, fixture) = fixture_with(&lab, &two);
    let states = lab.path().join("states");
    fixture.configure(&format!("[[outlet]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    let node = fixture.start();
    let mut all = WatchCommand::new(&fixture, &[]);
    let mut some = WatchCommand::new(&fixture, &["VI", "--format", "json", "--changes", "2"]);
    assert!(all.read_line().contains("DB  backup  (since "));
    assert!(all.read_line().contains("VI_1  backup  (since "));
    let first: Value = serde_json::from_str(&some.read_line()).unwrap();
    assert_eq!((&first["schema"], &first["id"]), (&"vipwatch.standing/1".into(), &"VI_1".into()));
    netns.ip("address add 192.0.2.2/24 dev eth0");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    let line = all.read_line();
    assert!(line.contains("DB  backup → primary  (address)  [file "), "{line}");
    assert!(all.read_line().contains("VI_1  backup → primary"));
    let change: Value = serde_json::from_str(&some.read_line()).unwrap();
    assert_eq!((&change["id"], &change["to"]), (&"VI_1".into(), &"primary".into()));
    assert!(change["latencies"]["file"].as_i64() > Some(0), "{change}");
    netns.ip("address del 192.0.2.9/24 dev eth0");
    let change: Value = serde_json::from_str(&some.read_line()).unwrap();
    assert_eq!((&change["from"], &change["seq"]), (&"primary".into(), &5.into()));
    assert!(end_of(&mut some.child).is_some_and(|status| status.success()));
    assert!(node.stop().success());
    assert_eq!(end_of(&mut all.child).and_then(|status| status.code()), Some(4));
}

#[test]
fn show_prints_the_timeline_and_the_findings_of_one_instance() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("s{}", lab.number()), 2, 2);
    let fixture = node_fixture(&lab);
    let _node = fixture.start();
    let router = &routers.each[0];
    router.take();
    wait_for_role(&fixture, &router.id, "primary");
    wait_for_record(&fixture, &format!("{} primary", router.id));
    let state = lab.path().join("ha_confs").join(&router.id).join("state");
    write(&state, "backup");
    let shown = query_json(&fixture, &["show", &router.id]);
    assert_eq!(shown["findings"][0]["name"], "state-file-differs", "{shown}");
    assert_eq!(shown["timeline"].as_array().unwrap().len(), 2);
    let addresses = shown["instance"]["addresses"].as_array().unwrap();
    assert_eq!(addresses.len(), 3);
    assert!(addresses.iter().all(|address| address["held"] == true), "{addresses:?}");
    assert_eq!(addresses[1]["excluded"], true);
    let page = fixture.say(&["show", &router.id]);
    assert!(page.contains("finding    state-file-differs: the state file says backup"), "{page}");
    // The beginning of an id must match one instance only.
    let several = fixture.ask(&["show", &router.id[..router.id.len() - 1]]);
    assert_eq!(several.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&several.stderr).contains("could be 2 of them"));
}

#[test]
fn doctor_prints_each_finding_with_its_explanation() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("d{}", lab.number()), 3, 2);
    let fixture = node_fixture(&lab);
    let _node = fixture.start();
    for router in &routers.each {
        let directory = lab.path().join("ha_confs").join(&router.id);
        write(&directory.join("state"), "backup");
    }
    assert_eq!(fixture.ask(&["doctor"]).status.code(), Some(0), "{}", fixture.say(&["doctor"]));
    let (stale_file, incomplete, without_keepalived) =
        (&routers.each[0], &routers.each[1], &routers.each[2]);
    stale_file.take();
    incomplete.take();
    write(&lab.path().join("ha_confs").join(&incomplete.id).join("state"), "primary");
    let (editor, link) = incomplete.editor();
    editor.remove(link, "10.0.0.2/32".parse().unwrap());
    // No process has this pid: it is greater than the largest possible pid (4194304).
    write(
        &lab.path().join(format!("ha_confs/{}.pid.keepalived", without_keepalived.id)),
        "99999999",
    );
    let findings = || -> Vec<String> {
        let answer = query_json(&fixture, &["doctor"]);
        let findings = answer["findings"].as_array().unwrap().iter();
        let summary = |finding: &Value| format!("{} {}", finding["id"], finding["name"]);
        findings.map(|finding| summary(finding).replace('"', "")).collect()
    };
    let expected = [
        format!("{} state-file-differs", stale_file.id),
        format!("{} floating-missing", incomplete.id),
        format!("{} keepalived-gone", without_keepalived.id),
    ];
    wait_for("every finding", || (findings() == expected).then_some(()));
    let output = fixture.ask(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("1 of 2 floating addresses are not held"), "{printed}");
    assert!(printed.contains("the monitor is deaf or gone"), "{printed}");
    wait_for("the finding in the log", || {
        fixture.log().contains("state-file-differs").then_some(())
    });
    write(&lab.path().join("ha_confs").join(&stale_file.id).join("state"), "primary");
    wait_for("the finding to end", || (findings().len() == 2).then_some(()));
}

#[test]
fn doctor_reports_two_instances_with_the_same_vrid_and_address() {
    let lab = Lab::new();
    // Both instances have the same virtual router id and the same address.
    let two = [vi_1_conf(), vi_1_conf().replace("VI_1", "VI_2")];
    let (_netns, fixture) = fixture_with(&lab, &two);
    let _node = fixture.start();
    let printed = fixture.say(&["doctor"]);
    assert!(
        printed.contains("vrid-clash") && printed.contains("address-claimed-twice"),
        "{printed}"
    );
}

#[test]
fn a_wrong_configuration_prevents_the_start_but_does_not_end_a_running_node() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\nsokcet = \"/x\"\n");
    let output = fixture.ask(&["node"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("vipwatch.toml:2: there is no key sokcet in node; did you mean socket?")
    );
    assert!(printed.contains("vipwatch config example"), "{printed}");
    let checked = Command::new(PROGRAM).args(["config", "check"]).arg(fixture.config()).output();
    assert_eq!(checked.unwrap().status.code(), Some(1));
    fixture.configure("");
    let node = fixture.start();
    fixture.configure("[node\n");
    node.reload();
    fixture.wait_for_log("the one before stands");
    let printed = fixture.say(&["doctor"]);
    assert!(
        printed.contains("node-configuration") && printed.contains("all the same"),
        "{printed}"
    );
    fixture.configure("");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "VI_1", "primary");
    node.reload();
    assert_eq!(fixture.ask(&["doctor"]).status.code(), Some(0));
}

#[test]
fn a_configuration_that_others_may_write_is_refused() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.configure("");
    let writable_by_all = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(fixture.config(), writable_by_all).unwrap();
    let output = fixture.ask(&["node", "--state-dir", fixture.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("may be written by others") && printed.contains("chmod go-w"),
        "{printed}"
    );
}

#[test]
fn an_instance_in_the_configuration_of_vipwatch_is_followed() {
    let lab = Lab::new();
    let netns = lab.netns("own");
    netns.add_link("eth0");
    let fixture = node_fixture(&lab);
    fixture.configure(&format!(
        "[[instance]]\nid = \"mine\"\nnetns = \"{}\"\naddresses = [\"192.0.2.9/24 dev eth0\"]\n",
        netns.name()
    ));
    let _node = fixture.start();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "mine", "primary");
    assert_eq!(query_json(&fixture, &["status"])["instances"][0]["origin"], "vipwatch");
    assert!(fixture.say(&["config", "show"]).contains("nobody: observed"));
}

#[test]
fn a_history_of_a_later_version_is_refused_and_a_damaged_one_is_renamed() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let file = fixture.state_dir().join("history.sqlite");
    write(&file, &"not a database ".repeat(1000));
    let node = fixture.start();
    fixture.wait_for_log("history file is damaged; a new one is begun");
    wait_for_record(&fixture, "VI_1 backup");
    assert!(node.stop().success());
    // <https://www.sqlite.org/fileformat.html>: the user version is at offset 60.
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
    std::fs::File::create(&file).unwrap().write_all(&bytes).unwrap();
    let output = fixture.ask(&["node", "--state-dir", fixture.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("has format 99") && printed.contains("hint: "), "{printed}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "the file is not changed");
}

#[test]
fn a_missing_state_directory_is_created_and_an_impossible_one_is_an_error() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    fixture.configure("");
    write(&lab.path().join("file"), "");
    let deep = lab.path().join("a/b/c");
    let below_a_file = lab.path().join("file/x");
    let output = fixture.ask(&["node", "--state-dir", below_a_file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("cannot use the directory") && printed.contains("--state-dir"),
        "{printed}"
    );
    fixture.configure(&format!("[node]\nstate_dir = \"{}\"\n", deep.display()));
    let mut child = Command::new(PROGRAM)
        .args(["node", "--config"])
        .arg(fixture.config())
        .arg("--socket")
        .arg(fixture.socket())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the history", || deep.join("history.sqlite").exists().then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn sigusr1_and_sigusr2_do_not_end_a_node() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let mut node = fixture.start();
    for signal in [rustix::process::Signal::USR1, rustix::process::Signal::USR2] {
        node.signal(signal);
        assert_eq!(query_json(&fixture, &["status"])["source"], "node", "{signal:?}");
        // The node reads signals in order: after the reload it has read this one too.
        node.reload();
        assert!(node.is_alive(), "{signal:?}");
    }
    assert!(node.stop().success());
}

#[test]
fn one_socket_per_namespace_is_reported_and_works() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\nlisten = \"each\"\n");
    let _node = fixture.start();
    fixture.wait_for_log("each namespace has a socket of its own");
    wait_for("the metric", || {
        let metrics = &query_json(&fixture, &["status"])["metrics"];
        (metrics["vipwatch_netlink_sockets"] == 2).then_some(())
    });
    assert!(fixture.say(&["doctor"]).contains("node-one-socket"));
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "VI_1", "primary");
    netns.delete();
    wait_for_role(&fixture, "VI_1", "fault");
}

#[test]
fn shell_completion_offers_the_ids_of_existing_instances() {
    let lab = Lab::new();
    let (_netns, fixture) =
        fixture_with(&lab, &[vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.3/24"])]);
    let _node = fixture.start();
    let mut command = Command::new(PROGRAM);
    command.env("COMPLETE", "bash").env("VIPWATCH_SOCKET", fixture.socket());
    command.env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_COMPLETE_COMP_TYPE", "9");
    command.env("_CLAP_COMPLETE_SPACE", "true").env("_CLAP_IFS", "\n");
    let output = output_of(command.args(["--", "vipwatch", "show", "V"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "VI_1", "{output:?}");
}

#[test]
fn invalid_requests_and_idle_connections_do_not_end_the_node() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let mut node = fixture.start();
    let send = |bytes: &[u8]| -> String {
        let mut stream = UnixStream::connect(fixture.socket()).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(send(b"\xff\xfe\0\0").contains("that is no question"));
    assert!(send(b"hello\n").contains("that is no question"));
    assert!(send(b"{\"ask\":\"coffee\"}\n").contains("nobody here knows how to"));
    assert!(send(&vec![b'x'; 1 << 20]).contains("that is no question"));
    assert!(send(b"").contains("that is no question"));
    let idle_connections: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(fixture.socket()).unwrap()).collect();
    let busy = fixture.ask(&["status"]);
    assert_eq!(busy.status.code(), Some(1), "{busy:?}");
    assert!(String::from_utf8_lossy(&busy.stderr).contains("too many ask at once"));
    drop(idle_connections);
    wait_for("a free connection", || fixture.ask(&["status"]).status.success().then_some(()));
    assert!(node.is_alive());
}

#[test]
fn both_nodes_see_a_failover_of_real_keepalived() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let sides: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let directory = lab.path().join(name);
            std::fs::create_dir_all(&directory).unwrap();
            let netns = lab.netns(name);
            switch.plug(&netns, "eth0", &format!("port-{name}"));
            (netns, directory)
        })
        .collect();
    sides[0].0.ip("address add 192.0.2.1/24 dev eth0");
    sides[1].0.ip("address add 192.0.2.2/24 dev eth0");
    let mut keepaliveds: Vec<Option<Keepalived>> = Vec::new();
    let mut nodes = Vec::new();
    for ((netns, directory), priority) in sides.iter().zip([150, 100]) {
        let keepalived = Keepalived::start(netns, directory, "eth0", "192.0.2.9/24", priority);
        keepaliveds.push(Some(keepalived));
        // The first keepalived must be primary before the second starts, or the order of the starts would decide.
        if keepaliveds.len() == 1 {
            wait_for("the first keepalived to be primary", || {
                netns.addresses("eth0").contains("192.0.2.9/24").then_some(())
            });
        }
        let conf = std::fs::read_to_string(directory.join("keepalived.conf")).unwrap();
        // The node has its own directory and its own copy of the file, with the namespace added.
        let fixture = NodeFixture::new(std::path::Path::new(PROGRAM), &directory.join("node"));
        write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{conf}", netns.name()));
        nodes.push((fixture.start(), fixture));
    }
    let roles = || [role(&nodes[0].1, ""), role(&nodes[1].1, "")];
    wait_for("a primary and a backup", || (roles() == ["primary", "backup"]).then_some(()));
    keepaliveds[0].take().unwrap().kill();
    // A killed keepalived does not remove its address. The other one adds it too, so both nodes hold it.
    wait_for("two primaries", || (roles() == ["primary", "primary"]).then_some(()));
    sides[0].0.ip("address del 192.0.2.9/24 dev eth0");
    wait_for("one primary", || (roles() == ["backup", "primary"]).then_some(()));
}

#[test]
fn a_router_that_appears_and_disappears_is_followed_without_a_reload() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    std::fs::create_dir_all(lab.path().join("ha_confs")).unwrap();
    let _node = fixture.start();
    let routers = Routers::new(lab.path(), &format!("r{}", lab.number()), 1, 0);
    let id = routers.each[0].id.clone();
    wait_for("the router to be known", || {
        fixture.ask(&["status", &id]).status.success().then_some(())
    });
    routers.each[0].take();
    wait_for_role(&fixture, &id, "primary");
    // The agent writes another address into the file.
    let conf = lab.path().join("ha_confs").join(&id).join("keepalived.conf");
    let text = std::fs::read_to_string(&conf).unwrap().replace(VIP, "169.254.0.9/24");
    write(&conf, &text);
    wait_for("the change of configuration", || {
        let answer = query_json(&fixture, &["status", &id]);
        (answer["instances"][0]["cause"] == "config").then_some(())
    });
    assert_eq!(role(&fixture, &id), "backup");
    write_conf(lab.path(), &id, &[]);
    wait_for_role(&fixture, &id, "primary");
    std::fs::remove_dir_all(lab.path().join("ha_confs").join(&id)).unwrap();
    wait_for("the router to be removed", || {
        (fixture.ask(&["status", &id]).status.code() == Some(4)).then_some(())
    });
}
