// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/events`: server-sent events.
//!
//! ```text
//!   no id ───────────────────────────────────────────────────────────────────▶ live
//!   id that the history can continue ──▶ subscribe ─▶ history up to there ───▶ live
//!   any other id ──▶ `reset` ────────────────────────────────────────────────▶ live
//! ```
//!
//! Each stream has a position in the node's ring of events. A client that does not read holds up its own connection only;
//! the events that leave the ring meanwhile are lost for this client, and a `dropped` event has their number.

mod body;
mod live;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until};
use vipwatch_api::{
    DroppedEvent, ErrorCode, EventFilter, EventId, ProblemDocument, ResetEvent, ResetReason, Schema,
};
use vipwatch_core::InstanceId;
use vipwatch_node::selection::Selection;
use vipwatch_node::state::EventSubscription;
use vipwatch_node::view::EventBackfill;

use self::body::{EventBody, PartSender};
pub(super) use self::live::LiveEvents;
use self::live::{MAX_BATCH, SharedText, write_event};
use super::{RequestHead, SharedContext, answer};
use crate::connection::RequestPeer;
use crate::parameters::{Parameters, check_accept, invalid};
use crate::reply::{self, RouteResult};
use crate::work::{inject_panic, on_file_thread};

/// Time between two signs of life on a quiet stream. By them the server also notices a client that has gone.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Size in bytes from which on a part of the stream is sent.
const PART_BYTES: usize = 8 << 10;

/// Maximum time until the history has written an event that is published already.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two checks whether the history has written an event.
const WRITE_CHECK: Duration = Duration::from_millis(20);

pub(super) async fn stream(
    (State(context), uri, headers): RequestHead,
    Extension(live): Extension<LiveEvents>,
    Extension(peer): Extension<RequestPeer>,
) -> Response {
    answer(open(&context, live, &peer, &uri, &headers))
}

fn open(
    context: &SharedContext,
    live: LiveEvents,
    peer: &RequestPeer,
    uri: &Uri,
    headers: &HeaderMap,
) -> RouteResult {
    check_accept(headers, "text/event-stream")?;
    let filter = filter(uri, headers)?;
    let selection = Selection::of_instances(&filter.ids, &[], &context.store.view());
    if !peer.become_stream() {
        return Err(too_many_streams());
    }
    let subscription = context.store.events.subscribe();
    let stream = EventStream {
        epoch: context.store.epoch(),
        position: subscription.start_seq(),
        selection,
        buffer: String::new(),
        parts: PartSender::default(),
        sent_at: Instant::now(),
        context: Arc::clone(context),
    };
    let parts = stream.parts.clone();
    let body = EventBody::new(parts, stream.run(filter.after, subscription, live));
    let body = Body::new(body);
    let content_type = HeaderValue::from_static("text/event-stream");
    Ok(reply::response(StatusCode::OK, content_type, body))
}

/// The problem that no more clients can wait for events.
pub(super) fn too_many_streams() -> ProblemDocument {
    let text = "too many event streams are open";
    ProblemDocument::new(ErrorCode::TooManyConnections, text).with_hint("try again")
}

/// The header has precedence: a browser that reconnects uses the first URL, and the header has its last event.
fn filter(uri: &Uri, headers: &HeaderMap) -> Result<EventFilter, ProblemDocument> {
    let parameters = Parameters::read(uri, &["id", "after"])?;
    let mut after: Option<EventId> = parameters.one("after")?;
    if let Some(header) = headers.get("last-event-id") {
        let text = String::from_utf8_lossy(header.as_bytes());
        let id = text.parse().map_err(|error| invalid(format!("Last-Event-ID: {error}")))?;
        after = Some(id);
    }
    Ok(EventFilter { ids: parameters.all("id")?, after })
}

/// One stream.
struct EventStream {
    epoch: Arc<str>,
    /// The sequence number of the last event that was sent or left out.
    position: i64,
    selection: Selection,
    /// Text that is not sent yet.
    buffer: String,
    parts: PartSender,
    /// When the last part was sent.
    sent_at: Instant,
    context: SharedContext,
}

impl EventStream {
    /// Sends events until the client has gone, which drops this future.
    async fn run(
        mut self,
        after: Option<EventId>,
        subscription: EventSubscription,
        live: LiveEvents,
    ) {
        inject_panic("stream of /v1/events");
        // ORDER: the subscription exists already. An event that is published while the history is read is in both, and
        // is recognized by its number.
        let start = subscription.start_seq();
        match after {
            Some(after) => self.resume(&after, start).await,
            None => self.send_position().await,
        }
        self.position = start;
        let _clear = ClearAtEnd(Arc::clone(&live.shared));
        self.follow(subscription, live).await;
    }

    /// Sends the events after `after` up to `start`, or says that this is not possible.
    async fn resume(&mut self, after: &EventId, start: i64) {
        let missed = if *after.epoch != *self.epoch {
            Err(ResetReason::OtherEpoch)
        } else if after.seq > start {
            Err(ResetReason::Future)
        } else {
            self.position = after.seq;
            self.send_position().await;
            self.backfill(start).await
        };
        if let Err(reason) = missed {
            let next_after = format!("{}-{start}", self.epoch);
            let reset = ResetEvent { schema: Schema::Reset, reason, next_after };
            self.add_unnumbered("reset", &serde_json::to_string(&reset).unwrap_or_default());
            self.position = start;
            self.send_position().await;
        }
    }

    /// Sends the events up to `until` from the history.
    async fn backfill(&mut self, until: i64) -> Result<(), ResetReason> {
        if self.position >= until {
            return Ok(());
        }
        let (context, position) = (Arc::clone(&self.context), self.position);
        let opened = move || EventBackfill::open(&context, position, until);
        let mut backfill = flat(on_file_thread(&self.context.store, opened).await)?;
        let deadline = Instant::now() + WRITE_TIMEOUT;
        loop {
            let step = move || backfill.is_written().map(|is_written| (backfill, is_written));
            let (opened, is_written) = flat(on_file_thread(&self.context.store, step).await)?;
            backfill = opened;
            if is_written {
                break;
            }
            if Instant::now() >= deadline {
                return Err(ResetReason::HistoryUnavailable);
            }
            sleep(WRITE_CHECK).await;
        }
        loop {
            let step = move || backfill.next_page().map(|page| (backfill, page));
            let (opened, page) = flat(on_file_thread(&self.context.store, step).await)?;
            backfill = opened;
            let Some(page) = page else { return Ok(()) };
            for event in page {
                self.add(event.seq, event.name, event.instance.as_deref(), &event.data).await;
            }
            self.flush().await;
        }
    }

    /// Sends live events; never returns.
    async fn follow(&mut self, mut subscription: EventSubscription, mut live: LiveEvents) {
        loop {
            live.end.borrow_and_update();
            let has_events = if self.selection.covers_all() {
                self.send_all(&mut subscription, &live.shared).await
            } else {
                self.send_selected(&mut subscription).await
            };
            if has_events {
                continue;
            }
            tokio::select! {
                // The task that sends it never ends.
                _ = live.end.changed() => {}
                () = sleep_until(self.sent_at + HEARTBEAT_INTERVAL) => self.send_position().await,
            }
        }
    }

    /// Sends the next events; returns false if there are none.
    async fn send_all(
        &mut self,
        subscription: &mut EventSubscription,
        shared: &SharedText,
    ) -> bool {
        let Some(next) = shared.take(subscription, &self.epoch) else { return false };
        self.add_dropped(next.dropped);
        self.flush().await;
        self.position = next.last_seq;
        self.send(next.text).await;
        true
    }

    /// Sends those of the next events that the client has selected; returns false if there are none.
    async fn send_selected(&mut self, subscription: &mut EventSubscription) -> bool {
        let batch = subscription.take(MAX_BATCH);
        self.add_dropped(batch.dropped);
        for event in &batch.events {
            let instance = event.instance.as_ref().map(InstanceId::as_str);
            self.add(event.seq, event.name, instance, &event.data).await;
        }
        self.flush().await;
        !batch.events.is_empty()
    }

    /// Adds an event, if the client has selected its instance.
    async fn add(&mut self, seq: i64, name: &str, instance: Option<&str>, data: &str) {
        self.position = seq;
        let is_selected = match instance {
            Some(id) => {
                self.selection.notice(id);
                self.selection.covers(id)
            }
            None => self.selection.covers_all(),
        };
        if is_selected {
            write_event(&mut self.buffer, &self.epoch, seq, name, data);
        }
        if self.buffer.len() >= PART_BYTES {
            self.flush().await;
        }
    }

    /// Adds the number of events that the client has lost, if there are any.
    fn add_dropped(&mut self, count: u64) {
        if count > 0 {
            self.context.store.counters.feed_missed.fetch_add(count, Ordering::Relaxed);
            let dropped = DroppedEvent { schema: Schema::Dropped, count };
            self.add_unnumbered("dropped", &serde_json::to_string(&dropped).unwrap_or_default());
        }
    }

    /// Adds an event about the stream itself, which has no id.
    fn add_unnumbered(&mut self, name: &str, data: &str) {
        let _ = writeln!(self.buffer, "event: {name}\ndata: {data}\n");
    }

    /// Sends a comment and the id after which the stream continues: a sign of life, also for a client with a selection that
    /// has no events.
    async fn send_position(&mut self) {
        let _ = writeln!(self.buffer, ":\nid: {}-{}\n", self.epoch, self.position);
        self.flush().await;
    }

    /// Sends the text. Waits until the client has read the part before.
    async fn flush(&mut self) {
        if !self.buffer.is_empty() {
            let part = Bytes::from(std::mem::take(&mut self.buffer));
            self.send(part).await;
        }
    }

    async fn send(&mut self, part: Bytes) {
        self.parts.send(part).await;
        self.sent_at = Instant::now();
    }
}

/// Drops the shared text at the end of a stream, so that none is kept after the last one.
struct ClearAtEnd(Arc<SharedText>);

impl Drop for ClearAtEnd {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// A panic while the history is read has the same effect as an unreadable history.
fn flat<T>(result: Result<Result<T, ResetReason>, ProblemDocument>) -> Result<T, ResetReason> {
    result.unwrap_or(Err(ResetReason::HistoryUnavailable))
}
