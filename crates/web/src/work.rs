//! Work that must not stop the thread of the server: panics of handlers, and reading files.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use vipwatch_api::{ErrorCode, Problem};
use vipwatch_node::panic::{CaughtPanic, caught};

/// A future whose panic becomes an error.
pub(crate) struct CatchPanic<F>(pub(crate) F);

impl<F: Future + Unpin> Future for CatchPanic<F> {
    type Output = Result<F::Output, CaughtPanic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match caught(|| Pin::new(&mut self.0).poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

/// Runs `work`, which reads files, on another thread.
pub(crate) async fn on_file_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let result = tokio::task::spawn_blocking(|| caught(work)).await;
    match result {
        Ok(Ok(value)) => Ok(value),
        // A cancelled task or a panic; the log has the message.
        Ok(Err(_)) | Err(_) => Err(Problem::new(ErrorCode::Internal, CaughtPanic.to_string())),
    }
}
