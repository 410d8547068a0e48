//! Posts the states of many routers at once: the first at once, then at most once in an interval all that has
//! come since, and of each router the last state. A batch that fails is posted again. A batch whose content
//! the server rejects (400, 413, 422) is divided until the routers that it rejects are found; those are given
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

/// A router, the state that it has, and the number of the report.
type InstanceEntry = (InstanceId, (ReportedState, i64));

#[derive(Debug, Default)]
struct State {
    batch: Batch<InstanceId, (ReportedState, i64)>,
    /// No more come: what waits goes at once, and once.
    is_closed: bool,
    /// Nobody wants it to be told any more.
    is_dropped: bool,
    has_ended: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    bell: Condvar,
}

/// Who brings it to him, on a thread.
#[derive(Debug)]
pub(super) struct UpstreamHandle {
    shared: Arc<Shared>,
}

impl UpstreamHandle {
    pub(super) fn start(
        upstream: Arc<Upstream>,
        node: Arc<str>,
        party: Arc<str>,
        notes: Arc<DeliveryLog>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), bell: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let client = Client::default();
        // As a webhook's: a failure is reported when something is delivered.
        let _ = client.prepare(&upstream.target);
        let rounds = UpstreamWorker { shared: theirs, upstream, client, node, party, notes };
        std::thread::Builder::new().name("upstream".to_owned()).spawn(move || rounds.go())?;
        Ok(Self { shared })
    }

    pub(super) fn put(&self, instance: InstanceId, claim: ReportedState, seq: i64) {
        self.shared.lock().batch.put(instance, (claim, seq));
        self.shared.bell.notify_all();
    }

    /// Takes no more, and tries once to get rid of what waits.
    pub(super) fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.bell.notify_all();
    }

    /// Waits for the end, but not longer than `limit`; tells how many routers are left.
    pub(super) fn wait(&self, limit: Duration) -> usize {
        let state = self.shared.lock();
        let waited = self.shared.bell.wait_timeout_while(state, limit, |state| !state.has_ended);
        waited.map_or(0, |(state, _)| state.batch.pending())
    }
}

impl Drop for UpstreamHandle {
    fn drop(&mut self) {
        self.shared.lock().is_dropped = true;
        self.shared.bell.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while he holds it")
    }
}

struct UpstreamWorker {
    shared: Arc<Shared>,
    upstream: Arc<Upstream>,
    client: Client,
    node: Arc<str>,
    party: Arc<str>,
    notes: Arc<DeliveryLog>,
}

impl UpstreamWorker {
    fn go(self) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut dice = Jitter::new(u64::from(std::process::id()));
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
                let waited = self.shared.bell.wait_timeout(state, limit);
                state = waited.expect("nobody panics while he holds it").0;
                continue;
            };
            drop(state);
            let is_concluded = self.deliver(&taken, is_last);
            state = self.shared.lock();
            if is_concluded {
                backoff.reset();
                state.batch.delivered(clock::now(), self.upstream.interval);
            } else {
                state.batch.failed(clock::now(), backoff.next_wait(&mut dice));
            }
            if is_last {
                break;
            }
        }
        state.has_ended = true;
        self.shared.bell.notify_all();
    }

    /// Posts `entries`, and parts of them for as long as the server rejects their content. False if some
    /// must be posted again. A batch that is posted while the process ends is not divided: the next process
    /// posts it again.
    fn deliver(&self, entries: &[InstanceEntry], is_last: bool) -> bool {
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
            self.note(part, outcome.as_ref().err(), is_concluded);
            if !is_concluded {
                return false;
            }
        }
        true
    }

    /// Records the outcome of `part`; entries that are concluded are not posted again.
    fn note(&self, part: &[InstanceEntry], failure: Option<&String>, is_concluded: bool) {
        for (instance, (_, seq)) in part {
            match failure {
                None => self.notes.told(&self.party, instance, *seq),
                Some(why) => {
                    self.notes.failed(&self.party, instance, *seq, why, is_concluded);
                }
            }
            if is_concluded {
                self.shared.lock().batch.concluded(instance);
            }
        }
    }

    /// `vipwatch.states/1`.
    fn body(&self, taken: &[InstanceEntry]) -> Value {
        let states: Map<String, Value> = taken
            .iter()
            .map(|(instance, (claim, _))| (instance.to_string(), claim.server_name().into()))
            .collect();
        let at = millis(SystemTime::now());
        let seq = taken.iter().map(|(_, (_, seq))| *seq).max();
        json!({
            "schema": "vipwatch.states/1", "node": &*self.node, "at": at, "time": time_text(at),
            "seq": seq, "states": states,
        })
    }
}
