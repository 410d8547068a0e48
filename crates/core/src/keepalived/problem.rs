//! What could not be understood, and where it is written.

use std::fmt;

/// A line of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition {
    /// The number of the file; the caller that opens files numbers them.
    pub file: usize,
    /// The line; 1 is the first.
    pub line: u32,
}

/// Something that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it is written.
    pub place: FilePosition,
    /// The message.
    pub text: String,
    /// What it means for the rest of the file.
    pub weight: Weight,
}

/// What a problem means for the rest of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// The rest of the file can be relied on.
    Note,
    /// The file does not say what its author meant, or not all of it.
    Grave,
    /// keepalived does not start with it.
    Refused,
}

impl Problem {
    /// A problem after which the file cannot be relied on.
    pub fn new(place: FilePosition, text: impl fmt::Display) -> Self {
        Self { place, text: text.to_string(), weight: Weight::Grave }
    }

    /// A problem with which keepalived does not start.
    pub fn refused(place: FilePosition, text: impl fmt::Display) -> Self {
        let text = format!("{text}: keepalived does not start with this file");
        Self { place, text, weight: Weight::Refused }
    }

    /// A problem that concerns nothing else in the file.
    pub fn note(place: FilePosition, text: impl fmt::Display) -> Self {
        Self { place, text: text.to_string(), weight: Weight::Note }
    }
}
