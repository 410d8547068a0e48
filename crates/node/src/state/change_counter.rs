// SPDX-License-Identifier: Apache-2.0
//! A number that grows with each change, and wakes the tasks that wait for the next one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Counts changes. The first number is 1, so that a client can wait for any number with 0.
#[derive(Debug)]
pub struct ChangeCounter {
    state: Mutex<CounterState>,
}

#[derive(Debug)]
struct CounterState {
    number: u64,
    /// BOUND: one for each connection that waits; the server limits the connections.
    wakers: Vec<Waker>,
}

impl Default for ChangeCounter {
    fn default() -> Self {
        Self { state: Mutex::new(CounterState { number: 1, wakers: Vec::new() }) }
    }
}

impl ChangeCounter {
    fn lock(&self) -> MutexGuard<'_, CounterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the last change.
    pub fn number(&self) -> u64 {
        self.lock().number
    }

    /// Counts a change. It never waits.
    pub fn add(&self) {
        let mut state = self.lock();
        state.number += 1;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until the number differs from `seen`, and returns it.
    pub fn poll_other(&self, seen: u64, context: &mut Context<'_>) -> Poll<u64> {
        let mut state = self.lock();
        if state.number != seen {
            return Poll::Ready(state.number);
        }
        let waker = context.waker();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_that_waits_for_another_number_is_woken_by_the_next_change() {
        let counter = ChangeCounter::default();
        let count = Arc::new(WakeCount::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        assert_eq!(counter.poll_other(0, &mut context), Poll::Ready(1));
        assert_eq!(counter.poll_other(1, &mut context), Poll::Pending);
        assert_eq!(counter.poll_other(1, &mut context), Poll::Pending);
        counter.add();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(counter.poll_other(1, &mut context), Poll::Ready(2));
        assert_eq!(counter.number(), 2);
    }
}
