// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/findings` and `POST /v1/audit`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use tokio::sync::oneshot;
use tokio::time::timeout;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::view;

use super::process::{check_threads, made_elsewhere};
use super::{RequestHead, SharedContext, answer};
use crate::parameters::{Parameters, check_accept, empty_body};
use crate::reply::RouteResult;

/// Maximum time for an audit of all instances, with the wait for an audit that runs already.
const AUDIT_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) async fn findings((State(context), uri, headers): RequestHead) -> Response {
    let findings = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        check_threads()?;
        made_elsewhere(&context, view::findings).await
    };
    answer(findings().await)
}

pub(super) async fn audit((State(context), uri, headers): RequestHead, body: Body) -> Response {
    let audit = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        empty_body(body).await?;
        check_threads()?;
        run_audit(&context).await?;
        made_elsewhere(&context, view::findings).await
    };
    answer(audit().await)
}

/// Has all instances audited in the node's audit thread.
async fn run_audit(context: &SharedContext) -> Result<(), ProblemDocument> {
    let Some(requests) = &context.audit_requests else {
        let problem = ProblemDocument::new(ErrorCode::Internal, "this process has no audit thread");
        return Err(problem);
    };
    let (sender, ended) = oneshot::channel();
    requests.submit(move || {
        // The client may have gone.
        let _ = sender.send(());
    });
    if let Ok(Ok(())) = timeout(AUDIT_TIMEOUT, ended).await {
        return Ok(());
    }
    let detail = format!("the audit did not end within {} s", AUDIT_TIMEOUT.as_secs());
    let hint = "GET /v1/findings has the findings of the last audit";
    Err(ProblemDocument::new(ErrorCode::AuditTimeout, detail).with_hint(hint))
}
