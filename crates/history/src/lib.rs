//! Memory: every change of role, in SQLite.
//!
//! [`writer`] takes records off the event path and writes them in batches; [`reader`] answers
//! while that goes on (WAL); [`schema`] is the file's format and its version.

mod schema;

pub mod reader;
pub mod writer;

use std::path::PathBuf;

pub use reader::{FlapCount, HistoryEntry, LastRole, Query, Reader, RecorderRun};
pub use writer::{OpenedHistory, Retention, Writer};

/// The file's name in the state directory.
pub const FILE: &str = "history.sqlite";

/// One change of role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number: in order, and never used again.
    pub seq: i64,
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
    /// Whether somebody was to be told; not if a node that starts found it as it was.
    pub is_news: bool,
}

/// Somebody who is told of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The state file.
    File,
    /// The network.
    Announce,
    /// A program.
    Hook,
    /// An address on the web.
    Webhook,
    /// Neutron's agent.
    Agent,
}

impl Stage {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 5] = [Self::File, Self::Announce, Self::Hook, Self::Webhook, Self::Agent];

    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Announce => "announce",
            Self::Hook => "hook",
            Self::Webhook => "webhook",
            Self::Agent => "agent",
        }
    }
}

/// How long after the kernel's word each stage knew, in microseconds; `None`: it was not told, or
/// not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies([Option<i64>; 5]);

impl Latencies {
    /// Of one stage.
    pub fn of(&self, stage: Stage) -> Option<i64> {
        self.0[stage as usize]
    }

    /// Notes that `stage` knew after so many microseconds.
    pub fn set(&mut self, stage: Stage, micros: i64) {
        self.0[stage as usize] = Some(micros);
    }
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
    /// An earlier program has written it, and nobody has brought it up yet.
    #[error("{} has format {found}, which is out of date", path.display())]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
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

impl HistoryError {
    /// Whether the file is not a database any more, or not a whole one.
    pub fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        let (Self::Sql(source) | Self::Open { source, .. }) = self else { return false };
        matches!(source.sqlite_error_code(), Some(NotADatabase | DatabaseCorrupt))
    }

    /// The message and its cause, in one line.
    pub(crate) fn with_cause(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}
