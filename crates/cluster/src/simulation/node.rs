// SPDX-License-Identifier: Apache-2.0
//! A simulated node: a session of the product, and the main loop that answers it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use vipwatch_api::{RoleKind, Timestamp};
use vipwatch_core::InstanceId;

use super::NAMES;
use super::link::EtcdLink;
use super::network::Network;
use crate::etcd::EtcdSettings;
use crate::key::{Bucket, SilenceId};
use crate::record::{FORMAT, FindingRecord, ReceivedAdverts, RoleRecord, SilenceRecord};
use crate::session::{
    ClusterEvent, ClusterHandle, ClusterObserver, DeliveredFinding, HeartbeatFacts, RecordSource,
    SessionSettings, WantedRole, WantedSilence,
};

/// How long a silence lasts that is not ended before.
const SILENCE: Duration = Duration::from_mins(4);

/// The target of notifications.
pub(super) const TARGET: &str = "pager";

/// A node.
pub(super) struct SimulatedNode {
    number: usize,
    network: Arc<Network>,
    pub(super) side: Arc<NodeSide>,
    /// Whether watches may lose events.
    loses_events: bool,
    process: Option<NodeProcess>,
}

struct NodeProcess {
    handle: Arc<ClusterHandle>,
    task: JoinHandle<()>,
    gate: Arc<Gate>,
    is_stopping: bool,
}

/// The part of a node that its sessions share.
pub(super) struct NodeSide {
    name: &'static str,
    network: Arc<Network>,
    roles: Mutex<BTreeMap<InstanceId, WantedRole>>,
    handle: Mutex<Weak<ClusterHandle>>,
    /// The main loop does not answer.
    pub(super) is_stuck: AtomicBool,
    /// The number of the node's silence, and when it began.
    silenced: Mutex<Option<(u64, Instant)>>,
}

impl SimulatedNode {
    pub(super) fn new(number: usize, network: &Arc<Network>, loses_events: bool) -> Self {
        let side = NodeSide {
            name: NAMES[number],
            network: network.clone(),
            roles: Mutex::default(),
            handle: Mutex::default(),
            is_stuck: AtomicBool::new(false),
            silenced: Mutex::default(),
        };
        let (network, side) = (network.clone(), Arc::new(side));
        Self { number, network, side, loses_events, process: None }
    }

    /// Starts a process if none runs.
    pub(super) fn start(&mut self) {
        if self.process.as_ref().is_some_and(|process| !process.is_stopping) {
            return;
        }
        self.kill();
        let settings = self.settings();
        let (source, observer) = (self.side.clone(), self.side.clone());
        let (handle, session) = ClusterHandle::simulated(settings, source, observer);
        let handle = Arc::new(handle);
        *self.side.handle() = Arc::downgrade(&handle);
        let gate = Arc::new(Gate::default());
        let task = tokio::spawn(Gated { session: Box::pin(session), gate: gate.clone() });
        self.process = Some(NodeProcess { handle, task, gate, is_stopping: false });
    }

    /// Ends the process without a word to etcd.
    pub(super) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.task.abort();
        }
    }

    /// Stops the process in an orderly way, which takes up to two seconds.
    pub(super) fn stop(&mut self) {
        if let Some(process) = &mut self.process {
            process.is_stopping = true;
            process.handle.stop();
        }
    }

    /// The process does not run for a while.
    pub(super) fn freeze(&mut self, is_frozen: bool) {
        if let Some(process) = &self.process {
            process.gate.set(is_frozen);
        }
    }

    /// The session of a process that is not stopped.
    pub(super) fn handle(&self) -> Option<&ClusterHandle> {
        let process = self.process.as_ref().filter(|process| !process.is_stopping)?;
        Some(&process.handle)
    }

    /// Whether the session has ended by itself: a defect.
    pub(super) fn has_failed(&self) -> bool {
        self.process.as_ref().is_some_and(|it| !it.is_stopping && it.task.is_finished())
    }

    fn settings(&self) -> SessionSettings {
        let endpoints = vec!["http://etcd-1:2379".to_owned(), "http://etcd-2:2379".to_owned()];
        let mut etcd = EtcdSettings::new(endpoints);
        etcd.simulated = Some(EtcdLink::new(&self.network, self.number));
        let (name, domain) = (self.side.name, "sim".parse().unwrap());
        let epoch = format!("epoch-of-{name}");
        let settings = SessionSettings::new(etcd, domain, name.parse().unwrap(), epoch);
        if !self.loses_events {
            // The usual comparison is too rare to hide a defect.
            return settings;
        }
        // A quiet time has several comparisons.
        SessionSettings { compare: Duration::from_secs(30), ..settings }
    }
}

impl NodeSide {
    fn roles(&self) -> MutexGuard<'_, BTreeMap<InstanceId, WantedRole>> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> MutexGuard<'_, Weak<ClusterHandle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The role of an instance, and whether its keepalived works.
    pub(super) fn wanted(&self, group: usize) -> Option<(RoleKind, bool)> {
        let roles = self.roles();
        let wanted = roles.get(&format!("r{group}").parse::<InstanceId>().ok()?)?;
        Some((wanted.record.role, wanted.record.keepalived == Some(true)))
    }

    /// The main loop has found a role.
    pub(super) fn set(&self, group: usize, role: RoleKind, works: bool) {
        let wanted = wanted(group, role, works);
        let instance: InstanceId = wanted.record.instance.parse().unwrap();
        self.roles().insert(instance.clone(), wanted);
        if let Some(handle) = self.handle().upgrade() {
            handle.mark(&instance);
        }
    }

    /// An operator silences the node, or ends the silence.
    pub(super) fn silence(&self, is_on: bool) {
        let mut silenced = self.silenced.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.network.trace.now();
        *silenced = is_on.then(|| silenced.unwrap_or((number, Instant::now())));
        drop(silenced);
        if let Some(handle) = self.handle().upgrade() {
            handle.mark_silences();
        }
    }

    /// The roles that the node wants in etcd, by the names of the groups.
    pub(super) fn wanted_roles(&self) -> BTreeMap<String, RoleKind> {
        let roles = self.roles();
        roles.iter().map(|(id, wanted)| (id.to_string(), wanted.record.role)).collect()
    }

    /// Delivers the opening or the end of a finding to the target.
    fn deliver(&self, record: &FindingRecord) {
        let is_closed = record.closed.is_some();
        let has = |list: &[String]| list.iter().any(|target| target == TARGET);
        let is_wanted = if is_closed {
            has(&record.notified_open) && !has(&record.notified_closed)
        } else {
            !has(&record.notified_open)
        };
        if !is_wanted {
            return;
        }
        let handle = self.handle().clone();
        let id = record.id.parse().unwrap();
        tokio::spawn(async move {
            sleep(Duration::from_millis(100)).await;
            if let Some(handle) = handle.upgrade() {
                handle.notified(DeliveredFinding { id, target: TARGET.to_owned(), is_closed });
            }
        });
    }
}

impl RecordSource for NodeSide {
    fn instances(&self) -> Vec<InstanceId> {
        self.roles().keys().cloned().collect()
    }

    fn role(&self, instance: &InstanceId) -> Option<WantedRole> {
        self.roles().get(instance).cloned()
    }

    fn facts(&self) -> HeartbeatFacts {
        HeartbeatFacts { seq: 1, instances: self.roles().len() as u64 }
    }

    fn notifies(&self) -> bool {
        true
    }

    fn silences(&self) -> Vec<WantedSilence> {
        let silenced = self.silenced.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((number, since)) = *silenced else { return Vec::new() };
        let left = SILENCE.saturating_sub(since.elapsed());
        let id: SilenceId = format!("{}.{number}", self.name).parse().unwrap();
        let at = Timestamp::UNIX_EPOCH;
        let record = SilenceRecord {
            schema: FORMAT,
            id: id.to_string(),
            node: Some(self.name.to_owned()),
            group: None,
            reason: "maintenance".to_owned(),
            created_by: "root".to_owned(),
            at,
            // A new leader extends the lease.
            until: at + 3 * SILENCE,
        };
        (!left.is_zero()).then_some(WantedSilence { id, left, record }).into_iter().collect()
    }
}

impl ClusterObserver for NodeSide {
    fn event(&self, event: ClusterEvent) {
        let (trace, name) = (&self.network.trace, self.name);
        match event {
            ClusterEvent::ViewChanged => {}
            ClusterEvent::ConfirmationWanted(request) => {
                if self.is_stuck.load(Ordering::Relaxed) {
                    return;
                }
                let (min, max) = (Duration::from_millis(1), Duration::from_millis(20));
                let wait = self.network.state().random.between(min, max);
                let handle = self.handle().clone();
                tokio::spawn(async move {
                    sleep(wait).await;
                    if let Some(handle) = handle.upgrade() {
                        handle.confirm(request.id);
                    }
                });
            }
            ClusterEvent::FindingOpen(record) => {
                trace.add(format_args!("{name}: {} is open: {}", record.id, record.text));
                if record.silenced.is_some() || record.part_of.is_some() {
                    let text = format!("{}: {} is delivered, and held", trace.now(), record.id);
                    self.network.state().content.failures.push(text);
                }
                self.deliver(&record);
            }
            ClusterEvent::FindingClosed(record) => {
                trace.add(format_args!("{name}: {} is closed", record.id));
                self.deliver(&record);
            }
            event => trace.add(format_args!("{name}: {event:?}")),
        }
    }
}

fn wanted(group: usize, role: RoleKind, works: bool) -> WantedRole {
    let instance = format!("r{group}");
    let bucket = Bucket::Router(instance.parse().unwrap());
    let record = RoleRecord {
        schema: FORMAT,
        node: String::new(),
        instance,
        name: "VR_1".to_owned(),
        epoch: String::new(),
        seq: 1,
        role,
        reason: None,
        since: None,
        cause: None,
        origin: "neutron".to_owned(),
        netns: None,
        interface: "ha-1".to_owned(),
        vrid: Some(1),
        priority: Some(50),
        advert_ms: Some(1000),
        vrrp_version: Some(2),
        addresses: vec!["169.254.0.1/24".parse().unwrap()],
        adverts: ReceivedAdverts::Unknown,
        keepalived: Some(works),
        source: None,
        sync_group: None,
        findings: Vec::new(),
        recent: Vec::new(),
    };
    WantedRole { bucket, record }
}

/// Lets a session run, or not.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    waker: Option<Waker>,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = is_closed;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// A session behind a gate.
struct Gated {
    session: Pin<Box<dyn Future<Output = ()> + Send>>,
    gate: Arc<Gate>,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.gate.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        self.session.as_mut().poll(context)
    }
}
