// SPDX-License-Identifier: Apache-2.0
//! One connection: sends requests and reads answers, with a runtime that works only during a call.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::ClientError;
use crate::{ErrorCode, ProblemDocument};

/// Time between two attempts to connect to a socket with a full queue of connections.
const CONNECT_RETRY: Duration = Duration::from_millis(20);

/// Maximum size of an error document in bytes.
const MAX_PROBLEM_BYTES: usize = 64 << 10;

/// A connection with at most one request under way.
pub(super) struct ClientConnection {
    path: PathBuf,
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    /// The rest of the answer to the last request.
    body: Option<Incoming>,
}

impl std::fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnection").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ClientConnection {
    /// Connects to the socket at `path`.
    pub(super) fn open(path: &Path, limit: Duration) -> Result<Self, ClientError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| io_error(path, source))?;
        let sender = runtime.block_on(async {
            let stream = connect(path, limit).await?;
            let handshake = http1::handshake(TokioIo::new(stream));
            let (sender, driver) = handshake.await.map_err(|error| hyper_error(path, &error))?;
            tokio::spawn(driver);
            Ok(sender)
        })?;
        Ok(Self { path: path.to_owned(), runtime, sender, body: None })
    }

    /// Sends a request, and waits up to `limit` for the head of the answer. An answer that is an error becomes
    /// [`ClientError::Problem`].
    pub(super) fn request(
        &mut self,
        method: &str,
        target: &str,
        body: Option<String>,
        limit: Duration,
    ) -> Result<(), ClientError> {
        let mut request = Request::builder().method(method).uri(target).header("host", "localhost");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Full::from(body.unwrap_or_default()));
        let request = request.map_err(|error| self.invalid(error.to_string()))?;
        let (path, sender) = (&self.path, &mut self.sender);
        let answer = self.runtime.block_on(async {
            let exchange = async {
                sender.ready().await?;
                sender.send_request(request).await
            };
            timeout(limit, exchange).await
        });
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(hyper_error(path, &error)),
            Err(_) => return Err(ClientError::TimedOut { path: path.clone(), after: limit }),
        };
        if answer.status().is_success() {
            self.body = Some(answer.into_body());
            return Ok(());
        }
        Err(self.problem(answer, limit))
    }

    /// The whole answer as a document. Fails if a part of it does not arrive within `limit`.
    pub(super) fn document<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let mut bytes = Vec::new();
        while let Some(part) = self.next_part(limit)? {
            bytes.extend_from_slice(&part);
        }
        serde_json::from_slice(&bytes).map_err(|error| self.invalid(error.to_string()))
    }

    /// The next part of the answer; `None` at its end. Fails if none arrives within `limit`.
    pub(super) fn next_part(&mut self, limit: Duration) -> Result<Option<Bytes>, ClientError> {
        let Some(body) = &mut self.body else { return Ok(None) };
        let path = &self.path;
        self.runtime.block_on(async {
            let end = Instant::now() + limit;
            loop {
                match timeout_at(end, body.frame()).await {
                    Ok(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            return Ok(Some(data));
                        }
                    }
                    Ok(Some(Err(error))) => return Err(hyper_error(path, &error)),
                    Ok(None) => return Ok(None),
                    Err(_) => {
                        return Err(ClientError::TimedOut { path: path.clone(), after: limit });
                    }
                }
            }
        })
    }

    /// An answer that does not have the expected form.
    pub(super) fn invalid(&self, reason: impl Into<String>) -> ClientError {
        ClientError::InvalidAnswer { path: self.path.clone(), reason: reason.into() }
    }

    /// The server closed the connection too early.
    pub(super) fn closed(&self) -> ClientError {
        ClientError::Closed(self.path.clone())
    }

    /// The error that the server has sent.
    fn problem(&mut self, answer: Response<Incoming>, limit: Duration) -> ClientError {
        let status = answer.status().as_u16();
        self.body = Some(answer.into_body());
        let mut bytes = Vec::new();
        while bytes.len() < MAX_PROBLEM_BYTES {
            match self.next_part(limit) {
                Ok(Some(part)) => bytes.extend_from_slice(&part),
                Ok(None) => break,
                Err(error) => return error,
            }
        }
        // Another program may listen on the socket: its errors are no problem documents.
        let problem = serde_json::from_slice(&bytes).unwrap_or_else(|_| ProblemDocument {
            status,
            ..ProblemDocument::new(
                ErrorCode::Other,
                format!("the server answered with status {status}"),
            )
        });
        ClientError::Problem(Box::new(problem))
    }
}

/// Connects within `limit`. The kernel does not wait while the queue of a non-blocking unix socket is full (EAGAIN), so
/// the attempt is repeated.
async fn connect(path: &Path, limit: Duration) -> Result<UnixStream, ClientError> {
    let end = Instant::now() + limit;
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(source) => return Err(io_error(path, source)),
        }
        if Instant::now() >= end {
            return Err(ClientError::TimedOut { path: path.to_owned(), after: limit });
        }
        sleep(CONNECT_RETRY).await;
    }
}

fn io_error(path: &Path, source: io::Error) -> ClientError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ClientError::NotListening(path)
        }
        io::ErrorKind::PermissionDenied => ClientError::NotPermitted(path),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => ClientError::Closed(path),
        _ => ClientError::Io { path, source },
    }
}

fn hyper_error(path: &Path, error: &hyper::Error) -> ClientError {
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return ClientError::Closed(path.to_owned());
    }
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    if let Some(source) = source {
        let source: &io::Error = source;
        let same = source.raw_os_error().map(io::Error::from_raw_os_error);
        return io_error(path, same.unwrap_or_else(|| source.kind().into()));
    }
    ClientError::InvalidAnswer { path: path.to_owned(), reason: error.to_string() }
}
