//! The state file: one word, replaced in one step, whatever the disk does.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use vipwatch_testkit::{Release, run};

use crate::{stage, subject};

#[test]
fn it_holds_one_word_without_a_newline_and_belongs_to_the_agent() {
    let (_lab, router, _agent) = stage(Release::V29);
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    let metadata = std::fs::metadata(router.conf_dir.join("state")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (0, 0, 0o644));
    assert_eq!(metadata.len(), 6);
}

#[test]
fn nothing_is_left_beside_it() {
    let (_lab, router, agent) = stage(Release::V29);
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

/// Puts a file system of its own on the router's directory.
fn with_file_system(
    options: &str,
    break_it: impl Fn(&std::path::Path),
    mend_it: impl Fn(&std::path::Path),
    reason: &str,
) {
    let (_lab, router, agent) = stage(Release::V29);
    let directory = &router.conf_dir;
    run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(directory));
    let log = router.state_path.join("log");
    let mut command = router.command(&subject());
    let child = command.arg("--log-file").arg(&log).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    break_it(directory);
    router.take_vip();
    agent.wait_for_word("primary");
    assert_eq!(router.state().as_deref(), Some("backup"), "it could not be written");
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("Failed to write router").count(), 1, "one clear line: {text}");
    assert!(text.contains(reason), "{text}");
    mend_it(directory);
    router.wait_for_state("primary");
    crate::reap(child);
    run(Command::new("umount").arg("-l").arg(directory));
}

#[test]
fn a_full_disk_is_said_once_and_the_agent_is_told_all_the_same() {
    let fill = |directory: &std::path::Path| {
        let mut file = std::fs::File::create(directory.join("ballast")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    };
    let free =
        |directory: &std::path::Path| std::fs::remove_file(directory.join("ballast")).unwrap();
    with_file_system("size=64k", fill, free, "No space left on device");
}

#[test]
fn a_read_only_disk_is_said_once_and_the_agent_is_told_all_the_same() {
    let remount = |option: &'static str| {
        move |directory: &std::path::Path| {
            run(Command::new("mount").args(["-o", &format!("remount,{option}")]).arg(directory));
        }
    };
    with_file_system("size=64k", remount("ro"), remount("rw"), "Read-only file system");
}

#[test]
fn a_directory_that_vanishes_and_returns_gets_its_file_back() {
    let (_lab, router, agent) = stage(Release::V29);
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
fn a_symbolic_link_in_its_place_is_replaced_and_not_followed() {
    let (lab, router, _agent) = stage(Release::V29);
    let precious = lab.path().join("precious");
    std::fs::File::create(&precious).unwrap().write_all(b"precious").unwrap();
    for name in ["state", "state.new"] {
        std::os::unix::fs::symlink(&precious, router.conf_dir.join(name)).unwrap();
    }
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
}
