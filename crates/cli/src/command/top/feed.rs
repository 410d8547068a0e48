// SPDX-License-Identifier: Apache-2.0
//! The threads that talk to the node: one follows its events, the other reads documents that the screen asks for.
//!
//! Both send to the bounded queue of the main loop and wait while it is full. The node does not wait for them: it drops
//! events for a client that reads too slowly, and this client then reads all documents again.

use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{
    EventFilter, EventId, HistoryFilter, InstanceFilter, NodeEvent, TimelineItem, Timestamp,
};

use super::super::cluster::NodeFeed;
use super::model::TopMessage;
use super::node_data::{Answer, HISTORY_ENTRIES, NodeDocuments, Request};
use crate::reconnect::{RetryWaits, is_temporary, pause};

/// Time between two reads of the status, which has what no event reports: silences and problems of files.
const STATUS_INTERVAL: Duration = Duration::from_secs(15);

/// Minimum time between two reads of the cluster, which may have thousands of groups.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(1);

/// The main loop has ended, so that the thread ends too.
#[derive(Debug)]
struct MainLoopEnded;

/// Reads the documents with which a connection begins.
pub(super) fn snapshot(client: &Client) -> Result<NodeDocuments, ClientError> {
    // ORDER: the status has the position of the event stream. Events between it and the instances arrive twice, which
    // does no harm; in another order they would be lost.
    let status = client.status()?;
    let instances = client.instances(&InstanceFilter::default())?.items;
    let findings = client.findings()?.items;
    Ok(NodeDocuments { status, instances, findings })
}

/// Follows the events after `position`. Connects again for as long as the main loop runs.
pub(super) fn follow(client: &Client, position: EventId, queue: &SyncSender<TopMessage>) {
    let mut position = position;
    loop {
        let Ok(error) = follow_once(client, position, queue) else { return };
        let lost = TopMessage::Lost { at: Timestamp::now(), reason: error.to_string() };
        let lost = if is_temporary(&error) { lost } else { TopMessage::Failed(error.into()) };
        if queue.send(lost).is_err() {
            return;
        }
        match connect(client, queue) {
            Some(next) => position = next,
            None => return,
        }
    }
}

/// Follows the cluster for as long as the main loop runs.
pub(super) fn follow_cluster(client: &Client, queue: &SyncSender<TopMessage>) {
    let mut feed = NodeFeed::new(client.clone());
    let mut waits = RetryWaits::default();
    loop {
        match feed.next() {
            Ok(state) => {
                if send(queue, TopMessage::Cluster(Box::new(state))).is_err() {
                    return;
                }
                waits = RetryWaits::default();
                pause(CLUSTER_INTERVAL);
            }
            // The thread that follows the events reports a lost connection.
            Err(error) if is_temporary(&error) => waits.pause(),
            Err(_) => return,
        }
    }
}

/// Passes on the events of one connection, and returns why it has ended. If events are missing, it reads all documents
/// again and continues: a new stream would begin with the same gap.
fn follow_once(
    client: &Client,
    position: EventId,
    queue: &SyncSender<TopMessage>,
) -> Result<ClientError, MainLoopEnded> {
    let filter = EventFilter { ids: Vec::new(), after: Some(position) };
    let mut stream = match client.events(&filter) {
        Ok(stream) => stream,
        Err(error) => return Ok(error),
    };
    let mut status_due = Instant::now() + STATUS_INTERVAL;
    loop {
        match stream.next_within(status_due.saturating_duration_since(Instant::now())) {
            Ok(Some(NodeEvent::Reset(_) | NodeEvent::Dropped(_))) => match snapshot(client) {
                Ok(documents) => send(queue, TopMessage::Connected(Box::new(documents)))?,
                Err(error) => return Ok(error),
            },
            Ok(Some(event)) => send(queue, TopMessage::Event(Box::new(event)))?,
            Ok(None) => {}
            Err(error) => return Ok(error),
        }
        if Instant::now() >= status_due {
            status_due = Instant::now() + STATUS_INTERVAL;
            // An error of the connection is noticed by the stream, too.
            if let Ok(status) = client.status() {
                send(queue, TopMessage::Status(Box::new(status)))?;
            }
        }
    }
}

/// Connects to a node that restarts, and returns the position of its events; `None` if the main loop has ended, or if
/// the node refuses.
fn connect(client: &Client, queue: &SyncSender<TopMessage>) -> Option<EventId> {
    let mut waits = RetryWaits::default();
    loop {
        match snapshot(client) {
            Ok(snapshot) => {
                let (epoch, seq) = (snapshot.status.epoch.clone(), snapshot.status.seq);
                send(queue, TopMessage::Connected(Box::new(snapshot))).ok()?;
                return Some(EventId { epoch, seq });
            }
            Err(error) if is_temporary(&error) => waits.pause(),
            Err(error) => {
                let _ = queue.send(TopMessage::Failed(error.into()));
                return None;
            }
        }
    }
}

fn send(queue: &SyncSender<TopMessage>, message: TopMessage) -> Result<(), MainLoopEnded> {
    queue.send(message).or(Err(MainLoopEnded))
}

/// Reads the documents that the main loop requests, one at a time.
pub(super) fn read_requests(
    client: &Client,
    requests: &Receiver<Request>,
    queue: &SyncSender<TopMessage>,
) {
    for request in requests {
        let answer = match read(client, &request) {
            Ok(answer) => answer,
            Err(error) => Answer::Failed(request, error.to_string()),
        };
        if queue.send(TopMessage::Answer(Box::new(answer))).is_err() {
            return;
        }
    }
}

fn read(client: &Client, request: &Request) -> Result<Answer, ClientError> {
    Ok(match request {
        Request::Instances => {
            Answer::Instances(client.instances(&InstanceFilter::default())?.items)
        }
        Request::Detail(id) => Answer::Detail(Box::new(client.instance(id)?)),
        Request::History => {
            let limit = u64::try_from(HISTORY_ENTRIES).ok();
            let stream = client.history(&HistoryFilter { limit, ..HistoryFilter::default() })?;
            Answer::History(stream.collect::<Result<Vec<TimelineItem>, ClientError>>()?)
        }
    })
}

#[cfg(test)]
mod tests;
