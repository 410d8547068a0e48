//! Root opens the namespace; a user watches it.

use std::os::unix::fs::MetadataExt;

use vipwatch_testkit::monitor::children;
use vipwatch_testkit::{Agent, Manner, Release, wait_for};

use crate::{stage, subject};

const NOBODY: u32 = 65534;

fn status(pid: i32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn it_becomes_the_user_and_keeps_no_capability() {
    let (_lab, mut router, agent) = stage(Release::V29);
    router.give_to(NOBODY);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    assert_eq!(status(monitor.pid, "Uid"), "65534 65534 65534 65534");
    assert_eq!(status(monitor.pid, "Gid"), "65534 65534 65534 65534");
    assert_eq!(status(monitor.pid, "Groups"), "", "no supplementary groups");
    assert_eq!(status(monitor.pid, "NoNewPrivs"), "1");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(monitor.pid, set), "0000000000000000", "{set}");
    }
    for path in [
        router.conf_dir.join("state"),
        router.pid_file(),
        router.conf_dir.join("neutron-keepalived-state-change.log"),
    ] {
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
            (NOBODY, NOBODY, 0o644),
            "{path:?}"
        );
    }
    router.take_vip();
    router.wait_for_state("primary");
}

#[test]
fn as_root_it_keeps_no_capability_either() {
    let (_lab, router, agent) = stage(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    assert_eq!(status(monitor.pid, "CapEff"), "0000000000000000");
    assert_eq!(status(monitor.pid, "NoNewPrivs"), "1");
}

#[test]
fn a_user_can_be_given_by_name() {
    let (_lab, mut router, agent) = stage(Release::V29);
    router.give_to(NOBODY);
    let mut command = router.command(&subject());
    let child = command.args(["--user", "nobody", "--group", "nogroup"]).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    let pid = wait_for("the pid file", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));
    assert!(status(pid, "Uid").starts_with("65534"));
    crate::reap(child);
}

#[test]
fn only_the_conntrackd_helper_keeps_two_capabilities() {
    let (_lab, mut router, agent) = stage(Release::V29);
    router.conntrackd = true;
    router.give_to(NOBODY);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    assert_eq!(status(monitor.pid, "CapEff"), "0000000000000000");
    let family = children(monitor.pid);
    assert_eq!(family.len(), 1, "one helper");
    // Bits 1 and 12: DAC_OVERRIDE and NET_ADMIN.
    assert_eq!(status(family[0], "CapEff"), "0000000000001002");
    assert_eq!(status(family[0], "CapBnd"), "0000000000001002");
    assert_eq!(status(family[0], "NoNewPrivs"), "1");
}

#[test]
fn a_log_file_left_by_a_monitor_that_stayed_root_is_set_aside() {
    let (_lab, mut router, agent) = stage(Release::V29);
    let log = router.conf_dir.join("neutron-keepalived-state-change.log");
    std::io::Write::write_all(&mut std::fs::File::create(&log).unwrap(), b"old\n").unwrap();
    let mut state = std::fs::File::create(router.conf_dir.join("state")).unwrap();
    std::io::Write::write_all(&mut state, b"primary").unwrap();
    router.give_to(NOBODY);
    let _monitor = router.start(&subject());
    agent.wait_for_word("backup");
    router.wait_for_state("backup");
    router.wait_for_log("Initial status of router");
    assert_eq!(std::fs::read(log.with_extension("log.old")).unwrap(), b"old\n");
}

#[test]
fn the_agent_of_that_user_is_believed() {
    let (lab, mut router, agent) = stage(Release::V29);
    router.give_to(NOBODY);
    drop(agent);
    // A thread that is the agent's user binds and listens.
    let agent = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(uid, uid, uid)
                .expect("root, to become another user");
            Agent::listen(lab.path(), Manner::Threaded)
        });
        other.join().unwrap()
    });
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
}
