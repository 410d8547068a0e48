// SPDX-License-Identifier: Apache-2.0
//! The lock that allows one monitor for each router, and processes that are not monitors.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::{output_of, read_pid};
use vipwatch_testkit::{Release, Router, pause, wait_for};

use crate::{fixture, subject};

/// Opens as many connections to the lock of `router` as the kernel queues, as a user that may not replace the monitor.
fn connections_of_another_user(router: &Router) -> Vec<OwnedFd> {
    const MAX_CONNECTIONS: usize = 4_000;
    let name = format!("neutron-keepalived-state-change/{}", router.id);
    router.netns.visit(|| {
        let uid = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("changing the user needs root");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let connect_one = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            connect(&socket, &address).ok().map(|()| socket)
        };
        std::iter::from_fn(connect_one).take(MAX_CONNECTIONS).collect()
    })
}

/// A timer retries the state file that could not be written. It expires while the connections wait to be accepted.
#[test]
fn connections_to_the_lock_do_not_delay_timers() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let state = router.conf_dir.join("state");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    router.take_vip();
    router.wait_for_log("Failed to write router");
    monitor.signal(Signal::STOP);
    std::fs::remove_dir(&state).unwrap();
    let connections = connections_of_another_user(&router);
    assert!(connections.len() > 100, "{}", connections.len());
    // The longest delay between two attempts.
    pause(Duration::from_secs(5));
    monitor.signal(Signal::CONT);
    let tenth = &connections[9];
    let mut closed = [PollFd::new(tenth, PollFlags::IN)];
    poll(&mut closed, None).unwrap();
    assert_eq!(router.state().as_deref(), Some("primary"), "the timer waited for the connections");
}

/// `daemonize` and some unit files write the pid of the process that they start into the pid file. That is the
/// foreground process, which ends when the daemon is ready.
#[test]
fn the_waiting_foreground_process_is_not_taken_for_a_running_monitor() {
    let (_lab, router, agent) = fixture(Release::V26);
    let agents = router.command(&subject());
    let mut command = Command::new("sh");
    command.args(["-c", "printf %s $$ > \"$0\"; exec \"$@\""]).arg(router.pid_file());
    command.arg(agents.get_program()).args(agents.get_args());
    let output = output_of(&mut command);
    assert!(output.status.success(), "{output:?}");
    agent.wait_for_words(&["backup"]);
    router.stop();
}

/// Takes the lock, hands it to a child process, and ends.
const HANDING_OVER: &str = r#"
import os, socket, sys, time
lock = socket.socket(socket.AF_UNIX)
lock.bind("\0neutron-keepalived-state-change/" + sys.argv[1])
lock.listen()
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
"#;

/// Starts a process that has the pid of another one, which has ended.
fn start_with_pid(pid: u32) -> Child {
    wait_for("a process with the freed pid", || {
        let last = std::fs::File::options().write(true).open("/proc/sys/kernel/ns_last_pid");
        last.and_then(|mut file| write!(file, "{}", pid - 1)).expect("needs root");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        if child.id() == pid {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        None
    })
}

/// For a listening socket, the kernel reports the pid of the process that called `listen`, also after its end.
#[test]
fn a_process_that_has_got_the_pid_of_an_earlier_holder_of_the_lock_is_not_killed() {
    let (_lab, router, _agent) = fixture(Release::V29);
    let mut python = router.netns.command("python3");
    let mut holder = python.args(["-c", HANDING_OVER, &router.id]).spawn().unwrap();
    assert!(holder.wait().unwrap().success());
    let mut other = start_with_pid(holder.id());
    let output = output_of(&mut router.command(&subject()));
    let ended = other.try_wait().unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(ended.is_none(), "{ended:?}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cannot take the lock"), "{stderr}");
}

#[test]
fn sudo_is_not_taken_for_a_running_monitor() {
    let (_lab, router, agent) = fixture(Release::V26);
    // sudo has the command line of the monitor as its own arguments, and waits until the command ends.
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "sh", "-c", "exec sleep 1000", "neutron-keepalived-state-change"]);
    let mut sudo = sudo.args(router.arguments()).spawn().expect("sudo");
    let pid = sudo.id().to_string();
    std::fs::File::create(router.pid_file()).unwrap().write_all(pid.as_bytes()).unwrap();
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let monitor = router.start(&subject());
        agent.wait_for_words(&["backup"]);
        assert_eq!(read_pid(&router.pid_file()), Some(monitor.pid));
    }));
    // sudo forwards this signal to its command.
    rustix::process::kill_process(Pid::from_child(&sudo), Signal::TERM).unwrap();
    sudo.wait().unwrap();
    started.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
