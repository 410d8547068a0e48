// SPDX-License-Identifier: Apache-2.0
//! A node without a kernel: it has the session of a real node, and the bench sets its roles.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use vipwatch_api::{ClusterNodeState, RoleKind};
use vipwatch_cluster::etcd::EtcdSettings;
use vipwatch_cluster::key::Bucket;
use vipwatch_cluster::record::{FORMAT, ReceivedAdverts, RoleRecord};
use vipwatch_cluster::session::{
    ClusterCounters, ClusterEvent, ClusterHandle, ClusterObserver, HeartbeatFacts, RecordSource,
    SessionSettings, WantedRole, WantedSilence,
};
use vipwatch_cluster::view::{ClusterView, RoleView};
use vipwatch_core::InstanceId;
use vipwatch_testkit::{Etcd, pause};

use crate::measure::ms;

/// Maximum time until all changes of a measurement have arrived.
const ARRIVAL_TIMEOUT: Duration = Duration::from_mins(2);

/// The domain of all nodes.
pub const DOMAIN: &str = "bench";

/// How many missing changes of a node a waiting bench looks for at once.
const MAX_MISSING: usize = 100;

/// A running session with the roles of its node.
pub struct BenchNode {
    name: String,
    roles: Arc<SimulatedRoles>,
    handle: Arc<ClusterHandle>,
}

struct SimulatedRoles {
    kind: InstanceKind,
    /// The sequence number of each instance; an odd one is a primary.
    seqs: Mutex<BTreeMap<InstanceId, i64>>,
    /// Whether the view has changed since [`Self::wait_for_change`] returned last.
    has_changed: Mutex<bool>,
    change: Condvar,
    handle: OnceLock<Weak<ClusterHandle>>,
    notifies: bool,
}

/// What the instances of a node are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceKind {
    /// Routers of Neutron. Each of them has a bucket of its own.
    Router,
    /// Instances of keepalived that differ by their first address, and are in the bucket of one VRID.
    OneVrid,
}

impl InstanceKind {
    /// The id of the instance with this number.
    pub fn id(self, number: usize) -> InstanceId {
        match self {
            Self::Router => router(number),
            Self::OneVrid => format!("VI_{number}").parse().expect("a valid id"),
        }
    }

    /// Where the record of an instance is.
    fn bucket(self, instance: &InstanceId) -> Bucket {
        match self {
            Self::Router => Bucket::Router(instance.clone()),
            Self::OneVrid => Bucket::Vrrp { is_ipv6: false, vrid: Some(1) },
        }
    }
}

/// A node of the bench.
pub struct BenchNodeSettings<'a> {
    pub etcd: &'a Etcd,
    pub name: &'a str,
    pub kind: InstanceKind,
    /// Whether the node would report the findings of the cluster before nodes without a target.
    pub notifies: bool,
    /// The time between two comparisons with etcd.
    pub compare: Option<Duration>,
}

/// The number of a router as its id. It has the length of a real one.
pub fn router(number: usize) -> InstanceId {
    let text = format!("00000000-0000-4000-8000-{number:012}");
    text.parse().expect("a valid id")
}

impl RecordSource for SimulatedRoles {
    fn instances(&self) -> Vec<InstanceId> {
        self.lock_seqs().keys().cloned().collect()
    }

    fn role(&self, instance: &InstanceId) -> Option<WantedRole> {
        let seq = *self.lock_seqs().get(instance)?;
        let bucket = self.kind.bucket(instance);
        Some(WantedRole { bucket, record: record(self.kind, instance, seq) })
    }

    fn facts(&self) -> HeartbeatFacts {
        let count = u64::try_from(self.lock_seqs().len());
        HeartbeatFacts { seq: 1, instances: count.unwrap_or(u64::MAX) }
    }

    fn notifies(&self) -> bool {
        self.notifies
    }

    fn silences(&self) -> Vec<WantedSilence> {
        Vec::new()
    }
}

impl ClusterObserver for SimulatedRoles {
    fn event(&self, event: ClusterEvent) {
        match event {
            ClusterEvent::ConfirmationWanted(request) => {
                if let Some(handle) = self.handle.get().and_then(Weak::upgrade) {
                    handle.confirm(request.id);
                }
            }
            ClusterEvent::ViewChanged => {
                *self.has_changed.lock().unwrap_or_else(PoisonError::into_inner) = true;
                self.change.notify_one();
            }
            _ => {}
        }
    }
}

impl SimulatedRoles {
    fn lock_seqs(&self) -> MutexGuard<'_, BTreeMap<InstanceId, i64>> {
        self.seqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the view, at most for `limit`.
    fn wait_for_change(&self, limit: Duration) {
        let has_changed = self.has_changed.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.change.wait_timeout_while(has_changed, limit, |changed| !*changed);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// The record that a view must have after a change.
enum WantedRecord {
    /// This sequence number, or a later one.
    Seq(i64),
    /// The role of a primary.
    Primary,
}

impl WantedRecord {
    fn is_met(&self, record: &RoleRecord) -> bool {
        match self {
            Self::Seq(seq) => record.seq >= *seq,
            Self::Primary => record.role == RoleKind::Primary,
        }
    }
}

/// Changes of roles on one node.
pub struct Changes {
    node: String,
    wanted: Vec<(Bucket, WantedRecord)>,
}

impl Changes {
    /// The instances of a node that are about to become primary.
    pub fn to_primary<'a>(node: &str, ids: impl IntoIterator<Item = &'a str>) -> Self {
        let bucket = |id: &str| Bucket::Router(id.parse().expect("a valid id"));
        let wanted = ids.into_iter().map(|id| (bucket(id), WantedRecord::Primary)).collect();
        Self { node: node.to_owned(), wanted }
    }

    /// Removes the changes that a view has, and counts them. The view cannot change meanwhile, so that the work is limited:
    /// a change behind [`MAX_MISSING`] others that are missing is counted later.
    fn take_arrived(&mut self, view: &ClusterView) -> usize {
        let (mut arrived, mut missing) = (0, 0);
        let node = &self.node;
        self.wanted.retain(|(bucket, wanted)| {
            if missing == MAX_MISSING {
                return true;
            }
            let mut roles = view.roles(bucket);
            let is_there =
                roles.any(|role| role.node.as_str() == node && wanted.is_met(&role.record));
            let counter = if is_there { &mut arrived } else { &mut missing };
            *counter += 1;
            !is_there
        });
        arrived
    }

    /// The first and the second half of the changes.
    pub fn halves(mut self) -> (Self, Self) {
        let second = self.wanted.split_off(self.wanted.len() / 2);
        let node = self.node.clone();
        (self, Self { node, wanted: second })
    }
}

impl BenchNode {
    /// Starts a node with these routers. It is primary of those that meet the condition, and backup of the others. A group
    /// without a primary, or with two, would open a finding.
    pub fn start(
        etcd: &Etcd,
        name: &str,
        routers: impl IntoIterator<Item = InstanceId>,
        is_primary: impl Fn(&InstanceId) -> bool,
    ) -> Self {
        let (kind, notifies, compare) = (InstanceKind::Router, true, None);
        let settings = BenchNodeSettings { etcd, name, kind, notifies, compare };
        Self::start_with(&settings, routers, is_primary)
    }

    /// As [`Self::start`], with other settings.
    pub fn start_with(
        node: &BenchNodeSettings<'_>,
        instances: impl IntoIterator<Item = InstanceId>,
        is_primary: impl Fn(&InstanceId) -> bool,
    ) -> Self {
        let seqs =
            instances.into_iter().map(|id| (id.clone(), i64::from(is_primary(&id)))).collect();
        let roles = Arc::new(SimulatedRoles {
            kind: node.kind,
            seqs: Mutex::new(seqs),
            has_changed: Mutex::new(false),
            change: Condvar::new(),
            handle: OnceLock::new(),
            notifies: node.notifies,
        });
        let name = node.name;
        let mut settings = SessionSettings::new(
            EtcdSettings::new(node.etcd.endpoints()),
            DOMAIN.parse().expect("a valid name"),
            name.parse().expect("a valid name"),
            format!("epoch-of-{name}"),
        );
        settings.compare = node.compare.unwrap_or(settings.compare);
        let handle = ClusterHandle::start(settings, roles.clone(), roles.clone());
        let handle = Arc::new(handle.expect("start a session"));
        let _ = roles.handle.set(Arc::downgrade(&handle));
        Self { name: name.to_owned(), roles, handle }
    }

    /// Changes the roles of these routers; [`Self::publish`] tells the session.
    pub fn prepare(&self, routers: impl IntoIterator<Item = InstanceId>) -> Changes {
        let mut wanted = Vec::new();
        let mut seqs = self.roles.lock_seqs();
        for id in routers {
            if let Some(seq) = seqs.get_mut(&id) {
                *seq += 1;
                wanted.push((self.roles.kind.bucket(&id), WantedRecord::Seq(*seq)));
            }
        }
        Changes { node: self.name.clone(), wanted }
    }

    /// Tells the session that the roles of these routers have changed.
    pub fn publish(&self, routers: impl IntoIterator<Item = InstanceId>) {
        for id in routers {
            self.handle.mark(&id);
        }
    }

    /// Changes the roles of these routers, and tells the session.
    pub fn change(&self, routers: &[InstanceId]) {
        self.prepare(routers.iter().cloned());
        self.publish(routers.iter().cloned());
    }

    /// Waits until the view has this many roles.
    pub fn wait_for_roles(&self, count: usize, limit: Duration) {
        let began = Instant::now();
        while self.handle.view().role_count() < count {
            assert!(began.elapsed() < limit, "{}: {:?}", self.name, self.handle.basis());
            self.roles.wait_for_change(Duration::from_millis(100));
        }
    }

    /// Waits until this node's view has the changes of other nodes; the time of each since `began` in ms.
    pub fn arrivals(&self, began: Instant, changes: Vec<Changes>) -> Vec<f64> {
        let mut times = Vec::new();
        let mut missing = changes;
        loop {
            let view = self.handle.view();
            let now = ms(began.elapsed());
            for change in &mut missing {
                let arrived = change.take_arrived(&view);
                times.extend(std::iter::repeat_n(now, arrived));
            }
            drop(view);
            missing.retain(|change| !change.wanted.is_empty());
            if missing.is_empty() {
                return times;
            }
            let left = ARRIVAL_TIMEOUT.saturating_sub(began.elapsed());
            assert!(
                !left.is_zero(),
                "{}: changes of {} nodes are missing",
                self.name,
                missing.len()
            );
            self.roles.wait_for_change(left);
        }
    }

    /// Waits until the view has this number of roles of another node with this role.
    pub fn wait_for_role(&self, node: &str, role: RoleKind, count: usize) {
        let began = Instant::now();
        let bucket = InstanceKind::OneVrid.bucket(&InstanceKind::OneVrid.id(0));
        let is_wanted = |found: &RoleView| found.node.as_str() == node && found.record.role == role;
        while self.handle.view().roles(&bucket).filter(is_wanted).count() < count {
            assert!(began.elapsed() < ARRIVAL_TIMEOUT, "{}: {:?}", self.name, self.handle.basis());
            self.roles.wait_for_change(Duration::from_millis(100));
        }
    }

    /// Ends the session in an orderly way.
    pub fn stop(self) {
        self.handle.stop();
    }

    /// Waits until another node is lost.
    pub fn wait_until_lost(&self, node: &str) {
        let began = Instant::now();
        let name = node.parse().expect("a valid name");
        let state = || self.handle.view().node(&name).map(|node| node.state);
        while state() != Some(ClusterNodeState::Lost) {
            assert!(began.elapsed() < ARRIVAL_TIMEOUT, "{}: {:?}", self.name, self.handle.basis());
            self.roles.wait_for_change(Duration::from_millis(100));
        }
    }

    /// The longest wait for the lock of the view while `work` runs, in ms.
    pub fn longest_view_wait(&self, work: impl FnOnce()) -> f64 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    drop(self.handle.view());
                    longest = longest.max(began.elapsed());
                    pause(Duration::from_micros(500));
                }
                ms(longest)
            });
            work();
            is_over.store(true, Ordering::Relaxed);
            sampler.join().expect("the sampler")
        })
    }

    /// The counters of this node since its start.
    pub fn counters(&self) -> ClusterCounters {
        self.handle.counters()
    }
}

/// The record of an instance.
fn record(kind: InstanceKind, instance: &InstanceId, seq: i64) -> RoleRecord {
    let role = if seq % 2 == 0 { RoleKind::Backup } else { RoleKind::Primary };
    let record = router_record(instance, role, seq);
    let Some(number) =
        instance.as_str().strip_prefix("VI_").filter(|_| kind != InstanceKind::Router)
    else {
        return record;
    };
    let number: u32 = number.parse().expect("a number");
    let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number);
    RoleRecord {
        name: instance.to_string(),
        origin: "keepalived".to_owned(),
        netns: Some(format!("tenant-{number}")),
        interface: "eth0".to_owned(),
        addresses: vec![format!("{address}/24").parse().expect("a valid address")],
        ..record
    }
}

fn router_record(instance: &InstanceId, role: RoleKind, seq: i64) -> RoleRecord {
    RoleRecord {
        schema: FORMAT,
        node: String::new(),
        instance: instance.to_string(),
        name: "VR_1".to_owned(),
        epoch: String::new(),
        seq,
        role,
        reason: None,
        since: None,
        cause: Some("peer-silent".to_owned()),
        origin: "neutron".to_owned(),
        netns: Some(format!("qrouter-{instance}")),
        interface: "ha-0123456789".to_owned(),
        vrid: Some(1),
        priority: Some(50),
        advert_ms: Some(2000),
        vrrp_version: Some(2),
        addresses: vec!["169.254.0.1/24".parse().expect("a valid address")],
        adverts: ReceivedAdverts::Unknown,
        keepalived: Some(true),
        source: None,
        sync_group: None,
        findings: Vec::new(),
        recent: Vec::new(),
    }
}
