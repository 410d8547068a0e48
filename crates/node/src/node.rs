// SPDX-License-Identifier: Apache-2.0
//! The node's main loop, on one thread: it waits, reads changes, publishes them, and runs the timers that are due.
//!
//! ```text
//!   wait ──▶ signals: stop, reload (node/reload.rs)
//!        ──▶ follower: role changes, instances, problems (node/publish.rs)
//!        ──▶ notifier: results of deliveries (node/delivery.rs)
//!        ──▶ cluster: confirmations and findings (node/cluster.rs)
//!        ──▶ timers: housekeeping (node/housekeeping.rs, node/history.rs)
//! ```
//!
//! Work that can block has a thread of its own: the audit, the history, hooks, webhooks, announcements, the
//! receiver, the session with etcd and the API server.

mod causes;
mod cluster;
mod cluster_findings;
mod config_changes;
mod delivery;
mod events;
mod history;
mod housekeeping;
mod publish;
mod reload;
mod removal;
mod state_dir;
mod transition_log;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vipwatch_api::AnswerSource;
use vipwatch_core::cause::UnknownReason;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_history::{HistoryError, Writer};
use vipwatch_linux::clock;
use vipwatch_linux::lock::FileLock;
use vipwatch_linux::process::{raise_file_limit, release_spare_heap};
use vipwatch_linux::signal::{ServiceSignal, ServiceSignals};
use vipwatch_receiver::ListenSource;

use self::causes::PendingCauses;
use self::cluster::PendingConfirmation;
use self::cluster_findings::ClusterFindings;
pub use self::config_changes::log_receiver_changes;
use self::history::LastRunRole;
use self::transition_log::TransitionLog;
use crate::api_server::{ApiServer, ApiServerError, OpenApiServer};
use crate::audit::{Audit, AuditWorker, FindingChanges, SnapshotRequests};
use crate::cluster::{ClusterService, ClusterServiceSetup, ForeignSilences};
use crate::config::{Config, ConfigError};
use crate::discovery::MISSING_FILE_HOLD;
use crate::event::NodeIdentity;
use crate::evidence::EvidenceUpdates;
use crate::log;
use crate::notify::announce::DuplicateReports;
use crate::notify::instance_outlets::InstanceOutlets;
use crate::notify::notification::ReportQueue;
use crate::notify::{Notifier, NotifierSetup};
use crate::packed::pack;
use crate::processes::{KeepalivedTable, ProcessWorker, RememberedSources};
use crate::receiver::{ReceiverHandle, ReceiverService, ReceiverShutdown};
use crate::reload_requests::ReloadRequests;
use crate::service::{self, StatusText};
use crate::silence::Silences;
use crate::state::StateStore;
use crate::view::{ApiContext, FindingSources, ServiceInfo, ServiceKind};
use crate::watch::follower::Follower;
use crate::witness::Witness;

/// Time between two rounds of housekeeping.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(10);

/// Longest time that pending deliveries may take when the node stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why the node cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The signal file descriptor cannot be opened.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
    /// The state directory cannot be created or opened.
    #[error("cannot use the directory {}", path.display())]
    StateDir {
        /// The state directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Another node holds the lock of the state directory.
    #[error("another vipwatch node uses the state directory {}", .0.display())]
    StateDirInUse(PathBuf),
    /// The netlink socket cannot be opened.
    #[error("cannot listen to all namespaces")]
    Listen(#[source] io::Error),
    /// A later version of vipwatch has written the history.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A socket of the API cannot be opened.
    #[error(transparent)]
    ApiServer(#[from] ApiServerError),
    /// A worker thread or its queue cannot be created.
    #[error("cannot start a worker")]
    StartWorker(#[source] io::Error),
    /// `poll` or a read of the netlink socket failed.
    #[error("cannot wait for events")]
    Wait(#[source] io::Error),
}

/// Reads the configuration again when the node is asked to reload.
pub type ConfigLoader = Box<dyn Fn() -> Result<Config, ConfigError>>;

/// A running node.
pub struct Node {
    config: Config,
    load_config: ConfigLoader,
    signals: ServiceSignals,
    follower: Follower,
    /// State files, agents and announcements, and the targets of each instance.
    outlets: InstanceOutlets,
    notifier: Notifier,
    store: Arc<StateStore>,
    history: Writer,
    audit_worker: AuditWorker,
    /// Follows the processes of keepalived; `None` if `find.processes` is false.
    process_worker: Option<ProcessWorker>,
    /// The namespaces in which the audit found a wrong role.
    snapshot_requests: SnapshotRequests,
    /// The findings that have appeared or gone.
    finding_changes: FindingChanges,
    /// The transitions without a cause.
    pending_causes: PendingCauses,
    /// The evidence about transitions that workers have read.
    evidence_updates: EvidenceUpdates,
    silences: Arc<Silences>,
    foreign_silences: ForeignSilences,
    api_server: Box<dyn ApiServer>,
    /// The server to which Neutron's monitors report; `None` without `[receiver]` in the configuration.
    receiver: Option<ReceiverService>,
    /// A receiver that is shutting down on a thread of its own.
    closing_receiver: Option<ReceiverShutdown>,
    receiver_handle: ReceiverHandle,
    /// Captures the adverts of the instances.
    witness: Witness,
    /// This node in the cluster; `None` without `[cluster]` in the configuration.
    cluster: Option<ClusterService>,
    /// A confirmation that waits for namespaces to be read.
    confirmation: Option<PendingConfirmation>,
    /// The findings about several nodes.
    cluster_findings: ClusterFindings,
    /// The state that the API reads; also for the status text and the state in the log.
    context: ApiContext,
    status_text: StatusText,
    /// Requests of clients to reload the configuration.
    reload_requests: ReloadRequests,
    /// The name and the epoch, as they appear in events.
    identity: NodeIdentity,
    /// The sequence number of the last event.
    seq: i64,
    /// The role that the last run stored for each instance id, until this run has read the role itself.
    last_run: BTreeMap<String, LastRunRole>,
    /// The earliest time at which instances of the last run count as removed; `None` after that check.
    removal_check: Option<Moment>,
    transition_log: TransitionLog,
    next_housekeeping: Moment,
    watchdog: service::Watchdog,
    /// The lock of the state directory; `None` while the directory cannot be used.
    lock: Option<FileLock>,
}

/// The audit with its worker and queues.
struct AuditParts {
    audit: Arc<Audit>,
    audit_worker: AuditWorker,
    snapshot_requests: SnapshotRequests,
    finding_changes: FindingChanges,
}

impl AuditParts {
    fn start(
        config: &Config,
        store: &Arc<StateStore>,
        receiver: &ReceiverHandle,
    ) -> io::Result<Self> {
        let snapshot_requests = SnapshotRequests::new()?;
        let requests = Some(snapshot_requests.clone());
        let audit = Arc::new(Audit::new(Arc::clone(store), receiver.clone(), requests));
        let finding_changes = FindingChanges::new()?;
        let changes = finding_changes.clone();
        let sources = FindingSources::new(store, receiver, &config.state_dir);
        let audit_worker =
            AuditWorker::start(Arc::clone(&audit), config.audit_every, sources, changes)?;
        Ok(Self { audit, audit_worker, snapshot_requests, finding_changes })
    }
}

impl Node {
    /// Opens the sockets, starts the workers and publishes the role of every instance.
    pub fn start(
        config: Config,
        load_config: ConfigLoader,
        startup_fds: service::StartupFds,
        open_api_server: OpenApiServer,
    ) -> Result<Self, NodeError> {
        let service::StartupFds { listen_source, signals } = startup_fds;
        // Announcements need some file descriptors for each instance, for some seconds.
        raise_file_limit();
        let lock = state_dir::lock_if_usable(&config.state_dir)?;
        let (name, locations) = (config.node_name(), config.locations.clone());
        let mut follower = Follower::open(locations, config.instances.clone(), config.listen)
            .map_err(NodeError::Listen)?;
        let (history, mut opened) = Writer::open(&config.state_dir, config.keep)?;
        let last_run = history::last_run(std::mem::take(&mut opened.roles));
        let store = Arc::new(StateStore::default());
        history::report_opened(&opened, &store, &history);
        follower.table().set_adverts(Arc::clone(&store.witness));
        housekeeping::report_fallback(follower.table().watcher(), &store);
        let processes = Self::read_processes(&config, &store, &mut follower)?;
        let receiver_handle = ReceiverHandle::default();
        let AuditParts { audit, audit_worker, snapshot_requests, finding_changes } =
            AuditParts::start(&config, &store, &receiver_handle).map_err(NodeError::StartWorker)?;
        // BOUND: see `EvidenceUpdates`.
        let evidence_updates = EvidenceUpdates::new().map_err(NodeError::StartWorker)?;
        let evidence = evidence_updates.clone();
        let process_worker = ProcessWorker::start(processes, &store, &audit_worker, evidence)
            .map_err(NodeError::StartWorker)?;
        let epoch = std::mem::take(&mut opened.epoch).into();
        let identity = NodeIdentity { node: Arc::clone(&name), epoch };
        store.begin_epoch(Arc::clone(&identity.epoch), opened.last_seq);
        let silences = Silences::new(std::mem::take(&mut opened.silences)).map(Arc::new);
        let silences = silences.map_err(NodeError::StartWorker)?;
        let reports = ReportQueue::new().map_err(NodeError::StartWorker)?;
        let setup = NotifierSetup {
            identity: identity.clone(),
            deliveries: history.delivery_store(),
            stored: std::mem::take(&mut opened.deliveries),
            is_uncertain: opened.killed.is_some() || opened.open_error.is_some(),
            state_dir: &config.state_dir,
            states: &store,
            silences: Arc::clone(&silences),
            config: &config,
        };
        let notifier = setup.start_with(Some(reports.clone()));
        let found = DuplicateReports::new(&store, audit_worker.requests());
        let (rules, deliveries) = (config.rules.clone(), history.delivery_store());
        let outlets = InstanceOutlets::new(rules, notifier.clone(), reports, deliveries, found)
            .map_err(NodeError::StartWorker)?;
        let (requests, evidence) = (audit_worker.requests(), evidence_updates.clone());
        let witness = Witness::start(config.witness.clone(), &store, requests, evidence)
            .map_err(NodeError::StartWorker)?;
        let cluster = Self::cluster_service(&config, &name, &store, &silences)?;
        let reload_requests = ReloadRequests::new().map_err(NodeError::StartWorker)?;
        let context = ApiContext {
            store: Arc::clone(&store),
            audit,
            audit_requests: Some(audit_worker.requests()),
            state_dir: config.state_dir.clone(),
            node: Arc::clone(&name),
            source: AnswerSource::Node,
            receiver_handle: receiver_handle.clone(),
            notifier: Some(notifier.clone()),
            silences: Some(Arc::clone(&silences)),
            reload_requests: Some(reload_requests.clone()),
            cluster: cluster.clone(),
            service: Arc::new(ServiceInfo::new(ServiceKind::Node, &config)),
        };
        let api_server = open_api_server(&config, context.clone())?;
        let mut node = Self {
            config,
            load_config,
            signals,
            follower,
            outlets,
            notifier,
            store,
            history,
            audit_worker,
            process_worker,
            snapshot_requests,
            finding_changes,
            pending_causes: PendingCauses::default(),
            evidence_updates,
            silences,
            foreign_silences: ForeignSilences::default(),
            api_server,
            receiver: None,
            closing_receiver: None,
            receiver_handle,
            witness,
            cluster,
            confirmation: None,
            cluster_findings: ClusterFindings::default(),
            context,
            status_text: StatusText::default(),
            reload_requests,
            identity,
            seq: opened.last_seq,
            last_run,
            removal_check: Some(clock::now() + MISSING_FILE_HOLD),
            transition_log: TransitionLog::default(),
            next_housekeeping: clock::now(),
            watchdog: service::Watchdog::from_environment(),
            lock,
        };
        node.publish_first_roles(listen_source).map(|()| node)
    }

    fn cluster_service(
        config: &Config,
        node: &Arc<str>,
        store: &Arc<StateStore>,
        silences: &Arc<Silences>,
    ) -> Result<Option<ClusterService>, NodeError> {
        let (config, state_dir) = (&config.cluster, config.state_dir.clone());
        let setup = ClusterServiceSetup { config, node, state_dir, store, silences };
        ClusterService::new(&setup).map_err(NodeError::StartWorker)
    }

    /// Reads the processes of keepalived, and has the follower scan their configurations.
    ///
    /// ORDER: this precedes the first scan, which finds the instances of these configurations.
    fn read_processes(
        config: &Config,
        store: &StateStore,
        follower: &mut Follower,
    ) -> Result<Option<(KeepalivedTable, RememberedSources)>, NodeError> {
        if !config.locations.has_processes {
            return Ok(None);
        }
        let (remembered, has_containers) =
            (RememberedSources::new(config), config.locations.has_containers);
        let table = ProcessWorker::first_scan(store, &remembered, has_containers)
            .map_err(NodeError::StartWorker)?;
        follower.set_sources(table.sources());
        Ok(Some((table, remembered)))
    }

    /// Publishes the role of every instance, starts the receiver and begins to answer clients.
    fn publish_first_roles(&mut self, listen_source: ListenSource) -> Result<(), NodeError> {
        self.watch_agent_sockets();
        let update = self.follower.rediscover();
        self.publish_update(update, clock::now());
        self.restore_failures();
        self.resume_findings();
        self.start_cluster();
        self.config.log_warnings(self.follower.instances());
        let receiver = self.config.receiver.clone();
        self.apply_receiver(receiver.as_ref(), listen_source);
        self.store.update(|view| pack(&mut view.entries));
        release_spare_heap();
        // ORDER: clients are answered only after every role is published.
        self.api_server.serve().map_err(NodeError::StartWorker)
    }

    /// Runs until a signal stops the node. On return, the history is on the disk.
    pub fn run(mut self) -> Result<(), NodeError> {
        self.status_text.update(&self.context, clock::now());
        service::notify("READY=1");
        let count = self.store.view().entries.len();
        tracing::info!(instances = count, socket = %self.config.socket.display(), "node is ready");
        loop {
            self.store.record_turn();
            let read_at = self.wait()?;
            match self.signals.read() {
                Some(ServiceSignal::Stop) => break,
                Some(ServiceSignal::Reload) => {
                    self.reload();
                }
                Some(ServiceSignal::Dump) => service::write_state_dump(&self.context),
                Some(ServiceSignal::ToggleDebug) => log::toggle_debug(),
                None => {}
            }
            self.serve_reload_requests();
            self.take_cluster_events();
            for netns in self.snapshot_requests.take_all() {
                let published = |id: &InstanceId| Some(self.store.entry(id)?.role.clone());
                self.follower.request_snapshot(netns, published);
            }
            let sources = self.process_worker.as_ref().map(ProcessWorker::source_changes);
            if let Some(sources) = sources.and_then(|changes| changes.take_all().pop()) {
                self.follower.set_sources(sources);
            }
            let update = self.follower.read().map_err(NodeError::Wait)?;
            self.publish_update(update, read_at);
            self.finish_confirmation();
            self.take_evidence();
            self.publish_findings();
            self.tick();
            self.store.turns.observe(clock::now().since(read_at));
        }
        self.stop();
        Ok(())
    }

    /// Waits until a file descriptor is ready or a timer expires; returns the time of that.
    fn wait(&mut self) -> Result<Moment, NodeError> {
        let timers = [
            self.follower.due(),
            self.outlets.due(),
            self.watchdog.due(),
            self.silence_due(),
            self.pending_causes.due(),
            self.removal_check_due(),
        ];
        let due = timers.into_iter().flatten().chain([self.next_housekeeping]).min();
        let left = due.map_or(HOUSEKEEPING_INTERVAL, |due| due.since(clock::now()));
        let closing = self.closing_receiver.iter().map(ReceiverShutdown::as_fd);
        let sources = self.follower.sources().chain(self.outlets.sources()).chain(closing);
        let queues = [
            self.signals.as_fd(),
            self.snapshot_requests.as_fd(),
            self.finding_changes.as_fd(),
            self.evidence_updates.as_fd(),
            self.silences.as_fd(),
            self.reload_requests.as_fd(),
        ];
        let processes = self.process_worker.iter().map(|worker| worker.source_changes().as_fd());
        let cluster = self.cluster.iter().map(|cluster| cluster.inbox().as_fd());
        let mut polled: Vec<PollFd<'_>> = queues
            .into_iter()
            .chain(cluster)
            .chain(processes)
            .chain(sources)
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN))
            .collect();
        match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(clock::now()),
            Err(errno) => Err(NodeError::Wait(errno.into())),
        }
    }

    /// Records the results of deliveries, and runs the timers that are due.
    fn tick(&mut self) {
        let (reports, agents) = self.outlets.tick();
        for report in &reports {
            self.record_delivery(report);
        }
        for (id, knowledge) in agents {
            self.store.amend(&id, |entry| entry.agent = Some(knowledge));
        }
        self.copy_counters();
        self.finish_closing_receiver();
        self.check_removals();
        self.update_silences();
        let now = clock::now();
        if self.next_housekeeping <= now {
            self.run_housekeeping();
            self.transition_log.tick(now, &self.store);
            self.next_housekeeping = now + HOUSEKEEPING_INTERVAL;
        }
        self.status_text.update(&self.context, now);
        self.watchdog.tick(now);
    }

    fn stop(&mut self) {
        service::notify("STOPPING=1");
        self.stop_cluster();
        self.conclude_all_causes(UnknownReason::NodeStopped);
        self.close_receiver_and_wait();
        let left = self.outlets.close(SHUTDOWN_TIMEOUT);
        if left > 0 {
            tracing::warn!(left, "stopped with undelivered notifications for hooks and webhooks");
        }
        for report in self.outlets.tick().0 {
            self.record_delivery(&report);
        }
        // A client may have created or ended one since the last turn.
        self.history.store_silences(self.silences.rows());
        self.witness.stop();
        if let Some(worker) = &self.process_worker {
            worker.wait_stored();
        }
        tracing::info!("node stopped");
    }

    /// Has the follower report when the socket of an agent appears.
    fn watch_agent_sockets(&mut self) {
        self.follower.watch_agent_sockets(self.outlets.agent_directories());
    }
}
