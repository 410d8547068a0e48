//! Writes in batches, on a thread of its own: whoever records never waits for the disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, params};

use crate::{FILE, HistoryError, Latencies, Record, Stage, schema};

/// Changes that may wait for the disk, which takes a thousand at a time: more than a node has
/// instances.
const QUEUE: usize = 1 << 13;
/// Changes in one transaction.
const BATCH: usize = 1000;
/// How often the recorder writes down that it runs, and clears what is too old.
const HEARTBEAT: Duration = Duration::from_mins(1);

/// How much to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// How long.
    pub age: Duration,
    /// How many changes.
    pub changes: u64,
    /// How large the file may become.
    pub bytes: u64,
}

impl Default for Keep {
    /// A month, a million changes (some 200 MB), or half a gigabyte.
    fn default() -> Self {
        Self { age: Duration::from_hours(24 * 30), changes: 1_000_000, bytes: 512 << 20 }
    }
}

/// What was found when the history was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The recorder before was killed; this is when it was last known to run.
    pub killed: Option<i64>,
    /// The file was not a database any more: it was set aside, as this.
    pub set_aside: Option<PathBuf>,
    /// No change has a number above this one, whether it is in the history or was lost.
    pub last: i64,
}

/// What the thread is handed.
#[derive(Debug)]
enum Note {
    Change(Box<(Record, Latencies)>),
    /// Who knew how soon; `None`: it does not know after all.
    Stage(i64, Stage, Option<i64>),
}

/// What went wrong, for both sides.
#[derive(Debug, Default)]
struct Losses {
    dropped: AtomicU64,
    /// Why the last batch could not be written; `None` if it could.
    failing: Mutex<Option<String>>,
}

/// Records changes.
#[derive(Debug)]
pub struct Writer {
    sender: Option<SyncSender<Note>>,
    losses: Arc<Losses>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens the history in `directory`, or begins one.
    pub fn open(directory: &Path, keep: Keep) -> Result<(Self, Opened), HistoryError> {
        let path = directory.join(FILE);
        let mut opened = Opened::default();
        let (connection, killed) = match open(&path) {
            Err(error) if is_corrupt(&error) => {
                opened.set_aside = Some(set_aside(&path)?);
                open(&path)?
            }
            other => other?,
        };
        opened.killed = killed;
        opened.last = floor(&connection, &opened)?;
        let (sender, receiver) = sync_channel(QUEUE);
        let losses = Arc::new(Losses::default());
        let shared = Arc::clone(&losses);
        let work = move || Recorder { connection, keep, losses: shared, rows: None }.run(&receiver);
        let thread = std::thread::Builder::new().name("history".to_owned()).spawn(work)?;
        Ok((Self { sender: Some(sender), losses, thread: Some(thread) }, opened))
    }

    /// Takes a record down, without waiting. If the disk is so far behind that there is no
    /// room, it is counted instead, and the count is in the history.
    pub fn record(&self, record: Record, latencies: Latencies) {
        if !self.put(Note::Change(Box::new((record, latencies)))) {
            self.losses.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes down that `stage` knew of change `seq` after so many microseconds.
    pub fn stage(&self, seq: i64, stage: Stage, micros: i64) {
        // A change is worth counting if it is lost; how long it took is not.
        let _ = self.put(Note::Stage(seq, stage, Some(micros)));
    }

    /// Takes down that `stage` does not know of change `seq` yet.
    pub fn unstage(&self, seq: i64, stage: Stage) {
        let _ = self.put(Note::Stage(seq, stage, None));
    }

    fn put(&self, note: Note) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.try_send(note).is_ok())
    }

    /// How many changes could not be recorded.
    pub fn dropped(&self) -> u64 {
        self.losses.dropped.load(Ordering::Relaxed)
    }

    /// Why nothing can be written now; `None` if it can.
    pub fn failing(&self) -> Option<String> {
        self.losses.failing.lock().map_or(None, |failing| failing.clone())
    }
}

/// More changes than a node can have told of and not written before it was killed.
const UNWRITTEN: i64 = 100_000;

/// A number that no change has gone beyond. Numbers are never used again: others know changes by them.
fn floor(connection: &Connection, opened: &Opened) -> Result<i64, HistoryError> {
    if opened.set_aside.is_some() {
        // Nobody knows what they were: ten a second since the epoch, which is more than there were.
        return Ok(now() / 100);
    }
    let dropped: i64 =
        connection.query_row("SELECT coalesce(sum(dropped), 0) FROM run", [], |row| row.get(0))?;
    let lost = if opened.killed.is_some() { UNWRITTEN } else { 0 };
    Ok(last(connection)?.saturating_add(lost).saturating_add(dropped))
}

/// The number of the last change that was ever recorded, whether it is still kept or not.
fn last(connection: &Connection) -> Result<i64, HistoryError> {
    let last = connection.query_row(
        "SELECT max(coalesce((SELECT max(seq) FROM change), 0), \
         coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'change'), 0))",
        [],
        |row| row.get(0),
    )?;
    Ok(last)
}

impl Drop for Writer {
    /// Everything that was recorded is written before this returns.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(path: &Path) -> Result<(Connection, Option<i64>), HistoryError> {
    let failed = |source| HistoryError::Open { path: path.to_owned(), source };
    let mut connection = Connection::open(path).map_err(failed)?;
    schema::prepare(&mut connection, path)?;
    let killed = begin_run(&mut connection)?;
    Ok((connection, killed))
}

fn is_corrupt(error: &HistoryError) -> bool {
    let (HistoryError::Sql(source) | HistoryError::Open { source, .. }) = error else {
        return false;
    };
    matches!(source.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// Renames what cannot be read, with what belongs to it, so that nothing is lost.
fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    let aside = path.with_extension(format!("corrupt-{}", now()));
    std::fs::rename(path, &aside)?;
    for suffix in ["-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        // They may not be there.
        let mut kept = aside.as_os_str().to_owned();
        kept.push(suffix);
        let _ = std::fs::rename(PathBuf::from(beside), PathBuf::from(kept));
    }
    Ok(aside)
}

/// Notes that the recorder runs; tells when the one before was last known to, if it was killed.
fn begin_run(connection: &mut Connection) -> Result<Option<i64>, HistoryError> {
    let transaction = connection.transaction()?;
    let killed = transaction.query_row(
        "SELECT max(seen) FROM run WHERE id = (SELECT max(id) FROM run) AND ended IS NULL",
        [],
        |row| row.get(0),
    )?;
    let time = now();
    transaction.execute("INSERT INTO run (began, seen) VALUES (?1, ?1)", [time])?;
    transaction.commit()?;
    Ok(killed)
}

/// The thread's side.
struct Recorder {
    connection: Connection,
    keep: Keep,
    losses: Arc<Losses>,
    /// Rows in `change`. `None`: not counted yet, or a failed statement made the number uncertain.
    rows: Option<u64>,
}

impl Recorder {
    fn run(mut self, receiver: &Receiver<Note>) {
        self.beat(false);
        let mut next_beat = Instant::now() + HEARTBEAT;
        loop {
            let now = Instant::now();
            if next_beat <= now {
                self.beat(false);
                next_beat = now + HEARTBEAT;
            }
            match receiver.recv_timeout(next_beat - now.min(next_beat)) {
                Ok(first) => {
                    let rest = receiver.try_iter().take(BATCH - 1);
                    let batch: Vec<Note> = std::iter::once(first).chain(rest).collect();
                    let failed = self.write(&batch).err();
                    if failed.is_some() {
                        // The disk is full, or gone: what cannot be kept is counted.
                        let changes = batch.iter().filter(|note| matches!(note, Note::Change(..)));
                        self.losses.dropped.fetch_add(changes.count() as u64, Ordering::Relaxed);
                    }
                    if let Ok(mut failing) = self.losses.failing.lock() {
                        *failing = failed.map(|error| error.to_string());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.beat(true);
                    return;
                }
            }
        }
    }

    fn write(&mut self, batch: &[Note]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare(
                "INSERT INTO change (seq, at, instance, netns, from_role, to_role, cause, reason, \
                 file_us, announce_us, hook_us, webhook_us, agent_us) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?;
            let mut standing = transaction.prepare(
                "INSERT INTO standing (instance, role, since, seq, hook_us, webhook_us) \
                 VALUES (?1, ?2, ?3, ?4, ?6, ?7) \
                 ON CONFLICT (instance) DO UPDATE SET role = ?2, \
                 seq = CASE WHEN ?5 THEN ?4 ELSE seq END, \
                 hook_us = CASE WHEN ?5 THEN ?6 ELSE hook_us END, \
                 webhook_us = CASE WHEN ?5 THEN ?7 ELSE webhook_us END, \
                 since = CASE WHEN role = ?2 THEN since ELSE ?3 END",
            )?;
            for note in batch {
                match note {
                    Note::Change(change) => {
                        let (record, latencies) = &**change;
                        let Record { seq, at, instance, netns, from, to, cause, reason, is_news } =
                            record;
                        let [file, announce, hook, webhook, agent] = latencies.0;
                        insert.execute(params![
                            seq, at, instance, netns, from, to, cause, reason, file, announce,
                            hook, webhook, agent
                        ])?;
                        standing.execute(params![instance, to, at, seq, is_news, hook, webhook])?;
                    }
                    Note::Stage(seq, stage, micros) => {
                        let column = stage.word();
                        let tables: &[&str] = match stage {
                            Stage::Hook | Stage::Webhook => &["change", "standing"],
                            Stage::File | Stage::Announce | Stage::Agent => &["change"],
                        };
                        for table in tables {
                            // A second delivery of the same change keeps the first latency.
                            let update = format!(
                                "UPDATE {table} SET {column}_us = ?2 \
                                 WHERE seq = ?1 AND ({column}_us IS NULL OR ?2 IS NULL)"
                            );
                            transaction.prepare(&update)?.execute(params![seq, micros])?;
                        }
                    }
                }
            }
        }
        transaction.commit()?;
        let inserted = batch.iter().filter(|note| matches!(note, Note::Change(..))).count();
        self.rows = self.rows.map(|rows| rows + inserted as u64);
        Ok(())
    }

    /// Says that we run, or have ended; clears what is too old or too much.
    fn beat(&mut self, is_end: bool) {
        let time = now();
        let dropped =
            i64::try_from(self.losses.dropped.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        // A disk that is full now may not be at the next beat.
        let _ = self.connection.execute(
            "UPDATE run SET seen = ?1, ended = CASE WHEN ?2 THEN ?1 END, dropped = ?3 \
             WHERE id = (SELECT max(id) FROM run)",
            params![time, is_end, dropped],
        );
        // The next heartbeat tries again.
        let _ = self.apply_retention(time);
    }

    /// Deletes rows beyond the limits of age, number and file size.
    fn apply_retention(&mut self, time: i64) -> rusqlite::Result<()> {
        // ORDER: the number is uncertain until every statement has succeeded.
        let known = self.rows.take();
        let age = i64::try_from(self.keep.age.as_millis()).unwrap_or(i64::MAX);
        let oldest = time.saturating_sub(age);
        let expired = self.connection.execute("DELETE FROM change WHERE at < ?1", [oldest])?;
        self.connection.execute(
            "DELETE FROM run WHERE seen < ?1 AND id < (SELECT max(id) FROM run)",
            [oldest],
        )?;
        let rows = match known {
            Some(rows) => rows.saturating_sub(expired as u64),
            None => self.count_rows()?,
        };
        // Sequence numbers have gaps: each kill skips UNWRITTEN of them. Only rows count.
        let rows = rows - self.delete_oldest(rows.saturating_sub(self.keep.changes))?;
        let excess = if self.is_too_large() { rows.div_ceil(10) } else { 0 };
        self.rows = Some(rows - self.delete_oldest(excess)?);
        Ok(())
    }

    /// Reads an index of the whole table, so it is done once; the number is kept from then on.
    fn count_rows(&self) -> rusqlite::Result<u64> {
        let rows: i64 =
            self.connection.query_row("SELECT count(*) FROM change", [], |row| row.get(0))?;
        Ok(u64::try_from(rows).unwrap_or(0))
    }

    /// Deletes the oldest `count` rows and returns how many there were.
    fn delete_oldest(&self, count: u64) -> rusqlite::Result<u64> {
        if count == 0 {
            return Ok(0);
        }
        let deleted = self.connection.execute(
            "DELETE FROM change WHERE seq IN (SELECT seq FROM change ORDER BY seq LIMIT ?1)",
            [i64::try_from(count).unwrap_or(i64::MAX)],
        )?;
        Ok(deleted as u64)
    }

    /// Whether the used part of the file is above its limit. The file itself never shrinks: SQLite
    /// uses free pages again.
    fn is_too_large(&self) -> bool {
        let number = |pragma: &str| -> u64 {
            let found: rusqlite::Result<i64> =
                self.connection.pragma_query_value(None, pragma, |row| row.get(0));
            found.ok().and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
        };
        let used = number("page_count").saturating_sub(number("freelist_count"));
        used * number("page_size") > self.keep.bytes
    }
}

/// Milliseconds since the epoch.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
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
        let (writer, opened) = Writer::open(directory.path(), Keep::default()).unwrap();
        assert_eq!(opened, Opened::default());
        let time = now();
        let records: Vec<Record> = (0..3000).map(|n| record("a", time + n, "primary")).collect();
        for record in &records {
            writer.record(record.clone(), Latencies::default());
        }
        drop(writer);
        assert_eq!(read(directory.path()), records, "all of them, in order");
        let run = Reader::open(directory.path()).unwrap().runs().unwrap().remove(0);
        assert!(run.ended.is_some() && run.dropped == 0);
        let (_writer, opened) = Writer::open(directory.path(), Keep::default()).unwrap();
        assert_eq!(opened.killed, None, "it had ended well");
    }

    #[test]
    fn a_recorder_that_was_killed_is_noticed_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Keep::default()).unwrap();
        let copy = left_behind(directory.path());
        drop(writer);
        let (writer, opened) = Writer::open(copy.path(), Keep::default()).unwrap();
        assert!(opened.killed.is_some());
        drop(writer);
        let (_writer, opened) = Writer::open(copy.path(), Keep::default()).unwrap();
        assert_eq!(opened.killed, None, "said once");
        let runs = Reader::open(copy.path()).unwrap().runs().unwrap();
        assert_eq!(runs.len(), 3);
        assert_eq!(runs[0].ended, None);
    }

    #[test]
    fn what_is_too_old_or_too_much_is_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let keep = Keep { age: Duration::from_hours(1), changes: 10, ..Keep::default() };
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
        let keep = Keep { age: Duration::from_hours(1), ..Keep::default() };
        let (writer, _) = Writer::open(directory.path(), keep).unwrap();
        let old = now() - 7_200_000;
        writer.record(record("a", old, "primary"), Latencies::default());
        let mut again = record("a", now(), "primary");
        again.is_news = false;
        writer.record(again, Latencies::default());
        drop(writer);
        let last =
            Reader::open(directory.path()).unwrap().last_roles().unwrap().remove("a").unwrap();
        assert_eq!((last.role.as_str(), last.since), ("primary", old));
    }

    #[test]
    fn what_was_delivered_is_known_when_retention_has_removed_its_change() {
        let directory = tempfile::tempdir().unwrap();
        let keep = Keep { age: Duration::from_hours(1), ..Keep::default() };
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
        let of =
            |id: &str| [Stage::Hook, Stage::Webhook].map(|stage| roles[id].latencies.of(stage));
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
        drop(Writer::open(directory.path(), Keep::default()).unwrap());
        let roles = Reader::open(directory.path()).unwrap().last_roles().unwrap();
        let of =
            |id: &str| [Stage::Hook, Stage::Webhook].map(|stage| roles[id].latencies.of(stage));
        assert_eq!(of("kept"), [Some(5), None]);
        assert_eq!(of("removed"), [Some(0), Some(0)]);
    }

    #[test]
    fn numbers_are_not_used_again_after_a_kill_or_a_loss() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Keep::default()).unwrap();
        let copy = left_behind(directory.path());
        drop(writer);
        let (_writer, opened) = Writer::open(copy.path(), Keep::default()).unwrap();
        assert!(opened.last >= UNWRITTEN, "some may have been told of and not written");
        let broken = tempfile::tempdir().unwrap();
        File::create(broken.path().join(FILE)).unwrap().write_all(&[7; 8192]).unwrap();
        let (_writer, opened) = Writer::open(broken.path(), Keep::default()).unwrap();
        assert!(opened.last > 1_000_000_000, "nobody knows how many there were");
    }

    #[test]
    fn a_file_that_is_too_large_loses_its_oldest_part() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Keep::default()).unwrap();
        for _ in 0..5000 {
            writer.record(record("a", now(), "primary"), Latencies::default());
        }
        drop(writer);
        let all = read(directory.path());
        let keep = Keep { bytes: 64 << 10, ..Keep::default() };
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
        let keep = Keep { changes: 10, ..Keep::default() };
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
        let (writer, _) = Writer::open(directory.path(), Keep::default()).unwrap();
        for seq in (1..=4999).chain([UNWRITTEN]) {
            let change = Record { seq, ..record("a", now(), "primary") };
            writer.record(change, Latencies::default());
        }
        drop(writer);
        let keep = Keep { bytes: 64 << 10, ..Keep::default() };
        // Retention runs twice: when the recorder starts and when it ends.
        drop(Writer::open(directory.path(), keep).unwrap());
        assert_eq!(read(directory.path()).len(), 4050);
    }

    #[test]
    fn a_stage_that_knows_later_is_added_and_numbers_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Keep::default()).unwrap();
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
        let (_writer, opened) = Writer::open(directory.path(), Keep::default()).unwrap();
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
        let (writer, opened) = Writer::open(directory.path(), Keep::default()).unwrap();
        assert_eq!(opened.last, 1);
        drop(writer);
        assert_eq!(read(directory.path())[0].to, "backup");
    }

    #[test]
    fn a_file_that_is_no_database_is_set_aside_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        File::create(&path).unwrap().write_all(&[7; 8192]).unwrap();
        let (writer, opened) = Writer::open(directory.path(), Keep::default()).unwrap();
        let aside = opened.set_aside.unwrap();
        assert_eq!(std::fs::read(aside).unwrap(), [7; 8192]);
        writer.record(record("a", now(), "primary"), Latencies::default());
        drop(writer);
        assert_eq!(read(directory.path()).len(), 1);
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
        let error = Writer::open(directory.path(), Keep::default()).unwrap_err();
        assert!(matches!(error, HistoryError::TooNew { found: 99, .. }), "{error}");
        assert!(Reader::open(directory.path()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
