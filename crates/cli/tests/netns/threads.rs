// SPDX-License-Identifier: Apache-2.0
//! A thread that panics ends the process; a thread that makes no progress stops the watchdog messages.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeProcess, run, stays, wait_for};

use crate::curl::curl;
use crate::receiver_process::{configure, receiver_command};
use crate::support::{
    ADD_VIP, PROGRAM, fixture_with, read, vi_1_conf, wait_for_content, wait_for_role, write_hook,
};

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

/// Sets the limit of the node's address space in bytes, or removes it.
fn limit_address_space(node: &NodeProcess, limit: Option<u64>) {
    let limit = limit.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
    let (pid, limit) = (node.pid().to_string(), format!("--as={limit}:unlimited"));
    run(Command::new("prlimit").args(["--pid", &pid, &limit]));
}

/// The size of the node's address space in bytes.
fn address_space(node: &NodeProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_worker_that_could_not_be_started_is_started_later() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let output = lab.path().join("output");
    let hook =
        write_hook(&lab.path().join("hook"), &format!("echo $VIPWATCH_TO >> {}", output.display()));
    fixture.configure(&format!(
        "[[notify]]\nhook = {{ program = \"{}\", on = [\"primary\"] }}\n",
        hook.display()
    ));
    let node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    // The stack of a worker thread takes 256 KiB.
    limit_address_space(&node, Some(address_space(&node) + (192 << 10)));
    netns.ip(ADD_VIP);
    // The node logs a transition after it has notified the targets.
    fixture.wait_for_log("to=\"primary\"");
    assert_eq!(read(&output), "");
    limit_address_space(&node, None);
    wait_for_content(&output, "primary");
    assert!(node.stop().success());
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
pub(crate) fn stop_thread(node: &NodeProcess, thread: &str) -> Child {
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
        for command in ["doctor", "findings"] {
            let output = fixture.run(&[command]);
            assert_eq!(output.status.code(), Some(6), "{command}, {thread}: {output:?}");
        }
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
    assert_eq!(fixture.run(&["doctor"]).status.code(), Some(6), "no answer is not a healthy node");
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
