// SPDX-License-Identifier: Apache-2.0
//! The events that the event loop records: one value for each operational fact.
//!
//! An event carries facts only. The text and the level of the log line are chosen by the implementation of
//! [`EventLog`]; the drop-in uses Neutron's sentences.

use std::io;

use vipwatch_core::{NeutronState, StateChange};
use vipwatch_linux::monitor::{Loss, WatchError};

use crate::conntrack::ConntrackReport;
use vipwatch_outlets::agent::AgentError;
use vipwatch_outlets::announce::AnnounceNote;
use vipwatch_outlets::state_file::StateFileError;

/// A fact that an operator may want to know.
#[derive(Debug)]
pub enum Event<'a> {
    /// The state changed; the first state has no `from`.
    StateChanged(&'a StateChange),
    /// The first snapshot does not contain the watched link. The loop waits until it appears.
    LinkMissing,
    /// A snapshot of the kernel failed. The loop retries; later failures of the same series are not recorded.
    SnapshotFailed(&'a WatchError),
    /// Events of the kernel were lost. The monitor reads a new snapshot.
    EventsLost(Loss),
    /// An audit found that the tracked state was wrong. The number counts these audits since the start; each one is
    /// a defect of this program.
    AuditDisagreed(u32),
    /// The state file now holds the state.
    StateWritten(NeutronState),
    /// The state file could not be written. Recorded once for each kind of failure; the loop retries.
    StateWriteFailed(&'a StateFileError),
    /// Another process wrote a different state to the state file. The loop restores the file.
    StateFileOverwritten,
    /// A report of the announcer.
    AnnouncementReported(&'a AnnounceNote),
    /// A report of the conntrackd helper, about its commands for this state.
    ConntrackReported(NeutronState, &'a ConntrackReport),
    /// The conntrackd helper has ended: connections are no longer synchronised.
    ConntrackHelperLost(&'a io::Error),
    /// conntrackd takes too long: the agent is notified of this state without waiting for it.
    ConntrackTimedOut(NeutronState),
    /// The agent acknowledged the state.
    AgentNotified(NeutronState),
    /// The agent did not acknowledge the state. Recorded once for each kind of failure; the loop retries.
    AgentNotifyFailed(NeutronState, &'a AgentError),
    /// The watched namespace was removed. The loop notifies the agent and ends.
    NamespaceRemoved,
}

/// Records events, usually as log lines.
pub trait EventLog {
    /// Records one event. It must not block: the event loop calls it between two outlets.
    fn record(&mut self, event: &Event<'_>);
}
