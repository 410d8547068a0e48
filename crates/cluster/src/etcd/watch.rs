// SPDX-License-Identifier: Apache-2.0
//! Watches of many prefixes over one stream.

use std::collections::VecDeque;

use etcd_client::{
    EventType, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream, WatchStream,
};

use super::kv::{prefix_end, stored};
use super::{EtcdConnection, EtcdError};
use crate::view::ViewChange;

/// The number of a watch on its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub i64);

/// A message of the stream.
#[derive(Debug)]
pub enum WatchMessage {
    /// Changes of the keys of a watch, in their order.
    Changes {
        /// The watch.
        watch: WatchId,
        /// The changes.
        changes: Vec<ViewChange>,
    },
    /// The watch has delivered all changes up to this revision.
    Progress {
        /// The watch.
        watch: WatchId,
        /// The revision.
        revision: i64,
    },
    /// The first revision of the watch is no longer in etcd. The watch has ended.
    Compacted {
        /// The watch.
        watch: WatchId,
    },
}

/// A stream with any number of watches.
///
/// Requests wait in a queue, and [`Self::next`] sends them while it receives. A client that only sends would block itself
/// and etcd: etcd stops reading requests while the client does not read the answers.
pub struct Watcher {
    requests: WatchRequestSender,
    answers: WatchResponseStream,
    waiting: VecDeque<WatcherRequest>,
    last: i64,
}

#[derive(Clone)]
enum WatcherRequest {
    Add { watch: WatchId, prefix: String, first: i64 },
    Cancel(WatchId),
}

impl EtcdConnection {
    /// Opens a stream with one watch: changes of the keys with a prefix from the revision `first` on.
    pub async fn watch(&self, prefix: &str, first: i64) -> Result<(Watcher, WatchId), EtcdError> {
        let watch = WatchId(1);
        let mut watches = self.watches();
        let open = watches.watch(prefix, Some(options(watch, prefix, first)));
        let stream: WatchStream = self.answer("a watch", open).await?;
        let (requests, answers) = stream.split();
        let waiting = VecDeque::new();
        Ok((Watcher { requests, answers, waiting, last: watch.0 }, watch))
    }

    /// Waits for the next message of a stream, without a time limit.
    pub async fn next_message(&self, watcher: &mut Watcher) -> Result<WatchMessage, EtcdError> {
        let translate = |error| EtcdError::request("a watch", self.endpoint(), error);
        loop {
            if let Some(message) = translate_answer(watcher.next().await.map_err(translate)?)? {
                return Ok(message);
            }
        }
    }
}

impl Watcher {
    /// Adds a watch of the keys with a prefix, from the revision `first` on.
    pub fn add(&mut self, prefix: &str, first: i64) -> WatchId {
        self.last += 1;
        let watch = WatchId(self.last);
        self.waiting.push_back(WatcherRequest::Add { watch, prefix: prefix.to_owned(), first });
        watch
    }

    /// Ends a watch.
    pub fn cancel(&mut self, watch: WatchId) {
        self.waiting.push_back(WatcherRequest::Cancel(watch));
    }

    /// Sends waiting requests until an answer arrives. It can be dropped at any time, and called again.
    async fn next(&mut self) -> Result<Option<WatchResponse>, etcd_client::Error> {
        while let Some(request) = self.waiting.front().cloned() {
            tokio::select! {
                sent = send(&mut self.requests, request) => {
                    if sent.is_err() {
                        // The stream has ended. Its answers say why.
                        break;
                    }
                    self.waiting.pop_front();
                }
                answer = self.answers.message() => return answer,
            }
        }
        self.answers.message().await
    }
}

async fn send(
    requests: &mut WatchRequestSender,
    request: WatcherRequest,
) -> Result<(), etcd_client::Error> {
    match request {
        WatcherRequest::Add { watch, prefix, first } => {
            let options = options(watch, &prefix, first);
            requests.watch(prefix, Some(options)).await
        }
        WatcherRequest::Cancel(watch) => requests.cancel(watch.0).await,
    }
}

fn options(watch: WatchId, prefix: &str, first: i64) -> WatchOptions {
    let options = WatchOptions::new().with_watch_id(watch.0).with_range(prefix_end(prefix));
    // A revision with many changes comes in parts, so that no message exceeds the limit. The progress lets a watch
    // without changes continue after a compaction.
    options.with_start_revision(first).with_fragment().with_progress_notify()
}

/// `None` for an answer that says nothing new.
fn translate_answer(answer: Option<WatchResponse>) -> Result<Option<WatchMessage>, EtcdError> {
    let Some(answer) = answer else {
        let text = "end of stream".to_owned();
        return Err(EtcdError::Disconnected { request: "a watch", text });
    };
    let watch = WatchId(answer.watch_id());
    if answer.canceled() {
        return ended(&answer, watch);
    }
    if answer.created() {
        return Ok(None);
    }
    if answer.events().is_empty() {
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        return Ok(Some(WatchMessage::Progress { watch, revision }));
    }
    let changes = answer.events().iter().filter_map(|event| {
        let value = stored(event.kv()?);
        Some(match event.event_type() {
            EventType::Put => ViewChange::Put(value),
            EventType::Delete => {
                ViewChange::Deleted { key: value.key, mod_revision: value.mod_revision }
            }
        })
    });
    Ok(Some(WatchMessage::Changes { watch, changes: changes.collect() }))
}

/// A watch has ended.
fn ended(answer: &WatchResponse, watch: WatchId) -> Result<Option<WatchMessage>, EtcdError> {
    let reason = answer.cancel_reason();
    if answer.compact_revision() > 0 {
        return Ok(Some(WatchMessage::Compacted { watch }));
    }
    if reason.is_empty() {
        // The answer to a request of the client.
        return Ok(None);
    }
    Err(EtcdError::watch_cancelled(reason))
}
