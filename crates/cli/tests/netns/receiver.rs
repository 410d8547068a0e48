// SPDX-License-Identifier: Apache-2.0
//! `vipwatch receiver` as a process: reports, crashes, full disks, idle connections and sockets.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::wait::{wait_showing, wait_within};
use vipwatch_testkit::{Lab, wait_for};

use crate::receiver_process::{
    ReceiverProcess, configure, receiver_command, report, report_until_accepted, socket,
};
use crate::support::{MANY_FILES, PROGRAM};

#[test]
fn a_receiver_that_is_killed_again_and_again_loses_no_accepted_report() {
    let lab = Lab::new();
    let mut receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    let accepted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..20 {
            let (accepted, directory) = (&accepted, lab.path());
            scope.spawn(move || {
                for number in 0..50 {
                    let id = format!("r{worker}-{number}");
                    for state in ["backup", "primary", "backup"] {
                        report_until_accepted(directory, &id, state);
                    }
                    accepted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for count in [200, 500, 800] {
            wait_within(std::time::Duration::from_mins(1), "some reports", || {
                (accepted.load(Ordering::Relaxed) >= count).then_some(())
            });
            receiver.child.kill().unwrap();
            receiver.child.wait().unwrap();
            receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
        }
    });
    wait_for("the last report of each router", || {
        (receiver.count_settled("backup") == 1000).then_some(())
    });
    assert_eq!(receiver.count_settled("primary"), 0);
}

#[test]
fn a_primary_report_that_is_withdrawn_within_the_interval_is_not_delivered() {
    let lab = Lab::new();
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "1h"]);
    for state in ["backup", "primary", "backup"] {
        assert_eq!(report(lab.path(), "a", state), Some(200));
    }
    assert_eq!(report(lab.path(), "b", "primary"), Some(200));
    let status = receiver.status();
    assert_eq!(status["items"][0]["state"], "standby", "{status}");
    assert_eq!(status["items"][1]["held"], true, "{status}");
    receiver.wait_for_log("standby");
    assert!(!receiver.log().contains("active"), "{}", receiver.log());
}

#[test]
fn a_receiver_whose_disk_fills_up_answers_503_until_there_is_space() {
    let lab = Lab::new();
    let state_dir = lab.path().join("receiver");
    std::fs::create_dir(&state_dir).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=512k", "tmpfs"];
    vipwatch_testkit::run(Command::new("mount").args(mount).arg(&state_dir));
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "a", "backup"), Some(200));
    // Uses all free space of the disk.
    let mut ballast = std::fs::File::create(state_dir.join("ballast")).unwrap();
    while ballast.write_all(&[0; 1024]).is_ok() {}
    let mut answers = Vec::new();
    for number in 0..500 {
        answers.push(report(lab.path(), &format!("r{number}"), "backup"));
        if answers.last() == Some(&Some(503)) {
            break;
        }
    }
    assert_eq!(answers.last(), Some(&Some(503)), "{answers:?}");
    let accepted = answers.iter().filter(|answer| **answer == Some(200)).count();
    drop(ballast);
    std::fs::remove_file(state_dir.join("ballast")).unwrap();
    // The kernel frees the space a moment after the file is removed.
    report_until_accepted(lab.path(), "z", "backup");
    assert_eq!(receiver.count_settled("backup"), accepted + 2);
    assert!(receiver.status()["unavailable"].as_u64() > Some(0));
    drop(receiver);
    vipwatch_testkit::run(Command::new("umount").arg("--lazy").arg(&state_dir));
}

#[test]
fn a_second_receiver_an_unknown_user_and_an_unknown_simulation_are_refused() {
    let lab = Lab::new();
    let _receiver = ReceiverProcess::start(lab.path(), &[]);
    configure(lab.path(), None);
    let second = output_of(&mut receiver_command(lab.path(), &[]));
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("another process is already listening on")
    );
    let unknown_user = output_of(&mut receiver_command(lab.path(), &["--allow", "no-such-user"]));
    assert_eq!(unknown_user.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&unknown_user.stderr).contains("no user \"no-such-user\""));
    let mut simulate = std::process::Command::new(crate::support::PROGRAM);
    let unknown_simulation = output_of(simulate.args(["simulate-agent", "friendly"]));
    assert_eq!(unknown_simulation.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown_simulation.stderr).contains("threaded, eventlet"));
}

#[test]
fn ten_thousand_idle_connections_neither_block_reports_nor_use_much_memory() {
    let _many_files = MANY_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    let files = vipwatch_linux::process::raise_file_limit();
    assert!(
        files > 10_100,
        "this test needs more than 10,000 open files, but the limit is {files}"
    );
    let idle_connections: Vec<UnixStream> =
        (0..10_000).map(|_| UnixStream::connect(socket(lab.path())).unwrap()).collect();
    for number in 0..100 {
        assert_eq!(report(lab.path(), &format!("r{number}"), "backup"), Some(200));
    }
    let status = receiver.status();
    assert_eq!(status["accepted"], 100, "{status}");
    assert!(status["connections"].as_u64() <= Some(4096), "{status}");
    // The receiver closes idle connections when it reaches its limit, or after a timeout. The number of each kind
    // depends on the speed of the machine.
    assert!(status["rejected"]["made_room"].as_u64() > Some(0), "{status}");
    let path = format!("/proc/{}/status", receiver.child.id());
    let memory = std::fs::read_to_string(path).unwrap();
    let memory = memory.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = memory.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 64 << 10, "{kilobytes} KiB");
    drop(idle_connections);
}

#[test]
fn a_receiver_without_free_file_descriptors_recovers_when_connections_close() {
    let lab = Lab::new();
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    // Leaves ten free numbers for descriptors. The receiver may have inherited some of the test program.
    let pid = receiver.child.id().to_string();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let used: Vec<u32> =
        files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok()).collect();
    let limit = (0..).filter(|number| !used.contains(number)).nth(10).unwrap();
    let option = format!("--nofile={limit}");
    vipwatch_testkit::run(Command::new("prlimit").args(["--pid", &pid, &option]));
    // Each connection has sent something, so the receiver does not close any of them as idle.
    let mut begun: Vec<UnixStream> = Vec::new();
    for _ in 0..60 {
        let mut stream = UnixStream::connect(socket(lab.path())).unwrap();
        stream.write_all(b"POST").unwrap();
        begun.push(stream);
    }
    wait_for("the limit to be reached", || {
        receiver.log().contains("cannot accept connections").then_some(())
    });
    drop(begun);
    wait_showing(
        "the report to be accepted",
        || receiver.log(),
        || (report(lab.path(), "a", "backup") == Some(200)).then_some(()),
    );
}

#[test]
fn a_receiver_reports_that_its_socket_was_replaced_and_does_not_remove_the_new_one() {
    let lab = Lab::new();
    let mut receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    // Neutron's agent does the same when it starts: it removes the socket file and creates its own.
    let other =
        vipwatch_testkit::FakeAgent::listen(lab.path(), vipwatch_testkit::Behaviour::Threaded);
    receiver.wait_for_log("another process has replaced the socket file");
    let problem = &receiver.status()["problems"][0];
    assert_eq!(problem["name"], "socket", "{problem}");
    vipwatch_testkit::run(Command::new("kill").args(["-TERM", &receiver.child.id().to_string()]));
    assert!(receiver.child.wait().unwrap().success());
    assert_eq!(report(lab.path(), "a", "primary"), Some(200), "the other server gets the report");
    assert_eq!(other.count(), 1);
}

/// Passes a listening socket to a program as a service manager does (`LISTEN_FDS`), then executes it.
const ACTIVATE: &str = "\
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(100)
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn a_socket_of_the_service_manager_is_used_and_not_changed_or_removed() {
    let lab = Lab::new();
    configure(lab.path(), None);
    let inner = receiver_command(lab.path(), &["--interval", "0s"]);
    let log = std::fs::File::create(lab.path().join("log")).unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", ACTIVATE]).arg(socket(lab.path())).arg(PROGRAM).args(inner.get_args());
    let child = python.stderr(log).spawn().unwrap();
    let mut receiver = ReceiverProcess::starting(child, lab.path());
    wait_for("the receiver", || receiver.try_status());
    assert_eq!(report(lab.path(), "a", "backup"), Some(200));
    // The receiver does not change the mode of this socket, and still accepts reports.
    configure(lab.path(), Some("[receiver]\nmode = \"600\"\n"));
    receiver.reload();
    wait_for("the log", || receiver.log().contains("socket settings ignored").then_some(()));
    assert_eq!(report(lab.path(), "a", "primary"), Some(200));
    let pid = receiver.child.id().to_string();
    vipwatch_testkit::run(Command::new("kill").args(["-TERM", &pid]));
    assert!(receiver.child.wait().unwrap().success());
    assert!(socket(lab.path()).exists());
}

#[test]
fn sigusr1_and_sigusr2_do_not_end_a_receiver() {
    let lab = Lab::new();
    let mut receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    for signal in ["-USR1", "-USR2"] {
        let pid = receiver.child.id().to_string();
        vipwatch_testkit::run(Command::new("kill").args([signal, &pid]));
        assert_eq!(report(lab.path(), "r1", "primary"), Some(200), "{signal}");
        assert!(receiver.child.try_wait().unwrap().is_none(), "{signal}");
    }
}
