// SPDX-License-Identifier: Apache-2.0
//! The session of a node with etcd: a thread that publishes the node's roles and follows those of the other nodes.
//!
//! ```text
//!   main loop ── mark(instance) ──▶ marks ──▶ worker ──▶ etcd
//!             ◀── ConfirmationWanted ──────── worker ◀── etcd (watch)
//!             ── confirm(id) ───────▶
//! ```
//!
//! No call of the node waits for etcd. The worker reads the records through [`RecordSource`] on its own thread, and
//! reports through [`ClusterObserver`].

mod acknowledged;
mod apply;
mod conflict;
mod counters;
mod handle;
mod heartbeat;
mod publish;
mod registration;
mod report;
mod reporter;
mod settings;
mod silences;
mod source;
mod worker;
mod write;

pub use self::counters::ClusterCounters;
pub use self::handle::{ClusterHandle, NameHolder};
pub use self::settings::SessionSettings;
pub use self::source::{
    ClusterEvent, ClusterObserver, ConfirmationId, ConfirmationRequest, DeliveredFinding,
    HeartbeatFacts, RecordSource, WantedRole, WantedSilence,
};
