// SPDX-License-Identifier: Apache-2.0
//! The settings of an event loop, and the reasons for its end.

use std::path::PathBuf;
use std::time::Duration;

use vipwatch_core::{NetnsName, WatchedAddress};
use vipwatch_linux::netns::NetnsId;

use crate::conntrack::ConntrackOutlet;
use vipwatch_outlets::agent::AgentSettings;
use vipwatch_outlets::announce::Announcer;

/// The settings of an [`EventLoop`](super::EventLoop).
#[derive(Debug)]
pub struct LoopSettings {
    /// The address to watch, and its link; `None` if the configured text is not an address.
    pub watch: Option<WatchedAddress>,
    /// The namespace that this process has entered: its name and its identity.
    pub netns: (NetnsName, NetnsId),
    /// The directory of the state file.
    pub state_dir: PathBuf,
    /// How to reach the agent.
    pub agent: AgentSettings,
    /// How long to wait for the first snapshot before backup is assumed.
    pub first_snapshot_timeout: Duration,
    /// The time between two comparisons with the kernel.
    pub audit_interval: Duration,
    /// Seed of the random delays. It differs between processes, so that they do not all retry at the same moment.
    pub seed: u64,
}

/// The outlets that only some configurations use.
#[derive(Debug, Default)]
pub struct OptionalOutlets {
    /// Announces addresses. It needs a monitor with [`Scope::All`](vipwatch_linux::monitor::Scope).
    pub announcer: Option<Box<Announcer>>,
    /// Runs conntrackd's commands.
    pub conntrack: Option<ConntrackOutlet>,
}

/// Why the event loop has nothing left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopEnd {
    /// The namespace was removed, and the agent was notified or did not answer in time.
    NamespaceRemoved,
}
