//! What goes wrong before or while watching, as an operator needs it: what, what to do,
//! and an exit code.

use std::io::Write;
use std::process::ExitCode;

use crate::args::PROGRAM;
use crate::log::one_line;

/// Exit codes; documented in `--help` and the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Answered "no": another instance runs, or `--check` found something.
    No = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A privilege or a permission is missing.
    NotPermitted = 3,
    /// Something that must exist does not.
    Environment = 4,
    /// A defect of this program.
    Defect = 70,
}

impl Code {
    /// The code with this number; anything unknown is a defect.
    pub(crate) fn from_number(number: u8) -> Self {
        [Self::No, Self::Usage, Self::NotPermitted, Self::Environment]
            .into_iter()
            .find(|code| *code as u8 == number)
            .unwrap_or(Self::Defect)
    }

    /// The code for a failed system call: permissions, or the rest of the world.
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

    /// Says it on standard error and to syslog: since Neutron 29 nobody reads the former.
    pub(crate) fn report(&self) -> ExitCode {
        let mut stderr = std::io::stderr();
        // With standard error gone there is nobody left to complain to.
        let _ = writeln!(stderr, "{PROGRAM}: error: {}", one_line(&self.message));
        if let Some(hint) = &self.hint {
            let _ = writeln!(stderr, "  hint: {}", one_line(hint));
        }
        crate::log::to_syslog_only(&self.message);
        ExitCode::from(self.code as u8)
    }
}

/// Prints data to standard output; a reader that went away is no failure of ours.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
