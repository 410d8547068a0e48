// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/silences`, `POST /v1/silences` and `DELETE /v1/silences/{number}`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use vipwatch_api::SilenceRequest;
use vipwatch_linux::account;
use vipwatch_node::view;

use super::process::plain;
use super::{RequestHead, answer};
use crate::connection::RequestPeer;
use crate::parameters::{Parameters, check_accept, invalid, json_body};
use crate::reply::{self, RouteResult};
use crate::socket::WebClient;
use crate::work::on_file_thread;

pub(super) async fn list((State(context), uri, headers): RequestHead) -> Response {
    answer(plain(&uri, &headers, || Ok(view::silences(&context))))
}

pub(super) async fn create(
    (State(context), uri, headers): RequestHead,
    Extension(peer): Extension<RequestPeer>,
    body: Body,
) -> Response {
    let create = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        let request: SilenceRequest = json_body(&headers, body).await?;
        let store = Arc::clone(&context.store);
        let created = on_file_thread(&store, move || {
            view::create_silence(&context, &request, &user(peer.client))
        });
        Ok(reply::with_status(StatusCode::CREATED, &created.await??))
    };
    answer(create().await)
}

/// The client, as silences name it.
fn user(client: WebClient) -> String {
    match client {
        WebClient::User(user) => account::name(user).unwrap_or_else(|| user.to_string()),
        WebClient::Network { peer, .. } => peer.to_string(),
    }
}

pub(super) async fn end(
    (State(context), uri, headers): RequestHead,
    Extension(peer): Extension<RequestPeer>,
    number: Result<Path<String>, PathRejection>,
) -> Response {
    let end = || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        let Path(text) = number.map_err(|error| invalid(format!("the number: {error}")))?;
        let number = text.parse().map_err(|error| invalid(format!("silence {text:?}: {error}")))?;
        Ok(reply::document(&view::end_silence(&context, number, &user(peer.client))?))
    };
    answer(end())
}
