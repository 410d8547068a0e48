// SPDX-License-Identifier: Apache-2.0
//! The comparison of the cluster view with Neutron: a thread that asks Neutron about each router, on the reporter only.
//!
//! ```text
//!   main loop ── is the reporter ──▶ thread "neutron" ── GET …/l3-agents ──▶ Neutron
//!   session of the cluster ◀── answer ── thread "neutron" ◀── ha_state ──── Neutron
//! ```
//!
//! The thread sends one request at a time, and at most [`MAX_REQUESTS_PER_SECOND`]: Neutron has no request for all routers. It
//! blocks nothing: the session compares the answers with the view, and without answers nothing is compared.

mod client;
mod error;
mod http;
mod keystone;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use vipwatch_api::{ClusterNeutron, NeutronRouterSummary};
use vipwatch_cluster::key::Bucket;
use vipwatch_cluster::neutron::{NeutronAnswer, NeutronComparison, compare};
use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use self::client::NeutronClient;
use self::error::NeutronError;
pub(crate) use self::error::NeutronErrorKind;
use super::SharedService;
use crate::config::NeutronApiConfig;
use crate::event::time;

/// The maximum number of requests within a second.
const MAX_REQUESTS_PER_SECOND: u32 = 20;

/// So many errors one after the other end a comparison of all routers: Neutron is not reachable.
const MAX_FAILURES: u32 = 3;

/// The comparison with Neutron. A clone is another handle on the same comparison.
#[derive(Debug, Clone)]
pub(crate) struct NeutronComparer(Arc<ComparerShared>);

#[derive(Debug)]
struct ComparerShared {
    config: NeutronApiConfig,
    progress: Mutex<ComparerProgress>,
    /// Wakes the thread.
    wake: Condvar,
    requests: AtomicU64,
    errors: [AtomicU64; NeutronErrorKind::ALL.len()],
}

#[derive(Debug, Default)]
struct ComparerProgress {
    is_asking: bool,
    is_ended: bool,
    compared: Option<SystemTime>,
    failure: Option<ComparerFailure>,
    routers: NeutronRouterSummary,
}

#[derive(Debug, Clone)]
struct ComparerFailure {
    since: SystemTime,
    error: String,
}

/// The counters since the start of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NeutronCounters {
    /// Routers that Neutron was asked about.
    pub(crate) requests: u64,
    /// Requests without a usable answer, in the order of [`NeutronErrorKind::ALL`].
    pub(crate) errors: [u64; NeutronErrorKind::ALL.len()],
}

impl NeutronComparer {
    /// A comparison that is idle.
    pub(super) fn new(config: NeutronApiConfig) -> Self {
        Self(Arc::new(ComparerShared {
            config,
            progress: Mutex::default(),
            wake: Condvar::new(),
            requests: AtomicU64::new(0),
            errors: Default::default(),
        }))
    }

    /// Starts the thread. It ends by itself after [`Self::stop`]; a request that waits for Neutron delays nothing.
    pub(super) fn start(&self, service: Weak<SharedService>) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        spawn_worker("neutron", move |heartbeat| shared.run(&service, heartbeat)).map(drop)
    }

    /// This node has become the reporter, or is no longer the reporter.
    pub(super) fn set_asking(&self, is_asking: bool) {
        let mut progress = self.0.progress();
        if progress.is_asking != is_asking {
            *progress =
                ComparerProgress { is_asking, is_ended: progress.is_ended, ..Default::default() };
        }
        self.0.wake.notify_all();
    }

    pub(super) fn stop(&self) {
        self.0.progress().is_ended = true;
        self.0.wake.notify_all();
    }

    /// For the document about the cluster.
    pub(super) fn status(&self) -> ClusterNeutron {
        let progress = self.0.progress();
        let failure = progress.failure.as_ref();
        ClusterNeutron {
            url: self.0.config.url.clone(),
            is_asking: progress.is_asking,
            compared: progress.compared.map(time),
            failing_since: failure.map(|failure| time(failure.since)),
            error: failure.map(|failure| failure.error.clone()),
            routers: progress.routers,
        }
    }

    pub(super) fn counters(&self) -> NeutronCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let errors = std::array::from_fn(|index| value(&self.0.errors[index]));
        NeutronCounters { requests: value(&self.0.requests), errors }
    }
}

impl ComparerShared {
    fn run(&self, service: &Weak<SharedService>, heartbeat: &Heartbeat) {
        let mut client = NeutronClient::new(self.config.clone());
        let mut next = Instant::now();
        while self.wait_for_turn(next, heartbeat) {
            next = Instant::now() + self.config.interval;
            self.compare_all(service, &mut client, heartbeat);
        }
    }

    /// Asks Neutron about each router of the view, until Neutron fails or this node is no longer the reporter.
    fn compare_all(
        &self,
        service: &Weak<SharedService>,
        client: &mut NeutronClient,
        heartbeat: &Heartbeat,
    ) {
        let routers = service.upgrade().map(|service| service.routers()).unwrap_or_default();
        let mut summary = NeutronRouterSummary::default();
        let mut failures = 0;
        let mut is_answered = routers.is_empty();
        for router in routers {
            let requested = Instant::now();
            self.requests.fetch_add(1, Ordering::Relaxed);
            match client.hosts_of(&router) {
                Ok(answer) => {
                    failures = 0;
                    is_answered = true;
                    self.answered();
                    let Some(service) = service.upgrade() else { return };
                    count(&mut summary, service.neutron_answered(router, requested, answer));
                }
                Err(error) => {
                    self.failed(&error);
                    summary.not_compared += 1;
                    failures += 1;
                }
            }
            let next = requested + Duration::from_secs(1) / MAX_REQUESTS_PER_SECOND;
            if failures == MAX_FAILURES || !self.pause(next, heartbeat) {
                return;
            }
        }
        let mut progress = self.progress();
        if progress.is_asking && is_answered {
            progress.compared = Some(SystemTime::now());
            progress.routers = summary;
        }
    }

    fn answered(&self) {
        if self.progress().failure.take().is_some() {
            tracing::info!(url = self.config.url, "Neutron answers again");
        }
    }

    /// Counts and shows an error. An error that stays the same is logged once.
    fn failed(&self, error: &NeutronError) {
        let position = NeutronErrorKind::ALL.iter().position(|kind| *kind == error.kind());
        if let Some(counter) = position.and_then(|position| self.errors.get(position)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let text = ErrorChain(error).to_string();
        let mut progress = self.progress();
        let before = progress.failure.take();
        let is_new = before.as_ref().is_none_or(|before| before.error != text);
        let since = before.map_or_else(SystemTime::now, |before| before.since);
        progress.failure = Some(ComparerFailure { since, error: text.clone() });
        drop(progress);
        if is_new {
            tracing::warn!(error = text, hint = error.hint(), "cannot ask Neutron");
        }
    }

    fn progress(&self) -> MutexGuard<'_, ComparerProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this time, and until this node is the reporter. Returns `false` at the end.
    fn wait_for_turn(&self, until: Instant, heartbeat: &Heartbeat) -> bool {
        loop {
            self.wait_while(heartbeat, |progress| (!progress.is_asking).then(beat_every));
            if self.progress().is_ended || self.pause(until, heartbeat) {
                return !self.progress().is_ended;
            }
        }
    }

    /// Waits until this time. Returns `false` at the end, and if this node is not the reporter.
    fn pause(&self, until: Instant, heartbeat: &Heartbeat) -> bool {
        self.wait_while(heartbeat, |progress| {
            let left = until.saturating_duration_since(Instant::now());
            Some(left).filter(|left| progress.is_asking && !left.is_zero())
        });
        let progress = self.progress();
        progress.is_asking && !progress.is_ended
    }

    /// Waits until `left` returns no time, or until the end.
    fn wait_while(
        &self,
        heartbeat: &Heartbeat,
        left: impl Fn(&ComparerProgress) -> Option<Duration>,
    ) {
        let mut progress = self.progress();
        heartbeat.beat();
        while let Some(limit) = left(&progress).filter(|_| !progress.is_ended) {
            let waited = self.wake.wait_timeout(progress, limit.min(beat_every()));
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
            heartbeat.beat();
        }
    }
}

impl SharedService {
    /// The ids of the routers in the view.
    fn routers(&self) -> Vec<InstanceId> {
        let routers = self.with_session(|session| {
            let buckets = session.view();
            let routers = buckets.buckets().filter_map(|bucket| match bucket {
                Bucket::Router(id) => Some(id),
                Bucket::Configured(_) | Bucket::Vrrp { .. } | Bucket::Alone { .. } => None,
            });
            routers.collect()
        });
        routers.unwrap_or_default()
    }

    /// Passes an answer to the session, and returns what it means at this moment.
    fn neutron_answered(
        &self,
        router: InstanceId,
        requested: Instant,
        answer: NeutronAnswer,
    ) -> NeutronComparison {
        let result = self.with_session(|session| {
            let groups = session.view().groups_of(&Bucket::Router(router.clone()));
            let result = groups.first().map(|group| compare(group, &answer));
            session.neutron_answered(router, requested, answer);
            result
        });
        result.flatten().unwrap_or(NeutronComparison::NotCompared)
    }
}

fn count(summary: &mut NeutronRouterSummary, result: NeutronComparison) {
    let number = match result {
        NeutronComparison::Equal => &mut summary.equal,
        NeutronComparison::Different => &mut summary.different,
        NeutronComparison::Unmatched => &mut summary.unmatched,
        NeutronComparison::NotCompared => &mut summary.not_compared,
    };
    *number += 1;
}
