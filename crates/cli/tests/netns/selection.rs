//! `VI_1` is the instance `VI_1`, also where there is a `VI_10`.

use std::fs::File;
use std::process::Command;

use serde_json::Value;
use vipwatch_testkit::monitor::end_of;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::notify::{VIP, read};
use crate::{PROGRAM, instance, json, one, stage};

const VIP_10: &str = "address add 192.0.2.10/24 dev eth0";

/// `VI_1` is primary, `VI_10` is backup.
fn two(lab: &Lab) -> (TestNetns, NodeFixture) {
    let (netns, place) = stage(lab, &[one(), instance("VI_10", "eth0", &["192.0.2.10/24"])]);
    netns.ip(VIP);
    (netns, place)
}

/// The ids that an answer is about.
fn ids(list: &Value) -> Vec<String> {
    let each = list.as_array().unwrap().iter();
    each.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn status_and_history_of_an_exact_id_leave_longer_ids_out() {
    let lab = Lab::new();
    let (_netns, place) = two(&lab);
    let _node = place.start();
    let conf = place.keepalived_conf();
    let direct = ["--keepalived-conf", conf.to_str().unwrap()];
    for words in [&[][..], &direct] {
        let expect = [&["status", "VI_1", "--expect", "primary"], words].concat();
        let output = place.ask(&expect);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(
            ids(&json(&place, &[&["status", "VI_1"], words].concat())["instances"]),
            ["VI_1"]
        );
        assert_eq!(ids(&json(&place, &[&["status", "VI_"], words].concat())["instances"]).len(), 2);
        assert_eq!(json(&place, &[&["show", "VI_1"], words].concat())["instance"]["id"], "VI_1");
    }
    wait_for("both records", || {
        (ids(&json(&place, &["history", "--id", "VI_"])["changes"]).len() == 2).then_some(())
    });
    let state_dir = place.state_dir();
    let direct = ["--state-dir", state_dir.to_str().unwrap()];
    for words in [&[][..], &direct] {
        let answer = json(&place, &[&["history", "--id", "VI_1"], words].concat());
        assert_eq!(ids(&answer["changes"]), ["VI_1"]);
    }
}

#[test]
fn a_watch_of_an_exact_id_leaves_longer_ids_out() {
    let lab = Lab::new();
    let (netns, place) = two(&lab);
    let _node = place.start();
    let watch = |name: &str, words: &[&str]| {
        let shown = lab.path().join(name);
        let mut command = Command::new(PROGRAM);
        command.args(["watch", "VI_1", "--changes", "1", "--format", "json", "--config"]);
        command.arg(place.config()).arg("--socket").arg(place.socket()).args(words);
        let child = command.stdout(File::create(&shown).unwrap()).spawn().unwrap();
        wait_for("the first line", || read(&shown).contains("VI_1").then_some(()));
        (child, shown)
    };
    let conf = place.keepalived_conf();
    let watches =
        [watch("asked", &[]), watch("direct", &["--keepalived-conf", conf.to_str().unwrap()])];
    netns.ip(VIP_10);
    wait_for("VI_10", || (crate::role(&place, "VI_10") == "primary").then_some(()));
    netns.ip(crate::notify::NO_VIP);
    for (mut child, shown) in watches {
        assert!(end_of(&mut child).is_some_and(|status| status.success()));
        assert!(!read(&shown).contains("VI_10"), "{}", read(&shown));
    }
}
