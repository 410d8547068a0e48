// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/reload`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use tokio::sync::oneshot;
use tokio::time::timeout;
use vipwatch_api::{ErrorCode, ProblemDocument, ReloadOutcome};
use vipwatch_node::view;

use super::{RequestHead, SharedContext, answer};
use crate::connection::RequestPeer;
use crate::parameters::{Parameters, check_accept, empty_body};
use crate::reply::{self, RouteResult};
use crate::socket::WebClient;

/// Maximum time for a reload, with the wait for the main loop.
const RELOAD_TIMEOUT: Duration = Duration::from_mins(1);

/// `POST /v1/reload`: the process reads its configuration again; the answer has the result.
pub(super) async fn reload(
    (State(context), uri, headers): RequestHead,
    Extension(peer): Extension<RequestPeer>,
    body: Body,
) -> Response {
    let reload = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        check_user(peer.client)?;
        empty_body(body).await?;
        let outcome = run_reload(&context).await?;
        Ok(reply::document(&view::reload(&context, outcome)))
    };
    answer(reload().await)
}

/// Only root and the user of the process may reload; the members of the socket's group may query.
fn check_user(client: WebClient) -> Result<(), ProblemDocument> {
    let own = rustix::process::geteuid().as_raw();
    if matches!(client, WebClient::User(user) if user == 0 || user == own) {
        return Ok(());
    }
    let detail = "only root and the user of the process may reload its configuration";
    Err(ProblemDocument::new(ErrorCode::NotPermitted, detail).with_hint("run it as root"))
}

/// Has the main loop reload, and waits for the result.
async fn run_reload(context: &SharedContext) -> Result<ReloadOutcome, ProblemDocument> {
    let Some(requests) = &context.reload_requests else {
        let problem = ProblemDocument::new(ErrorCode::Internal, "this process cannot reload");
        return Err(problem);
    };
    let (sender, ended) = oneshot::channel();
    requests.submit(move |outcome| {
        // The client may have gone.
        let _ = sender.send(outcome);
    });
    match timeout(RELOAD_TIMEOUT, ended).await {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(_)) => {
            let detail = "the process stopped before it reloaded its configuration";
            Err(ProblemDocument::new(ErrorCode::NotReady, detail))
        }
        Err(_) => {
            let seconds = RELOAD_TIMEOUT.as_secs();
            let detail = format!("the reload did not end within {seconds} s");
            let hint = "`vipwatch version` shows the result of the last reload that ended";
            Err(ProblemDocument::new(ErrorCode::ReloadTimeout, detail).with_hint(hint))
        }
    }
}
