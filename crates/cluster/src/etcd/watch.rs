// SPDX-License-Identifier: Apache-2.0
//! Watches of many prefixes over one stream.

use std::collections::VecDeque;

use tonic::Status;

use super::grpc::GrpcStream;
use super::kv::{prefix_end, revision, stored};
use super::messages::{
    WatchCancelRequest, WatchCreateRequest, WatchEvent, WatchEventType, WatchRequest,
    WatchRequestKind, WatchResponse,
};
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
    stream: GrpcStream<WatchRequest>,
    waiting: VecDeque<WatchRequest>,
    last: i64,
}

impl EtcdConnection {
    /// Opens a stream with one watch: changes of the keys with a prefix from the revision `first` on.
    pub async fn watch(&self, prefix: &str, first: i64) -> Result<(Watcher, WatchId), EtcdError> {
        let watch = WatchId(1);
        let stream =
            self.answer("a watch", self.client().open(create(watch, prefix, first))).await?;
        Ok((Watcher { stream, waiting: VecDeque::new(), last: watch.0 }, watch))
    }

    /// Waits for the next message of a stream, without a time limit.
    pub async fn next_message(&self, watcher: &mut Watcher) -> Result<WatchMessage, EtcdError> {
        let translate = |status| EtcdError::request("a watch", self.endpoint(), &status);
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
        self.waiting.push_back(create(watch, prefix, first));
        watch
    }

    /// Ends a watch.
    pub fn cancel(&mut self, watch: WatchId) {
        let cancel = WatchRequestKind::Cancel(WatchCancelRequest { watch_id: watch.0 });
        self.waiting.push_back(WatchRequest { request_union: Some(cancel) });
    }

    /// Sends waiting requests until an answer arrives. It can be dropped at any time, and called again.
    async fn next(&mut self) -> Result<Option<WatchResponse>, Status> {
        let GrpcStream { requests, answers } = &mut self.stream;
        while !self.waiting.is_empty() {
            tokio::select! {
                // The order has no effect but that a simulation repeats itself.
                biased;
                room = requests.reserve() => {
                    // An error means that the stream has ended. Its answers say why.
                    let Ok(room) = room else { break };
                    if let Some(request) = self.waiting.pop_front() {
                        room.send(request);
                    }
                }
                answer = answers.message() => return answer,
            }
        }
        answers.message().await
    }
}

fn create(watch: WatchId, prefix: &str, first: i64) -> WatchRequest {
    let create = WatchCreateRequest {
        key: prefix.as_bytes().to_vec(),
        range_end: prefix_end(prefix),
        start_revision: first,
        // Lets a watch without changes continue after a compaction.
        progress_notify: true,
        watch_id: watch.0,
        // A revision with many changes comes in parts, so that no message exceeds the limit.
        fragment: true,
    };
    WatchRequest { request_union: Some(WatchRequestKind::Create(create)) }
}

/// `None` for an answer that says nothing new.
fn translate_answer(answer: Option<WatchResponse>) -> Result<Option<WatchMessage>, EtcdError> {
    let Some(answer) = answer else {
        let text = "end of stream".to_owned();
        return Err(EtcdError::Disconnected { request: "a watch", text });
    };
    let watch = WatchId(answer.watch_id);
    if answer.canceled {
        return ended(&answer, watch);
    }
    if answer.created {
        return Ok(None);
    }
    if answer.events.is_empty() {
        return Ok(Some(WatchMessage::Progress { watch, revision: revision(answer.header) }));
    }
    let changes = answer.events.into_iter().filter_map(change).collect();
    Ok(Some(WatchMessage::Changes { watch, changes }))
}

fn change(event: WatchEvent) -> Option<ViewChange> {
    let kind = event.r#type();
    let value = stored(event.kv?);
    Some(match kind {
        WatchEventType::Put => ViewChange::Put(value),
        WatchEventType::Delete => {
            ViewChange::Deleted { key: value.key, mod_revision: value.mod_revision }
        }
    })
}

/// A watch has ended.
fn ended(answer: &WatchResponse, watch: WatchId) -> Result<Option<WatchMessage>, EtcdError> {
    let reason = answer.cancel_reason.as_str();
    if answer.compact_revision > 0 {
        return Ok(Some(WatchMessage::Compacted { watch }));
    }
    if reason.is_empty() {
        // The answer to a request of the client.
        return Ok(None);
    }
    Err(EtcdError::watch_cancelled(reason))
}
