// SPDX-License-Identifier: Apache-2.0
//! Failures that end the program, as an operator needs them: the message, a hint, and an exit code.

use std::io::Write;
use std::process::ExitCode;

use crate::args::PROGRAM;
use crate::log::one_line;

/// The exit codes; `--help` and `docs/reference/options.md` describe them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The answer is no: another monitor of the router runs, or `--check` found a problem.
    No = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A privilege or a permission is missing.
    NotPermitted = 3,
    /// A namespace, file, user or other resource is missing or unusable.
    Environment = 4,
    /// A defect of this program.
    Defect = 70,
}

impl Code {
    /// The code with this number; an unknown number is a defect.
    pub(crate) fn from_number(number: u8) -> Self {
        [Self::No, Self::Usage, Self::NotPermitted, Self::Environment]
            .into_iter()
            .find(|code| *code as u8 == number)
            .unwrap_or(Self::Defect)
    }

    /// The code for a failed system call: [`Self::NotPermitted`] for a denied permission, else [`Self::Environment`].
    pub(crate) fn of(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => Self::NotPermitted,
            _ => Self::Environment,
        }
    }
}

/// A failure that ends the program.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) code: Code,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Writes the failure to standard error and to syslog, because agents from Neutron 29 on do not read standard error.
    /// Returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let mut stderr = std::io::stderr();
        // A failed write to standard error cannot be reported anywhere.
        let _ = writeln!(stderr, "{PROGRAM}: error: {}", one_line(&self.message));
        if let Some(hint) = &self.hint {
            let _ = writeln!(stderr, "  hint: {}", one_line(hint));
        }
        crate::log::to_syslog_only(&self.message);
        ExitCode::from(self.code as u8)
    }
}

/// Prints `text` to standard output. A write error, such as a closed pipe, is ignored.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
