// SPDX-License-Identifier: Apache-2.0
//! Work that must not stop the thread of the server: panics that a client causes, and reading files.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::panic::{CaughtPanic, caught};
use vipwatch_node::state::StateStore;

/// Runs `work` for a request. A panic is logged and counted, and the process goes on.
pub(crate) fn catch<T>(store: &StateStore, work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    caught(work).inspect_err(|_panic| {
        store.counters.api_panics.fetch_add(1, Ordering::Relaxed);
    })
}

/// A future; its panic is counted and becomes an error.
pub(crate) struct CatchPanic<'a, F> {
    pub(crate) future: F,
    pub(crate) store: &'a StateStore,
}

impl<F: Future + Unpin> Future for CatchPanic<'_, F> {
    type Output = Result<F::Output, CaughtPanic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let store = self.store;
        match catch(store, || Pin::new(&mut self.future).poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

/// Starts a task that belongs to a client. A panic ends this task only.
pub(crate) fn spawn_for_client(
    store: &Arc<StateStore>,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let store = Arc::clone(store);
    tokio::spawn(async move {
        // The log has the message of a panic.
        let _ = CatchPanic { future: Box::pin(task), store: &store }.await;
    });
}

/// Runs `work`, which reads files, on another thread.
pub(crate) async fn on_file_thread<T: Send + 'static>(
    store: &Arc<StateStore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ProblemDocument> {
    let store = Arc::clone(store);
    let result = tokio::task::spawn_blocking(move || catch(&store, work)).await;
    match result {
        Ok(Ok(value)) => Ok(value),
        // A cancelled task or a panic; the log has the message.
        Ok(Err(_)) | Err(_) => {
            Err(ProblemDocument::new(ErrorCode::Internal, CaughtPanic.to_string()))
        }
    }
}

/// Panics at the place that an environment variable names, once, for tests of the whole program: a path, a part of its
/// answer, or a part of the server. Release builds never panic here.
pub(crate) fn inject_panic(place: &str) {
    assert!(!is_panic_wanted(place), "a panic that a test has asked for");
}

/// Whether a test wants a panic at this place; true only once.
pub(crate) fn is_panic_wanted(place: &str) -> bool {
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    cfg!(debug_assertions)
        && std::env::var("VIPWATCH_TEST_PANIC_ROUTE").as_deref() == Ok(place)
        && !HAS_PANICKED.swap(true, Ordering::Relaxed)
}
