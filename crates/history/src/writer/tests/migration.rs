// SPDX-License-Identifier: Apache-2.0
//! Tests of files of earlier formats: the writer migrates them, a reader queries them unmigrated.

use super::*;
use crate::{HistoryItem, Timeline};

#[test]
fn a_file_of_format_1_is_migrated_with_its_rows() {
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
    assert_eq!(opened.last_seq, 1);
    drop(writer);
    assert_eq!(read(directory.path())[0].to, "backup");
}

#[test]
fn a_transition_that_retention_deleted_in_format_2_counts_as_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.execute_batch(&format!("{} {}", schema::TO_1, schema::TO_2)).unwrap();
    connection.pragma_update(None, "user_version", 2).unwrap();
    let insert = "INSERT INTO change (seq, at, instance, to_role, cause, hook_us) \
                  VALUES (7, ?1, 'kept', 'backup', 'start', 5)";
    connection.execute(insert, [now()]).unwrap();
    let roles = "INSERT INTO standing (instance, role, since, seq) \
                 VALUES ('kept', 'backup', 1, 7), ('deleted', 'backup', 1, 6)";
    connection.execute(roles, []).unwrap();
    drop(connection);
    drop(Writer::open(directory.path(), Retention::default()).unwrap());
    assert_eq!(concluded(directory.path(), "kept"), [7, 6], "the webhook is pending");
    assert_eq!(concluded(directory.path(), "deleted"), [6, 6]);
}

/// The last concluded number of an instance, of the hooks and of the webhooks of an earlier format.
fn concluded(directory: &Path, instance: &str) -> [i64; 2] {
    let rows = Reader::open(directory).unwrap().deliveries().unwrap();
    [schema::ANY_HOOK, schema::ANY_WEBHOOK].map(|target| {
        let mut rows = rows.iter().filter(|row| *row.key.target == *target);
        rows.find(|row| row.key.instance == instance).unwrap().seq
    })
}

/// Creates a file of format 3 with three transitions, the first of which retention has deleted.
fn create_format_3(directory: &Path) {
    let connection = Connection::open(directory.join(FILE)).unwrap();
    let steps = [schema::TO_1, schema::TO_2, schema::TO_3].concat();
    connection.execute_batch(&steps).unwrap();
    connection.pragma_update(None, "user_version", 3).unwrap();
    let time = now();
    let rows = format!(
        "INSERT INTO change (seq, at, instance, netns, from_role, to_role, cause, reason, hook_us) VALUES
             (6, 1, 'a', NULL, NULL, 'fault', 'start', NULL, NULL),
             (7, {time}, 'a', 'blue', 'fault', 'backup', 'address', 'eth0 is up', 5),
             (8, {time}, 'b', NULL, 'backup', 'primary', 'address', NULL, NULL);
         DELETE FROM change WHERE seq = 6;
         INSERT INTO standing (instance, role, since, seq, hook_us, webhook_us) VALUES
             ('a', 'backup', {time}, 7, 5, NULL), ('b', 'primary', 17, 8, NULL, 9);
         INSERT INTO run (began, seen, ended, dropped) VALUES (1, {time}, {time}, 40);"
    );
    connection.execute_batch(&rows).unwrap();
}

/// Checks that `reader` returns the rows of [`create_format_3`].
fn assert_rows_of_format_3(reader: &Reader) {
    let entries = reader.transitions(&Query::default()).unwrap();
    let seqs: Vec<i64> = entries.iter().map(|entry| entry.record.seq).collect();
    assert_eq!(seqs, [7, 8]);
    let Record { instance, netns, from, to, reason, .. } = &entries[0].record;
    assert_eq!((instance.as_str(), netns.as_deref()), ("a", Some("blue")));
    assert_eq!((from.as_deref(), to.as_str()), (Some("fault"), "backup"));
    assert_eq!(reason.as_deref(), Some("eth0 is up"));
    assert_eq!(entries[0].latencies.of(Stage::Hook), Some(5));
    let roles = reader.last_roles().unwrap();
    assert_eq!((roles["b"].role.as_str(), roles["b"].since), ("primary", 17));
    assert_eq!((roles["b"].seq, roles["b"].from.as_deref()), (8, Some("backup")));
    assert_eq!(reader.runs().unwrap()[0].dropped, 40);
    assert_eq!(reader.flaps(0).unwrap().len(), 2);
    assert!(reader.has_instance("a").unwrap() && !reader.has_instance("c").unwrap());
}

/// The names of all tables and indexes of the file, without SQLite's own, in order.
fn names(directory: &Path) -> Vec<String> {
    let connection = Connection::open(directory.join(FILE)).unwrap();
    let find = "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name";
    let mut statement = connection.prepare(find).unwrap();
    let names = statement.query_map([], |row| row.get(0)).unwrap();
    names.collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_file_of_format_3_is_migrated_with_its_rows_counters_and_indexes() {
    let directory = tempfile::tempdir().unwrap();
    create_format_3(directory.path());
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!((opened.open_error.as_deref(), opened.killed), (None, None));
    assert_eq!(opened.last_seq, 8 + 40, "the highest number and the dropped ones");
    assert_eq!(opened.roles["a"].role, "backup");
    assert_rows_of_format_3(&Reader::open(directory.path()).unwrap());
    let transition = Record { seq: 60, ..record("a", now(), "primary") };
    writer.record(transition.clone(), Latencies::default());
    writer.set_latency(7, Stage::Webhook, 11);
    drop(writer);
    assert_eq!(read(directory.path()).last(), Some(&transition));
    let roles = Reader::open(directory.path()).unwrap().last_roles().unwrap();
    assert_eq!(roles["a"].role, "primary");
    let names = names(directory.path());
    for name in [
        "change_by_instance",
        "change_by_time",
        "delivery",
        "role",
        "standing_by_seq",
        "transition",
    ] {
        assert!(names.iter().any(|known| known == name), "{name} of {names:?}");
    }
    assert!(!names.iter().any(|name| name == "change" || name == "standing"), "{names:?}");
    assert_eq!(concluded(directory.path(), "a"), [7, 6], "the webhook is pending");
    assert_eq!(concluded(directory.path(), "b"), [7, 8], "the hook is pending");
}

#[test]
fn a_file_of_format_3_keeps_its_sequence_counter_when_it_has_no_rows_left() {
    let directory = tempfile::tempdir().unwrap();
    create_format_3(directory.path());
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.execute_batch("DELETE FROM change; DELETE FROM standing; DELETE FROM run").unwrap();
    drop(connection);
    assert_eq!(last_seq(directory.path()), 8);
}

#[test]
fn a_migrated_file_and_a_new_one_have_the_same_tables() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    create_format_3(old.path());
    drop(Writer::open(old.path(), Retention::default()).unwrap());
    drop(Writer::open(new.path(), Retention::default()).unwrap());
    assert_eq!(names(old.path()), names(new.path()));
}

#[test]
fn a_reader_queries_a_file_of_format_3_without_modifying_it() {
    let directory = tempfile::tempdir().unwrap();
    create_format_3(directory.path());
    let before = std::fs::read(directory.path().join(FILE)).unwrap();
    assert_rows_of_format_3(&Reader::open(directory.path()).unwrap());
    assert_eq!(std::fs::read(directory.path().join(FILE)).unwrap(), before);
}

/// Creates a file of format 4: the second run was killed, and the first one has dropped five transitions.
fn create_format_4(directory: &Path) {
    let connection = Connection::open(directory.join(FILE)).unwrap();
    let steps = [schema::TO_1, schema::TO_2, schema::TO_3, schema::TO_4].concat();
    connection.execute_batch(&steps).unwrap();
    connection.pragma_update(None, "user_version", 4).unwrap();
    let rows = "
        INSERT INTO transition (seq, at, instance, to_role, cause) VALUES
            (7, 11, 'a', 'backup', 'start'), (8, 29, 'a', 'primary', 'address'),
            (20, 41, 'a', 'backup', 'start');
        INSERT INTO run (began, seen, ended, dropped) VALUES
            (10, 30, 30, 5), (40, 50, NULL, 0), (60, 70, 70, 0);";
    connection.execute_batch(rows).unwrap();
}

/// The sequence numbers of the transitions and the bounds of the gaps between them.
fn timeline(directory: &Path) -> Vec<String> {
    let reader = Reader::open(directory).unwrap();
    let items = Timeline::new(reader, Query { until: Some(65), ..Query::default() }).unwrap();
    let text = |item: HistoryItem| match item {
        HistoryItem::Transition(entry) => entry.record.seq.to_string(),
        HistoryItem::Gap(gap) => {
            format!("{} {}-{}", gap.reason.word(), gap.from, gap.until.unwrap_or(0))
        }
    };
    items.map(|item| text(item.unwrap())).collect()
}

#[test]
fn gaps_of_format_4_are_found_before_and_after_the_migration() {
    let directory = tempfile::tempdir().unwrap();
    create_format_4(directory.path());
    let expected = ["7", "8", "dropped 10-30", "stopped 30-40", "20", "killed 50-60"];
    assert_eq!(timeline(directory.path()), expected);
    let keep = Retention { age: Duration::MAX, ..Retention::default() };
    let (_writer, opened) = Writer::open(directory.path(), keep).unwrap();
    assert_eq!(opened.open_error, None);
    assert_eq!(timeline(directory.path()), expected);
}

#[test]
fn a_reader_that_cannot_create_files_queries_earlier_formats_and_the_current_one() {
    for is_migrated in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        create_format_3(directory.path());
        let connection = Connection::open(directory.path().join(FILE)).unwrap();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        drop(connection);
        if is_migrated {
            drop(Writer::open(directory.path(), Retention::default()).unwrap());
        }
        // Root may write to every directory; a directory of this name stops SQLite all the same.
        std::fs::create_dir(directory.path().join(format!("{FILE}-shm"))).unwrap();
        let reader = Reader::open(directory.path()).unwrap();
        assert_eq!(reader.transitions(&Query::default()).unwrap().len(), 2, "{is_migrated}");
    }
}

#[test]
fn roles_and_sequence_numbers_of_format_3_are_read_from_a_file_that_cannot_be_migrated() {
    let directory = tempfile::tempdir().unwrap();
    create_format_3(directory.path());
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    // Above every number that is derived from the clock.
    connection
        .execute("UPDATE sqlite_sequence SET seq = 1 << 50 WHERE name = 'change'", [])
        .unwrap();
    drop(connection);
    std::fs::create_dir(directory.path().join(format!("{FILE}-shm"))).unwrap();
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert!(opened.open_error.is_some());
    assert_eq!(opened.roles["b"].role, "primary");
    assert!(opened.last_seq >= 1 << 50, "{}", opened.last_seq);
}

#[test]
fn a_file_of_format_4_keeps_its_pending_deliveries() {
    let directory = tempfile::tempdir().unwrap();
    create_format_3(directory.path());
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.execute_batch(schema::TO_4).unwrap();
    connection.pragma_update(None, "user_version", 4).unwrap();
    // A start of a node that found the role unchanged.
    let repeated = "INSERT INTO transition (seq, at, instance, to_role, cause) \
                    VALUES (9, 1, 'a', 'backup', 'start')";
    connection.execute(repeated, []).unwrap();
    drop(connection);
    let reader = Reader::open(directory.path()).unwrap();
    assert_eq!(reader.deliveries().unwrap(), [], "a reader cannot migrate");
    drop(reader);
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert_eq!(opened.deliveries.len(), 4);
    assert_eq!(concluded(directory.path(), "a"), [9, 6]);
    assert_eq!(concluded(directory.path(), "b"), [7, 8]);
}

#[test]
fn a_migration_is_reported_once_and_a_role_can_be_deleted_without_a_transition() {
    let directory = tempfile::tempdir().unwrap();
    create_format_3(directory.path());
    let (writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert!(opened.is_migrated);
    let before = read(directory.path());
    writer.delete_role("a".to_owned());
    drop(writer);
    assert_eq!(read(directory.path()), before);
    let (_writer, opened) = Writer::open(directory.path(), Retention::default()).unwrap();
    assert!(!opened.is_migrated);
    assert_eq!(opened.roles.into_keys().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_file_of_format_5_keeps_its_triggers_and_gets_causes() {
    let directory = tempfile::tempdir().unwrap();
    create_format_4(directory.path());
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    for step in schema::TO_5 {
        connection.execute_batch(step).unwrap();
    }
    connection.pragma_update(None, "user_version", 5).unwrap();
    drop(connection);
    let triggers = || -> Vec<String> {
        let reader = Reader::open(directory.path()).unwrap();
        let entries = reader.transitions(&Query::default()).unwrap();
        assert!(entries.iter().all(|entry| entry.record.cause.is_none()));
        entries.into_iter().map(|entry| entry.record.trigger).collect()
    };
    assert_eq!(triggers(), ["start", "address", "start"], "before the migration");
    let keep = Retention { age: Duration::MAX, ..Retention::default() };
    let (writer, opened) = Writer::open(directory.path(), keep).unwrap();
    assert_eq!((opened.open_error, opened.is_migrated), (None, true));
    assert_eq!(triggers(), ["start", "address", "start"], "after it");
    let cause = CauseRecord { word: "preempted".to_owned(), evidence: "{}".to_owned() };
    writer.set_cause(20, cause.clone());
    drop(writer);
    let reader = Reader::open(directory.path()).unwrap();
    assert_eq!(reader.last_transition("a").unwrap().unwrap().cause, Some(cause.clone()));
    assert_eq!(reader.transitions(&Query::default()).unwrap()[2].record.cause, Some(cause));
}
