//! `GET /v1/events`: server-sent events.
//!
//! ```text
//!   no id ───────────────────────────────────────────────────────────────────▶ live
//!   id that the history can continue ──▶ subscribe ─▶ history up to there ───▶ live
//!   any other id ──▶ `reset` ────────────────────────────────────────────────▶ live
//! ```
//!
//! Each stream has a position in the node's ring of events. A client that does not read holds up its own task only; the
//! events that leave the ring meanwhile are lost for this client, and a `dropped` event has their number.

use std::fmt::Write;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use vipwatch_api::{
    DroppedEvent, ErrorCode, EventFilter, EventId, ProblemDocument, ResetEvent, ResetReason, Schema,
};
use vipwatch_core::InstanceId;
use vipwatch_node::selection::Selection;
use vipwatch_node::state::EventSubscription;
use vipwatch_node::view::EventBackfill;

use super::{SharedContext, answer, inject_panic};
use crate::connection::RequestPeer;
use crate::parameters::{Parameters, check_accept, invalid};
use crate::reply::{self, RouteResult};
use crate::work::{on_file_thread, spawn_for_client};

/// Time between two signs of life on a quiet stream. By them the server also notices a client that has gone.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum number of events that are taken from the ring at once.
const MAX_BATCH: usize = 128;

/// Size in bytes from which on a part of the stream is sent.
const PART_BYTES: usize = 8 << 10;

/// Maximum time until the history has written an event that is published already.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two checks whether the history has written an event.
const WRITE_CHECK: Duration = Duration::from_millis(20);

/// The position after the last event of the ring, for all streams.
#[derive(Debug, Clone)]
pub(super) struct RingEnd(watch::Receiver<u64>);

impl RingEnd {
    /// Starts the one task that the node's main loop wakes; it wakes the streams.
    pub(super) fn follow(context: &SharedContext) -> Self {
        let (sender, receiver) = watch::channel(0);
        let ring = Arc::clone(&context.store.events);
        tokio::spawn(async move {
            let mut seen = 0;
            loop {
                seen = poll_fn(|cx| ring.poll_after(seen, cx)).await;
                sender.send_replace(seen);
            }
        });
        Self(receiver)
    }
}

pub(super) async fn stream(
    State(context): State<SharedContext>,
    Extension(end): Extension<RingEnd>,
    Extension(peer): Extension<RequestPeer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(open(&context, end, &peer, &uri, &headers))
}

fn open(
    context: &SharedContext,
    end: RingEnd,
    peer: &RequestPeer,
    uri: &Uri,
    headers: &HeaderMap,
) -> RouteResult {
    check_accept(headers, "text/event-stream")?;
    let filter = filter(uri, headers)?;
    let selection = Selection::of_instances(&filter.ids, &[], &context.store.view());
    if !peer.become_stream() {
        let problem =
            ProblemDocument::new(ErrorCode::TooManyConnections, "too many event streams are open");
        return Err(problem.with_hint("try again"));
    }
    let (parts, receiver) = mpsc::channel(1);
    let subscription = context.store.events.subscribe();
    let stream = EventStream {
        epoch: context.store.epoch(),
        position: subscription.start_seq(),
        selection,
        buffer: String::new(),
        parts,
        context: Arc::clone(context),
    };
    spawn_for_client(&context.store, stream.run(filter.after, subscription, end));
    let body = Body::new(PartsBody(receiver));
    let content_type = HeaderValue::from_static("text/event-stream");
    Ok(reply::response(StatusCode::OK, content_type, body))
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

/// The client has gone.
struct ClientGone;

/// One stream.
struct EventStream {
    epoch: Arc<str>,
    /// The sequence number of the last event that was sent or left out.
    position: i64,
    selection: Selection,
    /// Text that is not sent yet.
    buffer: String,
    parts: mpsc::Sender<Bytes>,
    context: SharedContext,
}

impl EventStream {
    async fn run(mut self, after: Option<EventId>, subscription: EventSubscription, end: RingEnd) {
        inject_panic("stream of /v1/events");
        // ORDER: the subscription exists already. An event that is published while the history is read is in both, and
        // is recognized by its number.
        let start = subscription.start_seq();
        let resumed = match after {
            Some(after) => self.resume(&after, start).await,
            None => self.send_position().await,
        };
        if resumed.is_ok() {
            self.position = start;
            // An error means that the client has gone.
            let _ = self.follow(subscription, end).await;
        }
    }

    /// Sends the events after `after` up to `start`, or says that this is not possible.
    async fn resume(&mut self, after: &EventId, start: i64) -> Result<(), ClientGone> {
        let missed = if *after.epoch != *self.epoch {
            Err(ResetReason::OtherEpoch)
        } else if after.seq > start {
            Err(ResetReason::Future)
        } else {
            self.position = after.seq;
            self.send_position().await?;
            self.backfill(start).await?
        };
        if let Err(reason) = missed {
            let next_after = format!("{}-{start}", self.epoch);
            let reset = ResetEvent { schema: Schema::Reset, reason, next_after };
            self.add_unnumbered("reset", &serde_json::to_string(&reset).unwrap_or_default());
            self.position = start;
            self.send_position().await?;
        }
        Ok(())
    }

    /// Sends the events up to `until` from the history.
    async fn backfill(&mut self, until: i64) -> Result<Result<(), ResetReason>, ClientGone> {
        if self.position >= until {
            return Ok(Ok(()));
        }
        let (context, position) = (Arc::clone(&self.context), self.position);
        let opened = move || EventBackfill::open(&context, position, until);
        let mut backfill = match flat(on_file_thread(&self.context.store, opened).await) {
            Ok(backfill) => backfill,
            Err(reason) => return Ok(Err(reason)),
        };
        let deadline = Instant::now() + WRITE_TIMEOUT;
        loop {
            let step = move || backfill.is_written().map(|is_written| (backfill, is_written));
            match flat(on_file_thread(&self.context.store, step).await) {
                Ok((opened, true)) => {
                    backfill = opened;
                    break;
                }
                Ok((opened, false)) if Instant::now() < deadline => backfill = opened,
                Ok(_) => return Ok(Err(ResetReason::HistoryUnavailable)),
                Err(reason) => return Ok(Err(reason)),
            }
            sleep(WRITE_CHECK).await;
        }
        loop {
            let step = move || backfill.next_page().map(|page| (backfill, page));
            let (opened, page) = match flat(on_file_thread(&self.context.store, step).await) {
                Ok(read) => read,
                Err(reason) => return Ok(Err(reason)),
            };
            backfill = opened;
            let Some(page) = page else { return Ok(Ok(())) };
            for event in page {
                self.add(event.seq, event.name, event.instance.as_deref(), &event.data).await?;
            }
            self.flush().await?;
        }
    }

    /// Sends live events; returns when the client has gone.
    async fn follow(
        &mut self,
        mut subscription: EventSubscription,
        RingEnd(mut end): RingEnd,
    ) -> Result<(), ClientGone> {
        let mut heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
        loop {
            end.borrow_and_update();
            let batch = subscription.take(MAX_BATCH);
            if batch.dropped > 0 {
                let missed = &self.context.store.counters.feed_missed;
                missed.fetch_add(batch.dropped, Ordering::Relaxed);
                let dropped = DroppedEvent { schema: Schema::Dropped, count: batch.dropped };
                self.add_unnumbered(
                    "dropped",
                    &serde_json::to_string(&dropped).unwrap_or_default(),
                );
            }
            let is_empty = batch.events.is_empty();
            for event in batch.events {
                if event.seq > self.position {
                    let instance = event.instance.as_ref().map(InstanceId::as_str);
                    self.add(event.seq, event.name, instance, &event.data).await?;
                }
            }
            if !self.buffer.is_empty() {
                self.flush().await?;
                heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
            }
            if !is_empty {
                continue;
            }
            tokio::select! {
                // The task that sends it never ends.
                _ = end.changed() => {}
                () = sleep_until(heartbeat) => {
                    self.send_position().await?;
                    heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
                }
                () = self.parts.closed() => return Err(ClientGone),
            }
        }
    }

    /// Adds an event, if the client has selected its instance.
    async fn add(
        &mut self,
        seq: i64,
        name: &str,
        instance: Option<&str>,
        data: &str,
    ) -> Result<(), ClientGone> {
        self.position = seq;
        let is_selected = match instance {
            Some(id) => {
                self.selection.notice(id);
                self.selection.covers(id)
            }
            None => self.selection.covers_all(),
        };
        if is_selected {
            let _ =
                writeln!(self.buffer, "id: {}-{seq}\nevent: {name}\ndata: {data}\n", self.epoch);
        }
        if self.buffer.len() >= PART_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Adds an event about the stream itself, which has no id.
    fn add_unnumbered(&mut self, name: &str, data: &str) {
        let _ = writeln!(self.buffer, "event: {name}\ndata: {data}\n");
    }

    /// Sends a comment and the id after which the stream continues: a sign of life, also for a client with a selection that
    /// has no events.
    async fn send_position(&mut self) -> Result<(), ClientGone> {
        let _ = writeln!(self.buffer, ":\nid: {}-{}\n", self.epoch, self.position);
        self.flush().await
    }

    /// Sends the text. Waits until the client has read the part before.
    async fn flush(&mut self) -> Result<(), ClientGone> {
        let part = Bytes::from(std::mem::take(&mut self.buffer));
        self.parts.send(part).await.map_err(|_gone| ClientGone)
    }
}

/// A panic while the history is read has the same effect as an unreadable history.
fn flat<T>(result: Result<Result<T, ResetReason>, ProblemDocument>) -> Result<T, ResetReason> {
    result.unwrap_or(Err(ResetReason::HistoryUnavailable))
}

/// The parts of a stream as a body.
struct PartsBody(mpsc::Receiver<Bytes>);

impl hyper::body::Body for PartsBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}
