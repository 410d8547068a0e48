// SPDX-License-Identifier: Apache-2.0
//! Errors of opening the journal.

use std::io;

use super::{FORMAT_VERSION, store};

/// Why the journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// SQLite could not open or read the file.
    #[error("cannot open the journal {path}")]
    Open {
        /// Path of the file.
        path: String,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// Another version of the program has written the file.
    #[error("journal {path} has format {found}, and this version reads format {FORMAT_VERSION}")]
    OtherFormat {
        /// Path of the file.
        path: String,
        /// Format of the file.
        found: i64,
    },
    /// Another process holds the lock of the directory.
    #[error("another receiver uses the journal in {0}")]
    Locked(String),
    /// The file does not exist.
    #[error("there is no journal at {0}")]
    Missing(String),
    /// The lock file, the writer thread or its queue could not be created.
    #[error("cannot create the journal's lock or thread")]
    Io(#[from] io::Error),
}

impl JournalError {
    /// Whether the file is damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Open { source, .. } if store::is_damage(source))
    }

    /// Whether another attempt can only succeed after the operator has changed something.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::Locked(_) => true,
            Self::Io(error) => error.kind() == io::ErrorKind::PermissionDenied,
            Self::Open { .. } | Self::OtherFormat { .. } | Self::Missing(_) => false,
        }
    }
}
