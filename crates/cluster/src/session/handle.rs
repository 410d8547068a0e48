// SPDX-License-Identifier: Apache-2.0
//! The node's side of a session: marks, confirmations, the view and its connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::Notify;
use vipwatch_api::{ClusterBasis, ClusterConnectionState, ClusterScope, ClusterSource, Timestamp};
use vipwatch_core::InstanceId;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use super::counters::SessionCounters;
use super::worker::Worker;
use super::{
    ClusterCounters, ClusterObserver, ConfirmationId, DeliveredFinding, RecordSource,
    SessionSettings,
};
use crate::follow::SharedView;
use crate::key::{ClusterName, KeySpace};
use crate::neutron::NeutronAnswer;
use crate::view::ClusterView;

/// The maximum number of host names that are looked up at a time.
const MAX_LOOKUPS: usize = 8;

/// The session of a node with etcd. Dropping it ends the session without a word to etcd, as a crash does; [`Self::stop`]
/// says that the node was stopped.
pub struct ClusterHandle {
    shared: Arc<SessionShared>,
    /// `None` after the end.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the session's thread and the node share.
pub(super) struct SessionShared {
    node: ClusterName,
    domain: ClusterName,
    pub(super) view: SharedView,
    pub(super) counters: SessionCounters,
    requests: Mutex<SessionRequests>,
    status: Mutex<SessionStatus>,
    /// Wakes the session.
    pub(super) wake: Notify,
    /// Wakes the session although it waits for etcd.
    ending: Notify,
}

/// Requests of the node that the session has not taken yet.
// BOUND: at most one entry for each instance, for each finding and target, and for each router.
#[derive(Debug, Default)]
pub(super) struct SessionRequests {
    /// All instances may have changed.
    pub(super) is_all_marked: bool,
    pub(super) marked: BTreeSet<InstanceId>,
    pub(super) confirmed: Option<ConfirmationId>,
    pub(super) delivered: BTreeSet<DeliveredFinding>,
    /// The events for all openings are to come again.
    pub(super) are_openings_wanted: bool,
    /// Neutron's answers about routers, each with the time of its request.
    pub(super) neutron: BTreeMap<InstanceId, (Instant, NeutronAnswer)>,
    /// The silences of the node may have changed.
    pub(super) are_silences_marked: bool,
    pub(super) end: Option<SessionEnd>,
}

/// How the session is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The node is stopped: etcd shall know it.
    Stop,
    /// At once.
    Abandon,
}

/// The state of the connection.
#[derive(Debug, Clone)]
pub(super) struct SessionStatus {
    pub(super) connection: ClusterConnectionState,
    pub(super) scope: ClusterScope,
    pub(super) endpoint: Option<String>,
    pub(super) stale_since: Option<Timestamp>,
    pub(super) error: Option<String>,
    /// The revision that the view has reached.
    pub(super) revision: i64,
    pub(super) is_registered: bool,
    pub(super) is_reporter: bool,
    /// Whether this node is the reporter, and has so many open findings that it opens no more.
    pub(super) is_full_of_findings: bool,
    /// The other process that publishes under this node's name.
    pub(super) name_holder: Option<NameHolder>,
}

/// A process that publishes under the name of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameHolder {
    /// The epoch of its history.
    pub epoch: String,
    /// Its version of vipwatch.
    pub version: String,
}

impl ClusterHandle {
    /// Starts the session on a thread of its own.
    pub fn start(
        settings: SessionSettings,
        source: Arc<dyn RecordSource>,
        observer: Arc<dyn ClusterObserver>,
    ) -> io::Result<Self> {
        // A lookup of a host name that hangs must not delay those of the others.
        let endpoints = settings.etcd.endpoints.len().clamp(1, MAX_LOOKUPS);
        let (shared, worker) = prepare(settings, source, observer);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(endpoints)
            .build()?;
        let thread = spawn_worker("cluster", move |heartbeat| {
            runtime.block_on(async {
                tokio::select! {
                    () = Box::pin(worker.run()) => {}
                    () = beat(heartbeat) => {}
                }
            });
            // A lookup that hangs does not delay the stop of the node.
            runtime.shutdown_background();
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The session as a future, on the runtime of the test.
    #[cfg(test)]
    pub(crate) fn simulated(
        settings: SessionSettings,
        source: Arc<dyn RecordSource>,
        observer: Arc<dyn ClusterObserver>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (shared, worker) = prepare(settings, source, observer);
        (Self { shared, thread: Mutex::new(None) }, worker.run())
    }

    /// The record of an instance may have changed. This only makes a note, and never waits.
    pub fn mark(&self, instance: &InstanceId) {
        let mut requests = self.shared.requests();
        if !requests.is_all_marked && !requests.marked.contains(instance) {
            requests.marked.insert(instance.clone());
        }
        drop(requests);
        self.shared.wake.notify_one();
    }

    /// All records may have changed, or instances were added or removed.
    pub fn mark_all(&self) {
        let mut requests = self.shared.requests();
        requests.is_all_marked = true;
        requests.marked.clear();
        drop(requests);
        self.shared.wake.notify_one();
    }

    /// A silence was added on this node, or was removed.
    pub fn mark_silences(&self) {
        self.shared.requests().are_silences_marked = true;
        self.shared.wake.notify_one();
    }

    /// The main loop confirms the roles: every change that it knows was marked before this call.
    pub fn confirm(&self, id: ConfirmationId) {
        let mut requests = self.shared.requests();
        requests.confirmed = requests.confirmed.max(Some(id));
        drop(requests);
        self.shared.wake.notify_one();
    }

    /// A target has received a finding. The reporter writes it to etcd, so that the next reporter does not deliver the
    /// finding again.
    pub fn notified(&self, delivered: DeliveredFinding) {
        self.shared.requests().delivered.insert(delivered);
        self.shared.wake.notify_one();
    }

    /// On the reporter: the events for all openings that it has found come again, for targets that are new.
    pub fn repeat_openings(&self) {
        self.shared.requests().are_openings_wanted = true;
        self.shared.wake.notify_one();
    }

    /// Neutron has answered a request of this time. Only the reporter uses the answer.
    pub fn neutron_answered(&self, router: InstanceId, requested: Instant, answer: NeutronAnswer) {
        self.shared.requests().neutron.insert(router, (requested, answer));
        self.shared.wake.notify_one();
    }

    /// The view. The session waits while the guard exists: make a document, and drop it.
    pub fn view(&self) -> RwLockReadGuard<'_, ClusterView> {
        self.shared.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What answers from the view rest on.
    pub fn basis(&self) -> ClusterBasis {
        let status = self.shared.status().clone();
        ClusterBasis {
            node: Some(self.shared.node.to_string()),
            source: ClusterSource::Node,
            domain: Some(self.shared.domain.to_string()),
            scope: status.scope,
            connection: status.connection,
            endpoint: status.endpoint,
            stale_since: status.stale_since,
            error: status.error,
            revision: status.revision,
            unknown: Vec::new(),
        }
    }

    /// Whether etcd has this node as a running node.
    pub fn is_registered(&self) -> bool {
        self.shared.status().is_registered
    }

    /// Whether this node delivers the findings of the cluster.
    pub fn is_reporter(&self) -> bool {
        self.shared.status().is_reporter
    }

    /// Whether this node is the reporter, and has so many open findings that it opens no more.
    pub fn is_full_of_findings(&self) -> bool {
        self.shared.status().is_full_of_findings
    }

    /// The other process that publishes under this node's name; `None` if there is none.
    pub fn name_holder(&self) -> Option<NameHolder> {
        self.shared.status().name_holder.clone()
    }

    /// The counters.
    pub fn counters(&self) -> ClusterCounters {
        self.shared.counters.values()
    }

    /// Says in etcd that the node was stopped, and ends the session. It takes at most about two seconds if etcd does not
    /// answer.
    pub fn stop(&self) {
        self.end(SessionEnd::Stop);
    }

    fn end(&self, end: SessionEnd) {
        self.shared.requests().end.get_or_insert(end);
        self.shared.ending.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(panic)) = thread.map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The shared state of a new session, and its worker.
fn prepare(
    settings: SessionSettings,
    source: Arc<dyn RecordSource>,
    observer: Arc<dyn ClusterObserver>,
) -> (Arc<SessionShared>, Worker) {
    let status = SessionStatus {
        connection: ClusterConnectionState::Connecting,
        scope: settings.scope,
        endpoint: None,
        stale_since: None,
        error: None,
        revision: 0,
        is_registered: false,
        is_reporter: false,
        is_full_of_findings: false,
        name_holder: None,
    };
    let (keys, own) = (KeySpace::new(&settings.domain), Some(settings.node.clone()));
    let shared = Arc::new(SessionShared {
        node: settings.node.clone(),
        domain: settings.domain.clone(),
        view: SharedView::new(ClusterView::of_node(keys, own, settings.limits.clone())),
        counters: SessionCounters::default(),
        requests: Mutex::new(SessionRequests { is_all_marked: true, ..Default::default() }),
        status: Mutex::new(status),
        wake: Notify::new(),
        ending: Notify::new(),
    });
    let worker = Worker::new(settings, source, observer, shared.clone());
    (shared, worker)
}

/// Reports the progress of the thread to the watchdog, for ever.
async fn beat(heartbeat: &Heartbeat) {
    loop {
        heartbeat.beat();
        tokio::time::sleep(beat_every()).await;
    }
}

impl Drop for ClusterHandle {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end(SessionEnd::Abandon);
        }
    }
}

impl SessionShared {
    pub(super) fn requests(&self) -> MutexGuard<'_, SessionRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> MutexGuard<'_, SessionStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the session is to end.
    pub(super) async fn ended(&self) -> SessionEnd {
        loop {
            let end = self.requests().end;
            if let Some(end) = end {
                return end;
            }
            self.ending.notified().await;
        }
    }
}
