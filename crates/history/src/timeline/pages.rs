// SPDX-License-Identifier: Apache-2.0
//! Pages of the tables that a timeline merges. Each page is one statement, and continues after the last row of the
//! page before by the table's primary key.

use std::collections::VecDeque;
use std::fmt::Debug;

use rusqlite::{Connection, params};

use super::{GapCause, HistoryGap};
use crate::HistoryError;
use crate::reader::{ENTRY_COLUMNS, HistoryEntry, Query, transition_from_row};

/// Maximum number of rows in one page.
pub(super) const PAGE_ROWS: usize = 256;

/// The transitions of a query, in order.
#[derive(Debug)]
pub(super) struct TransitionPages {
    page: VecDeque<HistoryEntry>,
    /// The number before the next page.
    after: i64,
    /// The last number of the query.
    last: i64,
    /// The place of the first gap that belongs to the query.
    first_position: i64,
}

impl TransitionPages {
    /// Finds the first and the last sequence number of the query.
    pub(super) fn new(connection: &Connection, query: &Query) -> Result<Self, HistoryError> {
        let numbers = |sql: &str, at: i64| -> rusqlite::Result<Option<i64>> {
            connection.query_row(sql, [at], |row| row.get(0))
        };
        // The clock can be set back: the first row within the time is not always the first number.
        let since = match query.since {
            Some(since) => numbers("SELECT min(seq) FROM transition WHERE at >= ?1", since)?
                .map_or(i64::MAX, |first| first - 1),
            None => 0,
        };
        let last = match query.until {
            Some(until) => numbers("SELECT max(seq) FROM transition WHERE at <= ?1", until)?,
            None => {
                connection.query_row("SELECT max(seq) FROM transition", [], |row| row.get(0))?
            }
        };
        let mut pages = Self {
            page: VecDeque::new(),
            after: query.after.unwrap_or(0).max(since),
            last: last.unwrap_or(0),
            first_position: query.after.unwrap_or(0),
        };
        if query.after.is_none() && query.limit.is_some() {
            pages.skip_to_latest(connection, query)?;
        }
        Ok(pages)
    }

    /// Begins with the first of the latest transitions that the limit allows.
    fn skip_to_latest(
        &mut self,
        connection: &Connection,
        query: &Query,
    ) -> Result<(), HistoryError> {
        let sql = format!(
            "SELECT count(*), min(seq) FROM (SELECT seq FROM transition WHERE {} \
             ORDER BY seq DESC LIMIT ?6)",
            condition(query)
        );
        let values = params![
            query.instance.as_deref().unwrap_or_default(),
            query.earliest(),
            query.latest(),
            self.after,
            self.last,
            query.sql_limit()
        ];
        let (count, first): (i64, Option<i64>) =
            connection.query_row(&sql, values, |row| Ok((row.get(0)?, row.get(1)?)))?;
        if let Some(first) = first.filter(|_| query.sql_limit() == count) {
            self.after = first - 1;
            self.first_position = first;
        }
        Ok(())
    }

    /// Gaps before this sequence number do not belong to the query.
    pub(super) fn first_position(&self) -> i64 {
        self.first_position
    }

    /// The next transition, which stays the next one.
    pub(super) fn peek(
        &mut self,
        connection: &Connection,
        query: &Query,
    ) -> Result<Option<&HistoryEntry>, HistoryError> {
        if self.page.is_empty() && self.after < self.last {
            self.read(connection, query)?;
        }
        Ok(self.page.front())
    }

    pub(super) fn pop(&mut self) -> Option<HistoryEntry> {
        self.page.pop_front()
    }

    fn read(&mut self, connection: &Connection, query: &Query) -> Result<(), HistoryError> {
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM transition WHERE {} ORDER BY seq LIMIT ?6",
            condition(query)
        );
        let mut statement = connection.prepare(&sql)?;
        let values = params![
            query.instance.as_deref().unwrap_or_default(),
            query.earliest(),
            query.latest(),
            self.after,
            self.last,
            i64::try_from(PAGE_ROWS).unwrap_or(i64::MAX)
        ];
        self.page = statement.query_map(values, transition_from_row)?.collect::<Result<_, _>>()?;
        let is_full = self.page.len() == PAGE_ROWS;
        let read_to = self.page.back().filter(|_| is_full).map(|entry| entry.record.seq);
        self.after = read_to.unwrap_or(self.last);
        Ok(())
    }
}

/// The condition of the statements: ?1 is the instance id or its beginning, ?2 and ?3 the earliest and the latest
/// time, ?4 the number before the first one, ?5 the last number.
fn condition(query: &Query) -> String {
    let instance = match &query.instance {
        Some(_) if query.exact => "instance = ?1",
        // The plus sign makes SQLite read in the order of `seq`. By the index of instances it would sort all
        // selected rows again for each page.
        Some(_) => "+instance >= ?1 AND +instance < ?1 || char(1114111)",
        None => "?1 = ''",
    };
    format!("{instance} AND at >= ?2 AND at <= ?3 AND seq > ?4 AND seq <= ?5")
}

/// A gap and its place.
#[derive(Debug)]
pub(super) struct PlacedGap {
    id: i64,
    /// The gap follows the transitions with numbers up to this one.
    position: i64,
    gap: HistoryGap,
}

/// A table that has gaps.
pub(super) trait GapTable: Debug {
    /// Selects id, position, from, until, whether the recorder ended in order, count; ?1 is the id before the first
    /// row, ?2 and ?3 are the earliest and the latest time, ?4 is the first position, ?5 the number of rows.
    const SQL: &'static str;

    /// The reason of a row.
    fn reason(has_ended: bool) -> GapCause;
}

/// The time between two runs of the recorder.
#[derive(Debug)]
pub(super) struct RunPages;

impl GapTable for RunPages {
    const SQL: &'static str = "\
        SELECT next.id, next.after_seq, coalesce(run.ended, run.seen), next.began, \
               run.ended IS NOT NULL, NULL \
        FROM run AS next \
        JOIN run ON run.id = (SELECT max(id) FROM run AS earlier WHERE earlier.id < next.id) \
        WHERE next.id > ?1 AND next.began >= ?2 AND coalesce(run.ended, run.seen) <= ?3 \
              AND next.after_seq >= ?4 \
        ORDER BY next.id LIMIT ?5";

    fn reason(has_ended: bool) -> GapCause {
        if has_ended { GapCause::Stopped } else { GapCause::Killed }
    }
}

/// The periods in which transitions were dropped.
#[derive(Debug)]
pub(super) struct DroppedPages;

impl GapTable for DroppedPages {
    const SQL: &'static str = "\
        SELECT id, until_seq, from_at, until_at, 0, count FROM unrecorded \
        WHERE id > ?1 AND until_at >= ?2 AND from_at <= ?3 AND until_seq >= ?4 \
        ORDER BY id LIMIT ?5";

    fn reason(_has_ended: bool) -> GapCause {
        GapCause::Dropped
    }
}

/// The gaps of one table, in order.
#[derive(Debug)]
pub(super) struct GapPages<T> {
    page: VecDeque<PlacedGap>,
    after_id: i64,
    first_position: i64,
    is_complete: bool,
    table: std::marker::PhantomData<T>,
}

impl<T: GapTable> GapPages<T> {
    pub(super) fn new(first_position: i64) -> Self {
        Self {
            page: VecDeque::new(),
            after_id: 0,
            first_position,
            is_complete: false,
            table: std::marker::PhantomData,
        }
    }

    /// The place of the next gap.
    pub(super) fn peek(
        &mut self,
        connection: &Connection,
        query: &Query,
    ) -> Result<Option<i64>, HistoryError> {
        if self.page.is_empty() && !self.is_complete {
            self.read(connection, query)?;
        }
        Ok(self.page.front().map(|gap| gap.position))
    }

    pub(super) fn pop(&mut self) -> Option<HistoryGap> {
        self.page.pop_front().map(|placed| placed.gap)
    }

    fn read(&mut self, connection: &Connection, query: &Query) -> Result<(), HistoryError> {
        let mut statement = connection.prepare(T::SQL)?;
        let rows = i64::try_from(PAGE_ROWS).unwrap_or(i64::MAX);
        let (since, until) = (query.earliest(), query.latest());
        let values = params![self.after_id, since, until, self.first_position, rows];
        let gaps = statement.query_map(values, |row| {
            Ok(PlacedGap {
                id: row.get(0)?,
                position: row.get(1)?,
                gap: HistoryGap {
                    from: row.get(2)?,
                    until: Some(row.get(3)?),
                    reason: T::reason(row.get(4)?),
                    count: row.get(5)?,
                },
            })
        })?;
        self.page = gaps.collect::<Result<_, _>>()?;
        self.is_complete = self.page.len() < PAGE_ROWS;
        self.after_id = self.page.back().map_or(self.after_id, |gap| gap.id);
        Ok(())
    }
}
