// SPDX-License-Identifier: Apache-2.0
//! A problem in keepalived's configuration, with its position.

use std::fmt;

/// A line of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition {
    /// The number of the file. The caller that opens the files assigns the numbers.
    pub file: usize,
    /// The line; 1 is the first.
    pub line: u32,
}

/// A part of the configuration that keepalived rejects or ignores, or that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line that has the problem.
    pub position: FilePosition,
    /// The message for the operator.
    pub text: String,
    /// The effect on the rest of the file.
    pub impact: Impact,
}

/// The effect of a problem on the rest of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impact {
    /// None: the rest of the file is reliable.
    Note,
    /// The file may not mean what its author intended.
    Unreliable,
    /// keepalived does not start with the file.
    Refused,
}

impl Problem {
    /// A problem that makes the whole file unreliable.
    pub fn new(position: FilePosition, text: impl fmt::Display) -> Self {
        Self { position, text: text.to_string(), impact: Impact::Unreliable }
    }

    /// A problem with which keepalived does not start.
    pub fn refused(position: FilePosition, text: impl fmt::Display) -> Self {
        let text = format!("{text}: keepalived does not start with this file");
        Self { position, text, impact: Impact::Refused }
    }

    /// A problem without an effect on the rest of the file.
    pub fn note(position: FilePosition, text: impl fmt::Display) -> Self {
        Self { position, text: text.to_string(), impact: Impact::Note }
    }
}
