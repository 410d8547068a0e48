//! A thread that panics ends the process; a thread that makes no progress stops the watchdog messages.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeProcess, stays, wait_for};

use crate::curl::curl;
use crate::receiver_process::{configure, receiver_command};
use crate::support::{PROGRAM, fixture_with, vi_1_conf};

/// The exit code of a Rust program after a panic.
const PANIC_EXIT_CODE: i32 = 101;

#[test]
fn a_panic_in_any_thread_ends_the_node_with_a_message() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[receiver]\n[[notify]]\nannounce = true\n");
    for thread in ["history", "announce", "audit", "api", "journal", "receiver"] {
        let output = output_of(fixture.node_command().env("VIPWATCH_TEST_PANIC", thread));
        assert_eq!(output.status.code(), Some(PANIC_EXIT_CODE), "{thread}: {output:?}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let line =
            printed.lines().find(|line| line.contains("a thread panicked; the process ends"));
        let line = line.unwrap_or_else(|| panic!("{thread}: {printed}"));
        assert!(line.contains(&format!("thread=\"{thread}\"")), "{line}");
        assert!(line.contains("a panic that a test has asked for"), "{line}");
    }
}

#[test]
fn a_panic_in_any_thread_ends_the_receiver_with_a_message() {
    let lab = Lab::new();
    configure(lab.path(), None);
    for thread in ["api", "journal", "receiver"] {
        let output =
            output_of(receiver_command(lab.path(), &[]).env("VIPWATCH_TEST_PANIC", thread));
        assert_eq!(output.status.code(), Some(PANIC_EXIT_CODE), "{thread}: {output:?}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(printed.contains("a thread panicked; the process ends"), "{printed}");
    }
}

/// Stops one thread with ptrace, as a debugger does, until standard input ends.
const STOP_THREAD: &str = "\
import ctypes, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, INTERRUPT = 0x4206, 0x4207
tid = int(sys.argv[1])
for request in (SEIZE, INTERRUPT):
    if ptrace(request, tid, 0, 0) != 0:
        sys.exit('ptrace: errno %d' % ctypes.get_errno())
print('stopped', flush=True)
sys.stdin.read()
";

/// Stops the thread with this name until the standard input of the returned process is closed.
fn stop_thread(node: &NodeProcess, thread: &str) -> Child {
    let tasks = format!("/proc/{}/task", node.pid());
    let mut tasks = std::fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path());
    let has_name = |name: String| name.trim() == thread;
    let task = tasks.find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(has_name));
    let id = task.unwrap().file_name().unwrap().to_owned();
    let mut python = Command::new("python3");
    python.args(["-c", STOP_THREAD]).arg(id).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "stopped\n");
    child
}

#[test]
fn the_watchdog_is_not_fed_while_a_thread_makes_no_progress() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[receiver]\n[[notify]]\nannounce = true\n");
    let period = Duration::from_secs(2);
    let fixture = fixture.with_watchdog(period);
    let node = fixture.start();
    let is_fed = || node.notices().iter().any(|notice| notice == "WATCHDOG=1");
    for thread in ["history", "announce", "audit", "api", "journal", "receiver"] {
        wait_for("the watchdog to be fed", || is_fed().then_some(()));
        let mut tracer = stop_thread(&node, thread);
        let line = format!("the watchdog is not fed thread=\"{thread}\"");
        fixture.wait_for_log(&line);
        let _ = node.notices();
        stays(period, "no watchdog message", || !is_fed());
        // The thread continues, and the watchdog is fed again.
        drop(tracer.stdin.take());
        assert!(tracer.wait().unwrap().success());
    }
    wait_for("the watchdog to be fed", || is_fed().then_some(()));
    assert!(node.stop().success());
}

#[test]
fn the_api_refuses_the_published_state_while_the_main_loop_hangs() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let status = || curl(&fixture, &[], "/v1/status");
    assert_eq!(status().status, 200);
    let mut tracer = stop_thread(&node, "vipwatch");
    wait_for("a refusal", || (status().status == 503).then_some(()));
    assert_eq!(status().problem(), (503, "not-ready"));
    assert_eq!(curl(&fixture, &[], "/healthz").problem(), (503, "not-ready"));
    assert_eq!(curl(&fixture, &[], "/v1/version").status, 200);
    let output =
        output_of(Command::new(PROGRAM).args(["status", "--socket"]).arg(fixture.socket()));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && printed.contains("the main loop has not run"),
        "{output:?}"
    );
    drop(tracer.stdin.take());
    assert!(tracer.wait().unwrap().success());
    wait_for("an answer", || (status().status == 200).then_some(()));
    assert!(node.stop().success());
}
