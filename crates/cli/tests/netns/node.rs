//! A node that runs, and whoever asks it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::monitor::{end_of, output_of};
use vipwatch_testkit::routers::{VIP, write_conf};
use vipwatch_testkit::{Lab, NodeFixture, Routers, wait_for};

use crate::{PROGRAM, instance, json, one, place, role, stage, write};

/// What was recorded, in short.
fn recorded(place: &NodeFixture) -> Vec<String> {
    let answer = json(place, &["history"]);
    let each = answer["changes"].as_array().unwrap().iter();
    each.map(|change| format!("{} {}", change["id"], change["to"]).replace('"', "")).collect()
}

fn wait_for_record(place: &NodeFixture, what: &str) {
    wait_for(what, || recorded(place).iter().any(|line| line == what).then_some(()));
}

fn wait_for_role(place: &NodeFixture, id: &str, expected: &str) {
    wait_for(expected, || (role(place, id) == expected).then_some(()));
}

#[test]
fn a_node_knows_since_when_and_asks_nobody() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let _node = place.start();
    assert_eq!(role(&place, "VI"), "backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&place, "VI_1", "primary");
    let answer = json(&place, &["status", "VI_1"]);
    assert_eq!(
        (&answer["source"], &answer["schema"]),
        (&"node".into(), &"vipwatch.status/1".into())
    );
    let instance = &answer["instances"][0];
    assert_eq!((&instance["cause"], &instance["seq"]), (&"address".into(), &2.into()));
    assert!(instance["since"].as_i64() > Some(1_600_000_000_000));
    wait_for("it to be counted", || {
        (json(&place, &["status"])["metrics"]["vipwatch_transitions_total"] == 2).then_some(())
    });
    let status = |words: &[&str]| place.ask(&[&["status"], words].concat()).status.code();
    assert_eq!(status(&["--expect", "primary"]), Some(0));
    assert_eq!(status(&["--expect", "backup"]), Some(1));
    assert_eq!(status(&["nobody"]), Some(4));
    assert!(place.say(&["status", "nobody"]).contains("vipwatch discover"));
    assert_eq!(json(&place, &["status", "--direct"])["source"], "kernel");
}

#[test]
fn a_node_remembers_through_a_stop_and_through_a_kill() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let none = place.ask(&["history", "--state-dir", lab.path().to_str().unwrap()]);
    assert_eq!(none.status.code(), Some(4), "there is none yet");
    let first = place.start();
    wait_for_record(&place, "VI_1 backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_record(&place, "VI_1 primary");
    let since = json(&place, &["status"])["instances"][0]["since"].clone();
    assert!(first.stop().success());
    assert!(!place.socket().exists(), "it takes its socket with it");

    for _ in 0..2 {
        let between = place.start();
        let after = &json(&place, &["status"])["instances"][0];
        assert_eq!(after["since"], since, "it is primary since then, not since the restart");
        assert!(between.stop().success());
    }
    let second = place.start();
    netns.ip("link set eth0p down");
    netns.ip("address del 192.0.2.9/24 dev eth0");
    wait_for_record(&place, "VI_1 fault");
    second.kill();

    let _third = place.start();
    place.wait_for_log("the node before was killed");
    let said = place.say(&["history", "--since", "1h", "--id", "VI"]);
    assert!(said.contains("(stopped)") && said.contains("(killed)"), "{said}");
    assert!(said.contains("eth0 has no carrier"), "{said}");
    let all = recorded(&place);
    assert_eq!(all[..2], ["VI_1 backup", "VI_1 primary"], "{all:?}");
    assert!(place.say(&["history", "--id", "nobody"]).contains("nothing of that is recorded"));
    let flaps = json(&place, &["history"])["flaps"][0].clone();
    assert_eq!((&flaps["id"], &flaps["primary"]), (&"VI_1".into(), &1.into()), "{flaps}");
    assert!(place.say(&["history", "--flaps"]).contains("CHANGES"));
}

#[test]
fn a_second_node_in_one_directory_or_on_one_socket_is_refused() {
    let lab = Lab::new();
    let place = place(&lab);
    let _first = place.start();
    let state = place.state_dir();
    let state = state.to_str().unwrap();
    let output = place.ask(&["node", "--state-dir", state]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("another vipwatch node records in"));
    let elsewhere = lab.path().join("elsewhere");
    let output = place.ask(&["node", "--state-dir", elsewhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("somebody answers on"));
}

#[test]
fn a_stale_socket_is_replaced_and_something_else_of_its_name_is_left_alone() {
    let lab = Lab::new();
    let place = place(&lab);
    place.start().kill();
    assert!(place.socket().exists(), "a killed node leaves it");
    let node = place.start();
    let mode = std::fs::metadata(place.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert!(node.stop().success());
    write(&place.socket(), "a file");
    let output = place.ask(&["node", "--state-dir", place.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a socket"), "{output:?}");
    assert_eq!(std::fs::read_to_string(place.socket()).unwrap(), "a file");
}

#[test]
fn a_node_whose_socket_was_replaced_says_so_and_leaves_the_other_socket() {
    let lab = Lab::new();
    let place = place(&lab);
    let node = place.start();
    let moved = lab.path().join("moved.sock");
    std::fs::rename(place.socket(), &moved).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    let doctor = || {
        let mut command = Command::new(PROGRAM);
        command.args(["doctor", "--config"]).arg(place.config()).arg("--socket").arg(&moved);
        String::from_utf8(output_of(&mut command).stdout).unwrap()
    };
    wait_for("the finding", || {
        let said = doctor();
        (said.contains("node-socket") && said.contains("has replaced the socket file"))
            .then_some(())
    });
    place.wait_for_log("commands do not reach this node");
    assert!(node.stop().success());
    assert!(UnixStream::connect(place.socket()).is_ok(), "the other server's socket is there");
}

#[test]
fn what_is_configured_anew_is_followed_and_half_a_file_is_not_believed() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let node = place.start();
    let conf = |text: &str| {
        let text = format!("net_namespace {}\n{text}", netns.name());
        write(&place.keepalived_conf(), &text);
    };
    // Nobody says that it has changed: the directory does.
    let two = one() + &instance("VI_2", "eth0", &["192.0.2.2/24"]);
    conf(&two);
    wait_for_record(&place, "VI_2 backup");
    // Half a file: what is followed is followed on.
    conf(&two[..two.len() - 20]);
    place.wait_for_log("is not closed");
    netns.ip("address add 192.0.2.2/24 dev eth0");
    wait_for_record(&place, "VI_2 primary");
    node.reload();
    let expected = ["VI_1 backup", "VI_2 backup", "VI_2 primary"];
    assert_eq!(recorded(&place), expected, "the first was not touched");
    assert!(place.say(&["doctor"]).contains("configuration-problem"));
    // A whole file again, without the second.
    conf(&one());
    wait_for("the second to be gone", || {
        (place.ask(&["status", "VI_2"]).status.code() == Some(4)).then_some(())
    });
    assert_eq!(place.ask(&["doctor"]).status.code(), Some(0), "{}", place.say(&["doctor"]));
}

/// `vipwatch watch`, and what it says.
struct Watcher {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Watcher {
    fn new(place: &NodeFixture, words: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("watch").args(words).arg("--socket").arg(place.socket());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watching_shows_where_everybody_stands_and_then_each_change_once() {
    let lab = Lab::new();
    let two = [one(), instance("DB", "eth0", &["192.0.2.2/24"])];
    let (netns, place) = stage(&lab, &two);
    let states = lab.path().join("states");
    place.configure(&format!("[[outlet]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    let node = place.start();
    let mut all = Watcher::new(&place, &[]);
    let mut some = Watcher::new(&place, &["VI", "--format", "json", "--changes", "2"]);
    assert!(all.line().contains("DB  backup  (since "));
    assert!(all.line().contains("VI_1  backup  (since "));
    let first: Value = serde_json::from_str(&some.line()).unwrap();
    assert_eq!((&first["schema"], &first["id"]), (&"vipwatch.standing/1".into(), &"VI_1".into()));
    netns.ip("address add 192.0.2.2/24 dev eth0");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    let line = all.line();
    assert!(line.contains("DB  backup → primary  (address)  [file "), "{line}");
    assert!(all.line().contains("VI_1  backup → primary"));
    let change: Value = serde_json::from_str(&some.line()).unwrap();
    assert_eq!((&change["id"], &change["to"]), (&"VI_1".into(), &"primary".into()));
    assert!(change["latencies"]["file"].as_i64() > Some(0), "{change}");
    netns.ip("address del 192.0.2.9/24 dev eth0");
    let change: Value = serde_json::from_str(&some.line()).unwrap();
    assert_eq!((&change["from"], &change["seq"]), (&"primary".into(), &5.into()));
    assert!(end_of(&mut some.child).is_some_and(|status| status.success()));
    assert!(node.stop().success());
    assert_eq!(end_of(&mut all.child).and_then(|status| status.code()), Some(4));
}

#[test]
fn one_instance_is_shown_with_its_past_and_with_who_disagrees() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("s{}", lab.number()), 2, 2);
    let place = place(&lab);
    let _node = place.start();
    let router = &routers.each[0];
    router.take();
    wait_for_role(&place, &router.id, "primary");
    wait_for_record(&place, &format!("{} primary", router.id));
    let state = lab.path().join("ha_confs").join(&router.id).join("state");
    write(&state, "backup");
    let shown = json(&place, &["show", &router.id]);
    assert_eq!(shown["findings"][0]["name"], "state-file-differs", "{shown}");
    assert_eq!(shown["timeline"].as_array().unwrap().len(), 2);
    let addresses = shown["instance"]["addresses"].as_array().unwrap();
    assert_eq!(addresses.len(), 3);
    assert!(addresses.iter().all(|address| address["held"] == true), "{addresses:?}");
    assert_eq!(addresses[1]["excluded"], true);
    let page = place.say(&["show", &router.id]);
    assert!(page.contains("finding    state-file-differs: the state file says backup"), "{page}");
    // The beginning of an id must be that of one.
    let several = place.ask(&["show", &router.id[..router.id.len() - 1]]);
    assert_eq!(several.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&several.stderr).contains("could be 2 of them"));
}

#[test]
fn the_doctor_finds_what_is_wrong_and_says_what_to_do() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("d{}", lab.number()), 3, 2);
    let place = place(&lab);
    let _node = place.start();
    for router in &routers.each {
        let directory = lab.path().join("ha_confs").join(&router.id);
        write(&directory.join("state"), "backup");
    }
    assert_eq!(place.ask(&["doctor"]).status.code(), Some(0), "{}", place.say(&["doctor"]));
    let (deaf, half, headless) = (&routers.each[0], &routers.each[1], &routers.each[2]);
    deaf.take();
    half.take();
    write(&lab.path().join("ha_confs").join(&half.id).join("state"), "primary");
    let (editor, link) = half.editor();
    editor.remove(link, "10.0.0.2/32".parse().unwrap());
    // Nobody has this pid: it is above every limit.
    write(&lab.path().join(format!("ha_confs/{}.pid.keepalived", headless.id)), "99999999");
    let findings = || -> Vec<String> {
        let answer = json(&place, &["doctor"]);
        let each = answer["findings"].as_array().unwrap().iter();
        let each = each.map(|one| format!("{} {}", one["id"], one["name"]).replace('"', ""));
        each.collect()
    };
    let expected = [
        format!("{} state-file-differs", deaf.id),
        format!("{} floating-missing", half.id),
        format!("{} keepalived-gone", headless.id),
    ];
    wait_for("every finding", || (findings() == expected).then_some(()));
    let output = place.ask(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("1 of 2 floating addresses are not held"), "{said}");
    assert!(said.contains("the monitor does not run or misses events"), "{said}");
    wait_for("the log to have it", || place.log().contains("state-file-differs").then_some(()));
    write(&lab.path().join("ha_confs").join(&deaf.id).join("state"), "primary");
    wait_for("it to be over", || (findings().len() == 2).then_some(()));
}

#[test]
fn the_doctor_finds_two_who_claim_the_same() {
    let lab = Lab::new();
    // The same virtual router id, too.
    let two = [one(), one().replace("VI_1", "VI_2")];
    let (_netns, place) = stage(&lab, &two);
    let _node = place.start();
    let said = place.say(&["doctor"]);
    assert!(said.contains("vrid-clash") && said.contains("address-claimed-twice"), "{said}");
}

#[test]
fn a_configuration_that_is_wrong_keeps_a_node_from_starting_and_not_from_running() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    place.configure("[node]\nsokcet = \"/x\"\n");
    let output = place.ask(&["node"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("vipwatch.toml:2: there is no key sokcet in node; did you mean socket?"));
    assert!(said.contains("vipwatch config example"), "{said}");
    let checked = Command::new(PROGRAM).args(["config", "check"]).arg(place.config()).output();
    assert_eq!(checked.unwrap().status.code(), Some(1));
    place.configure("");
    let node = place.start();
    place.configure("[node\n");
    node.reload();
    place.wait_for_log("the one before stands");
    let said = place.say(&["doctor"]);
    assert!(said.contains("node-configuration") && said.contains("all the same"), "{said}");
    place.configure("");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&place, "VI_1", "primary");
    node.reload();
    assert_eq!(place.ask(&["doctor"]).status.code(), Some(0));
}

#[test]
fn a_configuration_that_others_may_write_is_refused() {
    let lab = Lab::new();
    let place = place(&lab);
    place.configure("");
    let everybody = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(place.config(), everybody).unwrap();
    let output = place.ask(&["node", "--state-dir", place.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("may be written by others") && said.contains("chmod go-w"), "{said}");
}

#[test]
fn an_instance_of_our_own_configuration_is_followed() {
    let lab = Lab::new();
    let netns = lab.netns("own");
    netns.add_link("eth0");
    let place = place(&lab);
    place.configure(&format!(
        "[[instance]]\nid = \"mine\"\nnetns = \"{}\"\naddresses = [\"192.0.2.9/24 dev eth0\"]\n",
        netns.name()
    ));
    let _node = place.start();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&place, "mine", "primary");
    assert_eq!(json(&place, &["status"])["instances"][0]["origin"], "vipwatch");
    assert!(place.say(&["config", "show"]).contains("nobody: observed"));
}

#[test]
fn a_history_of_a_later_version_is_refused_and_a_broken_one_is_set_aside() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let file = place.state_dir().join("history.sqlite");
    write(&file, &"not a database ".repeat(1000));
    let node = place.start();
    place.wait_for_log("history file is damaged; a new one is begun");
    wait_for_record(&place, "VI_1 backup");
    assert!(node.stop().success());
    // <https://www.sqlite.org/fileformat.html>: the user version is at offset 60.
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
    std::fs::File::create(&file).unwrap().write_all(&bytes).unwrap();
    let output = place.ask(&["node", "--state-dir", place.state_dir().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("has format 99") && said.contains("hint: "), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "and left alone");
}

#[test]
fn a_missing_directory_is_made_and_one_that_cannot_be_is_named() {
    let lab = Lab::new();
    let place = place(&lab);
    place.configure("");
    write(&lab.path().join("file"), "");
    let deep = lab.path().join("a/b/c");
    let below_a_file = lab.path().join("file/x");
    let output = place.ask(&["node", "--state-dir", below_a_file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot use the directory") && said.contains("--state-dir"), "{said}");
    place.configure(&format!("[node]\nstate_dir = \"{}\"\n", deep.display()));
    let mut child = Command::new(PROGRAM)
        .args(["node", "--config"])
        .arg(place.config())
        .arg("--socket")
        .arg(place.socket())
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
    let (_netns, place) = stage(&lab, &[one()]);
    let mut node = place.start();
    for signal in [rustix::process::Signal::USR1, rustix::process::Signal::USR2] {
        node.signal(signal);
        assert_eq!(json(&place, &["status"])["source"], "node", "{signal:?}");
        // The reload comes after the signal: both are read in one place.
        node.reload();
        assert!(node.is_alive(), "{signal:?}");
    }
    assert!(node.stop().success());
}

#[test]
fn a_socket_in_each_namespace_is_visible_and_works() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    place.configure("[node]\nlisten = \"each\"\n");
    let _node = place.start();
    place.wait_for_log("each namespace has a socket of its own");
    wait_for("the metric", || {
        let metrics = &json(&place, &["status"])["metrics"];
        (metrics["vipwatch_netlink_sockets"] == 2).then_some(())
    });
    assert!(place.say(&["doctor"]).contains("node-one-socket"));
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&place, "VI_1", "primary");
    netns.delete();
    wait_for_role(&place, "VI_1", "fault");
}

#[test]
fn a_shell_completes_the_ids_there_are() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one(), instance("DB", "eth0", &["192.0.2.3/24"])]);
    let _node = place.start();
    let mut command = Command::new(PROGRAM);
    command.env("COMPLETE", "bash").env("VIPWATCH_SOCKET", place.socket());
    command.env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_COMPLETE_COMP_TYPE", "9");
    command.env("_CLAP_COMPLETE_SPACE", "true").env("_CLAP_IFS", "\n");
    let output = output_of(command.args(["--", "vipwatch", "show", "V"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "VI_1", "{output:?}");
}

#[test]
fn noise_and_idlers_at_the_socket_keep_nobody_from_asking() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    let mut node = place.start();
    let say = |bytes: &[u8]| -> String {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(say(b"\xff\xfe\0\0").contains("that is no question"));
    assert!(say(b"hello\n").contains("that is no question"));
    assert!(say(b"{\"ask\":\"coffee\"}\n").contains("nobody here knows how to"));
    assert!(say(&vec![b'x'; 1 << 20]).contains("that is no question"));
    assert!(say(b"").contains("that is no question"));
    let idlers: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(place.socket()).unwrap()).collect();
    let busy = place.ask(&["status"]);
    assert_eq!(busy.status.code(), Some(1), "{busy:?}");
    assert!(String::from_utf8_lossy(&busy.stderr).contains("too many ask at once"));
    drop(idlers);
    wait_for("room again", || place.ask(&["status"]).status.success().then_some(()));
    assert!(node.is_alive());
}

#[test]
fn real_keepalived_fails_over_and_both_nodes_know() {
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
        // Nobody takes over from another here: who is first must not depend on who starts sooner.
        if keepaliveds.len() == 1 {
            wait_for("the first to be primary", || {
                netns.addresses("eth0").contains("192.0.2.9/24").then_some(())
            });
        }
        let conf = std::fs::read_to_string(directory.join("keepalived.conf")).unwrap();
        // The node has a directory of its own: keepalived was started with the file as it is.
        let place = NodeFixture::new(std::path::Path::new(PROGRAM), &directory.join("node"));
        write(&place.keepalived_conf(), &format!("net_namespace {}\n{conf}", netns.name()));
        nodes.push((place.start(), place));
    }
    let roles = || [role(&nodes[0].1, ""), role(&nodes[1].1, "")];
    wait_for("a primary and a backup", || (roles() == ["primary", "backup"]).then_some(()));
    keepaliveds[0].take().unwrap().kill();
    // It leaves its address behind: the other takes it, and now two nodes hold it.
    wait_for("two primaries", || (roles() == ["primary", "primary"]).then_some(()));
    sides[0].0.ip("address del 192.0.2.9/24 dev eth0");
    wait_for("one primary", || (roles() == ["backup", "primary"]).then_some(()));
}

#[test]
fn a_router_that_comes_and_goes_is_followed_without_a_word_to_the_node() {
    let lab = Lab::new();
    let place = place(&lab);
    std::fs::create_dir_all(lab.path().join("ha_confs")).unwrap();
    let _node = place.start();
    let routers = Routers::new(lab.path(), &format!("r{}", lab.number()), 1, 0);
    let id = routers.each[0].id.clone();
    wait_for("it to be known", || place.ask(&["status", &id]).status.success().then_some(()));
    routers.each[0].take();
    wait_for_role(&place, &id, "primary");
    // Another address, written by the agent.
    let conf = lab.path().join("ha_confs").join(&id).join("keepalived.conf");
    let text = std::fs::read_to_string(&conf).unwrap().replace(VIP, "169.254.0.9/24");
    write(&conf, &text);
    wait_for("the cause", || {
        let answer = json(&place, &["status", &id]);
        (answer["instances"][0]["cause"] == "config").then_some(())
    });
    assert_eq!(role(&place, &id), "backup");
    write_conf(lab.path(), &id, &[]);
    wait_for_role(&place, &id, "primary");
    std::fs::remove_dir_all(lab.path().join("ha_confs").join(&id)).unwrap();
    wait_for("it to be forgotten", || {
        (place.ask(&["status", &id]).status.code() == Some(4)).then_some(())
    });
}
