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
//! Two questions have two answers:
//!
//! - *Does a keepalived run in this network namespace?* Facts of the kernel decide: the executable is a file with the name
//!   `keepalived` that contains keepalived's own keywords, and the process has `CAP_NET_ADMIN` in this program's user
//!   namespace. Its user, its own name and its root directory do not matter.
//! - *Which file, which pid file, which instances?* Only a process with this program's root directory answers. Any other
//!   one is foreign: a process of a container.
//!
//! What follows for an instance is decided in [`vipwatch_core::keepalived_process`].

mod events;
mod facts;
mod keepalived;
mod remembered;
mod table;
mod worker;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::NetnsName;
use vipwatch_core::keepalived::Version;
use vipwatch_linux::clock::Stamp;
use vipwatch_linux::process_table::{self, MemoryFile, ProcessId};

pub(crate) use self::events::process_evidence;
pub(crate) use self::facts::keepalived_facts;
pub(crate) use self::keepalived::{EndRecord, MAX_LOADED_BYTES, unnamed_netns};
pub use self::keepalived::{KeepalivedProcess, ProcessNetns};
use self::keepalived::{loaded_config, netns_key};
pub(crate) use self::remembered::RememberedSources;
pub use self::table::KeepalivedTable;
pub use self::worker::ProcessCheckRequests;
pub(crate) use self::worker::{ProcessCheckRequest, ProcessWorker};
use crate::discovery::InstanceConfig;

/// A configuration that a process of keepalived uses or has used, for discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSource {
    /// The file as a path of this program, or below `/proc/PID/root` if only the process sees it.
    pub file: Arc<Path>,
    /// The network namespace of the process.
    pub netns: ProcessNetns,
    /// The configuration id of its command line; `None` without the option.
    pub config_id: Option<String>,
    /// The version of its executable; `None` if it is not known.
    pub version: Option<Version>,
    /// The process; `None` for one of an earlier run.
    pub process: Option<ProcessId>,
    /// Whether the process is in a container; see [`KeepalivedProcess::is_foreign`].
    pub is_foreign: bool,
}

impl ProcessSource {
    /// Whether its process runs.
    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some_and(process_table::is_alive)
    }

    /// The configuration that its process has loaded; `None` if the process keeps no copy.
    pub(crate) fn loaded_config(&self) -> io::Result<Option<MemoryFile>> {
        self.process.map_or(Ok(None), loaded_config)
    }

    /// Whether its process has written its copy at this time.
    pub(crate) fn has_loaded_at(&self, written: SystemTime) -> bool {
        self.loaded_config().ok().flatten().is_some_and(|copy| copy.written == written)
    }
}

/// A keepalived that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedKeepalived {
    pub(crate) end: EndRecord,
    pub(crate) netns: ProcessNetns,
    /// Its pid files, as paths of this program.
    pub(crate) pid_files: Box<[PathBuf]>,
    /// Whether it ran in a container. The pids in its files are those of its own pid namespace.
    pub(crate) is_foreign: bool,
}

/// What is known about all keepalived processes at one moment.
#[derive(Debug, Clone, Default)]
pub struct ProcessView {
    /// The running ones, by the path of their configuration; foreign ones also by their namespace.
    running: HashMap<PathBuf, Vec<Arc<KeepalivedProcess>>>,
    /// The last one of each configuration that no process uses any more.
    ended: HashMap<PathBuf, EndedKeepalived>,
    /// The number of recent starts, for each configuration with more than one.
    recent_starts: HashMap<PathBuf, u32>,
    /// Processes with the name keepalived and an executable that cannot be read.
    pub unreadable: usize,
    /// The number of running keepaliveds.
    count: usize,
    /// When the processes were read for the first time; the Unix epoch if this program reads them only once.
    since: Option<Stamp>,
}

impl ProcessView {
    /// The number of running keepaliveds.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The running keepaliveds of containers, sorted by pid.
    pub(crate) fn foreign(&self) -> Vec<&Arc<KeepalivedProcess>> {
        let running = self.running.values().flatten().filter(|process| process.is_foreign);
        let mut by_pid: Vec<&Arc<KeepalivedProcess>> = running.collect();
        by_pid.sort_by_key(|process| process.id);
        by_pid.dedup_by_key(|process| process.id);
        by_pid
    }

    /// The keepalived of an instance: the one that uses its configuration in its namespace. A process in a container counts
    /// if it is in the namespace of the instance, and if that is the namespace of a router, or the file that the process
    /// names in its own root directory is the very file of the instance.
    pub(crate) fn of_instance(&self, instance: &InstanceConfig) -> Option<&Arc<KeepalivedProcess>> {
        self.user_of(instance).or_else(|| {
            let key = netns_key(instance.netns.as_ref());
            let mut foreign = self.running.get(&key)?.iter().filter(|process| process.has_vrrp());
            foreign.find(|process| is_router(instance) || process.has_file(&instance.file))
        })
    }

    /// The number of recent starts of an instance's keepalived.
    fn recent_starts_of(&self, instance: &InstanceConfig) -> u32 {
        let of_router = || self.recent_starts.get(&netns_key(instance.netns.as_ref()));
        let of_file = self.recent_starts.get(&*instance.file);
        of_file.or_else(|| of_router().filter(|_| is_router(instance))).copied().unwrap_or_default()
    }

    fn user_of(&self, instance: &InstanceConfig) -> Option<&Arc<KeepalivedProcess>> {
        let with_vrrp = |file: &Path| {
            let processes = self.running.get(file).map(Vec::as_slice).unwrap_or_default();
            processes.iter().filter(|process| process.has_vrrp())
        };
        let is_same = |process: &&Arc<KeepalivedProcess>| {
            process.netns.may_be(instance.netns.as_ref()) || is_router(instance)
        };
        with_vrrp(&instance.file).find(is_same).or_else(|| {
            // A path through the root directory of a process would lead to a file of this machine.
            let canonical = instance.file.canonicalize().ok()?;
            if instance.file.starts_with("/proc") || *canonical == *instance.file {
                return None;
            }
            with_vrrp(&canonical).find(is_same)
        })
    }

    fn ended_of(&self, instance: &InstanceConfig) -> Option<&EndedKeepalived> {
        let of_router = || self.ended.get(&netns_key(instance.netns.as_ref()));
        let of_file = self.ended.get(&*instance.file);
        let ended = of_file.or_else(|| of_router().filter(|_| is_router(instance)))?;
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
