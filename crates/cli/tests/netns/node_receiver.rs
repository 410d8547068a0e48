//! Monitors report to a node: claims beside what the kernel says.

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::routers::Routers;
use vipwatch_testkit::{Lab, wait_for};

use crate::receiver::report;
use crate::{json, place};

/// The findings of the doctor about one router.
fn findings(place: &vipwatch_testkit::NodeFixture, id: &str) -> Vec<(String, String)> {
    let answer = json(place, &["doctor"]);
    let findings = answer["findings"].as_array().unwrap().iter();
    let of = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap().to_owned();
    findings
        .filter(|one| one["id"] == id)
        .map(|one| (of(one, "name"), of(one, "text")))
        .filter(|(name, _)| name.contains("monitor") || name.contains("claim"))
        .collect()
}

#[test]
fn a_node_shows_what_is_claimed_beside_what_is_so_and_finds_liars_and_silence() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("c{}", lab.number()), 2, 0);
    let place = place(&lab);
    place.configure("[agent]\ninterval = \"0s\"\n");
    let _node = place.start();
    let (liar, quiet) = (&routers.each[0].id, &routers.each[1].id);
    assert_eq!(report(lab.path(), liar, "primary"), Some(200));
    assert_eq!(report(lab.path(), "deleted", "primary"), Some(200));
    let found = wait_for("the liar", || findings(&place, liar).pop());
    let lie = "the monitor reports primary, the kernel says backup";
    assert_eq!(found, ("monitor-lies".to_owned(), lie.to_owned()));
    assert_eq!(wait_for("the silence", || findings(&place, quiet).pop()).0, "monitor-silent");
    assert_eq!(findings(&place, "deleted")[0].0, "claim-about-a-stranger");
    let shown = json(&place, &["show", liar]);
    let claim = &shown["instance"]["claim"];
    assert_eq!((&claim["claim"], &claim["state"]), (&"primary".into(), &"active".into()));
    assert_eq!(shown["instance"]["role"], "backup", "the kernel is the truth");
    assert!(place.say(&["show", liar]).contains("claimed    primary"));
    // The same by the command that asks an agent, as a table and as metrics.
    let socket = place.socket().display().to_string();
    let status = |more: &[&str]| {
        let mut command = std::process::Command::new(crate::PROGRAM);
        command.args(["agent", "status", "--status-socket", &socket]).args(more);
        String::from_utf8(output_of(&mut command).stdout).unwrap()
    };
    assert!(status(&[]).lines().any(|line| line.starts_with(liar.as_str())), "{}", status(&[]));
    let metrics = status(&["--metrics"]);
    assert!(metrics.contains("vipwatch_agent_routers{state=\"active\"} 2\n"), "{metrics}");
    // The truth, and everybody is content.
    assert_eq!(report(lab.path(), liar, "backup"), Some(200));
    assert_eq!(report(lab.path(), quiet, "backup"), Some(200));
    assert_eq!((findings(&place, liar), findings(&place, quiet)), (Vec::new(), Vec::new()));
}

#[test]
fn a_node_whose_socket_is_served_by_another_follows_all_the_same() {
    let lab = Lab::new();
    let place = place(&lab);
    place.configure("[agent]\ninterval = \"0s\"\n");
    let other =
        vipwatch_testkit::FakeAgent::listen(lab.path(), vipwatch_testkit::Behaviour::Threaded);
    let node = place.start();
    let said = place.say(&["doctor"]);
    assert!(said.contains("node-agent") && said.contains("somebody answers on"), "{said}");
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200), "the other one's");
    drop(other);
    node.reload();
    assert!(!place.say(&["doctor"]).contains("node-agent"));
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    assert!(place.state_dir().join("claims.sqlite").exists(), "ours");
}

#[test]
fn a_node_whose_receiver_lost_its_socket_says_so_and_leaves_the_other_socket() {
    let lab = Lab::new();
    let place = place(&lab);
    place.configure("[agent]\ninterval = \"0s\"\n");
    let node = place.start();
    let other =
        vipwatch_testkit::FakeAgent::listen(lab.path(), vipwatch_testkit::Behaviour::Threaded);
    wait_for("the finding", || {
        let said = place.say(&["doctor"]);
        (said.contains("receiver-socket") && said.contains("has replaced the socket file"))
            .then_some(())
    });
    place.configure("");
    node.reload();
    assert!(node.stop().success());
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    assert_eq!(other.count(), 1, "the other server is reached");
}

#[test]
fn a_node_goes_on_while_a_receiver_that_was_removed_waits_for_its_hook() {
    let lab = Lab::new();
    let (netns, place) = crate::stage(&lab, &[crate::one()]);
    let (started, gate) = (lab.path().join("started"), lab.path().join("gate"));
    let text = format!(
        "echo > {}; while [ ! -e {} ]; do sleep 0.05; done",
        started.display(),
        gate.display()
    );
    let hook = crate::notify::program(&lab.path().join("hook"), &text);
    let hanging =
        format!("[agent]\ninterval = \"0s\"\n[[agent.hook]]\nprogram = \"{}\"\n", hook.display());
    place.configure(&hanging);
    let node = place.start();
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    wait_for("the hook", || started.exists().then_some(()));
    place.configure("");
    node.reload();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for("the change", || (crate::role(&place, "VI_1") == "primary").then_some(()));
    // Asked for again before the first has ended: the second takes its place afterwards.
    place.configure("[agent]\ninterval = \"0s\"\n");
    node.reload();
    let closed = "receiver stopped";
    place.wait_for_log(closed);
    let log = place.log();
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text}: {log}"));
    assert!(at("to=\"primary\"") < at(closed), "the loop has not waited for it: {log}");
    wait_for("the next receiver", || {
        (report(lab.path(), "r1", "backup") == Some(200)).then_some(())
    });
    crate::write(&gate, "");
    assert!(node.stop().success());
}

#[test]
fn a_node_begins_and_ends_to_receive_when_it_is_told_to() {
    let lab = Lab::new();
    let place = place(&lab);
    let node = place.start();
    let socket = crate::receiver::socket(lab.path());
    assert!(!socket.exists(), "nobody receives unless it is configured");
    place.configure("[agent]\ninterval = \"0s\"\n");
    node.reload();
    wait_for("a receiver", || (report(lab.path(), "r1", "primary") == Some(200)).then_some(()));
    // Somewhere else.
    let other = lab.path().join("other.sock");
    place.configure(&format!("[agent]\nsocket = \"{}\"\nmode = \"600\"\n", other.display()));
    node.reload();
    wait_for("the other socket", || other.exists().then_some(()));
    wait_for("the first socket to go", || (!socket.exists()).then_some(()));
    let mode = std::fs::metadata(&other).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o600);
    place.configure("");
    node.reload();
    wait_for("nobody to receive", || (!other.exists()).then_some(()));
    assert!(node.stop().success());
}
