//! A thread that panics or stands still is noticed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeProcess, stays, wait_for};

use crate::receiver::{command, configure};
use crate::{one, stage};

/// The exit code of a program that panicked.
const PANICKED: i32 = 101;

#[test]
fn a_panic_in_any_thread_ends_the_node_with_a_message() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    place.configure("[agent]\n[[outlet]]\nannounce = true\n");
    for thread in ["history", "announce", "audit", "desk", "journal", "receiver"] {
        let output = output_of(place.node_command().env("VIPWATCH_TEST_PANIC", thread));
        assert_eq!(output.status.code(), Some(PANICKED), "{thread}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = said.lines().find(|line| line.contains("a thread panicked; the process ends"));
        let line = line.unwrap_or_else(|| panic!("{thread}: {said}"));
        assert!(line.contains(&format!("thread=\"{thread}\"")), "{line}");
        assert!(line.contains("a panic that a test has asked for"), "{line}");
    }
}

#[test]
fn a_panic_in_any_thread_ends_the_receiver_with_a_message() {
    let lab = Lab::new();
    configure(lab.path(), None);
    for thread in ["desk", "journal", "receiver"] {
        let output = output_of(command(lab.path(), &[]).env("VIPWATCH_TEST_PANIC", thread));
        assert_eq!(output.status.code(), Some(PANICKED), "{thread}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("a thread panicked; the process ends"), "{said}");
    }
}

/// Holds one thread of a process, as a debugger does, until its input ends.
const HOLD: &str = "\
import ctypes, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, INTERRUPT = 0x4206, 0x4207
tid = int(sys.argv[1])
for request in (SEIZE, INTERRUPT):
    if ptrace(request, tid, 0, 0) != 0:
        sys.exit('ptrace: errno %d' % ctypes.get_errno())
print('held', flush=True)
sys.stdin.read()
";

fn hold(node: &NodeProcess, thread: &str) -> Child {
    let tasks = format!("/proc/{}/task", node.pid());
    let mut tasks = std::fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path());
    let is_it = |name: String| name.trim() == thread;
    let task = tasks.find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(is_it));
    let id = task.unwrap().file_name().unwrap().to_owned();
    let mut python = Command::new("python3");
    python.args(["-c", HOLD]).arg(id).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    child
}

#[test]
fn the_watchdog_is_not_fed_while_a_thread_stands_still() {
    let lab = Lab::new();
    let (_netns, place) = stage(&lab, &[one()]);
    place.configure("[agent]\n[[outlet]]\nannounce = true\n");
    let period = Duration::from_secs(2);
    let place = place.with_watchdog(period);
    let node = place.start();
    let is_fed = || node.notices().iter().any(|notice| notice == "WATCHDOG=1");
    for thread in ["history", "announce", "audit", "desk", "journal", "receiver"] {
        wait_for("the watchdog to be fed", || is_fed().then_some(()));
        let mut holder = hold(&node, thread);
        let line = format!("the watchdog is not fed thread=\"{thread}\"");
        place.wait_for_log(&line);
        let _ = node.notices();
        stays(period, "silence", || !is_fed());
        // It goes on, and so does everything.
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
    }
    wait_for("the watchdog to be fed", || is_fed().then_some(()));
    assert!(node.stop().success());
}
