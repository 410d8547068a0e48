// SPDX-License-Identifier: Apache-2.0
//! The watches of the simulated etcd: which changes each one gets, and when they arrive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::NetworkState;
use crate::etcd::messages::{
    WatchCreateRequest, WatchEvent, WatchRequest, WatchRequestKind, WatchResponse,
};
use crate::simulation::store::{Keys, key_of, revision_of};
use crate::simulation::stream::{EndOfStream, MessageQueue};

/// The longest time after which a message arrives again.
const MAX_REPETITION: Duration = Duration::from_secs(15);

/// The open streams.
#[derive(Debug, Default)]
pub(in crate::simulation) struct WatchTable {
    streams: BTreeMap<u64, WatchStream>,
    last: u64,
}

#[derive(Debug)]
struct WatchStream {
    node: usize,
    queue: Arc<MessageQueue>,
    watches: BTreeMap<i64, Watch>,
}

#[derive(Debug)]
struct Watch {
    keys: Keys,
    /// Changes before this revision are not wanted.
    first: i64,
    /// When the last message arrives: a later one does not overtake it.
    last_arrival: Instant,
}

impl WatchTable {
    /// A new stream; returns its number.
    pub(in crate::simulation) fn add(&mut self, node: usize, queue: Arc<MessageQueue>) -> u64 {
        self.last += 1;
        self.streams.insert(self.last, WatchStream { node, queue, watches: BTreeMap::new() });
        self.last
    }

    pub(in crate::simulation) fn remove(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    pub(super) fn clear(&mut self) {
        self.streams.clear();
    }
}

impl NetworkState {
    /// A request of a stream.
    pub(in crate::simulation) fn watch_request(&mut self, stream: u64, request: &WatchRequest) {
        match &request.request_union {
            Some(WatchRequestKind::Create(create)) => self.create(stream, create),
            Some(WatchRequestKind::Cancel(cancel)) => {
                let id = cancel.watch_id;
                let Some(stream) = self.watches.streams.get_mut(&stream) else { return };
                stream.watches.remove(&id);
                let answer = WatchResponse { watch_id: id, canceled: true, ..Default::default() };
                stream.queue.push(Instant::now(), Box::new(answer));
            }
            None => {}
        }
    }

    fn create(&mut self, stream: u64, create: &WatchCreateRequest) {
        let (id, now) = (create.watch_id, Instant::now());
        let keys = Keys { begin: create.key.clone(), end: create.range_end.clone() };
        let header = Some(self.store.header());
        let first = create.start_revision;
        let changes = self.store.changes(&keys, first);
        let Some(open) = self.watches.streams.get_mut(&stream) else { return };
        let answer = WatchResponse { header, watch_id: id, created: true, ..Default::default() };
        open.queue.push(now, Box::new(answer));
        match changes {
            Ok(events) => {
                open.watches.insert(id, Watch { keys, first, last_arrival: now });
                if !events.is_empty() {
                    self.send(stream, id, &events);
                }
            }
            Err(compact_revision) => {
                let (canceled, cancel_reason) =
                    (true, "mvcc: required revision has been compacted");
                let answer = WatchResponse {
                    header,
                    watch_id: id,
                    canceled,
                    compact_revision,
                    cancel_reason: cancel_reason.to_owned(),
                    ..Default::default()
                };
                open.queue.push(now, Box::new(answer));
            }
        }
    }

    /// Sends changes of one revision to all watches that want them.
    pub(super) fn deliver(&mut self, events: &[WatchEvent]) {
        let mut wanted = Vec::new();
        for (number, stream) in &self.watches.streams {
            for (id, watch) in &stream.watches {
                let is_wanted = |event: &&WatchEvent| {
                    revision_of(event) >= watch.first && watch.keys.contain(key_of(event))
                };
                let events: Vec<WatchEvent> = events.iter().filter(is_wanted).cloned().collect();
                if !events.is_empty() {
                    wanted.push((*number, *id, events));
                }
            }
        }
        for (stream, id, events) in wanted {
            self.send(stream, id, &events);
        }
    }

    /// Tells each watch the present revision.
    pub(super) fn report_progress(&mut self) {
        let streams = self.watches.streams.iter();
        let ids = streams
            .flat_map(|(number, stream)| stream.watches.keys().map(move |id| (*number, *id)));
        for (stream, id) in ids.collect::<Vec<_>>() {
            self.send(stream, id, &[]);
        }
    }

    /// Sends one message to a watch, in two parts at random. The network may delay, repeat or lose it.
    fn send(&mut self, stream: u64, id: i64, events: &[WatchEvent]) {
        let middle = if events.len() > 1 && self.random.chance(30) { events.len() / 2 } else { 0 };
        if middle > 0 {
            self.send_part(stream, id, &events[..middle]);
            let Some(open) = self.watches.streams.get(&stream) else { return };
            if self.random.chance(self.links[open.node].broken) {
                self.trace.add(format_args!("network: the connection of watch {id} ends"));
                let arrival = open.watches.get(&id).map(|watch| watch.last_arrival);
                open.queue.push(arrival.unwrap_or_else(Instant::now), Box::new(EndOfStream));
                self.watches.remove(stream);
                return;
            }
        }
        self.send_part(stream, id, &events[middle..]);
    }

    fn send_part(&mut self, stream: u64, id: i64, events: &[WatchEvent]) {
        let header = Some(self.store.header());
        let Some(open) = self.watches.streams.get_mut(&stream) else { return };
        let (link, random) = (self.links[open.node], &mut self.random);
        let Some(watch) = open.watches.get_mut(&id) else { return };
        let message = WatchResponse {
            header,
            watch_id: id,
            events: events.to_vec(),
            ..WatchResponse::default()
        };
        let mut delay = random.between(Duration::from_millis(1), link.delay);
        if !link.lateness.is_zero() && random.chance(30) {
            delay += random.between(Duration::ZERO, link.lateness);
        }
        let arrival = watch.last_arrival.max(Instant::now() + delay);
        if link.repeated > 0 && random.chance(link.repeated) {
            let again = arrival + random.between(Duration::ZERO, MAX_REPETITION);
            open.queue.push(again, Box::new(message.clone()));
        }
        if link.lost > 0 && !events.is_empty() && random.chance(link.lost) {
            self.trace.add(format_args!("network: a message of watch {id} is lost"));
            return;
        }
        watch.last_arrival = arrival;
        open.queue.push(arrival, Box::new(message));
    }
}
