// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/findings` and `POST /v1/audit`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use tokio::sync::oneshot;
use tokio::time::timeout;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_node::view;

use super::process::check_threads;
use super::{SharedContext, answer};
use crate::parameters::{Parameters, check_accept, empty_body};
use crate::reply::{self, RouteResult};
use crate::work::on_file_thread;

/// Maximum time for an audit of all instances, with the wait for an audit that runs already.
const AUDIT_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) async fn findings(
    State(context): State<SharedContext>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let findings = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        check_threads()?;
        known_findings(&context).await
    };
    answer(findings().await)
}

pub(super) async fn audit(
    State(context): State<SharedContext>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let audit = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        empty_body(body).await?;
        check_threads()?;
        run_audit(&context).await?;
        known_findings(&context).await
    };
    answer(audit().await)
}

async fn known_findings(context: &SharedContext) -> RouteResult {
    let reading = Arc::clone(context);
    let document = on_file_thread(&context.store, move || view::findings(&reading)).await?;
    Ok(reply::document(&document))
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
