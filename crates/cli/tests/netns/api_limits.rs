// SPDX-License-Identifier: Apache-2.0
//! Bad input and the limits of the API: a clear status and code, and no effect on other clients.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::PoisonError;
use std::time::Duration;

use vipwatch_api::{HealthDocument, NodeStatus};
use vipwatch_linux::process::raise_file_limit;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::access::as_other_user;
use crate::curl::{CurlAnswer, curl, get, parse_answer, read_to_end, send_raw};
use crate::support::{MANY_FILES, fixture_with, vi_1_conf};

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn node_with_one_instance(lab: &Lab) -> (TestNetns, NodeFixture) {
    fixture_with(lab, &[vi_1_conf()])
}

#[track_caller]
fn raw(fixture: &NodeFixture, bytes: &[u8]) -> CurlAnswer {
    let answer = send_raw(&fixture.socket(), bytes);
    parse_answer(&answer).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&answer)))
}

#[test]
fn every_error_is_a_problem_document_with_its_status_and_code() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let problem = |args: &[&str], path: &str| curl(&fixture, args, path).problem();
    assert_eq!(problem(&[], "/v2/status"), (404, "unknown-route"));
    assert_eq!(problem(&[], "/v1/status/"), (404, "unknown-route"));
    let wrong_method = curl(&fixture, &["-X", "PUT"], "/v1/silences");
    assert_eq!(wrong_method.problem(), (405, "method-not-allowed"));
    assert!(wrong_method.headers.contains("allow: GET,HEAD,POST"), "{}", wrong_method.headers);
    for path in [
        "/v1/status?x=1",
        "/v1/instances?role=leader",
        "/v1/instances?origin=x",
        "/v1/instances?address=300.0.2.1",
        "/v1/history?limit=-1",
        "/v1/history?limit=1&limit=2",
        "/v1/history?since=yesterday",
        "/v1/events?after=x",
        "/v1/instances/%ff",
    ] {
        assert_eq!(problem(&[], path), (400, "invalid-request"), "{path}");
    }
    assert_eq!(problem(&["-X", "DELETE"], "/v1/silences/x"), (400, "invalid-request"));
    assert_eq!(problem(&["-H", "last-event-id: x"], "/v1/events"), (400, "invalid-request"));
    assert_eq!(problem(&["-d", "x"], "/v1/audit"), (400, "invalid-request"));
    assert_eq!(problem(&["-H", "accept: text/html"], "/v1/status"), (406, "not-acceptable"));
    assert_eq!(problem(&["-d", "{}"], "/v1/silences"), (415, "unsupported-media-type"));
}

#[test]
fn oversized_and_malformed_requests_are_refused_with_a_clear_code() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let problem = |bytes: &[u8]| raw(&fixture, bytes).problem();
    let with_header = |text: &str| format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{text}\r\n\r\n");
    let large = with_header(&format!("x: {}", "a".repeat(100_000)));
    assert_eq!(problem(large.as_bytes()), (413, "too-large"));
    let many: Vec<String> = (0..200).map(|number| format!("h{number}: a")).collect();
    assert_eq!(problem(with_header(&many.join("\r\n")).as_bytes()), (413, "too-large"));
    let long_path = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(70_000));
    assert_eq!(problem(long_path.as_bytes()), (413, "too-large"));
    let post = "POST /v1/silences HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let body = "a".repeat(70_000);
    let announced = format!("{post}content-length: {}\r\n\r\n{body}", body.len());
    assert_eq!(problem(announced.as_bytes()), (413, "too-large"));
    let chunked =
        format!("{post}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    assert_eq!(problem(chunked.as_bytes()), (413, "too-large"));
    for garbage in ["\0\u{1}\u{2}\r\n\r\n", "{\"ask\":\"status\"}\n\n\n", "GET\r\n\r\n"] {
        assert_eq!(problem(garbage.as_bytes()), (400, "invalid-request"), "{garbage:?}");
    }
}

#[test]
fn a_request_that_does_not_end_gets_408_and_other_clients_are_answered_meanwhile() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let open = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(fixture.socket()).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let post = b"POST /v1/silences HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                 content-length: 10\r\n\r\nhalf";
    let mut half_head = open(b"GET /healthz HTTP/1.1\r\nho");
    let mut half_body = open(post);
    // The client of this request closes the connection in the middle of it.
    drop(open(b"GET /healthz HTTP/1.1\r\nho"));
    assert_eq!(get::<HealthDocument>(&fixture, "/healthz").status, "ok");
    for stream in [&mut half_head, &mut half_body] {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let answer = read_to_end(stream);
        assert_eq!(parse_answer(&answer).unwrap().problem(), (408, "request-timeout"));
    }
    // The node has freed the places of all three.
    wait_for("one open connection", || {
        let status: NodeStatus = get(&fixture, "/v1/status");
        (status.metrics["vipwatch_api_connections"] == 1).then_some(())
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let request = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n");
    let requests = [
        request("/v1/version", ""),
        request("/v1/history", ""),
        request("/nope", ""),
        request("/v1/instances", "connection: close\r\n"),
    ];
    let answer = send_raw(&fixture.socket(), requests.concat().as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    let order = ["vipwatch.version/", "vipwatch.history/", "unknown-route", "vipwatch.instances/"];
    let places: Vec<_> = order.iter().map(|text| answer.find(text)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{answer}");
}

#[test]
fn a_burst_of_requests_is_answered_although_there_are_fewer_places() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let request = b"GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let connect = |_| {
        let mut stream = UnixStream::connect(fixture.socket()).unwrap();
        stream.write_all(request).unwrap();
        stream
    };
    let clients: Vec<UnixStream> = (0..400).map(connect).collect();
    for (number, mut client) in clients.into_iter().enumerate() {
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let answer = parse_answer(&read_to_end(&mut client));
        assert_eq!(answer.map(|answer| answer.status), Some(200), "client {number}");
    }
}

#[test]
fn connections_with_an_answered_request_make_room_for_a_new_client() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let ask = |_| {
        let mut stream = UnixStream::connect(fixture.socket()).unwrap();
        stream.write_all(REQUEST).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        stream
    };
    let mut kept: Vec<UnixStream> = (0..64).map(ask).collect();
    assert_eq!(get::<HealthDocument>(&fixture, "/healthz").status, "ok");
    assert_eq!(read_to_end(&mut kept[0]), b"", "the oldest one was closed");
}

#[test]
fn ten_thousand_idle_connections_do_not_keep_a_client_out() {
    let _many_files = MANY_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let limit = usize::try_from(raise_file_limit()).unwrap_or(usize::MAX);
    let count = 10_000.min(limit.saturating_sub(500));
    assert!(count > 500, "the limit of open files is {limit}");
    let mut idle = Vec::with_capacity(count);
    for number in 0..count {
        idle.push(UnixStream::connect(fixture.socket()).unwrap());
        if number % 1000 == 999 {
            assert_eq!(get::<HealthDocument>(&fixture, "/healthz").status, "ok", "{number}");
        }
    }
    let status: NodeStatus = get(&fixture, "/v1/status");
    assert!(status.metrics["vipwatch_api_connections"] <= 64, "{status:?}");
    // The oldest was closed; the newest still works.
    assert_eq!(read_to_end(&mut idle[0]), b"");
    let newest = idle.last_mut().unwrap();
    newest.write_all(&[REQUEST, b"GET /x HTTP/1.1\r\nconnection: close\r\n\r\n"].concat()).unwrap();
    assert_eq!(parse_answer(&read_to_end(newest)).unwrap().status, 200);
}

#[test]
fn a_user_without_permission_gets_403_and_is_counted() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_one_instance(&lab);
    let _node = fixture.start();
    let socket = fixture.socket();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // Without the mode of the file, the server itself has to refuse.
    mode(lab.path(), 0o755);
    mode(&socket, 0o666);
    let answer = as_other_user(&[], || send_raw(&socket, REQUEST));
    assert_eq!(parse_answer(&answer).unwrap().problem(), (403, "not-permitted"));
    let connect = || UnixStream::connect(&socket).unwrap();
    let silent: Vec<UnixStream> = as_other_user(&[], || (0..100).map(|_| connect()).collect());
    assert_eq!(get::<HealthDocument>(&fixture, "/healthz").status, "ok");
    let status: NodeStatus = get(&fixture, "/v1/status");
    assert_eq!(status.metrics["vipwatch_api_refused_total"], 101);
    drop(silent);
}
