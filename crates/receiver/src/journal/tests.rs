//! With a real file.

use rusqlite::Connection;

use super::*;

fn id(text: &str) -> InstanceId {
    text.parse().unwrap()
}

#[test]
fn what_was_promised_is_remembered_and_what_was_settled_is_settled() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, memory) = Journal::open(directory.path()).unwrap();
    assert!(memory.is_empty());
    for (ticket, state) in
        [(1, ReportedState::Backup), (2, ReportedState::Primary), (3, ReportedState::Backup)]
    {
        assert!(journal.keep(ticket, id("a"), state));
    }
    assert!(journal.keep(4, id("b"), ReportedState::Primary));
    journal.settle(id("a"), 1, ReportedState::Backup, true);
    drop(journal);
    let (mut journal, memory) = Journal::open(directory.path()).unwrap();
    let holds = memory[&id("a")].settled.unwrap();
    assert_eq!((holds.state, holds.seq, holds.acted), (ReportedState::Backup, 1, 1));
    assert_eq!(memory[&id("a")].open, [(2, ReportedState::Primary), (3, ReportedState::Backup)]);
    assert_eq!(memory[&id("b")].settled, None);
    assert_eq!(memory[&id("b")].open, [(4, ReportedState::Primary)]);
    journal.settle(id("a"), 3, ReportedState::Backup, false);
    drop(journal);
    let (_journal, memory) = Journal::open(directory.path()).unwrap();
    assert_eq!(memory[&id("a")].open, []);
    let holds = memory[&id("a")].settled.unwrap();
    assert_eq!((holds.seq, holds.acted), (3, 1), "nobody was told of what was so already");
}

#[test]
fn when_nobody_comes_the_file_is_put_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    // One row would not be worth it.
    for ticket in 0..1000 {
        assert!(journal.keep(ticket, id("some-router"), ReportedState::Primary));
    }
    journal.hand_over().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_mins(1);
    // In the file itself, not only in the log beside it.
    let is_there = || {
        let bytes = std::fs::read(directory.path().join(FILE)).unwrap();
        bytes.windows(11).any(|bytes| bytes == b"some-router")
    };
    while !is_there() {
        assert!(std::time::Instant::now() < end, "it is still in the log of SQLite only");
        std::thread::yield_now();
    }
    assert_eq!(kept(&mut journal).len(), 1000);
}

#[test]
fn who_was_told_is_remembered_and_a_ledger_that_is_still_held_holds_nobody_up() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    journal.settle(id("a"), 7, ReportedState::Primary, true);
    journal.hand_over().unwrap();
    let (ledger, party) = (journal.ledger(), Arc::from("hook"));
    ledger.told(&party, &id("a"), 5);
    ledger.told(&party, &id("a"), 7);
    drop(journal);
    ledger.told(&party, &id("a"), 9);
    let (_journal, memory) = Journal::open(directory.path()).unwrap();
    assert_eq!(memory[&id("a")].told, BTreeMap::from([("hook".to_owned(), 7)]));
}

#[test]
fn a_journal_of_the_format_before_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    let made = "CREATE TABLE report (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, \
                instance TEXT NOT NULL, word TEXT NOT NULL); \
                CREATE INDEX report_by_instance ON report (instance, seq); \
                CREATE TABLE settled (instance TEXT PRIMARY KEY, seq INTEGER NOT NULL, \
                at INTEGER NOT NULL, word TEXT NOT NULL); PRAGMA user_version = 1; \
                INSERT INTO settled VALUES ('a', 3, 5, 'primary');";
    connection.execute_batch(made).unwrap();
    drop(connection);
    let (mut journal, memory) = Journal::open(directory.path()).unwrap();
    let holds = memory[&id("a")].settled.unwrap();
    assert_eq!((holds.state, holds.seq, holds.acted), (ReportedState::Primary, 3, 3));
    assert!(journal.keep(1, id("b"), ReportedState::Backup));
    drop(journal);
    let (_journal, memory) = Journal::open(directory.path()).unwrap();
    assert_eq!(memory[&id("b")].open, [(4, ReportedState::Backup)], "no number is used again");
}

#[test]
fn every_ticket_comes_back_with_a_number() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    for ticket in 0..500 {
        assert!(journal.keep(ticket, id("a"), ReportedState::Backup));
        journal.hand_over().unwrap();
    }
    let mut all = Vec::new();
    while all.len() < 500 {
        let mut polled = [rustix::event::PollFd::new(&journal, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        journal.hand_over().unwrap();
        all.extend(kept(&mut journal));
    }
    let numbers: Vec<i64> = all.iter().map(|(_, seq)| *seq.as_ref().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order, and none twice");
}

#[test]
fn one_receiver_writes_and_another_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(directory.path()).unwrap();
    let error = Journal::open(directory.path()).unwrap_err();
    assert!(matches!(error, JournalError::Taken(_)), "{error}");
    drop(journal);
    Journal::open(directory.path()).unwrap();
}

#[test]
fn whoever_is_forgotten_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    assert!(
        journal.keep(1, id("a"), ReportedState::Backup)
            && journal.keep(2, id("b"), ReportedState::Backup)
    );
    journal.settle(id("a"), 1, ReportedState::Backup, true);
    journal.hand_over().unwrap();
    journal.ledger().told(&Arc::from("hook"), &id("a"), 1);
    journal.forget(id("a"));
    drop(journal);
    let (_journal, memory) = Journal::open(directory.path()).unwrap();
    assert_eq!(memory.keys().collect::<Vec<_>>(), [&id("b")]);
}

#[test]
fn a_journal_that_is_damaged_at_the_start_is_set_aside_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = std::fs::File::create(directory.path().join(FILE)).unwrap();
    io::Write::write_all(&mut file, &[b'x'; 4096]).unwrap();
    let (mut journal, memory) = Journal::open(directory.path()).unwrap();
    assert!(memory.is_empty() && journal.problem().is_none());
    let (_, seq) = write_one(&mut journal, "a");
    assert!(seq.unwrap() > 1_000_000_000, "numbers that were given before are not known");
    assert_eq!(set_aside(directory.path()), 1);
}

#[test]
fn a_journal_that_is_damaged_while_it_is_written_is_replaced_and_the_report_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    assert_eq!(write_one(&mut journal, "a"), (7, Ok(1)));
    drop(journal);
    damage(directory.path(), "report");
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    let (_, seq) = write_one(&mut journal, "b");
    assert!(seq.unwrap() > 1);
    drop(journal);
    assert_eq!(set_aside(directory.path()), 1);
    let (_journal, memory) = Journal::open(directory.path()).unwrap();
    assert_eq!(memory[&id("b")].open.len(), 1, "what was promised is in the new file");
}

#[test]
fn a_journal_that_is_replaced_remembers_which_targets_were_told() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    journal.settle(id("a"), 7, ReportedState::Primary, true);
    journal.settle(id("gone"), 8, ReportedState::Primary, true);
    for (instance, seq) in [("a", 7), ("gone", 8)] {
        journal.ledger().told(&Arc::from("hook"), &id(instance), seq);
    }
    drop(journal);
    let (mut journal, _) = Journal::open(directory.path()).unwrap();
    journal.forget(id("gone"));
    journal.hand_over().unwrap();
    damage_while_open(directory.path(), "report");
    write_one(&mut journal, "b").1.unwrap();
    assert_eq!(set_aside(directory.path()), 1);
    journal.ledger().told(&Arc::from("webhook"), &id("a"), 7);
    journal.restore(id("a"), 7, ReportedState::Primary, 7);
    drop(journal);
    let (_journal, memory) = Journal::open(directory.path()).unwrap();
    let told = [("hook".to_owned(), 7), ("webhook".to_owned(), 7)];
    assert_eq!(memory[&id("a")].told, BTreeMap::from(told));
    assert!(!memory.contains_key(&id("gone")));
}

#[test]
fn a_journal_that_cannot_be_opened_refuses_reports_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    // A file where the directory should be.
    let place = directory.path().join("state");
    std::fs::File::create(&place).unwrap();
    let (mut journal, memory) = Journal::open(&place).unwrap();
    assert!(memory.is_empty());
    let problem = journal.problem().unwrap().to_owned();
    assert!(problem.contains("Not a directory"), "{problem}");
    assert_eq!(write_one(&mut journal, "a"), (7, Err(problem)));
}

/// Hands one report over and waits for what becomes of it.
fn write_one(journal: &mut Journal, instance: &str) -> StoreResult {
    assert!(journal.keep(7, id(instance), ReportedState::Primary));
    journal.hand_over().unwrap();
    loop {
        let mut polled = [rustix::event::PollFd::new(&*journal, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        if let Some(one) = kept(journal).pop() {
            return one;
        }
    }
}

/// The reports among the completions.
fn kept(journal: &mut Journal) -> Vec<StoreResult> {
    let kept = journal.completions().into_iter().filter_map(|completion| match completion {
        Completion::Stored(kept) => Some(kept),
        Completion::Opened(_) | Completion::Replaced => None,
    });
    kept.collect()
}

/// Overwrites the first page of a table.
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

/// The same in a file that is open: a change by another connection has SQLite read its pages again.
pub(crate) fn damage_while_open(directory: &Path, table: &str) {
    damage(directory, table);
    let connection = Connection::open(directory.join(FILE)).unwrap();
    connection.execute("CREATE TABLE unused (x)", []).unwrap();
}

pub(crate) fn set_aside(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".corrupt-")).count()
}

#[test]
fn a_journal_of_a_later_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.pragma_update(None, "user_version", 9).unwrap();
    drop(connection);
    let error = Journal::open(directory.path()).unwrap_err();
    assert!(matches!(error, JournalError::TooNew { found: 9, .. }), "{error}");
}
