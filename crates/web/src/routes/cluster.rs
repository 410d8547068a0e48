// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/cluster`, and `changes`, `groups`, `nodes`, `findings` and `history` below it.

use std::future::poll_fn;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::Uri;
use axum::response::Response;
use tokio::time::timeout;
use vipwatch_api::{ClusterChangeCount, ClusterFilter, GroupState, ProblemDocument, Schema};
use vipwatch_node::view;

use super::events::too_many_streams;
use super::process::{made_elsewhere, whole_document};
use super::{RequestHead, answer};
use crate::connection::RequestPeer;
use crate::parameters::{Parameters, check_accept, invalid};
use crate::reply::{self, RouteResult};

pub(super) async fn status((State(context), uri, headers): RequestHead) -> Response {
    answer(whole_document(&context, &uri, &headers, view::cluster_status).await)
}

pub(super) async fn nodes((State(context), uri, headers): RequestHead) -> Response {
    answer(whole_document(&context, &uri, &headers, view::cluster_nodes).await)
}

pub(super) async fn findings((State(context), uri, headers): RequestHead) -> Response {
    answer(whole_document(&context, &uri, &headers, view::cluster_findings).await)
}

pub(super) async fn history((State(context), uri, headers): RequestHead) -> Response {
    answer(whole_document(&context, &uri, &headers, view::cluster_history).await)
}

/// A request for changes is answered after this time at the latest, so that a client notices a lost connection.
const CHANGE_WAIT: Duration = Duration::from_secs(15);

/// `GET /v1/cluster/changes?after=NUMBER`: waits until the number of changes differs from `after`.
pub(super) async fn changes(
    (State(context), uri, headers): RequestHead,
    Extension(peer): Extension<RequestPeer>,
) -> Response {
    let changes = async || -> RouteResult {
        check_accept(&headers, "application/json")?;
        let after = Parameters::read(&uri, &["after"])?.one("after")?.unwrap_or(0);
        let _wait = peer.wait_as_stream().ok_or_else(too_many_streams)?;
        let counter = &context.store.cluster_changes;
        let waited = timeout(CHANGE_WAIT, poll_fn(|task| counter.poll_other(after, task))).await;
        let changes = waited.unwrap_or_else(|_| counter.number());
        Ok(reply::document(&ClusterChangeCount { schema: Schema::ClusterChanges, changes }))
    };
    answer(changes().await)
}

pub(super) async fn groups((State(context), uri, headers): RequestHead) -> Response {
    let groups = async || -> RouteResult {
        check_accept(&headers, "application/json")?;
        let filter = filter(&uri)?;
        made_elsewhere(&context, move |context| view::cluster_groups(context, &filter)).await
    };
    answer(groups().await)
}

fn filter(uri: &Uri) -> Result<ClusterFilter, ProblemDocument> {
    let parameters = Parameters::read(uri, &["state", "node", "group", "address"])?;
    let states = parameters.all::<String>("state")?.into_iter().map(|word| {
        GroupState::from_word(&word).ok_or_else(|| {
            let known = GroupState::ALL.map(GroupState::word).join(", ");
            invalid(format!("state={word:?} is not one of {known}"))
        })
    });
    Ok(ClusterFilter {
        states: states.collect::<Result<_, _>>()?,
        nodes: parameters.all("node")?,
        groups: parameters.all("group")?,
        addresses: parameters.all("address")?,
    })
}
