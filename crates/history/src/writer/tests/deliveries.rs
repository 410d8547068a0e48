// SPDX-License-Identifier: Apache-2.0
//! Tests of the table `delivery`, and of retention that keeps what a target has not received.

use super::*;
use crate::delivery::{ConcludedRow, DeliveryKey, DeliverySource};

fn key(target: &str, instance: &str) -> DeliveryKey {
    let source = DeliverySource::Node;
    DeliveryKey { target: target.into(), source, instance: instance.to_owned() }
}

fn delivered(seq: i64) -> ConcludedRow {
    ConcludedRow {
        seq,
        outcome: "delivered",
        role: Some(vipwatch_core::EventKind::Role(RoleKind::Primary)),
        reported_missed: 0,
    }
}

/// The concluded number and the number of missed notifications of one row.
fn row(directory: &Path, target: &str, instance: &str) -> (i64, u32) {
    let rows = stored_deliveries(&Reader::open(directory).unwrap().connection).unwrap();
    let row = rows.iter().find(|row| row.key == key(target, instance)).unwrap();
    (row.seq, row.missed)
}

/// A writer that keeps one transition, and `undelivered` transitions for the target `slow`.
fn writer(directory: &Path, undelivered: u64) -> Writer {
    let keep = Retention { transitions: 1, undelivered, ..Retention::default() };
    let (writer, _) = Writer::open(directory, keep).unwrap();
    let every = vec!["slow".to_owned()];
    writer.set_targets(StoredTargets { all: every.clone(), every });
    writer
}

fn transition(seq: i64, instance: &str) -> Record {
    Record { seq, ..record(instance, now(), "primary") }
}

#[test]
fn conclusions_are_read_by_the_next_writer_and_a_held_store_does_not_block_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let store = writer.delivery_store();
    store.record(key("hook", "a"), delivered(5));
    store.record(key("hook", "a"), ConcludedRow { outcome: "given-up", ..delivered(7) });
    store.record(key("hook", "gone"), delivered(6));
    store.delete(key("hook", "gone"));
    drop(writer);
    store.record(key("hook", "a"), delivered(9));
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    let [row] = &opened.deliveries[..] else { panic!("{:?}", opened.deliveries) };
    assert_eq!((&row.key, row.seq, row.outcome.as_str()), (&key("hook", "a"), 7, "given-up"));
}

#[test]
fn conclusions_wait_in_memory_while_the_file_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    // A file has the path of the directory.
    File::create(&path).unwrap();
    let (writer, opened) = Writer::open(&path, Retention::default()).unwrap();
    assert!(opened.open_error.is_some());
    writer.delivery_store().record(key("hook", "a"), delivered(5));
    std::fs::remove_file(&path).unwrap();
    let end = std::time::Instant::now() + Duration::from_mins(1);
    let has_row = || {
        let reader = Reader::open(&path)?;
        stored_deliveries(&reader.connection).map(|rows| !rows.is_empty())
    };
    while !has_row().unwrap_or(false) {
        assert!(std::time::Instant::now() < end, "{:?}", writer.failing());
        std::thread::yield_now();
    }
    drop(writer);
    assert_eq!(row(&path, "hook", "a"), (5, 0));
}

#[test]
fn retention_keeps_transitions_that_a_target_for_every_transition_has_not_received() {
    let directory = tempfile::tempdir().unwrap();
    let writer = writer(directory.path(), 10);
    writer.delivery_store().record(key("slow", "a"), delivered(2));
    for seq in 1..=6 {
        writer.record(transition(seq, "a"), Latencies::default());
    }
    drop(writer);
    let left: Vec<i64> = read(directory.path()).iter().map(|record| record.seq).collect();
    assert_eq!(left, [3, 4, 5, 6], "those after the last received one");
    assert_eq!(row(directory.path(), "slow", "a"), (2, 0));
}

#[test]
fn a_start_keeps_undelivered_transitions_until_the_targets_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let first = writer(directory.path(), 10);
    first.delivery_store().record(key("slow", "a"), delivered(2));
    for seq in 1..=6 {
        first.record(transition(seq, "a"), Latencies::default());
    }
    drop(first);
    let keep = Retention { transitions: 1, undelivered: 10, ..Retention::default() };
    // The end of a writer applies retention, too.
    drop(Writer::open(directory.path(), keep).unwrap());
    let left: Vec<i64> = read(directory.path()).iter().map(|record| record.seq).collect();
    assert_eq!(left, [3, 4, 5, 6]);
    assert_eq!(row(directory.path(), "slow", "a"), (2, 0));
}

#[test]
fn undelivered_transitions_beyond_the_limit_are_deleted_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let writer = writer(directory.path(), 2);
    writer.delivery_store().record(key("slow", "a"), delivered(1));
    writer.delivery_store().record(key("slow", "b"), delivered(2));
    for (seq, instance) in [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b"), (6, "a"), (7, "a")] {
        writer.record(transition(seq, instance), Latencies::default());
    }
    drop(writer);
    let left: Vec<i64> = read(directory.path()).iter().map(|record| record.seq).collect();
    assert_eq!(left, [5, 6, 7]);
    assert_eq!(row(directory.path(), "slow", "a"), (4, 2));
    assert_eq!(row(directory.path(), "slow", "b"), (2, 0));
}

#[test]
fn the_oldest_undelivered_transitions_of_a_file_that_is_too_large_are_deleted_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let targets = StoredTargets { every: vec!["slow".to_owned()], all: vec!["slow".to_owned()] };
    let (first, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    first.set_targets(targets.clone());
    // The first hundred are delivered.
    first.delivery_store().record(key("slow", "a"), delivered(100));
    for seq in 1..=5000 {
        first.record(transition(seq, "a"), Latencies::default());
    }
    drop(first);
    let keep = Retention { bytes: 64 << 10, ..Retention::default() };
    let (second, _) = Writer::open(directory.path(), keep).unwrap();
    second.set_targets(targets);
    drop(second);
    let left = read(directory.path());
    assert_eq!((left[0].seq, left.last().unwrap().seq), (501, 5000), "a tenth is deleted");
    assert_eq!(row(directory.path(), "slow", "a"), (500, 400));
}

#[test]
fn a_transition_that_was_deleted_and_delivered_from_memory_does_not_count_as_missed() {
    let directory = tempfile::tempdir().unwrap();
    let first = writer(directory.path(), 0);
    first.delivery_store().record(key("slow", "a"), delivered(1));
    for seq in 1..=5 {
        first.record(transition(seq, "a"), Latencies::default());
    }
    drop(first);
    assert_eq!(row(directory.path(), "slow", "a"), (4, 3));
    let second = writer(directory.path(), 0);
    second.delivery_store().record(key("slow", "a"), delivered(2));
    second.delivery_store().record(key("slow", "a"), delivered(3));
    drop(second);
    assert_eq!(row(directory.path(), "slow", "a"), (4, 1), "only 4 is missed");
    let third = writer(directory.path(), 0);
    let reported = ConcludedRow { reported_missed: 1, ..delivered(5) };
    third.delivery_store().record(key("slow", "a"), reported);
    drop(third);
    assert_eq!(row(directory.path(), "slow", "a"), (5, 0));
}

#[test]
fn missed_reports_are_counted_once_for_the_targets_that_have_not_received_them() {
    let directory = tempfile::tempdir().unwrap();
    let of_receiver =
        |target: &str| DeliveryKey { source: DeliverySource::Receiver, ..key(target, "a") };
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let store = writer.delivery_store();
    for (target, seq) in [("slow", 2), ("ahead", 5), ("latest", 1)] {
        store.record(of_receiver(target), delivered(seq));
    }
    store.record(key("slow", "a"), delivered(1));
    drop(writer);
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let missed = crate::MissedNotifications {
        source: DeliverySource::Receiver,
        targets: vec!["slow".to_owned(), "ahead".to_owned()],
        seqs: [("a".to_owned(), vec![2, 3, 5, 6])].into(),
        on_stored: Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }),
    };
    writer.delivery_store().count_missed(missed.clone());
    writer.delivery_store().count_missed(missed);
    // Number 3 was in memory, and is delivered all the same.
    writer.delivery_store().record(of_receiver("slow"), delivered(3));
    drop(writer);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let reader = Reader::open(directory.path()).unwrap();
    let position = |target: &str, source| {
        let position = reader.position(target, source, "a").unwrap();
        (position.seq, position.missed)
    };
    assert_eq!(position("slow", DeliverySource::Receiver), (6, 2), "5 and 6");
    assert_eq!(position("ahead", DeliverySource::Receiver), (6, 1), "6");
    assert_eq!(position("latest", DeliverySource::Receiver), (1, 0));
    assert_eq!(position("slow", DeliverySource::Node), (1, 0));
    assert_eq!(position("new", DeliverySource::Node), (0, 0));
}

#[test]
fn a_removed_instance_has_a_last_transition_and_no_role() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    writer.record(transition(1, "a"), Latencies::default());
    let removed = Record { to: None, ..transition(2, "a") };
    writer.record(removed.clone(), Latencies::default());
    drop(writer);
    let reader = Reader::open(directory.path()).unwrap();
    assert!(reader.last_roles().unwrap().is_empty());
    assert_eq!(reader.last_transition("a").unwrap(), Some(removed));
}
