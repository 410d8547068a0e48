// SPDX-License-Identifier: Apache-2.0
//! Counts the processes that a monitor starts. The monitor runs in a PID namespace of its own, so that the last
//! pid given there counts them. The threads of the fake agent get their pids in another namespace.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::Router;
use vipwatch_testkit::monitor::read_pid;

use super::{Program, ProgramPaths, Running, as_service, progress, set, setup_with, spin};
use crate::measure::count;
use crate::report::{BenchTarget, Row};

/// Starts the monitor, then prints the last pid for each line it reads. `cat` reads the file, because the shell's
/// `read` reads one byte at a time and this file returns data at offset 0 only.
const COUNT_SCRIPT: &str = "\"$@\" < /dev/null > /dev/null 2>&1 & \
     while read -r line; do cat /proc/sys/kernel/ns_last_pid; done";

/// Processes that one query starts: `cat` itself.
const PER_QUERY: f64 = 1.0;

/// Reads the last pid of a PID namespace.
struct Counter {
    queries: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Counter {
    fn query(&mut self) -> Option<f64> {
        self.queries.write_all(b"\n").ok()?;
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        line.trim().parse().ok()
    }
}

pub(super) fn started(paths: &ProgramPaths, number: usize, rows: &mut Vec<Row>) {
    let row = Row::new("processes started per 1,000 changes", "");
    let mut row = row.target(BenchTarget::AtMost(0.0));
    for program in Program::ALL {
        progress("processes", program);
        let mut counter = None;
        let setup = setup_with(program, |router| {
            let (running, started) = start(paths, program, router);
            counter = Some(started);
            running
        });
        let mut last = || counter.as_mut().and_then(Counter::query);
        let changes = program.samples(number) / 2 * 2;
        let before = last();
        setup.make_changes(changes);
        let started = before.zip(last()).map(|(before, after)| after - before - PER_QUERY);
        set(&mut row, program, started.map(|started| started * 1_000.0 / count(changes)));
    }
    rows.push(row);
}

fn start(paths: &ProgramPaths, program: Program, router: &Router) -> (Running, Counter) {
    let monitor = paths.command(program, router);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", COUNT_SCRIPT, "sh"]);
    command.arg(monitor.get_program()).args(monitor.get_args());
    as_service(&mut command);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut spawned = spawned.expect("a PID namespace can be made");
    let queries = spawned.stdin.take().expect("a pipe");
    let answers = BufReader::new(spawned.stdout.take().expect("a pipe"));
    spin(Duration::from_mins(1), || read_pid(&router.pid_file())).expect("a pid file");
    // The pid file has a pid of the other namespace. In this namespace all processes of the monitor descend from
    // the first process.
    let pid = i32::try_from(spawned.id()).expect("a pid");
    (Running { spawned, pid }, Counter { queries, answers })
}
