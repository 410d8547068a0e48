// SPDX-License-Identifier: Apache-2.0
//! All open connections: their limits, their deadlines, and which one is closed when there are too many.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use vipwatch_node::state::StateStore;

use crate::credentials::Token;
use crate::socket::WebClient;
use crate::work::{catch, inject_panic};

/// Maximum number of connections without an event stream, on the unix socket and on TCP each.
const MAX_CONNECTIONS: usize = 64;
/// So many of [`MAX_CONNECTIONS`] on the unix socket are for root only, so that an operator can always look.
const RESERVED_FOR_ROOT: usize = 4;

/// Maximum number of event streams, on the unix socket and on TCP each.
const MAX_STREAMS: usize = 512;
/// So many of [`MAX_STREAMS`] on the unix socket are for root only.
const STREAMS_FOR_ROOT: usize = 8;

/// A connection without a request is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// A client must begin a TLS handshake within this time, and must end it within the same time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The head of a request must be complete within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A client must read a part of its answer within this time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client must read a part of its event stream within this time. Longer than [`WRITE_TIMEOUT`]: a client that reads
/// again in time gets the number of events that it has missed.
const STREAM_WRITE_TIMEOUT: Duration = Duration::from_mins(1);

/// A new client waits at least this time before an idle connection is closed in its favour. Meanwhile the runtime reads
/// the sockets, so that a connection with a request that has arrived is no longer idle.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// Time between two further looks for an idle connection.
const NEXT_WAIT: Duration = Duration::from_millis(20);

/// A connection with an incomplete TLS handshake or request is closed in favour of another one only after this time. Most
/// clients send both in one packet.
const MIN_INCOMPLETE_TIME: Duration = Duration::from_secs(1);

/// On TCP, an answer to a client without a token and without a certificate is given up in favour of another client after
/// this time: with slow reading, unknown clients could keep all others out.
const MIN_SLOW_TIME: Duration = Duration::from_secs(5);

/// A new client waits for a place at most this time.
pub(crate) const PLACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two checks of the deadlines, while connections are open.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why the server closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// No request within [`IDLE_TIMEOUT`].
    Idle,
    /// The TLS handshake was not complete within [`HANDSHAKE_TIMEOUT`].
    HandshakeTimeout,
    /// The head of a request was not complete within [`HEAD_TIMEOUT`].
    HeadTimeout,
    /// The client does not read its answer.
    Stalled,
    /// It was idle or slow, and a new client needed its place.
    Evicted,
    /// The token or the certificate of its client is no longer valid.
    Unauthorized,
    /// The client has sent something that is not HTTP/1.1, or has gone.
    ClientError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waits for the first byte of a TLS handshake.
    Connected,
    /// A TLS handshake has begun.
    Handshake,
    /// Waits for a request.
    Idle,
    /// A request has begun.
    Head,
    /// A request is being answered.
    Serving,
    /// The answer is complete, and a part of it may wait in a buffer.
    Sending,
}

/// How a client on TCP has proved that it may read.
#[derive(Debug, Clone)]
pub(crate) enum ClientIdentity {
    /// Its certificate, followed by intermediate ones, for all requests of the connection.
    Certificate(Arc<[CertificateDer<'static>]>),
    /// The token of the request that is being answered.
    Token(Token),
}

#[derive(Debug)]
struct ConnectionState {
    phase: Phase,
    /// When the phase began.
    since: Instant,
    /// When the client last stopped reading; `None` while it reads.
    blocked_since: Option<Instant>,
    is_stream: bool,
    /// `None` if the client has proved nothing.
    identity: Option<ClientIdentity>,
    /// Set once; the connection then no longer counts.
    close_reason: Option<CloseReason>,
}

#[derive(Debug)]
struct ConnectionSlot {
    number: u64,
    client: WebClient,
    state: Mutex<ConnectionState>,
    close_requested: Notify,
    table: Arc<ConnectionTable>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.table.remove(self.number);
    }
}

/// The place of one connection in the table. The last clone that is dropped frees it.
#[derive(Debug, Clone)]
pub(crate) struct Place(Arc<ConnectionSlot>);

/// The client of a request, for routes.
#[derive(Debug, Clone)]
pub(crate) struct RequestPeer {
    pub(crate) client: WebClient,
    slot: std::sync::Weak<ConnectionSlot>,
}

impl RequestPeer {
    pub(crate) fn of(place: &Place) -> Self {
        Self { client: place.0.client, slot: Arc::downgrade(&place.0) }
    }

    /// Whether the client has a certificate that was verified.
    pub(crate) fn has_certificate(&self) -> bool {
        let slot = self.slot.upgrade();
        slot.is_some_and(|slot| {
            matches!(slot.lock().identity, Some(ClientIdentity::Certificate(_)))
        })
    }

    /// Keeps the token of the request, so that the answer ends when the token is withdrawn.
    pub(crate) fn set_token(&self, token: Token) {
        if let Some(slot) = self.slot.upgrade() {
            slot.lock().identity = Some(ClientIdentity::Token(token));
        }
    }

    /// Turns the connection into an event stream; false if there are too many.
    pub(crate) fn become_stream(&self) -> bool {
        self.slot.upgrade().is_some_and(|slot| slot.table.become_stream(&slot))
    }

    /// Counts the connection as an event stream while the request waits for a change; `None` if there are too many.
    pub(crate) fn wait_as_stream(&self) -> Option<StreamWait> {
        self.become_stream().then(|| StreamWait(self.slot.clone()))
    }
}

/// A request that waits for a change. Its connection takes no place of those with other requests.
#[derive(Debug)]
pub(crate) struct StreamWait(std::sync::Weak<ConnectionSlot>);

impl Drop for StreamWait {
    fn drop(&mut self) {
        if let Some(slot) = self.0.upgrade() {
            slot.lock().is_stream = false;
            slot.table.publish_counts();
        }
    }
}

/// Which connections a table has; each has counters of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableKind {
    Unix,
    Tcp,
}

/// All open connections on the unix socket, or on TCP.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    kind: TableKind,
    slots: Mutex<TableContent>,
    /// A connection was added to the empty table.
    is_used: Notify,
    /// A place is free again.
    is_place_freed: Notify,
    /// Clients that wait for a place do so one after the other, in the order of their arrival. Root does not wait for
    /// other users.
    turn_of_root: tokio::sync::Mutex<()>,
    turn_of_others: tokio::sync::Mutex<()>,
    store: Arc<StateStore>,
}

#[derive(Debug, Default)]
struct TableContent {
    by_number: BTreeMap<u64, std::sync::Weak<ConnectionSlot>>,
    next_number: u64,
}

impl ConnectionTable {
    pub(crate) fn new(kind: TableKind, store: Arc<StateStore>) -> Self {
        Self {
            kind,
            slots: Mutex::default(),
            is_used: Notify::new(),
            is_place_freed: Notify::new(),
            turn_of_root: tokio::sync::Mutex::default(),
            turn_of_others: tokio::sync::Mutex::default(),
            store,
        }
    }

    /// A place for a connection of this client, as soon as there is one; `None` after `limit`. If all are taken, the
    /// connection that is idle for the longest time is closed.
    pub(crate) async fn wait_for_place(
        self: &Arc<Self>,
        client: WebClient,
        limit: Duration,
    ) -> Option<Place> {
        let deadline = tokio::time::Instant::now() + limit;
        let _turn = self.turn(client).lock().await;
        let mut wait = FIRST_WAIT;
        loop {
            let began = Instant::now();
            let freed = tokio::time::timeout(wait, self.is_place_freed.notified()).await;
            if let Some(place) = self.admit(client) {
                return Some(place);
            }
            // ORDER: when a timer fires, the runtime has polled the sockets, and connections with data have run before
            // this task. So a connection that was idle before and is idle now has no request.
            if freed.is_ok() || self.evict_idle_since(client, began) {
                continue;
            }
            if tokio::time::Instant::now() >= deadline {
                return None;
            }
            wait = NEXT_WAIT;
        }
    }

    /// A place for a connection of this client; `None` if all are taken, or if another client waits for one.
    pub(crate) fn admit_at_once(self: &Arc<Self>, client: WebClient) -> Option<Place> {
        let _turn = self.turn(client).try_lock().ok()?;
        self.admit(client)
    }

    fn turn(&self, client: WebClient) -> &tokio::sync::Mutex<()> {
        if client == ROOT { &self.turn_of_root } else { &self.turn_of_others }
    }

    /// Closes the connection that is idle for the longest time, if it is idle since `began` or longer. If there is none,
    /// closes the oldest one with an incomplete handshake or request.
    fn evict_idle_since(&self, client: WebClient, began: Instant) -> bool {
        let open = self.open_slots();
        let now = Instant::now();
        // A connection of root makes room for root only.
        let can_evict = |slot: &&Arc<ConnectionSlot>| {
            let is_allowed = client == ROOT || slot.client != ROOT;
            is_allowed && slot.lock().can_be_evicted(slot.client, began, now)
        };
        let order = |slot: &&Arc<ConnectionSlot>| slot.lock().eviction_order();
        let oldest = open.iter().filter(can_evict).min_by_key(order);
        if let Some(oldest) = oldest {
            oldest.close(CloseReason::Evicted);
            self.is_place_freed.notify_one();
        }
        oldest.is_some()
    }

    /// A place for a connection of this client; `None` if all are taken.
    fn admit(self: &Arc<Self>, client: WebClient) -> Option<Place> {
        let requests = self.open_slots().iter().filter(|slot| !slot.lock().is_stream).count();
        if requests >= request_limit(client) {
            return None;
        }
        let mut slots = self.lock();
        let number = slots.next_number;
        slots.next_number += 1;
        let slot = Arc::new(ConnectionSlot {
            number,
            client,
            state: Mutex::new(ConnectionState {
                phase: Phase::Idle,
                since: Instant::now(),
                blocked_since: None,
                is_stream: false,
                identity: None,
                close_reason: None,
            }),
            close_requested: Notify::new(),
            table: Arc::clone(self),
        });
        slots.by_number.insert(number, Arc::downgrade(&slot));
        drop(slots);
        self.is_used.notify_one();
        self.publish_counts();
        Some(Place(slot))
    }

    fn become_stream(&self, slot: &ConnectionSlot) -> bool {
        let open = self.open_slots();
        let streams = open.iter().filter(|slot| slot.lock().is_stream).count();
        if streams >= stream_limit(slot.client) {
            return false;
        }
        slot.lock().is_stream = true;
        self.is_place_freed.notify_one();
        self.publish_counts();
        true
    }

    /// Closes the connections of clients with an identity that is no longer valid.
    pub(crate) fn close_unauthorized(&self, is_valid: impl Fn(&ClientIdentity) -> bool) {
        for slot in self.open_slots() {
            let identity = slot.lock().identity.clone();
            if identity.is_some_and(|identity| !is_valid(&identity)) {
                slot.close(CloseReason::Unauthorized);
            }
        }
    }

    /// Closes connections with a deadline that is over; never returns.
    pub(crate) async fn close_overdue(self: Arc<Self>) {
        loop {
            // The log has the message of a panic. The next check repeats its work.
            let has_connections = catch(&self.store, || self.check_deadlines()).unwrap_or(true);
            if !has_connections {
                self.is_used.notified().await;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Closes connections with a deadline that is over. Returns false if no connection is open.
    fn check_deadlines(&self) -> bool {
        let open = self.open_slots();
        let now = Instant::now();
        for slot in &open {
            inject_panic("close_overdue");
            let overdue = slot.lock().overdue(now);
            if let Some(reason) = overdue {
                slot.close(reason);
            }
        }
        !open.is_empty()
    }

    /// The connections that count: those that are not being closed.
    fn open_slots(&self) -> Vec<Arc<ConnectionSlot>> {
        // The table is not locked while a slot is dropped, which locks it.
        let slots: Vec<_> =
            self.lock().by_number.values().filter_map(std::sync::Weak::upgrade).collect();
        slots.into_iter().filter(|slot| slot.lock().close_reason.is_none()).collect()
    }

    fn remove(&self, number: u64) {
        self.lock().by_number.remove(&number);
        self.is_place_freed.notify_one();
        self.publish_counts();
    }

    fn publish_counts(&self) {
        let open = self.open_slots();
        let streams = open.iter().filter(|slot| slot.lock().is_stream).count();
        let counters = self.counters();
        counters.streams.store(streams as u64, Ordering::Relaxed);
        counters.connections.store((open.len() - streams) as u64, Ordering::Relaxed);
    }

    /// Counts a connection that was refused.
    pub(crate) fn count_refused(&self) {
        self.counters().refused.fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self) -> TableCounters<'_> {
        let all = &self.store.counters;
        match self.kind {
            TableKind::Unix => TableCounters {
                connections: &all.api_connections,
                streams: &all.api_streams,
                refused: &all.api_refused,
            },
            TableKind::Tcp => TableCounters {
                connections: &all.web_connections,
                streams: &all.web_streams,
                refused: &all.web_refused,
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, TableContent> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of one table.
struct TableCounters<'a> {
    connections: &'a AtomicU64,
    streams: &'a AtomicU64,
    refused: &'a AtomicU64,
}

const ROOT: WebClient = WebClient::User(0);

fn request_limit(client: WebClient) -> usize {
    match client {
        ROOT | WebClient::Network { .. } => MAX_CONNECTIONS,
        WebClient::User(_) => MAX_CONNECTIONS - RESERVED_FOR_ROOT,
    }
}

fn stream_limit(client: WebClient) -> usize {
    match client {
        ROOT | WebClient::Network { .. } => MAX_STREAMS,
        WebClient::User(_) => MAX_STREAMS - STREAMS_FOR_ROOT,
    }
}

impl ConnectionSlot {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, reason: CloseReason) {
        self.lock().close_reason.get_or_insert(reason);
        self.close_requested.notify_one();
    }
}

impl ConnectionState {
    fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
    }

    /// Whether the connection can be closed in favour of a client that waits since `began`.
    fn can_be_evicted(&self, client: WebClient, began: Instant, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.since);
        match (self.phase, client) {
            (Phase::Connected | Phase::Idle, _) => self.since <= began,
            (Phase::Handshake | Phase::Head, _) => age >= MIN_INCOMPLETE_TIME,
            (Phase::Serving | Phase::Sending, WebClient::Network { .. }) => {
                !self.is_stream && self.identity.is_none() && age >= MIN_SLOW_TIME
            }
            (Phase::Serving | Phase::Sending, WebClient::User(_)) => false,
        }
    }

    /// The connection with the lowest value is closed first: one that has sent nothing, then the oldest.
    fn eviction_order(&self) -> (bool, Instant) {
        (!matches!(self.phase, Phase::Connected | Phase::Idle), self.since)
    }

    /// Why the connection must be closed now.
    fn overdue(&self, now: Instant) -> Option<CloseReason> {
        let since = |at: Instant| now.saturating_duration_since(at);
        let limit = if self.is_stream { STREAM_WRITE_TIMEOUT } else { WRITE_TIMEOUT };
        if self.blocked_since.is_some_and(|at| since(at) >= limit) {
            return Some(CloseReason::Stalled);
        }
        match self.phase {
            Phase::Connected | Phase::Handshake if since(self.since) >= HANDSHAKE_TIMEOUT => {
                Some(CloseReason::HandshakeTimeout)
            }
            Phase::Idle | Phase::Sending if since(self.since) >= IDLE_TIMEOUT => {
                Some(CloseReason::Idle)
            }
            Phase::Head if since(self.since) >= HEAD_TIMEOUT => Some(CloseReason::HeadTimeout),
            Phase::Connected
            | Phase::Handshake
            | Phase::Idle
            | Phase::Head
            | Phase::Serving
            | Phase::Sending => None,
        }
    }
}

impl Place {
    /// The client must begin a TLS handshake.
    pub(super) fn wait_for_handshake(&self) {
        self.0.lock().set_phase(Phase::Connected);
    }

    /// The client has begun a TLS handshake.
    pub(super) fn begin_handshake(&self) {
        self.0.lock().set_phase(Phase::Handshake);
    }

    /// The TLS handshake is complete, with the certificate of the client if it has one.
    pub(super) fn end_handshake(&self, identity: Option<ClientIdentity>) {
        let mut state = self.0.lock();
        state.set_phase(Phase::Idle);
        state.identity = identity;
    }

    /// The client has sent something.
    pub(super) fn received_bytes(&self) {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::Idle | Phase::Sending) {
            state.set_phase(Phase::Head);
        }
    }

    /// The head of a request is complete.
    pub(super) fn begin_request(&self) {
        self.0.lock().set_phase(Phase::Serving);
    }

    /// The answer is complete.
    fn end_request(&self) {
        let mut state = self.0.lock();
        state.set_phase(Phase::Sending);
        state.is_stream = false;
        // The next request has a token of its own.
        state.identity.take_if(|identity| matches!(identity, ClientIdentity::Token(_)));
        drop(state);
        self.0.table.publish_counts();
    }

    /// Everything that was written has left the buffers of this process.
    pub(super) fn flushed(&self) {
        let mut state = self.0.lock();
        if state.phase == Phase::Sending {
            state.set_phase(Phase::Idle);
        }
    }

    /// Whether the last attempt to write had to wait for the client.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        let mut state = self.0.lock();
        if !is_blocked {
            state.blocked_since = None;
        } else if state.blocked_since.is_none() {
            state.blocked_since = Some(Instant::now());
        }
    }

    /// Waits until the connection must be closed.
    pub(super) async fn closed(&self) -> CloseReason {
        loop {
            if let Some(reason) = self.0.lock().close_reason {
                return reason;
            }
            self.0.close_requested.notified().await;
        }
    }
}

/// The body of an answer, which notices its end.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    place: Place,
}

impl TrackedBody {
    pub(super) fn new(body: Body, place: Place) -> Self {
        Self { body, place }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.place.end_request();
    }
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, place } = &mut *self;
        // A panic ends the connection before the end of the answer, which the client notices.
        catch(&place.0.table.store, || Pin::new(body).poll_frame(cx))
            .unwrap_or_else(|panic| Poll::Ready(Some(Err(axum::Error::new(panic)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
