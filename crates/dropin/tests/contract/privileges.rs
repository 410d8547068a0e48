// SPDX-License-Identifier: Apache-2.0
//! Privileges: root enters the namespace, then the monitor runs as an unprivileged user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::children;
use vipwatch_testkit::{Behaviour, FakeAgent, Release, Router, wait_for};

use crate::{fixture, subject};

const NOBODY: u32 = 65534;

fn status(pid: i32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_monitor_becomes_the_user_and_keeps_no_capability() {
    let (_lab, mut router, agent) = fixture(Release::V29);
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

/// Bit 1 is `CAP_DAC_OVERRIDE`.
#[test]
fn a_monitor_that_stays_root_keeps_only_cap_dac_override() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(status(monitor.pid, set), "0000000000000002", "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(status(monitor.pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(monitor.pid, "NoNewPrivs"), "1");
}

#[test]
fn a_monitor_that_stays_root_writes_to_closed_directories_of_another_user() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.give_to(NOBODY);
    router.owner = (0, 0);
    let socket = router.state_path.join("keepalived-state-change");
    std::os::unix::fs::chown(socket, Some(0), Some(0)).unwrap();
    for directory in [&router.conf_dir, &router.pids, &router.state_path] {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o750)).unwrap();
    }
    let check = router.attempt(&subject(), |arguments| arguments.push("--check".to_owned()));
    assert!(check.status.success(), "{check:?}");
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.take_vip();
    router.wait_for_state("primary");
    agent.wait_for_words(&["backup", "primary"]);
}

/// The monitor's command, run by root without the capabilities `missing`, which has the syntax of setpriv.
fn command_without(router: &Router, missing: &str) -> Command {
    let agents = router.command(&subject());
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", missing, "--inh-caps", missing]);
    command.arg(agents.get_program()).args(agents.get_args());
    command
}

#[test]
fn the_conntrackd_helper_works_without_cap_dac_override() {
    let (lab, mut router, agent) = fixture(Release::V29);
    router.conntrackd = true;
    let bin = lab.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let calls = lab.path().join("calls");
    let text = format!("printf '%s\\n' \"$3\" >> {}", calls.display());
    vipwatch_testkit::script(&bin.join("conntrackd"), &text);
    let mut command = command_without(&router, "-dac_override");
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
    let child = command.spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("The conntrackd helper runs without CAP_DAC_OVERRIDE");
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "-t\n-n\n", "{}", router.log());
    router.stop();
    crate::reap(child);
}

#[test]
fn a_lost_conntrackd_helper_is_logged_and_the_agent_is_notified() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.conntrackd = true;
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let helper = Pid::from_raw(children(monitor.pid)[0]).unwrap();
    rustix::process::kill_process(helper, Signal::KILL).unwrap();
    router.wait_for_log("Lost the conntrackd helper of router");
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
}

#[test]
fn a_bounding_set_that_cannot_be_emptied_is_logged_and_grants_nothing() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.give_to(NOBODY);
    let child = command_without(&router, "-setpcap").spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("Cannot empty the bounding set of capabilities: CAP_SETPCAP is missing");
    let pid = wait_for("the pid file", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(pid, "NoNewPrivs"), "1");
    router.stop();
    crate::reap(child);
}

/// Group 4 may read the system's logs on Debian.
#[test]
fn groups_that_cannot_be_left_are_logged_if_the_user_stays_and_an_error_otherwise() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    let in_group = |router: &Router, missing: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--groups", "4", "--bounding-set", missing, "--inh-caps", missing]);
        let agents = router.command(&subject());
        command.arg(agents.get_program()).args(agents.get_args());
        command
    };
    let child = in_group(&router, "-setpcap").spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    let pid = wait_for("the pid file", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));
    assert_eq!(status(pid, "Groups"), "", "with the right to leave it");
    router.stop();
    crate::reap(child);
    assert!(!router.log().contains("Cannot leave the supplementary groups"), "{}", router.log());

    let child = in_group(&router, "-setgid").spawn().unwrap();
    router.wait_for_log("Cannot leave the supplementary groups: CAP_SETGID is missing");
    let pid = wait_for("the pid file", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));
    assert_eq!(status(pid, "Groups"), "4");
    router.stop();
    crate::reap(child);

    router.give_to(NOBODY);
    let output = in_group(&router, "-setgid").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("cannot leave the supplementary groups"), "{output:?}");
    assert!(!output.status.success());
}

#[test]
fn a_user_can_be_given_by_name() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.give_to(NOBODY);
    let mut command = router.command(&subject());
    let child = command.args(["--user", "nobody", "--group", "nogroup"]).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    let pid = wait_for("the pid file", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));
    assert!(status(pid, "Uid").starts_with("65534"));
    crate::reap(child);
}

#[test]
fn the_conntrackd_helper_keeps_only_two_capabilities() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.conntrackd = true;
    router.give_to(NOBODY);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    assert_eq!(status(monitor.pid, "CapEff"), "0000000000000000");
    let helpers = children(monitor.pid);
    assert_eq!(helpers.len(), 1, "one helper");
    // Bits 1 and 12: DAC_OVERRIDE and NET_ADMIN.
    assert_eq!(status(helpers[0], "CapEff"), "0000000000001002");
    assert_eq!(status(helpers[0], "CapBnd"), "0000000000001002");
    assert_eq!(status(helpers[0], "NoNewPrivs"), "1");
}

#[test]
fn a_log_file_left_by_a_monitor_that_stayed_root_is_set_aside() {
    let (_lab, mut router, agent) = fixture(Release::V29);
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
fn an_agent_of_the_configured_user_is_trusted() {
    let (lab, mut router, agent) = fixture(Release::V29);
    router.give_to(NOBODY);
    drop(agent);
    // A thread that runs as the agent's user binds and listens.
    let agent = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(uid, uid, uid)
                .expect("changing the user needs root");
            FakeAgent::listen(lab.path(), Behaviour::Threaded)
        });
        other.join().unwrap()
    });
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
}
