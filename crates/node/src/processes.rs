// SPDX-License-Identifier: Apache-2.0
//! The keepalived processes of this machine: which exist, which configuration each uses, and whether it runs.
//!
//! ```text
//!   /proc ──▶ table.rs: keepalived.rs (one keepalived) ──▶ ProcessView ──▶ published state ──▶ audit (facts.rs)
//!     ▲          │                                                    
//!     │          └─▶ process sources ──▶ discovery: the configurations that processes use
//!   worker.rs: ends of processes at once, starts within a second, stopped and frozen ones every ten seconds
//! ```
//!
//! A process is keepalived if its executable is a file with the name `keepalived` that contains keepalived's own
//! keywords, and if root or this program's user runs it. The name that a process gives itself proves nothing. What
//! follows for an instance is decided in [`vipwatch_core::keepalived_process`].

mod events;
mod facts;
mod keepalived;
mod remembered;
mod table;
mod worker;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::NetnsName;

pub(crate) use self::events::process_evidence;
pub(crate) use self::facts::keepalived_facts;
pub(crate) use self::keepalived::EndRecord;
pub use self::keepalived::{KeepalivedProcess, ProcessNetns};
pub(crate) use self::remembered::RememberedSources;
pub use self::table::KeepalivedTable;
pub use self::worker::ProcessCheckRequests;
pub(crate) use self::worker::{ProcessCheckRequest, ProcessWorker};
use crate::discovery::InstanceConfig;

/// A configuration that a process of keepalived uses or has used, for discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSource {
    /// The path through which this program reads the file.
    pub file: Arc<Path>,
    /// The network namespace of the process.
    pub netns: ProcessNetns,
    /// The configuration id of its command line; `None` without the option.
    pub config_id: Option<String>,
    /// The pid of the process, for messages.
    pub pid: u32,
}

/// A keepalived that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedKeepalived {
    pub(crate) end: EndRecord,
    pub(crate) netns: ProcessNetns,
    /// Its pid files, as paths of this program.
    pub(crate) pid_files: Box<[PathBuf]>,
}

/// What is known about all keepalived processes at one moment.
#[derive(Debug, Clone, Default)]
pub struct ProcessView {
    /// The running ones, by the path of their configuration.
    running: HashMap<PathBuf, Vec<Arc<KeepalivedProcess>>>,
    /// The last one of each configuration that no process uses any more.
    ended: HashMap<PathBuf, EndedKeepalived>,
    /// The number of recent starts, for each configuration with more than one.
    recent_starts: HashMap<PathBuf, u32>,
    /// Processes with the name keepalived and an executable that cannot be read.
    pub unreadable: usize,
    /// Processes of other users with an executable named keepalived, which are not trusted.
    pub untrusted: usize,
    /// When the processes were read for the first time; the Unix epoch if this program reads them only once.
    since: Option<SystemTime>,
}

impl ProcessView {
    /// The number of running keepaliveds.
    pub fn count(&self) -> usize {
        self.running.values().map(Vec::len).sum()
    }

    /// The keepalived that uses the configuration of an instance in its namespace.
    pub(crate) fn of_instance(&self, instance: &InstanceConfig) -> Option<&Arc<KeepalivedProcess>> {
        let with_vrrp = |file: &Path| {
            let processes = self.running.get(file).map(Vec::as_slice).unwrap_or_default();
            processes.iter().filter(|process| process.has_vrrp())
        };
        let is_same = |process: &&Arc<KeepalivedProcess>| {
            process.netns.may_be(instance.netns.as_ref()) || is_router(instance)
        };
        with_vrrp(&instance.file).find(is_same).or_else(|| {
            let canonical = instance.file.canonicalize().ok()?;
            if *canonical == *instance.file {
                return None;
            }
            with_vrrp(&canonical).find(is_same)
        })
    }

    fn ended_of(&self, instance: &InstanceConfig) -> Option<&EndedKeepalived> {
        let ended = self.ended.get(&*instance.file)?;
        (ended.netns.may_be(instance.netns.as_ref()) || is_router(instance)).then_some(ended)
    }
}

/// Neutron gives each router a file of its own, in whatever namespace its keepalived runs.
fn is_router(instance: &InstanceConfig) -> bool {
    instance.origin == crate::discovery::Origin::Neutron
}

impl ProcessNetns {
    /// Whether this can be the namespace of an instance; `None` is this program's own.
    fn may_be(&self, netns: Option<&NetnsName>) -> bool {
        match self {
            Self::Own => netns.is_none(),
            Self::Named(name) => netns == Some(name),
            Self::Unnamed | Self::Unreadable => true,
        }
    }
}
