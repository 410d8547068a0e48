//! Over a real socket, with a real journal.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver as Backend, SyncSender, sync_channel};
use std::time::Duration;

use vipwatch_linux::listen::SocketOptions;

use super::*;
use crate::journal::FILE;
use crate::journal::tests::{damage_while_open, set_aside};
use crate::{ListenSource, Receiver, ReceiverSettings};

const LONG: Duration = Duration::from_secs(10);

/// A receiver below a directory, and what it tells.
struct Stage {
    receiver: Receiver,
    told: Backend<SettledReport>,
    socket: std::path::PathBuf,
}

/// Writes down what it is told.
struct Hall(SyncSender<SettledReport>);

impl ReportSink for Hall {
    fn tell(&mut self, settled: &SettledReport) {
        self.0.send(settled.clone()).unwrap();
    }

    fn recall(&mut self, _: &SettledReport, _: &BTreeMap<String, i64>) {}
}

fn policy() -> ReceiverPolicy {
    let users = vec![rustix::process::geteuid().as_raw()];
    ReceiverPolicy { users, interval: Duration::ZERO, ..ReceiverPolicy::default() }
}

fn start(directory: &Path, policy: ReceiverPolicy) -> Stage {
    let socket = directory.join("s");
    let options = SocketOptions { mode: 0o600, user: None, group: None, backlog: 4096 };
    let (sender, told) = sync_channel(100_000);
    let directory = directory.to_owned();
    let settings = ReceiverSettings {
        socket: socket.clone(),
        listen_source: ListenSource::New,
        options,
        policy,
        directory,
    };
    Stage {
        receiver: Receiver::start(settings, |_ledger| Ok(Box::new(Hall(sender)))).unwrap(),
        told,
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
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Says `bytes` and hears everything there is to hear.
fn say(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = connect(socket);
    let _ = stream.write_all(bytes);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

impl Stage {
    fn connect(&self) -> UnixStream {
        connect(&self.socket)
    }

    fn say(&self, bytes: &[u8]) -> String {
        say(&self.socket, bytes)
    }

    fn report(&self, id: &str, word: &str) -> String {
        self.say(request(id, word, "close").as_bytes())
    }

    fn next(&self) -> (String, ReportedState) {
        let settled = self.told.recv_timeout(LONG).unwrap();
        (settled.instance.to_string(), settled.state)
    }

    fn rejected(&self, reason: &str) -> u64 {
        self.receiver.view().lock().unwrap().rejected.get(reason).copied().unwrap_or(0)
    }
}

#[test]
fn a_report_is_taken_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), policy());
    assert!(stage.report("a", "primary").starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(stage.next(), ("a".to_owned(), ReportedState::Primary));
    assert!(stage.report("a", "backup").starts_with("HTTP/1.1 200"));
    assert_eq!(stage.next(), ("a".to_owned(), ReportedState::Backup));
    let view = stage.receiver.view();
    let view = view.lock().unwrap();
    assert_eq!((view.accepted, view.instances.len()), (2, 1));
}

#[test]
fn a_journal_that_is_damaged_while_the_receiver_runs_is_replaced_and_has_what_holds() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), policy());
    assert!(stage.report("a", "primary").starts_with("HTTP/1.1 200"));
    assert_eq!(stage.next(), ("a".to_owned(), ReportedState::Primary));
    let connection = rusqlite::Connection::open(directory.path().join(FILE)).unwrap();
    let damage = "PRAGMA writable_schema = ON; \
                  UPDATE sqlite_master SET rootpage = 1000000 WHERE name = 'report'; \
                  PRAGMA schema_version = 1000;";
    connection.execute_batch(damage).unwrap();
    drop(connection);
    assert!(stage.report("b", "backup").starts_with("HTTP/1.1 200"), "also this is promised");
    assert_eq!(stage.next(), ("b".to_owned(), ReportedState::Backup));
    drop(stage);
    let stage = start(directory.path(), policy());
    let view = stage.receiver.view();
    let view = view.lock().unwrap();
    let settled: Vec<_> =
        view.instances.iter().map(|(id, one)| (id.as_str(), one.settled)).collect();
    assert_eq!(settled, [("a", Some(ReportedState::Primary)), ("b", Some(ReportedState::Backup))]);
}

#[test]
fn pieces_are_put_together_and_a_line_that_is_kept_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), policy());
    let mut stream = stage.connect();
    for word in ["backup", "master", "backup"] {
        for byte in request("a", word, "keep-alive").as_bytes() {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut buffer = [0; 1024];
        let length = stream.read(&mut buffer).unwrap();
        let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("keep-alive"), "{answer}");
        stage.next();
    }
}

#[test]
fn what_is_no_report_is_answered_with_the_reason_and_the_service_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), policy());
    let head = "GET / HTTP/1.1\r\n";
    for (bytes, expected, counted) in [
        (format!("{head}\r\n"), "there is no X-Neutron-Router-Id", "missing_header"),
        (request("a", "boss", "close"), "is not primary, backup", "unknown_word"),
        (request("a/b", "backup", "close"), "is no id", "bad_id"),
        (
            format!("{head}X-Neutron-State: a\r\nX-Neutron-State: b\r\n\r\n"),
            "twice",
            "header_twice",
        ),
        (format!("{head}{}", "x".repeat(20_000)), "longer than", "too_long"),
        ("noise\0\u{1}\n\n".to_owned(), "first line", "start_line"),
    ] {
        let answer = stage.say(bytes.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(expected), "{answer}");
        assert_eq!(stage.rejected(counted), 1, "{counted}");
    }
    assert!(stage.report("a", "backup").starts_with("HTTP/1.1 200"));
}

#[test]
fn one_that_never_ends_is_not_waited_for_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let stage =
        start(directory.path(), ReceiverPolicy { deadline: Duration::from_secs(2), ..policy() });
    let slow = stage.say(b"GET / HTTP/1.1\r\nX-Neutron");
    assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    assert!(stage.report("a", "backup").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_member_of_an_allowed_group_may_report() {
    let directory = tempfile::tempdir().unwrap();
    let groups = vec![rustix::process::getegid().as_raw()];
    let stage = start(directory.path(), ReceiverPolicy { users: Vec::new(), groups, ..policy() });
    let answer = say(&stage.socket, request("a", "primary", "close").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_stranger_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), ReceiverPolicy { users: vec![4_000_000], ..policy() });
    assert!(stage.report("a", "backup").starts_with("HTTP/1.1 403"));
    assert_eq!(stage.rejected("forbidden"), 1);
}

#[test]
fn idlers_make_room_for_those_who_report() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), ReceiverPolicy { connections: 20, ..policy() });
    let idlers: Vec<UnixStream> = (0..200).map(|_| stage.connect()).collect();
    for number in 0..30 {
        assert!(stage.report(&format!("r{number}"), "backup").starts_with("HTTP/1.1 200"));
    }
    assert!(stage.rejected("made_room") >= 180);
    drop(idlers);
}

#[test]
fn a_thousand_at_once_are_all_taken_and_each_ends_with_its_last_word() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), policy());
    std::thread::scope(|scope| {
        for worker in 0..20 {
            let socket = &stage.socket;
            scope.spawn(move || {
                for number in 0..50 {
                    let id = format!("r{worker}-{number}");
                    let word = if number % 2 == 0 { "primary" } else { "backup" };
                    for word in ["backup", "primary", word] {
                        let answer = say(socket, request(&id, word, "close").as_bytes());
                        assert!(answer.starts_with("HTTP/1.1 200"), "{id} {word}: {answer}");
                    }
                }
            });
        }
    });
    let view = stage.receiver.view();
    let view = view.lock().unwrap();
    assert_eq!((view.accepted, view.instances.len(), view.unable), (3000, 1000, 0));
    for (id, standing) in &view.instances {
        let is_even = id.as_str().rsplit('-').next().unwrap().parse::<u32>().unwrap() % 2 == 0;
        let expected = if is_even { ReportedState::Primary } else { ReportedState::Backup };
        assert_eq!(standing.settled, Some(expected), "{id}");
    }
}

/// What is left behind by a process that never comes to its end.
fn crash(from: &Path, to: &Path) {
    for name in [FILE.to_owned(), format!("{FILE}-wal")] {
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

#[test]
fn what_was_promised_is_told_by_the_next_after_a_crash() {
    let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let held = ReceiverPolicy { interval: Duration::from_hours(1), ..policy() };
    let stage = start(before.path(), held);
    assert!(stage.report("a", "backup").starts_with("HTTP/1.1 200"));
    assert_eq!(stage.next(), ("a".to_owned(), ReportedState::Backup));
    assert!(stage.report("a", "primary").starts_with("HTTP/1.1 200"));
    assert!(stage.report("b", "primary").starts_with("HTTP/1.1 200"));
    // Both are held back, and promised.
    crash(before.path(), after.path());
    let next = start(after.path(), policy());
    let mut told: BTreeMap<String, ReportedState> = BTreeMap::new();
    // What was told and could not be noted may be told again; the last word is what was promised.
    while told.values().filter(|state| **state == ReportedState::Primary).count() < 2 {
        let (instance, reported) = next.next();
        told.insert(instance, reported);
    }
}

#[test]
fn a_report_that_was_held_when_the_journal_was_replaced_is_acted_on_once() {
    let directory = tempfile::tempdir().unwrap();
    drop(Journal::open(directory.path()).unwrap());
    let stage =
        start(directory.path(), ReceiverPolicy { interval: Duration::from_secs(2), ..policy() });
    damage_while_open(directory.path(), "settled");
    assert!(stage.report("a", "primary").starts_with("HTTP/1.1 200"));
    // What follows from this report meets the damage.
    assert!(stage.report("b", "backup").starts_with("HTTP/1.1 200"));
    assert_eq!(stage.next(), ("b".to_owned(), ReportedState::Backup));
    while set_aside(directory.path()) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(stage.next(), ("a".to_owned(), ReportedState::Primary));
    drop(stage);
    let (_journal, memory) = Journal::open(directory.path()).unwrap();
    let a = &memory[&"a".parse().unwrap()];
    assert_eq!(a.settled.unwrap().state, ReportedState::Primary);
    assert_eq!(a.open, [], "the next receiver does not act on it again");
}

#[test]
fn whoever_hangs_up_before_the_answer_is_heard_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let stage = start(directory.path(), policy());
    let mut stream = stage.connect();
    stream.write_all(request("a", "primary", "close").as_bytes()).unwrap();
    drop(stream);
    assert_eq!(stage.next(), ("a".to_owned(), ReportedState::Primary));
}
