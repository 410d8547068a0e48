// SPDX-License-Identifier: Apache-2.0
//! One connection: HTTP/1.1 by hyper, with the deadlines and problem documents that hyper does not have.
//!
//! With TLS, the handshake comes first: a client has 5 s for its first byte, and 5 s more for the handshake.
//!
//! ```text
//!            first byte               request complete            answer complete
//!   Idle ───────────────▶ Head ───────────────────────▶ Serving ─────────────────▶ Sending
//!    ▲ │ 30 s: closed      │ 10 s: 408                    │ blocked for 10 s (stream: 60 s): closed
//!    └─┼───────────────────┼──────────────────────────────┼───────────────────────────┘ buffers empty
//!      ▼                   ▼                              ▼
//!            closed
//! ```

mod handshake;
mod io;
mod table;

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, body::Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tower_service::Service;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::state::StateStore;

use self::io::ConnectionIo;
pub(crate) use self::table::{
    ClientIdentity, ConnectionTable, PLACE_TIMEOUT, Place, RequestPeer, TableKind,
};
use self::table::{CloseReason, TrackedBody};
use crate::credentials::CredentialStore;
use crate::reply;
use crate::socket::ClientSocket;
use crate::work::CatchPanic;

/// Maximum size of the head of a request in bytes; also the size of hyper's buffers.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// Maximum time that the client of a refused connection has for its request.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// After an error, so many bytes that the client still sends are read and ignored: if the socket were closed with
/// unread bytes, the kernel could report a reset to the client before it has read the answer.
const MAX_DISCARDED_BYTES: usize = 1 << 20;

/// Maximum time for the rest of an answer and for [`MAX_DISCARDED_BYTES`].
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// What all connections of a listening socket share.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionService {
    pub(crate) router: Router,
    pub(crate) store: Arc<StateStore>,
    /// `None` if neither TLS nor tokens are used.
    pub(crate) credentials: Option<Arc<CredentialStore>>,
}

/// Serves the requests of one connection until it ends.
pub(crate) async fn serve(socket: ClientSocket, place: Place, service: ConnectionService) {
    let ConnectionService { router, store, credentials } = service;
    let socket = match credentials {
        None => socket,
        Some(credentials) => {
            let secured = handshake::secure(socket, &place, &credentials, &store);
            let Some(socket) = Box::pin(secured).await else { return };
            socket
        }
    };
    let io = ConnectionIo::new(socket, place.clone());
    let service = service_fn(|mut request: Request<Incoming>| {
        let (mut router, place, store) = (router.clone(), place.clone(), store.clone());
        Box::pin(async move {
            place.begin_request();
            request.extensions_mut().insert(RequestPeer::of(&place));
            let future = router.call(request.map(Body::new));
            let answer = CatchPanic { future, store: &store }.await;
            let answer = match answer {
                Ok(Ok(answer)) => answer,
                Ok(Err(never)) => match never {},
                Err(panic) => {
                    reply::problem(&ProblemDocument::new(ErrorCode::Internal, panic.to_string()))
                }
            };
            Ok::<_, Infallible>(answer.map(|body| TrackedBody::new(body, place)))
        })
    });
    let mut connection = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let reason = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => {
            // An error means that the client has gone, or has sent something that is not HTTP, and has its answer.
            ended.err().map(|_| CloseReason::ClientError)
        }
        reason = place.closed() => Some(reason),
    };
    let mut io = connection.into_parts().io.into_inner();
    match reason {
        Some(CloseReason::HeadTimeout) => {
            let problem = ProblemDocument::new(
                ErrorCode::RequestTimeout,
                "the request was not complete within 10 s",
            );
            finish(io.stream(), &reply::raw_problem(&problem)).await;
        }
        Some(CloseReason::ClientError) | None => finish(io.stream(), &[]).await,
        Some(
            CloseReason::Idle
            | CloseReason::HandshakeTimeout
            | CloseReason::Stalled
            | CloseReason::Unauthorized
            | CloseReason::Evicted,
        ) => {}
    }
}

/// Answers the first request with `problem`, and closes the connection.
pub(crate) async fn refuse(mut stream: ClientSocket, problem: ProblemDocument) {
    // ORDER: the request is read first; see [`MAX_DISCARDED_BYTES`].
    let read_head = async {
        let mut head = Vec::new();
        let mut buffer = [0; 1024];
        while head.len() < MAX_HEAD_BYTES && !head.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => head.extend_from_slice(&buffer[..length]),
            }
        }
    };
    let _ = timeout(REFUSAL_TIMEOUT, read_head).await;
    finish(&mut stream, &reply::raw_problem(&problem)).await;
}

/// Sends the rest of the answer, and ignores further bytes of the client.
async fn finish(stream: &mut ClientSocket, rest: &[u8]) {
    let discard = async {
        let _ = stream.write_all(rest).await;
        let _ = stream.shutdown().await;
        let mut buffer = [0; 4096];
        let mut left = MAX_DISCARDED_BYTES;
        while left > 0 {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => left = left.saturating_sub(length),
            }
        }
    };
    let _ = timeout(DISCARD_TIMEOUT, discard).await;
}
