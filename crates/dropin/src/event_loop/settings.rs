//! What a spine is told at its beginning, and what it says at its end.

use std::path::PathBuf;
use std::time::Duration;

use vipwatch_core::{NetnsName, WatchedAddress};
use vipwatch_linux::netns::NetnsId;

use crate::conntrack::ConntrackOutlet;
use vipwatch_outlets::agent::AgentSettings;
use vipwatch_outlets::announce::Announcer;

/// Everything a spine must be told.
#[derive(Debug)]
pub struct LoopSettings {
    /// What to watch; `None` if what was asked for cannot exist.
    pub watch: Option<WatchedAddress>,
    /// The namespace this process has settled in, and its name.
    pub netns: (NetnsName, NetnsId),
    /// Where the state file goes.
    pub state_dir: PathBuf,
    /// Whom to tell.
    pub agent: AgentSettings,
    /// After this long without a first picture, somebody must be told something.
    pub first_look_limit: Duration,
    /// How often to compare ourselves with the kernel.
    pub audit_interval: Duration,
    /// Sets this process apart from its neighbours when all retry at once.
    pub seed: u64,
}

/// What some want and others do not.
#[derive(Debug, Default)]
pub struct OptionalOutlets {
    /// Announces addresses. It needs a monitor with [`Scope::All`](vipwatch_linux::monitor::Scope).
    pub announcer: Option<Box<Announcer>>,
    /// Runs conntrackd's commands.
    pub conntrack: Option<ConntrackOutlet>,
}

/// Why the spine has nothing left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopEnd {
    /// The namespace is gone, and everybody who could be told was told.
    NamespaceGone,
}
