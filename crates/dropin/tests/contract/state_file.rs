// SPDX-License-Identifier: Apache-2.0
//! The state file: it holds one word, is replaced in one step, and is retried when the disk fails.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use vipwatch_testkit::{Release, run};

use crate::{fixture, subject};

#[test]
fn the_state_file_holds_one_word_without_a_newline_and_belongs_to_the_agent() {
    let (_lab, router, _agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    let metadata = std::fs::metadata(router.conf_dir.join("state")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (0, 0, 0o644));
    assert_eq!(metadata.len(), 6);
}

#[test]
fn no_temporary_file_is_left_after_sigterm() {
    let (_lab, router, agent) = fixture(Release::V29);
    let mut monitor = router.start(&subject());
    router.take_vip();
    agent.wait_for_word("primary");
    monitor.signal(rustix::process::Signal::TERM);
    monitor.wait_until_gone();
    let mut names: Vec<_> = std::fs::read_dir(&router.conf_dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["neutron-keepalived-state-change.log", "state"]);
}

/// Mounts a separate file system on the router's directory, makes writes fail with `break_disk`, checks that the failure
/// is logged once with `reason`, and checks that the file is written after `repair_disk`.
fn with_failing_disk(
    options: &str,
    break_disk: impl Fn(&std::path::Path),
    repair_disk: impl Fn(&std::path::Path),
    reason: &str,
) {
    let (_lab, router, agent) = fixture(Release::V29);
    let directory = &router.conf_dir;
    run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(directory));
    let log = router.state_path.join("log");
    let mut command = router.command(&subject());
    let child = command.arg("--log-file").arg(&log).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    break_disk(directory);
    router.take_vip();
    agent.wait_for_word("primary");
    assert_eq!(router.state().as_deref(), Some("backup"), "the write failed");
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("Failed to write router").count(), 1, "one line: {text}");
    assert!(text.contains(reason), "{text}");
    repair_disk(directory);
    router.wait_for_state("primary");
    crate::reap(child);
    run(Command::new("umount").arg("-l").arg(directory));
}

#[test]
fn a_full_disk_is_logged_once_and_the_agent_is_still_notified() {
    let fill = |directory: &std::path::Path| {
        let mut file = std::fs::File::create(directory.join("ballast")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    };
    let free =
        |directory: &std::path::Path| std::fs::remove_file(directory.join("ballast")).unwrap();
    with_failing_disk("size=64k", fill, free, "No space left on device");
}

#[test]
fn a_read_only_disk_is_logged_once_and_the_agent_is_still_notified() {
    let remount = |option: &'static str| {
        move |directory: &std::path::Path| {
            run(Command::new("mount").args(["-o", &format!("remount,{option}")]).arg(directory));
        }
    };
    with_failing_disk("size=64k", remount("ro"), remount("rw"), "Read-only file system");
}

#[test]
fn the_state_file_is_written_again_after_its_directory_was_recreated() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    router.wait_for_state("backup");
    std::fs::remove_dir_all(&router.conf_dir).unwrap();
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    assert!(monitor.is_alive());
    std::fs::create_dir(&router.conf_dir).unwrap();
    router.wait_for_state("primary");
}

#[test]
fn a_symbolic_link_at_the_state_file_is_replaced_and_not_followed() {
    let (lab, router, _agent) = fixture(Release::V29);
    let precious = lab.path().join("precious");
    std::fs::File::create(&precious).unwrap().write_all(b"precious").unwrap();
    for name in ["state", "state.new"] {
        std::os::unix::fs::symlink(&precious, router.conf_dir.join(name)).unwrap();
    }
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
}
