//! Posts the states of many routers in one request. The first change is posted immediately, then at most one batch in
//! each interval, with the last state of each changed router. A batch that fails is posted again. If the server rejects
//! the content of a batch (400, 413, 422), the batch is divided until the rejected routers are found; those are given
//! up.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use vipwatch_core::debounce::ReportedState;
use vipwatch_core::{Backoff, Batch, ErrorChain, InstanceId, Jitter};
use vipwatch_linux::clock;

use super::delivery_log::DeliveryLog;
use crate::config::Upstream;
use crate::notify::post::{Client, PostError};
use crate::notify::webhook::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::transition::{millis, time_text};

/// A router, its state, and the sequence number of the report.
type BatchEntry = (InstanceId, (ReportedState, i64));

#[derive(Debug, Default)]
struct State {
    batch: Batch<InstanceId, (ReportedState, i64)>,
    /// Shutting down: the waiting states are posted once, without waiting for the interval.
    is_closed: bool,
    /// The target was removed: waiting states are discarded.
    is_dropped: bool,
    /// The thread has ended.
    has_ended: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified after each change of `state`.
    changed: Condvar,
}

/// The batch of one upstream target, and the thread that posts it.
#[derive(Debug)]
pub(super) struct UpstreamHandle {
    shared: Arc<Shared>,
}

impl UpstreamHandle {
    pub(super) fn start(
        upstream: Arc<Upstream>,
        node: Arc<str>,
        target: Arc<str>,
        log: Arc<DeliveryLog>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let client = Client::default();
        // The certificates are read now. A failure is reported at the first delivery.
        let _ = client.prepare(&upstream.target);
        let worker =
            UpstreamWorker { shared: Arc::clone(&shared), upstream, client, node, target, log };
        std::thread::Builder::new().name("upstream".to_owned()).spawn(move || worker.run())?;
        Ok(Self { shared })
    }

    pub(super) fn put(&self, instance: InstanceId, state: ReportedState, seq: i64) {
        self.shared.lock().batch.put(instance, (state, seq));
        self.shared.changed.notify_all();
    }

    /// Takes no more states, and posts the waiting ones once.
    pub(super) fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }

    /// Waits until the thread has ended, at most `limit`; returns the number of routers that are left.
    pub(super) fn wait(&self, limit: Duration) -> usize {
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, limit, |state| !state.has_ended);
        waited.map_or(0, |(state, _)| state.batch.pending())
    }
}

impl Drop for UpstreamHandle {
    fn drop(&mut self) {
        self.shared.lock().is_dropped = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

struct UpstreamWorker {
    shared: Arc<Shared>,
    upstream: Arc<Upstream>,
    client: Client,
    node: Arc<str>,
    target: Arc<str>,
    log: Arc<DeliveryLog>,
}

impl UpstreamWorker {
    fn run(self) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut jitter = Jitter::new(u64::from(std::process::id()));
        let mut state = self.shared.lock();
        while !state.is_dropped {
            let (now, is_last) = (clock::now(), state.is_closed);
            let due = state.batch.due();
            let taken = match due {
                Some(due) if is_last => state.batch.take(due.max(now)),
                _ => state.batch.take(now),
            };
            let Some(taken) = taken else {
                if is_last {
                    break;
                }
                let limit = due.map_or(Duration::from_hours(1), |due| due.since(now));
                let waited = self.shared.changed.wait_timeout(state, limit);
                state = waited.expect("no thread panics while it holds the lock").0;
                continue;
            };
            drop(state);
            let is_concluded = self.deliver(&taken, is_last);
            state = self.shared.lock();
            if is_concluded {
                backoff.reset();
                state.batch.delivered(clock::now(), self.upstream.interval);
            } else {
                state.batch.failed(clock::now(), backoff.next_wait(&mut jitter));
            }
            if is_last {
                break;
            }
        }
        state.has_ended = true;
        self.shared.changed.notify_all();
    }

    /// Posts `entries`, divided into smaller parts while the server rejects their content. Returns false if some must
    /// be posted again. While the process shuts down, a batch is not divided: the next process posts it again.
    fn deliver(&self, entries: &[BatchEntry], is_last: bool) -> bool {
        let mut parts = vec![entries];
        while let Some(part) = parts.pop() {
            let outcome = self.client.send(&self.upstream.target, &self.body(part).to_string());
            let is_rejected = outcome.as_ref().is_err_and(PostError::is_about_content);
            if is_rejected && !is_last && part.len() > 1 && !self.shared.lock().is_dropped {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
                continue;
            }
            let outcome = outcome.map_err(|error| ErrorChain(&error).to_string());
            let is_concluded = outcome.is_ok() || (is_rejected && part.len() == 1);
            self.record(part, outcome.as_ref().err(), is_concluded);
            if !is_concluded {
                return false;
            }
        }
        true
    }

    /// Records the outcome of `part`; concluded entries are not posted again.
    fn record(&self, part: &[BatchEntry], failure: Option<&String>, is_concluded: bool) {
        for (instance, (_, seq)) in part {
            match failure {
                None => self.log.delivered(&self.target, instance, *seq),
                Some(why) => {
                    self.log.failed(&self.target, instance, *seq, why, is_concluded);
                }
            }
            if is_concluded {
                self.shared.lock().batch.concluded(instance);
            }
        }
    }

    /// The request body, `vipwatch.states/1`.
    fn body(&self, taken: &[BatchEntry]) -> Value {
        let states: Map<String, Value> = taken
            .iter()
            .map(|(instance, (state, _))| {
                (instance.to_string(), state.neutron_server_name().into())
            })
            .collect();
        let at = millis(SystemTime::now());
        let seq = taken.iter().map(|(_, (_, seq))| *seq).max();
        json!({
            "schema": "vipwatch.states/1", "node": &*self.node, "at": at, "time": time_text(at),
            "seq": seq, "states": states,
        })
    }
}
