// SPDX-License-Identifier: Apache-2.0
//! A stream of requests and answers between a session and the simulated etcd.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use super::link::EtcdChannel;
use super::network::{AnyMessage, connection_error};
use crate::etcd::messages::WatchRequest;

/// How long a stream without an answer is taken for open: the pings of the client are not answered.
const PING_LIMIT: Duration = Duration::from_secs(13);

/// The messages of a stream that are on their way, in the order of their arrival.
#[derive(Default)]
pub(super) struct MessageQueue {
    state: Mutex<QueueState>,
    pushed: Notify,
}

#[derive(Default)]
struct QueueState {
    messages: BTreeMap<(Instant, u64), AnyMessage>,
    last: u64,
}

impl fmt::Debug for MessageQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessageQueue")
    }
}

impl MessageQueue {
    pub(super) fn push(&self, arrival: Instant, message: AnyMessage) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.last += 1;
        let number = state.last;
        state.messages.insert((arrival, number), message);
        drop(state);
        self.pushed.notify_one();
    }

    fn pop(&self, now: Instant) -> Option<AnyMessage> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = state.messages.first_key_value().is_some_and(|((at, _), _)| *at <= now);
        if is_due { state.messages.pop_first().map(|(_, message)| message) } else { None }
    }

    fn next_arrival(&self) -> Option<Instant> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.messages.first_key_value().map(|((at, _), _)| *at)
    }
}

/// The last message of a stream: its connection has ended.
pub(super) struct EndOfStream;

/// The requests of the client that etcd has not read yet.
pub(super) type WaitingRequests =
    Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<AnyMessage>> + Send + Sync>;

/// The client's end of a stream.
pub(crate) struct AnswerStream<T> {
    channel: EtcdChannel,
    queue: Arc<MessageQueue>,
    requests: WaitingRequests,
    has_more_requests: bool,
    /// The number of the stream at etcd.
    number: u64,
    answers: PhantomData<fn() -> T>,
}

impl<T: Any> AnswerStream<T> {
    pub(super) fn new(channel: EtcdChannel, requests: WaitingRequests) -> Self {
        let queue = Arc::new(MessageQueue::default());
        let number = channel.network.state().watches.add(channel.node, queue.clone());
        let answers = PhantomData;
        Self { channel, queue, requests, has_more_requests: true, number, answers }
    }

    /// The next answer. It can be dropped at any time, and called again.
    pub(crate) async fn message(&mut self) -> Result<Option<T>, Status> {
        loop {
            let network = self.channel.network.clone();
            let changed = network.changed.notified();
            let cut_since = self.channel.check()?;
            let next = match cut_since {
                Some(since) if since.elapsed() >= PING_LIMIT => {
                    return Err(connection_error("keep-alive timed out"));
                }
                Some(since) => Some(since + PING_LIMIT),
                None => {
                    if let Some(message) = self.queue.pop(Instant::now()) {
                        if message.is::<EndOfStream>() {
                            return Err(connection_error("connection reset by peer"));
                        }
                        return Ok(message.downcast().ok().map(|message| *message));
                    }
                    self.queue.next_arrival()
                }
            };
            let requests = &mut self.requests;
            tokio::select! {
                biased;
                request = poll_fn(requests), if cut_since.is_none() && self.has_more_requests => {
                    match request {
                        Some(request) => self.handle(&request)?,
                        None => self.has_more_requests = false,
                    }
                }
                () = self.queue.pushed.notified() => {}
                () = changed => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    fn handle(&self, request: &AnyMessage) -> Result<(), Status> {
        let network = &self.channel.network;
        if let Some(request) = request.downcast_ref::<WatchRequest>() {
            network.state().watch_request(self.number, request);
            return Ok(());
        }
        let answer = network.handle(request)?;
        let arrival = Instant::now() + 2 * network.state().delay(self.channel.node);
        self.queue.push(arrival, answer);
        Ok(())
    }
}

impl<T> Drop for AnswerStream<T> {
    fn drop(&mut self) {
        self.channel.network.state().watches.remove(self.number);
    }
}
