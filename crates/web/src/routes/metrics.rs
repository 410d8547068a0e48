// SPDX-License-Identifier: Apache-2.0
//! `GET /metrics` and `GET /metrics/keepalived`: sent in parts.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use vipwatch_linux::process::release_spare_heap;
use vipwatch_node::view::{self, ApiContext, MetricsSnapshot};

use super::{RequestHead, SharedContext, answer};
use crate::metrics::{MetricsFormat, MetricsText};
use crate::parameters::Parameters;
use crate::reply::{self, RouteResult};
use crate::work::on_file_thread;

/// A text of so many parts is large: after it, spare heap is returned to the kernel.
const LARGE_TEXT_PARTS: usize = 16;

/// `GET /metrics`
pub(super) async fn metrics((State(context), uri, headers): RequestHead) -> Response {
    answer(read(&context, &uri, &headers, view::metrics).await)
}

/// `GET /metrics/keepalived`: with the names of the exporters for keepalived.
pub(super) async fn keepalived((State(context), uri, headers): RequestHead) -> Response {
    answer(read(&context, &uri, &headers, view::keepalived_metrics).await)
}

async fn read(
    context: &SharedContext,
    uri: &Uri,
    headers: &HeaderMap,
    collect: fn(&ApiContext) -> MetricsSnapshot,
) -> RouteResult {
    Parameters::read(uri, &[])?;
    let format = MetricsFormat::negotiate(headers)?;
    let reading = Arc::clone(context);
    let snapshot = on_file_thread(&context.store, move || collect(&reading)).await?;
    let body = MetricsBody { text: MetricsText::new(snapshot, format), parts: 0 };
    Ok(reply::response(StatusCode::OK, format.content_type(), Body::new(body)))
}

/// The text, encoded while it is sent.
struct MetricsBody {
    text: MetricsText,
    parts: usize,
}

impl hyper::body::Body for MetricsBody {
    type Data = Bytes;
    type Error = std::fmt::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::fmt::Error>>> {
        let part = self.text.next();
        if part.is_none() && self.parts >= LARGE_TEXT_PARTS {
            release_spare_heap();
        }
        self.parts += 1;
        Poll::Ready(part.map(|part| part.map(|text| Frame::data(text.into()))))
    }
}
