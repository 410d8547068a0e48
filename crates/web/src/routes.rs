// SPDX-License-Identifier: Apache-2.0
//! The routes of the API. Each builds a document with a function of `vipwatch_node::view`.

mod audit;
mod cluster;
mod dashboard;
mod events;
mod history;
mod instances;
mod metrics;
mod process;
mod reload;
mod silences;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Frame;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::view::{ApiContext, ServiceKind};

pub(crate) use self::process::check_main_loop;
use crate::parameters::{MAX_BODY_BYTES, too_large};
use crate::reply::{self, RouteResult};
use crate::work::{inject_panic, is_panic_wanted};

/// The state that all routes share.
pub(crate) type SharedContext = Arc<ApiContext>;

/// The shared state, and the URI and the headers of the request.
type RequestHead = (State<SharedContext>, Uri, HeaderMap);

/// The routes of this process.
pub(crate) fn router(context: &ApiContext) -> Router {
    let shared: SharedContext = Arc::new(context.clone());
    // Routes with the published state, which is out of date while the main loop hangs.
    let mut of_state = Router::new()
        .route("/v1/reports", get(process::reports))
        .route("/v1/targets", get(process::targets))
        .route("/v1/reload", post(reload::reload))
        .route("/metrics", get(metrics::metrics));
    // Routes about the process and its records: they help to find out why the main loop hangs.
    let mut router = Router::new()
        .route("/healthz", get(process::healthz))
        .route("/readyz", get(process::readyz))
        .route("/v1/version", get(process::version))
        .route("/v1/config", get(process::config));
    if context.service.kind == ServiceKind::Node {
        let live = events::LiveEvents::follow(&shared);
        router = router
            .route("/v1/history", get(history::list))
            .route("/v1/events", get(events::stream).layer(Extension(live)));
        of_state = of_state
            .route("/v1/status", get(process::status))
            .route("/v1/instances", get(instances::list))
            .route("/v1/instances/{id}", get(instances::detail))
            .route("/metrics/keepalived", get(metrics::keepalived))
            .route("/v1/findings", get(audit::findings))
            .route("/v1/cluster", get(cluster::status))
            .route("/v1/cluster/changes", get(cluster::changes))
            .route("/v1/cluster/groups", get(cluster::groups))
            .route("/v1/cluster/nodes", get(cluster::nodes))
            .route("/v1/cluster/findings", get(cluster::findings))
            .route("/v1/cluster/history", get(cluster::history))
            .route("/v1/audit", post(audit::audit))
            .route("/v1/silences", get(silences::list).post(silences::create))
            .route("/v1/silences/{number}", delete(silences::end));
    }
    let of_state =
        of_state.route_layer(middleware::from_fn_with_state(Arc::clone(&shared), check_state));
    let mut router = router.merge(of_state);
    let kind = context.service.kind;
    if kind == ServiceKind::Node {
        router = router.merge(dashboard::router());
    }
    router
        .fallback(move |request: Request| async move { unknown_route(kind, &request) })
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(check_length))
        .with_state(shared)
}

/// Turns the result of a route into its answer.
pub(crate) fn answer(result: RouteResult) -> Response {
    result.unwrap_or_else(|problem| reply::problem(&problem))
}

fn unknown_route(kind: ServiceKind, request: &Request) -> Response {
    let path: String = request.uri().path().chars().take(80).collect();
    let problem =
        ProblemDocument::new(ErrorCode::UnknownRoute, format!("there is no route {path:?}"));
    reply::problem(&match kind {
        ServiceKind::Node => problem,
        ServiceKind::Receiver => {
            problem.with_hint("a receiver has no instances: query the node's socket")
        }
    })
}

async fn method_not_allowed(request: Request) -> Response {
    let method = request.method().as_str().chars().take(20).collect::<String>();
    let detail = format!("{} does not support {method}", request.uri().path());
    reply::problem(&ProblemDocument::new(ErrorCode::MethodNotAllowed, detail))
}

/// Refuses a request while the main loop hangs.
async fn check_state(
    State(context): State<SharedContext>,
    request: Request,
    next: Next,
) -> Response {
    match process::check_main_loop(&context) {
        Ok(()) => next.run(request).await,
        Err(problem) => reply::problem(&problem),
    }
}

/// Refuses a body that announces to be too large, on every route.
async fn check_length(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    inject_panic(&path);
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
        return reply::problem(&too_large());
    }
    let response = next.run(request).await;
    inject_body_panic(response, &format!("body of {path}"))
}

/// Replaces the body by one that panics while it is sent, if the environment variable names this place.
fn inject_body_panic(response: Response, place: &str) -> Response {
    if !is_panic_wanted(place) {
        return response;
    }
    let panicking = |_frame| -> Frame<Bytes> { panic!("a panic that a test has asked for") };
    response.map(|body| Body::new(body.map_frame(panicking)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use axum::http::StatusCode;
    use tower_service::Service;
    use vipwatch_node::{Config, direct};

    use super::*;

    #[tokio::test]
    async fn the_published_state_of_a_node_whose_main_loop_hangs_is_not_an_answer() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { state_dir: directory.path().to_owned(), ..Config::default() };
        let context = direct::history_context(&config);
        let mut router = router(&context);
        let mut status = async |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(Body::empty());
            router.call(request.unwrap()).await.unwrap().status()
        };
        context.store.record_turn();
        assert_eq!(status("GET", "/v1/status").await, StatusCode::OK);
        context.store.record_turn_at(Instant::now().checked_sub(Duration::from_mins(1)).unwrap());
        for path in [
            "/healthz",
            "/v1/status",
            "/v1/instances",
            "/v1/instances/a",
            "/v1/findings",
            "/metrics",
        ] {
            assert_eq!(status("GET", path).await, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        }
        for path in ["/v1/audit", "/v1/silences", "/v1/reload"] {
            assert_eq!(status("POST", path).await, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        }
        assert_eq!(status("GET", "/v1/version").await, StatusCode::OK);
        assert_eq!(status("GET", "/v1/unknown").await, StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_openapi_document_has_every_route_and_no_other() {
        let source = include_str!("routes.rs");
        let calls = source.split(".route(\"").skip(1);
        let routes: BTreeSet<&str> = calls.filter_map(|call| call.split('"').next()).collect();
        let routes: BTreeSet<&str> =
            routes.into_iter().filter(|route| route.starts_with('/')).collect();
        let document = vipwatch_api::openapi::document();
        let documented: BTreeSet<&str> = document.paths.paths.keys().map(String::as_str).collect();
        assert_eq!(documented, routes);
    }
}
