// SPDX-License-Identifier: Apache-2.0
//! The history: every change of role (a transition), deliveries and findings, stored in SQLite.
//!
//! [`writer`] queues records and writes them in batches on its own thread; [`reader`] runs queries at
//! the same time (SQLite's WAL mode); [`timeline`] streams transitions and the gaps between them; `schema`
//! holds the file's tables and its format number; `event` and `silence` hold one table each; `delivery` records
//! which notification each target has received. The delivery itself belongs to the node, not to this crate.
//!
//! A damaged file, and a file of another format, is renamed and kept; the writer begins a new one.

mod event;
mod schema;
mod silence;

pub mod delivery;

pub mod reader;
pub mod timeline;
pub mod writer;

use std::path::PathBuf;

use vipwatch_core::RoleKind;

pub use delivery::{
    ConcludedRow, DeliveryKey, DeliverySource, DeliveryStore, MissedNotifications, StoredDelivery,
    StoredPosition,
};
pub use event::{Epoch, EventRecord, SequenceEntry};
pub use reader::{FlapCount, HistoryEntry, LastRole, Query, Reader};
pub use silence::SilenceRow;
pub use timeline::{GapCause, HistoryGap, HistoryItem, Timeline};
pub use writer::{
    OpenedHistory, QueueLength, Retention, SetAsideFile, StoredTargets, WRITER_WORKER, Writer,
};

/// The name of the history file in the state directory.
pub const FILE: &str = "history.sqlite";

/// The word for `None` in [`Record::to`].
const REMOVED: &str = "removed";

/// One transition: a change of an instance's role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The sequence number: it grows with each transition and is never reused.
    pub seq: i64,
    /// The time of the transition, in milliseconds since the Unix epoch.
    pub at: i64,
    /// The id of the instance.
    pub instance: String,
    /// The network namespace of the instance; `None` for the node's own namespace.
    pub netns: Option<String>,
    /// The role before; `None` if it was not known.
    pub from: Option<RoleKind>,
    /// The role after; `None` if the instance is no longer configured.
    pub to: Option<RoleKind>,
    /// Why the node read the role, for example `address` or `start`.
    pub trigger: String,
    /// Why the role changed; `None` if the row was written before that was known.
    pub cause: Option<CauseRecord>,
    /// Details of the role after; `None` if there are none.
    pub reason: Option<String>,
}

/// Why a role changed, as the node concluded it after the transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CauseRecord {
    /// The word for the cause, for example `preempted`.
    pub word: String,
    /// The facts behind it, as a JSON object.
    pub evidence: String,
}

/// A kind of outlet to which transitions are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Stage {
    /// The state file.
    File,
    /// Gratuitous ARP and unsolicited neighbour advertisements.
    Announce,
    /// A program.
    Hook,
    /// An HTTP POST request.
    Webhook,
    /// Neutron's L3 agent.
    Agent,
}

impl Stage {
    /// All stages, in the order in which the notifier serves them.
    pub const ALL: [Self; 5] = [Self::File, Self::Announce, Self::Hook, Self::Webhook, Self::Agent];

    /// The name of the stage in JSON, logs and column names.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// The time from the kernel's event to the end of the delivery, for each stage, in microseconds.
/// `None`: the stage does not apply, or its delivery has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies([Option<i64>; 5]);

impl Latencies {
    /// The latency of one stage, in microseconds.
    pub fn of(&self, stage: Stage) -> Option<i64> {
        self.0[stage as usize]
    }

    /// Sets the latency of one stage, in microseconds.
    pub fn set(&mut self, stage: Stage, micros: i64) {
        self.0[stage as usize] = Some(micros);
    }
}

/// Why the history cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file or its directory cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// Another version of the program has written the file.
    #[error("{} has format {found}, and this version reads format {}", path.display(), schema::VERSION)]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: i64,
    },
    /// The file does not exist.
    #[error("there is no history at {}", .0.display())]
    Missing(PathBuf),
    /// A query or an update failed.
    #[error("the history cannot be used")]
    Sql(#[from] rusqlite::Error),
    /// The file cannot be created or renamed, or the writer's thread cannot be started.
    #[error("the history cannot be written")]
    Io(#[from] std::io::Error),
}

impl HistoryError {
    /// Whether SQLite found that the file is damaged or is not a database.
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
