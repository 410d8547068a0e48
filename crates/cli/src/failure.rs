//! The error of a command: a message, an optional hint and an exit code.

use std::fmt;
use std::process::ExitCode;

use vipwatch_core::escape_untrusted;

/// The documented exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// The answer is no.
    No = 1,
    /// The user has not the needed permission.
    NotPermitted = 3,
    /// Something needed is missing.
    Missing = 4,
}

/// Prints a warning to standard error; the command continues.
#[expect(clippy::print_stderr, reason = "errors and warnings are printed here only")]
pub(crate) fn warn(text: &str) {
    eprintln!("vipwatch: {}", escape_lines(text));
}

/// Escapes each line of a message, which may quote a file or another program.
fn escape_lines(text: &str) -> String {
    text.lines().map(escape_untrusted).collect::<Vec<_>>().join("\n")
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct CommandError {
    pub(crate) code: ExitStatus,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl CommandError {
    pub(crate) fn new(code: ExitStatus, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), hint: None }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Prints the message and the hint, and returns the exit code.
    // LIMIT: waits if standard error is a full pipe that no process reads.
    #[expect(clippy::print_stderr, reason = "errors and warnings are printed here only")]
    pub(crate) fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            eprintln!("vipwatch: {}", escape_lines(&self.message));
        }
        if let Some(hint) = &self.hint {
            eprintln!("  hint: {}", escape_lines(hint));
        }
        ExitCode::from(self.code as u8)
    }
}
