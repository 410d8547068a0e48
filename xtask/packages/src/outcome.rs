// SPDX-License-Identifier: Apache-2.0
//! The result of a command in a root or a machine.

use std::process::Output;

/// Exit code and output of a command.
#[derive(Debug)]
pub struct CommandOutcome {
    /// What ran.
    pub command: String,
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutcome {
    pub(crate) fn new(command: &str, output: &Output) -> Self {
        Self {
            command: command.to_owned(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Whether the exit code is 0.
    pub fn is_ok(&self) -> bool {
        self.code == Some(0)
    }

    /// Standard output, then standard error.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Standard output without the spaces around it.
    ///
    /// # Panics
    /// If the command failed.
    #[track_caller]
    pub fn expect(self) -> String {
        assert!(
            self.is_ok(),
            "`{}` ended with {:?}\n{}{}",
            self.command,
            self.code,
            self.stdout,
            self.stderr
        );
        self.stdout.trim().to_owned()
    }
}
