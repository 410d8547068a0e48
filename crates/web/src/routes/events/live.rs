// SPDX-License-Identifier: Apache-2.0
//! Live events for all streams: wakes the streams, and formats each event once for all that have no selection.
//!
//! ```text
//!   main loop ──wakes──▶ follower ──wakes──▶ stream 1 ──▶ makes the text of events 41 to 45
//!                            ▲     └───────▶ stream 2 ──▶ sends the same text
//!                            └── pauses, so that further events are sent together
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;
use vipwatch_node::state::EventSubscription;

use super::super::SharedContext;

/// Maximum number of events that are taken from the ring at once.
pub(super) const MAX_BATCH: usize = 64;

/// Maximum number of parts that are kept for further streams.
const MAX_SHARED_PARTS: usize = 16;

/// After the streams were woken, the next events wait so long for each open stream: with 10 streams 1 ms, with 500
/// streams 50 ms. During a failover of many instances, hundreds of streams would else take the CPU from the main loop.
const PAUSE_PER_STREAM: Duration = Duration::from_micros(100);

/// Shorter pauses are left out, because the runtime's timers have this resolution.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// The end of the ring, and the text of its events.
#[derive(Debug, Clone)]
pub(in crate::routes) struct LiveEvents {
    /// The position after the last event of the ring.
    pub(super) end: watch::Receiver<u64>,
    pub(super) shared: Arc<SharedText>,
}

impl LiveEvents {
    /// Starts the one task that the node's main loop wakes; it wakes the streams.
    pub(in crate::routes) fn follow(context: &SharedContext) -> Self {
        let (sender, receiver) = watch::channel(0);
        let shared = Arc::new(SharedText::default());
        let (store, kept) = (Arc::clone(&context.store), Arc::clone(&shared));
        tokio::spawn(async move {
            let mut seen = 0;
            loop {
                seen = poll_fn(|cx| store.events.poll_after(seen, cx)).await;
                sender.send_replace(seen);
                let streams = store.counters.api_streams.load(Ordering::Relaxed);
                let pause = PAUSE_PER_STREAM * u32::try_from(streams).unwrap_or(u32::MAX);
                // ORDER: the streams run before the text is dropped.
                if pause < MIN_PAUSE {
                    yield_now().await;
                } else {
                    sleep(pause).await;
                }
                kept.clear();
            }
        });
        Self { end: receiver, shared }
    }
}

/// Consecutive events as a text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TextPart {
    /// The position in the ring after the last event.
    end: u64,
    /// The sequence number of the last event.
    last_seq: i64,
    text: Bytes,
}

/// Text for one stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamText {
    /// Events that the client has lost before this text.
    pub(super) dropped: u64,
    /// The sequence number of the last event.
    pub(super) last_seq: i64,
    /// All events in the format of the stream.
    pub(super) text: Bytes,
}

/// The text of the latest events, by the position of the first event of each part.
#[derive(Debug, Default)]
pub(super) struct SharedText(Mutex<BTreeMap<u64, TextPart>>);

impl SharedText {
    /// Takes the next events of a stream; `None` if there are none.
    pub(super) fn take(
        &self,
        subscription: &mut EventSubscription,
        epoch: &str,
    ) -> Option<StreamText> {
        let mut parts = self.lock();
        let position = subscription.position();
        if let Some(part) = parts.get(&position) {
            subscription.skip_to(part.end);
            let (last_seq, text) = (part.last_seq, part.text.clone());
            return Some(StreamText { dropped: 0, last_seq, text });
        }
        // A part ends where a known one begins, so that this stream continues with the parts of the others.
        let next = parts.range(position..).next().map_or(u64::MAX, |(start, _)| start - position);
        let batch = subscription.take(usize::try_from(next).unwrap_or(MAX_BATCH).min(MAX_BATCH));
        let last_seq = batch.events.last()?.seq;
        let mut text = String::new();
        for event in &batch.events {
            write_event(&mut text, epoch, event.seq, event.name, &event.data);
        }
        let part = TextPart { end: subscription.position(), last_seq, text: Bytes::from(text) };
        let text = part.text.clone();
        parts.insert(part.end - batch.events.len() as u64, part);
        if parts.len() > MAX_SHARED_PARTS {
            parts.pop_first();
        }
        Some(StreamText { dropped: batch.dropped, last_seq, text })
    }

    /// Drops the text. A stream that still needs it makes it again.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, TextPart>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Appends an event in the format of the stream.
pub(super) fn write_event(text: &mut String, epoch: &str, seq: i64, name: &str, data: &str) {
    let _ = writeln!(text, "id: {epoch}-{seq}\nevent: {name}\ndata: {data}\n");
}

#[cfg(test)]
mod tests {
    use vipwatch_node::state::EventRing;

    use super::*;

    fn ids(text: &StreamText) -> Vec<&str> {
        let text = std::str::from_utf8(&text.text).unwrap();
        text.lines().filter_map(|line| line.strip_prefix("id: ")).collect()
    }

    fn publish(ring: &EventRing, seqs: std::ops::RangeInclusive<i64>) {
        for seq in seqs {
            ring.publish(seq, "transition", None, || "{}".to_owned());
        }
    }

    #[test]
    fn streams_share_the_text_of_the_same_events() {
        let ring = Arc::new(EventRing::default());
        let shared = SharedText::default();
        let (mut first, mut second) = (ring.subscribe(), ring.subscribe());
        publish(&ring, 1..=2);
        let text = shared.take(&mut first, "e").unwrap();
        assert_eq!(
            text.text,
            "id: e-1\nevent: transition\ndata: {}\n\nid: e-2\nevent: transition\ndata: {}\n\n"
        );
        publish(&ring, 3..=3);
        let same = shared.take(&mut second, "e").unwrap();
        assert_eq!(same.text.as_ptr(), text.text.as_ptr(), "one text for both");
        assert_eq!(same.last_seq, 2);
        for stream in [&mut first, &mut second] {
            assert_eq!(ids(&shared.take(stream, "e").unwrap()), ["e-3"]);
            assert_eq!(shared.take(stream, "e"), None);
        }
    }

    #[test]
    fn a_stream_that_begins_between_two_parts_continues_with_the_parts_of_the_others() {
        let ring = Arc::new(EventRing::default());
        let shared = SharedText::default();
        let mut first = ring.subscribe();
        publish(&ring, 1..=1);
        let mut second = ring.subscribe();
        publish(&ring, 2..=2);
        let mut third = ring.subscribe();
        publish(&ring, 3..=3);
        let text = shared.take(&mut third, "e").unwrap();
        assert_eq!(ids(&text), ["e-3"]);
        assert_eq!(ids(&shared.take(&mut second, "e").unwrap()), ["e-2"]);
        assert_eq!(ids(&shared.take(&mut first, "e").unwrap()), ["e-1"]);
        assert_eq!(ids(&shared.take(&mut first, "e").unwrap()), ["e-2"]);
        for stream in [&mut first, &mut second] {
            let last = shared.take(stream, "e").unwrap();
            assert_eq!(last.text.as_ptr(), text.text.as_ptr(), "one text for all");
        }
    }

    #[test]
    fn a_stream_that_has_lost_events_learns_their_number_and_repeats_none() {
        let ring = Arc::new(EventRing::default());
        let shared = SharedText::default();
        let (mut fast, mut slow) = (ring.subscribe(), ring.subscribe());
        let mut expected = 0;
        for _ in 0..100 {
            publish(&ring, expected + 1..=expected + 100);
            expected += 100;
            while shared.take(&mut fast, "e").is_some() {}
        }
        shared.clear();
        let (mut seen, mut dropped) = (0, 0);
        while let Some(text) = shared.take(&mut slow, "e") {
            dropped += text.dropped;
            seen += ids(&text).len() as u64;
        }
        assert_eq!((seen + dropped, seen), (10_000, 8192));
    }

    #[test]
    fn the_number_of_shared_parts_is_limited() {
        let ring = Arc::new(EventRing::default());
        let shared = SharedText::default();
        let mut stream = ring.subscribe();
        publish(&ring, 1..=8000);
        while shared.take(&mut stream, "e").is_some() {}
        assert_eq!(shared.lock().len(), MAX_SHARED_PARTS);
    }
}
