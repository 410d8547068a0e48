// SPDX-License-Identifier: Apache-2.0
//! Answers: documents, lists in parts, and problem documents.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use serde::Serialize;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_linux::process::release_spare_heap;

/// Size in bytes from which on a part of a list is sent.
const PART_BYTES: usize = 16 << 10;

/// A list of so many parts is large: after it, spare heap is returned to the kernel.
const LARGE_LIST_PARTS: usize = 16;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The result of a route.
pub(crate) type RouteResult = Result<Response, ProblemDocument>;

/// An answer with a document.
pub(crate) fn document(value: &impl Serialize) -> Response {
    with_status(StatusCode::OK, value)
}

/// An answer with a document and a status.
pub(crate) fn with_status(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => response(status, JSON, Body::from(text)),
        Err(error) => problem(&ProblemDocument::new(ErrorCode::Internal, error.to_string())),
    }
}

/// An answer with a problem document.
pub(crate) fn problem(problem: &ProblemDocument) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = response(status, PROBLEM, Body::from(problem_text(problem)));
    // The rest of a request that was not read completely could look like another request.
    if matches!(problem.code, ErrorCode::TooLarge | ErrorCode::RequestTimeout) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The bytes of an answer with a problem document, after which the connection is closed.
pub(crate) fn raw_problem(problem: &ProblemDocument) -> Vec<u8> {
    let text = problem_text(problem);
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        text.len(),
    );
    [head.into_bytes(), text].concat()
}

fn problem_text(problem: &ProblemDocument) -> Vec<u8> {
    serde_json::to_vec(problem).unwrap_or_default()
}

/// An answer with a body of the given type.
pub(crate) fn response(status: StatusCode, content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An answer with items that are made while it is sent. `head` is the document without items; its last member is `items`.
pub(crate) fn list<I>(head: &impl Serialize, items: I) -> Response
where
    I: Iterator<Item: Serialize> + Send + Unpin + 'static,
{
    let body = ListBody { prefix: list_prefix(head), items, state: ListState::Begin, parts: 0 };
    response(StatusCode::OK, JSON, Body::new(body))
}

/// The beginning of a document up to the first item.
pub(crate) fn list_prefix(head: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(head).unwrap_or_default();
    debug_assert!(text.ends_with(b"[]}"), "items are the last member");
    text.truncate(text.len().saturating_sub(2));
    text
}

/// A list that is serialized in parts.
struct ListBody<I> {
    prefix: Vec<u8>,
    items: I,
    state: ListState,
    parts: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListState {
    Begin,
    Items,
    Ended,
}

impl<I> hyper::body::Body for ListBody<I>
where
    I: Iterator<Item: Serialize> + Unpin,
{
    type Data = Bytes;
    type Error = serde_json::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, serde_json::Error>>> {
        if self.state == ListState::Ended {
            if self.parts >= LARGE_LIST_PARTS {
                release_spare_heap();
            }
            return Poll::Ready(None);
        }
        let mut part = std::mem::take(&mut self.prefix);
        while part.len() < PART_BYTES {
            let Some(item) = self.items.next() else {
                self.state = ListState::Ended;
                part.extend_from_slice(b"]}");
                break;
            };
            if self.state == ListState::Items {
                part.push(b',');
            }
            self.state = ListState::Items;
            serde_json::to_writer(&mut part, &item)?;
        }
        self.parts += 1;
        Poll::Ready(Some(Ok(Frame::data(part.into()))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[derive(Serialize)]
    struct Head {
        node: &'static str,
        items: [u8; 0],
    }

    #[tokio::test]
    async fn a_list_is_sent_in_parts_that_together_are_one_document() {
        for count in [0, 1, 5000] {
            let head = Head { node: "n", items: [] };
            let mut body =
                list(&head, (0..count).map(|number| format!("item {number}"))).into_body();
            let mut text = Vec::new();
            let mut longest = 0;
            while let Some(frame) = body.frame().await {
                let data = frame.unwrap().into_data().unwrap();
                longest = longest.max(data.len());
                text.extend_from_slice(&data);
            }
            assert!(longest < 2 * PART_BYTES);
            let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(value["items"].as_array().unwrap().len(), count, "{count}");
        }
    }
}
