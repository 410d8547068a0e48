//! Memory: every change of role, in SQLite.
//!
//! [`writer`] takes records off the event path and writes them in batches; [`reader`] answers
//! while that goes on (WAL); [`schema`] is the file's format and its version.

mod schema;

pub mod reader;
pub mod writer;

use std::path::PathBuf;

pub use reader::{Entry, Query, Reader, Run};
pub use writer::{Keep, Opened, Writer};

/// The file's name in the state directory.
pub const FILE: &str = "history.sqlite";

/// One change of role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When, in milliseconds since the epoch.
    pub at: i64,
    /// Who.
    pub instance: String,
    /// Where; `None` for the node's own namespace.
    pub netns: Option<String>,
    /// What it was; `None` if that was not known.
    pub from: Option<String>,
    /// What it is.
    pub to: String,
    /// What told.
    pub cause: String,
    /// What there is to say besides.
    pub reason: Option<String>,
}

/// Why there is no history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file, or its directory, cannot be used.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A later program has written it.
    #[error("{} has format {found}, and this program knows formats up to {known}", path.display())]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// There is none yet.
    #[error("there is no history at {}", .0.display())]
    Missing(PathBuf),
    /// A question or a record failed.
    #[error("the history cannot be used")]
    Sql(#[from] rusqlite::Error),
    /// The file, or the thread that writes it, cannot be had.
    #[error("the history cannot be written")]
    Io(#[from] std::io::Error),
}
