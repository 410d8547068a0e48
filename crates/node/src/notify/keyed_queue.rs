//! Work that may be slow, in order for each instance, and a bounded number at a time.
//!
//! ```text
//!   put(a, 1) ──▶ a: 1 2 3 ─┐
//!   put(b, 1) ──▶ b: 1      ├─▶ ready: a, b ──▶ at most `limit` workers, one for each lane
//!   put(c, 1) ──▶ c: 1      ┘                      │ again, later
//!                 ▲                                ▼
//!                 └───────────────────────────── delayed
//! ```
//!
//! Whoever puts never waits. A lane holds at most [`LONGEST`] letters; where only the last one
//! matters, one. Workers come when there is work, and leave when there has been none for a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::config::DeliveryMode;

/// More changes of one instance than that, which nobody takes, are no news any more.
pub(crate) const LONGEST: usize = 256;

/// How long a worker without work stays.
const IDLE: Duration = Duration::from_secs(10);

/// What is to become of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is dealt with.
    Done,
    /// It is to be tried again after so long.
    Again(Duration),
}

/// One letter, with whether newer ones replace it.
#[derive(Debug)]
struct QueuedEntry<J> {
    job: J,
    deliver: DeliveryMode,
}

#[derive(Debug)]
struct State<K, J> {
    lanes: BTreeMap<K, VecDeque<QueuedEntry<J>>>,
    ready: VecDeque<K>,
    busy: BTreeSet<K>,
    delayed: BTreeMap<K, Instant>,
    workers: usize,
    idle: usize,
    /// No more letters come: workers who find nothing to do go.
    is_closed: bool,
    /// And those that are left do not matter.
    is_dropped: bool,
}

type Work<J> = dyn Fn(&mut J) -> Next + Send + Sync;

struct Shared<K, J> {
    state: Mutex<State<K, J>>,
    bell: Condvar,
    work: Box<Work<J>>,
    limit: usize,
    name: String,
}

/// Lanes, and their workers.
pub(crate) struct KeyedQueue<K, J> {
    shared: Arc<Shared<K, J>>,
}

impl<K: Ord + Clone + Send + 'static, J: Send + 'static> KeyedQueue<K, J> {
    /// Lanes whose letters `work` deals with, `limit` at a time.
    pub(crate) fn new(
        name: &str,
        limit: usize,
        work: impl Fn(&mut J) -> Next + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            lanes: BTreeMap::new(),
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
        Self { shared: Arc::new(Shared { state, bell: Condvar::new(), work, limit, name }) }
    }

    /// Adds a letter to the lane of `key`; the number of those that were left out for it.
    pub(crate) fn put(&self, key: K, job: J, deliver: DeliveryMode) -> usize {
        let mut state = self.shared.lock();
        let lane = state.lanes.entry(key.clone()).or_default();
        let before = lane.len();
        if deliver == DeliveryMode::Latest {
            lane.clear();
        }
        while lane.len() >= LONGEST {
            lane.pop_front();
        }
        let left_out = before - lane.len();
        let is_waiting = before > 0;
        lane.push_back(QueuedEntry { job, deliver });
        if !is_waiting && !state.busy.contains(&key) && !state.delayed.contains_key(&key) {
            state.ready.push_back(key);
        }
        // Those who are idle may have been called already, and not have come yet.
        if state.ready.len() > state.idle && state.workers < self.shared.limit {
            state.workers += 1;
            drop(state);
            self.spawn_worker();
        } else {
            drop(state);
            self.shared.bell.notify_one();
        }
        left_out
    }

    fn spawn_worker(&self) {
        let shared = Arc::clone(&self.shared);
        let hired = std::thread::Builder::new()
            .name(self.shared.name.clone())
            .stack_size(256 << 10)
            .spawn(move || shared.serve());
        if hired.is_err() {
            // No thread can be had: whoever works already goes on, and the next letter tries
            // again.
            self.shared.lock().workers -= 1;
        }
    }

    /// Tries everything that waits for another attempt at once.
    pub(crate) fn retry_now(&self) {
        let now = Instant::now();
        self.shared.lock().delayed.values_mut().for_each(|at| *at = now);
        self.shared.bell.notify_all();
    }

    /// How many letters wait or are being dealt with.
    pub(crate) fn pending(&self) -> usize {
        self.shared.lock().pending()
    }

    /// Takes no more, and waits until everything is dealt with, but not longer than `limit`;
    /// tells how many letters are left.
    pub(crate) fn close(&self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        let mut state = self.shared.lock();
        state.is_closed = true;
        self.shared.bell.notify_all();
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
        self.lanes.values().map(VecDeque::len).sum::<usize>() + self.busy.len()
    }
}

impl<K: Ord + Clone, J> Shared<K, J> {
    fn lock(&self) -> MutexGuard<'_, State<K, J>> {
        self.state.lock().expect("nobody panics while he holds it")
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State<K, J>>,
        limit: Duration,
    ) -> MutexGuard<'a, State<K, J>> {
        let waited = self.bell.wait_timeout(state, limit);
        waited.expect("nobody panics while he holds it").0
    }

    /// A worker's life.
    fn serve(&self) {
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
                state = self.deal(state, key);
                since = Instant::now();
                continue;
            }
            let is_over = state.is_closed || now.duration_since(since) >= IDLE;
            if is_over && state.delayed.is_empty() {
                state.workers -= 1;
                return;
            }
            let next = state.delayed.values().min().copied().unwrap_or(since + IDLE);
            let pause = next.saturating_duration_since(now).max(Duration::from_millis(1));
            state.idle += 1;
            state = self.wait(state, pause);
            state.idle -= 1;
        }
    }

    /// Deals with the first letter of a lane.
    fn deal<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<K, J>>,
        key: K,
    ) -> MutexGuard<'a, State<K, J>> {
        let Some(mut letter) = state.lanes.get_mut(&key).and_then(VecDeque::pop_front) else {
            return state;
        };
        state.busy.insert(key.clone());
        drop(state);
        let next = (self.work)(&mut letter.job);
        let mut state = self.lock();
        state.busy.remove(&key);
        if state.is_dropped {
            return state;
        }
        let lane = state.lanes.entry(key.clone()).or_default();
        if let Next::Again(wait) = next {
            let is_overtaken = letter.deliver == DeliveryMode::Latest && !lane.is_empty();
            if !is_overtaken {
                lane.push_front(letter);
            }
            state.delayed.insert(key, Instant::now() + wait);
        } else if lane.is_empty() {
            state.lanes.remove(&key);
        } else {
            state.ready.push_back(key);
        }
        // Somebody may wait for the end.
        self.bell.notify_all();
        state
    }
}

impl<K, J> Drop for KeyedQueue<K, J> {
    /// Nobody will ask what became of the rest: it is dropped, and the workers go.
    fn drop(&mut self) {
        if let Ok(mut state) = self.shared.state.lock() {
            (state.is_closed, state.is_dropped) = (true, true);
            state.lanes.clear();
            state.ready.clear();
            state.delayed.clear();
        }
        self.shared.bell.notify_all();
    }
}

impl<K, J> std::fmt::Debug for KeyedQueue<K, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lanes").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn letters_of_one_lane_are_dealt_with_in_order_and_lanes_do_not_wait_for_each_other() {
        let (sender, receiver) = sync_channel(100);
        let (go, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let lanes = KeyedQueue::new("test", 4, move |job: &mut (char, u32)| {
            if *job == ('a', 0) {
                gate.lock().unwrap().recv().unwrap();
            }
            sender.send(*job).unwrap();
            Next::Done
        });
        for number in 0..3 {
            assert_eq!(lanes.put('a', ('a', number), DeliveryMode::Every), 0);
        }
        lanes.put('b', ('b', 0), DeliveryMode::Every);
        assert_eq!(receiver.recv_timeout(LONG), Ok(('b', 0)), "a is held up, b is not");
        go.send(()).unwrap();
        let rest: Vec<_> = (0..3).map(|_| receiver.recv_timeout(LONG).unwrap()).collect();
        assert_eq!(rest, [('a', 0), ('a', 1), ('a', 2)]);
        assert_eq!(lanes.close(LONG), 0);
    }

    #[test]
    fn where_the_last_one_matters_the_others_are_left_out() {
        let (sender, receiver) = sync_channel(100);
        let (go, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let lanes = KeyedQueue::new("test", 1, move |job: &mut u32| {
            gate.lock().unwrap().recv().unwrap();
            sender.send(*job).unwrap();
            Next::Done
        });
        lanes.put('x', 0, DeliveryMode::Latest);
        go.send(()).unwrap();
        assert_eq!(receiver.recv_timeout(LONG), Ok(0));
        // He has told of it before he is done with it.
        while lanes.pending() > 0 {
            std::thread::yield_now();
        }
        // The worker holds the next one at the gate; of those behind it one is left.
        lanes.put('x', 1, DeliveryMode::Every);
        lanes.put('y', 2, DeliveryMode::Latest);
        lanes.put('y', 3, DeliveryMode::Latest);
        assert_eq!(lanes.put('y', 4, DeliveryMode::Latest), 1);
        for _ in 0..2 {
            go.send(()).unwrap();
        }
        let rest: Vec<u32> = (0..2).map(|_| receiver.recv_timeout(LONG).unwrap()).collect();
        assert_eq!(rest, [1, 4]);
    }

    #[test]
    fn what_failed_comes_again_before_what_came_after_it() {
        let (sender, receiver) = sync_channel(100);
        let lanes = KeyedQueue::new("test", 2, move |job: &mut (u32, u32)| {
            job.1 += 1;
            sender.send(*job).unwrap();
            if job.1 < 3 { Next::Again(Duration::from_millis(1)) } else { Next::Done }
        });
        lanes.put('x', (1, 0), DeliveryMode::Every);
        lanes.put('x', (2, 0), DeliveryMode::Every);
        let seen: Vec<_> = (0..6).map(|_| receiver.recv_timeout(LONG).unwrap()).collect();
        assert_eq!(seen, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]);
        assert_eq!(lanes.close(LONG), 0);
    }

    #[test]
    fn a_lane_is_never_longer_than_its_limit_and_closing_does_not_wait_for_ever() {
        let (_go, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let lanes = KeyedQueue::new("test", 1, move |_: &mut usize| {
            let _ = gate.lock().unwrap().recv_timeout(LONG);
            Next::Done
        });
        let left_out: usize =
            (0..LONGEST * 2).map(|n| lanes.put('x', n, DeliveryMode::Every)).sum();
        assert!(left_out >= LONGEST - 1);
        assert!(lanes.close(Duration::from_millis(1)) >= LONGEST);
    }
}
