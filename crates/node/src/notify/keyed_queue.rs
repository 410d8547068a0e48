//! A queue of jobs with keys: the jobs of one key run in order, and at most `limit` jobs run at a time.
//!
//! ```text
//!   put(a, 1) ──▶ a: 1 2 3 ─┐
//!   put(b, 1) ──▶ b: 1      ├─▶ ready: a, b ──▶ at most `limit` workers, one for each key
//!   put(c, 1) ──▶ c: 1      ┘                      │ retry later
//!                 ▲                                ▼
//!                 └───────────────────────────── delayed
//! ```
//!
//! Adding a job never blocks. Each key holds at most [`MAX_QUEUED_PER_KEY`] jobs, or only the newest one with
//! [`DeliveryMode::Latest`]. Worker threads are started when there is work, and end after
//! [`WORKER_IDLE_TIMEOUT`] without work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::config::DeliveryMode;

/// Maximum number of waiting jobs of one key. When it is reached, the oldest one is dropped.
pub(crate) const MAX_QUEUED_PER_KEY: usize = 256;

/// How long a worker thread waits for work before it ends.
const WORKER_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the queue does with a job after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The job has ended, successfully or not.
    Done,
    /// The same job is run again after this time.
    RetryAfter(Duration),
}

/// One job, and whether newer jobs of its key replace it.
#[derive(Debug)]
struct QueuedEntry<J> {
    job: J,
    deliver: DeliveryMode,
}

#[derive(Debug)]
struct State<K, J> {
    /// The waiting jobs of each key, oldest first.
    entries: BTreeMap<K, VecDeque<QueuedEntry<J>>>,
    /// Keys with a job that a worker may take now.
    ready: VecDeque<K>,
    /// Keys with a job that runs now.
    busy: BTreeSet<K>,
    /// Keys with a failed job, and when it is run again.
    delayed: BTreeMap<K, Instant>,
    /// Number of worker threads.
    workers: usize,
    /// Number of worker threads that wait for work.
    idle: usize,
    /// No job is added any more: a worker that finds no work ends.
    is_closed: bool,
    /// The queue was dropped: the waiting jobs are discarded.
    is_dropped: bool,
}

type Work<J> = dyn Fn(&mut J) -> Next + Send + Sync;

struct Shared<K, J> {
    state: Mutex<State<K, J>>,
    /// Notified after each change of `state`.
    changed: Condvar,
    work: Box<Work<J>>,
    limit: usize,
    name: String,
}

/// The queue and its worker threads.
pub(crate) struct KeyedQueue<K, J> {
    shared: Arc<Shared<K, J>>,
}

impl<K: Ord + Clone + Send + 'static, J: Send + 'static> KeyedQueue<K, J> {
    /// A queue with at most `limit` worker threads called `name`; `work` runs one job.
    pub(crate) fn new(
        name: &str,
        limit: usize,
        work: impl Fn(&mut J) -> Next + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            entries: BTreeMap::new(),
            ready: VecDeque::new(),
            busy: BTreeSet::new(),
            delayed: BTreeMap::new(),
            workers: 0,
            idle: 0,
            is_closed: false,
            is_dropped: false,
        };
        let (state, work) = (Mutex::new(state), Box::new(work));
        let name = name.to_owned();
        Self { shared: Arc::new(Shared { state, changed: Condvar::new(), work, limit, name }) }
    }

    /// Adds a job; returns the number of older jobs of the same key that it replaces.
    pub(crate) fn put(&self, key: K, job: J, deliver: DeliveryMode) -> usize {
        let mut state = self.shared.lock();
        let queued = state.entries.entry(key.clone()).or_default();
        let before = queued.len();
        if deliver == DeliveryMode::Latest {
            queued.clear();
        }
        while queued.len() >= MAX_QUEUED_PER_KEY {
            queued.pop_front();
        }
        let replaced = before - queued.len();
        let is_waiting = before > 0;
        queued.push_back(QueuedEntry { job, deliver });
        if !is_waiting && !state.busy.contains(&key) && !state.delayed.contains_key(&key) {
            state.ready.push_back(key);
        }
        // An idle worker may have been notified for an earlier job without having woken up yet.
        if state.ready.len() > state.idle && state.workers < self.shared.limit {
            state.workers += 1;
            drop(state);
            self.spawn_worker();
        } else {
            drop(state);
            self.shared.changed.notify_one();
        }
        replaced
    }

    fn spawn_worker(&self) {
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new()
            .name(self.shared.name.clone())
            .stack_size(256 << 10)
            .spawn(move || shared.run_worker());
        if spawned.is_err() {
            // The other workers go on, and the next job tries again to start a thread.
            self.shared.lock().workers -= 1;
        }
    }

    /// Runs all jobs that wait for another attempt now.
    pub(crate) fn retry_now(&self) {
        let now = Instant::now();
        self.shared.lock().delayed.values_mut().for_each(|at| *at = now);
        self.shared.changed.notify_all();
    }

    /// The number of jobs that wait or run.
    pub(crate) fn pending(&self) -> usize {
        self.shared.lock().pending()
    }

    /// Closes the queue and waits until all jobs have ended, at most `limit`; returns the number of jobs that are
    /// left.
    pub(crate) fn close(&self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        let mut state = self.shared.lock();
        state.is_closed = true;
        self.shared.changed.notify_all();
        while state.pending() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.shared.wait(state, left);
        }
        state.pending()
    }
}

impl<K: Ord, J> State<K, J> {
    fn pending(&self) -> usize {
        self.entries.values().map(VecDeque::len).sum::<usize>() + self.busy.len()
    }
}

impl<K: Ord + Clone, J> Shared<K, J> {
    fn lock(&self) -> MutexGuard<'_, State<K, J>> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State<K, J>>,
        limit: Duration,
    ) -> MutexGuard<'a, State<K, J>> {
        let waited = self.changed.wait_timeout(state, limit);
        waited.expect("no thread panics while it holds the lock").0
    }

    /// The worker thread: runs jobs until the queue is closed, or idle for too long.
    fn run_worker(&self) {
        let mut state = self.lock();
        let mut since = Instant::now();
        loop {
            let now = Instant::now();
            let due: Vec<K> = state
                .delayed
                .iter()
                .filter(|(_, at)| **at <= now)
                .map(|(key, _)| key.clone())
                .collect();
            for key in due {
                state.delayed.remove(&key);
                state.ready.push_back(key);
            }
            if let Some(key) = state.ready.pop_front() {
                state = self.run_oldest_job(state, key);
                since = Instant::now();
                continue;
            }
            let is_over = state.is_closed || now.duration_since(since) >= WORKER_IDLE_TIMEOUT;
            if is_over && state.delayed.is_empty() {
                state.workers -= 1;
                return;
            }
            let next = state.delayed.values().min().copied().unwrap_or(since + WORKER_IDLE_TIMEOUT);
            let pause = next.saturating_duration_since(now).max(Duration::from_millis(1));
            state.idle += 1;
            state = self.wait(state, pause);
            state.idle -= 1;
        }
    }

    /// Runs the oldest job of `key`. The lock is released while the job runs.
    fn run_oldest_job<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<K, J>>,
        key: K,
    ) -> MutexGuard<'a, State<K, J>> {
        let Some(mut entry) = state.entries.get_mut(&key).and_then(VecDeque::pop_front) else {
            return state;
        };
        state.busy.insert(key.clone());
        drop(state);
        let next = (self.work)(&mut entry.job);
        let mut state = self.lock();
        state.busy.remove(&key);
        if state.is_dropped {
            return state;
        }
        let queued = state.entries.entry(key.clone()).or_default();
        if let Next::RetryAfter(wait) = next {
            let is_replaced = entry.deliver == DeliveryMode::Latest && !queued.is_empty();
            if !is_replaced {
                queued.push_front(entry);
            }
            state.delayed.insert(key, Instant::now() + wait);
        } else if queued.is_empty() {
            state.entries.remove(&key);
        } else {
            state.ready.push_back(key);
        }
        // A call of `close` may wait for the last job.
        self.changed.notify_all();
        state
    }
}

impl<K, J> Drop for KeyedQueue<K, J> {
    /// Discards the waiting jobs and ends the workers.
    fn drop(&mut self) {
        if let Ok(mut state) = self.shared.state.lock() {
            state.is_closed = true;
            state.is_dropped = true;
            state.entries.clear();
            state.ready.clear();
            state.delayed.clear();
        }
        self.shared.changed.notify_all();
    }
}

impl<K, J> std::fmt::Debug for KeyedQueue<K, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyedQueue").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn jobs_of_one_key_run_in_order_and_keys_do_not_wait_for_each_other() {
        let (sender, receiver) = sync_channel(100);
        let (go, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let queue = KeyedQueue::new("test", 4, move |job: &mut (char, u32)| {
            if *job == ('a', 0) {
                gate.lock().unwrap().recv().unwrap();
            }
            sender.send(*job).unwrap();
            Next::Done
        });
        for number in 0..3 {
            assert_eq!(queue.put('a', ('a', number), DeliveryMode::Every), 0);
        }
        queue.put('b', ('b', 0), DeliveryMode::Every);
        assert_eq!(
            receiver.recv_timeout(TIMEOUT),
            Ok(('b', 0)),
            "'a' waits at the gate, 'b' does not"
        );
        go.send(()).unwrap();
        let rest: Vec<_> = (0..3).map(|_| receiver.recv_timeout(TIMEOUT).unwrap()).collect();
        assert_eq!(rest, [('a', 0), ('a', 1), ('a', 2)]);
        assert_eq!(queue.close(TIMEOUT), 0);
    }

    #[test]
    fn in_mode_latest_a_newer_job_replaces_the_waiting_one() {
        let (sender, receiver) = sync_channel(100);
        let (go, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let queue = KeyedQueue::new("test", 1, move |job: &mut u32| {
            gate.lock().unwrap().recv().unwrap();
            sender.send(*job).unwrap();
            Next::Done
        });
        queue.put('x', 0, DeliveryMode::Latest);
        go.send(()).unwrap();
        assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(0));
        // The job sends its number before it has ended.
        while queue.pending() > 0 {
            std::thread::yield_now();
        }
        // The worker runs job 1, which waits at the gate. Of the jobs of 'y' behind it, only the newest stays.
        queue.put('x', 1, DeliveryMode::Every);
        queue.put('y', 2, DeliveryMode::Latest);
        queue.put('y', 3, DeliveryMode::Latest);
        assert_eq!(queue.put('y', 4, DeliveryMode::Latest), 1);
        for _ in 0..2 {
            go.send(()).unwrap();
        }
        let rest: Vec<u32> = (0..2).map(|_| receiver.recv_timeout(TIMEOUT).unwrap()).collect();
        assert_eq!(rest, [1, 4]);
    }

    #[test]
    fn a_failed_job_is_retried_before_newer_jobs_of_its_key() {
        let (sender, receiver) = sync_channel(100);
        let queue = KeyedQueue::new("test", 2, move |job: &mut (u32, u32)| {
            job.1 += 1;
            sender.send(*job).unwrap();
            if job.1 < 3 { Next::RetryAfter(Duration::from_millis(1)) } else { Next::Done }
        });
        queue.put('x', (1, 0), DeliveryMode::Every);
        queue.put('x', (2, 0), DeliveryMode::Every);
        let seen: Vec<_> = (0..6).map(|_| receiver.recv_timeout(TIMEOUT).unwrap()).collect();
        assert_eq!(seen, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]);
        assert_eq!(queue.close(TIMEOUT), 0);
    }

    #[test]
    fn a_key_holds_a_limited_number_of_jobs_and_closing_has_a_time_limit() {
        let (_go, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let queue = KeyedQueue::new("test", 1, move |_: &mut usize| {
            let _ = gate.lock().unwrap().recv_timeout(TIMEOUT);
            Next::Done
        });
        let replaced: usize =
            (0..MAX_QUEUED_PER_KEY * 2).map(|n| queue.put('x', n, DeliveryMode::Every)).sum();
        assert!(replaced >= MAX_QUEUED_PER_KEY - 1);
        assert!(queue.close(Duration::from_millis(1)) >= MAX_QUEUED_PER_KEY);
    }
}
