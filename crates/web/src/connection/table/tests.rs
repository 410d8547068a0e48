// SPDX-License-Identifier: Apache-2.0
//! Tests of the limits, deadlines and evictions without sockets.

use super::*;

fn table() -> Arc<ConnectionTable> {
    Arc::new(ConnectionTable::new(TableKind::Unix, Arc::default()))
}

fn is_closed(place: &Place) -> bool {
    place.0.lock().close_reason.is_some()
}

/// A place for this client, after a wait that is too short for another connection to end by itself.
async fn place_soon(table: &Arc<ConnectionTable>, client: WebClient) -> Option<Place> {
    table.wait_for_place(client, Duration::ZERO).await
}

#[tokio::test]
async fn the_oldest_idle_connection_makes_room_and_root_has_reserved_places() {
    let table = table();
    let limit = MAX_CONNECTIONS - RESERVED_FOR_ROOT;
    let user = WebClient::User(1000);
    let places: Vec<Place> = (0..limit).map(|_| table.admit(user).unwrap()).collect();
    assert!(table.admit(user).is_none(), "a request may have arrived");
    places[0].begin_request();
    let newest = place_soon(&table, user).await.unwrap();
    let closed: Vec<usize> = (0..limit).filter(|at| is_closed(&places[*at])).collect();
    assert_eq!(closed, [1], "the first one is answering a request");
    places.iter().for_each(Place::begin_request);
    newest.begin_request();
    assert!(place_soon(&table, user).await.is_none(), "all are busy");
    let of_root: Vec<Place> = (0..RESERVED_FOR_ROOT).map(|_| table.admit(ROOT).unwrap()).collect();
    of_root.iter().for_each(Place::begin_request);
    assert!(table.admit(ROOT).is_none());
    drop(newest);
    assert!(table.admit(ROOT).is_some());
}

#[tokio::test]
async fn a_connection_is_not_closed_before_its_answer_is_sent() {
    let table = table();
    let places: Vec<Place> = (0..MAX_CONNECTIONS).map(|_| table.admit(ROOT).unwrap()).collect();
    places.iter().for_each(Place::begin_request);
    places.iter().for_each(Place::end_request);
    assert!(place_soon(&table, ROOT).await.is_none());
    places[7].flushed();
    assert!(place_soon(&table, ROOT).await.is_some());
    assert!(is_closed(&places[7]));
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_for_a_place_until_one_is_free_or_its_time_is_over() {
    let table = table();
    let mut busy: Vec<Place> = (0..MAX_CONNECTIONS).map(|_| table.admit(ROOT).unwrap()).collect();
    busy.iter().for_each(Place::begin_request);
    let wait = || table.wait_for_place(ROOT, PLACE_TIMEOUT);
    assert!(wait().await.is_none());
    let (place, ()) = tokio::join!(wait(), async { drop(busy.pop()) });
    assert!(place.is_some());
    assert!(RequestPeer::of(&busy[0]).become_stream());
    assert!(wait().await.is_some(), "a stream needs no place");
}

#[test]
fn a_stream_takes_no_place_of_a_request_and_streams_have_a_limit() {
    let table = table();
    let mut streams = Vec::new();
    for _ in 0..MAX_STREAMS {
        let place = table.admit(ROOT).unwrap();
        place.begin_request();
        assert!(RequestPeer::of(&place).become_stream());
        streams.push(place);
    }
    let one_more = table.admit(ROOT).unwrap();
    assert!(!RequestPeer::of(&one_more).become_stream());
    let counters = &table.store.counters;
    assert_eq!(counters.api_streams.load(Ordering::Relaxed), MAX_STREAMS as u64);
    assert_eq!(counters.api_connections.load(Ordering::Relaxed), 1);
    drop(streams);
    assert!(RequestPeer::of(&one_more).become_stream());
}

#[tokio::test]
async fn a_panic_while_a_body_is_made_ends_the_answer_and_is_counted() {
    use http_body_util::BodyExt;
    let table = table();
    let place = table.admit(ROOT).unwrap();
    let items = (0..3).inspect(|number| {
        assert!(*number < 2, "a panic in the middle of a list");
    });
    let answer = crate::reply::list(&serde_json::json!({ "items": [] }), items);
    let mut body = TrackedBody::new(answer.into_body(), place);
    assert!(body.frame().await.unwrap().is_err(), "the client must not take it for complete");
    assert_eq!(table.store.counters.api_panics.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_slow_handshake_makes_room_after_a_silent_connection() {
    let table = table();
    let client = WebClient::User(1000);
    let limit = MAX_CONNECTIONS - RESERVED_FOR_ROOT;
    let places: Vec<Place> = (0..limit).map(|_| table.admit(client).unwrap()).collect();
    let at = |place: &Place, age: Duration| {
        place.0.lock().since = Instant::now().checked_sub(age).unwrap();
    };
    for place in &places {
        place.wait_for_handshake();
        place.begin_handshake();
        at(place, MIN_INCOMPLETE_TIME / 2);
    }
    assert!(place_soon(&table, client).await.is_none(), "handshakes that have just begun");
    at(&places[1], MIN_INCOMPLETE_TIME * 2);
    places[2].wait_for_handshake();
    let second = place_soon(&table, client).await.unwrap();
    second.begin_handshake();
    assert!(is_closed(&places[2]) && !is_closed(&places[1]), "silent before slow");
    let _third = place_soon(&table, client).await.unwrap();
    assert!(is_closed(&places[1]));
}

#[tokio::test]
async fn a_slow_answer_makes_room_only_if_its_client_is_unknown() {
    let table = table();
    let localhost = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let transport = crate::socket::Transport::Tls;
    let client = WebClient::Network { peer: localhost, server: localhost, transport };
    let places: Vec<Place> = (0..MAX_CONNECTIONS).map(|_| table.admit(client).unwrap()).collect();
    let old = Instant::now().checked_sub(MIN_SLOW_TIME).unwrap();
    for place in &places {
        place.begin_request();
        place.0.lock().identity = Some(ClientIdentity::Token(Token::for_test("0123456789abcdef")));
        place.0.lock().since = old;
    }
    assert!(place_soon(&table, client).await.is_none());
    places[3].0.lock().identity = None;
    assert!(place_soon(&table, client).await.is_some());
    assert!(is_closed(&places[3]));
}

#[test]
fn a_connection_ends_when_its_token_is_withdrawn_and_not_between_requests() {
    let table = table();
    let token = || ClientIdentity::Token(Token::for_test("0123456789abcdef"));
    let [open, other, idle] = [(); 3].map(|()| table.admit(ROOT).unwrap());
    for place in [&open, &idle] {
        place.begin_request();
        place.0.lock().identity = Some(token());
    }
    idle.end_request();
    table.close_unauthorized(|_| true);
    assert!(!is_closed(&open));
    table.close_unauthorized(|_| false);
    assert!(is_closed(&open) && !is_closed(&other) && !is_closed(&idle));
}

#[test]
fn each_phase_has_its_deadline() {
    let table = table();
    let place = table.admit(ROOT).unwrap();
    let overdue = |after: Duration| place.0.lock().overdue(Instant::now() + after);
    for begin in [Place::wait_for_handshake, Place::begin_handshake] {
        begin(&place);
        assert_eq!(overdue(HANDSHAKE_TIMEOUT / 2), None);
        assert_eq!(overdue(HANDSHAKE_TIMEOUT), Some(CloseReason::HandshakeTimeout));
    }
    place.end_handshake(None);
    assert_eq!(overdue(IDLE_TIMEOUT / 2), None);
    assert_eq!(overdue(IDLE_TIMEOUT), Some(CloseReason::Idle));
    place.received_bytes();
    assert_eq!(overdue(HEAD_TIMEOUT), Some(CloseReason::HeadTimeout));
    place.begin_request();
    assert_eq!(overdue(IDLE_TIMEOUT), None, "an answer may take long");
    place.set_blocked(true);
    assert_eq!(overdue(WRITE_TIMEOUT), Some(CloseReason::Stalled));
    assert!(RequestPeer::of(&place).become_stream());
    assert_eq!(overdue(WRITE_TIMEOUT), None);
    assert_eq!(overdue(STREAM_WRITE_TIMEOUT), Some(CloseReason::Stalled));
    place.set_blocked(false);
    assert_eq!(overdue(STREAM_WRITE_TIMEOUT), None);
}
