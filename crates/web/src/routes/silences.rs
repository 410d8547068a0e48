//! `GET /v1/silences`, `POST /v1/silences` and `DELETE /v1/silences/{number}`.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use vipwatch_api::{ErrorCode, Problem, SilenceRequest};
use vipwatch_node::view;

use super::process::plain;
use super::{SharedContext, answer};
use crate::parameters::{Parameters, check_accept, invalid, json_body};
use crate::reply::RouteResult;

/// Maximum length of a silence in seconds: 30 days.
const MAX_SECONDS: u64 = 30 * 86_400;

/// Maximum length of a reason in characters.
const MAX_REASON_CHARS: usize = 500;

pub(super) async fn list(
    State(context): State<SharedContext>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(plain(&uri, &headers, || Ok(view::silences(&context))))
}

pub(super) async fn create(
    State(_context): State<SharedContext>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let create = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        let request: SilenceRequest = json_body(&headers, body).await?;
        check(&request)?;
        Err(Problem::new(ErrorCode::Internal, "silences are not available yet"))
    };
    answer(create().await)
}

fn check(request: &SilenceRequest) -> Result<(), Problem> {
    if !(1..=MAX_SECONDS).contains(&request.seconds) {
        return Err(invalid(format!(
            "seconds={} is not within 1 and {MAX_SECONDS}",
            request.seconds
        )));
    }
    let length = request.reason.chars().count();
    if !(1..=MAX_REASON_CHARS).contains(&length) {
        return Err(invalid(format!(
            "the reason has {length} characters, not 1 to {MAX_REASON_CHARS}"
        )));
    }
    Ok(())
}

pub(super) async fn end(
    State(_context): State<SharedContext>,
    number: Result<Path<i64>, PathRejection>,
    uri: Uri,
) -> Response {
    let end = || -> RouteResult {
        Parameters::read(&uri, &[])?;
        let Path(number) = number.map_err(|error| invalid(format!("the number: {error}")))?;
        let detail = format!("there is no silence {number}");
        Err(Problem::new(ErrorCode::UnknownSilence, detail))
    };
    answer(end())
}
