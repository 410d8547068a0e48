// SPDX-License-Identifier: Apache-2.0
//! Failures that end the program: the message, a hint, and an exit code.

use std::fmt::Display;
use std::process::ExitCode;

use vipwatch_core::escape_untrusted;

/// The exit codes; `--help` describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SwitchCode {
    /// A doubt about one monitor: the program has stopped there.
    Doubt = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A privilege is missing.
    NotPermitted = 3,
    /// A program, a file or the agent is missing or unusable. No monitor was touched.
    Environment = 4,
}

/// Why the program ends.
#[derive(Debug)]
pub(crate) struct SwitchFailure {
    pub(crate) code: SwitchCode,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl SwitchFailure {
    pub(crate) fn new(code: SwitchCode, message: impl Display) -> Self {
        Self { code, message: message.to_string(), hint: None }
    }

    pub(crate) fn doubt(message: impl Display) -> Self {
        Self::new(SwitchCode::Doubt, message)
    }

    pub(crate) fn environment(message: impl Display) -> Self {
        Self::new(SwitchCode::Environment, message)
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The same failure after monitors were replaced: the code for a missing file says that nothing was changed.
    #[must_use]
    pub(crate) fn into_doubt(self) -> Self {
        Self { code: SwitchCode::Doubt, ..self }
    }

    /// Prints the message and the hint to standard error, and returns the exit code.
    #[expect(clippy::print_stderr, reason = "errors are printed here")]
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("vipwatch-neutron-switch: error: {}", escape_untrusted(&self.message));
        if let Some(hint) = &self.hint {
            eprintln!("  hint: {}", escape_untrusted(hint));
        }
        ExitCode::from(self.code as u8)
    }
}
