// SPDX-License-Identifier: Apache-2.0
//! This node in the cluster: publishes its roles in etcd, and gives the other parts of the node a view of all nodes.
//!
//! ```text
//!   published state ── changed instance ──▶ session (a thread of its own) ◀──▶ etcd
//!   main loop ◀── ClusterInbox: confirmations, findings, connection ── session
//! ```
//!
//! Nothing here waits for etcd. Without etcd the node works as without a cluster, and its view says that it is old.

mod inbox;
mod neutron;
mod own_part;
mod received_adverts;
mod recent;
mod records;
mod settings;
mod silences;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use vipwatch_api::{ClusterBasis, ClusterNeutron};
use vipwatch_cluster::key::ClusterName;
use vipwatch_cluster::session::{
    ClusterCounters, ClusterHandle, ConfirmationId, DeliveredFinding, NameHolder, RecordSource,
};
use vipwatch_cluster::view::ClusterView;
use vipwatch_core::{Cause, ErrorChain, InstanceId};

pub(crate) use self::inbox::ClusterInbox;
use self::neutron::NeutronComparer;
pub(crate) use self::neutron::{NeutronCounters, NeutronErrorKind};
pub(crate) use self::own_part::{OwnPart, OwnParts};
pub(crate) use self::received_adverts::hears_other;
use self::records::PublishedRecords;
pub(crate) use self::settings::ClusterStartError;
pub(crate) use self::silences::ForeignSilences;

use crate::config::ClusterConfig;
use crate::silence::{ClusterSilences, Silences};
use crate::state::StateStore;
use crate::transition::Transition;
use vipwatch_core::FindingKind;

/// Marks an instance: its record may have changed.
pub(crate) type MarkInstance = Arc<dyn Fn(&InstanceId) + Send + Sync>;

/// The values that a service starts with.
#[derive(Debug)]
pub(crate) struct ClusterServiceSetup<'a> {
    pub(crate) config: &'a ClusterConfig,
    pub(crate) node: &'a str,
    pub(crate) state_dir: PathBuf,
    pub(crate) store: &'a Arc<StateStore>,
    pub(crate) silences: &'a Arc<Silences>,
}

/// This node in the cluster. A clone is another handle on the same service.
#[derive(Debug, Clone)]
pub struct ClusterService(Arc<SharedService>);

#[derive(Debug)]
struct SharedService {
    config: ClusterConfig,
    node: ClusterName,
    store: Arc<StateStore>,
    records: Arc<PublishedRecords>,
    inbox: ClusterInbox,
    /// `None` if Neutron is not asked.
    neutron: Option<NeutronComparer>,
    /// `None` before the files of the configuration could be read, and after the end.
    session: RwLock<Option<Session>>,
}

/// [`ClusterHandle`], which has no debug format.
struct Session(ClusterHandle);

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("basis", &self.0.basis()).finish()
    }
}

impl ClusterService {
    /// The service of a node; `None` if no cluster is configured. It is idle until [`Self::start_session`].
    pub(crate) fn new(setup: &ClusterServiceSetup<'_>) -> io::Result<Option<Self>> {
        // `config` has checked the name.
        let Some(node) = setup.node.parse().ok().filter(|_| setup.config.is_enabled()) else {
            return Ok(None);
        };
        let node: ClusterName = node;
        let store = Arc::clone(setup.store);
        let state_dir = setup.state_dir.clone();
        let silences = Arc::clone(setup.silences);
        let records = PublishedRecords::new(Arc::clone(&store), node.clone(), state_dir, silences);
        let records = Arc::new(records);
        let service = Self(Arc::new(SharedService {
            config: setup.config.clone(),
            node,
            store,
            records: Arc::clone(&records),
            inbox: ClusterInbox::new()?,
            neutron: setup.config.neutron.clone().map(NeutronComparer::new),
            session: RwLock::new(None),
        }));
        let weak = Arc::downgrade(&service.0);
        if let Some(neutron) = &service.0.neutron {
            neutron.start(weak.clone())?;
        }
        let mark: MarkInstance = Arc::new(move |id| {
            if let Some(shared) = weak.upgrade() {
                shared.with_session(|session| session.mark(id));
            }
        });
        records.set_mark(Arc::clone(&mark));
        service.0.store.follow_changes(mark);
        Ok(Some(service))
    }

    /// Starts the session, unless it runs. A file that cannot be read is a health problem, and the next call tries again.
    pub(crate) fn start_session(&self) {
        let mut session = self.0.session.write().unwrap_or_else(PoisonError::into_inner);
        if session.is_some() {
            return;
        }
        match self.0.open_session() {
            Ok(handle) => {
                *session = Some(Session(handle));
                self.0.store.set_health(FindingKind::NodeCluster, None);
            }
            Err(error) => {
                let error = ErrorChain(&error).to_string();
                let text = format!("this node does not take part in the cluster: {error}");
                if self.0.store.health_problem(FindingKind::NodeCluster).as_ref() != Some(&text) {
                    tracing::error!(error, "cannot start the session with etcd");
                }
                self.0.store.set_health(FindingKind::NodeCluster, Some(text));
            }
        }
    }

    /// The name of this node.
    pub(crate) fn node(&self) -> &ClusterName {
        &self.0.node
    }

    /// The events of the session, for the main loop.
    pub(crate) fn inbox(&self) -> &ClusterInbox {
        &self.0.inbox
    }

    /// Calls `read` with the view; `None` if the session does not run. The session waits meanwhile.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&ClusterView) -> T) -> Option<T> {
        self.0.with_session(|session| read(&session.view()))
    }

    /// What answers from the view rest on; `None` if the session does not run.
    pub(crate) fn basis(&self) -> Option<ClusterBasis> {
        self.0.with_session(ClusterHandle::basis)
    }

    /// What findings have to do with this node.
    pub(crate) fn own_parts<'a>(&'a self, view: &'a ClusterView) -> OwnParts<'a> {
        OwnParts::new(&self.0.node, view)
    }

    /// The configuration of the cluster.
    pub(crate) fn config(&self) -> &ClusterConfig {
        &self.0.config
    }

    /// Whether this node delivers the findings of the cluster.
    pub(crate) fn is_reporter(&self) -> bool {
        self.0.with_session(ClusterHandle::is_reporter).unwrap_or(false)
    }

    /// The other process that publishes under this node's name; `None` if there is none.
    pub(crate) fn name_holder(&self) -> Option<NameHolder> {
        self.0.with_session(ClusterHandle::name_holder).flatten()
    }

    /// The number of records in etcd beyond the limits of this node.
    pub(crate) fn surplus_records(&self) -> u64 {
        self.read(|view| view.ignored().surplus_records).unwrap_or(0)
    }

    /// Whether this node is the reporter, and has so many open findings that it opens no more.
    pub(crate) fn is_full_of_findings(&self) -> bool {
        self.0.with_session(ClusterHandle::is_full_of_findings).unwrap_or(false)
    }

    /// Whether etcd has this node as a running node.
    pub(crate) fn is_registered(&self) -> bool {
        self.0.with_session(ClusterHandle::is_registered).unwrap_or(false)
    }

    /// The counters; `None` if the session does not run.
    pub(crate) fn counters(&self) -> Option<ClusterCounters> {
        self.0.with_session(ClusterHandle::counters)
    }

    /// The comparison with Neutron; `None` if it is not configured.
    pub(crate) fn neutron(&self) -> Option<ClusterNeutron> {
        self.0.neutron.as_ref().map(NeutronComparer::status)
    }

    /// The counters of the comparison with Neutron; `None` if it is not configured.
    pub(crate) fn neutron_counters(&self) -> Option<NeutronCounters> {
        self.0.neutron.as_ref().map(NeutronComparer::counters)
    }

    /// This node has become the reporter, or is no longer the reporter: only the reporter asks Neutron.
    pub(crate) fn reporter_changed(&self, is_reporter: bool) {
        if let Some(neutron) = &self.0.neutron {
            neutron.set_asking(is_reporter);
        }
    }

    /// Adds a transition to the record of its instance. The published state marks the instance.
    pub(crate) fn add_transition(&self, transition: &Transition) {
        self.0.records.recent.add(transition);
    }

    /// Sets the cause of a transition, which is known later.
    pub(crate) fn set_cause(&self, id: &InstanceId, seq: i64, cause: &Cause) {
        self.0.records.recent.set_cause(id, seq, cause);
    }

    /// Whether the node has a target for findings: without one, another node reports those of the cluster.
    pub(crate) fn set_notifies(&self, notifies: bool) {
        self.0.records.set_notifies(notifies);
    }

    /// A silence was added here, or has ended.
    pub(crate) fn mark_silences(&self) {
        self.0.with_session(ClusterHandle::mark_silences);
    }

    /// The silences of this node and of its groups that were added elsewhere; `None` if they are those of the last call.
    pub(crate) fn foreign_silences(&self, known: &mut ForeignSilences) -> Option<ClusterSilences> {
        self.read(|view| known.changed(view, &self.0.node)).flatten()
    }

    /// Instances were added, removed or configured differently.
    pub(crate) fn mark_all(&self) {
        self.0.with_session(ClusterHandle::mark_all);
    }

    /// The main loop has read everything that the kernel had reported.
    pub(crate) fn confirm(&self, id: ConfirmationId) {
        self.0.with_session(|session| session.confirm(id));
    }

    /// A target has received a finding.
    pub(crate) fn notified(&self, delivered: DeliveredFinding) {
        self.0.with_session(|session| session.notified(delivered));
    }

    /// The events for all openings come again, for targets that are new.
    pub(crate) fn repeat_openings(&self) {
        self.0.with_session(ClusterHandle::repeat_openings);
    }

    /// Says in etcd that the node was stopped, and ends the session.
    pub(crate) fn stop(&self) {
        if let Some(neutron) = &self.0.neutron {
            neutron.stop();
        }
        let session = self.0.session.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Session(handle)) = session {
            handle.stop();
        }
    }
}

impl SharedService {
    fn with_session<T>(&self, call: impl FnOnce(&ClusterHandle) -> T) -> Option<T> {
        let session = self.session.read().unwrap_or_else(PoisonError::into_inner);
        session.as_ref().map(|Session(handle)| call(handle))
    }

    fn open_session(&self) -> Result<ClusterHandle, ClusterStartError> {
        let epoch = self.store.epoch().to_string();
        let settings = settings::session_settings(&self.config, self.node.clone(), epoch)?;
        let source: Arc<dyn RecordSource> = self.records.clone();
        let observer = Arc::new(self.inbox.clone());
        ClusterHandle::start(settings, source, observer).map_err(ClusterStartError::Thread)
    }
}
