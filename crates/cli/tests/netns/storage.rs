// SPDX-License-Identifier: Apache-2.0
//! Disks that are full, read-only or damaged: the node and the receiver start, report it, and recover.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use vipwatch_testkit::{Lab, NodeFixture, run, wait_for};

use crate::receiver_process::{ReceiverProcess, report};
use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, query_json, read, transitions, vi_1_conf, wait_for_role,
    write_hook,
};

/// A file system of 512 KiB, mounted on a directory until this value is dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    pub(crate) fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=512k", "tmpfs"];
        run(Command::new("mount").args(options).arg(directory));
        Self(directory.to_owned())
    }

    pub(crate) fn fill(&self) {
        let mut ballast = File::create(self.0.join("ballast")).unwrap();
        while ballast.write_all(&[0; 1024]).is_ok() {}
    }

    pub(crate) fn free_space(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }

    fn remount(&self, mode: &str) {
        run(Command::new("mount").args(["-o", &format!("remount,{mode}")]).arg(&self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy, because a process that the test kills later may still have open files there.
        run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// Overwrites the beginning of a file, as a broken disk may.
fn write_garbage(path: &Path) {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    file.unwrap().write_all(&[7; 8192]).unwrap();
}

/// The number of damaged database files that were renamed and kept.
fn count_damaged_files(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let is_damaged = |name: &std::ffi::OsString| {
        let name = name.to_string_lossy();
        name.contains(".corrupt-") && !name.ends_with("-wal") && !name.ends_with("-shm")
    };
    names.filter(is_damaged).count()
}

/// The new role of each recorded change, oldest first.
fn recorded_roles(fixture: &NodeFixture) -> Vec<String> {
    let changes = transitions(fixture, &[]);
    changes.iter().map(|change| change["to"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_node_starts_on_a_full_disk_and_records_once_there_is_space() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let disk = Disk::new(&fixture.state_dir());
    disk.fill();
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    let findings = fixture.run_text(&["doctor"]);
    assert!(findings.contains("node-history"), "{findings}");
    assert_eq!(query_json(&fixture, &["status"])["metrics"]["vipwatch_history_up"], 0);
    fixture.wait_for_log("the node runs without it and tries again");
    disk.free_space();
    fixture.wait_for_log("history is written again");
    netns.ip(REMOVE_VIP);
    wait_for("a record", || (recorded_roles(&fixture) == ["backup"]).then_some(()));
    assert!(!fixture.run_text(&["doctor"]).contains("node-history"));
    assert_eq!(query_json(&fixture, &["status"])["metrics"]["vipwatch_history_up"], 1);
    let gap = &query_json(&fixture, &["history"])["items"][0];
    assert_eq!((&gap["type"], &gap["reason"]), (&"gap".into(), &"not-written".into()), "{gap}");
    assert!(node.stop().success());
}

#[test]
fn a_node_on_a_read_only_disk_repeats_no_delivery_and_loses_no_role() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let hook_output = lab.path().join("hook-output");
    let numbers = lab.path().join("numbers");
    let (to, seq) = (hook_output.display(), numbers.display());
    let text = format!("echo $VIPWATCH_SEQ >> {seq}\necho $VIPWATCH_TO >> {to}");
    let hook = write_hook(&lab.path().join("hook"), &text);
    fixture.configure(&format!("[[notify]]\nhook = {{ program = \"{}\" }}\n", hook.display()));
    let disk = Disk::new(&fixture.state_dir());
    let node = fixture.start();
    wait_for("the delivery to be recorded", || {
        transitions(&fixture, &[]).first()?["latencies"]["hook"].is_i64().then_some(())
    });
    assert!(node.stop().success());
    disk.remount("ro");
    let node = fixture.start();
    fixture.wait_for_log("the node runs without it and tries again");
    netns.ip(ADD_VIP);
    wait_for("the hook", || (read(&hook_output) == "backup\nprimary\n").then_some(()));
    disk.remount("rw");
    // The node now records the role of every instance, also of those that do not change any more.
    fixture.wait_for_log("history is written again");
    assert!(node.stop().success());
    let _node = fixture.start();
    netns.ip(REMOVE_VIP);
    wait_for("the hook", || (read(&hook_output).lines().count() > 2).then_some(()));
    assert_eq!(
        read(&hook_output),
        "backup\nprimary\nbackup\n",
        "the hook does not run again for primary"
    );
    let numbers = read(&numbers);
    let numbers: Vec<i64> = numbers.lines().map(|number| number.parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "sequence numbers increase: {numbers:?}");
}

#[test]
fn a_damaged_history_is_renamed_at_the_start_and_while_the_node_runs() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let file = fixture.state_dir().join("history.sqlite");
    std::fs::create_dir_all(fixture.state_dir()).unwrap();
    write_garbage(&file);
    let node = fixture.start();
    fixture.wait_for_log("history file is damaged; a new one is begun");
    assert_eq!(count_damaged_files(&fixture.state_dir()), 1);
    wait_for("a record", || (recorded_roles(&fixture) == ["backup"]).then_some(()));
    // While the node runs, a command that reads the file detects the damage.
    write_garbage(&file);
    let wal = fixture.state_dir().join("history.sqlite-wal");
    File::options().write(true).open(wal).unwrap().set_len(0).unwrap();
    wait_for("the second file to be renamed", || {
        fixture.run_text(&["history"]);
        (count_damaged_files(&fixture.state_dir()) == 2).then_some(())
    });
    netns.ip(ADD_VIP);
    wait_for("a record", || fixture.run_text(&["history"]).contains("primary").then_some(()));
    assert!(node.stop().success());
}

#[test]
fn silences_are_stored_again_after_a_damaged_history_was_replaced() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let file = fixture.state_dir().join("history.sqlite");
    let node = fixture.start();
    let silence = ["silence", "VI_1", "--for", "1h", "--reason", "upgrade"];
    assert!(fixture.run(&silence).status.success(), "{}", fixture.run_text(&silence));
    write_garbage(&file);
    let wal = fixture.state_dir().join("history.sqlite-wal");
    File::options().write(true).open(wal).unwrap().set_len(0).unwrap();
    wait_for("the file to be renamed", || {
        fixture.run_text(&["history"]);
        (count_damaged_files(&fixture.state_dir()) == 1).then_some(())
    });
    wait_for("the silence in the new file", || {
        let mut sqlite = Command::new("sqlite3");
        let output = sqlite.arg(&file).arg("SELECT instance, reason FROM silence").output();
        (output.unwrap().stdout == b"VI_1|upgrade\n").then_some(())
    });
    assert!(node.stop().success());
    let _node = fixture.start();
    let silences = query_json(&fixture, &["silence", "list"])["items"].clone();
    assert_eq!(silences[0]["reason"], "upgrade", "{silences}");
}

#[test]
fn a_receiver_that_starts_on_a_full_disk_answers_503_until_there_is_space() {
    let lab = Lab::new();
    let disk = Disk::new(&lab.path().join("receiver"));
    disk.fill();
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "primary"), Some(503));
    let status = receiver.status();
    assert_eq!(status["problems"][0]["name"], "journal", "{status}");
    receiver.wait_for_log("journal cannot be opened; reports are answered with 503");
    disk.free_space();
    wait_for("the report to be accepted", || {
        (report(lab.path(), "a", "primary") == Some(200)).then_some(())
    });
    assert_eq!(receiver.status()["problems"], serde_json::json!([]));
    assert_eq!(receiver.count_settled("primary"), 1);
}

#[test]
fn a_receiver_reads_its_journal_once_a_read_only_disk_is_writable() {
    let lab = Lab::new();
    let disk = Disk::new(&lab.path().join("receiver"));
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "primary"), Some(200));
    receiver.kill();
    disk.remount("ro");
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "b", "primary"), Some(503));
    disk.remount("rw");
    wait_for("the report from before the restart", || {
        (receiver.count_settled("primary") == 1).then_some(())
    });
    assert_eq!(receiver.status()["items"][0]["id"], "a");
    wait_for("the report to be accepted", || {
        (report(lab.path(), "b", "primary") == Some(200)).then_some(())
    });
}

#[test]
fn a_receiver_renames_a_damaged_journal_and_starts_a_new_one() {
    let lab = Lab::new();
    let directory = lab.path().join("receiver");
    std::fs::create_dir(&directory).unwrap();
    write_garbage(&directory.join("journal.sqlite"));
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "primary"), Some(200));
    receiver.wait_for_log("journal file is damaged; a new one is begun");
    assert_eq!(count_damaged_files(&directory), 1);
    assert_eq!(receiver.count_settled("primary"), 1);
}

/// Holds a write lease on a file until its standard input is closed: each `open` of the file waits. The kernel ends a lease
/// after 45 seconds.
const HOLD_LEASE: &str = "
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
sys.stdin.read()
";

/// Each `open` of this file in the state directory waits until the standard input of the process is closed.
fn hold_lease(fixture: &NodeFixture, file: &str) -> Child {
    let mut python = Command::new("python3");
    python.args(["-c", HOLD_LEASE]).arg(fixture.state_dir().join(file));
    let mut holder = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    holder
}

#[test]
fn a_node_starts_while_the_disk_does_not_answer_and_records_afterwards() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    fixture.run_text(&["silence", "--all", "--for", "1h", "--reason", "maintenance"]);
    assert!(node.stop().success());
    let mut holder = hold_lease(&fixture, "history.sqlite");
    let _node = fixture.start();
    let doctor = fixture.run_text(&["doctor"]);
    assert!(doctor.contains("the disk does not answer"), "{doctor}");
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    wait_for("the end of the finding", || {
        (!fixture.run_text(&["doctor"]).contains("node-history")).then_some(())
    });
    netns.ip(REMOVE_VIP);
    wait_for("the record", || {
        let last = transitions(&fixture, &[]).pop()?;
        (last["to"] == "backup").then_some(())
    });
    wait_for("the silence of the last run", || {
        fixture.run_text(&["silence", "list"]).contains("maintenance").then_some(())
    });
}

#[test]
fn a_node_with_a_receiver_starts_while_the_disk_does_not_answer() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[receiver]\ninterval = \"0s\"\n");
    assert!(fixture.start().stop().success());
    let mut holder = hold_lease(&fixture, "journal.sqlite");
    let _node = fixture.start();
    let status = || fixture.run_text(&["receiver", "status"]);
    assert!(status().contains("the disk does not answer"), "{}", status());
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    wait_for("the journal", || (!status().contains("does not answer")).then_some(()));
}
