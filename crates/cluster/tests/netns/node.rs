// SPDX-License-Identifier: Apache-2.0
//! A node for tests: its instances are set by the test, and it confirms its roles at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use vipwatch_api::{ClusterNodeState, RoleKind, Timestamp};
use vipwatch_cluster::etcd::EtcdSettings;
use vipwatch_cluster::key::{Bucket, ClusterName, SilenceId};
use vipwatch_cluster::record::{FORMAT, ReceivedAdverts, RoleRecord, SilenceRecord};
use vipwatch_cluster::session::{
    ClusterEvent, ClusterHandle, ClusterObserver, ConfirmationRequest, HeartbeatFacts,
    RecordSource, SessionSettings, WantedRole, WantedSilence,
};
use vipwatch_cluster::view::ClusterView;
use vipwatch_core::InstanceId;
use vipwatch_testkit::wait_showing;

/// A running session with its node.
pub(crate) struct TestNode {
    pub(crate) name: ClusterName,
    pub(crate) handle: Arc<ClusterHandle>,
    pub(crate) side: Arc<NodeSide>,
}

/// The instances and events of a node.
#[derive(Default)]
pub(crate) struct NodeSide {
    roles: Mutex<BTreeMap<InstanceId, WantedRole>>,
    events: Mutex<Vec<ClusterEvent>>,
    handle: OnceLock<Weak<ClusterHandle>>,
    /// The main loop does not answer.
    pub(crate) is_stuck: AtomicBool,
    /// The node has no target for findings.
    pub(crate) has_no_target: AtomicBool,
    pub(crate) silences: Mutex<Vec<WantedSilence>>,
}

impl RecordSource for NodeSide {
    fn instances(&self) -> Vec<InstanceId> {
        self.roles.lock().unwrap().keys().cloned().collect()
    }

    fn role(&self, instance: &InstanceId) -> Option<WantedRole> {
        self.roles.lock().unwrap().get(instance).cloned()
    }

    fn facts(&self) -> HeartbeatFacts {
        let instances = u64::try_from(self.roles.lock().unwrap().len()).unwrap();
        HeartbeatFacts { seq: 1, instances }
    }

    fn notifies(&self) -> bool {
        !self.has_no_target.load(Ordering::SeqCst)
    }

    fn silences(&self) -> Vec<WantedSilence> {
        self.silences.lock().unwrap().clone()
    }
}

impl ClusterObserver for NodeSide {
    fn event(&self, event: ClusterEvent) {
        if let ClusterEvent::ConfirmationWanted(request) = &event
            && !self.is_stuck.load(Ordering::SeqCst)
            && let Some(handle) = self.handle.get().and_then(Weak::upgrade)
        {
            handle.confirm(request.id);
        }
        self.events.lock().unwrap().push(event);
    }
}

impl NodeSide {
    pub(crate) fn events(&self) -> Vec<ClusterEvent> {
        self.events.lock().unwrap().clone()
    }

    /// The confirmations that were wanted because of a conflict.
    pub(crate) fn urgent(&self) -> Vec<ConfirmationRequest> {
        let urgent = |event: ClusterEvent| match event {
            ClusterEvent::ConfirmationWanted(request) if !request.instances.is_empty() => {
                Some(request)
            }
            _ => None,
        };
        self.events().into_iter().filter_map(urgent).collect()
    }
}

/// Settings of a node with short times.
pub(crate) fn session(etcd: &EtcdSettings, name: &str) -> SessionSettings {
    let etcd = EtcdSettings { timeout: Duration::from_secs(3), ..etcd.clone() };
    let (domain, node) = ("test".parse().unwrap(), name.parse().unwrap());
    let mut settings = SessionSettings::new(etcd, domain, node, format!("epoch-of-{name}"));
    settings.heartbeat = Duration::from_millis(500);
    settings.lease = Duration::from_secs(10);
    "1.2.3".clone_into(&mut settings.version);
    settings.evaluator.settle = Duration::from_millis(100);
    settings.evaluator.lease = settings.lease;
    settings
}

/// The same with a lease that does not end during a test, however slow the machine is.
pub(crate) fn lasting_session(etcd: &EtcdSettings, name: &str) -> SessionSettings {
    let lease = Duration::from_mins(10);
    SessionSettings { lease, ..session(etcd, name) }
}

impl TestNode {
    /// Starts a session with these instances of the Neutron routers `r1`, `r2`, ….
    pub(crate) fn start(settings: SessionSettings, roles: &[(&str, RoleKind)]) -> Self {
        let side = Arc::new(NodeSide::default());
        for (router, role) in roles {
            side.roles.lock().unwrap().insert(router.parse().unwrap(), wanted(router, *role));
        }
        Self::start_with(settings, side)
    }

    pub(crate) fn start_with(settings: SessionSettings, side: Arc<NodeSide>) -> Self {
        let name = settings.node.clone();
        let handle = ClusterHandle::start(settings, side.clone(), side.clone()).unwrap();
        let handle = Arc::new(handle);
        side.handle.set(Arc::downgrade(&handle)).ok().unwrap();
        // The session may have asked before the handle was known.
        handle.mark_all();
        Self { name, handle, side }
    }

    /// Changes the role of an instance.
    pub(crate) fn set(&self, router: &str, role: RoleKind) {
        let instance: InstanceId = router.parse().unwrap();
        self.side.roles.lock().unwrap().insert(instance.clone(), wanted(router, role));
        self.handle.mark(&instance);
    }

    /// Changes the record of an instance.
    pub(crate) fn set_wanted(&self, router: &str, wanted: Option<WantedRole>) {
        let instance: InstanceId = router.parse().unwrap();
        let mut roles = self.side.roles.lock().unwrap();
        match wanted {
            Some(wanted) => drop(roles.insert(instance.clone(), wanted)),
            None => drop(roles.remove(&instance)),
        }
        drop(roles);
        self.handle.mark(&instance);
    }

    /// Waits until the view of this node fulfils a condition.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_true: impl Fn(&ClusterView) -> bool) {
        let show = || format!("{}: {:#?}\n{:#?}", self.name, self.handle.basis(), self.summary());
        wait_showing(what, show, || is_true(&self.handle.view()).then_some(()));
    }

    /// Waits until this node is registered.
    #[track_caller]
    pub(crate) fn wait_registered(&self) {
        let show = || format!("{:#?}\n{:#?}", self.handle.basis(), self.handle.counters());
        wait_showing("the registration", show, || self.handle.is_registered().then_some(()));
    }

    /// Waits for a connection; returns its endpoint.
    #[track_caller]
    pub(crate) fn wait_endpoint(&self) -> String {
        wait_showing("a connection", String::new, || self.handle.basis().endpoint)
    }

    /// Waits until this node sees a role of an instance on a live node.
    #[track_caller]
    pub(crate) fn wait_role(&self, router: &str, node: &str, role: RoleKind) {
        self.wait(&format!("{router} on {node} to be {role:?}"), |view| {
            role_of(view, router, node) == Some(role) && is_live(view, node)
        });
    }

    /// An operator silences a node for an hour.
    pub(crate) fn silence(&self, node: &str) {
        self.side.silences.lock().unwrap().push(silence(node, Duration::from_hours(1)));
        self.handle.mark_silences();
    }

    fn summary(&self) -> Vec<String> {
        let view = self.handle.view();
        let groups = view.groups().flat_map(|group| {
            let members = group.members.into_iter();
            members.map(move |member| {
                format!("{} {} {:?} {:?}", group.id, member.node, member.state, member.record.role)
            })
        });
        groups.collect()
    }

    /// Ends the session in an orderly way.
    pub(crate) fn stop(self) {
        self.handle.stop();
    }

    /// Ends the session without a word to etcd.
    pub(crate) fn crash(self) {
        drop(self);
    }
}

pub(crate) fn role_of(view: &ClusterView, router: &str, node: &str) -> Option<RoleKind> {
    let bucket = Bucket::Router(router.parse().unwrap());
    view.roles(&bucket).find(|role| role.node.as_str() == node).map(|role| role.record.role)
}

pub(crate) fn state_of(view: &ClusterView, node: &str) -> Option<ClusterNodeState> {
    view.node(&node.parse().unwrap()).map(|node| node.state)
}

pub(crate) fn is_live(view: &ClusterView, node: &str) -> bool {
    state_of(view, node) == Some(ClusterNodeState::Live)
}

/// The record of the instance of a Neutron router.
pub(crate) fn wanted(router: &str, role: RoleKind) -> WantedRole {
    let bucket = Bucket::Router(router.parse().unwrap());
    let record = RoleRecord {
        schema: FORMAT,
        node: String::new(),
        instance: router.to_owned(),
        name: "VR_1".to_owned(),
        epoch: String::new(),
        seq: 1,
        role,
        reason: None,
        since: None,
        cause: None,
        origin: "neutron".to_owned(),
        netns: Some(format!("qrouter-{router}")),
        interface: "ha-1".to_owned(),
        vrid: Some(1),
        priority: Some(50),
        advert_ms: Some(100),
        vrrp_version: Some(2),
        addresses: vec!["169.254.0.1/24".parse().unwrap()],
        adverts: ReceivedAdverts::Unknown,
        keepalived: Some(true),
        source: None,
        sync_group: None,
        findings: Vec::new(),
        recent: Vec::new(),
    };
    WantedRole { bucket, record }
}

/// A silence of a node with a lease of this time.
pub(crate) fn silence(node: &str, left: Duration) -> WantedSilence {
    let id: SilenceId = format!("{node}.1").parse().unwrap();
    let at = Timestamp::now();
    let record = SilenceRecord {
        schema: FORMAT,
        id: id.to_string(),
        node: Some(node.to_owned()),
        group: None,
        reason: "reboot".to_owned(),
        created_by: "root".to_owned(),
        at,
        until: at + Duration::from_hours(1),
    };
    WantedSilence { id, left, record }
}
