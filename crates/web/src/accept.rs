// SPDX-License-Identifier: Apache-2.0
//! Accepts connections: checks the client of each one, and applies the limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_linux::worker::{Heartbeat, beat_every};

use crate::connection::{self, ConnectionService, ConnectionTable, PLACE_TIMEOUT};
use crate::socket::{ClientSocket, Listener, WebClient};
use crate::work::{CatchPanic, inject_panic, spawn_for_client};

/// Pause after a failed `accept`, for example because all file descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of accepted connections that wait for a place. Further ones get the place of an idle connection, or are
/// refused.
const MAX_WAITING: usize = 512;

/// Maximum number of refused connections that are being answered. Others are closed without an answer.
const MAX_REFUSALS: usize = 16;

/// A listening socket, and the state that all of its connections share.
pub(crate) struct Endpoint {
    listener: Listener,
    service: ConnectionService,
    /// TCP and the unix socket have tables of their own, so that clients of one do not keep out clients of the other.
    table: Arc<ConnectionTable>,
    /// Number of accepted connections that wait for a place.
    waiting: Arc<AtomicUsize>,
    /// Number of refused connections that are being answered.
    refusals: Arc<AtomicUsize>,
}

impl Endpoint {
    pub(crate) fn new(
        listener: Listener,
        service: ConnectionService,
        table: Arc<ConnectionTable>,
    ) -> Self {
        let (waiting, refusals) = (Arc::default(), Arc::default());
        Self { listener, service, table, waiting, refusals }
    }

    /// Accepts and serves connections; never returns.
    pub(crate) async fn run(self, heartbeat: Heartbeat) {
        loop {
            heartbeat.beat();
            let turn = Box::pin(self.accept_one());
            // The log has the message of a panic; its client is disconnected.
            if (CatchPanic { future: turn, store: &self.service.store }).await.is_err() {
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Accepts one connection and starts the task that serves it, or returns after some time without a client.
    async fn accept_one(&self) {
        let socket = match timeout(beat_every(), self.listener.accept()).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(_)) => return sleep(ACCEPT_PAUSE).await,
            Err(_) => return,
        };
        inject_panic("accept");
        match self.listener.client(&socket) {
            Ok(client) => self.admit(socket, client).await,
            Err(problem) => {
                self.table.count_refused();
                self.refuse(socket, problem);
            }
        }
    }

    /// Starts the task that serves a connection as soon as the table has a place for it.
    async fn admit(&self, socket: ClientSocket, client: WebClient) {
        inject_panic("admit");
        let service = self.service.clone();
        let waiting = Limited::begin(&self.waiting, MAX_WAITING);
        let place = match (self.table.admit_at_once(client), &waiting) {
            // Further clients wait in the kernel's queue, and none is accepted, until this one has a place.
            (None, None) => self.table.wait_for_place(client, Duration::ZERO).await,
            (place, _) => place,
        };
        if let Some(place) = place {
            spawn_for_client(&self.service.store, connection::serve(socket, place, service));
            return;
        }
        let Some(waiting) = waiting else {
            self.table.count_refused();
            self.refuse(socket, too_many_connections());
            return;
        };
        // The listening socket accepts other clients meanwhile: some places are reserved for root.
        let (table, refusals) = (Arc::clone(&self.table), Arc::clone(&self.refusals));
        let has_plain_answers = self.listener.has_plain_answers();
        spawn_for_client(&self.service.store, async move {
            let place = table.wait_for_place(client, PLACE_TIMEOUT).await;
            drop(waiting);
            if let Some(place) = place {
                return connection::serve(socket, place, service).await;
            }
            table.count_refused();
            if has_plain_answers && let Some(_refusal) = Limited::begin(&refusals, MAX_REFUSALS) {
                connection::refuse(socket, too_many_connections()).await;
            }
        });
    }

    /// Answers the first request with `problem` and closes the connection. With TLS, there is no answer: it would need a
    /// handshake.
    fn refuse(&self, socket: ClientSocket, problem: ProblemDocument) {
        if !self.listener.has_plain_answers() {
            return;
        }
        let Some(refusal) = Limited::begin(&self.refusals, MAX_REFUSALS) else { return };
        spawn_for_client(&self.service.store, async move {
            connection::refuse(socket, problem).await;
            drop(refusal);
        });
    }
}

fn too_many_connections() -> ProblemDocument {
    let detail = "too many connections are open, and none of them is idle";
    ProblemDocument::new(ErrorCode::TooManyConnections, detail).with_hint("try again")
}

/// One of a limited number of tasks, counted until it is dropped.
struct Limited(Arc<AtomicUsize>);

impl Limited {
    /// `None` if `limit` tasks are running.
    fn begin(count: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let task = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < limit).then_some(task)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
