// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/instances` and `GET /v1/instances/{id}`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use vipwatch_api::{InstanceFilter, InstanceList, RoleKind, Schema};
use vipwatch_node::view;

use super::{RequestHead, answer};
use crate::parameters::{Parameters, check_accept, invalid};
use crate::reply::{self, RouteResult};
use crate::work::on_file_thread;

/// The values of `origin`.
const ORIGINS: [&str; 4] = ["neutron", "keepalived", "container", "vipwatch"];

pub(super) async fn list((State(context), uri, headers): RequestHead) -> Response {
    let list = || -> RouteResult {
        check_accept(&headers, "application/json")?;
        let items = view::select(&context, &filter(&uri)?)?;
        let head = InstanceList {
            schema: Schema::Instances,
            node: context.node.to_string(),
            source: context.source,
            items: Vec::new(),
        };
        Ok(reply::list(&head, items))
    };
    answer(list())
}

fn filter(uri: &Uri) -> Result<InstanceFilter, vipwatch_api::ProblemDocument> {
    let names = ["id", "address", "role", "netns", "origin"];
    let parameters = Parameters::read(uri, &names)?;
    let roles = parameters.all::<String>("role")?.into_iter().map(|word| {
        let role = RoleKind::from_word(&word);
        role.ok_or_else(|| {
            let known = RoleKind::ALL.map(RoleKind::word).join(", ");
            invalid(format!("role={word:?} is not one of {known}"))
        })
    });
    let origins: Vec<String> = parameters.all("origin")?;
    if let Some(wrong) = origins.iter().find(|origin| !ORIGINS.contains(&origin.as_str())) {
        return Err(invalid(format!("origin={wrong:?} is not one of {}", ORIGINS.join(", "))));
    }
    Ok(InstanceFilter {
        ids: parameters.all("id")?,
        addresses: parameters.all("address")?,
        roles: roles.collect::<Result<_, _>>()?,
        netns: parameters.all("netns")?,
        origins,
    })
}

pub(super) async fn detail(
    (State(context), uri, headers): RequestHead,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    let detail = async || -> RouteResult {
        Parameters::read(&uri, &[])?;
        check_accept(&headers, "application/json")?;
        let Path(id) = id.map_err(|error| invalid(format!("the id: {error}")))?;
        let store = Arc::clone(&context.store);
        let context = Arc::clone(&context);
        let document = on_file_thread(&store, move || view::instance(&context, &id)).await??;
        Ok(reply::document(&document))
    };
    answer(detail().await)
}
