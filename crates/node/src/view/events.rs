//! Events that a client has missed, read from the history.

use std::sync::Arc;

use vipwatch_api::{Event, ResetReason};
use vipwatch_history::{HistoryError, Reader, SequenceEntry};

use super::ApiContext;
use crate::event::NodeIdentity;

/// Maximum number of events of one page.
const PAGE_EVENTS: u64 = 200;

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

/// The events after one that a client has, up to one after which it receives live events. Every call reads the file.
#[derive(Debug)]
pub struct EventBackfill {
    reader: Reader,
    context: ApiContext,
    identity: NodeIdentity,
    /// The last event that was read.
    position: i64,
    until: i64,
}

impl EventBackfill {
    /// Opens the history for the events after `after`, up to `until`.
    pub fn open(context: &ApiContext, after: i64, until: i64) -> Result<Self, ResetReason> {
        let reader =
            Reader::open(&context.state_dir).map_err(|error| unavailable(context, &error))?;
        let identity =
            NodeIdentity { node: Arc::clone(&context.node), epoch: context.store.epoch() };
        let backfill = Self { reader, context: context.clone(), identity, position: after, until };
        backfill.check_floor()?;
        Ok(backfill)
    }

    /// Whether the file has all events up to the last one that is wanted. The history is written some time after an
    /// event is published.
    pub fn is_written(&self) -> Result<bool, ResetReason> {
        let last = self.reader.events_after(self.until - 1, 1);
        let is_written = !last.map_err(|error| unavailable(&self.context, &error))?.is_empty();
        self.check_floor()?;
        Ok(is_written)
    }

    /// The next events; empty at the end.
    pub fn next_page(&mut self) -> Result<Vec<RecordedEvent>, ResetReason> {
        let page = self.reader.events_after(self.position, PAGE_EVENTS);
        let mut page = page.map_err(|error| unavailable(&self.context, &error))?;
        // Retention may have deleted events that were not read yet.
        self.check_floor()?;
        page.retain(|entry| entry.seq() <= self.until);
        if let Some(last) = page.last() {
            self.position = last.seq();
        }
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
        Ok(page.iter().filter_map(event).collect())
    }

    /// Fails if events after the position may be missing.
    fn check_floor(&self) -> Result<(), ResetReason> {
        let epoch = self.reader.epoch().map_err(|error| unavailable(&self.context, &error))?;
        match epoch {
            Some(epoch) if *epoch.name != *self.identity.epoch => Err(ResetReason::OtherEpoch),
            Some(epoch) if epoch.floor > self.position => Err(ResetReason::Expired),
            Some(_) => Ok(()),
            None => Err(ResetReason::HistoryUnavailable),
        }
    }
}

fn recorded_event(seq: i64, event: &Event) -> Option<RecordedEvent> {
    let data = serde_json::to_string(event).ok()?;
    Some(RecordedEvent {
        seq,
        name: event.name(),
        instance: event.instance().map(str::to_owned),
        data,
    })
}

fn unavailable(context: &ApiContext, error: &HistoryError) -> ResetReason {
    if error.is_damage() {
        context.store.report_history_damage();
    }
    ResetReason::HistoryUnavailable
}
