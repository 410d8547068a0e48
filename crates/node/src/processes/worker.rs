// SPDX-License-Identifier: Apache-2.0
//! The thread that follows keepalived's processes: it waits for ends of processes, looks for new ones every second, and
//! checks every ten seconds which are stopped or frozen.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::InstanceId;
use vipwatch_linux::clock::Stamp;
use vipwatch_linux::netns_watcher::ChangerMark;
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use super::events::address_changer;
use super::keepalived::netns_key;
use super::{KeepalivedTable, ProcessSource, RememberedSources};
use crate::audit::{AuditRequests, AuditWorker};
use crate::discovery::InstanceConfig;
use crate::evidence::{EvidenceUpdate, EvidenceUpdates};
use crate::state::StateStore;
use crate::transition::Transition;

/// Time between two looks for new processes.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two checks of all processes for signals that have stopped them, frozen cgroups and changed files. The
/// kernel reports none of these.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How long the end of the node waits for the disk.
const STORE_LIMIT: Duration = Duration::from_secs(2);

/// The configurations that processes use, for the main loop.
///
/// BOUND: at most one entry for each scan that finds a change; the main loop empties the queue in every turn.
pub(crate) type SourceChanges = WakeQueue<Vec<ProcessSource>>;

/// Requests to check at once whether the keepalived of an instance runs, is stopped or is frozen.
#[derive(Debug, Clone)]
pub struct ProcessCheckRequests {
    /// BOUND: one entry for each transition of a role and for each instance without adverts; the thread empties the
    /// queue in every turn.
    queue: WakeQueue<ProcessCheckRequest>,
}

/// A request to check the processes of an instance's keepalived.
#[derive(Debug, Clone)]
pub(crate) struct ProcessCheckRequest {
    id: InstanceId,
    /// The sequence number of the transition that waits for the result; `None` if none waits.
    transition: Option<i64>,
    /// The process that changed an address of the instance; `None` if there is none.
    changer: Option<ChangerMark>,
}

impl ProcessCheckRequest {
    /// A change of the processes has the instance audited.
    pub(crate) fn of_instance(id: &InstanceId) -> Self {
        Self { id: id.clone(), transition: None, changer: None }
    }

    /// The result is an [`EvidenceUpdate::ProcessesRead`] too.
    pub(crate) fn of_transition(transition: &Transition, changer: Option<ChangerMark>) -> Self {
        let id = transition.instance.id.clone();
        Self { id, transition: Some(transition.seq), changer }
    }
}

impl ProcessCheckRequests {
    /// Has the processes of an instance checked at once. Does not wait.
    pub(crate) fn check_now(&self, request: ProcessCheckRequest) {
        self.queue.push(request);
    }
}

/// The handle to the thread.
#[derive(Debug)]
pub(crate) struct ProcessWorker {
    requests: ProcessCheckRequests,
    sources: SourceChanges,
    remembered: RememberedSources,
}

impl ProcessWorker {
    /// A table with the processes of this moment, which is published in `store`.
    pub(crate) fn first_scan(
        store: &StateStore,
        remembered: &RememberedSources,
        follows_containers: bool,
    ) -> io::Result<KeepalivedTable> {
        let mut table = KeepalivedTable::new(Some(Stamp::now()), follows_containers)?;
        table.scan(Instant::now());
        // ORDER: the files of running processes come first, so that their instances get the plain ids.
        if let Some(known) = remembered.load() {
            table.add_sources(known);
            remembered.store(table.sources());
        } else {
            tracing::warn!("cannot read in time which files keepalived used in the last run");
        }
        let view = table.view();
        if view.unreadable > 0 {
            let count = view.unreadable;
            tracing::warn!(
                count,
                "processes named keepalived cannot be read: CAP_SYS_PTRACE is missing"
            );
        }
        tracing::info!(count = view.count(), "keepalived processes found");
        store.set_processes(Some(Arc::new(view)));
        Ok(table)
    }

    /// Starts the thread, which never ends. It continues with the table of the first scan; without one, there is no thread.
    pub(crate) fn start(
        scanned: Option<(KeepalivedTable, RememberedSources)>,
        store: &Arc<StateStore>,
        audit_worker: &AuditWorker,
        evidence: EvidenceUpdates,
    ) -> io::Result<Option<Self>> {
        let Some((table, remembered)) = scanned else { return Ok(None) };
        let queue = WakeQueue::new()?;
        let requests = ProcessCheckRequests { queue };
        let sources = SourceChanges::new()?;
        let mut follower = ProcessFollower {
            table,
            store: Arc::clone(store),
            audit: audit_worker.requests(),
            remembered: remembered.clone(),
            requests: requests.clone(),
            evidence,
            sources: sources.clone(),
            written: HashMap::new(),
            next_check: Instant::now() + CHECK_INTERVAL,
        };
        spawn_worker("processes", move |heartbeat| follower.run(heartbeat))?;
        Ok(Some(Self { requests, sources, remembered }))
    }

    /// A handle for requests, which can be cloned for other threads.
    pub(crate) fn check_requests(&self) -> &ProcessCheckRequests {
        &self.requests
    }

    /// Waits until the configurations are stored, for a limited time.
    pub(crate) fn wait_stored(&self) {
        if !self.remembered.wait_stored(STORE_LIMIT) {
            tracing::warn!("stopped before it is stored which files keepalived uses");
        }
    }

    /// The queue of changed configurations.
    pub(crate) fn source_changes(&self) -> &SourceChanges {
        &self.sources
    }
}

struct ProcessFollower {
    table: KeepalivedTable,
    store: Arc<StateStore>,
    audit: AuditRequests,
    remembered: RememberedSources,
    requests: ProcessCheckRequests,
    evidence: EvidenceUpdates,
    sources: SourceChanges,
    /// When the configuration of each running keepalived was written, at the last check.
    written: HashMap<PathBuf, Option<SystemTime>>,
    next_check: Instant,
}

impl ProcessFollower {
    fn run(&mut self, heartbeat: &Heartbeat) -> ! {
        loop {
            heartbeat.beat();
            self.wait();
            let now = Instant::now();
            let version = self.table.sources_version();
            // Pid files, programs and configurations are read.
            let disk = heartbeat.disk();
            let mut changed = self.table.scan(now);
            let requested = self.requests.queue.take_all();
            if !requested.is_empty() {
                let files = self.files_of(&requested);
                changed.extend(self.table.check_running(Some(&files)));
            }
            let mut others = HashSet::new();
            if self.next_check <= now {
                self.next_check = now + CHECK_INTERVAL;
                changed.extend(self.table.check_running(None));
                others.extend(self.rewritten_files());
                others.extend(self.table.expire_starts(now));
            }
            drop(disk);
            if !changed.is_empty() || !others.is_empty() {
                self.publish(version);
            }
            for id in self.instances_with(&changed) {
                self.audit.processes_changed(&id);
            }
            // Nothing has happened to the processes: an audit that is due for another reason is not put off.
            for id in self.instances_with(&others) {
                self.audit.facts_changed(&id);
            }
            // ORDER: the main loop reads the published processes after the update.
            for request in requested {
                self.report_check(request);
            }
        }
    }

    /// Has the main loop look at the processes of an instance, if a transition waits for them.
    fn report_check(&self, request: ProcessCheckRequest) {
        let ProcessCheckRequest { id, transition, changer } = request;
        let Some(transition) = transition else { return };
        let view = self.store.processes();
        let changer = changer.and_then(|changer| {
            let entry = self.store.entry(&id)?;
            let keepalived = view.as_ref().and_then(|view| view.of_instance(&entry.instance));
            address_changer(changer, keepalived.map(|process| &**process))
        });
        self.evidence.push(EvidenceUpdate::ProcessesRead { id, transition, changer });
    }

    /// Publishes the processes after a change. `version` is that of the sources before.
    fn publish(&self, version: u64) {
        self.store.set_processes(Some(Arc::new(self.table.view())));
        if self.table.sources_version() != version {
            let sources = self.table.sources();
            self.remembered.store(sources.clone());
            self.sources.push(sources);
        }
        self.evidence.push(EvidenceUpdate::ProcessesChanged);
    }

    /// Waits until a process has ended, a check is requested, or a scan is due.
    fn wait(&self) {
        let pause = SCAN_INTERVAL.min(beat_every());
        let mut polled = [self.table.as_fd(), self.requests.queue.as_fd()]
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        let _ = poll(&mut polled, Timespec::try_from(pause).ok().as_ref());
    }

    fn files_of(&self, requests: &[ProcessCheckRequest]) -> HashSet<PathBuf> {
        let entries = requests.iter().filter_map(|request| self.store.entry(&request.id));
        entries.flat_map(|entry| keys_of(&entry.instance)).collect()
    }

    /// The configurations of running keepaliveds that were written since the last check: keepalived may not have read them.
    fn rewritten_files(&mut self) -> HashSet<PathBuf> {
        let running = self.table.running();
        let current: HashMap<PathBuf, Option<SystemTime>> =
            running.map(|process| (process.file.clone(), process.config_written())).collect();
        let before = std::mem::replace(&mut self.written, current);
        let is_rewritten = |(file, at): &(&PathBuf, &Option<SystemTime>)| {
            before.get(*file).is_some_and(|known| known != *at)
        };
        self.written.iter().filter(is_rewritten).map(|(file, _)| file.clone()).collect()
    }

    /// The instances with these configurations.
    fn instances_with(&self, files: &HashSet<PathBuf>) -> Vec<InstanceId> {
        if files.is_empty() {
            return Vec::new();
        }
        let view = self.store.view();
        let is_affected = |instance: &InstanceConfig| {
            keys_of(instance).iter().any(|key| files.contains(key.as_path()))
        };
        let entries = view.entries.values().filter(|entry| is_affected(&entry.instance));
        entries.map(|entry| entry.instance.id.clone()).collect()
    }
}

/// The paths under which the keepalived of an instance can be found.
fn keys_of(instance: &InstanceConfig) -> [PathBuf; 2] {
    [instance.file.to_path_buf(), netns_key(instance.netns.as_ref())]
}
