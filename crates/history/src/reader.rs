//! Answers while the history is written.

use std::collections::BTreeMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rusqlite::{Connection, OpenFlags, params};

use crate::{FILE, HistoryError, Latencies, Record, Stage, schema};

/// Which changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// Since when, in milliseconds since the epoch.
    pub since: Option<i64>,
    /// Of the instances whose ids begin so.
    pub instance: Option<String>,
    /// Of the one that is called so, and no other.
    pub exact: bool,
    /// The last so many.
    pub limit: Option<u64>,
}

/// A change, and how long it took to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// What happened.
    pub record: Record,
    /// Who knew how soon.
    pub latencies: Latencies,
}

/// What an instance was last known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRole {
    /// Its role.
    pub role: String,
    /// Since when, in milliseconds since the epoch.
    pub since: i64,
    /// Which hooks and webhooks were told of its last change, whether or not that is still kept.
    pub latencies: Latencies,
}

/// How often an instance has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlapCount {
    /// Who.
    pub instance: String,
    /// Changes, without those of starts.
    pub changes: i64,
    /// How often it became primary.
    pub primary: i64,
    /// The first of them, in milliseconds since the epoch.
    pub first: i64,
    /// The last of them.
    pub last: i64,
}

/// One life of the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecorderRun {
    /// When it began.
    pub began: i64,
    /// When it is last known to have run.
    pub seen: i64,
    /// When it ended; `None` if it runs, or was killed.
    pub ended: Option<i64>,
    /// Changes that could not be recorded.
    pub dropped: i64,
}

/// An open history.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
}

impl Reader {
    /// Opens the history in `directory`, which may be written meanwhile.
    pub fn open(directory: &Path) -> Result<Self, HistoryError> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Err(HistoryError::Missing(path));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags)
            .map_err(|source| HistoryError::Open { path: path.clone(), source })?;
        match schema::version(&connection, &path)? {
            schema::VERSION => Ok(Self { connection }),
            found => Err(HistoryError::TooOld { path, found }),
        }
    }

    /// The changes that `query` asks for, oldest first.
    pub fn changes(&self, query: &Query) -> Result<Vec<HistoryEntry>, HistoryError> {
        let mut statement = self.connection.prepare(changes_sql(query))?;
        let since = query.since.unwrap_or(i64::MIN);
        let instance = query.instance.as_deref().unwrap_or_default();
        let limit = query.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1));
        let rows = statement.query_map(params![since, instance, limit], |row| {
            let record = Record {
                seq: row.get(0)?,
                at: row.get(1)?,
                instance: row.get(2)?,
                netns: row.get(3)?,
                from: row.get(4)?,
                to: row.get(5)?,
                cause: row.get(6)?,
                reason: row.get(7)?,
                is_news: true,
            };
            let mut latencies = Latencies::default();
            for (at, latency) in latencies.0.iter_mut().enumerate() {
                *latency = row.get(8 + at)?;
            }
            Ok(HistoryEntry { record, latencies })
        })?;
        let mut entries = rows.collect::<Result<Vec<_>, _>>()?;
        entries.reverse();
        Ok(entries)
    }

    /// Whether the history has heard of an instance with exactly this id.
    pub fn knows(&self, instance: &str) -> Result<bool, HistoryError> {
        let question = "SELECT EXISTS (SELECT 1 FROM standing WHERE instance = ?1) \
                        OR EXISTS (SELECT 1 FROM change WHERE instance = ?1)";
        Ok(self.connection.query_row(question, [instance], |row| row.get(0))?)
    }

    /// Who has changed since `since`, most often first.
    pub fn flaps(&self, since: i64) -> Result<Vec<FlapCount>, HistoryError> {
        let mut statement = self.connection.prepare(
            "SELECT instance, count(*), sum(to_role = 'primary'), min(at), max(at) FROM change \
             WHERE at >= ?1 AND from_role <> to_role AND cause <> 'start' \
             GROUP BY instance ORDER BY 2 DESC, 1",
        )?;
        let rows = statement.query_map([since], |row| {
            Ok(FlapCount {
                instance: row.get(0)?,
                changes: row.get(1)?,
                primary: row.get(2)?,
                first: row.get(3)?,
                last: row.get(4)?,
            })
        })?;
        Ok(rows.collect::<Result<Vec<_>, _>>()?)
    }

    /// What each instance was last known to be.
    pub fn last_roles(&self) -> Result<BTreeMap<String, LastRole>, HistoryError> {
        last_roles(&self.connection)
    }

    /// Every life of the recorder, in order.
    pub fn runs(&self) -> Result<Vec<RecorderRun>, HistoryError> {
        let mut statement =
            self.connection.prepare("SELECT began, seen, ended, dropped FROM run ORDER BY id")?;
        let rows = statement.query_map([], |row| {
            Ok(RecorderRun {
                began: row.get(0)?,
                seen: row.get(1)?,
                ended: row.get(2)?,
                dropped: row.get(3)?,
            })
        })?;
        Ok(rows.collect::<Result<Vec<_>, _>>()?)
    }
}

/// What each instance was last known to be.
pub(crate) fn last_roles(
    connection: &Connection,
) -> Result<BTreeMap<String, LastRole>, HistoryError> {
    let mut statement =
        connection.prepare("SELECT instance, role, since, hook_us, webhook_us FROM standing")?;
    let rows = statement.query_map([], |row| {
        let mut latencies = Latencies::default();
        for (at, stage) in [(3, Stage::Hook), (4, Stage::Webhook)] {
            if let Some(micros) = row.get(at)? {
                latencies.set(stage, micros);
            }
        }
        let last = LastRole { role: row.get(1)?, since: row.get(2)?, latencies };
        Ok((row.get(0)?, last))
    })?;
    Ok(rows.collect::<Result<BTreeMap<_, _>, _>>()?)
}

/// Opens a file that cannot be written, on a full or read-only disk; `None` if it cannot be read either.
pub(crate) fn open_without_writing(path: &Path) -> Option<Connection> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let has_log = std::fs::metadata(log).is_ok_and(|log| log.len() > 0);
    let mut flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut name = path.as_os_str().to_owned();
    if !has_log {
        // Without a log the file is complete, and `immutable` reads it without making files beside it.
        flags |= OpenFlags::SQLITE_OPEN_URI;
        let escape = |byte: &u8| match byte {
            b'%' | b'?' | b'#' => format!("%{byte:02x}").into_bytes(),
            byte => vec![*byte],
        };
        let escaped: Vec<u8> = path.as_os_str().as_bytes().iter().flat_map(escape).collect();
        name =
            std::ffi::OsString::from_vec([b"file:".as_slice(), &escaped, b"?immutable=1"].concat());
    }
    Connection::open_with_flags(Path::new(&name), flags).ok()
}

/// The statement that answers `query`: ?1 is the earliest time, ?2 the instance or the beginning of
/// its id, ?3 the limit. Each condition stands alone, because `OR` keeps SQLite from using the index
/// `change_by_instance`.
fn changes_sql(query: &Query) -> &'static str {
    macro_rules! select {
        ($condition:literal) => {
            concat!(
                "SELECT seq, at, instance, netns, from_role, to_role, cause, reason, \
                 file_us, announce_us, hook_us, webhook_us, agent_us FROM change WHERE ",
                $condition,
                " ORDER BY seq DESC LIMIT ?3"
            )
        };
    }
    match &query.instance {
        Some(_) if query.exact => select!("instance = ?2 AND at >= ?1"),
        // U+10FFFF sorts behind every character that an id may have.
        Some(_) => select!("instance >= ?2 AND instance < ?2 || char(1114111) AND at >= ?1"),
        None => select!("at >= ?1 AND ?2 = ''"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{Retention, Writer};

    #[test]
    fn flaps_are_counted_and_starts_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let keep = Retention { age: std::time::Duration::MAX, ..Retention::default() };
        let (writer, _) = Writer::open(directory.path(), keep).unwrap();
        let steps = [
            ("a", None, "backup"),
            ("a", Some("backup"), "primary"),
            ("a", Some("primary"), "backup"),
            ("b", None, "primary"),
        ];
        for (seq, (instance, from, to)) in (1..).zip(steps) {
            let cause = if from.is_none() { "start" } else { "address" };
            let record = Record {
                seq,
                at: seq * 10,
                instance: instance.to_owned(),
                netns: None,
                from: from.map(str::to_owned),
                to: to.to_owned(),
                cause: cause.to_owned(),
                reason: None,
                is_news: true,
            };
            writer.record(record, Latencies::default());
        }
        drop(writer);
        let reader = Reader::open(directory.path()).unwrap();
        let flaps = reader.flaps(0).unwrap();
        let expected =
            FlapCount { instance: "a".to_owned(), changes: 2, primary: 1, first: 20, last: 30 };
        assert_eq!(flaps, [expected]);
        let roles = reader.last_roles().unwrap();
        assert_eq!((roles["a"].role.as_str(), roles["a"].since), ("backup", 30));
        assert_eq!((roles["b"].role.as_str(), roles["b"].since), ("primary", 40));
    }

    #[test]
    fn a_question_narrows_by_time_by_id_and_by_number() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(Reader::open(directory.path()), Err(HistoryError::Missing(_))));
        let keep = Retention { age: std::time::Duration::MAX, ..Retention::default() };
        let (writer, _) = Writer::open(directory.path(), keep).unwrap();
        for (at, instance) in [(10, "web-1"), (20, "web-2"), (30, "db"), (40, "web-1")] {
            writer.record(
                Record {
                    seq: at,
                    at,
                    instance: instance.to_owned(),
                    netns: None,
                    from: None,
                    to: "primary".to_owned(),
                    cause: "start".to_owned(),
                    reason: Some("why".to_owned()),
                    is_news: true,
                },
                Latencies::default(),
            );
        }
        drop(writer);
        let reader = Reader::open(directory.path()).unwrap();
        let times = |query: Query| -> Vec<i64> {
            reader.changes(&query).unwrap().iter().map(|entry| entry.record.at).collect()
        };
        assert_eq!(times(Query::default()), [10, 20, 30, 40]);
        assert_eq!(times(Query { since: Some(20), ..Query::default() }), [20, 30, 40]);
        let web = Some("web".to_owned());
        assert_eq!(times(Query { instance: web.clone(), ..Query::default() }), [10, 20, 40]);
        assert_eq!(times(Query { instance: web, limit: Some(2), ..Query::default() }), [20, 40]);
        let nobody = Some("%".to_owned());
        assert!(times(Query { instance: nobody, ..Query::default() }).is_empty());
    }
    #[test]
    fn changes_of_one_instance_are_found_by_the_index() {
        let directory = tempfile::tempdir().unwrap();
        drop(Writer::open(directory.path(), Retention::default()).unwrap());
        let reader = Reader::open(directory.path()).unwrap();
        let plan = |query: &Query| -> Vec<String> {
            let explain = format!("EXPLAIN QUERY PLAN {}", changes_sql(query));
            let mut statement = reader.connection.prepare(&explain).unwrap();
            let rows = statement.query_map(params![0, "a", 20], |row| row.get(3)).unwrap();
            rows.collect::<Result<_, _>>().unwrap()
        };
        let one = Query { instance: Some("a".to_owned()), exact: true, ..Query::default() };
        let expected = "SEARCH change USING INDEX change_by_instance (instance=?)";
        assert_eq!(plan(&one), [expected], "no sorting: the index has the order");
        let several = plan(&Query { exact: false, ..one });
        let expected = "SEARCH change USING INDEX change_by_instance (instance>? AND instance<?)";
        assert_eq!(several[0], expected);
    }
}
