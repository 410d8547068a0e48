// SPDX-License-Identifier: Apache-2.0
//! Queries of the history, at the same time as the writer writes.

use std::collections::BTreeMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, params};
use vipwatch_core::RoleKind;

use crate::delivery::{DeliverySource, StoredPosition};
use crate::{CauseRecord, FILE, HistoryError, Latencies, REMOVED, Record, schema};

/// Maximum size of a reader's page cache in KiB. SQLite's default is 2,000 KiB, and each client that reads the history
/// slowly has a reader.
const CACHE_KIB: i64 = 256;

/// Selects transitions. The conditions are combined with AND.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// The earliest time, in milliseconds since the Unix epoch; `None` for no limit.
    pub since: Option<i64>,
    /// The latest time, in milliseconds since the Unix epoch; `None` for no limit.
    pub until: Option<i64>,
    /// Only transitions with a higher sequence number; `None` for no limit.
    pub after: Option<i64>,
    /// The beginning of the instance ids, or one whole id if `exact`; `None` for all instances.
    pub instance: Option<String>,
    /// Whether `instance` is a complete instance id, not only the beginning of one.
    pub exact: bool,
    /// The maximum number of transitions: the first ones after `after`, or without `after` the latest ones;
    /// `None` for no limit.
    pub limit: Option<u64>,
}

impl Query {
    pub(crate) fn earliest(&self) -> i64 {
        self.since.unwrap_or(i64::MIN)
    }

    pub(crate) fn latest(&self) -> i64 {
        self.until.unwrap_or(i64::MAX)
    }

    /// The limit for SQLite, which takes -1 for no limit.
    pub(crate) fn sql_limit(&self) -> i64 {
        self.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1))
    }
}

/// A transition with the latencies of its deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The transition.
    pub record: Record,
    /// The latency of each stage.
    pub latencies: Latencies,
}

/// The last known role of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRole {
    /// The role.
    pub role: RoleKind,
    /// The time since which the instance has this role, in milliseconds since the Unix epoch.
    pub since: i64,
    /// The sequence number of its last transition, which retention may have deleted.
    pub seq: i64,
    /// The role before that transition; `None` if it was not known, or the transition was deleted.
    pub from: Option<RoleKind>,
    /// The trigger of that transition; `None` if it was deleted.
    pub trigger: Option<String>,
    /// Its cause; `None` if it was not known yet, or the transition was deleted.
    pub cause: Option<CauseRecord>,
}

/// The number of transitions of one instance in a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlapCount {
    /// The id of the instance.
    pub instance: String,
    /// The number of transitions, without those that a start of the node recorded, and without steps to `partial`: with
    /// several addresses, most transitions have such a step of some milliseconds.
    pub transitions: i64,
    /// The number of transitions to `primary`.
    pub primary: i64,
    /// The time of the first of them, in milliseconds since the Unix epoch.
    pub first: i64,
    /// The time of the last of them, in milliseconds since the Unix epoch.
    pub last: i64,
}

/// One run of the recorder, from its start to its end. Times are in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecorderRun {
    /// The last time at which the recorder wrote that it runs; once a minute.
    pub(crate) seen: i64,
    /// The end of the run; `None` while the recorder runs and after it was killed.
    pub(crate) ended: Option<i64>,
}

/// A read-only connection to the history.
#[derive(Debug)]
pub struct Reader {
    pub(crate) connection: Connection,
}

impl Reader {
    /// Opens the history in `directory`. A writer may use it at the same time.
    pub fn open(directory: &Path) -> Result<Self, HistoryError> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Err(HistoryError::Missing(path));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags)
            .map_err(|source| HistoryError::Open { path: path.clone(), source })?;
        match schema::check_format(&connection, &path) {
            // SQLite creates files beside the database when no writer runs, which takes the permission
            // to write to the directory.
            Err(HistoryError::Sql(error))
                if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) =>
            {
                let source = error;
                let connection =
                    open_without_writing(&path).ok_or(HistoryError::Open { path, source })?;
                Ok(Self { connection })
            }
            Err(error) => Err(error),
            Ok(()) => Ok(Self { connection }),
        }
        .and_then(Self::with_small_cache)
    }

    fn with_small_cache(self) -> Result<Self, HistoryError> {
        // A negative number is a size in KiB.
        self.connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        Ok(self)
    }

    /// The transitions that `query` selects, oldest first, all in memory: for queries with a small limit.
    /// [`Timeline`](crate::Timeline) streams them.
    pub fn transitions(&self, query: &Query) -> Result<Vec<HistoryEntry>, HistoryError> {
        let mut statement = self.connection.prepare(&transitions_sql(query))?;
        let instance = query.instance.as_deref().unwrap_or_default();
        let (since, until) = (query.earliest(), query.latest());
        let values = params![since, instance, query.sql_limit(), until, query.after.unwrap_or(0)];
        let rows = statement.query_map(values, transition_from_row)?;
        let mut entries = rows.collect::<Result<Vec<_>, _>>()?;
        if query.after.is_none() {
            entries.reverse();
        }
        Ok(entries)
    }

    /// The transitions of one instance with a sequence number above `after` and below `before`, oldest first, at most
    /// `limit` of them.
    pub fn transitions_between(
        &self,
        instance: &str,
        after: i64,
        before: i64,
        limit: usize,
    ) -> Result<Vec<Record>, HistoryError> {
        let mut statement = self.connection.prepare(
            "SELECT seq, at, instance, netns, from_role, to_role, trigger, reason, cause, evidence FROM transition \
             WHERE instance = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq LIMIT ?4",
        )?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![instance, after, before, limit], record_from_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The last transition of an instance; `None` if the history has none.
    pub fn last_transition(&self, instance: &str) -> Result<Option<Record>, HistoryError> {
        let mut statement = self.connection.prepare(
            "SELECT seq, at, instance, netns, from_role, to_role, trigger, reason, cause, evidence FROM transition \
             WHERE instance = ?1 ORDER BY seq DESC LIMIT 1",
        )?;
        Ok(statement.query_map([instance], record_from_row)?.next().transpose()?)
    }

    /// How far `target` is with the notifications of one source about an instance.
    pub fn position(
        &self,
        target: &str,
        source: DeliverySource,
        instance: &str,
    ) -> Result<StoredPosition, HistoryError> {
        let query = "SELECT seq, missed FROM delivery \
                     WHERE target = ?1 AND source = ?2 AND instance = ?3";
        let values = [target, source.as_str(), instance];
        let position = self.connection.query_row(query, values, |row| {
            Ok(StoredPosition { seq: row.get(0)?, missed: row.get(1)? })
        });
        Ok(position.optional()?.unwrap_or_default())
    }

    /// Whether the history has a row of the instance with exactly this id.
    pub fn has_instance(&self, instance: &str) -> Result<bool, HistoryError> {
        let query = "SELECT EXISTS (SELECT 1 FROM role WHERE instance = ?1) \
                     OR EXISTS (SELECT 1 FROM transition WHERE instance = ?1)";
        Ok(self.connection.query_row(query, [instance], |row| row.get(0))?)
    }

    /// Whether the history has a row of an instance with an id that begins with this text.
    pub fn has_instance_beginning(&self, start: &str) -> Result<bool, HistoryError> {
        let query = "SELECT EXISTS (SELECT 1 FROM role WHERE instance >= ?1 AND instance < ?1 || char(1114111)) \
             OR EXISTS (SELECT 1 FROM transition WHERE instance >= ?1 AND instance < ?1 || char(1114111))";
        Ok(self.connection.query_row(query, [start], |row| row.get(0))?)
    }

    /// The number of transitions from `since` to `until` of each instance that has any, highest number first. Later ones were
    /// recorded while the clock was ahead.
    pub fn flaps(&self, since: i64, until: i64) -> Result<Vec<FlapCount>, HistoryError> {
        let mut statement = self.connection.prepare(
            "SELECT instance, count(*), sum(to_role = 'primary'), min(at), max(at) FROM transition \
             WHERE at BETWEEN ?1 AND ?2 AND from_role <> to_role AND to_role <> 'partial' AND trigger <> 'start' \
             GROUP BY instance ORDER BY 2 DESC, 1",
        )?;
        let rows = statement.query_map([since, until], |row| {
            Ok(FlapCount {
                instance: row.get(0)?,
                transitions: row.get(1)?,
                primary: row.get(2)?,
                first: row.get(3)?,
                last: row.get(4)?,
            })
        })?;
        Ok(rows.collect::<Result<Vec<_>, _>>()?)
    }

    /// The highest sequence number of a transition; 0 if there is none.
    pub fn last_seq(&self) -> Result<i64, HistoryError> {
        let sql = "SELECT coalesce(max(seq), 0) FROM transition";
        Ok(self.connection.query_row(sql, [], |row| row.get(0))?)
    }

    /// The last known role of each instance.
    pub fn last_roles(&self) -> Result<BTreeMap<String, LastRole>, HistoryError> {
        last_roles(&self.connection)
    }

    /// The last run of the recorder; `None` if it has never run.
    pub(crate) fn last_run(&self) -> Result<Option<RecorderRun>, HistoryError> {
        let sql = "SELECT seen, ended FROM run ORDER BY id DESC LIMIT 1";
        let run = self
            .connection
            .query_row(sql, [], |row| Ok(RecorderRun { seen: row.get(0)?, ended: row.get(1)? }));
        Ok(run.optional()?)
    }
}

/// The columns that [`transition_from_row`] reads.
pub(crate) const ENTRY_COLUMNS: &str = "seq, at, instance, netns, from_role, to_role, trigger, reason, \
     cause, evidence, file_us, announce_us, hook_us, webhook_us, agent_us";

/// A row of `transition` with its columns in the order of the table.
pub(crate) fn transition_from_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<HistoryEntry> {
    let mut latencies = Latencies::default();
    for (at, latency) in latencies.0.iter_mut().enumerate() {
        *latency = row.get(10 + at)?;
    }
    Ok(HistoryEntry { record: record_from_row(row)?, latencies })
}

/// The first ten columns of a query as a record.
fn record_from_row(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        seq: row.get(0)?,
        at: row.get(1)?,
        instance: row.get(2)?,
        netns: row.get(3)?,
        from: known_role(row.get(4)?),
        to: match row.get::<_, String>(5)?.as_str() {
            REMOVED => None,
            word => Some(RoleKind::from_word(word).unwrap_or(RoleKind::Unknown)),
        },
        trigger: row.get(6)?,
        reason: row.get(7)?,
        cause: cause_from_columns(row.get(8)?, row.get(9)?),
    })
}

/// `None` without a word, and for one that is no role.
fn known_role(word: Option<String>) -> Option<RoleKind> {
    RoleKind::from_word(&word?)
}

fn cause_from_columns(word: Option<String>, evidence: Option<String>) -> Option<CauseRecord> {
    Some(CauseRecord { word: word?, evidence: evidence.unwrap_or_else(|| "{}".to_owned()) })
}

/// The last known role of each instance. A row with an unknown word is left out.
pub(crate) fn last_roles(
    connection: &Connection,
) -> Result<BTreeMap<String, LastRole>, HistoryError> {
    let mut statement = connection.prepare(
        "SELECT role.instance, role.role, role.since, role.seq, transition.from_role, transition.trigger, \
         transition.cause, transition.evidence FROM role LEFT JOIN transition ON transition.seq = role.seq",
    )?;
    let rows = statement.query_map([], |row| {
        let Some(role) = known_role(row.get(1)?) else { return Ok(None) };
        let last = LastRole {
            role,
            since: row.get(2)?,
            seq: row.get(3)?,
            from: known_role(row.get(4)?),
            trigger: row.get(5)?,
            cause: cause_from_columns(row.get(6)?, row.get(7)?),
        };
        Ok(Some((row.get(0)?, last)))
    })?;
    Ok(rows.filter_map(Result::transpose).collect::<Result<_, _>>()?)
}

/// Opens a file that cannot be written because its disk is full or read-only; `None` if it cannot be read
/// either.
pub(crate) fn open_without_writing(path: &Path) -> Option<Connection> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let has_log = std::fs::metadata(log).is_ok_and(|log| log.len() > 0);
    let mut flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut name = path.as_os_str().to_owned();
    if !has_log {
        // Without a write-ahead log the file is complete. `immutable` lets SQLite read it without creating
        // files beside it.
        flags |= OpenFlags::SQLITE_OPEN_URI;
        let escape = |byte: &u8| match byte {
            b'%' | b'?' | b'#' => format!("%{byte:02x}").into_bytes(),
            byte => vec![*byte],
        };
        let escaped: Vec<u8> = path.as_os_str().as_bytes().iter().flat_map(escape).collect();
        name =
            std::ffi::OsString::from_vec([b"file:".as_slice(), &escaped, b"?immutable=1"].concat());
    }
    let connection = Connection::open_with_flags(Path::new(&name), flags).ok()?;
    schema::check_format(&connection, path).ok()?;
    Some(connection)
}

/// The SQL statement of `query`: ?1 and ?4 are the earliest and the latest time, ?2 the instance id or its
/// beginning, ?3 the limit, ?5 the sequence number before the first one. Each kind of query has its own
/// statement, because SQLite does not use the index `transition_by_instance` for a condition with `OR`.
fn transitions_sql(query: &Query) -> String {
    let condition = match &query.instance {
        Some(_) if query.exact => "instance = ?2 AND seq > ?5 AND at >= ?1 AND at <= ?4",
        // U+10FFFF sorts after every character that an id can contain. The plus signs keep SQLite from using
        // another index, which would read the rows of all instances.
        Some(_) => {
            "instance >= ?2 AND instance < ?2 || char(1114111) \
             AND +seq > ?5 AND +at >= ?1 AND +at <= ?4"
        }
        None => "?2 = '' AND seq > ?5 AND at >= ?1 AND at <= ?4",
    };
    let order = if query.after.is_some() { "ASC" } else { "DESC" };
    format!(
        "SELECT {ENTRY_COLUMNS} FROM transition WHERE {condition} ORDER BY seq {order} LIMIT ?3"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{Retention, Writer};

    #[test]
    fn a_reader_has_a_small_page_cache() {
        let directory = tempfile::tempdir().unwrap();
        drop(Writer::open(directory.path(), Retention::default()).unwrap());
        let reader = Reader::open(directory.path()).unwrap();
        let size: i64 =
            reader.connection.query_row("PRAGMA cache_size", [], |row| row.get(0)).unwrap();
        assert_eq!(size, -CACHE_KIB);
    }

    #[test]
    fn a_failover_of_several_addresses_counted_twice_as_flapping() {
        let steps = [
            ("a", None, "backup"),
            ("a", Some("backup"), "partial"),
            ("a", Some("partial"), "primary"),
            ("a", Some("primary"), "partial"),
            ("a", Some("partial"), "backup"),
        ];
        let (_directory, reader) = recorded(&steps);
        assert_eq!(reader.flaps(0, i64::MAX).unwrap()[0].transitions, 2);
    }

    #[test]
    fn a_stored_word_that_is_no_role_is_ignored() {
        let steps = [("a", Some("backup"), "primary"), ("b", Some("backup"), "primary")];
        let (directory, reader) = recorded(&steps);
        let change = "UPDATE role SET role = 'leader' WHERE instance = 'b'; \
             UPDATE transition SET from_role = 'leader', to_role = 'leader' WHERE instance = 'b'";
        let connection = Connection::open(directory.path().join(FILE)).unwrap();
        connection.execute_batch(change).unwrap();
        let roles = reader.last_roles().unwrap();
        assert_eq!(roles.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!((roles["a"].role, roles["a"].from), (RoleKind::Primary, Some(RoleKind::Backup)));
        let last = reader.last_transition("b").unwrap().unwrap();
        assert_eq!((last.from, last.to), (None, Some(RoleKind::Unknown)));
    }

    /// A history with these steps of instances, ten milliseconds apart.
    fn recorded(steps: &[(&str, Option<&str>, &str)]) -> (tempfile::TempDir, Reader) {
        let directory = tempfile::tempdir().unwrap();
        let keep = Retention { age: std::time::Duration::MAX, ..Retention::default() };
        let (writer, _) = Writer::open(directory.path(), keep).unwrap();
        for (seq, (instance, from, to)) in (1..).zip(steps) {
            let trigger = if from.is_none() { "start" } else { "address" };
            let record = Record {
                seq,
                at: seq * 10,
                instance: (*instance).to_owned(),
                netns: None,
                from: from.and_then(RoleKind::from_word),
                to: RoleKind::from_word(to),
                trigger: trigger.to_owned(),
                reason: None,
                cause: None,
            };
            writer.record(record, Latencies::default());
        }
        drop(writer);
        let reader = Reader::open(directory.path()).unwrap();
        (directory, reader)
    }

    #[test]
    fn flaps_are_counted_without_the_transitions_of_a_start() {
        let (_directory, reader) = recorded(&[
            ("a", None, "backup"),
            ("a", Some("backup"), "primary"),
            ("a", Some("primary"), "backup"),
            ("b", None, "primary"),
        ]);
        let flaps = reader.flaps(0, i64::MAX).unwrap();
        let expected =
            FlapCount { instance: "a".to_owned(), transitions: 2, primary: 1, first: 20, last: 30 };
        assert_eq!(flaps, [expected]);
        // The clock was set back since.
        assert_eq!(reader.flaps(0, 20).unwrap()[0].transitions, 1);
        assert_eq!(reader.last_seq().unwrap(), 4);
        let roles = reader.last_roles().unwrap();
        assert_eq!((roles["a"].role, roles["a"].since), (RoleKind::Backup, 30));
        assert_eq!((roles["b"].role, roles["b"].since), (RoleKind::Primary, 40));
    }

    #[test]
    fn a_query_selects_by_time_by_id_and_by_number() {
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
                    to: Some(RoleKind::Primary),
                    trigger: "start".to_owned(),
                    reason: Some("why".to_owned()),
                    cause: None,
                },
                Latencies::default(),
            );
        }
        drop(writer);
        let reader = Reader::open(directory.path()).unwrap();
        let times = |query: Query| -> Vec<i64> {
            reader.transitions(&query).unwrap().iter().map(|entry| entry.record.at).collect()
        };
        assert_eq!(times(Query::default()), [10, 20, 30, 40]);
        assert_eq!(times(Query { since: Some(20), ..Query::default() }), [20, 30, 40]);
        assert_eq!(times(Query { until: Some(20), ..Query::default() }), [10, 20]);
        let after = Query { after: Some(10), limit: Some(2), ..Query::default() };
        assert_eq!(times(after), [20, 30], "the first ones after that number");
        let web = Some("web".to_owned());
        assert_eq!(times(Query { instance: web.clone(), ..Query::default() }), [10, 20, 40]);
        assert_eq!(times(Query { instance: web, limit: Some(2), ..Query::default() }), [20, 40]);
        let wildcard = Some("%".to_owned());
        assert!(times(Query { instance: wildcard, ..Query::default() }).is_empty());
    }

    #[test]
    fn transitions_of_one_instance_are_found_by_the_index() {
        let directory = tempfile::tempdir().unwrap();
        drop(Writer::open(directory.path(), Retention::default()).unwrap());
        let reader = Reader::open(directory.path()).unwrap();
        let plan = |query: &Query| -> Vec<String> {
            let explain = format!("EXPLAIN QUERY PLAN {}", transitions_sql(query));
            let mut statement = reader.connection.prepare(&explain).unwrap();
            let values = params![0, "a", 20, 9, 0];
            let rows = statement.query_map(values, |row| row.get(3)).unwrap();
            rows.collect::<Result<_, _>>().unwrap()
        };
        let one = Query { instance: Some("a".to_owned()), exact: true, ..Query::default() };
        let expected =
            "SEARCH transition USING INDEX transition_by_instance (instance=? AND seq>?)";
        assert_eq!(plan(&one), [expected], "the index has the order: SQLite does not sort");
        let several = plan(&Query { exact: false, ..one });
        let expected =
            "SEARCH transition USING INDEX transition_by_instance (instance>? AND instance<?)";
        assert_eq!(several[0], expected);
    }
}
