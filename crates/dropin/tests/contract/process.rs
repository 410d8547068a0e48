// SPDX-License-Identifier: Apache-2.0
//! The process: its start, its name, its end, and the pid file.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vipwatch_testkit::monitor::{children, command_line, end_of, is_alive, output_of, read_pid};
use vipwatch_testkit::{Behaviour, Release, wait_for};

use crate::{fixture, subject};

/// Maximum time from SIGTERM to the end. It is shorter than the 5 s that a request may take, so that a monitor that waits
/// for a hung agent fails the test. `bench dropin` measures the real time.
const MAX_STOP_TIME: Duration = Duration::from_secs(4);

#[test]
fn the_foreground_process_exits_with_0_after_the_pid_file_is_written_and_keeps_no_pipe() {
    let (_lab, router, _agent) = fixture(Release::V26);
    // `start` waits as the agent does: until the process has ended and every copy of the pipes is closed.
    let monitor = router.start(&subject());
    assert_eq!(read_pid(&router.pid_file()), Some(monitor.pid));
    let text = std::fs::read_to_string(router.pid_file()).unwrap();
    assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "digits, and no newline: {text:?}");
    for fd in 0..3 {
        let target = std::fs::read_link(format!("/proc/{}/fd/{fd}", monitor.pid)).unwrap();
        assert_eq!(target.to_str(), Some("/dev/null"));
    }
}

#[test]
fn the_process_has_the_name_and_arguments_that_agents_search_for() {
    let (_lab, router, agent) = fixture(Release::V15);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let name = std::fs::read_to_string(format!("/proc/{}/comm", monitor.pid)).unwrap();
    assert_eq!(name.trim(), "neutron-keepali", "the kernel cuts the name after 15 bytes");
    let line = command_line(monitor.pid);
    let program = line.split(' ').next().unwrap();
    assert!(program.ends_with("neutron-keepalived-state-change"), "{program}");
    for argument in router.arguments() {
        assert!(line.contains(&argument), "{argument} in {line}");
    }
}

#[test]
fn one_router_has_one_process_with_one_thread() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    assert_eq!(children(monitor.pid), Vec::<i32>::new());
    let tasks = std::fs::read_dir(format!("/proc/{}/task", monitor.pid)).unwrap().count();
    assert_eq!(tasks, 1, "one thread");
}

#[test]
fn in_foreground_mode_the_monitor_stays_and_exits_with_0() {
    let (_lab, router, agent) = fixture(Release::V29);
    let mut child =
        router.command(&subject()).arg("--foreground").stderr(Stdio::piped()).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    assert_eq!(read_pid(&router.pid_file()), i32::try_from(child.id()).ok());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let status = end_of(&mut child);
    crate::reap(child);
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    assert!(!router.pid_file().exists());
}

#[test]
fn in_foreground_mode_log_lines_go_to_the_file_and_to_standard_error() {
    let (_lab, router, agent) = fixture(Release::V29);
    let mut child =
        router.command(&subject()).arg("--foreground").stderr(Stdio::piped()).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    end_of(&mut child);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    crate::reap(child);
    assert!(stderr.contains(" INFO ") && stderr.contains("primary"), "{stderr}");
    assert_eq!(stderr, router.log());
}

#[test]
fn a_standard_error_that_is_not_read_does_not_delay_a_monitor_in_the_foreground() {
    let (_lab, router, agent) = fixture(Release::V29);
    let (_reader, writer) = std::io::pipe().unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    (&writer).write_all(&vec![0; size]).unwrap();
    let mut child = router.command(&subject()).arg("--foreground").stderr(writer).spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let status = end_of(&mut child);
    crate::reap(child);
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    assert!(router.log().contains("primary"), "the file has the lines");
}

#[test]
fn sigterm_right_after_the_start_ends_the_monitor() {
    for _ in 0..10 {
        let (_lab, router, _agent) = fixture(Release::V29);
        let mut monitor = router.start(&subject());
        monitor.signal(Signal::TERM);
        monitor.wait_until_gone();
        assert!(!router.pid_file().exists(), "the pid file is removed");
    }
}

#[test]
fn sigterm_before_the_first_state_ends_the_monitor() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    // With an invalid address there is no state for 10 s, as in Neutron's own program.
    router.cidr = "failed_IP_address".to_owned();
    let mut monitor = router.start(&subject());
    assert_eq!(router.state(), None, "the signal is sent before the first state");
    monitor.signal(Signal::TERM);
    monitor.wait_until_gone();
    assert!(!router.pid_file().exists(), "the pid file is removed");
    assert_eq!(router.state(), None, "the monitor did not wait for a state");
    assert_eq!(agent.words(), Vec::<String>::new());
}

#[test]
fn sigterm_with_a_hung_agent_ends_the_monitor() {
    let (_lab, router, agent) = fixture(Release::V29);
    agent.set_behaviour(Behaviour::Hanging);
    let mut child = router.command(&subject()).arg("--foreground").spawn().unwrap();
    agent.wait_for_words(&["backup"]);
    let began = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let status = end_of(&mut child);
    let took = began.elapsed();
    crate::reap(child);
    let status = status.unwrap();
    assert!(took < MAX_STOP_TIME, "{took:?}");
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    assert!(!router.pid_file().exists());
}

#[test]
fn a_pid_file_with_the_pid_of_another_process_is_not_removed() {
    let (_lab, router, _agent) = fixture(Release::V29);
    let mut monitor = router.start(&subject());
    let mut file = std::fs::File::create(router.pid_file()).unwrap();
    std::io::Write::write_all(&mut file, b"1").unwrap();
    monitor.signal(Signal::TERM);
    monitor.wait_until_gone();
    assert_eq!(read_pid(&router.pid_file()), Some(1));
}

#[test]
fn a_stale_or_foreign_pid_in_the_pid_file_does_not_prevent_a_start() {
    for stale in ["4194304", "1", "nonsense", ""] {
        let (_lab, router, _agent) = fixture(Release::V29);
        let mut file = std::fs::File::create(router.pid_file()).unwrap();
        std::io::Write::write_all(&mut file, stale.as_bytes()).unwrap();
        let child = router.command(&subject()).spawn().unwrap();
        wait_for("the pid of the monitor in the file", || {
            read_pid(&router.pid_file()).filter(|pid| command_line(*pid).contains(&router.id))
        });
        crate::reap(child);
    }
}

#[test]
fn a_symbolic_link_at_the_pid_file_is_replaced_and_not_followed() {
    let (lab, router, _agent) = fixture(Release::V29);
    let precious = lab.path().join("precious");
    std::io::Write::write_all(&mut std::fs::File::create(&precious).unwrap(), b"precious").unwrap();
    std::os::unix::fs::symlink(&precious, router.pid_file()).unwrap();
    let child = router.command(&subject()).spawn().unwrap();
    wait_for("the pid file", || read_pid(&router.pid_file()));
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    crate::reap(child);
}

#[test]
fn a_second_monitor_is_refused_while_the_pid_file_of_the_first_exists() {
    let (_lab, router, agent) = fixture(Release::V29);
    let first = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let output = output_of(&mut router.command(&subject()));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("already exist. Daemon already running?"), "{text}");
    assert!(first.is_alive());
    assert_eq!(read_pid(&router.pid_file()), Some(first.pid));
}

#[test]
fn a_monitor_whose_pid_file_was_removed_is_replaced_by_a_new_one() {
    let (_lab, router, agent) = fixture(Release::V29);
    let mut first = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    std::fs::remove_file(router.pid_file()).unwrap();
    let second = router.start(&subject());
    first.wait_until_gone();
    assert_ne!(first.pid, second.pid);
    assert_eq!(
        read_pid(&router.pid_file()),
        Some(second.pid),
        "the first monitor did not remove the file of the second"
    );
    router.take_vip();
    router.wait_for_state("primary");
}

#[test]
fn a_hung_predecessor_is_killed() {
    let (_lab, router, agent) = fixture(Release::V29);
    let mut first = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    first.signal(Signal::STOP);
    std::fs::remove_file(router.pid_file()).unwrap();
    let _second = router.start(&subject());
    first.wait_until_gone();
}

#[test]
fn of_several_monitors_that_start_at_once_one_remains() {
    for _ in 0..5 {
        let (_lab, router, agent) = fixture(Release::V29);
        let starts: Vec<_> = (0..4)
            .map(|_| router.command(&subject()).stderr(Stdio::null()).spawn().unwrap())
            .collect();
        for mut start in starts {
            wait_for("each foreground process to end", || start.try_wait().unwrap());
        }
        agent.wait_for_word("backup");
        let alive = wait_for("one remaining monitor", || {
            let alive: Vec<_> =
                router.netns.pids().into_iter().filter(|pid| is_alive(*pid)).collect();
            (alive.len() == 1).then_some(alive)
        });
        wait_for("the pid file of the remaining monitor", || {
            (read_pid(&router.pid_file()) == Some(alive[0])).then_some(())
        });
    }
}

#[test]
fn a_killed_monitor_leaves_no_process_behind() {
    let (_lab, mut router, agent) = fixture(Release::V29);
    router.conntrackd = true;
    // As in production: the monitor has no privileges, and the helper has some.
    router.give_to(65534);
    let mut monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let helpers = children(monitor.pid);
    monitor.signal(Signal::KILL);
    monitor.wait_until_gone();
    wait_for("the helper to end", || helpers.iter().all(|pid| !is_alive(*pid)).then_some(()));
    wait_for("no process to be left in the namespace", || {
        router.netns.pids().is_empty().then_some(())
    });
    router.take_vip();
    vipwatch_testkit::stays(Duration::from_millis(200), "the state file unchanged", || {
        router.state().as_deref() == Some("backup")
    });
}

#[test]
fn another_user_cannot_make_a_monitor_exit() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let name = format!("neutron-keepalived-state-change/{}", router.id);
    router.netns.visit(|| {
        let uid = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("changing the user needs root");
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        UnixStream::connect_addr(&address).expect("cannot connect to the lock");
    });
    // The monitor has read the connection when it reacts to a later event.
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    assert!(monitor.is_alive());
}

#[test]
fn only_local_sockets_are_open() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let table =
        |name: &str| std::fs::read_to_string(format!("/proc/{}/net/{name}", monitor.pid)).unwrap();
    // Both tables have a column with the inode.
    let local = format!("{}{}", table("unix"), table("netlink"));
    let local: Vec<&str> = local.split_whitespace().collect();
    let mut count = 0;
    for entry in std::fs::read_dir(format!("/proc/{}/fd", monitor.pid)).unwrap() {
        let Ok(target) = std::fs::read_link(entry.unwrap().path()) else { continue };
        let target = target.display().to_string();
        if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'))
        {
            assert!(local.contains(&inode), "{target} is neither unix nor netlink");
            count += 1;
        }
    }
    assert!(count >= 3, "netlink, lock and syslog at least; {count}");
}
