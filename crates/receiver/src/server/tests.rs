// SPDX-License-Identifier: Apache-2.0
//! The receiver with a socket and a journal on the disk.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver as ChannelReceiver, SyncSender, sync_channel};
use std::time::Duration;

use vipwatch_linux::listen::SocketOptions;

use vipwatch_core::debounce::ReportedState;

use super::*;
use crate::journal::FILE;
use crate::journal::tests::{damage_while_open, set_aside_files};
use crate::{ListenSource, Receiver, ReceiverSettings, SettledReport};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A receiver, and the settled reports that it delivers.
struct Fixture {
    receiver: Receiver,
    delivered: ChannelReceiver<SettledReport>,
    socket: std::path::PathBuf,
}

/// A sink that passes each settled report to the test.
struct ChannelSink {
    delivered: SyncSender<SettledReport>,
    /// What the targets have concluded in earlier runs.
    concluded: BTreeMap<InstanceId, i64>,
}

impl ReportSink for ChannelSink {
    fn deliver(&mut self, settled: &SettledReport) {
        self.delivered.send(settled.clone()).unwrap();
    }

    fn restore(&mut self, _: &SettledReport) {}

    fn concluded_seqs(&self) -> BTreeMap<InstanceId, i64> {
        self.concluded.clone()
    }
}

fn policy() -> ReceiverPolicy {
    let allowed_users = vec![rustix::process::geteuid().as_raw()];
    ReceiverPolicy { allowed_users, debounce_interval: Duration::ZERO, ..ReceiverPolicy::default() }
}

fn start(directory: &Path, policy: ReceiverPolicy) -> Fixture {
    start_after(directory, policy, &[])
}

/// As [`start`]; the targets have concluded these sequence numbers in earlier runs.
fn start_after(directory: &Path, policy: ReceiverPolicy, concluded: &[(&str, i64)]) -> Fixture {
    let concluded = concluded.iter().map(|(id, seq)| (id.parse().unwrap(), *seq)).collect();
    let socket = directory.join("s");
    let options = SocketOptions { mode: 0o600, user: None, group: None, backlog: 4096 };
    let (sender, delivered) = sync_channel(100_000);
    let journal_dir = directory.to_owned();
    let settings = ReceiverSettings {
        socket: socket.clone(),
        listen_source: ListenSource::New,
        options,
        policy,
        journal_dir,
    };
    Fixture {
        receiver: Receiver::start(settings, Box::new(ChannelSink { delivered: sender, concluded }))
            .unwrap(),
        delivered,
        socket,
    }
}

fn request(id: &str, word: &str, connection: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Neutron-Router-Id: {id}\r\nX-Neutron-State: {word}\r\n\
         Connection: {connection}\r\n\r\n"
    )
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends `bytes` and returns everything that the receiver sends.
fn exchange(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = connect(socket);
    let _ = stream.write_all(bytes);
    let mut reply = String::new();
    let _ = stream.read_to_string(&mut reply);
    reply
}

impl Fixture {
    fn connect(&self) -> UnixStream {
        connect(&self.socket)
    }

    fn exchange(&self, bytes: &[u8]) -> String {
        exchange(&self.socket, bytes)
    }

    fn report(&self, id: &str, word: &str) -> String {
        self.exchange(request(id, word, "close").as_bytes())
    }

    fn next_delivery(&self) -> (String, ReportedState) {
        let settled = self.delivered.recv_timeout(TIMEOUT).unwrap();
        (settled.instance.to_string(), settled.state)
    }

    fn rejected(&self, reason: &str) -> u64 {
        self.receiver.view().lock().unwrap().rejected.get(reason).copied().unwrap_or(0)
    }
}

#[test]
fn a_report_is_stored_and_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), policy());
    assert!(fixture.report("a", "primary").starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(fixture.next_delivery(), ("a".to_owned(), ReportedState::Primary));
    assert!(fixture.report("a", "backup").starts_with("HTTP/1.1 200"));
    assert_eq!(fixture.next_delivery(), ("a".to_owned(), ReportedState::Backup));
    let view = fixture.receiver.view();
    let view = view.lock().unwrap();
    assert_eq!((view.accepted, view.instances.len()), (2, 1));
}

#[test]
fn a_report_in_a_new_journal_gets_a_number_above_those_that_targets_have_concluded() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start_after(directory.path(), policy(), &[("a", 40), ("b", 7)]);
    assert!(fixture.report("b", "primary").starts_with("HTTP/1.1 200"));
    let settled = fixture.delivered.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((settled.instance.as_str(), settled.seq), ("b", 41));
}

#[test]
fn a_state_that_is_older_than_the_last_delivery_does_not_suppress_a_report() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), policy());
    for id in ["a", "b"] {
        assert!(fixture.report(id, "backup").starts_with("HTTP/1.1 200"));
        assert_eq!(fixture.next_delivery(), (id.to_owned(), ReportedState::Backup));
    }
    drop(fixture);
    // The file was restored from a backup: the targets have a later state of `a`.
    let fixture = start_after(directory.path(), policy(), &[("a", 9), ("b", 2)]);
    for id in ["b", "a"] {
        assert!(fixture.report(id, "backup").starts_with("HTTP/1.1 200"));
    }
    let settled = fixture.delivered.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(
        (settled.instance.as_str(), settled.seq),
        ("a", 11),
        "the state of `b` is unchanged"
    );
    drop(fixture);
    let (_journal, stored) = Journal::open(directory.path(), 0).unwrap();
    let seqs = stored.into_iter().map(|(id, report)| (id.to_string(), report.last_seq()));
    assert_eq!(seqs.collect::<Vec<_>>(), [("a".to_owned(), 11), ("b".to_owned(), 10)]);
}

#[test]
fn a_journal_that_is_damaged_while_the_receiver_runs_is_replaced_with_all_states() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), policy());
    assert!(fixture.report("a", "primary").starts_with("HTTP/1.1 200"));
    assert_eq!(fixture.next_delivery(), ("a".to_owned(), ReportedState::Primary));
    let connection = rusqlite::Connection::open(directory.path().join(FILE)).unwrap();
    let damage = "PRAGMA writable_schema = ON; \
                  UPDATE sqlite_master SET rootpage = 1000000 WHERE name = 'report'; \
                  PRAGMA schema_version = 1000;";
    connection.execute_batch(damage).unwrap();
    drop(connection);
    assert!(
        fixture.report("b", "backup").starts_with("HTTP/1.1 200"),
        "the report is in the new journal"
    );
    assert_eq!(fixture.next_delivery(), ("b".to_owned(), ReportedState::Backup));
    drop(fixture);
    let fixture = start(directory.path(), policy());
    let view = fixture.receiver.view();
    let view = view.lock().unwrap();
    let settled: Vec<_> =
        view.instances.iter().map(|(id, one)| (id.as_str(), one.settled)).collect();
    assert_eq!(settled, [("a", Some(ReportedState::Primary)), ("b", Some(ReportedState::Backup))]);
}

#[test]
fn a_request_may_arrive_in_pieces_and_a_connection_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), policy());
    let mut stream = fixture.connect();
    for word in ["backup", "master", "backup"] {
        for byte in request("a", word, "keep-alive").as_bytes() {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut buffer = [0; 1024];
        let length = stream.read(&mut buffer).unwrap();
        let reply = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("keep-alive"), "{reply}");
        fixture.next_delivery();
    }
}

#[test]
fn an_invalid_request_gets_the_reason_and_later_reports_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), policy());
    let head = "GET / HTTP/1.1\r\n";
    for (bytes, expected, counted) in [
        (format!("{head}\r\n"), "missing header X-Neutron-Router-Id", "missing_header"),
        (request("a", "boss", "close"), "expected primary, backup", "unknown_word"),
        (request("a/b", "backup", "close"), "invalid X-Neutron-Router-Id", "bad_id"),
        (
            format!("{head}X-Neutron-State: a\r\nX-Neutron-State: b\r\n\r\n"),
            "duplicate header",
            "header_twice",
        ),
        (format!("{head}{}", "x".repeat(20_000)), "longer than", "too_long"),
        ("noise\0\u{1}\n\n".to_owned(), "invalid request line", "start_line"),
    ] {
        let reply = fixture.exchange(bytes.as_bytes());
        assert!(reply.starts_with("HTTP/1.1 400") && reply.contains(expected), "{reply}");
        assert_eq!(fixture.rejected(counted), 1, "{counted}");
    }
    assert!(fixture.report("a", "backup").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_request_that_never_ends_gets_a_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(
        directory.path(),
        ReceiverPolicy { request_timeout: Duration::from_secs(2), ..policy() },
    );
    let slow = fixture.exchange(b"GET / HTTP/1.1\r\nX-Neutron");
    assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    assert!(fixture.report("a", "backup").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_member_of_an_allowed_group_may_report() {
    let directory = tempfile::tempdir().unwrap();
    let allowed_groups = vec![rustix::process::getegid().as_raw()];
    let fixture = start(
        directory.path(),
        ReceiverPolicy { allowed_users: Vec::new(), allowed_groups, ..policy() },
    );
    let reply = exchange(&fixture.socket, request("a", "primary", "close").as_bytes());
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[test]
fn a_user_without_permission_gets_a_403() {
    let directory = tempfile::tempdir().unwrap();
    let fixture =
        start(directory.path(), ReceiverPolicy { allowed_users: vec![4_000_000], ..policy() });
    assert!(fixture.report("a", "backup").starts_with("HTTP/1.1 403"));
    assert_eq!(fixture.rejected("forbidden"), 1);
}

#[test]
fn idle_connections_are_closed_when_there_are_too_many() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), ReceiverPolicy { max_connections: 20, ..policy() });
    let idle: Vec<UnixStream> = (0..200).map(|_| fixture.connect()).collect();
    for number in 0..30 {
        assert!(fixture.report(&format!("r{number}"), "backup").starts_with("HTTP/1.1 200"));
    }
    assert!(fixture.rejected("made_room") >= 180);
    drop(idle);
}

#[test]
fn a_thousand_routers_at_once_end_with_their_last_report() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), policy());
    std::thread::scope(|scope| {
        for worker in 0..20 {
            let socket = &fixture.socket;
            scope.spawn(move || {
                for number in 0..50 {
                    let id = format!("r{worker}-{number}");
                    let word = if number % 2 == 0 { "primary" } else { "backup" };
                    for word in ["backup", "primary", word] {
                        let reply = exchange(socket, request(&id, word, "close").as_bytes());
                        assert!(reply.starts_with("HTTP/1.1 200"), "{id} {word}: {reply}");
                    }
                }
            });
        }
    });
    let view = fixture.receiver.view();
    let view = view.lock().unwrap();
    assert_eq!((view.accepted, view.instances.len(), view.unavailable), (3000, 1000, 0));
    for (id, report) in &view.instances {
        let is_even = id.as_str().rsplit('-').next().unwrap().parse::<u32>().unwrap() % 2 == 0;
        let expected = if is_even { ReportedState::Primary } else { ReportedState::Backup };
        assert_eq!(report.settled, Some(expected), "{id}");
    }
}

/// Copies the files of a running receiver, as a killed process would leave them.
fn copy_journal(from: &Path, to: &Path) {
    for name in [FILE.to_owned(), format!("{FILE}-wal")] {
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

#[test]
fn a_stored_report_is_delivered_after_a_crash() {
    let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let held = ReceiverPolicy { debounce_interval: Duration::from_hours(1), ..policy() };
    let fixture = start(before.path(), held);
    assert!(fixture.report("a", "backup").starts_with("HTTP/1.1 200"));
    assert_eq!(fixture.next_delivery(), ("a".to_owned(), ReportedState::Backup));
    assert!(fixture.report("a", "primary").starts_with("HTTP/1.1 200"));
    assert!(fixture.report("b", "primary").starts_with("HTTP/1.1 200"));
    // Both are stored and held back.
    copy_journal(before.path(), after.path());
    let next = start(after.path(), policy());
    let mut delivered: BTreeMap<String, ReportedState> = BTreeMap::new();
    // A delivery that was not recorded may be repeated; the last one is the stored report.
    while delivered.values().filter(|state| **state == ReportedState::Primary).count() < 2 {
        let (instance, reported) = next.next_delivery();
        delivered.insert(instance, reported);
    }
}

#[test]
fn a_report_held_back_while_the_journal_is_replaced_is_delivered_once() {
    let directory = tempfile::tempdir().unwrap();
    drop(Journal::open(directory.path(), 0).unwrap());
    let fixture = start(
        directory.path(),
        ReceiverPolicy { debounce_interval: Duration::from_secs(2), ..policy() },
    );
    damage_while_open(directory.path(), "settled");
    assert!(fixture.report("a", "primary").starts_with("HTTP/1.1 200"));
    // Settling this report writes to the damaged table.
    assert!(fixture.report("b", "backup").starts_with("HTTP/1.1 200"));
    assert_eq!(fixture.next_delivery(), ("b".to_owned(), ReportedState::Backup));
    while set_aside_files(directory.path()) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(fixture.next_delivery(), ("a".to_owned(), ReportedState::Primary));
    drop(fixture);
    let (_journal, stored) = Journal::open(directory.path(), 0).unwrap();
    let a = &stored[&"a".parse().unwrap()];
    assert_eq!(a.settled.unwrap().state, ReportedState::Primary);
    assert_eq!(a.unsettled, [], "the next receiver does not deliver it again");
}

#[test]
fn a_report_is_delivered_if_the_monitor_closes_before_the_reply() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = start(directory.path(), policy());
    let mut stream = fixture.connect();
    stream.write_all(request("a", "primary", "close").as_bytes()).unwrap();
    drop(stream);
    assert_eq!(fixture.next_delivery(), ("a".to_owned(), ReportedState::Primary));
}
