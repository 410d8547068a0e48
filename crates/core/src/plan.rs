//! The policy: what a transition asks for, and in which order.

use crate::{Role, Transition};

/// Something to be done because a role changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Replace the state file.
    WriteState(Role),
    /// Announce the addresses to their networks, where that was asked for.
    Announce(Role),
    /// Bring connection tracking in line, where that was asked for.
    SyncConntrack(Role),
    /// Tell the agent.
    TellAgent(Role),
}

/// What to do about `change`, first things first.
///
/// ORDER: the file comes first because it is the cheapest and everyone can re-read it; an
/// agent that was told may read it at once. Announcements to the network come next, because
/// traffic is waiting for them. Connection tracking precedes the agent: what
/// the agent starts may use the connections.
pub fn actions(change: &Transition) -> [Action; 4] {
    let to = change.to;
    [Action::WriteState(to), Action::Announce(to), Action::SyncConntrack(to), Action::TellAgent(to)]
}
