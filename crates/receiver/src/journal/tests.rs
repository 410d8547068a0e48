// SPDX-License-Identifier: Apache-2.0
//! The journal with a file on the disk.

use rusqlite::Connection;

use super::*;

fn id(text: &str) -> InstanceId {
    text.parse().unwrap()
}

#[test]
fn stored_reports_stay_unsettled_until_they_are_settled() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, stored) = Journal::open(directory.path(), 0).unwrap();
    assert!(stored.is_empty());
    for (request_id, state) in
        [(1, ReportedState::Backup), (2, ReportedState::Primary), (3, ReportedState::Backup)]
    {
        assert!(journal.store(request_id, id("a"), state));
    }
    assert!(journal.store(4, id("b"), ReportedState::Primary));
    journal.settle(id("a"), 1, ReportedState::Backup, true);
    drop(journal);
    let (mut journal, stored) = Journal::open(directory.path(), 0).unwrap();
    let settled = stored[&id("a")].settled.unwrap();
    assert_eq!((settled.state, settled.seq, settled.acted_seq), (ReportedState::Backup, 1, 1));
    assert_eq!(
        stored[&id("a")].unsettled,
        [(2, ReportedState::Primary), (3, ReportedState::Backup)]
    );
    assert_eq!(stored[&id("b")].settled, None);
    assert_eq!(stored[&id("b")].unsettled, [(4, ReportedState::Primary)]);
    journal.settle(id("a"), 3, ReportedState::Backup, false);
    drop(journal);
    let (_journal, stored) = Journal::open(directory.path(), 0).unwrap();
    assert_eq!(stored[&id("a")].unsettled, []);
    let settled = stored[&id("a")].settled.unwrap();
    assert_eq!((settled.seq, settled.acted_seq), (3, 1), "an unchanged state is not delivered");
}

#[test]
fn an_idle_writer_moves_the_write_ahead_log_into_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    // A checkpoint needs 1000 rows.
    for request_id in 0..1000 {
        assert!(journal.store(request_id, id("some-router"), ReportedState::Primary));
    }
    journal.send_batch().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_mins(1);
    // The row is in the file itself, not only in the write-ahead log.
    let is_there = || {
        let bytes = std::fs::read(directory.path().join(FILE)).unwrap();
        bytes.windows(11).any(|bytes| bytes == b"some-router")
    };
    while !is_there() {
        assert!(std::time::Instant::now() < end, "the rows are in the write-ahead log only");
        std::thread::yield_now();
    }
    assert_eq!(results(&mut journal).len(), 1000);
}

fn settled_report(instance: &str, seq: i64) -> SettledReport {
    let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_234);
    let (from, state) = (Some(ReportedState::Backup), ReportedState::Primary);
    SettledReport { instance: id(instance), state, from, seq, at }
}

/// Sequence numbers of the settled reports that are kept for an instance.
fn kept_seqs(reader: &JournalReader, instance: &str) -> Vec<i64> {
    let kept = reader.settled_between(&id(instance), 0, i64::MAX, 100).unwrap();
    kept.expect("all are committed").into_iter().map(|report| report.seq).collect()
}

#[test]
fn settled_reports_are_kept_in_order_until_every_target_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    let reader = journal.reader();
    for (instance, seq) in [("a", 1), ("b", 2), ("a", 3), ("a", 5), ("gone", 6), ("a", 7)] {
        journal.keep(settled_report(instance, seq));
    }
    assert_eq!(reader.settled_between(&id("a"), 0, i64::MAX, 9).unwrap(), None, "not committed");
    drop(journal);
    let range = reader.settled_between(&id("a"), 1, 7, 9).unwrap().unwrap();
    assert_eq!(range, [settled_report("a", 3), settled_report("a", 5)]);
    assert_eq!(reader.settled_between(&id("a"), 0, 7, 1).unwrap().unwrap().len(), 1);
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    journal.clean_up(BTreeMap::from([(id("a"), 3), (id("b"), 0)]), 100);
    drop(journal);
    assert_eq!(kept_seqs(&reader, "a"), [5, 7]);
    assert_eq!(kept_seqs(&reader, "b"), [2]);
    assert_eq!(kept_seqs(&reader, "gone"), [0; 0], "no target needs it");
}

#[test]
fn the_oldest_settled_reports_beyond_the_limit_are_listed_and_deleted_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    for (instance, seq) in [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 5)] {
        journal.keep(settled_report(instance, seq));
    }
    drop(journal);
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    journal.clean_up(BTreeMap::from([(id("a"), 0), (id("b"), 0)]), 2);
    journal.send_batch().unwrap();
    let mut polled = [rustix::event::PollFd::new(&journal, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, None).unwrap();
    let completions = journal.take_completions();
    let [Completion::Excess(seqs)] = &completions[..] else { panic!("{completions:?}") };
    assert_eq!(*seqs, ReportSeqs::from([(id("a"), vec![1, 3]), (id("b"), vec![2])]));
    let reader = journal.reader();
    assert_eq!(kept_seqs(&reader, "a"), [1, 3, 4], "they are not counted yet");
    journal.delete_undelivered(BTreeMap::from([(id("a"), 3), (id("b"), 2)]));
    drop(journal);
    assert_eq!((kept_seqs(&reader, "a"), kept_seqs(&reader, "b")), (vec![4], vec![5]));
}

#[test]
fn every_report_gets_an_increasing_sequence_number() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    for request_id in 0..500 {
        assert!(journal.store(request_id, id("a"), ReportedState::Backup));
        journal.send_batch().unwrap();
    }
    let mut all = Vec::new();
    while all.len() < 500 {
        let mut polled = [rustix::event::PollFd::new(&journal, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        journal.send_batch().unwrap();
        all.extend(results(&mut journal));
    }
    let numbers: Vec<i64> = all.into_iter().map(|result| result.seq.unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order and unique");
}

#[test]
fn a_second_receiver_cannot_open_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(directory.path(), 0).unwrap();
    let error = Journal::open(directory.path(), 0).unwrap_err();
    assert!(matches!(error, JournalError::Locked(_)), "{error}");
    drop(journal);
    Journal::open(directory.path(), 0).unwrap();
}

#[test]
fn a_forgotten_instance_has_no_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    assert!(
        journal.store(1, id("a"), ReportedState::Backup)
            && journal.store(2, id("b"), ReportedState::Backup)
    );
    journal.keep(settled_report("a", 1));
    journal.settle(id("a"), 1, ReportedState::Backup, true);
    journal.send_batch().unwrap();
    journal.forget(id("a"));
    let reader = journal.reader();
    drop(journal);
    assert_eq!(kept_seqs(&reader, "a"), [0; 0]);
    let (_journal, stored) = Journal::open(directory.path(), 0).unwrap();
    assert_eq!(stored.keys().collect::<Vec<_>>(), [&id("b")]);
}

#[test]
fn a_journal_that_is_damaged_at_the_start_is_renamed_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = std::fs::File::create(directory.path().join(FILE)).unwrap();
    io::Write::write_all(&mut file, &[b'x'; 4096]).unwrap();
    let (mut journal, stored) = Journal::open(directory.path(), 0).unwrap();
    assert!(stored.is_empty() && journal.open_error().is_none());
    let seq = store_one(&mut journal, "a").unwrap();
    assert!(seq > 1_000_000_000, "above every number of the damaged file");
    assert_eq!(set_aside_files(directory.path()), 1);
}

#[test]
fn a_journal_that_is_damaged_while_it_is_open_is_replaced_and_the_report_stored() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    assert_eq!(store_one(&mut journal, "a"), Ok(1));
    drop(journal);
    damage(directory.path(), "report");
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    assert!(store_one(&mut journal, "b").unwrap() > 1);
    drop(journal);
    assert_eq!(set_aside_files(directory.path()), 1);
    let (_journal, stored) = Journal::open(directory.path(), 0).unwrap();
    assert_eq!(stored[&id("b")].unsettled.len(), 1, "the report is in the new file");
}

#[test]
fn a_journal_that_cannot_be_opened_refuses_reports_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    // A file has the path of a parent directory.
    let path = directory.path().join("file");
    std::fs::File::create(&path).unwrap();
    let (mut journal, stored) = Journal::open(&path.join("state"), 0).unwrap();
    assert!(stored.is_empty());
    let error = journal.open_error().unwrap().to_owned();
    assert!(error.contains("Not a directory"), "{error}");
    assert_eq!(store_one(&mut journal, "a"), Err(error));
}

#[test]
fn a_journal_opens_while_the_disk_does_not_answer_and_reads_the_reports_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), 0).unwrap();
    assert_eq!(store_one(&mut journal, "a"), Ok(1));
    drop(journal);
    // A pipe blocks `open` for reading until the other end is open.
    let lock = directory.path().join("journal.lock");
    std::fs::remove_file(&lock).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &lock, 0o600.into()).unwrap();
    let (mut journal, stored) = Journal::open(directory.path(), 0).unwrap();
    assert!(stored.is_empty());
    assert_eq!(journal.open_error(), Some("the disk does not answer"));
    assert!(journal.store(7, id("b"), ReportedState::Primary));
    journal.send_batch().unwrap();
    std::fs::File::options().write(true).open(&lock).unwrap();
    let mut completions = Vec::new();
    while completions.len() < 2 {
        let mut polled = [rustix::event::PollFd::new(&journal, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        completions.append(&mut journal.take_completions());
    }
    let [Completion::Opened(stored), Completion::Stored(result)] = &completions[..] else {
        panic!("{completions:?}");
    };
    assert_eq!(stored[&id("a")].unsettled, [(1, ReportedState::Primary)]);
    assert_eq!(*result, StoreResult { request_id: 7, seq: Ok(2) });
}

/// Stores one report, and returns its sequence number or the error.
fn store_one(journal: &mut Journal, instance: &str) -> Result<i64, String> {
    assert!(journal.store(7, id(instance), ReportedState::Primary));
    journal.send_batch().unwrap();
    loop {
        let mut polled = [rustix::event::PollFd::new(&*journal, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        if let Some(result) = results(journal).pop() {
            assert_eq!(result.request_id, 7);
            return result.seq;
        }
    }
}

/// The results among the completions.
fn results(journal: &mut Journal) -> Vec<StoreResult> {
    let results =
        journal.take_completions().into_iter().filter_map(|completion| match completion {
            Completion::Stored(result) => Some(result),
            Completion::Opened(_)
            | Completion::Replaced
            | Completion::Excess(_)
            | Completion::OtherFormat(_) => None,
        });
    results.collect()
}

/// Overwrites the first page of a table with garbage.
fn damage(directory: &Path, table: &str) {
    use std::os::unix::fs::FileExt;
    let connection = Connection::open(directory.join(FILE)).unwrap();
    let find = "SELECT rootpage FROM sqlite_master WHERE name = ?1";
    let page: u32 = connection.query_row(find, [table], |row| row.get(0)).unwrap();
    let size: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).unwrap();
    drop(connection);
    let file = std::fs::File::options().write(true).open(directory.join(FILE)).unwrap();
    let (garbage, at) = (vec![7; size as usize], u64::from(page - 1) * u64::from(size));
    file.write_all_at(&garbage, at).unwrap();
}

/// As [`damage`], in a file that is open: after a change by another connection, SQLite reads its pages again.
pub(crate) fn damage_while_open(directory: &Path, table: &str) {
    damage(directory, table);
    let connection = Connection::open(directory.join(FILE)).unwrap();
    connection.execute("CREATE TABLE unused (x)", []).unwrap();
}

/// Number of damaged files that were renamed.
pub(crate) fn set_aside_files(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".corrupt-")).count()
}

#[test]
fn a_journal_of_another_format_is_renamed_and_kept_and_a_new_one_is_begun() {
    for format in [0, FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let connection = Connection::open(&path).unwrap();
        connection.execute("CREATE TABLE claim (seq INTEGER)", []).unwrap();
        connection.pragma_update(None, "user_version", format).unwrap();
        drop(connection);
        let before = std::fs::read(&path).unwrap();
        let (mut journal, stored) = Journal::open(directory.path(), 0).unwrap();
        assert!(stored.is_empty() && journal.open_error().is_none());
        let seq = store_one(&mut journal, "a").unwrap();
        assert!(seq > 1_000_000_000, "above every number of the other file");
        let text = other_format(&mut journal).expect("a line about the file");
        let start = format!("journal.sqlite had format {format}, and this version uses format 5");
        assert!(text.contains(&start), "{text}");
        let names = std::fs::read_dir(directory.path()).unwrap();
        let mut paths = names.map(|entry| entry.unwrap().path());
        let is_kept = |path: &std::path::PathBuf| path.display().to_string().contains(".format-");
        let kept = paths.find(is_kept).unwrap();
        assert!(text.contains(kept.file_name().unwrap().to_str().unwrap()), "{text}");
        assert_eq!(std::fs::read(&kept).unwrap(), before);
        std::fs::remove_file(kept).unwrap();
        assert_eq!(other_format(&mut journal), None);
        drop(journal);
        let (_journal, stored) = Journal::open(directory.path(), 0).unwrap();
        assert_eq!(stored[&id("a")].unsettled, [(seq, ReportedState::Primary)]);
    }
}

/// The line about a file of another format after a cleanup.
fn other_format(journal: &mut Journal) -> Option<String> {
    journal.clean_up(BTreeMap::new(), 100);
    journal.send_batch().unwrap();
    loop {
        let mut polled = [rustix::event::PollFd::new(&*journal, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        for completion in journal.take_completions() {
            if let Completion::OtherFormat(text) = completion {
                return text;
            }
        }
    }
}
