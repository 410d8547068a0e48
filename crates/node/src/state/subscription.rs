//! Subscribers get one line of JSON for each event. Each has a bounded queue; a slow subscriber misses lines,
//! and gets a `vipwatch.gap/1` line with their number when its queue has room again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::StateStore;

/// Lines that a subscriber's queue holds.
const MAX_QUEUED_LINES: usize = 4096;

/// All subscribers.
#[derive(Debug, Default)]
pub(super) struct Subscribers {
    all: Mutex<Vec<Subscriber>>,
    next_number: AtomicU64,
}

/// The sending end of one subscription.
#[derive(Debug)]
struct Subscriber {
    number: u64,
    sender: SyncSender<Arc<str>>,
    /// Lines that did not fit into the queue since the last gap line.
    missed: u64,
}

/// The receiving end. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    /// The lines of JSON, without a line end.
    pub lines: Receiver<Arc<str>>,
    number: u64,
    store: Arc<StateStore>,
}

impl Subscription {
    pub(super) fn new(store: Arc<StateStore>) -> Self {
        let (sender, lines) = sync_channel(MAX_QUEUED_LINES);
        let number = store.subscribers.next_number.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut all) = store.subscribers.all.lock() {
            all.push(Subscriber { number, sender, missed: 0 });
        }
        Self { lines, number, store }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Ok(mut all) = self.store.subscribers.all.lock() {
            all.retain(|subscriber| subscriber.number != self.number);
        }
    }
}

impl Subscribers {
    /// Sends a line to all subscribers, and adds the lines that were missed to `missed`.
    pub(super) fn send(&self, line: impl FnOnce() -> Arc<str>, missed: &AtomicU64) {
        let Ok(mut all) = self.all.lock() else { return };
        if all.is_empty() {
            return;
        }
        let line = line();
        all.retain_mut(|subscriber| subscriber.send(&line, missed));
    }
}

impl Subscriber {
    /// Sends a line without waiting; false if the receiving end is gone.
    fn send(&mut self, line: &Arc<str>, missed: &AtomicU64) -> bool {
        if self.missed > 0 {
            let gap = json!({ "schema": "vipwatch.gap/1", "missed": self.missed }).to_string();
            match self.sender.try_send(gap.into()) {
                Ok(()) => self.missed = 0,
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        let sent = match self.missed {
            0 => self.sender.try_send(Arc::clone(line)),
            _ => Err(TrySendError::Full(Arc::clone(line))),
        };
        match sent {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                missed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_subscriber_gets_the_number_of_missed_lines_and_delays_no_sender() {
        let store = Arc::new(StateStore::default());
        let (_, subscription) = store.subscribe();
        let lines = &subscription.lines;
        for number in 0..MAX_QUEUED_LINES + 10 {
            store.send(|| number.to_string().into());
        }
        assert_eq!(lines.recv().unwrap().as_ref(), "0");
        // The queue has room for one line again: the gap line takes it.
        store.send(|| "missed too".into());
        let rest: Vec<Arc<str>> = lines.try_iter().collect();
        assert_eq!(rest.len(), MAX_QUEUED_LINES);
        let gap = rest.last().unwrap();
        assert!(gap.contains("vipwatch.gap/1") && gap.contains("10"), "{gap}");
        assert_eq!(store.counters.feed_missed.load(Ordering::Relaxed), 11);
        drop(subscription);
        assert!(store.subscribers.all.lock().unwrap().is_empty());
    }
}
