// SPDX-License-Identifier: Apache-2.0
//! The cause of each transition, with real keepalived on two hosts.
//!
//! A node with processes sees the keepaliveds of other hosts and tests, too: each host looks at its own instance only,
//! which has a name of its own.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns, script, wait_for, wait_showing};

use crate::support::{PROGRAM, query_json, transitions, wait_for_role, write, write_hook};

const VIP: &str = "192.0.2.100/24";

/// A host with keepalived and a node.
struct Host {
    netns: TestNetns,
    directory: PathBuf,
    fixture: NodeFixture,
    /// The name of the instance.
    name: String,
    /// The last part of the host's address, and the name of its port on the switch.
    number: u8,
}

/// Two hosts on one switch.
struct Pair {
    hosts: [Host; 2],
    switch: BridgeSwitch,
    _lab: Lab,
}

impl Pair {
    fn new(node_config: &str) -> Self {
        let lab = Lab::new();
        let switch = BridgeSwitch::new(&lab);
        let hosts = [10, 11].map(|number| Host::new(&lab, &switch, number, node_config));
        Self { hosts, switch, _lab: lab }
    }
}

impl Host {
    fn new(lab: &Lab, switch: &BridgeSwitch, number: u8, node_config: &str) -> Self {
        let netns = lab.netns(&number.to_string());
        switch.plug(&netns, "eth0", &format!("p{number}"));
        netns.ip(&format!("address add 192.0.2.{number}/24 dev eth0"));
        netns.ip("route add 224.0.0.0/4 dev eth0");
        let directory = lab.path().join(number.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        let fixture = NodeFixture::new(Path::new(PROGRAM), &directory).with_processes().on(&netns);
        fixture.configure(&format!("{node_config}[witness]\nenabled = true\n"));
        Self { netns, directory, fixture, name: format!("c{}_{number}", lab.number()), number }
    }

    fn conf(&self, priority: u8, statements: &str) -> String {
        format!(
            "global_defs {{\nscript_user root\nenable_script_security\n}}\n{statements}\nvrrp_instance {} {{\n\
             state BACKUP\ninterface eth0\nvirtual_router_id 21\npriority {priority}\nadvert_int 1\n{}\
             virtual_ipaddress {{\n{VIP}\n}}\n}}\n",
            self.name,
            if statements.contains("vrrp_script") { "track_script {\ncheck\n}\n" } else { "" },
        )
    }

    fn start_keepalived(&self, priority: u8, statements: &str) -> Keepalived {
        Keepalived::start_with(&self.netns, &self.directory, &self.conf(priority, statements))
    }

    fn start(&self, priority: u8) -> (Keepalived, NodeProcess) {
        (self.start_keepalived(priority, ""), self.fixture.start())
    }

    #[track_caller]
    fn wait_for_role(&self, role: &str) {
        wait_for_role(&self.fixture, &self.name, role);
    }

    /// Waits until the last transition to `role` has a cause; returns its document in the history.
    #[track_caller]
    fn cause(&self, role: &str) -> Value {
        let log =
            || format!("{}\n{:?}", self.fixture.log(), transitions(&self.fixture, &[&self.name]));
        let what = format!("a cause of the transition to {role}");
        wait_showing(&what, log, || {
            let last = transitions(&self.fixture, &[&self.name]).pop()?;
            (last["to"] == role && last["cause"].is_string()).then_some(last)
        })
    }

    #[track_caller]
    fn expect_cause(&self, role: &str, cause: &str) -> Value {
        let last = self.cause(role);
        assert_eq!(last["cause"], cause, "{last}\n{}", self.fixture.log());
        last["evidence"].clone()
    }

    /// Waits until the node has captured adverts of another host.
    #[track_caller]
    fn wait_for_adverts_of(&self, source: &str) {
        wait_for("adverts of the other host", || {
            let detail = query_json(&self.fixture, &["show", &self.name]);
            let sources = detail["adverts"]["sources"].as_array()?;
            sources.iter().any(|one| one["source"] == source).then_some(())
        });
    }

    fn pid(&self, file: &str) -> Pid {
        let file = self.directory.join(file);
        let pid = wait_for("the pid file", || {
            std::fs::read_to_string(&file).ok()?.trim().parse::<i32>().ok()
        });
        Pid::from_raw(pid).unwrap()
    }
}

#[test]
fn a_preemption_and_a_clean_hand_over_are_named_on_both_nodes() {
    let pair = Pair::new("");
    let [first, second] = &pair.hosts;
    let (_keepalived, _node) = first.start(100);
    first.wait_for_role("primary");
    first.expect_cause("primary", "keepalived-started");
    let (keepalived, _other_node) = second.start(150);
    second.wait_for_role("primary");
    let evidence = first.expect_cause("backup", "preempted");
    assert_eq!(
        (&evidence["peer"], &evidence["peer_priority"]),
        (&"192.0.2.11".into(), &150.into())
    );
    assert_eq!(evidence["own_priority"], 100);
    second.expect_cause("primary", "keepalived-started");
    keepalived.stop();
    let evidence = first.expect_cause("primary", "peer-handed-over");
    assert_eq!(evidence["peer"], "192.0.2.11");
    let evidence = second.expect_cause("backup", "keepalived-stopped");
    assert_eq!(evidence["exit_code"], 0);
}

#[test]
fn a_killed_keepalived_is_silence_for_the_peer_and_a_kill_for_its_own_node() {
    let pair = Pair::new("");
    let [first, second] = &pair.hosts;
    let (keepalived, _node) = first.start(150);
    first.wait_for_role("primary");
    let (_other, _other_node) = second.start(100);
    second.wait_for_role("backup");
    second.wait_for_adverts_of("192.0.2.10");
    keepalived.kill();
    let evidence = second.expect_cause("primary", "peer-silent");
    let silent = evidence["silent_ms"].as_u64().unwrap();
    assert!((3_000..10_000).contains(&silent), "{evidence}");
    // The address is still there: no transition on the first node. The parent alone takes its child with it.
    assert_eq!(transitions(&first.fixture, &[&first.name]).last().unwrap()["to"], "primary");
    // A killed child stays a zombie here until the test ends, and keepalived would take it for alive.
    for file in ["keepalived.pid", "keepalived-vrrp.pid"] {
        std::fs::remove_file(first.directory.join(file)).unwrap();
    }
    let _again = first.start_keepalived(150, "");
    let log = || std::fs::read_to_string(first.directory.join("keepalived.log")).unwrap();
    wait_showing("keepalived to take over", log, || log().contains("MASTER STATE").then_some(()));
    second.expect_cause("backup", "preempted");
    first.wait_for_role("primary");
    kill_process(first.pid("keepalived.pid"), Signal::KILL).unwrap();
    let evidence = first.expect_cause("backup", "keepalived-killed");
    assert_eq!(evidence["signal"], 9);
}

#[test]
fn an_address_that_is_removed_and_added_by_hand_names_the_program() {
    let pair = Pair::new("");
    let [host, _] = &pair.hosts;
    let (_keepalived, _node) = host.start(100);
    host.wait_for_role("primary");
    host.netns.ip(&format!("address del {VIP} dev eth0"));
    // Keepalived may have taken the address back already.
    let is_removal = |row: &Value| row["from"] == "primary" && row["cause"].is_string();
    let cause = wait_for("the cause of the removal", || {
        transitions(&host.fixture, &[&host.name]).into_iter().find(is_removal)
    });
    assert_eq!(cause["cause"], "address-removed", "{cause}");
    assert!(cause["evidence"]["pid"].is_u64(), "{cause}");
}

#[test]
fn a_lost_link_and_its_return_are_named() {
    let pair = Pair::new("");
    let [host, _] = &pair.hosts;
    let (_keepalived, _node) = host.start(100);
    host.wait_for_role("primary");
    pair.switch.disconnect(&format!("p{}", host.number));
    host.expect_cause("fault", "link-lost");
    pair.switch.reconnect(&format!("p{}", host.number));
    host.wait_for_role("primary");
    let causes: Vec<Value> =
        transitions(&host.fixture, &[&host.name]).iter().map(|one| one["cause"].clone()).collect();
    assert!(causes.contains(&"link-restored".into()), "{causes:?}");
}

#[test]
fn a_failed_track_script_is_a_dropped_priority_on_both_nodes() {
    let pair = Pair::new("");
    let [first, second] = &pair.hosts;
    let good = first.directory.join("good");
    write(&good, "");
    let check = first.directory.join("check.sh");
    script(&check, &format!("#!/bin/sh\ntest -e {}\n", good.display()));
    let statements =
        format!("vrrp_script check {{\nscript {}\ninterval 1\nweight -100\n}}\n", check.display());
    let _keepalived = first.start_keepalived(150, &statements);
    let _node = first.fixture.start();
    first.wait_for_role("primary");
    let (_other, _other_node) = second.start(100);
    second.wait_for_role("backup");
    second.wait_for_adverts_of("192.0.2.10");
    std::fs::remove_file(&good).unwrap();
    first.wait_for_role("backup");
    let evidence = first.expect_cause("backup", "priority-dropped");
    assert_eq!(
        (&evidence["own_priority_before"], &evidence["peer"]),
        (&150.into(), &"192.0.2.11".into())
    );
    let evidence = second.expect_cause("primary", "peer-priority-dropped");
    assert_eq!(
        (&evidence["peer_priority_before"], &evidence["peer_priority"]),
        (&150.into(), &50.into())
    );
}

#[test]
fn a_reload_of_a_changed_configuration_is_named() {
    let pair = Pair::new("");
    let [first, second] = &pair.hosts;
    let (_keepalived, _node) = first.start(150);
    first.wait_for_role("primary");
    let (_other, _other_node) = second.start(100);
    second.wait_for_role("backup");
    let conf = first.directory.join("keepalived.conf");
    write(&conf, &first.conf(50, ""));
    kill_process(first.pid("keepalived.pid"), Signal::HUP).unwrap();
    first.wait_for_role("backup");
    first.expect_cause("backup", "configuration-changed");
}

#[test]
fn a_hook_and_a_watch_have_the_cause_of_a_transition() {
    let lab = Lab::new();
    let out = lab.path().join("out");
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!("echo \"$VIPWATCH_TO $VIPWATCH_TRIGGER $VIPWATCH_CAUSE\" >> {}\n", out.display()),
    );
    let rule = format!("[[notify]]\n[[notify.hook]]\nname = \"h\"\nprogram = {hook:?}\n");
    let pair = Pair::new(&rule);
    let [host, _] = &pair.hosts;
    let keepalived = host.start_keepalived(100, "");
    let _node = host.fixture.start();
    host.wait_for_role("primary");
    let is_written = |line: &str| {
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        text.lines().any(|one| one == line).then_some(())
    };
    wait_for("the hook with the start", || is_written("primary address keepalived-started"));
    keepalived.stop();
    wait_for("the hook with the stop", || is_written("backup address keepalived-stopped"));
    let log = host.fixture.log();
    assert!(log.contains("cause of a transition"), "{log}");
    let text = host.fixture.run_text(&["show", &host.name]);
    assert!(text.contains("was stopped"), "{text}");
}

#[test]
fn all_steps_of_one_change_have_its_cause_and_reach_hooks_in_their_order() {
    let lab = Lab::new();
    let out = lab.path().join("out");
    let line = "echo \"$VIPWATCH_ID $VIPWATCH_FROM $VIPWATCH_TO $VIPWATCH_CAUSE\"";
    let hook =
        write_hook(&lab.path().join("hook"), &format!("{line} >> {out}\n", out = out.display()));
    let rule = format!("[[notify]]\n[[notify.hook]]\nname = \"h\"\nprogram = {hook:?}\n");
    let pair = Pair::new(&rule);
    let [host, _] = &pair.hosts;
    // Keepalived adds and removes the addresses one after the other: the role is `partial` for a moment.
    let many: Vec<String> = (100..119).map(|last| format!("192.0.2.{last}/24")).collect();
    let conf = host.conf(100, "").replace(VIP, &many.join("\n"));
    let keepalived = Keepalived::start_with(&host.netns, &host.directory, &conf);
    let _node = host.fixture.start();
    host.wait_for_role("primary");
    host.cause("primary");
    keepalived.stop();
    host.cause("backup");
    let rows = transitions(&host.fixture, &[&host.name]);
    let stop = rows.iter().position(|row| row["from"] == "primary").expect("the stop");
    for (number, row) in rows.iter().enumerate().skip(1) {
        let expected = if number < stop { "keepalived-started" } else { "keepalived-stopped" };
        assert_eq!(row["cause"], expected, "{rows:?}");
    }
    let expected: Vec<String> = rows
        .iter()
        .skip(1)
        .map(|row| {
            let word = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            format!("{} {} {} {}", host.name, word("from"), word("to"), word("cause"))
        })
        .collect();
    // The node also finds the keepaliveds of other tests.
    let called = || {
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        let own = text.lines().filter(|line| line.starts_with(&host.name));
        own.skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let show = || format!("{:?}\n{expected:?}", called());
    wait_showing("the hook for the last step", show, || {
        (called().last() == expected.last()).then_some(())
    });
    // A hook may skip a step that a newer one has replaced, but never reorders them.
    let mut remaining = expected.iter();
    let is_ordered = called().iter().all(|line| remaining.any(|one| one == line));
    assert!(is_ordered, "{}", show());
}
