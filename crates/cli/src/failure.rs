// SPDX-License-Identifier: Apache-2.0
//! The error of a command: a message, an optional hint and an exit code.

use std::fmt::{self, Write};
use std::process::ExitCode;

use vipwatch_api::client::ClientError;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_core::{ErrorChain, escape_untrusted};

use crate::args::OutputOptions;

/// The exit codes of all commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// A check failed, or the act did.
    No = 1,
    /// The options are wrong.
    Usage = 2,
    /// The user lacks the needed permission.
    NotPermitted = 3,
    /// Something that the command names or needs does not exist.
    NotFound = 4,
    /// The node, or etcd, cannot know the answer.
    NotKnown = 5,
    /// The node, the receiver or etcd does not answer.
    NotReachable = 6,
}

/// Each exit code with its meaning, for help, manual pages and the reference.
pub(crate) const EXIT_CODES: [(&str, &str); 7] = [
    ("0", "success"),
    (
        "1",
        "check failed: an expectation is not met, there are findings or problems, or the act failed",
    ),
    ("2", "wrong usage"),
    ("3", "not permitted"),
    (
        "4",
        "not found: an instance, group, node, silence, namespace or file does not exist, or several match",
    ),
    ("5", "cannot know: a fact that the answer needs is missing"),
    ("6", "not reachable: no node, receiver or etcd is listening, or it does not answer in time"),
];

/// Prints a warning to standard error; the command continues.
#[expect(clippy::print_stderr, reason = "errors and warnings are printed here only")]
pub(crate) fn warn(text: &str) {
    eprintln!("vipwatch: {}", escape_lines(text));
}

/// Prints a remark about the answer to standard error, unless the command is quiet.
pub(crate) fn note(options: &OutputOptions, text: &str) {
    if !options.quiet {
        warn(text);
    }
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

    /// The message and the hint, as they are printed.
    fn text(&self) -> String {
        let mut text = String::new();
        if !self.message.is_empty() {
            let _ = writeln!(text, "vipwatch: {}", escape_lines(&self.message));
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "  hint: {}", escape_lines(hint));
        }
        text
    }

    /// Prints the message and the hint, and returns the exit code.
    // LIMIT: waits if standard error is a full pipe that no process reads.
    #[expect(clippy::print_stderr, reason = "errors and warnings are printed here only")]
    pub(crate) fn report(&self) -> ExitCode {
        eprint!("{}", self.text());
        ExitCode::from(self.code as u8)
    }
}

impl From<&ClientError> for CommandError {
    fn from(error: &ClientError) -> Self {
        let unreachable =
            |hint: &str| Self::new(ExitStatus::NotReachable, ErrorChain(error)).hint(hint);
        match error {
            ClientError::NotPermitted(_) => Self::new(ExitStatus::NotPermitted, error)
                .hint("run it as root, or as a member of the group in `socket_group`, which changes only with a restart"),
            ClientError::NotListening(_) => {
                unreachable("start `vipwatch node`, or give its socket with --socket")
            }
            ClientError::TimedOut { .. } => unreachable(
                "the process hangs or is overloaded: see `systemctl status vipwatch-node`; \
                 `vipwatch status --direct` queries the kernel instead",
            ),
            ClientError::Io { .. } | ClientError::Closed(_) => unreachable(
                "see `systemctl status vipwatch-node`; `vipwatch status --direct` queries the kernel instead",
            ),
            ClientError::InvalidAnswer { .. } => {
                unreachable("another program, or a node of another version, listens on the socket")
            }
            ClientError::Problem(problem) => Self::from(&**problem),
        }
    }
}

impl CommandError {
    /// The error of a query of a receiver process.
    pub(crate) fn of_receiver(error: &ClientError) -> Self {
        let hint = match error {
            ClientError::NotListening(_) => {
                "run `vipwatch receiver`, or a node with [receiver] in its configuration; \
                 --status-socket sets the socket"
            }
            ClientError::TimedOut { .. } => {
                "the receiver hangs or is overloaded: see `systemctl status vipwatch-receiver`"
            }
            ClientError::Io { .. } | ClientError::Closed(_) => {
                "see `systemctl status vipwatch-receiver`"
            }
            ClientError::InvalidAnswer { .. } => {
                "another program, or a receiver of another version, listens on the socket"
            }
            ClientError::NotPermitted(_) | ClientError::Problem(_) => return error.into(),
        };
        Self::new(ExitStatus::NotReachable, ErrorChain(error)).hint(hint)
    }
}

impl From<ClientError> for CommandError {
    fn from(error: ClientError) -> Self {
        Self::from(&error)
    }
}

impl From<&ProblemDocument> for CommandError {
    fn from(problem: &ProblemDocument) -> Self {
        let failure = Self::new(exit_status(problem.code), &problem.detail);
        match problem.hint.as_deref().or(hint(problem.code)) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The exit code for a problem.
fn exit_status(code: ErrorCode) -> ExitStatus {
    match code {
        ErrorCode::InvalidRequest
        | ErrorCode::TooLarge
        | ErrorCode::UnsupportedMediaType
        | ErrorCode::NotAcceptable => ExitStatus::Usage,
        ErrorCode::NotPermitted | ErrorCode::Unauthorized | ErrorCode::ForeignOrigin => {
            ExitStatus::NotPermitted
        }
        ErrorCode::UnknownRoute
        | ErrorCode::UnknownInstance
        | ErrorCode::UnknownSilence
        | ErrorCode::NoReceiver
        | ErrorCode::NoHistory
        | ErrorCode::AmbiguousId => ExitStatus::NotFound,
        ErrorCode::RequestTimeout
        | ErrorCode::NotReady
        | ErrorCode::TooManyConnections
        | ErrorCode::AuditTimeout
        | ErrorCode::ReloadTimeout => ExitStatus::NotReachable,
        ErrorCode::MethodNotAllowed
        | ErrorCode::ReadOnly
        | ErrorCode::UnknownHost
        | ErrorCode::Internal
        | ErrorCode::HistoryUnavailable
        | ErrorCode::Other => ExitStatus::No,
    }
}

/// What to do about a problem; `None` if its text says everything.
fn hint(code: ErrorCode) -> Option<&'static str> {
    Some(match code {
        ErrorCode::NotPermitted => {
            "run it as root, or as a member of the group in `socket_group`, which changes only with a restart"
        }
        ErrorCode::UnknownRoute | ErrorCode::MethodNotAllowed => {
            "the process may have another version: see `vipwatch version`"
        }
        ErrorCode::UnknownInstance => "`vipwatch status` lists the instances of this node",
        ErrorCode::UnknownSilence => "`vipwatch silence list` lists the silences in force",
        ErrorCode::NoReceiver => {
            "run `vipwatch receiver`, or a node with [receiver] in its configuration"
        }
        ErrorCode::NoHistory => {
            "`vipwatch node` records the history; --state-dir sets its directory"
        }
        ErrorCode::ReadOnly => "use the unix socket of the node",
        ErrorCode::AmbiguousId => "give more characters of the id",
        ErrorCode::NotReady | ErrorCode::TooManyConnections => "try again in a few seconds",
        ErrorCode::HistoryUnavailable => "see the log of the node",
        ErrorCode::AuditTimeout => "`vipwatch findings` shows the result of the last audit",
        ErrorCode::ReloadTimeout => "`vipwatch version` shows the result of the last reload",
        ErrorCode::Internal => "this is a defect: see the log of the node, and report it",
        ErrorCode::InvalidRequest
        | ErrorCode::Unauthorized
        | ErrorCode::ForeignOrigin
        | ErrorCode::UnknownHost
        | ErrorCode::NotAcceptable
        | ErrorCode::RequestTimeout
        | ErrorCode::TooLarge
        | ErrorCode::UnsupportedMediaType
        | ErrorCode::Other => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Every error as it is printed, with its exit code.
    fn printed(errors: impl IntoIterator<Item = CommandError>) -> String {
        let each =
            errors.into_iter().map(|error| format!("{}exit {}", error.text(), error.code as u8));
        each.collect::<Vec<_>>().join("\n\n")
    }

    #[test]
    fn errors_of_the_connection_name_the_socket_and_what_to_do() {
        let errors = connection_errors("/run/vipwatch/node.sock");
        insta::assert_snapshot!(printed(errors.into_iter().map(CommandError::from)));
    }

    #[test]
    fn errors_of_a_receiver_process_do_not_name_the_node() {
        let errors = connection_errors("/run/vipwatch/receiver.sock");
        let text = printed(errors.iter().map(CommandError::of_receiver));
        assert!(!text.contains("vipwatch-node") && !text.contains("--direct"), "{text}");
        insta::assert_snapshot!(text);
    }

    fn connection_errors(socket: &str) -> [ClientError; 6] {
        let path = || socket.into();
        [
            ClientError::NotListening(path()),
            ClientError::NotPermitted(path()),
            ClientError::TimedOut { path: path(), after: Duration::from_secs(3) },
            ClientError::Io { path: path(), source: std::io::ErrorKind::ConnectionReset.into() },
            ClientError::Closed(path()),
            ClientError::InvalidAnswer { path: path(), reason: "expected value".to_owned() },
        ]
    }

    #[test]
    fn exit_code_and_hint_of_a_problem_follow_from_its_code() {
        let codes = [
            ErrorCode::InvalidRequest,
            ErrorCode::NotPermitted,
            ErrorCode::UnknownRoute,
            ErrorCode::UnknownInstance,
            ErrorCode::UnknownSilence,
            ErrorCode::NoReceiver,
            ErrorCode::NoHistory,
            ErrorCode::AmbiguousId,
            ErrorCode::Internal,
            ErrorCode::NotReady,
            ErrorCode::TooManyConnections,
            ErrorCode::HistoryUnavailable,
            ErrorCode::AuditTimeout,
            ErrorCode::ReloadTimeout,
            ErrorCode::Other,
        ];
        let problems =
            codes.map(|code| CommandError::from(&ProblemDocument::new(code, code.word())));
        insta::assert_snapshot!(printed(problems));
        let own = ProblemDocument::new(ErrorCode::Internal, "text").with_hint("the server's hint");
        assert_eq!(CommandError::from(&own).hint.as_deref(), Some("the server's hint"));
    }
}
