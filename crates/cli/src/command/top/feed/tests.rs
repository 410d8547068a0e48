// SPDX-License-Identifier: Apache-2.0
//! Tests with a server that answers with fixed documents.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use serde::Serialize;
use vipwatch_api::{AnswerSource, InstanceList, ResetEvent, ResetReason, Schema};

use super::super::node_data::tests::transition;
use super::*;
use crate::samples;

/// Answers every request; a stream begins with a reset, has one transition, and stays open. Returns the number of
/// streams.
fn serve(socket: &Path) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(socket).unwrap();
    let streams = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&streams);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let path = request_path(&client);
            match path.split('?').next() {
                Some("/v1/status") => answer(&mut client, &samples::node_status()),
                Some("/v1/findings") => answer(&mut client, &samples::findings()),
                Some("/v1/instances") => answer(&mut client, &instances()),
                _ => {
                    count.fetch_add(1, Ordering::Relaxed);
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                    let reset = ResetEvent {
                        schema: Schema::Reset,
                        reason: ResetReason::HistoryUnavailable,
                        next_after: "5f3a9c21-44".to_owned(),
                    };
                    let reset = serde_json::to_string(&reset).unwrap();
                    let change = serde_json::to_string(&transition(45)).unwrap();
                    let text = format!(
                        "{head}event: reset\ndata: {reset}\n\n\
                         id: 5f3a9c21-45\nevent: transition\ndata: {change}\n\n"
                    );
                    client.write_all(text.as_bytes()).unwrap();
                    open.push(client);
                }
            }
        }
    });
    streams
}

fn instances() -> InstanceList {
    let (schema, source) = (Schema::Instances, AnswerSource::Node);
    InstanceList { schema, node: "node-1".to_owned(), source, items: samples::instances() }
}

/// The path of a request, which is read as a whole.
fn request_path(client: &UnixStream) -> String {
    let lines = BufReader::new(client).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    head[0].split(' ').nth(1).unwrap_or_default().to_owned()
}

fn answer(client: &mut UnixStream, document: &impl Serialize) {
    let body = serde_json::to_string(document).unwrap();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write_all(format!("{head}{body}").as_bytes()).unwrap();
}

#[test]
fn a_stream_with_missing_events_is_read_on_after_all_documents_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let streams = serve(&socket);
    let (sender, queue) = sync_channel(8);
    let client = Client::new(&socket);
    let position = EventId { epoch: "5f3a9c21".to_owned(), seq: 40 };
    std::thread::spawn(move || follow(&client, position, &sender));
    let limit = Duration::from_mins(1);
    let first = queue.recv_timeout(limit).unwrap();
    assert!(matches!(first, TopMessage::Connected(_)), "{first:?}");
    let second = queue.recv_timeout(limit).unwrap();
    assert!(matches!(second, TopMessage::Event(_)), "{second:?}");
    assert_eq!(streams.load(Ordering::Relaxed), 1);
}

#[test]
fn every_request_has_an_answer_and_a_failure_names_its_request() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::new(directory.path().join("nothing"));
    let (requests, taken) = sync_channel(1);
    let (sender, queue) = sync_channel(8);
    requests.send(Request::History).unwrap();
    drop(requests);
    read_requests(&client, &taken, &sender);
    let TopMessage::Answer(answer) = queue.recv().unwrap() else { panic!("no answer") };
    assert!(matches!(*answer, Answer::Failed(Request::History, _)), "{answer:?}");
}
