// SPDX-License-Identifier: Apache-2.0
//! Tests of the order of transitions and gaps, of their bounds, and of paging.

use std::path::Path;

use rusqlite::Connection;

use super::pages::PAGE_ROWS;
use super::*;
use crate::writer::{Retention, Writer};
use crate::{FILE, Latencies, Record};

/// A file with the tables and no rows.
fn empty_history() -> (tempfile::TempDir, Connection) {
    let directory = tempfile::tempdir().unwrap();
    drop(Writer::open(directory.path(), Retention::default()).unwrap());
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.execute_batch("DELETE FROM run; DELETE FROM sqlite_sequence").unwrap();
    (directory, connection)
}

fn insert_transitions(connection: &Connection, rows: &[(i64, i64, &str)]) {
    let insert = "INSERT INTO transition (seq, at, instance, to_role, trigger) \
                  VALUES (?1, ?2, ?3, 'primary', 'address')";
    for (seq, at, instance) in rows {
        connection.execute(insert, rusqlite::params![seq, at, instance]).unwrap();
    }
}

fn insert_run(connection: &Connection, began: i64, seen: i64, ended: Option<i64>, after_seq: i64) {
    let insert = "INSERT INTO run (began, seen, ended, after_seq) VALUES (?1, ?2, ?3, ?4)";
    connection.execute(insert, rusqlite::params![began, seen, ended, after_seq]).unwrap();
}

/// The items in a short form: `5` is the transition with that number, `killed 10-20` a gap.
fn items(directory: &Path, query: Query) -> Vec<String> {
    let reader = Reader::open(directory).unwrap();
    let text = |item: HistoryItem| match item {
        HistoryItem::Transition(entry) => entry.record.seq.to_string(),
        HistoryItem::Gap(gap) => {
            let until = gap.until.map(|until| until.to_string()).unwrap_or_default();
            let count = gap.count.map(|count| format!(" x{count}")).unwrap_or_default();
            format!("{} {}-{until}{count}", gap.reason, gap.from)
        }
    };
    Timeline::new(reader, query).unwrap().map(|item| text(item.unwrap())).collect()
}

/// Three runs: stopped at 30, killed at 60, and one that ran until 90. Two transitions were dropped in the second.
fn history_with_gaps() -> tempfile::TempDir {
    let (directory, connection) = empty_history();
    insert_run(&connection, 10, 30, Some(30), 0);
    insert_run(&connection, 40, 60, None, 2);
    insert_run(&connection, 70, 90, Some(90), 100_006);
    let rows = [(1, 10, "web-1"), (2, 20, "db"), (3, 40, "web-1"), (6, 60, "web-2")];
    insert_transitions(&connection, &rows);
    insert_transitions(&connection, &[(100_007, 70, "web-1"), (100_008, 80, "db")]);
    let dropped =
        "INSERT INTO unrecorded (from_at, until_at, until_seq, count) VALUES (45, 50, 5, 2)";
    connection.execute(dropped, []).unwrap();
    directory
}

#[test]
fn gaps_stand_where_they_happened_with_their_bounds() {
    let directory = history_with_gaps();
    let expected = [
        "1",
        "2",
        "stopped 30-40",
        "3",
        "dropped 45-50 x2",
        "6",
        "killed 60-70",
        "100007",
        "100008",
        "stopped 90-",
    ];
    assert_eq!(items(directory.path(), Query::default()), expected);
}

#[test]
fn a_gap_stands_in_its_place_although_the_clock_was_set_back() {
    let (directory, connection) = empty_history();
    insert_run(&connection, 500, 600, Some(600), 0);
    insert_run(&connection, 10, now(), None, 1);
    insert_transitions(&connection, &[(1, 550, "a"), (2, 20, "a")]);
    assert_eq!(items(directory.path(), Query::default()), ["1", "stopped 600-10", "2"]);
}

#[test]
fn conditions_select_transitions_and_the_gaps_of_the_same_time() {
    let directory = history_with_gaps();
    let of = |query| items(directory.path(), query);
    let query = Query { since: Some(50), until: Some(70), ..Query::default() };
    assert_eq!(of(query), ["dropped 45-50 x2", "6", "killed 60-70", "100007"]);
    let exact = Query { instance: Some("db".to_owned()), exact: true, ..Query::default() };
    let expected =
        ["2", "stopped 30-40", "dropped 45-50 x2", "killed 60-70", "100008", "stopped 90-"];
    assert_eq!(of(exact), expected, "a gap belongs to every instance");
    let prefix = Query {
        instance: Some("web".to_owned()),
        since: Some(55),
        until: Some(80),
        ..Query::default()
    };
    assert_eq!(of(prefix), ["6", "killed 60-70", "100007"]);
    assert_eq!(of(Query { since: Some(85), until: Some(88), ..Query::default() }), [""; 0]);
}

#[test]
fn a_limit_selects_the_latest_transitions_and_the_gaps_between_them() {
    let directory = history_with_gaps();
    let query = Query { limit: Some(3), ..Query::default() };
    let expected = ["6", "killed 60-70", "100007", "100008", "stopped 90-"];
    assert_eq!(items(directory.path(), query), expected);
}

#[test]
fn a_limit_of_zero_selects_nothing() {
    let directory = history_with_gaps();
    for after in [None, Some(0)] {
        let query = Query { after, limit: Some(0), ..Query::default() };
        assert_eq!(items(directory.path(), query), [""; 0], "after {after:?}");
    }
}

#[test]
fn queries_with_a_limit_and_the_last_number_return_each_item_once() {
    let directory = history_with_gaps();
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let query = Query { after: Some(after), limit: Some(1), ..Query::default() };
        let page = items(directory.path(), query);
        let last = page.iter().filter_map(|item| item.parse().ok()).next_back();
        all.extend(page);
        let Some(last) = last else { break };
        after = last;
    }
    assert_eq!(all, items(directory.path(), Query::default()));
}

#[test]
fn a_history_longer_than_several_pages_is_read_completely() {
    let (directory, connection) = empty_history();
    let rows = i64::try_from(3 * PAGE_ROWS + 7).unwrap();
    connection.execute_batch("BEGIN").unwrap();
    for row in 1..=rows {
        insert_run(&connection, 10 * row, 10 * row + 5, Some(10 * row + 5), row - 1);
        insert_transitions(&connection, &[(row, 10 * row + 1, "a")]);
    }
    connection.execute_batch("COMMIT").unwrap();
    for (instance, exact) in [(None, false), (Some("a"), false), (Some("a"), true)] {
        let query = Query { instance: instance.map(str::to_owned), exact, ..Query::default() };
        let all = items(directory.path(), query);
        let expected = (1..=rows).flat_map(|row| {
            let next = if row < rows { (10 * row + 10).to_string() } else { String::new() };
            [row.to_string(), format!("stopped {}-{next}", 10 * row + 5)]
        });
        assert_eq!(all, expected.collect::<Vec<String>>());
    }
}

#[test]
fn a_recorder_that_writes_now_leaves_no_gap_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(items(directory.path(), Query::default()), [""; 0]);
    drop(writer);
    let all = items(directory.path(), Query::default());
    assert!(matches!(all.as_slice(), [gap] if gap.starts_with("stopped ")), "{all:?}");
    let stalled = RecorderRun { seen: 5, ended: None };
    let gap = HistoryGap { from: 5, until: None, reason: GapCause::Killed, count: None };
    assert_eq!(unfinished_gap(&stalled, 200_000), Some(gap));
    assert_eq!(unfinished_gap(&stalled, 100_000), None, "two heartbeats have not passed");
}

fn record(seq: i64, at: i64) -> Record {
    Record {
        seq,
        at,
        instance: "a".to_owned(),
        netns: None,
        from: None,
        to: Some(vipwatch_core::RoleKind::Primary),
        trigger: "address".to_owned(),
        reason: None,
        cause: None,
    }
}

#[test]
fn transitions_that_could_not_be_written_are_a_gap_with_their_times_and_number() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let file = Connection::open(directory.path().join(FILE)).unwrap();
    let time = now();
    writer.record(record(1, time), Latencies::default());
    // A trigger makes the writes fail, as a full disk does.
    let fail = "CREATE TRIGGER full BEFORE INSERT ON transition WHEN new.seq IN (2, 3) \
                BEGIN SELECT RAISE(ABORT, 'disk is full'); END";
    while items(directory.path(), Query::default()) != ["1"] {
        std::thread::yield_now();
    }
    file.execute_batch(fail).unwrap();
    for seq in [2, 3] {
        writer.record(record(seq, time + seq), Latencies::default());
        while writer.dropped() < u64::try_from(seq).unwrap() - 1 {
            std::thread::yield_now();
        }
    }
    writer.record(record(4, time + 4), Latencies::default());
    drop(writer);
    let all = items(directory.path(), Query::default());
    let gap = format!("dropped {}-{} x2", time + 2, time + 3);
    assert_eq!(all[..3], ["1".to_owned(), gap, "4".to_owned()], "{all:?}");
}

#[test]
fn a_killed_recorder_was_seen_when_it_wrote_its_last_transition() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let file = Connection::open(directory.path().join(FILE)).unwrap();
    let record_and_wait = |seq: i64, at: i64| {
        writer.record(record(seq, at), Latencies::default());
        while items(directory.path(), Query::default()).len() < usize::try_from(seq).unwrap() {
            std::thread::yield_now();
        }
    };
    // The first heartbeat is before the first transition, and the next one a minute later.
    record_and_wait(1, now());
    let before = now();
    while now() == before {
        std::thread::yield_now();
    }
    let at = now();
    record_and_wait(2, at);
    let seen: i64 = file.query_row("SELECT seen FROM run", [], |row| row.get(0)).unwrap();
    assert!(seen >= at, "the gap after a kill begins after the last recorded transition");
}
