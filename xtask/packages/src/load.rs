// SPDX-License-Identifier: Apache-2.0
//! Routers that change their role all the time, and a comparison of their changes with the history.

use crate::{Machine, MachineProcess};

/// The program that changes the roles.
const PROGRAM: &str = include_str!("load.py");

/// Reads the changes of each router from the history, in order: one line with the router and the role.
const HISTORY: &str = r#"python3 -c '
import sqlite3
file = sqlite3.connect("file:/var/lib/vipwatch/history.sqlite?mode=ro", uri=True)
query = "SELECT instance, to_role FROM transition WHERE from_role IS NOT NULL ORDER BY seq"
for row in file.execute(query):
    print(*row)
'"#;

/// A running load.
pub struct RoleChanges<'a> {
    machine: &'a Machine,
    process: MachineProcess,
}

impl<'a> RoleChanges<'a> {
    /// Creates eight routers and begins to change their roles.
    pub fn start(machine: &'a Machine) -> Self {
        machine.write("/run/load.py", PROGRAM);
        let process = machine.spawn("exec python3 /run/load.py /run/load.counts");
        Self { machine, process }
    }

    /// Waits until the history has at least `count` more changes than now.
    #[track_caller]
    pub fn continue_for(&mut self, count: usize) {
        let machine = self.machine;
        let number = || machine.run(HISTORY).stdout.lines().count();
        let target = number() + count;
        let status = || machine.run("vipwatch status").text();
        vipwatch_testkit::wait::wait_showing("changes in the history", status, || {
            assert!(self.process.is_running(), "the load has ended");
            (number() >= target).then_some(())
        });
    }

    /// Ends the load. The history must have each change of each router exactly once, in order.
    ///
    /// # Panics
    /// If a change is missing, or recorded twice.
    #[track_caller]
    pub fn finish(mut self) -> usize {
        self.machine.succeed("touch /run/load.stop");
        assert!(self.process.wait().success(), "the load failed");
        let counts = self.machine.succeed("tr -d '{}\",:' < /run/load.counts");
        let words: Vec<&str> = counts.split_whitespace().collect();
        let mut total = 0;
        for pair in words.chunks_exact(2) {
            let (router, count): (&str, usize) = (pair[0], pair[1].parse().unwrap());
            self.machine.wait_until(
                "the last change in the history",
                &format!("test $({HISTORY} | grep -c ^{router}) -ge {count}"),
            );
            let history = self.machine.succeed(HISTORY);
            let roles: Vec<&str> = history
                .lines()
                .filter_map(|line| line.strip_prefix(router))
                .map(str::trim)
                .collect();
            let expected = ["primary", "backup"].into_iter().cycle().take(count);
            assert!(roles.iter().copied().eq(expected), "{router}: {count} changes, but {roles:?}");
            total += count;
        }
        total
    }
}
