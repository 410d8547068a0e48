// SPDX-License-Identifier: Apache-2.0
//! Events that a client has missed, read from the history.

use std::sync::Arc;

use vipwatch_api::{NodeEvent, ResetReason};
use vipwatch_history::{Epoch, HistoryError, Reader, SequenceEntry};

use super::{ApiContext, read_history};
use crate::event::NodeIdentity;

/// Maximum number of events of one page. Each client that does not read holds one page in memory.
const PAGE_EVENTS: u64 = 50;

/// An event from the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The sequence number.
    pub seq: i64,
    /// The name, for example `transition`.
    pub name: &'static str,
    /// The id of the instance; `None` for an event about the node.
    pub instance: Option<String>,
    /// The JSON document.
    pub data: String,
}

/// The events after one that a client has, up to one after which it receives live events. Every call opens and reads
/// the file, so that a client that does not read keeps neither a file descriptor nor SQLite's memory.
#[derive(Debug)]
pub struct EventBackfill {
    context: ApiContext,
    identity: NodeIdentity,
    /// The last event that was read.
    position: i64,
    until: i64,
}

impl EventBackfill {
    /// The events after `after`, up to `until`. Fails if the history does not have them.
    pub fn open(context: &ApiContext, after: i64, until: i64) -> Result<Self, ResetReason> {
        let identity =
            NodeIdentity { node: Arc::clone(&context.node), epoch: context.store.epoch() };
        let backfill = Self { context: context.clone(), identity, position: after, until };
        backfill.read(|_| Ok(()))?;
        Ok(backfill)
    }

    /// Whether the file has all events up to the last one that is wanted. The history is written some time after an
    /// event is published.
    pub fn is_written(&self) -> Result<bool, ResetReason> {
        self.read(|reader| Ok(!reader.events_after(self.until - 1, 1)?.is_empty()))
    }

    /// The next events; `None` at the end. A page can be empty: an event that this release cannot read is left out.
    pub fn next_page(&mut self) -> Result<Option<Vec<RecordedEvent>>, ResetReason> {
        let mut page = self.read(|reader| reader.events_after(self.position, PAGE_EVENTS))?;
        page.retain(|entry| entry.seq() <= self.until);
        let Some(last) = page.last() else { return Ok(None) };
        self.position = last.seq();
        let view = self.context.store.view();
        let event = |entry: &SequenceEntry| {
            let id = match entry {
                SequenceEntry::Transition(row) => Some(row.record.instance.as_str()),
                SequenceEntry::Event(row) => row.instance.as_deref(),
            };
            let config = id.and_then(|id| view.entries.get(&id.parse().ok()?));
            let event = self.identity.recorded(entry, config.map(|entry| &*entry.instance))?;
            recorded_event(entry.seq(), &event)
        };
        Ok(Some(page.iter().filter_map(event).collect()))
    }

    /// Opens the file and reads from it. Fails if events after the position may be missing.
    fn read<T>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, HistoryError>,
    ) -> Result<T, ResetReason> {
        let read = read_history(&self.context, |reader| {
            let value = read(&reader)?;
            // ORDER: after the events, because retention may have deleted some that were not read yet.
            Ok((value, reader.epoch()?))
        });
        let (value, epoch) = read.map_err(|_error| ResetReason::HistoryUnavailable)?;
        match epoch {
            Epoch { name, .. } if *name != *self.identity.epoch => Err(ResetReason::OtherEpoch),
            Epoch { floor, .. } if floor > self.position => Err(ResetReason::Expired),
            Epoch { .. } => Ok(value),
        }
    }
}

fn recorded_event(seq: i64, event: &NodeEvent) -> Option<RecordedEvent> {
    let data = serde_json::to_string(event).ok()?;
    Some(RecordedEvent {
        seq,
        name: event.into(),
        instance: event.instance().map(str::to_owned),
        data,
    })
}

#[cfg(test)]
mod tests {
    use vipwatch_history::{EventRecord, Retention, Writer};

    use super::*;
    use crate::config::Config;

    /// A history with these events, all of them findings.
    fn context(directory: &std::path::Path, bodies: &[&str]) -> ApiContext {
        let (writer, _) = Writer::open(directory, Retention::default()).unwrap();
        for (seq, body) in (1..).zip(bodies) {
            let (name, body) = ("finding".to_owned(), (*body).to_owned());
            let at = vipwatch_linux::clock::unix_millis_now();
            writer.record_event(EventRecord { seq, at, name, instance: None, body });
        }
        drop(writer);
        let config = Config { state_dir: directory.to_owned(), ..Config::default() };
        crate::direct::history_context(&config)
    }

    const READABLE: &str = r#"{"schema":"vipwatch.finding/1","node":"n","epoch":"0","source":"node",
        "seq":1,"at":"2026-01-01T00:00:00Z","id":null,"state":"open","finding":{"id":null,
        "name":"node-history","severity":"warning","text":"","hint":"","since":null,
        "silenced_until":null},"scope":"local"}"#;

    #[test]
    fn a_page_of_unreadable_events_does_not_end_a_resumed_stream() {
        let directory = tempfile::tempdir().unwrap();
        let unreadable = usize::try_from(PAGE_EVENTS).unwrap() * 2;
        let bodies: Vec<&str> = std::iter::repeat_n("{}", unreadable).chain([READABLE]).collect();
        let context = context(directory.path(), &bodies);
        let last = i64::try_from(bodies.len()).unwrap();
        let mut backfill = EventBackfill::open(&context, 0, last).unwrap();
        let mut seqs = Vec::new();
        while let Some(page) = backfill.next_page().unwrap() {
            seqs.extend(page.iter().map(|event| event.seq));
        }
        assert_eq!(seqs, [last]);
    }

    #[test]
    fn a_resumed_stream_that_waits_for_its_client_does_not_keep_the_history_open() {
        let directory = tempfile::tempdir().unwrap();
        let context = context(directory.path(), &[READABLE; 3]);
        let mut backfill = EventBackfill::open(&context, 0, 3).unwrap();
        assert_eq!(backfill.next_page().unwrap().unwrap().len(), 3);
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let files = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let open: Vec<_> = files.filter(|file| file.starts_with(directory.path())).collect();
        assert!(open.is_empty(), "{open:?}");
    }
}
