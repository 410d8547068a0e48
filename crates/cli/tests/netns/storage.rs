//! Disks that are full, read-only or damaged: everything starts, says so, and recovers.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use vipwatch_testkit::{Lab, NodeFixture, run, wait_for};

use crate::notify::{NO_VIP, VIP, program, read};
use crate::receiver::{ReceiverProcess, report};
use crate::{json, one, role, stage};

/// A small disk of its own at a directory, until dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=512k", "tmpfs"];
        run(Command::new("mount").args(options).arg(directory));
        Self(directory.to_owned())
    }

    fn fill(&self) {
        let mut ballast = File::create(self.0.join("ballast")).unwrap();
        while ballast.write_all(&[0; 1024]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }

    fn remount(&self, mode: &str) {
        run(Command::new("mount").args(["-o", &format!("remount,{mode}")]).arg(&self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Also while a process that the test kills next still has files there.
        run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// Overwrites the beginning of a file, as a broken disk may.
fn write_garbage(path: &Path) {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    file.unwrap().write_all(&[7; 8192]).unwrap();
}

/// The files beside a store that were damaged and kept.
fn set_aside(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let is_aside = |name: &std::ffi::OsString| {
        let name = name.to_string_lossy();
        name.contains(".corrupt-") && !name.ends_with("-wal") && !name.ends_with("-shm")
    };
    names.filter(is_aside).count()
}

fn recorded(place: &NodeFixture) -> Vec<String> {
    let answer = json(place, &["history"]);
    let changes = answer["changes"].as_array().unwrap().iter();
    changes.map(|change| change["to"].as_str().unwrap().to_owned()).collect()
}

fn wait_for_role(place: &NodeFixture, expected: &str) {
    wait_for(expected, || (role(place, "VI_1") == expected).then_some(()));
}

#[test]
fn a_node_starts_on_a_full_disk_and_records_when_there_is_room() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let disk = Disk::new(&place.state_dir());
    disk.fill();
    let node = place.start();
    netns.ip(VIP);
    wait_for_role(&place, "primary");
    let said = place.say(&["doctor"]);
    assert!(said.contains("node-history"), "{said}");
    assert_eq!(json(&place, &["status"])["metrics"]["vipwatch_history_up"], 0);
    place.wait_for_log("the node runs without it and tries again");
    disk.make_room();
    place.wait_for_log("history is written again");
    netns.ip(NO_VIP);
    wait_for("a record", || (recorded(&place) == ["backup"]).then_some(()));
    assert!(!place.say(&["doctor"]).contains("node-history"));
    assert_eq!(json(&place, &["status"])["metrics"]["vipwatch_history_up"], 1);
    assert!(json(&place, &["history"])["runs"][0]["dropped"].is_i64());
    assert!(node.stop().success());
}

#[test]
fn a_node_on_a_read_only_disk_tells_nothing_again_and_loses_no_role() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let said = lab.path().join("said");
    let numbers = lab.path().join("numbers");
    let (to, seq) = (said.display(), numbers.display());
    let text = format!("echo $VIPWATCH_SEQ >> {seq}\necho $VIPWATCH_TO >> {to}");
    let hook = program(&lab.path().join("hook"), &text);
    place.configure(&format!("[[outlet]]\nhook = {{ program = \"{}\" }}\n", hook.display()));
    let disk = Disk::new(&place.state_dir());
    let node = place.start();
    wait_for("the delivery to be recorded", || {
        let change = &json(&place, &["history"])["changes"][0];
        change["latencies"]["hook"].is_i64().then_some(())
    });
    assert!(node.stop().success());
    disk.remount("ro");
    let node = place.start();
    place.wait_for_log("the node runs without it and tries again");
    netns.ip(VIP);
    wait_for("the hook", || (read(&said) == "backup\nprimary\n").then_some(()));
    disk.remount("rw");
    // The state of every instance is written, not only those that change from now on.
    place.wait_for_log("history is written again");
    assert!(node.stop().success());
    let _node = place.start();
    netns.ip(NO_VIP);
    wait_for("the hook", || (read(&said).lines().count() > 2).then_some(()));
    assert_eq!(read(&said), "backup\nprimary\nbackup\n", "primary is not told again");
    let numbers = read(&numbers);
    let numbers: Vec<i64> = numbers.lines().map(|number| number.parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "no number is below an earlier one: {numbers:?}");
}

#[test]
fn a_damaged_history_is_set_aside_at_the_start_and_while_the_node_runs() {
    let lab = Lab::new();
    let (netns, place) = stage(&lab, &[one()]);
    let file = place.state_dir().join("history.sqlite");
    std::fs::create_dir_all(place.state_dir()).unwrap();
    write_garbage(&file);
    let node = place.start();
    place.wait_for_log("history file is damaged; a new one is begun");
    assert_eq!(set_aside(&place.state_dir()), 1);
    wait_for("a record", || (recorded(&place) == ["backup"]).then_some(()));
    // While it runs: a command that reads the file meets the damage.
    write_garbage(&file);
    let log = place.state_dir().join("history.sqlite-wal");
    File::options().write(true).open(log).unwrap().set_len(0).unwrap();
    wait_for("the second file to be set aside", || {
        place.say(&["history"]);
        (set_aside(&place.state_dir()) == 2).then_some(())
    });
    netns.ip(VIP);
    wait_for("a record", || place.say(&["history"]).contains("primary").then_some(()));
    assert!(node.stop().success());
}

#[test]
fn a_receiver_starts_on_a_full_disk_answers_503_and_promises_when_there_is_room() {
    let lab = Lab::new();
    let disk = Disk::new(&lab.path().join("claims"));
    disk.fill();
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "primary"), Some(503));
    let status = agent.status();
    assert_eq!(status["problems"][0]["name"], "journal", "{status}");
    agent.wait_for_log("journal cannot be opened; reports are answered with 503");
    disk.make_room();
    wait_for("a promise", || (report(lab.path(), "a", "primary") == Some(200)).then_some(()));
    assert_eq!(agent.status()["problems"], serde_json::json!([]));
    assert_eq!(agent.settled("primary"), 1);
}

#[test]
fn a_receiver_on_a_read_only_disk_remembers_when_it_can_be_written() {
    let lab = Lab::new();
    let disk = Disk::new(&lab.path().join("claims"));
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "primary"), Some(200));
    agent.kill();
    disk.remount("ro");
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "b", "primary"), Some(503));
    disk.remount("rw");
    wait_for("what was promised before", || (agent.settled("primary") == 1).then_some(()));
    assert_eq!(agent.status()["routers"][0]["id"], "a");
    wait_for("a promise", || (report(lab.path(), "b", "primary") == Some(200)).then_some(()));
}

#[test]
fn a_receiver_whose_journal_is_damaged_sets_it_aside_and_goes_on() {
    let lab = Lab::new();
    let directory = lab.path().join("claims");
    std::fs::create_dir(&directory).unwrap();
    write_garbage(&directory.join("claims.sqlite"));
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "primary"), Some(200));
    agent.wait_for_log("journal file is damaged; a new one is begun");
    assert_eq!(set_aside(&directory), 1);
    assert_eq!(agent.settled("primary"), 1);
}
