// SPDX-License-Identifier: Apache-2.0
//! conntrackd runs between the state file and the agent: tests with the real program and with faulty ones.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use vipwatch_testkit::monitor::{children, is_alive};
use vipwatch_testkit::{FakeAgent, Lab, Release, Router, wait_for, wait_showing};

use crate::{fixture, subject};

/// A router of an agent that has conntrackd enabled.
fn fixture_with_conntrackd() -> (Lab, Router, FakeAgent) {
    let (lab, mut router, agent) = fixture(Release::V29);
    router.conntrackd = true;
    (lab, router, agent)
}

/// Creates a script called conntrackd. Returns a `PATH` that finds it first.
fn fake_conntrackd(lab: &Lab, script: &str) -> String {
    let directory = lab.path().join("bin");
    std::fs::create_dir(&directory).unwrap();
    vipwatch_testkit::script(&directory.join("conntrackd"), script);
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", directory.display())
}

fn start_with_path(router: &Router, path: &str) -> Child {
    router.command(&subject()).env("PATH", path).stderr(Stdio::null()).spawn().unwrap()
}

fn calls(lab: &Lab) -> Vec<String> {
    let text = std::fs::read_to_string(lab.path().join("calls")).unwrap_or_default();
    text.lines().map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned()).collect()
}

/// Starts the real conntrackd with the relevant parts of the configuration that Neutron's agent writes. The large socket
/// buffers of that configuration are left out, because only root of the host may set them.
fn start_conntrackd(router: &Router) -> Child {
    let directory = router.conf_dir.display();
    let link = &router.link;
    router.netns.ip(&format!("address add 192.168.100.2/24 dev {link}"));
    let config = format!(
        "General {{\n    HashSize 1024\n    HashLimit 8192\n    Syslog off\n    LockFile {directory}/conntrackd.lock\n    \
         UNIX {{\n        Path {directory}/conntrackd.ctl\n    }}\n    \
         Filter From Kernelspace {{\n        Protocol Accept {{\n            TCP\n        }}\n    }}\n}}\n\
         Sync {{\n    Mode FTFW {{\n    }}\n    Multicast {{\n        IPv4_address 225.0.0.50\n        IPv4_interface 192.168.100.2\n        \
         Group 3780\n        Interface {link}\n        Checksum on\n    }}\n}}\n"
    );
    let path = router.conf_dir.join("conntrackd.conf");
    std::fs::File::create(&path).unwrap().write_all(config.as_bytes()).unwrap();
    let log = std::fs::File::create(router.state_path.join("conntrackd.out")).unwrap();
    let mut command = router.netns.command("conntrackd");
    command.arg("-C").arg(&path).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let child =
        command.spawn().expect("cannot start conntrackd; hint: `cargo xtask test` installs it");
    let output =
        || std::fs::read_to_string(router.state_path.join("conntrackd.out")).unwrap_or_default();
    wait_showing("conntrackd's control socket", output, || {
        router.conf_dir.join("conntrackd.ctl").exists().then_some(())
    });
    child
}

#[test]
fn the_real_conntrackd_is_synchronised_before_the_agent_is_notified() {
    let (_lab, router, agent) = fixture_with_conntrackd();
    let mut daemon = start_conntrackd(&router);
    let _monitor = router.start(&subject());
    // The log line comes after the acknowledgement: the agent's own list of requests would be too early.
    router.wait_for_log(&format!("Notified agent router {}, state backup", router.id));
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    router.wait_for_log(&format!("Notified agent router {}, state primary", router.id));
    let log = router.log();
    assert!(!log.contains("failed on router"), "{log}");
    let order: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split("[-] ").nth(1))
        .filter(|text| {
            ["Wrote", "Executing", "Synced", "Notified"].iter().any(|word| text.starts_with(word))
        })
        .map(|text| {
            text.split('"').nth(1).map_or(text, |command| command.rsplit(' ').next().unwrap())
        })
        .map(|text| text.split(' ').next().unwrap())
        .collect();
    let expected = [
        "Wrote", "-t", "-n", "Synced", "Notified", "Wrote", "-c", "-f", "-R", "-B", "Synced",
        "Notified",
    ];
    assert_eq!(order, expected, "{log}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// The words of the file with the result of the last synchronisation; empty if there is none.
fn status(router: &Router) -> Vec<String> {
    let text = std::fs::read_to_string(router.conf_dir.join("conntrack.status"));
    let text = text.unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?} is not a whole line");
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_result_of_each_synchronisation_is_in_a_file_beside_the_state_file() {
    let (lab, router, agent) = fixture_with_conntrackd();
    // The second command for a primary fails.
    let path = fake_conntrackd(&lab, "case \"$*\" in *-f) exit 3;; esac");
    let child = start_with_path(&router, &path);
    let wait_for_status = |state: &str, failed: &str| {
        wait_showing(
            &format!("{state} and {failed} failed"),
            || router.log(),
            || {
                let words = status(&router);
                let is_expected = words.len() == 4 && words[0] == state && words[3] == failed;
                is_expected.then_some(words)
            },
        )
    };
    let words = wait_for_status("backup", "0");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_millis() - words[1].parse::<u128>().unwrap();
    assert!(age < 120_000, "the end is in Unix milliseconds: {words:?}");
    assert!(words[2].parse::<u64>().unwrap() > 0, "{words:?}");
    router.take_vip();
    agent.wait_for_word("primary");
    wait_for_status("primary", "1");
    let metadata = |name: &str| std::fs::metadata(router.conf_dir.join(name)).unwrap();
    let owner = |name: &str| (metadata(name).uid(), metadata(name).gid(), metadata(name).mode());
    assert_eq!(owner("conntrack.status"), owner("state"));
    router.drop_vip();
    wait_for_status("backup", "0");
    assert!(!router.conf_dir.join("conntrack.status.new").exists());
    crate::reap(child);
}

#[test]
fn a_lost_helper_is_a_failed_result_and_a_monitor_without_conntrackd_deletes_it() {
    let (lab, mut router, agent) = fixture_with_conntrackd();
    let path = fake_conntrackd(&lab, "exit 0");
    let child = start_with_path(&router, &path);
    let monitor =
        wait_for("the monitor", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));
    let signal = |pid: i32, signal: Signal| {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    let wait_for_status = |failed: &str| {
        wait_showing(
            &format!("{failed} failed"),
            || router.log(),
            || status(&router).get(3).is_some_and(|word| word == failed).then_some(()),
        );
    };
    wait_for_status("0");
    router.wait_for_log(&format!("Notified agent router {}, state backup", router.id));
    for helper in children(monitor) {
        signal(helper, Signal::KILL);
    }
    wait_for_status("1");
    assert_eq!(status(&router)[0], "backup");
    router.wait_for_log("Lost the conntrackd helper");
    signal(monitor, Signal::TERM);
    wait_for("the end of the monitor", || (!is_alive(monitor)).then_some(()));
    crate::reap(child);
    assert!(router.conf_dir.join("conntrack.status").exists());
    let before = agent.count();
    router.conntrackd = false;
    let _monitor = router.start(&subject());
    wait_for("the state at the agent", || (agent.count() > before).then_some(()));
    assert!(!router.conf_dir.join("conntrack.status").exists());
}

#[test]
fn a_conntrackd_that_is_not_running_is_logged_and_the_agent_is_notified() {
    let (_lab, router, agent) = fixture_with_conntrackd();
    std::fs::File::create(router.conf_dir.join("conntrackd.conf"))
        .unwrap()
        .write_all(
            format!(
                "General {{\n    UNIX {{\n        Path {}/conntrackd.ctl\n    }}\n}}\n",
                router.conf_dir.display()
            )
            .as_bytes(),
        )
        .unwrap();
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("-t\" failed on router");
    router.wait_for_log("Synced connection tracking state on backup");
}

#[test]
fn a_conntrackd_that_hangs_delays_the_agent_briefly_and_the_state_file_not_at_all() {
    let (lab, router, agent) = fixture_with_conntrackd();
    let path = fake_conntrackd(&lab, "exec sleep 1000");
    let child = start_with_path(&router, &path);
    router.wait_for_state("backup");
    assert!(agent.words().is_empty(), "the order is file, conntrackd, agent");
    router.take_vip();
    router.wait_for_state("primary");
    // On a slow machine the agent was notified of the backup first.
    agent.wait_for_word("primary");
    router.wait_for_log("conntrackd takes too long");
    router.drop_vip();
    router.wait_for_state("backup");
    crate::reap(child);
}

#[test]
fn a_failure_of_conntrackd_is_logged_with_its_output() {
    let (lab, router, agent) = fixture_with_conntrackd();
    let path = fake_conntrackd(&lab, "echo cannot connect: no ctl >&2; exit 3");
    let child = start_with_path(&router, &path);
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("failed on router");
    let log = router.log();
    assert!(log.contains("exit status: 3: cannot connect: no ctl"), "{log}");
    crate::reap(child);
}

#[test]
fn a_missing_conntrackd_is_logged_once() {
    let (_lab, router, agent) = fixture_with_conntrackd();
    let child = start_with_path(&router, "/nonexistent");
    agent.wait_for_words(&["backup"]);
    // The log is written after the agent was notified.
    router.wait_for_log(&format!("Notified agent router {}", router.id));
    let log = router.log();
    assert_eq!(log.matches("cannot start it: No such file or directory").count(), 1, "{log}");
    crate::reap(child);
}

#[test]
fn excess_output_of_conntrackd_is_read_and_dropped() {
    let (lab, router, agent) = fixture_with_conntrackd();
    let path = fake_conntrackd(&lab, "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1");
    let child = start_with_path(&router, &path);
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("failed on router");
    assert!(router.log().len() < 20_000);
    crate::reap(child);
}

#[test]
fn a_newer_state_ends_the_commands_of_the_older_one() {
    let (lab, router, agent) = fixture_with_conntrackd();
    let calls_file = lab.path().join("calls");
    // Only the commands of a primary hang.
    let script = format!(
        "echo \"$@\" >> {}\ncase \"$3\" in -c) exec sleep 1000;; esac",
        calls_file.display()
    );
    let path = fake_conntrackd(&lab, &script);
    let child = start_with_path(&router, &path);
    agent.wait_for_words(&["backup"]);
    router.take_vip();
    wait_for("the command for a primary", || calls(&lab).contains(&"-c".to_owned()).then_some(()));
    router.drop_vip();
    wait_for("the commands for a backup", || {
        calls(&lab).ends_with(&["-t".to_owned(), "-n".to_owned()]).then_some(())
    });
    agent.wait_for_word("backup");
    assert!(!calls(&lab).contains(&"-f".to_owned()), "the primary's list was not finished");
    crate::reap(child);
}

#[test]
fn the_first_state_is_synchronised_once() {
    let (lab, router, agent) = fixture_with_conntrackd();
    let script = format!("echo \"$@\" >> {}", lab.path().join("calls").display());
    let path = fake_conntrackd(&lab, &script);
    let child = start_with_path(&router, &path);
    agent.wait_for_words(&["backup"]);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    wait_for("each command once", || {
        (calls(&lab) == ["-t", "-n", "-c", "-f", "-R", "-B"]).then_some(())
    });
    crate::reap(child);
}

#[test]
fn sigterm_during_a_command_leaves_no_child_process() {
    let (lab, mut router, _agent) = fixture_with_conntrackd();
    router.give_to(65534);
    let path = fake_conntrackd(
        &lab,
        &format!("echo $$ > {}; exec sleep 1000", lab.path().join("pid").display()),
    );
    let child = start_with_path(&router, &path);
    let command = wait_for("the command", || {
        vipwatch_testkit::monitor::read_pid(Path::new(&lab.path().join("pid")))
    });
    let monitor =
        wait_for("the monitor", || vipwatch_testkit::monitor::read_pid(&router.pid_file()));
    let helper = children(monitor);
    rustix::process::kill_process(rustix::process::Pid::from_raw(monitor).unwrap(), Signal::TERM)
        .unwrap();
    wait_for("all processes to end", || {
        (!is_alive(monitor) && !is_alive(command) && helper.iter().all(|pid| !is_alive(*pid)))
            .then_some(())
    });
    crate::reap(child);
}

#[test]
fn a_conntrackd_that_prints_without_end_is_killed() {
    let (lab, router, agent) = fixture_with_conntrackd();
    let path = fake_conntrackd(&lab, "exec yes >&2");
    let child = start_with_path(&router, &path);
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("not done after 10 s, killed: y");
    crate::reap(child);
}
