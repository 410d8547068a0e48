// SPDX-License-Identifier: Apache-2.0
//! The body of an event stream: a future that makes the parts, polled by the task of its connection.
//!
//! A stream has no task of its own: one event costs one wake-up for each stream. hyper asks for a part only while it
//! can write, so a client that does not read stops the future of its own stream, and nothing else.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};

/// Passes parts from the future of a stream to its body, one at a time.
#[derive(Debug, Clone, Default)]
pub(super) struct PartSender(Arc<Mutex<Option<Bytes>>>);

impl PartSender {
    /// Sends a part. Returns when the connection asks for the next one.
    pub(super) async fn send(&self, part: Bytes) {
        *self.lock() = Some(part);
        // No waker is needed: the body polls this future again after it has taken the part.
        poll_fn(|_| if self.lock().is_some() { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body; it ends with its future. Dropping it, when the client has gone, drops the future.
pub(super) struct EventBody<F> {
    future: Pin<Box<F>>,
    parts: PartSender,
}

impl<F: Future<Output = ()>> EventBody<F> {
    /// A body with the parts that `future` sends.
    pub(super) fn new(parts: PartSender, future: F) -> Self {
        Self { future: Box::pin(future), parts }
    }
}

impl<F: Future<Output = ()>> Body for EventBody<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let ended = self.future.as_mut().poll(cx).is_ready();
        match self.parts.lock().take() {
            Some(part) => Poll::Ready(Some(Ok(Frame::data(part)))),
            None if ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_part_is_made_when_the_one_before_was_taken() {
        let parts = PartSender::default();
        let sent = Arc::new(Mutex::new(0));
        let future = {
            let (parts, sent) = (parts.clone(), Arc::clone(&sent));
            async move {
                loop {
                    *sent.lock().unwrap() += 1;
                    parts.send(Bytes::from_static(b"part")).await;
                    tokio::task::yield_now().await;
                }
            }
        };
        let mut body = EventBody::new(parts, future);
        for count in 1..=3 {
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "part");
            assert_eq!(*sent.lock().unwrap(), count);
        }
    }
}
