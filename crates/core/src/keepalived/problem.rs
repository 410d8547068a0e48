// SPDX-License-Identifier: Apache-2.0
//! A problem in keepalived's configuration, with its position.

use std::borrow::Cow;

use super::vrrp::Harm;

/// A line of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition {
    /// The number of the file. The caller that opens the files assigns the numbers.
    pub file: usize,
    /// The line; 1 is the first.
    pub line: u32,
}

/// A message about a line, with and without words of the file. A file may contain secrets, so the caller prints its
/// words only if every local user may read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    plain: Cow<'static, str>,
    quoting: Option<String>,
}

impl Message {
    /// A message that contains no word of the file.
    pub fn plain(text: impl Into<Cow<'static, str>>) -> Self {
        Self { plain: text.into(), quoting: None }
    }

    /// `quoting` contains words of the file; `plain` says what was expected without them.
    pub fn quoting(plain: impl Into<Cow<'static, str>>, quoting: impl Into<String>) -> Self {
        Self { plain: plain.into(), quoting: Some(quoting.into()) }
    }

    /// A message about the `vrrp_instance` with this name.
    pub(super) fn about(name: &str, text: &str) -> Self {
        Self::quoting(format!("this vrrp_instance {text}"), format!("{name} {text}"))
    }

    /// The text for the operator; with words of the file only if `may_quote`.
    pub fn text(&self, may_quote: bool) -> &str {
        self.quoting.as_deref().filter(|_| may_quote).unwrap_or(&self.plain)
    }

    /// Removes the text with words of the file.
    fn hide_words(&mut self) {
        self.quoting = None;
    }

    fn followed_by(self, end: &str) -> Self {
        Self {
            plain: format!("{}{end}", self.plain).into(),
            quoting: self.quoting.map(|text| text + end),
        }
    }
}

impl From<&'static str> for Message {
    fn from(text: &'static str) -> Self {
        Self::plain(text)
    }
}

/// A part of the configuration that keepalived rejects or ignores, or that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line that has the problem.
    pub position: FilePosition,
    /// The message for the operator.
    pub message: Message,
    /// The effect on the rest of the file.
    pub impact: Impact,
}

/// The effect of a problem on the rest of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// None: the rest of the file is reliable.
    Note,
    /// keepalived loses the addresses of an instance, so that it holds none as primary.
    AddressesLost,
    /// keepalived ignores a part, or uses another value. Every instance of the file is known.
    Ignored,
    /// The file may not mean what its author intended. Instances of it may not be known.
    Unreliable,
    /// keepalived does not start with the file.
    Refused,
}

impl Impact {
    pub(super) fn harm(self) -> Harm {
        match self {
            Self::Note | Self::Ignored => Harm::None,
            Self::AddressesLost => Harm::AddressesLost,
            Self::Unreliable => Harm::Unreliable,
            Self::Refused => Harm::Refused,
        }
    }

    /// Whether the file may have instances that are not known.
    pub fn may_hide_instances(self) -> bool {
        matches!(self, Self::Unreliable | Self::Refused)
    }
}

/// The problems of a configuration, in their order. A file may have millions: after the first ones, only their number grows.
#[derive(Debug, Default)]
pub struct Problems {
    listed: Vec<Problem>,
    left_out: usize,
}

impl Problems {
    /// LIMIT: number of listed problems; one with a greater impact than all before it is always listed.
    const MAX_LISTED: usize = 1_000;

    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) {
        let is_greatest = || self.listed.iter().all(|listed| listed.impact < problem.impact);
        if self.listed.len() < Self::MAX_LISTED || is_greatest() {
            self.listed.push(problem);
        } else {
            self.left_out += 1;
        }
    }

    /// Adds the problem that a limit ends the reading, which is always listed.
    pub(super) fn push_end(&mut self, problem: Problem) {
        self.listed.push(problem);
    }

    pub(super) fn append(&mut self, others: Self) {
        others.listed.into_iter().for_each(|problem| self.push(problem));
        self.left_out += others.left_out;
    }

    pub(super) fn hide_words(&mut self) {
        self.listed.iter_mut().for_each(|problem| problem.message.hide_words());
    }

    /// The number of problems that are not listed.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

impl std::ops::Deref for Problems {
    type Target = [Problem];

    fn deref(&self) -> &[Problem] {
        &self.listed
    }
}

impl Problem {
    /// A problem that makes the whole file unreliable.
    pub fn new(position: FilePosition, message: impl Into<Message>) -> Self {
        Self { position, message: message.into(), impact: Impact::Unreliable }
    }

    /// A problem with which keepalived does not start.
    pub fn refused(position: FilePosition, message: impl Into<Message>) -> Self {
        let message = message.into().followed_by(": keepalived does not start with this file");
        Self { position, message, impact: Impact::Refused }
    }

    /// A part that keepalived ignores, or for which it uses another value.
    pub(super) fn ignored(position: FilePosition, message: impl Into<Message>) -> Self {
        Self { position, message: message.into(), impact: Impact::Ignored }
    }

    /// A problem without an effect on the rest of the file.
    pub fn note(position: FilePosition, message: impl Into<Message>) -> Self {
        Self { position, message: message.into(), impact: Impact::Note }
    }
}
