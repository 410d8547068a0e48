// SPDX-License-Identifier: Apache-2.0
//! The simulated etcd as a server: requests, watches, leases that expire, and what can happen to it.

mod watches;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use self::watches::WatchTable;
use super::content::Content;
use super::random::SeededRandom;
use super::store::{EtcdStore, key_of};
use super::trace::Trace;
use super::{NAMES, NODES, PREFIX};
use crate::etcd::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    RangeRequest, RequestOp, TxnRequest, WatchEvent, WatchEventType,
};

/// A request or an answer of any kind.
pub(super) type AnyMessage = Box<dyn Any + Send>;

/// The time between two messages that tell a watch how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_mins(1);

/// The network and the etcd in it.
#[derive(Debug)]
pub(super) struct Network {
    state: Mutex<NetworkState>,
    /// A connection was cut or healed, or etcd was started or stopped.
    pub(super) changed: Notify,
    /// A lease may expire earlier than before.
    leases_changed: Notify,
    pub(super) trace: Trace,
}

#[derive(Debug)]
pub(super) struct NetworkState {
    pub(super) store: EtcdStore,
    snapshot: Option<EtcdStore>,
    pub(super) service: EtcdService,
    /// The number of restarts: connections of an earlier one are closed.
    pub(super) epoch: u64,
    pub(super) links: [LinkState; NODES],
    pub(super) watches: WatchTable,
    pub(super) random: SeededRandom,
    pub(super) content: Content,
    trace: Trace,
}

/// Whether etcd answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EtcdService {
    Running,
    /// No process.
    Down,
    /// The member answers with an error.
    NoLeader,
}

/// The network between a node and etcd.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkState {
    /// Since when nothing arrives; `None` if the link works.
    pub(super) cut_since: Option<Instant>,
    /// The maximum delay of a message.
    pub(super) delay: Duration,
    /// The maximum additional delay of a watch.
    pub(super) lateness: Duration,
    /// The share of watch messages that arrive twice, in percent.
    pub(super) repeated: usize,
    /// The share of watch messages in two parts whose second part is lost with the connection, in percent.
    pub(super) broken: usize,
    /// The share of watch messages that never arrive, in percent.
    pub(super) lost: usize,
    /// The link is cut when the node writes a key with this prefix.
    pub(super) cuts_at: Option<&'static str>,
}

impl LinkState {
    pub(super) const GOOD: Self = Self {
        cut_since: None,
        delay: Duration::from_millis(3),
        lateness: Duration::ZERO,
        repeated: 0,
        broken: 0,
        lost: 0,
        cuts_at: None,
    };
}

impl Network {
    pub(super) fn new(seed: u64, trace: &Trace) -> Arc<Self> {
        let mut random = SeededRandom::new(seed, 1);
        let revision = 1 + random.number(100_000);
        let state = NetworkState {
            store: EtcdStore::new(1, revision),
            snapshot: None,
            service: EtcdService::Running,
            epoch: 0,
            links: [LinkState::GOOD; NODES],
            watches: WatchTable::default(),
            random,
            content: Content::default(),
            trace: trace.clone(),
        };
        let (changed, leases_changed) = (Notify::new(), Notify::new());
        Arc::new(Self { state: Mutex::new(state), changed, leases_changed, trace: trace.clone() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the network or etcd, and wakes all that wait for it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut NetworkState) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.notify_waiters();
        self.leases_changed.notify_one();
        result
    }

    /// Carries out a request.
    pub(super) fn handle(&self, request: &AnyMessage) -> Result<AnyMessage, Status> {
        let mut state = self.state();
        state.is_serving()?;
        if request.is::<LeaseGrantRequest>() {
            self.leases_changed.notify_one();
        }
        state.handle(request)
    }

    /// Ends leases when their time is over, and reports the progress of watches.
    pub(super) async fn run_clock(&self) {
        let mut next_progress = Instant::now() + PROGRESS_INTERVAL;
        loop {
            let expiry = self.state().next_expiry();
            let next = expiry.map_or(next_progress, |expiry| expiry.min(next_progress));
            tokio::select! {
                biased;
                () = self.leases_changed.notified() => {}
                () = sleep_until(next) => {}
            }
            self.state().expire(Instant::now());
            if Instant::now() >= next_progress {
                next_progress += PROGRESS_INTERVAL;
                self.state().report_progress();
            }
        }
    }
}

impl NetworkState {
    /// An error if etcd does not answer.
    pub(super) fn is_serving(&self) -> Result<(), Status> {
        match self.service {
            EtcdService::Running => Ok(()),
            EtcdService::Down => Err(connection_error("connection refused")),
            EtcdService::NoLeader => Err(Status::unavailable("etcdserver: no leader")),
        }
    }

    fn handle(&mut self, request: &AnyMessage) -> Result<AnyMessage, Status> {
        let now = Instant::now();
        if let Some(request) = request.downcast_ref::<RangeRequest>() {
            return Ok(Box::new(self.store.range(request)?));
        }
        if let Some(request) = request.downcast_ref::<TxnRequest>() {
            let (answer, events) = self.store.txn(request)?;
            self.committed(&events);
            return Ok(Box::new(answer));
        }
        if let Some(request) = request.downcast_ref::<LeaseGrantRequest>() {
            return Ok(Box::new(LeaseGrantResponse { id: self.store.grant(request.ttl, now) }));
        }
        if let Some(request) = request.downcast_ref::<LeaseRevokeRequest>() {
            let events = self.store.revoke(request.id)?;
            self.committed(&events);
            return Ok(Box::new(LeaseRevokeResponse {}));
        }
        if let Some(request) = request.downcast_ref::<LeaseKeepAliveRequest>() {
            let (ttl, header) = (self.store.keep_alive(request.id, now), self.store.header());
            return Ok(Box::new(LeaseKeepAliveResponse { header: Some(header), ttl }));
        }
        if let Some(request) = request.downcast_ref::<LeaseTimeToLiveRequest>() {
            let answer = self.store.lease(request.id, now);
            let answer = answer
                .map_or(LeaseTimeToLiveResponse { ttl: -1, keys: Vec::new() }, |(ttl, keys)| {
                    LeaseTimeToLiveResponse { ttl, keys }
                });
            return Ok(Box::new(answer));
        }
        Err(Status::unimplemented("the simulated etcd does not know this request"))
    }

    /// The store has these changes: watches get them, and the properties are checked.
    pub(super) fn committed(&mut self, events: &[WatchEvent]) {
        if events.is_empty() {
            return;
        }
        let at = self.trace.now();
        for event in events {
            if let Some(line) = self.content.apply(event, at) {
                let revision = self.store.revision();
                self.trace.add(format_args!("etcd {revision}: {line}"));
            }
        }
        self.content.evaluate(at);
        self.deliver(events);
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.store.next_expiry().filter(|_| self.service == EtcdService::Running)
    }

    fn expire(&mut self, now: Instant) {
        if self.service != EtcdService::Running {
            return;
        }
        for id in self.store.expired(now) {
            self.trace.add(format_args!("etcd: lease {id} expired"));
            let events = self.store.revoke(id).unwrap_or_default();
            self.committed(&events);
        }
    }

    /// Ends all connections. etcd serves again when [`Self::start`] is called.
    pub(super) fn stop(&mut self, service: EtcdService) {
        self.service = service;
        self.epoch += 1;
        self.watches.clear();
    }

    pub(super) fn start(&mut self) {
        if self.service != EtcdService::Running {
            self.service = EtcdService::Running;
            self.store.extend_leases(Instant::now());
        }
    }

    pub(super) fn compact(&mut self, revision: i64) {
        self.store.compact(revision);
    }

    pub(super) fn snapshot(&mut self) {
        self.snapshot = Some(self.store.clone());
    }

    /// The data of the snapshot, or no data, replaces the present data. All connections end.
    pub(super) fn replace_data(&mut self, is_empty: bool, cluster: u64) {
        let last_lease = self.store.last_lease();
        self.store = match self.snapshot.clone() {
            Some(snapshot) if !is_empty => snapshot,
            _ => EtcdStore::new(cluster, 1),
        };
        self.store.set_cluster(cluster);
        self.store.set_last_lease(last_lease);
        self.stop(EtcdService::Running);
        self.store.extend_leases(Instant::now());
        let at = self.trace.now();
        self.content.replace(&self.store, at);
    }

    /// An operator deletes the record of a membership.
    pub(super) fn delete_membership_of(&mut self, node: usize) {
        let delete = vec![RequestOp::delete(&format!("{PREFIX}member/{}", NAMES[node]))];
        let request = TxnRequest { success: delete, ..TxnRequest::default() };
        if let Ok((_, events)) = self.store.txn(&request) {
            self.committed(&events);
        }
    }

    /// An operator ends the lease of a running node.
    pub(super) fn end_lease_of(&mut self, node: usize) {
        let key = format!("{PREFIX}node/{}", NAMES[node]);
        let Some(lease) = self.store.get(key.as_bytes()).map(|value| value.lease) else { return };
        let events = self.store.revoke(lease).unwrap_or_default();
        self.committed(&events);
    }
}

/// An error of the connection, and not of etcd.
pub(super) fn connection_error(text: &'static str) -> Status {
    Status::from_error(Box::new(std::io::Error::new(std::io::ErrorKind::ConnectionReset, text)))
}

/// Whether the event is a deletion.
pub(super) fn is_deletion(event: &WatchEvent) -> bool {
    event.r#type() == WatchEventType::Delete
}

/// The key of an event below the prefix of the domain; `None` for a foreign one.
pub(super) fn short_key(event: &WatchEvent) -> Option<&str> {
    std::str::from_utf8(key_of(event)).ok()?.strip_prefix(PREFIX)
}
