// SPDX-License-Identifier: Apache-2.0
//! The socket of a connection as hyper sees it: notices what the client does, and replaces hyper's own error answers.
//!
//! hyper answers a request that it cannot parse with an empty body. The API promises a problem document for every
//! error, so such an answer is replaced while it is written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use vipwatch_api::{ErrorCode, ProblemDocument};

use super::table::Place;
use crate::reply;
use crate::socket::ClientSocket;

/// The socket and the state of its connection.
#[derive(Debug)]
pub(super) struct ConnectionIo {
    stream: ClientSocket,
    place: Place,
    /// The part of a replaced answer that is not written yet.
    pending: Vec<u8>,
}

impl ConnectionIo {
    pub(super) fn new(stream: ClientSocket, place: Place) -> Self {
        Self { stream, place, pending: Vec::new() }
    }

    pub(super) fn stream(&mut self) -> &mut ClientSocket {
        &mut self.stream
    }

    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.pending))?;
            self.pending.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ConnectionIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.place.received_bytes();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ConnectionIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pending(cx))?;
        if let Some(problem) = parse_problem(bytes) {
            self.pending = reply::raw_problem(&problem);
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.place.set_blocked(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // An answer that may be replaced has one part only, its head.
        if let [head] = parts {
            return self.poll_write(cx, head);
        }
        ready!(self.poll_pending(cx))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.place.set_blocked(written.is_pending());
        written
    }

    /// hyper then passes the parts of a body without a copy, so that all event streams send the same bytes in memory.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        // TLS takes bytes before the socket does. Other sockets have nothing to flush.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.place.set_blocked(flushed.is_pending());
        ready!(flushed)?;
        // hyper flushes after it has written its own buffer.
        self.place.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The problem that stands for hyper's own answer to a request that it cannot parse; `None` for any other bytes. All
/// errors of routes have a content type.
fn parse_problem(bytes: &[u8]) -> Option<ProblemDocument> {
    let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let is_empty = bytes.ends_with(b"\r\n\r\n");
    let has_type = bytes.windows(13).any(|part| part.eq_ignore_ascii_case(b"content-type:"));
    if !is_empty || has_type {
        return None;
    }
    match status {
        b"400" => {
            Some(ProblemDocument::new(ErrorCode::InvalidRequest, "the request is not HTTP/1.1"))
        }
        b"414" | b"431" => {
            let detail =
                "the head of the request is larger than 16 KiB, or has more than 100 headers";
            Some(ProblemDocument::new(ErrorCode::TooLarge, detail))
        }
        _ => None,
    }
}
