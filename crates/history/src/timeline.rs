// SPDX-License-Identifier: Apache-2.0
//! The history in order, as a stream: transitions, and the gaps in which nothing was recorded, each gap at the
//! place where it happened.
//!
//! The place of a gap is a sequence number and not a time, because the clock of a machine can be set back.
//! The stream reads pages. Between two pages no statement is open, so a slow consumer keeps no snapshot of the
//! database, which would let its write-ahead log grow.
//!
//! ```text
//!   transition  seq 7 ─────────────────────────────▶ HistoryItem::Transition
//!   unrecorded  until_seq 9   (8 and 9 dropped) ───▶ HistoryItem::Gap, reason Dropped
//!   run         after_seq 9   (a new run began) ───▶ HistoryItem::Gap, reason Stopped or Killed
//!   transition  seq 10 ────────────────────────────▶ HistoryItem::Transition
//! ```

mod pages;

use vipwatch_linux::clock::unix_millis_now as now;

use self::pages::{DroppedPages, GapPages, RunPages, TransitionPages};
use crate::HistoryError;
use crate::reader::{HistoryEntry, Query, Reader, RecorderRun};
use crate::writer::HEARTBEAT_INTERVAL;

/// One item of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryItem {
    /// A recorded transition.
    Transition(Box<HistoryEntry>),
    /// A period in which transitions may be missing.
    Gap(HistoryGap),
}

/// A period in which transitions may be missing. Times are in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryGap {
    /// The last time before the gap at which the recorder is known to have written, or the time of the first
    /// dropped transition.
    pub from: i64,
    /// The start of the next run, or the time of the last dropped transition; `None` if the gap has not ended.
    pub until: Option<i64>,
    /// Why nothing was recorded.
    pub reason: GapCause,
    /// The number of missing transitions; `None` if it is not known, because no node observed them.
    pub count: Option<i64>,
}

/// Why transitions were not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum GapCause {
    /// The recorder was stopped in order.
    Stopped,
    /// The recorder was killed, or could not write its end.
    Killed,
    /// The queue was full or the file could not be written.
    Dropped,
}

/// Streams the items that a query selects, oldest first. A gap belongs to every instance. The limit of the query
/// counts transitions, not gaps.
///
/// Of a query without `after` and with a limit, the stream begins with the first of the latest transitions. Of a
/// query with `after` and a limit, it ends with the last transition within the limit; a query with `after` set to
/// that number continues without omission or repetition. A limit of 0 selects nothing.
#[derive(Debug)]
pub struct Timeline {
    reader: Reader,
    query: Query,
    transitions: TransitionPages,
    runs: GapPages<RunPages>,
    dropped: GapPages<DroppedPages>,
    /// The number of transitions that the limit still allows; `None` for no limit.
    left: Option<u64>,
    state: StreamState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamState {
    Recorded,
    /// All recorded items were returned: the gap after them follows, if there is one.
    Trailing,
    Ended,
}

impl Timeline {
    /// Prepares the stream of `query`. It ends with the last transition that the file has now.
    pub fn new(reader: Reader, query: Query) -> Result<Self, HistoryError> {
        let transitions = TransitionPages::new(&reader.connection, &query)?;
        let first = transitions.first_position();
        Ok(Self {
            runs: GapPages::new(first),
            dropped: GapPages::new(first),
            left: query.limit,
            state: StreamState::Recorded,
            reader,
            query,
            transitions,
        })
    }

    fn advance(&mut self) -> Result<Option<HistoryItem>, HistoryError> {
        if self.state == StreamState::Recorded {
            let ends_at_limit = self.query.after.is_some() || self.query.limit == Some(0);
            if self.left == Some(0) && ends_at_limit {
                self.state = StreamState::Ended;
                return Ok(None);
            }
            if let Some(item) = self.recorded()? {
                return Ok(Some(item));
            }
            self.state = StreamState::Trailing;
        }
        if self.state == StreamState::Trailing {
            self.state = StreamState::Ended;
            return Ok(self.unfinished_gap()?.map(HistoryItem::Gap));
        }
        Ok(None)
    }

    /// The next transition, or the next gap if it is before that transition.
    fn recorded(&mut self) -> Result<Option<HistoryItem>, HistoryError> {
        let connection = &self.reader.connection;
        let next = self.transitions.peek(connection, &self.query)?.map(|entry| entry.record.seq);
        // A gap follows the transitions with numbers up to its place.
        let is_due = |place: Option<i64>| place.filter(|at| next.is_none_or(|seq| *at < seq));
        let run = is_due(self.runs.peek(connection, &self.query)?);
        let dropped = is_due(self.dropped.peek(connection, &self.query)?);
        let gap = match (run, dropped) {
            // Dropped transitions belong to the run before.
            (Some(run), Some(dropped)) if dropped <= run => self.dropped.pop(),
            (Some(_), _) => self.runs.pop(),
            (None, Some(_)) => self.dropped.pop(),
            (None, None) => None,
        };
        if let Some(gap) = gap {
            return Ok(Some(HistoryItem::Gap(gap)));
        }
        self.left = self.left.map(|left| left.saturating_sub(1));
        Ok(self.transitions.pop().map(|entry| HistoryItem::Transition(Box::new(entry))))
    }

    /// The gap after the last recorded item, if no recorder writes the file now.
    fn unfinished_gap(&self) -> Result<Option<HistoryGap>, HistoryError> {
        let Some(run) = self.reader.last_run()? else { return Ok(None) };
        let gap = unfinished_gap(&run, now());
        Ok(gap.filter(|gap| gap.from <= self.query.latest()))
    }
}

impl Iterator for Timeline {
    type Item = Result<HistoryItem, HistoryError>;

    /// The next item. After an error the stream has ended.
    fn next(&mut self) -> Option<Self::Item> {
        let item = self.advance();
        if item.is_err() {
            self.state = StreamState::Ended;
        }
        item.transpose()
    }
}

/// The gap after the last run, which has no successor: it has ended, or has not written for two heartbeats.
fn unfinished_gap(run: &RecorderRun, now: i64) -> Option<HistoryGap> {
    let gap = |from, reason| HistoryGap { from, until: None, reason, count: None };
    let stalled = 2 * i64::try_from(HEARTBEAT_INTERVAL.as_millis()).unwrap_or(i64::MAX / 2);
    match run.ended {
        Some(ended) => Some(gap(ended, GapCause::Stopped)),
        None if now.saturating_sub(run.seen) > stalled => Some(gap(run.seen, GapCause::Killed)),
        None => None,
    }
}

#[cfg(test)]
mod tests;
