// SPDX-License-Identifier: Apache-2.0
//! The history as documents, read in pages.

use std::net::IpAddr;

use vipwatch_api::{
    ErrorCode, GapItem, GapReason, HistoryFilter, ProblemDocument, TimelineItem, Timestamp,
    TransitionItem, timestamp_from_millis,
};
use vipwatch_core::{InstanceId, RoleKind};
use vipwatch_history::{
    GapCause, HistoryEntry, HistoryError, HistoryGap, HistoryItem, Query, Reader, Timeline,
};
use vipwatch_linux::clock::unix_millis_now;

use super::instances::unknown_instance;
use super::{ApiContext, history_problem, read_history};
use crate::cause::recorded_cause_item;
use crate::event::{REMOVED, latency_map};
use crate::selection::Selection;

/// Maximum number of entries of one page.
const PAGE_ENTRIES: usize = 200;

/// The selected entries of the history, oldest first. Every call reads the file.
#[derive(Debug)]
pub struct HistoryPages {
    timeline: Timeline,
    context: ApiContext,
}

impl HistoryPages {
    /// Opens the history.
    pub fn open(context: &ApiContext, filter: &HistoryFilter) -> Result<Self, ProblemDocument> {
        if let Some(after) = filter.after.as_ref().filter(|id| *id.epoch != *context.store.epoch())
        {
            let detail =
                format!("the event id {after} does not belong to the epoch of this history");
            return Err(ProblemDocument::new(ErrorCode::InvalidRequest, detail));
        }
        let open = |reader: Reader| {
            let (instance, exact) = match &filter.id {
                Some(text) => match meant_instance(context, &reader, text) {
                    Some((id, exact)) => (Some(id), exact),
                    None => return Ok(Err(unknown_instance(text))),
                },
                None => (None, false),
            };
            let query = Query {
                since: filter.since.map(Timestamp::as_millisecond),
                until: filter.until.map(Timestamp::as_millisecond),
                after: filter.after.as_ref().map(|id| id.seq),
                instance,
                exact,
                limit: filter.limit,
            };
            Timeline::new(reader, query).map(Ok)
        };
        let timeline = read_history(context, open).map_err(|error| history_problem(&error))??;
        Ok(Self { timeline, context: context.clone() })
    }

    /// The next entries; empty at the end.
    pub fn next_page(&mut self) -> Result<Vec<TimelineItem>, HistoryError> {
        let page: Result<Vec<HistoryItem>, _> = self.timeline.by_ref().take(PAGE_ENTRIES).collect();
        if page.as_ref().is_err_and(HistoryError::is_damage) {
            self.context.store.report_history_damage();
        }
        Ok(page?.into_iter().map(timeline_item).collect())
    }
}

/// The id that a text means, and whether it is a whole id: an id that exists now or in the history, the id of the
/// instance that has this address now, or the beginning of ids. `None` if there is no such instance.
fn meant_instance(context: &ApiContext, reader: &Reader, text: &str) -> Option<(String, bool)> {
    let view = context.store.view();
    let is_followed = text.parse().is_ok_and(|id: InstanceId| view.entries.contains_key(&id));
    if is_followed || reader.has_instance(text).unwrap_or(false) {
        return Some((text.to_owned(), true));
    }
    if text.parse::<IpAddr>().is_ok() {
        let selection = Selection::of_instances(&[text.to_owned()], &[], &view);
        let id = view.entries.keys().find(|id| selection.covers(id.as_str()));
        return id.map(|id| (id.to_string(), true));
    }
    let is_beginning = view.entries.keys().any(|id| id.as_str().starts_with(text))
        || reader.has_instance_beginning(text).unwrap_or(true);
    is_beginning.then(|| (text.to_owned(), false))
}

fn timeline_item(item: HistoryItem) -> TimelineItem {
    match item {
        HistoryItem::Transition(entry) => TimelineItem::Transition(transition_item(*entry)),
        HistoryItem::Gap(gap) => TimelineItem::Gap(gap_item(gap)),
    }
}

fn gap_item(gap: HistoryGap) -> GapItem {
    GapItem {
        from: timestamp_from_millis(gap.from),
        until: timestamp_from_millis(gap.until.unwrap_or_else(unix_millis_now)),
        reason: match gap.reason {
            GapCause::Stopped => GapReason::Stopped,
            GapCause::Killed => GapReason::Killed,
            GapCause::Dropped => GapReason::NotWritten,
        },
        count: gap.count.and_then(|count| u64::try_from(count).ok()),
    }
}

pub(super) fn transition_item(entry: HistoryEntry) -> TransitionItem {
    let HistoryEntry { record, latencies } = entry;
    TransitionItem {
        seq: record.seq,
        at: timestamp_from_millis(record.at),
        id: record.instance,
        netns: record.netns,
        from: record.from,
        to: record.to.map_or(REMOVED, RoleKind::word).to_owned(),
        trigger: record.trigger,
        cause: recorded_cause_item(record.cause.as_ref()),
        reason: record.reason,
        latencies: latency_map(&latencies),
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_history::{Retention, Writer};

    use super::*;
    use crate::config::Config;

    #[test]
    fn the_history_of_an_id_or_address_that_no_instance_has_is_an_unknown_instance() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
        writer.store_last_role("VI_1".to_owned(), RoleKind::Backup, 0, 1);
        drop(writer);
        let config = Config { state_dir: directory.path().to_owned(), ..Config::default() };
        let context = crate::direct::history_context(&config);
        let of = |text: &str| {
            let id = Some(text.to_owned());
            HistoryPages::open(&context, &HistoryFilter { id, ..HistoryFilter::default() })
        };
        assert_eq!(of("192.0.2.99").unwrap_err().code, ErrorCode::UnknownInstance);
        assert_eq!(of("VI_2").unwrap_err().code, ErrorCode::UnknownInstance);
        assert!(of("VI_").is_ok(), "the beginning of an id selects the instances in the history");
    }
}
