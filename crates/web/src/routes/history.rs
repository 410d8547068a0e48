// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/history`: sent page by page, so that neither the server nor the client holds all of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use tokio::task::JoinHandle;
use vipwatch_api::{HistoryDocument, HistoryFilter, ProblemDocument, Schema, TimelineItem};
use vipwatch_node::state::StateStore;
use vipwatch_node::view::{HistoryPages, history_problem};

use super::{RequestHead, SharedContext, answer};
use crate::parameters::{Parameters, check_accept};
use crate::reply::{self, RouteResult};
use crate::work::on_file_thread;

pub(super) async fn list((State(context), uri, headers): RequestHead) -> Response {
    answer(open(&context, &uri, &headers).await)
}

async fn open(context: &SharedContext, uri: &Uri, headers: &HeaderMap) -> RouteResult {
    check_accept(headers, "application/json")?;
    let filter = filter(uri)?;
    let reading = Arc::clone(context);
    let first = on_file_thread(&context.store, move || {
        let mut pages = HistoryPages::open(&reading, &filter)?;
        let page = pages.next_page().map_err(|error| history_problem(&error))?;
        Ok::<_, ProblemDocument>(FirstPage { pages, page })
    });
    let FirstPage { pages, page } = first.await??;
    let head = HistoryDocument {
        schema: Schema::History,
        node: context.node.to_string(),
        epoch: context.store.epoch().to_string(),
        items: Vec::new(),
    };
    let mut text = reply::list_prefix(&head);
    let is_last = page.is_empty();
    append(&mut text, &page, true);
    if is_last {
        text.extend_from_slice(b"]}");
    }
    let state = if is_last { PageState::Ended } else { PageState::Waiting(Box::new(pages)) };
    let body = Body::new(HistoryBody {
        store: Arc::clone(&context.store),
        ready: Some(text.into()),
        state,
    });
    Ok(reply::response(StatusCode::OK, HeaderValue::from_static("application/json"), body))
}

/// The first page, which is read before the answer begins, so that an error has a status of its own.
struct FirstPage {
    pages: HistoryPages,
    page: Vec<TimelineItem>,
}

fn filter(uri: &Uri) -> Result<HistoryFilter, ProblemDocument> {
    let parameters = Parameters::read(uri, &["since", "until", "after", "id", "limit"])?;
    Ok(HistoryFilter {
        since: parameters.one("since")?,
        until: parameters.one("until")?,
        after: parameters.one("after")?,
        id: parameters.one("id")?,
        limit: parameters.one("limit")?,
    })
}

fn append(text: &mut Vec<u8>, page: &[TimelineItem], is_first: bool) {
    for (at, item) in page.iter().enumerate() {
        if at > 0 || !is_first {
            text.push(b',');
        }
        // Serializing these types to memory cannot fail.
        let _ = serde_json::to_writer(&mut *text, item);
    }
}

type PageTask = JoinHandle<Result<ReadPage, ProblemDocument>>;

/// The text of a page, and the pages after it.
struct ReadPage {
    text: Vec<u8>,
    rest: Option<Box<HistoryPages>>,
}

enum PageState {
    /// The next page is read when the client has read this one.
    Waiting(Box<HistoryPages>),
    Reading(PageTask),
    Ended,
}

/// The pages, read one after the other while they are sent.
struct HistoryBody {
    store: Arc<StateStore>,
    ready: Option<Bytes>,
    state: PageState,
}

impl hyper::body::Body for HistoryBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        loop {
            if let Some(ready) = self.ready.take() {
                return Poll::Ready(Some(Ok(Frame::data(ready))));
            }
            match std::mem::replace(&mut self.state, PageState::Ended) {
                PageState::Ended => return Poll::Ready(None),
                PageState::Waiting(pages) => {
                    let store = Arc::clone(&self.store);
                    self.state = PageState::Reading(read(pages, store));
                }
                PageState::Reading(mut task) => {
                    let Poll::Ready(read) = Pin::new(&mut task).poll(cx) else {
                        self.state = PageState::Reading(task);
                        return Poll::Pending;
                    };
                    // An error ends the connection before the end of the document, which the client notices.
                    let read = read.map_err(std::io::Error::other)?;
                    let read = read.map_err(|problem| std::io::Error::other(problem.detail))?;
                    self.ready = Some(read.text.into());
                    if let Some(rest) = read.rest {
                        self.state = PageState::Waiting(rest);
                    }
                }
            }
        }
    }
}

fn read(mut pages: Box<HistoryPages>, store: Arc<StateStore>) -> PageTask {
    tokio::spawn(async move {
        on_file_thread(&store, move || {
            let page = pages.next_page().map_err(|error| history_problem(&error))?;
            let mut text = Vec::new();
            append(&mut text, &page, false);
            if page.is_empty() {
                text.extend_from_slice(b"]}");
            }
            Ok(ReadPage { text, rest: (!page.is_empty()).then_some(pages) })
        })
        .await?
    })
}
