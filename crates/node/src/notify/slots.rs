// SPDX-License-Identifier: Apache-2.0
//! Limits the number of attempts of all targets at the same time.
//!
//! The first worker of each target needs no slot, so that targets that hang never keep another one from its work.

use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of workers of all targets, besides the first one of each.
const MAX_EXTRA_WORKERS: usize = 48;

/// A function that lets a target try again to start a worker.
pub(super) type WakeTarget = Arc<dyn Fn() + Send + Sync>;

/// The slots of all targets.
pub(super) struct Slots(Mutex<SlotState>);

struct SlotState {
    free: usize,
    /// Targets that found no free slot.
    /// BOUND: one entry for each target, by its number.
    waiting: Vec<(usize, WakeTarget)>,
}

impl Slots {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(SlotState { free: MAX_EXTRA_WORKERS, waiting: Vec::new() })))
    }

    /// Takes a slot; false if none is free. Then `wake` is called once when one is.
    pub(super) fn take(&self, target: usize, wake: impl FnOnce() -> WakeTarget) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.free > 0 {
            state.free -= 1;
            return true;
        }
        if state.waiting.iter().all(|(number, _)| *number != target) {
            state.waiting.push((target, wake()));
        }
        false
    }

    /// Returns a slot. The caller must not hold the lock of a target.
    pub(super) fn give_back(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.free += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for (_, wake) in waiting {
            wake();
        }
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slots")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_target_that_found_no_slot_is_woken_once_when_one_is_free() {
        let slots = Slots::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let wake = || -> WakeTarget {
            let calls = Arc::clone(&calls);
            Arc::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        assert!((0..MAX_EXTRA_WORKERS).all(|_| slots.take(1, wake)));
        assert!(!slots.take(2, wake) && !slots.take(2, wake));
        slots.give_back();
        slots.give_back();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(slots.take(2, wake));
    }
}
