//! What a spine is told at its beginning, and what it says at its end.

use std::path::PathBuf;
use std::time::Duration;

use vipwatch_core::{NetnsName, Watch};
use vipwatch_linux::netns::NetnsId;

use crate::outlet::agent::AgentSettings;
use crate::outlet::announce::Announcer;
use crate::outlet::conntrack::ConntrackLine;

/// Everything a spine must be told.
#[derive(Debug)]
pub struct Settings {
    /// What to watch; `None` if what was asked for cannot exist.
    pub watch: Option<Watch>,
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
pub struct Helpers {
    /// Announces addresses. It needs a monitor with [`Scope::All`](vipwatch_linux::monitor::Scope).
    pub announcer: Option<Box<Announcer>>,
    /// Runs conntrackd's commands.
    pub conntrack: Option<ConntrackLine>,
}

/// Why the spine has nothing left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The namespace is gone, and everybody who could be told was told.
    NamespaceGone,
}
