//! Records, retention, numbers and damage, through the writer and a reader.

use std::fs::File;
use std::io::Write;

use super::*;
use crate::reader::{Query, Reader};

fn record(instance: &str, at: i64, to: &str) -> Record {
    static SEQ: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(1);
    Record {
        seq: SEQ.fetch_add(1, Ordering::Relaxed),
        at,
        instance: instance.to_owned(),
        netns: Some("blue".to_owned()),
        from: Some("backup".to_owned()),
        to: to.to_owned(),
        cause: "address".to_owned(),
        reason: None,
        is_news: true,
    }
}

fn read(directory: &Path) -> Vec<Record> {
    let reader = Reader::open(directory).unwrap();
    reader.changes(&Query::default()).unwrap().into_iter().map(|entry| entry.record).collect()
}

/// What is left behind by a process that never comes to its end.
fn left_behind(directory: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in [FILE.to_owned(), format!("{FILE}-wal")] {
        std::fs::copy(directory.join(&name), copy.path().join(&name)).unwrap();
    }
    copy
}

#[test]
fn what_was_recorded_is_there_when_it_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened, OpenedHistory::default());
    let time = now();
    let records: Vec<Record> = (0..3000).map(|n| record("a", time + n, "primary")).collect();
    for record in &records {
        writer.record(record.clone(), Latencies::default());
    }
    drop(writer);
    assert_eq!(read(directory.path()), records, "all of them, in order");
    let run = Reader::open(directory.path()).unwrap().runs().unwrap().remove(0);
    assert!(run.ended.is_some() && run.dropped == 0);
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.killed, None, "it had ended well");
}

#[test]
fn a_recorder_that_was_killed_is_noticed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let copy = left_behind(directory.path());
    drop(writer);
    let (writer, opened) = Writer::open(copy.path(), Retention::default()).unwrap();
    assert!(opened.killed.is_some());
    drop(writer);
    let (_writer, opened) = Writer::open(copy.path(), Retention::default()).unwrap();
    assert_eq!(opened.killed, None, "said once");
    let runs = Reader::open(copy.path()).unwrap().runs().unwrap();
    assert_eq!(runs.len(), 3);
    assert_eq!(runs[0].ended, None);
}

#[test]
fn what_is_too_old_or_too_much_is_cleared() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { age: Duration::from_hours(1), changes: 10, ..Retention::default() };
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
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
fn what_an_instance_was_last_outlives_its_changes() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { age: Duration::from_hours(1), ..Retention::default() };
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
    let old = now() - 7_200_000;
    writer.record(record("a", old, "primary"), Latencies::default());
    let mut again = record("a", now(), "primary");
    again.is_news = false;
    writer.record(again, Latencies::default());
    drop(writer);
    let last = Reader::open(directory.path()).unwrap().last_roles().unwrap().remove("a").unwrap();
    assert_eq!((last.role.as_str(), last.since), ("primary", old));
}

#[test]
fn what_was_delivered_is_known_when_retention_has_removed_its_change() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { age: Duration::from_hours(1), ..Retention::default() };
    let (writer, _) = Writer::open(directory.path(), keep).unwrap();
    let old = now() - 7_200_000;
    let (told, untold) = (record("told", old, "primary"), record("untold", old, "primary"));
    writer.record(told.clone(), Latencies::default());
    writer.record(untold, Latencies::default());
    writer.stage(told.seq, Stage::Hook, 70);
    writer.stage(told.seq, Stage::Webhook, 80);
    // Every start records the role it finds, which is no news.
    let again = Record { is_news: false, ..record("told", now(), "primary") };
    writer.record(again, Latencies::default());
    drop(writer);
    assert!(read(directory.path()).iter().all(|record| record.at > old), "they are removed");
    let roles = Reader::open(directory.path()).unwrap().last_roles().unwrap();
    let of = |id: &str| [Stage::Hook, Stage::Webhook].map(|stage| roles[id].latencies.of(stage));
    assert_eq!(of("told"), [Some(70), Some(80)]);
    assert_eq!(of("untold"), [None, None], "the next node delivers it");
}

#[test]
fn a_file_of_format_2_that_lost_a_change_to_retention_counts_it_as_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.execute_batch(&format!("{} {}", schema::TO_1, schema::TO_2)).unwrap();
    connection.pragma_update(None, "user_version", 2).unwrap();
    let insert = "INSERT INTO change (seq, at, instance, to_role, cause, hook_us) \
                  VALUES (7, ?1, 'kept', 'backup', 'start', 5)";
    connection.execute(insert, [now()]).unwrap();
    let standing = "INSERT INTO standing (instance, role, since, seq) \
                    VALUES ('kept', 'backup', 1, 7), ('removed', 'backup', 1, 6)";
    connection.execute(standing, []).unwrap();
    drop(connection);
    drop(Writer::open(directory.path(), Retention::default()).unwrap());
    let roles = Reader::open(directory.path()).unwrap().last_roles().unwrap();
    let of = |id: &str| [Stage::Hook, Stage::Webhook].map(|stage| roles[id].latencies.of(stage));
    assert_eq!(of("kept"), [Some(5), None]);
    assert_eq!(of("removed"), [Some(0), Some(0)]);
}

#[test]
fn numbers_are_not_used_again_after_a_kill_or_a_loss() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let copy = left_behind(directory.path());
    drop(writer);
    let (writer, opened) = Writer::open(copy.path(), Retention::default()).unwrap();
    assert!(opened.last >= UNWRITTEN, "some may have been told of and not written");
    drop(writer);
    assert!(next_last(copy.path()) >= opened.last, "also if that writer has written none");
    let broken = tempfile::tempdir().unwrap();
    File::create(broken.path().join(FILE)).unwrap().write_all(&[7; 8192]).unwrap();
    let (_writer, opened) = Writer::open(broken.path(), Retention::default()).unwrap();
    assert!(opened.last > 1_000_000_000, "nobody knows how many there were");
}

/// The number above which the next writer counts.
fn next_last(directory: &Path) -> i64 {
    Writer::open(directory, Retention::default()).unwrap().1.last
}

#[test]
fn numbers_go_on_above_those_of_restated_instances() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let last = LastRole { role: "primary".to_owned(), since: 1, latencies: Latencies::default() };
    writer.restate("a".to_owned(), 7_000_000, last);
    drop(writer);
    assert!(next_last(directory.path()) >= 7_000_000);
}

#[test]
fn numbers_go_on_when_a_damaged_file_was_replaced_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    File::create(directory.path().join(FILE)).unwrap().write_all(&[7; 8192]).unwrap();
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    drop(writer);
    assert!(next_last(directory.path()) >= opened.last);
}

#[test]
fn numbers_go_on_when_a_damaged_file_was_replaced_while_the_writer_ran() {
    let directory = tempfile::tempdir().unwrap();
    add_unused_table(directory.path());
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let change = Record { seq: 7_000_000, ..record("a", now(), "primary") };
    writer.record(change.clone(), Latencies::default());
    drop(writer);
    damage(directory.path(), "unused");
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.last, change.seq);
    writer.examine();
    drop(writer);
    assert_eq!(files_set_aside(directory.path()), 1);
    assert!(next_last(directory.path()) >= change.seq);
}

#[test]
fn a_file_that_is_too_large_loses_its_oldest_part() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    for _ in 0..5000 {
        writer.record(record("a", now(), "primary"), Latencies::default());
    }
    drop(writer);
    let all = read(directory.path());
    let keep = Retention { bytes: 64 << 10, ..Retention::default() };
    drop(Writer::open(directory.path(), keep).unwrap());
    let left = read(directory.path());
    assert!(left.len() < all.len() && !left.is_empty(), "{} of {}", left.len(), all.len());
    assert_eq!(left.last(), all.last(), "the youngest stay");
}

/// Makes the history look as if its recorder was killed; the next one then skips numbers.
fn pretend_a_kill(directory: &Path) {
    let connection = Connection::open(directory.join(FILE)).unwrap();
    connection.execute("UPDATE run SET ended = NULL", []).unwrap();
}

#[test]
fn retention_counts_rows_and_not_numbers_also_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let keep = Retention { changes: 10, ..Retention::default() };
    let (writer, opened) = Writer::open(directory.path(), keep).unwrap();
    for seq in opened.last + 1..=opened.last + 8 {
        let change = Record { seq, ..record("a", now(), "primary") };
        writer.record(change, Latencies::default());
    }
    drop(writer);
    pretend_a_kill(directory.path());
    let (writer, opened) = Writer::open(directory.path(), keep).unwrap();
    assert!(opened.last > UNWRITTEN, "numbers were skipped");
    for seq in opened.last + 1..=opened.last + 3 {
        let change = Record { seq, ..record("a", now(), "primary") };
        writer.record(change, Latencies::default());
    }
    drop(writer);
    let left: Vec<i64> = read(directory.path()).iter().map(|record| record.seq).collect();
    let new = (1..=3).map(|number| opened.last + number);
    assert_eq!(left, (2..=8).chain(new).collect::<Vec<i64>>(), "ten rows, the youngest");
}

#[test]
fn a_file_that_is_too_large_loses_a_tenth_of_its_rows_also_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    for seq in (1..=4999).chain([UNWRITTEN]) {
        let change = Record { seq, ..record("a", now(), "primary") };
        writer.record(change, Latencies::default());
    }
    drop(writer);
    let keep = Retention { bytes: 64 << 10, ..Retention::default() };
    // Retention runs twice: when the recorder starts and when it ends.
    drop(Writer::open(directory.path(), keep).unwrap());
    assert_eq!(read(directory.path()).len(), 4050);
}

#[test]
fn a_stage_that_knows_later_is_added_and_numbers_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let change = record("a", now(), "primary");
    let mut latencies = Latencies::default();
    latencies.set(Stage::File, 250);
    writer.record(change.clone(), latencies);
    writer.stage(change.seq, Stage::Agent, 1_500);
    drop(writer);
    let reader = Reader::open(directory.path()).unwrap();
    let entry = reader.changes(&Query::default()).unwrap().remove(0);
    assert_eq!(entry.latencies.of(Stage::File), Some(250));
    assert_eq!(entry.latencies.of(Stage::Agent), Some(1_500));
    assert_eq!(entry.latencies.of(Stage::Hook), None);
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.last, change.seq);
}

#[test]
fn a_file_of_format_1_is_brought_up_and_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.execute_batch(schema::TO_1).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    let insert =
        "INSERT INTO change (at, instance, to_role, cause) VALUES (?1, 'a', 'backup', 'start')";
    connection.execute(insert, [now()]).unwrap();
    drop(connection);
    let error = Reader::open(directory.path()).unwrap_err();
    assert!(matches!(error, HistoryError::TooOld { found: 1, .. }), "{error}");
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.last, 1);
    drop(writer);
    assert_eq!(read(directory.path())[0].to, "backup");
}

#[test]
fn a_file_that_is_no_database_is_set_aside_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    File::create(&path).unwrap().write_all(&[7; 8192]).unwrap();
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    let aside = opened.set_aside.unwrap();
    assert_eq!(std::fs::read(aside).unwrap(), [7; 8192]);
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

/// Begins a history with a table that no statement of the writer reads or writes.
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
fn damage_that_is_met_at_the_start_or_while_writing_sets_the_file_aside() {
    for name in ["standing", "run", "change_by_instance"] {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
        writer.record(record("a", now(), "primary"), Latencies::default());
        drop(writer);
        damage(directory.path(), name);
        let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
        assert_eq!(opened.failed, None, "{name}");
        let change = record("b", now(), "primary");
        writer.record(change.clone(), Latencies::default());
        drop(writer);
        assert_eq!(read(directory.path()), [change], "{name}");
        assert_eq!(files_set_aside(directory.path()), 1, "{name}");
    }
}

#[test]
fn damage_that_only_a_reader_meets_sets_the_file_aside_when_it_is_examined() {
    let directory = tempfile::tempdir().unwrap();
    add_unused_table(directory.path());
    damage(directory.path(), "unused");
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.set_aside, None);
    writer.examine();
    drop(writer);
    assert_eq!(files_set_aside(directory.path()), 1);
}

#[test]
fn a_file_that_was_found_intact_is_not_examined_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    add_unused_table(directory.path());
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    writer.examine();
    // A batch is written after the examination that it asks for.
    writer.record(record("a", now(), "primary"), Latencies::default());
    while read(directory.path()).is_empty() {
        std::thread::yield_now();
    }
    damage(directory.path(), "unused");
    writer.examine();
    drop(writer);
    assert_eq!(files_set_aside(directory.path()), 0, "a reader cannot keep the writer busy");
}

#[test]
fn roles_and_numbers_are_read_where_nothing_can_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().join("100%?#");
    std::fs::create_dir(&odd).unwrap();
    let (writer, _) = Writer::open(&odd, Retention::default()).unwrap();
    // Above every number that is derived from the clock.
    let change = Record { seq: 1 << 50, ..record("a", now(), "primary") };
    writer.record(change.clone(), Latencies::default());
    drop(writer);
    let connection = open_without_writing(&odd.join(FILE)).unwrap();
    assert_eq!(last(&connection).unwrap(), change.seq);
    assert_eq!(std::fs::read_dir(&odd).unwrap().count(), 1, "no file beside it");
    // A directory in its place: SQLite cannot make the file that it needs to write.
    std::fs::create_dir(odd.join(format!("{FILE}-shm"))).unwrap();
    let (_writer, opened) = Writer::open(&odd, Retention::default()).unwrap();
    assert!(opened.failed.is_some());
    assert_eq!(opened.roles["a"].role, "primary");
    assert!(opened.last >= change.seq, "{}", opened.last);
}

#[test]
fn a_history_that_cannot_be_opened_drops_records_and_counts_them() {
    let directory = tempfile::tempdir().unwrap();
    // A file where the directory should be, as root can open a directory without permissions.
    let state_dir = directory.path().join("state");
    File::create(&state_dir).unwrap();
    let (writer, opened) = Writer::open(&state_dir, Retention::default()).unwrap();
    assert!(opened.failed.is_some() && opened.last > 1_000_000_000, "{opened:?}");
    writer.record(record("a", now(), "primary"), Latencies::default());
    assert!(writer.failing().is_some());
    let health = Arc::clone(&writer.health);
    drop(writer);
    assert_eq!(health.dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn a_file_of_a_later_program_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let before = std::fs::read(&path).unwrap();
    assert!(!before.is_empty());
    let error = Writer::open(directory.path(), Retention::default()).unwrap_err();
    assert!(matches!(error, HistoryError::TooNew { found: 99, .. }), "{error}");
    assert!(Reader::open(directory.path()).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
