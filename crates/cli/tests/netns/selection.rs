// SPDX-License-Identifier: Apache-2.0
//! An exact id selects one instance only: `VI_1` does not select `VI_10`.

use std::fs::File;
use std::process::Command;

use serde_json::Value;
use vipwatch_testkit::monitor::end_of;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::support::{
    ADD_VIP, PROGRAM, fixture_with, instance_conf, query_json, read, transitions, vi_1_conf,
};

const VIP_10: &str = "address add 192.0.2.10/24 dev eth0";

/// A node with two instances: `VI_1` is primary, `VI_10` is backup.
fn two_instances(lab: &Lab) -> (TestNetns, NodeFixture) {
    let (netns, fixture) =
        fixture_with(lab, &[vi_1_conf(), instance_conf("VI_10", "eth0", &["192.0.2.10/24"])]);
    netns.ip(ADD_VIP);
    (netns, fixture)
}

/// The ids of the entries of a list.
fn ids(list: &Value) -> Vec<String> {
    let entries = list.as_array().unwrap().iter();
    entries.map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn status_and_history_of_an_exact_id_leave_longer_ids_out() {
    let lab = Lab::new();
    let (_netns, fixture) = two_instances(&lab);
    let _node = fixture.start();
    let conf = fixture.keepalived_conf();
    let direct = ["--keepalived-conf", conf.to_str().unwrap()];
    for args in [&[][..], &direct] {
        let expect = [&["status", "VI_1", "--expect", "primary"], args].concat();
        let output = fixture.run(&expect);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(
            ids(&query_json(&fixture, &[&["status", "VI_1"], args].concat())["instances"]),
            ["VI_1"]
        );
        assert_eq!(
            ids(&query_json(&fixture, &[&["status", "VI_"], args].concat())["instances"]).len(),
            2
        );
        assert_eq!(
            query_json(&fixture, &[&["show", "VI_1"], args].concat())["instance"]["id"],
            "VI_1"
        );
    }
    wait_for("both records", || (transitions(&fixture, &["VI_"]).len() == 2).then_some(()));
    let state_dir = fixture.state_dir();
    let direct = ["--state-dir", state_dir.to_str().unwrap()];
    for args in [&[][..], &direct] {
        let recorded = Value::from(transitions(&fixture, &[&["VI_1"], args].concat()));
        assert_eq!(ids(&recorded), ["VI_1"]);
    }
}

#[test]
fn a_watch_of_an_exact_id_leaves_longer_ids_out() {
    let lab = Lab::new();
    let (netns, fixture) = two_instances(&lab);
    let _node = fixture.start();
    let watch = |name: &str, args: &[&str]| {
        let shown = lab.path().join(name);
        let mut command = Command::new(PROGRAM);
        command.args(["watch", "VI_1", "-n", "1", "--config"]);
        command.arg(fixture.config()).arg("--socket").arg(fixture.socket()).args(args);
        let child = command.stdout(File::create(&shown).unwrap()).spawn().unwrap();
        wait_for("the first line", || read(&shown).contains("VI_1").then_some(()));
        (child, shown)
    };
    let conf = fixture.keepalived_conf();
    let watches = [
        watch("from-node", &[]),
        watch("from-kernel", &["--keepalived-conf", conf.to_str().unwrap()]),
    ];
    netns.ip(VIP_10);
    wait_for("VI_10", || (crate::support::role(&fixture, "VI_10") == "primary").then_some(()));
    netns.ip(crate::support::REMOVE_VIP);
    for (mut child, shown) in watches {
        assert!(end_of(&mut child).is_some_and(|status| status.success()));
        assert!(!read(&shown).contains("VI_10"), "{}", read(&shown));
    }
}
