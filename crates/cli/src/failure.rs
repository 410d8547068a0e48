//! How a command ends when it does not end well: one message, a hint, an exit code.

use std::fmt;
use std::process::ExitCode;

use vipwatch_core::escape_untrusted;

/// The documented exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// The answer is no.
    No = 1,
    /// It takes more rights.
    NotPermitted = 3,
    /// Something needed is missing.
    Missing = 4,
}

/// Says something that does not keep a command from going on.
#[expect(clippy::print_stderr, reason = "the one place that complains")]
pub(crate) fn warn(text: &str) {
    eprintln!("vipwatch: {}", escape_lines(text));
}

/// Escapes each line of a message: it may quote a file or another program.
fn escape_lines(text: &str) -> String {
    text.lines().map(escape_untrusted).collect::<Vec<_>>().join("\n")
}

/// Why a command did not do what was asked.
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

    // LIMIT: waits if standard error is a pipe that nobody reads. Whoever started us and does not is not told.
    #[expect(clippy::print_stderr, reason = "the one place that complains")]
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
