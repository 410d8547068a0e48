//! Processes that a monitor starts. It runs in a PID namespace of its own, whose last number counts them:
//! the threads of the test's agent have their numbers elsewhere.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::Router;
use vipwatch_testkit::monitor::read_pid;

use super::{PeerPrograms, Running, Who, as_service, say, set, spin, stage_with};
use crate::bench::report::{BenchTarget, Row};

/// Starts the monitor, then prints the last number for each line it reads. A shell's own `read` takes one
/// byte at a time, and the kernel gives no more than the first.
const COUNT: &str = "\"$@\" < /dev/null > /dev/null 2>&1 & \
     while read -r line; do cat /proc/sys/kernel/ns_last_pid; done";

/// Processes that one question takes: `cat` itself.
const PER_QUESTION: f64 = 1.0;

/// The last number of a PID namespace.
struct Counter {
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Counter {
    fn ask(&mut self) -> Option<f64> {
        self.questions.write_all(b"\n").ok()?;
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        line.trim().parse().ok()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of changes")]
pub(super) fn started(homes: &PeerPrograms, count: usize, rows: &mut Vec<Row>) {
    let mut row = Row::new("processes started per 1,000 changes", "");
    row.target = Some(BenchTarget::AtMost(0.0));
    for who in Who::ALL {
        say("processes", who);
        let mut counter = None;
        let stage = stage_with(who, |router| {
            let (running, started) = start(homes, who, router);
            counter = Some(started);
            running
        });
        let mut last = || counter.as_mut().and_then(Counter::ask);
        let changes = who.samples(count) / 2 * 2;
        let before = last();
        for turn in 0..changes {
            let word = if turn % 2 == 0 { "primary" } else { "backup" };
            stage.change(turn % 2 == 0);
            stage.agent.wait_for_next(word, Duration::from_secs(10));
        }
        let started = before.zip(last()).map(|(before, after)| after - before - PER_QUESTION);
        set(&mut row, who, started.map(|started| started * 1_000.0 / changes as f64));
    }
    rows.push(row);
}

fn start(homes: &PeerPrograms, who: Who, router: &Router) -> (Running, Counter) {
    let monitor = homes.command(who, router);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", COUNT, "sh"]);
    command.arg(monitor.get_program()).args(monitor.get_args());
    as_service(&mut command);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut spawned = spawned.expect("a PID namespace can be made");
    let questions = spawned.stdin.take().expect("a pipe");
    let answers = BufReader::new(spawned.stdout.take().expect("a pipe"));
    spin(Duration::from_mins(1), || read_pid(&router.pid_file())).expect("a pid file");
    // The pid file has a number of the other namespace; here all of them descend from the first process.
    let pid = i32::try_from(spawned.id()).expect("a pid");
    (Running { spawned, pid }, Counter { questions, answers })
}
