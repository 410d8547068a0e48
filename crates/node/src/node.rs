//! The loop: waits in one place, takes what has come, and takes every change to the outlets, the
//! history and the board.

mod history;
mod reload;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::discovery::{ConfigProblem, InstanceConfig};
use crate::watch::instance_table::{Cause, RoleChange};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_history::{HistoryError, LastRole, Stage, Writer};
use vipwatch_linux::clock;
use vipwatch_linux::file::is_storage_error;
use vipwatch_linux::listen::ListenError;
use vipwatch_linux::lock::FileLock;
use vipwatch_linux::process::{raise_file_limit, release_spare_heap};
use vipwatch_linux::signal::{Signal, Signals};

use crate::audit::{AuditState, AuditWorker, share};
use crate::config::{Config, ConfigError};
use crate::notify::notifier::{Notifier, PublishResult, ReconfiguredInstance};
use crate::notify::outlet::DeliveryReport;
use crate::query_server::{QueryContext, QueryServer, QuerySource};
use crate::receiver::{ReceiverHandle, ReceiverService, ReceiverShutdown};
use crate::service;
use crate::state::{InstanceEntry, StateStore};
use crate::transition::Transition;
use crate::watch::follower::{Follower, FollowerUpdate};

/// How often the loop looks after itself.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(10);

/// How long outlets may take to finish when the node is stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
    /// The state directory cannot be used.
    #[error("cannot use the directory {}", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another node uses it.
    #[error("another vipwatch node records in {}", .0.display())]
    Taken(PathBuf),
    /// The kernel cannot be listened to.
    #[error("cannot listen to all namespaces")]
    Listen(#[source] io::Error),
    /// The history cannot be used.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// Nobody can be answered.
    #[error(transparent)]
    QueryServer(#[from] ListenError),
    /// A thread, or what it needs, cannot be had.
    #[error("cannot start to work")]
    Start(#[source] io::Error),
    /// Waiting failed.
    #[error("cannot wait for events")]
    Wait(#[source] io::Error),
}

/// Where a new configuration comes from when one is asked for.
pub type ConfigLoader = Box<dyn Fn() -> Result<Config, ConfigError>>;

/// A node that runs.
pub struct Node {
    config: Config,
    reload: ConfigLoader,
    signals: Signals,
    follower: Follower,
    notifier: Notifier,
    store: Arc<StateStore>,
    writer: Writer,
    audit_worker: AuditWorker,
    query_server: QueryServer,
    /// Where monitors report, if they do.
    receiver: Option<ReceiverService>,
    /// A receiver that is shutting down, on a thread of its own.
    closing: Option<ReceiverShutdown>,
    receiver_handle: ReceiverHandle,
    name: Arc<str>,
    seq: i64,
    /// What the node before us knew, until we know ourselves.
    before: BTreeMap<String, LastRole>,
    next_audit: Moment,
    next_housekeeping: Moment,
    watchdog: service::Watchdog,
    /// Held for as long as we record. `None`: the state directory cannot be used.
    lock: Option<FileLock>,
}

impl Node {
    /// Starts everything.
    pub fn start(
        config: Config,
        reload: ConfigLoader,
        startup_fds: service::StartupFds,
    ) -> Result<Self, NodeError> {
        let service::StartupFds { listen_source, signals } = startup_fds;
        // Announcing takes some for each instance, for some seconds.
        raise_file_limit();
        let lock = match lock(&config.state_dir) {
            // The history reports the error, and tries again.
            Err(NodeError::StateDir { source, .. }) if is_storage_error(&source) => None,
            lock => Some(lock?),
        };
        config.log_warnings();
        let name = crate::name();
        let places = config.places.clone();
        let mut follower = Follower::open(places, config.instances.clone(), config.listen)
            .map_err(NodeError::Listen)?;
        let (writer, mut opened) = Writer::open(&config.state_dir, config.keep)?;
        let before = std::mem::take(&mut opened.roles);
        let notifier = Notifier::new(&config, Arc::clone(&name)).map_err(NodeError::Start)?;
        let store = Arc::new(StateStore::default());
        history::log_opened(&opened);
        store.set_health(
            "history",
            opened.failed.as_ref().map(|why| format!("it cannot be opened: {why}")),
        );
        if let Some(why) = follower.table().watcher().fallback_reason() {
            let text = format!("each namespace has a socket of its own: {why}");
            tracing::warn!("{text}");
            store.set_health("one-socket", Some(text));
        }
        let receiver_handle = ReceiverHandle::default();
        let audit = Arc::new(AuditState::new(receiver_handle.clone()));
        let audit_worker =
            AuditWorker::start(Arc::clone(&store), Arc::clone(&audit), config.audit_every)
                .map_err(NodeError::Start)?;
        let context = QueryContext {
            store: Arc::clone(&store),
            audit,
            state_dir: config.state_dir.clone(),
            node: Arc::clone(&name),
            source: QuerySource::Node,
            receiver_handle: receiver_handle.clone(),
        };
        let query_server = QueryServer::open(&config.socket, config.group, context)?;
        let now = clock::now();
        let mut node = Self {
            config,
            reload,
            signals,
            follower,
            notifier,
            store,
            writer,
            audit_worker,
            query_server,
            receiver: None,
            closing: None,
            receiver_handle,
            name,
            seq: opened.last,
            before,
            next_audit: now + HOUSEKEEPING_INTERVAL,
            next_housekeeping: now,
            watchdog: service::Watchdog::from_environment(),
            lock,
        };
        node.watch_agents();
        let found = node.follower.rediscover();
        node.take(found, clock::now());
        let agent = node.config.agent.clone();
        node.apply_agent(agent.as_ref(), listen_source);
        release_spare_heap();
        node.query_server.serve().map_err(NodeError::Start)?;
        Ok(node)
    }

    /// Works until it is told to stop; everything that was recorded is then on the disk.
    pub fn run(mut self) -> Result<(), NodeError> {
        service::notify("READY=1");
        let count = self.store.view().entries.len();
        tracing::info!(instances = count, socket = %self.config.socket.display(), "ready");
        loop {
            let heard = self.wait()?;
            match self.signals.read() {
                Some(Signal::Stop) => break,
                Some(Signal::Reopen) => self.reload(),
                None => {}
            }
            let news = self.follower.take().map_err(NodeError::Wait)?;
            self.take(news, heard);
            self.tick();
        }
        service::notify("STOPPING=1");
        self.close_receiver_and_wait();
        let left = self.notifier.close(SHUTDOWN_TIMEOUT);
        if left > 0 {
            tracing::warn!(left, "stopped before every hook and webhook was told");
        }
        for report in self.notifier.tick().0 {
            self.note(&report);
        }
        tracing::info!("stopped");
        Ok(())
    }

    /// Waits until something happens or is due; tells when that was.
    fn wait(&mut self) -> Result<Moment, NodeError> {
        let due = [Some(self.follower.due()), self.notifier.due(), self.watchdog.due()];
        let due = due.into_iter().flatten().chain([self.next_audit, self.next_housekeeping]);
        let left = due.min().map_or(HOUSEKEEPING_INTERVAL, |due| due.since(clock::now()));
        let closing = self.closing.iter().map(ReceiverShutdown::as_fd);
        let sources = self.follower.sources().chain(self.notifier.sources()).chain(closing);
        let mut polled: Vec<PollFd<'_>> = std::iter::once(self.signals.as_fd())
            .chain(sources)
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN))
            .collect();
        match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(clock::now()),
            Err(errno) => Err(NodeError::Wait(errno.into())),
        }
    }

    /// Takes what the follower has to tell.
    fn take(&mut self, news: FollowerUpdate, heard: Moment) {
        let at = SystemTime::now();
        // ORDER: what was heard is about those there were; they may be gone by what was found then.
        for change in news.heard {
            self.perform(change, at, heard);
        }
        if let Some(problems) = news.problems {
            self.take_troubles(problems);
        }
        if let Some(instances) = &news.instances {
            self.take_instances(instances);
        }
        if news.has_agents {
            self.notifier.look_for_agents();
        }
        for change in news.changes {
            self.perform(change, at, heard);
        }
    }

    fn take_troubles(&self, problems: Vec<ConfigProblem>) {
        let known = Arc::clone(&self.store.view().problems);
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!(file = ?problem.file, line = problem.line.unwrap_or(0), "{}", problem.text.escape_debug());
        }
        let problems = Arc::new(problems);
        self.store.update(|view| view.problems = problems);
    }

    /// Instances have come or gone, or are configured otherwise.
    fn take_instances(&mut self, instances: &[Arc<InstanceConfig>]) {
        let by_id: BTreeMap<&InstanceId, &Arc<InstanceConfig>> =
            instances.iter().map(|found| (&found.id, found)).collect();
        let gone: Vec<InstanceId> = {
            let view = self.store.view();
            view.entries.keys().filter(|id| !by_id.contains_key(id)).cloned().collect()
        };
        for id in &gone {
            tracing::info!(instance = %id, "is not there any more");
        }
        self.store.update(|view| {
            view.entries.retain(|id, _| by_id.contains_key(id));
            for (id, entry) in &mut view.entries {
                if let Some(found) = by_id.get(id).filter(|found| !Arc::ptr_eq(found, &entry.found))
                {
                    Arc::make_mut(entry).found = Arc::clone(found);
                }
            }
        });
        let changed = self.notifier.follow(instances);
        self.tell_where_they_stand(&changed);
    }

    /// Outlets that are new are told what is so; it is no change.
    fn tell_where_they_stand(&mut self, changed: &[ReconfiguredInstance]) {
        for reconfigured in changed {
            let id = &reconfigured.id;
            let Some(entry) = self.store.entry(id) else { continue };
            let transition = Arc::new(Transition {
                seq: entry.seq,
                at: entry.since,
                heard: clock::now(),
                found: Arc::clone(&entry.found),
                from: None,
                to: entry.role.clone(),
                cause: Cause::Start,
                is_news: false,
            });
            let PublishResult { reports, superseded, .. } =
                self.notifier.perform_again(&transition, reconfigured, &entry.failures);
            self.store.counters.superseded.fetch_add(superseded as u64, Ordering::Relaxed);
            let stages = self.notifier.stages(id);
            let notifier = &self.notifier;
            self.store.amend(id, |entry| {
                // A delivery that goes on failing does not report the same failure twice.
                let seq = entry.seq;
                entry
                    .failures
                    .retain(|(stage, target), _| notifier.is_outstanding(id, *stage, seq, target));
                entry.agent = stages.contains(&Stage::Agent).then(AgentKnowledge::default);
                entry.stages = stages;
            });
            for report in &reports {
                self.note(report);
            }
        }
    }

    /// The walk of one change.
    fn perform(&mut self, change: RoleChange, at: SystemTime, heard: Moment) {
        let RoleChange { found, from, to, cause } = change;
        self.seq += 1;
        let known = self.store.entry(&found.id);
        let mut since = at;
        let mut is_news = true;
        let from = match from {
            Some(from) => {
                // Another reason is no other role.
                if from.as_str() == to.as_str() {
                    since = known.as_ref().map_or(at, |known| known.since);
                }
                Some(from.as_str().to_owned())
            }
            // What the node before us knew: what is still so, is so since then, and no change.
            None => match self.before.remove(found.id.as_str()) {
                Some(last) if last.role == to.as_str() => {
                    since = clock::from_unix_millis(last.since);
                    is_news = self.notifier.is_owed(&found, &last);
                    None
                }
                last => last.map(|last| last.role),
            },
        };
        let seq = self.seq;
        let transition = Transition { seq, at, heard, found, from, to, cause, is_news };
        let transition = Arc::new(transition);
        let PublishResult { latencies, reports, superseded } = self.notifier.perform(&transition);
        let id = transition.found.id.clone();
        self.writer.record(transition.record(), latencies);
        let stages = self.notifier.stages(&id);
        let is_told = stages.contains(&Stage::Agent);
        let agent = known.as_ref().and_then(|known| known.agent.clone());
        // Who could not be told of the last change may not have been told of this one either.
        let failures = known.map(|known| known.failures.clone()).unwrap_or_default();
        self.store.update(|view| {
            let entry = InstanceEntry {
                found: Arc::clone(&transition.found),
                role: transition.to.clone(),
                since,
                seq: transition.seq,
                cause,
                latencies,
                failures,
                agent: is_told.then(|| agent.unwrap_or_default()),
                stages,
                is_news: transition.is_news,
            };
            view.entries.insert(id.clone(), Arc::new(entry));
        });
        self.store.tell(|| {
            let mut line = transition.json(&self.name, &latencies);
            let expected = self.notifier.expected(&transition);
            let expected: Vec<&str> = expected.into_iter().map(Stage::word).collect();
            line["stages"] = expected.into();
            line.to_string().into()
        });
        let counters = &self.store.counters;
        counters.transitions.fetch_add(1, Ordering::Relaxed);
        counters.superseded.fetch_add(superseded as u64, Ordering::Relaxed);
        if cause == Cause::Audit {
            counters.audit_corrections.fetch_add(1, Ordering::Relaxed);
        }
        log(&transition);
        for report in &reports {
            self.note(report);
        }
        self.audit_worker.call(&id);
    }

    /// Somebody was told, or could not be.
    fn note(&mut self, report: &DeliveryReport) {
        let DeliveryReport { instance, seq, stage, whom, micros, outcome, is_final } = report;
        let stage_word = stage.word();
        if !self.notifier.is_awaited(report) {
            let error = outcome.as_ref().err();
            tracing::info!(%instance, seq, stage = stage_word, target = %whom, error, "delivery to a removed target ended");
            return;
        }
        let is_complete = *is_final && self.notifier.conclude(report);
        let Some(entry) = self.store.entry(instance) else { return };
        let party = (*stage, whom.clone());
        match outcome {
            Ok(()) => {
                tracing::debug!(%instance, seq, stage = stage_word, %whom, "told");
                let is_first = entry.seq == *seq && entry.latencies.of(*stage).is_none();
                // A stage is told when all its targets are.
                if is_complete {
                    self.writer.stage(*seq, *stage, *micros);
                }
                self.store.amend(instance, |entry| {
                    entry.failures.remove(&party);
                    if is_complete && is_first {
                        entry.latencies.set(*stage, *micros);
                    }
                });
            }
            // The same as before.
            Err(why) if why.is_empty() => return,
            Err(why) => {
                self.store.counters.outlet_failures.fetch_add(1, Ordering::Relaxed);
                let again = if *is_final { "given up" } else { "it is tried again" };
                tracing::warn!(%instance, seq, stage = stage_word, %whom, again, "not told: {why}");
                self.writer.unstage(*seq, *stage);
                self.store.amend(instance, |entry| {
                    entry.failures.insert(party, why.clone());
                });
            }
        }
        self.store.tell(|| {
            let line = serde_json::json!({
                "schema": "vipwatch.stage/1", "node": &*self.name, "seq": seq,
                "id": instance.as_str(), "stage": stage_word, "whom": whom,
                "micros": micros, "error": outcome.as_ref().err(), "final": is_final,
            });
            line.to_string().into()
        });
    }

    /// Does what is due.
    fn tick(&mut self) {
        let (reports, known) = self.notifier.tick();
        for report in &reports {
            self.note(report);
        }
        for (id, knows) in known {
            self.store.amend(&id, |entry| entry.agent = Some(knows));
        }
        self.finish_closing();
        let now = clock::now();
        if self.next_audit <= now {
            self.audit();
            self.next_audit = clock::now() + HOUSEKEEPING_INTERVAL;
        }
        if self.next_housekeeping <= now {
            self.keep_house();
            self.next_housekeeping = now + HOUSEKEEPING_INTERVAL;
        }
        self.watchdog.tick(now);
    }

    /// Looks into some namespaces, so that all are looked into in their time.
    fn audit(&mut self) {
        let all = self.follower.table().namespaces();
        let count = share(all, HOUSEKEEPING_INTERVAL, self.config.audit_every);
        let heard = clock::now();
        let changes = self.follower.table().audit(count, |_, _| {});
        self.store.counters.audits.fetch_add(count as u64, Ordering::Relaxed);
        let at = SystemTime::now();
        for change in changes {
            self.perform(change, at, heard);
        }
    }

    fn keep_house(&mut self) {
        let counters = &self.store.counters;
        let table = self.follower.table();
        counters.overruns.store(table.overruns(), Ordering::Relaxed);
        counters.snapshots.store(table.snapshots(), Ordering::Relaxed);
        counters.namespaces.store(table.namespaces() as u64, Ordering::Relaxed);
        counters.netlink_sockets.store(table.watcher().sockets() as u64, Ordering::Relaxed);
        counters.pending.store(self.notifier.pending() as u64, Ordering::Relaxed);
        if self.receiver.as_ref().is_some_and(|receiver| !receiver.is_alive()) {
            tracing::error!("the receiver has ended; it is started again");
            self.receive(None);
            let text = "the receiver has ended and is started again; see the log".to_owned();
            self.store.set_health("agent", Some(text));
        }
        if let Some(receiver) = &mut self.receiver {
            let store = &self.store;
            receiver.forget_old_routers(|id| store.entry(id).is_some());
            receiver.check_socket();
        }
        self.check_socket();
        self.check_history();
    }

    /// Looks whether the file of the node's socket is still the one that this node has made.
    fn check_socket(&self) {
        let problem = self.query_server.check_socket().err().map(|lost| lost.to_string());
        let known = self.store.health_problems();
        let known = known.iter().find(|(name, ..)| *name == "socket").map(|(_, _, text)| text);
        if let Some(problem) = problem.as_ref().filter(|problem| Some(*problem) != known) {
            tracing::error!(problem, "commands do not reach this node");
        }
        self.store.set_health("socket", problem);
    }

    fn watch_agents(&mut self) {
        self.follower.watch_agents(self.notifier.agent_directories());
    }
}

fn log(transition: &Transition) {
    let Transition { seq, found, from, to, cause, .. } = transition;
    let (from, to, cause) = (from.as_deref().unwrap_or("-"), to, cause.word());
    let (instance, reason, role) = (&found.id, to.reason(), to.as_str());
    tracing::info!(seq, %instance, from, to = role, cause, reason, "role");
}

/// One node for a directory.
fn lock(directory: &Path) -> Result<FileLock, NodeError> {
    let failed = |source: io::Error| NodeError::StateDir { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let lock = FileLock::try_exclusive(opened).map_err(failed)?;
    lock.ok_or_else(|| NodeError::Taken(directory.to_owned()))
}
