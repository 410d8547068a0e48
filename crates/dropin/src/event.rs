//! What the spine has to say: one value per operational event.
//!
//! The words and the level belong to whoever writes the log (the drop-in speaks Neutron's
//! language), so an event carries facts only.

use std::io;

use vipwatch_core::{NeutronState, StateChange};
use vipwatch_linux::monitor::{Loss, WatchError};

use crate::conntrack::ConntrackReport;
use vipwatch_outlets::agent::AgentError;
use vipwatch_outlets::announce::AnnounceNote;
use vipwatch_outlets::state_file::StateFileError;

/// Something an operator may want to know.
#[derive(Debug)]
pub enum Event<'a> {
    /// A role was decided; the first one has no `from`.
    RoleChanged(&'a StateChange),
    /// The link to watch is not there; it is waited for.
    LinkMissing,
    /// The kernel could not be asked; it will be, again.
    LookFailed(&'a WatchError),
    /// Events were lost; an inventory is being taken.
    EventsLost(Loss),
    /// An audit found that we were wrong, for the so-manieth time. This is a defect of ours.
    AuditDisagreed(u32),
    /// The state file holds the role.
    StateWritten(NeutronState),
    /// It does not; said once per kind of failure, retried until it does.
    StateNotWritten(&'a StateFileError),
    /// Somebody else had written another word.
    StateRestored,
    /// What the announcer reports.
    Announcement(&'a AnnounceNote),
    /// What the conntrackd helper reports.
    Conntrack(NeutronState, &'a ConntrackReport),
    /// The conntrackd helper is gone: connections are not synchronised any more.
    ConntrackLost(&'a io::Error),
    /// conntrackd takes too long: the agent is told without waiting for it.
    ConntrackLate(NeutronState),
    /// The agent acknowledged the role.
    AgentTold(NeutronState),
    /// It did not; said once per kind of failure, retried until it does.
    AgentNotTold(NeutronState, &'a AgentError),
    /// The namespace is gone; there is nothing left to watch.
    NamespaceGone,
}

/// Takes down what happened.
pub trait EventLog {
    /// Notes `event`. Must not wait.
    fn note(&mut self, event: &Event<'_>);
}
