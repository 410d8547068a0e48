// SPDX-License-Identifier: Apache-2.0
//! The process itself: health, version, configuration, status, reports and targets.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde::Serialize;
use vipwatch_api::{ErrorCode, HealthDocument, ProblemDocument, Schema};
use vipwatch_linux::worker::{stalled, watchdog_period};
use vipwatch_node::view::{self, ApiContext};

use super::{RequestHead, SharedContext, answer};
use crate::parameters::{Parameters, check_accept};
use crate::reply::{self, RouteResult};
use crate::work::on_file_thread;

/// The main loop runs at least every 10 s. After this time without a turn it hangs.
const MAX_TURN: Duration = Duration::from_secs(30);

/// `GET /healthz`: the process works.
pub(super) async fn healthz((State(context), uri, headers): RequestHead) -> Response {
    answer(health(&context, &uri, &headers))
}

/// `GET /readyz`: the process works, and has published the role of every instance. It answers no request before that,
/// so this is the same as `healthz`.
pub(super) async fn readyz((State(context), uri, headers): RequestHead) -> Response {
    answer(health(&context, &uri, &headers))
}

fn health(context: &ApiContext, uri: &Uri, headers: &HeaderMap) -> RouteResult {
    check_main_loop(context)?;
    check_threads()?;
    let document = HealthDocument { schema: Schema::Health, status: "ok".to_owned() };
    plain(uri, headers, || Ok(document))
}

/// An error if the main loop hangs: the published state may differ from the kernel's, and changes are not applied.
pub(crate) fn check_main_loop(context: &ApiContext) -> Result<(), ProblemDocument> {
    match context.store.time_since_turn().filter(|since| *since > MAX_TURN) {
        None => Ok(()),
        Some(since) => {
            let detail = format!("the main loop has not run for {} s", since.as_secs());
            let hint = "the process hangs: see its log; `vipwatch status --direct` queries the kernel instead";
            Err(ProblemDocument::new(ErrorCode::NotReady, detail).with_hint(hint))
        }
    }
}

/// An error if a thread makes no progress: findings, deliveries or the history may be old. Threads report progress only if
/// the service manager has a watchdog.
pub(super) fn check_threads() -> Result<(), ProblemDocument> {
    let Some(thread) = watchdog_period().and_then(stalled) else { return Ok(()) };
    let detail = format!("the thread {thread:?} makes no progress");
    let hint = "the process hangs: see its log; `vipwatch doctor --direct` audits without the node";
    Err(ProblemDocument::new(ErrorCode::NotReady, detail).with_hint(hint))
}

/// `GET /v1/version`
pub(super) async fn version((State(context), uri, headers): RequestHead) -> Response {
    answer(plain(&uri, &headers, || Ok(view::version(&context))))
}

/// `GET /v1/config`
pub(super) async fn config((State(context), uri, headers): RequestHead) -> Response {
    answer(plain(&uri, &headers, || Ok(view::config(&context))))
}

/// `GET /v1/status`
pub(super) async fn status((State(context), uri, headers): RequestHead) -> Response {
    answer(whole_document(&context, &uri, &headers, view::status).await)
}

/// `GET /v1/reports`
pub(super) async fn reports((State(context), uri, headers): RequestHead) -> Response {
    answer(plain(&uri, &headers, || view::reports(&context)))
}

/// `GET /v1/targets`
pub(super) async fn targets((State(context), uri, headers): RequestHead) -> Response {
    answer(plain(&uri, &headers, || Ok(view::targets(&context))))
}

/// A document of a route without parameters.
pub(super) fn plain<T: Serialize>(
    uri: &Uri,
    headers: &HeaderMap,
    document: impl FnOnce() -> Result<T, ProblemDocument>,
) -> RouteResult {
    Parameters::read(uri, &[])?;
    check_accept(headers, "application/json")?;
    Ok(reply::document(&document()?))
}

/// As [`plain`], for a document that is made on another thread.
pub(super) async fn whole_document<T: Serialize + Send + 'static>(
    context: &SharedContext,
    uri: &Uri,
    headers: &HeaderMap,
    make: fn(&ApiContext) -> T,
) -> RouteResult {
    Parameters::read(uri, &[])?;
    check_accept(headers, "application/json")?;
    made_elsewhere(context, make).await
}

/// Makes a document on another thread: it reads files, or the groups of a large cluster, which takes milliseconds.
pub(super) async fn made_elsewhere<T: Serialize + Send + 'static>(
    context: &SharedContext,
    make: impl FnOnce(&ApiContext) -> T + Send + 'static,
) -> RouteResult {
    let reading = Arc::clone(context);
    let document = on_file_thread(&context.store, move || make(&reading)).await?;
    Ok(reply::document(&document))
}
