// SPDX-License-Identifier: Apache-2.0
//! Tests of records, retention, sequence numbers and damage, through the writer and a reader.

use std::fs::File;
use std::io::Write;

use super::*;
use crate::reader::{Query, Reader};

mod deliveries;

fn record(instance: &str, at: i64, to: &str) -> Record {
    static SEQ: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(1);
    Record {
        seq: SEQ.fetch_add(1, Ordering::Relaxed),
        at,
        instance: instance.to_owned(),
        netns: Some("blue".to_owned()),
        from: Some(RoleKind::Backup),
        to: RoleKind::from_word(to),
        trigger: "address".to_owned(),
        reason: None,
        cause: None,
    }
}

fn read(directory: &Path) -> Vec<Record> {
    let reader = Reader::open(directory).unwrap();
    reader.transitions(&Query::default()).unwrap().into_iter().map(|entry| entry.record).collect()
}

/// The number of runs for which `condition` is true.
fn runs(directory: &Path, condition: &str) -> i64 {
    let count = format!("SELECT count(*) FROM run WHERE {condition}");
    Reader::open(directory).unwrap().connection.query_row(&count, [], |row| row.get(0)).unwrap()
}

/// A copy of the files as a killed process leaves them.
fn copy_as_after_kill(directory: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in [FILE.to_owned(), format!("{FILE}-wal")] {
        std::fs::copy(directory.join(&name), copy.path().join(&name)).unwrap();
    }
    copy
}

#[test]
fn records_are_written_when_the_writer_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    let epoch = opened.epoch.clone();
    assert_eq!(opened, OpenedHistory { epoch, ..OpenedHistory::default() });
    let time = now();
    let records: Vec<Record> = (0..3000).map(|n| record("a", time + n, "primary")).collect();
    for record in &records {
        writer.record(record.clone(), Latencies::default());
    }
    drop(writer);
    assert_eq!(read(directory.path()), records, "every record, in order");
    assert_eq!(runs(directory.path(), "ended IS NOT NULL AND dropped = 0"), 1);
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.killed, None, "the writer had ended in order");
}

#[test]
fn the_next_recorder_detects_that_the_previous_one_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let copy = copy_as_after_kill(directory.path());
    drop(writer);
    let (writer, opened) = Writer::open(copy.path(), Retention::default()).unwrap();
    assert!(opened.killed.is_some());
    drop(writer);
    let (_writer, opened) = Writer::open(copy.path(), Retention::default()).unwrap();
    assert_eq!(opened.killed, None, "a kill is reported once");
    assert_eq!(runs(copy.path(), "true"), 3);
    assert_eq!(runs(copy.path(), "ended IS NULL AND id = 1"), 1);
}

#[test]
fn transitions_beyond_the_limits_of_age_and_number_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { age: Duration::from_hours(1), transitions: 10, ..Retention::default() };
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
    writer.set_targets(StoredTargets::default());
    writer.record(record("old", now() - 7_200_000, "primary"), Latencies::default());
    for _ in 0..25 {
        writer.record(record("new", now(), "primary"), Latencies::default());
    }
    drop(writer);
    let left = read(directory.path());
    assert_eq!(left.len(), 10);
    assert!(left.iter().all(|record| record.instance == "new"));
}

#[test]
fn two_starts_with_a_clock_that_is_ahead_delete_no_history() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { age: Duration::from_hours(1), ..Retention::default() };
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
    writer.record(record("a", now(), "primary"), Latencies::default());
    drop(writer);
    // All of that was two hours ago by the clock of the next runs.
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    let set_back = "UPDATE transition SET at = at - 7200000; \
        UPDATE run SET began = began - 7200000, seen = seen - 7200000, ended = ended - 7200000, \
        retention = retention - 7200000";
    connection.execute_batch(set_back).unwrap();
    drop(connection);
    for _ in 0..2 {
        let (writer, _) = Writer::open(directory.path(), keep).unwrap();
        writer.set_targets(StoredTargets::default());
        drop(writer);
        assert_eq!(read(directory.path()).len(), 1);
    }
}

#[test]
fn the_last_role_of_an_instance_is_kept_when_its_transitions_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { age: Duration::from_hours(1), ..Retention::default() };
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
    writer.set_targets(StoredTargets::default());
    let old = now() - 7_200_000;
    writer.record(record("a", old, "primary"), Latencies::default());
    writer.record(record("a", now(), "primary"), Latencies::default());
    drop(writer);
    let last = Reader::open(directory.path()).unwrap().last_roles().unwrap().remove("a").unwrap();
    assert_eq!((last.role, last.since), (RoleKind::Primary, old));
}

#[test]
fn sequence_numbers_are_not_reused_after_a_kill_or_a_damaged_file() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let copy = copy_as_after_kill(directory.path());
    drop(writer);
    let (writer, opened) = Writer::open(copy.path(), Retention::default()).unwrap();
    assert!(opened.last_seq >= MAX_UNWRITTEN, "some may have been delivered and not written");
    drop(writer);
    assert!(
        last_seq(copy.path()) >= opened.last_seq,
        "also if that writer has written no transition"
    );
    let broken = tempfile::tempdir().unwrap();
    File::create(broken.path().join(FILE)).unwrap().write_all(&[7; 8192]).unwrap();
    let (_writer, opened) = Writer::open(broken.path(), Retention::default()).unwrap();
    assert!(opened.last_seq > 1_000_000_000, "the number is derived from the clock");
}

/// The highest sequence number in use, as the next writer reads it.
fn last_seq(directory: &Path) -> i64 {
    Writer::open(directory, Retention::default()).unwrap().1.last_seq
}

#[test]
fn sequence_numbers_continue_above_those_of_stored_roles() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    writer.store_last_role("a".to_owned(), RoleKind::Primary, 1, 7_000_000);
    drop(writer);
    assert!(last_seq(directory.path()) >= 7_000_000);
}

#[test]
fn sequence_numbers_continue_when_a_damaged_file_is_replaced_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    File::create(directory.path().join(FILE)).unwrap().write_all(&[7; 8192]).unwrap();
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    drop(writer);
    assert!(last_seq(directory.path()) >= opened.last_seq);
}

#[test]
fn sequence_numbers_continue_when_a_damaged_file_is_replaced_later() {
    let directory = tempfile::tempdir().unwrap();
    add_unused_table(directory.path());
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let transition = Record { seq: 7_000_000, ..record("a", now(), "primary") };
    writer.record(transition.clone(), Latencies::default());
    drop(writer);
    damage(directory.path(), "unused");
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.last_seq, transition.seq);
    writer.check_for_damage();
    drop(writer);
    assert_eq!(files_set_aside(directory.path()), 1);
    assert!(last_seq(directory.path()) >= transition.seq);
}

#[test]
fn the_oldest_transitions_of_a_file_that_is_too_large_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    for _ in 0..5000 {
        writer.record(record("a", now(), "primary"), Latencies::default());
    }
    drop(writer);
    let all = read(directory.path());
    let keep = Retention { bytes: 64 << 10, ..Retention::default() };
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
    writer.set_targets(StoredTargets::default());
    drop(writer);
    let left = read(directory.path());
    assert!(left.len() < all.len() && !left.is_empty(), "{} of {}", left.len(), all.len());
    assert_eq!(left.last(), all.last(), "the latest are kept");
}

/// Marks the last run as killed, so that the next recorder skips sequence numbers.
fn mark_as_killed(directory: &Path) {
    let connection = Connection::open(directory.join(FILE)).unwrap();
    connection.execute("UPDATE run SET ended = NULL", []).unwrap();
}

#[test]
fn retention_counts_rows_and_not_sequence_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { transitions: 10, ..Retention::default() };
    let (writer, opened) = Writer::open(directory.path(), keep).unwrap();
    writer.set_targets(StoredTargets::default());
    for seq in opened.last_seq + 1..=opened.last_seq + 8 {
        let transition = Record { seq, ..record("a", now(), "primary") };
        writer.record(transition, Latencies::default());
    }
    drop(writer);
    mark_as_killed(directory.path());
    let (writer, opened) = Writer::open(directory.path(), keep).unwrap();
    writer.set_targets(StoredTargets::default());
    assert!(opened.last_seq > MAX_UNWRITTEN, "sequence numbers were skipped");
    for seq in opened.last_seq + 1..=opened.last_seq + 3 {
        let transition = Record { seq, ..record("a", now(), "primary") };
        writer.record(transition, Latencies::default());
    }
    drop(writer);
    let left: Vec<i64> = read(directory.path()).iter().map(|record| record.seq).collect();
    let new = (1..=3).map(|number| opened.last_seq + number);
    assert_eq!(left, (2..=8).chain(new).collect::<Vec<i64>>(), "the ten latest rows");
}

#[test]
fn a_tenth_of_the_rows_is_deleted_although_sequence_numbers_have_gaps() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    for seq in (1..=4999).chain([MAX_UNWRITTEN]) {
        let transition = Record { seq, ..record("a", now(), "primary") };
        writer.record(transition, Latencies::default());
    }
    drop(writer);
    let keep = Retention { bytes: 64 << 10, ..Retention::default() };
    // Retention runs once, when the recorder ends: at its start it does not know the targets.
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
    writer.set_targets(StoredTargets::default());
    drop(writer);
    assert_eq!(read(directory.path()).len(), 4500);
}

#[test]
fn a_latency_that_is_known_later_is_added() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let transition = record("a", now(), "primary");
    let mut latencies = Latencies::default();
    latencies.set(Stage::File, 250);
    writer.record(transition.clone(), latencies);
    writer.set_latency(transition.seq, Stage::Agent, 1_500);
    drop(writer);
    let reader = Reader::open(directory.path()).unwrap();
    let entry = reader.transitions(&Query::default()).unwrap().remove(0);
    assert_eq!(entry.latencies.of(Stage::File), Some(250));
    assert_eq!(entry.latencies.of(Stage::Agent), Some(1_500));
    assert_eq!(entry.latencies.of(Stage::Hook), None);
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.last_seq, transition.seq);
}

#[test]
fn a_file_that_is_not_a_database_is_renamed_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    File::create(&path).unwrap().write_all(&[7; 8192]).unwrap();
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    let aside = opened.set_aside.unwrap();
    assert_eq!((std::fs::read(aside.path).unwrap(), aside.format), (vec![7; 8192], None));
    assert_eq!(writer.other_format(), None);
    writer.record(record("a", now(), "primary"), Latencies::default());
    drop(writer);
    assert_eq!(read(directory.path()).len(), 1);
}

/// Overwrites the first page of a table or an index.
fn damage(directory: &Path, name: &str) {
    use std::os::unix::fs::FileExt;
    let connection = Connection::open(directory.join(FILE)).unwrap();
    let find = "SELECT rootpage FROM sqlite_master WHERE name = ?1";
    let page: u32 = connection.query_row(find, [name], |row| row.get(0)).unwrap();
    let size: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).unwrap();
    drop(connection);
    let file = File::options().write(true).open(directory.join(FILE)).unwrap();
    let (garbage, at) = (vec![7; size as usize], u64::from(page - 1) * u64::from(size));
    file.write_all_at(&garbage, at).unwrap();
}

/// Creates a history with a table that no statement of the writer uses.
fn add_unused_table(directory: &Path) {
    drop(Writer::open(directory, Retention::default()).unwrap());
    let connection = Connection::open(directory.join(FILE)).unwrap();
    connection.execute("CREATE TABLE unused (x)", []).unwrap();
}

fn files_set_aside(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".corrupt-")).count()
}

#[test]
fn damage_found_at_the_start_or_by_a_write_replaces_the_file() {
    for name in ["role", "run", "transition_by_instance"] {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
        writer.record(record("a", now(), "primary"), Latencies::default());
        drop(writer);
        damage(directory.path(), name);
        let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
        assert_eq!(opened.open_error, None, "{name}");
        let transition = record("b", now(), "primary");
        writer.record(transition.clone(), Latencies::default());
        drop(writer);
        assert_eq!(read(directory.path()), [transition], "{name}");
        assert_eq!(files_set_aside(directory.path()), 1, "{name}");
    }
}

#[test]
fn damage_that_only_a_reader_finds_replaces_the_file_after_a_check() {
    let directory = tempfile::tempdir().unwrap();
    add_unused_table(directory.path());
    damage(directory.path(), "unused");
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.set_aside, None);
    writer.check_for_damage();
    drop(writer);
    assert_eq!(files_set_aside(directory.path()), 1);
}

#[test]
fn a_file_that_was_found_intact_is_not_checked_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    add_unused_table(directory.path());
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    writer.check_for_damage();
    // The thread checks the file before it writes the batch that has the message.
    writer.record(record("a", now(), "primary"), Latencies::default());
    while read(directory.path()).is_empty() {
        std::thread::yield_now();
    }
    damage(directory.path(), "unused");
    writer.check_for_damage();
    drop(writer);
    assert_eq!(
        files_set_aside(directory.path()),
        0,
        "repeated reports of a reader do not occupy the writer"
    );
}

#[test]
fn roles_and_sequence_numbers_are_read_from_a_file_that_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().join("100%?#");
    std::fs::create_dir(&odd).unwrap();
    let (writer, _) = Writer::open(&odd, Retention::default()).unwrap();
    // Above every number that is derived from the clock.
    let transition = Record { seq: 1 << 50, ..record("a", now(), "primary") };
    writer.record(transition.clone(), Latencies::default());
    drop(writer);
    let connection = open_without_writing(&odd.join(FILE)).unwrap();
    assert_eq!(highest_stored_seq(&connection).unwrap(), transition.seq);
    assert_eq!(std::fs::read_dir(&odd).unwrap().count(), 1, "SQLite has created no file beside it");
    // A directory in place of the shared memory file keeps SQLite from opening the database for writing.
    std::fs::create_dir(odd.join(format!("{FILE}-shm"))).unwrap();
    let (_writer, opened) = Writer::open(&odd, Retention::default()).unwrap();
    assert!(opened.open_error.is_some());
    assert_eq!(opened.roles["a"].role, RoleKind::Primary);
    assert!(opened.last_seq >= transition.seq, "{}", opened.last_seq);
}

#[test]
fn records_are_counted_as_dropped_while_the_history_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    // A file in place of the directory, because root can open a directory without permissions.
    let state_dir = directory.path().join("state");
    File::create(&state_dir).unwrap();
    let (writer, opened) = Writer::open(&state_dir, Retention::default()).unwrap();
    assert!(opened.open_error.is_some() && opened.last_seq > 1_000_000_000, "{opened:?}");
    writer.record(record("a", now(), "primary"), Latencies::default());
    assert!(writer.failing().is_some());
    let health = Arc::clone(&writer.health);
    drop(writer);
    assert_eq!(health.dropped.load(Ordering::Relaxed), 1);
}

/// Creates a file with one table and this format number, and returns its content.
fn create_format(directory: &Path, format: i64) -> Vec<u8> {
    let path = directory.join(FILE);
    let connection = Connection::open(&path).unwrap();
    connection.execute("CREATE TABLE change (seq INTEGER)", []).unwrap();
    connection.pragma_update(None, "user_version", format).unwrap();
    drop(connection);
    std::fs::read(path).unwrap()
}

#[test]
fn a_file_of_another_format_is_renamed_and_kept_and_a_new_one_is_begun() {
    for format in [0, schema::VERSION - 1, schema::VERSION + 1] {
        let directory = tempfile::tempdir().unwrap();
        let before = create_format(directory.path(), format);
        let error = Reader::open(directory.path()).unwrap_err();
        assert!(matches!(error, HistoryError::OtherFormat { found, .. } if found == format));
        let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
        let aside = opened.set_aside.unwrap();
        assert_eq!((aside.format, std::fs::read(&aside.path).unwrap()), (Some(format), before));
        assert!(opened.last_seq > 1_000_000_000, "the number is derived from the clock");
        let text = writer.other_format().unwrap();
        assert!(text.contains(&format!("history.sqlite had format {format}, ")), "{text}");
        assert!(text.contains(aside.path.file_name().unwrap().to_str().unwrap()), "{text}");
        let transition = record("a", now(), "primary");
        writer.record(transition.clone(), Latencies::default());
        drop(writer);
        assert_eq!(read(directory.path()), [transition]);
        // The next run says so again, until the file is moved away.
        let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
        assert_eq!((opened.set_aside, writer.other_format()), (None, Some(text)));
        drop(writer);
        std::fs::remove_file(aside.path).unwrap();
        let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
        assert_eq!(writer.other_format(), None);
    }
}
