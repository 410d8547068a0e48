// SPDX-License-Identifier: Apache-2.0
//! A running `vipwatch watch`, and the position of its first event.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command};

use serde_json::Value;
use vipwatch_testkit::{NodeFixture, wait_showing};

use crate::support::{PROGRAM, query_json, read};

/// A running `vipwatch watch`, which writes its output to files. It is killed when this value is dropped.
pub(crate) struct WatchCommand {
    pub(crate) child: Child,
    output: PathBuf,
    errors: PathBuf,
    /// The number of lines that the test has read.
    lines_read: usize,
}

impl WatchCommand {
    /// Starts the command. Two commands of one test must have different numbers of arguments, which name their files.
    pub(crate) fn new(fixture: &NodeFixture, args: &[&str]) -> Self {
        let number = args.len();
        let file = |kind: &str| fixture.config().with_extension(format!("watch-{number}-{kind}"));
        let (output, errors) = (file("output"), file("errors"));
        let mut command = Command::new(PROGRAM);
        command.arg("watch").args(args).arg("--socket").arg(fixture.socket());
        command.stdout(File::create(&output).unwrap()).stderr(File::create(&errors).unwrap());
        Self { child: command.spawn().unwrap(), output, errors, lines_read: 0 }
    }

    /// The next line; waits for it.
    #[track_caller]
    pub(crate) fn read_line(&mut self) -> String {
        let shown = || format!("{}{}", read(&self.output), self.errors());
        let line = wait_showing("a line", shown, || {
            let text = read(&self.output);
            // The last line may be incomplete.
            let (complete, _) = text.rsplit_once('\n')?;
            complete.lines().nth(self.lines_read).map(str::to_owned)
        });
        self.lines_read += 1;
        line
    }

    /// The next transition that the command prints as JSON. Events of other kinds are left out.
    #[track_caller]
    pub(crate) fn read_transition(&mut self) -> Value {
        loop {
            let line = self.read_line();
            let event: Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
            if event["schema"] == "vipwatch.transition/2" {
                return event;
            }
        }
    }

    /// The next line with this text.
    #[track_caller]
    pub(crate) fn read_line_with(&mut self, text: &str) -> String {
        loop {
            let line = self.read_line();
            if line.contains(text) {
                return line;
            }
        }
    }

    /// What the command has printed to standard error.
    pub(crate) fn errors(&self) -> String {
        read(&self.errors)
    }
}

impl Drop for WatchCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The id of the last event of the node.
pub(crate) fn last_event(fixture: &NodeFixture) -> String {
    let status = query_json(fixture, &["status"]);
    format!("{}-{}", status["epoch"].as_str().unwrap(), status["seq"])
}
