// SPDX-License-Identifier: Apache-2.0
//! Events that are not transitions: deliveries, findings. They share the sequence of the transitions, so that a
//! client can resume its stream of events at any of them.
//!
//! The *epoch* names one life of the history file: a new file has another one. The *floor* is a sequence number:
//! events up to it may be missing from the file, because retention deleted them, the file could not be written,
//! or the node was killed before it wrote them.

use rusqlite::{Connection, params};

use crate::reader::transition_from_row;
use crate::{HistoryEntry, HistoryError, Reader};

/// Creates the tables of events. A trigger raises the floor for each deleted transition and event.
pub(crate) const CREATE: &str = "
CREATE TABLE event (
    seq      INTEGER PRIMARY KEY,            -- the sequence of `transition`
    at       INTEGER NOT NULL,               -- milliseconds since the epoch
    name     TEXT NOT NULL,                  -- delivery, finding
    instance TEXT,                           -- NULL: about the node
    body     TEXT NOT NULL                   -- JSON
);
CREATE INDEX event_by_time ON event (at);
CREATE TABLE epoch (
    name  TEXT NOT NULL,                     -- one life of this file
    floor INTEGER NOT NULL                   -- events up to this number may be missing
);
INSERT INTO epoch (name, floor) VALUES (lower(hex(randomblob(4))), 0);
CREATE TRIGGER transition_deleted AFTER DELETE ON transition BEGIN
    UPDATE epoch SET floor = max(floor, OLD.seq);
END;
CREATE TRIGGER event_deleted AFTER DELETE ON event BEGIN
    UPDATE epoch SET floor = max(floor, OLD.seq);
END;
";

/// Whether a row of `event` is about a finding that has a row in `delivery`: see [`crate::DeliveryKey::instance`].
pub(crate) const IS_PENDING_FINDING: &str = "(name = 'finding' AND json_valid(body) AND \
     coalesce(instance, '') || ' ' || json_extract(body, '$.finding.name') IN \
     (SELECT instance FROM delivery WHERE instr(instance, ' ') > 0))";

/// A delivery or a finding, as it was sent to the clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// The sequence number, from the same sequence as those of transitions.
    pub seq: i64,
    /// The time, in milliseconds since the Unix epoch.
    pub at: i64,
    /// The name of the event, for example `delivery`.
    pub name: String,
    /// The id of the instance; `None` for an event about the node.
    pub instance: Option<String>,
    /// The JSON document.
    pub body: String,
}

/// An entry of the one sequence of transitions and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SequenceEntry {
    /// A transition.
    Transition(Box<HistoryEntry>),
    /// A delivery or a finding.
    Event(EventRecord),
}

impl SequenceEntry {
    /// The sequence number.
    pub fn seq(&self) -> i64 {
        match self {
            Self::Transition(entry) => entry.record.seq,
            Self::Event(event) => event.seq,
        }
    }
}

/// The epoch of a file and its floor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Epoch {
    /// The name; it consists of hexadecimal digits.
    pub name: String,
    /// Events up to this number may be missing.
    pub floor: i64,
}

impl Reader {
    /// The epoch of the file.
    pub fn epoch(&self) -> Result<Epoch, HistoryError> {
        epoch(&self.connection)
    }

    /// The transitions and events after `seq`, in order, at most `limit`.
    pub fn events_after(&self, seq: i64, limit: u64) -> Result<Vec<SequenceEntry>, HistoryError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut statement = self.connection.prepare(
            "SELECT seq, at, instance, netns, from_role, to_role, trigger, reason, \
             cause, evidence, file_us, announce_us, hook_us, webhook_us, agent_us FROM transition \
             WHERE seq > ?1 ORDER BY seq LIMIT ?2",
        )?;
        let rows = statement.query_map([seq, limit], transition_from_row)?;
        let transitions = rows.map(|row| Ok(SequenceEntry::Transition(Box::new(row?))));
        let mut entries = transitions.collect::<rusqlite::Result<Vec<_>>>()?;
        let mut statement = self.connection.prepare(
            "SELECT seq, at, name, instance, body FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2",
        )?;
        let rows = statement.query_map([seq, limit], |row| {
            Ok(SequenceEntry::Event(EventRecord {
                seq: row.get(0)?,
                at: row.get(1)?,
                name: row.get(2)?,
                instance: row.get(3)?,
                body: row.get(4)?,
            }))
        })?;
        for row in rows {
            entries.push(row?);
        }
        entries.sort_by_key(SequenceEntry::seq);
        entries.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(entries)
    }

    /// The document of the last event of each finding, by its instance, its name, and its id in the cluster. Reads the whole table of events.
    pub fn last_events_of_findings(&self) -> Result<Vec<String>, HistoryError> {
        // SQLite takes `body` from the row with the highest number (section "Bare columns in an aggregate query").
        let mut statement = self.connection.prepare(
            "SELECT body, max(seq) FROM event WHERE name = 'finding' AND json_valid(body) \
             GROUP BY instance, json_extract(body, '$.finding.name'), \
             json_extract(body, '$.cluster.id') ORDER BY max(seq)",
        )?;
        let bodies = statement.query_map([], |row| row.get(0))?;
        Ok(bodies.collect::<Result<_, _>>()?)
    }

    /// The documents of failed deliveries among the last `limit` events after `seq`, the newest first.
    pub fn failed_deliveries_after(
        &self,
        seq: i64,
        limit: u32,
    ) -> Result<Vec<String>, HistoryError> {
        let mut statement = self.connection.prepare(
            "SELECT body FROM (SELECT seq, name, body FROM event WHERE seq > ?1 \
             ORDER BY seq DESC LIMIT ?2) \
             WHERE name = 'delivery' AND instr(body, '\"error\":\"') > 0 ORDER BY seq DESC",
        )?;
        let bodies = statement.query_map(params![seq, limit], |row| row.get(0))?;
        Ok(bodies.collect::<Result<_, _>>()?)
    }

    /// The documents of the events after `seq` about the findings that have a row in `delivery`, in order.
    pub fn pending_findings_after(&self, seq: i64) -> Result<Vec<String>, HistoryError> {
        let select =
            format!("SELECT body FROM event WHERE seq > ?1 AND {IS_PENDING_FINDING} ORDER BY seq");
        let mut statement = self.connection.prepare(&select)?;
        let bodies = statement.query_map([seq], |row| row.get(0))?;
        Ok(bodies.collect::<Result<_, _>>()?)
    }
}

/// The epoch of the file.
pub(crate) fn epoch(connection: &Connection) -> Result<Epoch, HistoryError> {
    let row = connection.query_row("SELECT name, floor FROM epoch", [], |row| {
        Ok(Epoch { name: row.get(0)?, floor: row.get(1)? })
    })?;
    Ok(row)
}

/// Records that events up to `seq` may be missing.
pub(crate) fn raise_floor(connection: &Connection, seq: i64) -> rusqlite::Result<()> {
    connection.execute("UPDATE epoch SET floor = max(floor, ?1)", [seq]).map(|_| ())
}

/// Gives a file that is opened while the node runs the epoch of this run. Events up to `seq` may be missing from it.
pub(crate) fn continue_epoch(
    connection: &Connection,
    name: &str,
    seq: i64,
) -> rusqlite::Result<()> {
    let update = "UPDATE epoch SET name = ?1, floor = max(floor, ?2)";
    connection.execute(update, params![name, seq]).map(|_| ())
}

/// Inserts an event; see [`EventRecord`] for the columns.
pub(crate) const INSERT: &str =
    "INSERT INTO event (seq, at, name, instance, body) VALUES (?1, ?2, ?3, ?4, ?5)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Latencies, Record, Retention, Writer};

    fn record(seq: i64) -> Record {
        Record {
            seq,
            at: seq,
            instance: "a".to_owned(),
            netns: None,
            from: None,
            to: Some(vipwatch_core::RoleKind::Primary),
            trigger: "address".to_owned(),
            reason: None,
            cause: None,
        }
    }

    fn delivery(seq: i64) -> EventRecord {
        let (name, body) = ("delivery".to_owned(), "{}".to_owned());
        EventRecord { seq, at: seq, name, instance: Some("a".to_owned()), body }
    }

    fn keep(transitions: u64) -> Retention {
        let age = std::time::Duration::MAX;
        Retention { age, transitions, ..Retention::default() }
    }

    #[test]
    fn transitions_and_events_are_one_sequence_that_a_later_run_continues() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, opened) = Writer::open(directory.path(), keep(100)).unwrap();
        for seq in [1, 3] {
            writer.record(record(seq), Latencies::default());
        }
        for seq in [2, 4] {
            writer.record_event(delivery(seq));
        }
        drop(writer);
        let reader = Reader::open(directory.path()).unwrap();
        let after = |seq, limit| -> Vec<i64> {
            let entries = reader.events_after(seq, limit).unwrap();
            entries.iter().map(SequenceEntry::seq).collect()
        };
        assert_eq!(
            (after(0, 10), after(1, 2), after(4, 10)),
            (vec![1, 2, 3, 4], vec![2, 3], vec![])
        );
        let epoch = Epoch { name: opened.epoch.clone(), floor: 0 };
        assert_eq!(reader.epoch().unwrap(), epoch);
        let (_writer, again) = Writer::open(directory.path(), keep(100)).unwrap();
        assert_eq!(
            (again.epoch, again.last_seq),
            (opened.epoch, 4),
            "the number of an event is not reused"
        );
    }

    #[test]
    fn retention_and_a_kill_raise_the_floor_of_the_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, opened) = Writer::open(directory.path(), keep(2)).unwrap();
        writer.set_targets(crate::StoredTargets::default());
        for seq in 1..=5 {
            writer.record(record(seq * 2), Latencies::default());
            writer.record_event(delivery(seq * 2 + 1));
        }
        drop(writer);
        let reader = Reader::open(directory.path()).unwrap();
        assert_eq!(reader.epoch().unwrap().floor, 7, "8 is the oldest transition that is kept");
        assert_eq!(reader.events_after(0, 100).unwrap()[0].seq(), 8);
        // A run that was killed has no end in the file.
        let file = rusqlite::Connection::open(directory.path().join(crate::FILE)).unwrap();
        file.execute("UPDATE run SET ended = NULL", []).unwrap();
        let (_writer, killed) = Writer::open(directory.path(), keep(2)).unwrap();
        assert_eq!(killed.epoch, opened.epoch);
        assert_eq!(reader.epoch().unwrap().floor, killed.last_seq);
    }

    #[test]
    fn the_last_event_of_each_finding_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), keep(100)).unwrap();
        let finding = |seq, instance: Option<&str>, name: &str| EventRecord {
            seq,
            at: seq,
            name: "finding".to_owned(),
            instance: instance.map(str::to_owned),
            body: format!(r#"{{"seq":{seq},"finding":{{"name":"{name}"}}}}"#),
        };
        let keys = [(None, "x"), (Some("a"), "x"), (Some("a"), "y"), (None, "x"), (Some("a"), "x")];
        for (seq, (instance, name)) in (1..).zip(keys) {
            writer.record_event(finding(seq, instance, name));
        }
        writer.record_event(EventRecord { body: "no JSON".to_owned(), ..finding(6, None, "z") });
        drop(writer);
        let bodies = Reader::open(directory.path()).unwrap().last_events_of_findings().unwrap();
        let expected = [(3, Some("a"), "y"), (4, None, "x"), (5, Some("a"), "x")];
        let expected = expected.map(|(seq, instance, name)| finding(seq, instance, name).body);
        assert_eq!(bodies, expected);
    }

    #[test]
    fn retention_keeps_the_events_of_pending_findings_up_to_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let undelivered = 2;
        let (writer, _) =
            Writer::open(directory.path(), Retention { undelivered, ..keep(1) }).unwrap();
        let finding = |seq, instance: Option<&str>| EventRecord {
            name: "finding".to_owned(),
            instance: instance.map(str::to_owned),
            body: format!(r#"{{"seq":{seq},"finding":{{"name":"x"}}}}"#),
            ..delivery(seq)
        };
        for (seq, instance) in (1..).zip([Some("a"), None, Some("a"), Some("b"), Some("a")]) {
            writer.record_event(finding(seq, instance));
        }
        for (target, instance) in [("t", "a x"), ("u", " y")] {
            let (target, source) = (target.into(), crate::DeliverySource::Node);
            let key = crate::DeliveryKey { target, source, instance: instance.to_owned() };
            let (outcome, role, reported_missed) = ("filtered", None, 0);
            let row = crate::ConcludedRow { seq: 0, outcome, role, reported_missed };
            writer.delivery_store().record(key, row);
        }
        writer.record_event(delivery(9));
        // The end of the writer applies the retention.
        drop(writer);
        let reader = Reader::open(directory.path()).unwrap();
        let expected = [3, 5].map(|seq| finding(seq, Some("a")).body);
        assert_eq!(reader.pending_findings_after(0).unwrap(), expected);
        assert_eq!(reader.pending_findings_after(3).unwrap(), expected[1..]);
        let seqs: Vec<i64> =
            reader.events_after(0, 9).unwrap().iter().map(SequenceEntry::seq).collect();
        assert_eq!(seqs, [3, 5, 9]);
    }

    #[test]
    fn silences_are_kept_for_the_next_run() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), keep(2)).unwrap();
        let silence = crate::SilenceRow {
            number: 1,
            instance: Some("a".to_owned()),
            created_at: 1,
            until: 2,
            reason: "upgrade".to_owned(),
            created_by: "root".to_owned(),
            ended_by: Some("nobody".to_owned()),
        };
        writer.store_silences(vec![silence.clone()]);
        drop(writer);
        let (writer, opened) = Writer::open(directory.path(), keep(2)).unwrap();
        assert_eq!(opened.silences, [silence]);
        writer.store_silences(Vec::new());
        drop(writer);
        assert_eq!(Writer::open(directory.path(), keep(2)).unwrap().1.silences, []);
    }
}
