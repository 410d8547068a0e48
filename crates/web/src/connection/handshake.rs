// SPDX-License-Identifier: Apache-2.0
//! The TLS handshake of a new connection, within the limits of the table of connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::state::StateStore;

use super::table::{ClientIdentity, CloseReason, Place};
use super::{finish, refuse};
use crate::credentials::{CredentialStore, TlsMaterial};
use crate::socket::ClientSocket;

/// Maximum number of bytes that TLS keeps for a client that does not read.
const TLS_BUFFER_BYTES: usize = 16 << 10;

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    /// The client has closed the connection without a byte, as a check of the port does.
    #[error("the client has sent nothing")]
    Gone,
    #[error("the client uses HTTP without TLS")]
    PlainHttp,
    #[error(transparent)]
    Tls(io::Error),
    #[error("it took too long")]
    TimedOut,
    /// `web.client_ca` has changed during the handshake.
    #[error("the certificate of the client is no longer trusted")]
    Withdrawn,
    /// A new client needed the place.
    #[error("too many connections")]
    Evicted,
}

/// The connection with TLS; `None` if that fails, or takes too long.
pub(super) async fn secure(
    socket: ClientSocket,
    place: &Place,
    credentials: &CredentialStore,
    store: &StateStore,
) -> Option<ClientSocket> {
    let (stream, tls) = match (socket, credentials.tls()) {
        (ClientSocket::Tcp(stream), Some(tls)) => (stream, tls),
        (socket, _) => return Some(socket),
    };
    let peer = stream.peer_addr().map(|peer| peer.ip().to_string()).unwrap_or_default();
    place.wait_for_handshake();
    let secured = tokio::select! {
        secured = shake_hands(stream, place, &tls) => secured,
        reason = place.closed() => Err(match reason {
            CloseReason::Evicted => HandshakeError::Evicted,
            CloseReason::HandshakeTimeout
            | CloseReason::Idle
            | CloseReason::HeadTimeout
            | CloseReason::Stalled
            | CloseReason::Unauthorized
            | CloseReason::ClientError => HandshakeError::TimedOut,
        }),
    };
    let error = match secured {
        Ok(mut stream) => {
            let (_, session) = stream.get_mut();
            session.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            let chain = session.peer_certificates().filter(|chain| !chain.is_empty());
            let chain = chain.map(|chain| chain.iter().map(|one| one.clone().into_owned()));
            let identity = chain.map(|chain| ClientIdentity::Certificate(chain.collect()));
            // ORDER: a change of the authorities closes the connections with an identity. This one has none before.
            if identity.as_ref().is_none_or(|identity| credentials.is_known(identity)) {
                place.end_handshake(identity);
                return Some(ClientSocket::Tls(Box::new(stream)));
            }
            HandshakeError::Withdrawn
        }
        Err(HandshakeError::Gone) => return None,
        Err(error) => error,
    };
    store.counters.web_handshakes_failed.fetch_add(1, Ordering::Relaxed);
    if let Some(left_out) = credentials.handshake_log.count(Instant::now()) {
        tracing::warn!(peer, %error, left_out, "TLS handshake failed");
    }
    None
}

async fn shake_hands(
    stream: TcpStream,
    place: &Place,
    tls: &TlsMaterial,
) -> Result<TlsStream<TcpStream>, HandshakeError> {
    let mut first = [0];
    if stream.peek(&mut first).await.map_err(HandshakeError::Tls)? == 0 {
        return Err(HandshakeError::Gone);
    }
    place.begin_handshake();
    // A handshake begins with the byte 22, an HTTP request with the name of a method.
    if first[0].is_ascii_alphabetic() {
        let problem = ProblemDocument::new(ErrorCode::InvalidRequest, "this port uses TLS");
        let problem = problem.with_hint("use https:// instead of http://");
        refuse(ClientSocket::Tcp(stream), problem).await;
        return Err(HandshakeError::PlainHttp);
    }
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.config));
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            // The client can read the alert, which has the reason.
            finish(&mut ClientSocket::Tcp(stream), &[]).await;
            Err(HandshakeError::Tls(error))
        }
    }
}
