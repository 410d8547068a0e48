// SPDX-License-Identifier: Apache-2.0
//! The events of this node for its clients: one bounded ring for all, and a position for each client.
//!
//! ```text
//!   main loop ──publish──▶ ring: 41 42 43 44 45 … ──▶ client at 43
//!                          (oldest events leave)   ──▶ client at 45
//! ```
//!
//! Publishing costs the same for one client and for a thousand, and never waits: a slow client loses the events that
//! have left the ring, and learns their number. Nothing is stored while no client is connected.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use vipwatch_core::InstanceId;

/// Maximum number of events in the ring.
const MAX_EVENTS: usize = 8192;
/// Maximum size of the documents in the ring, in bytes.
const MAX_BYTES: usize = 4 << 20;

/// An event with its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedEvent {
    /// The sequence number.
    pub seq: i64,
    /// The name, for example `transition`.
    pub name: &'static str,
    /// The instance; `None` for an event about the node.
    pub instance: Option<InstanceId>,
    /// The JSON document.
    pub data: Box<str>,
}

/// The ring.
#[derive(Debug, Default)]
pub struct EventRing {
    state: Mutex<RingState>,
}

#[derive(Debug, Default)]
struct RingState {
    events: VecDeque<Arc<PublishedEvent>>,
    /// Number of subscriptions. Without any, no document is made.
    subscriptions: usize,
    /// The size of the documents in `events`.
    bytes: usize,
    /// The position of the first event in `events`. Positions count the events that were put into the ring.
    first: u64,
    /// The sequence number of the last event, also of those that were not put into the ring.
    last_seq: i64,
    /// The task that is woken by the next event.
    waker: Option<Waker>,
}

impl RingState {
    /// The position after the last event.
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn remove_oldest(&mut self) {
        if let Some(oldest) = self.events.pop_front() {
            self.bytes -= oldest.data.len();
            self.first += 1;
        }
    }
}

impl EventRing {
    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sequence number of the last event; 0 before the first one.
    pub fn last_seq(&self) -> i64 {
        self.lock().last_seq
    }

    /// Sets the sequence number from which this run continues.
    pub(crate) fn continue_after(&self, seq: i64) {
        self.lock().last_seq = seq;
    }

    /// Publishes an event. `data` makes the document, and is called only if there is a subscription.
    pub fn publish(
        &self,
        seq: i64,
        name: &'static str,
        instance: Option<&InstanceId>,
        data: impl FnOnce() -> String,
    ) {
        let mut state = self.lock();
        state.last_seq = seq;
        if state.subscriptions == 0 {
            return;
        }
        let data = data().into_boxed_str();
        state.bytes += data.len();
        let event = PublishedEvent { seq, name, instance: instance.cloned(), data };
        state.events.push_back(Arc::new(event));
        while state.events.len() > MAX_EVENTS || state.bytes > MAX_BYTES {
            state.remove_oldest();
        }
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }

    /// Subscribes to all events after [`EventSubscription::start_seq`].
    pub fn subscribe(self: &Arc<Self>) -> EventSubscription {
        let mut state = self.lock();
        state.subscriptions += 1;
        let (position, start_seq) = (state.end(), state.last_seq);
        drop(state);
        EventSubscription { ring: Arc::clone(self), position, start_seq }
    }

    /// Waits until the ring has events after the position `seen`; returns the position after its last event.
    ///
    /// LIMIT: one task at a time. The server has one that wakes its clients, so that the main loop wakes one task and
    /// not a thousand.
    pub fn poll_after(&self, seen: u64, context: &mut Context<'_>) -> Poll<u64> {
        let mut state = self.lock();
        if state.end() > seen {
            return Poll::Ready(state.end());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Events for a client, and the number of those that it has lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// Events that left the ring before the client read them; they precede `events`.
    pub dropped: u64,
    /// The events, in order.
    pub events: Vec<Arc<PublishedEvent>>,
}

/// The position of one client. Dropping it ends the subscription.
#[derive(Debug)]
pub struct EventSubscription {
    ring: Arc<EventRing>,
    position: u64,
    start_seq: i64,
}

impl EventSubscription {
    /// The sequence number of the last event before the subscription: earlier events are in the history only.
    pub fn start_seq(&self) -> i64 {
        self.start_seq
    }

    /// The position of the next event in the ring. Positions of the same ring can be compared.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Leaves out the events before `position`, which the client has from another source.
    pub fn skip_to(&mut self, position: u64) {
        self.position = self.position.max(position);
    }

    /// Takes the next events, at most `max`.
    pub fn take(&mut self, max: usize) -> EventBatch {
        let state = self.ring.lock();
        let start = self.position.max(state.first);
        let dropped = start - self.position;
        let skipped = usize::try_from(start - state.first).unwrap_or(usize::MAX);
        let events: Vec<_> = state.events.iter().skip(skipped).take(max).cloned().collect();
        drop(state);
        self.position = start + events.len() as u64;
        EventBatch { dropped, events }
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        let mut state = self.ring.lock();
        state.subscriptions -= 1;
        if state.subscriptions == 0 {
            // A later client does not need the events that are in the ring.
            state.first = state.end();
            state.events = VecDeque::new();
            state.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn publish(ring: &EventRing, seqs: impl IntoIterator<Item = i64>) {
        for seq in seqs {
            ring.publish(seq, "transition", None, || "{}".to_owned());
        }
    }

    fn seqs(batch: &EventBatch) -> Vec<i64> {
        batch.events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn a_subscription_begins_after_its_start_and_clients_have_positions_of_their_own() {
        let ring = Arc::new(EventRing::default());
        publish(&ring, 1..=3);
        let mut first = ring.subscribe();
        assert_eq!((first.start_seq(), ring.last_seq()), (3, 3));
        publish(&ring, 4..=5);
        let mut second = ring.subscribe();
        publish(&ring, [7]);
        assert_eq!((second.start_seq(), seqs(&second.take(10))), (5, vec![7]));
        assert_eq!((seqs(&first.take(2)), seqs(&first.take(2))), (vec![4, 5], vec![7]));
        assert_eq!(first.take(2), EventBatch::default());
    }

    #[test]
    fn a_slow_client_learns_how_many_events_it_has_lost() {
        let ring = Arc::new(EventRing::default());
        let (mut slow, mut fast) = (ring.subscribe(), ring.subscribe());
        let count = i64::try_from(MAX_EVENTS).unwrap();
        publish(&ring, 1..=count);
        assert_eq!(fast.take(MAX_EVENTS).events.len(), MAX_EVENTS);
        publish(&ring, count + 1..=count + 10);
        assert_eq!(fast.take(MAX_EVENTS).dropped, 0);
        let batch = slow.take(1);
        assert_eq!((batch.dropped, seqs(&batch)), (10, vec![11]));
    }

    #[test]
    fn documents_are_made_and_kept_only_for_subscribers() {
        let ring = Arc::new(EventRing::default());
        ring.publish(1, "transition", None, || unreachable!("no client is connected"));
        drop(ring.subscribe());
        publish(&ring, [2]);
        assert!(ring.lock().events.is_empty());
        let large = "x".repeat(MAX_BYTES / 4);
        let mut client = ring.subscribe();
        for seq in 3..13 {
            ring.publish(seq, "finding", None, || large.clone());
        }
        let batch = client.take(100);
        assert_eq!((batch.dropped, batch.events.len()), (6, 4), "the size is limited, too");
    }

    #[test]
    fn an_event_wakes_the_waiting_task() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let ring = Arc::new(EventRing::default());
        let _client = ring.subscribe();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        assert_eq!(ring.poll_after(0, &mut context), Poll::Pending);
        publish(&ring, 1..=3);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "woken once, until it waits again");
        assert_eq!(ring.poll_after(0, &mut context), Poll::Ready(3));
    }
}
