// SPDX-License-Identifier: Apache-2.0
//! Retention: deletes the oldest transitions beyond the limits. Transitions that a target for every transition has not
//! received are kept, up to a limit of their own and up to the limit of the file's size. Those beyond it are deleted and
//! counted.

use std::time::Instant;

use rusqlite::{Connection, params};
use vipwatch_linux::worker::Heartbeat;

use super::{Retention, StoredTargets};
use crate::HistoryError;
use crate::event::IS_PENDING_FINDING;

/// Maximum number of rows that one statement deletes. The watchdog would take a thread that deletes a
/// million rows at once for stalled.
const MAX_DELETED_ROWS: i64 = 10_000;

/// Whether row `t` of `transition` is not received by a target of the list ?3.
const IS_UNDELIVERED: &str = "EXISTS (SELECT 1 FROM delivery AS d, json_each(?3) AS name \
     WHERE d.target = name.value AND d.source = 'node' AND d.instance = t.instance AND d.seq < t.seq)";

/// How long the recorder must have run with a wall clock that is ahead before retention follows it.
const AHEAD_PERIOD: i64 = 24 * 60 * 60 * 1000;

/// How much further ahead the clock may be during [`AHEAD_PERIOD`], in milliseconds.
const AHEAD_TOLERANCE: i64 = 60_000;

/// The time for the limit of age. It counts the time in which the recorder runs, and follows a wall clock that is ahead, for
/// example after a time in which the host was off, once that has lasted for [`AHEAD_PERIOD`]: a clock that is wrong for a shorter
/// time deletes nothing, also if that is at the start.
#[derive(Debug)]
pub(super) struct RetentionClock {
    began: Instant,
    /// The time at `began`, in milliseconds since the Unix epoch.
    base: i64,
    pub(super) ahead: ClockAhead,
    /// How far the clock was ahead when that was found in this run. More than that begins another period.
    found: i64,
}

/// A wall clock that is ahead of retention. The next run continues with it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClockAhead {
    /// The smallest number of milliseconds since then; 0 if the clock is not ahead.
    pub(super) least: i64,
    /// Since when, by the [`RetentionClock`].
    pub(super) since: i64,
}

impl RetentionClock {
    /// `last` is the last [time](Self::time) of an earlier run: its wall clock may have been ahead.
    pub(super) fn new(last: Option<(i64, ClockAhead)>, wall: i64, began: Instant) -> Self {
        let (last, ahead) = last.unwrap_or((wall, ClockAhead::default()));
        let base = last.min(wall);
        Self { began, base, ahead, found: wall - base }
    }

    /// The time now, in milliseconds since the Unix epoch; `wall` is that of the wall clock.
    pub(super) fn time(&mut self, wall: i64, now: Instant) -> i64 {
        let age = i64::try_from((now - self.began).as_millis()).unwrap_or(i64::MAX);
        let time = self.base.saturating_add(age);
        let found = wall.saturating_sub(time);
        let is_further = found > self.found.saturating_add(AHEAD_TOLERANCE);
        if found <= 0 {
            self.base += found;
            self.ahead = ClockAhead::default();
        } else if self.ahead.least == 0 || is_further {
            (self.found, self.ahead) = (found, ClockAhead { least: found, since: time });
        } else {
            self.ahead.least = self.ahead.least.min(found);
            if time - self.ahead.since >= AHEAD_PERIOD {
                self.base += self.ahead.least;
                self.ahead = ClockAhead::default();
            }
        }
        self.base.saturating_add(age)
    }
}

/// One round of retention.
pub(super) struct Cleanup<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) keep: &'a Retention,
    /// `None` if they are not known yet: then no transition and no delivery is deleted.
    pub(super) targets: Option<&'a StoredTargets>,
    /// The time of the [`RetentionClock`].
    pub(super) time: i64,
    pub(super) heartbeat: &'a Heartbeat,
}

impl Cleanup<'_> {
    /// Deletes rows beyond the limits of age, number and file size. `known` is the number of rows, `None` if it must
    /// be counted. Returns the number of rows that are left; `None` if it is still not counted.
    pub(super) fn run(self, known: Option<u64>) -> Result<Option<u64>, HistoryError> {
        let age = i64::try_from(self.keep.age.as_millis()).unwrap_or(i64::MAX);
        let oldest = self.time.saturating_sub(age);
        self.connection.execute(
            "DELETE FROM run WHERE seen < ?1 AND id < (SELECT max(id) FROM run)",
            [oldest],
        )?;
        self.connection.execute("DELETE FROM unrecorded WHERE until_at < ?1", [oldest])?;
        let rows = match self.targets {
            Some(targets) => {
                self.delete_old_targets(targets, oldest)?;
                Some(self.delete_transitions(known, oldest)?)
            }
            None => known,
        };
        self.delete_events()?;
        Ok(rows)
    }

    /// Deletes transitions beyond the limits, and returns the number of those that are left.
    fn delete_transitions(&self, known: Option<u64>, oldest: i64) -> Result<u64, HistoryError> {
        let expired = self.delete_older(oldest)?;
        let mut rows = match known {
            Some(rows) => rows.saturating_sub(expired),
            None => count_rows(self.connection)?,
        };
        // Rows are counted, because sequence numbers have gaps: each kill skips MAX_UNWRITTEN of them.
        rows -= self.delete_oldest(rows.saturating_sub(self.keep.transitions))?;
        rows -= self.shrink(rows)?;
        let expired: i64 = self.connection.query_row(
            "SELECT count(*) FROM transition WHERE at < ?1",
            [oldest],
            |row| row.get(0),
        )?;
        // What is left beyond the limits was kept for a target.
        let kept =
            rows.saturating_sub(self.keep.transitions).max(u64::try_from(expired).unwrap_or(0));
        let excess = kept.saturating_sub(self.keep.undelivered);
        rows -= self.delete_undelivered(excess)?;
        Ok(rows)
    }

    /// If the file is too large, deletes a tenth of its `rows`: the oldest delivered ones, and then, if that is not
    /// enough, the oldest ones of all. Returns the number of deleted rows.
    fn shrink(&self, rows: u64) -> Result<u64, HistoryError> {
        let is_too_large = || Ok::<_, HistoryError>(used_bytes(self.connection)? > self.keep.bytes);
        if !is_too_large()? {
            return Ok(0);
        }
        let count = rows.div_ceil(10);
        let deleted = self.delete_oldest(count)?;
        if deleted == count || !is_too_large()? {
            return Ok(deleted);
        }
        Ok(deleted + self.delete_undelivered(count - deleted)?)
    }

    /// The names of the targets for every transition, as a JSON list.
    fn every(&self) -> String {
        serde_json::json!(self.targets.map(|targets| &targets.every)).to_string()
    }

    /// Deletes the delivered rows before the time `oldest` and returns their number.
    fn delete_older(&self, oldest: i64) -> rusqlite::Result<u64> {
        let delete = format!(
            "DELETE FROM transition WHERE seq IN \
             (SELECT seq FROM transition AS t WHERE at < ?1 AND NOT {IS_UNDELIVERED} LIMIT ?2)"
        );
        let mut deleted = 0;
        loop {
            self.heartbeat.beat();
            let values = params![oldest, MAX_DELETED_ROWS, self.every()];
            let count = self.connection.execute(&delete, values)?;
            deleted += count as u64;
            if i64::try_from(count).is_ok_and(|count| count < MAX_DELETED_ROWS) {
                return Ok(deleted);
            }
        }
    }

    /// Deletes the oldest `count` delivered rows and returns the number of deleted rows.
    fn delete_oldest(&self, count: u64) -> rusqlite::Result<u64> {
        let delete = format!(
            "DELETE FROM transition WHERE seq IN (SELECT seq FROM transition AS t \
             WHERE seq > ?1 AND NOT {IS_UNDELIVERED} ORDER BY seq LIMIT ?2)"
        );
        let mut left = i64::try_from(count).unwrap_or(i64::MAX);
        let mut deleted = 0;
        while left > 0 {
            self.heartbeat.beat();
            let at_once = left.min(MAX_DELETED_ROWS);
            let found =
                self.connection.execute(&delete, params![i64::MIN, at_once, self.every()])?;
            deleted += found as u64;
            if found == 0 {
                break;
            }
            left -= at_once;
        }
        Ok(deleted)
    }

    /// Deletes the oldest `count` rows, and adds their number to the targets that have not received them.
    fn delete_undelivered(&self, count: u64) -> rusqlite::Result<u64> {
        let mut left = i64::try_from(count).unwrap_or(i64::MAX);
        let mut deleted = 0;
        while left > 0 {
            self.heartbeat.beat();
            let at_once = left.min(MAX_DELETED_ROWS);
            let transaction = self.connection.unchecked_transaction()?;
            let last: Option<i64> = transaction.query_row(
                "SELECT max(seq) FROM (SELECT seq FROM transition ORDER BY seq LIMIT ?1)",
                [at_once],
                |row| row.get(0),
            )?;
            let Some(last) = last else { break };
            // SQLite computes all new values from the old row.
            transaction.execute(
                "UPDATE delivery SET \
                 missed = missed + (SELECT count(*) FROM transition AS t \
                     WHERE t.instance = delivery.instance AND t.seq > delivery.seq AND t.seq <= ?1), \
                 seq = max(seq, coalesce((SELECT max(t.seq) FROM transition AS t \
                     WHERE t.instance = delivery.instance AND t.seq <= ?1), 0)) \
                 WHERE source = 'node' AND target IN (SELECT value FROM json_each(?2))",
                params![last, self.every()],
            )?;
            deleted +=
                transaction.execute("DELETE FROM transition WHERE seq <= ?1", [last])? as u64;
            transaction.commit()?;
            left -= at_once;
        }
        Ok(deleted)
    }

    /// Deletes the events that are older than the oldest transition, or too many numbers behind the last event. The newest
    /// events of findings that a target has not received are kept, up to the limit of undelivered transitions.
    fn delete_events(&self) -> rusqlite::Result<()> {
        let limit = i64::try_from(self.keep.transitions).unwrap_or(i64::MAX);
        let undelivered = i64::try_from(self.keep.undelivered).unwrap_or(i64::MAX);
        let old = "seq < max(coalesce((SELECT min(seq) FROM transition), 0), \
             coalesce((SELECT max(seq) FROM event), 0) - ?1)";
        let delete = format!(
            "DELETE FROM event WHERE seq IN (SELECT seq FROM event WHERE {old} AND seq NOT IN \
             (SELECT seq FROM event WHERE {old} AND {IS_PENDING_FINDING} ORDER BY seq DESC LIMIT ?3) \
             LIMIT ?2)"
        );
        loop {
            self.heartbeat.beat();
            let deleted =
                self.connection.execute(&delete, [limit, MAX_DELETED_ROWS, undelivered])?;
            if i64::try_from(deleted).is_ok_and(|deleted| deleted < MAX_DELETED_ROWS) {
                return Ok(());
            }
        }
    }

    /// Deletes the deliveries of targets that are not configured any more, after the time of the history.
    fn delete_old_targets(&self, targets: &StoredTargets, oldest: i64) -> rusqlite::Result<()> {
        let all = serde_json::json!(targets.all).to_string();
        self.connection.execute(
            "DELETE FROM delivery WHERE at < ?1 AND target NOT IN (SELECT value FROM json_each(?2))",
            params![oldest, all],
        )?;
        Ok(())
    }
}

/// Counts the rows of `transition`. SQLite reads a whole index for that, so the recorder counts once and then
/// keeps the number.
fn count_rows(connection: &Connection) -> rusqlite::Result<u64> {
    let rows: i64 =
        connection.query_row("SELECT count(*) FROM transition", [], |row| row.get(0))?;
    Ok(u64::try_from(rows).unwrap_or(0))
}

/// The size of the used pages in bytes. The file itself never shrinks: SQLite reuses free pages.
fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let number = |pragma: &str| -> rusqlite::Result<u64> {
        let found: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        Ok(u64::try_from(found).unwrap_or(0))
    };
    let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
    Ok(pages * number("page_size")?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: i64 = 24 * 60 * 60 * 1000;
    const START: i64 = 1000 * DAY;

    fn millis(time: i64) -> Duration {
        Duration::from_millis(u64::try_from(time).unwrap())
    }

    #[test]
    fn a_clock_that_is_a_month_ahead_for_two_minutes_deletes_no_history() {
        let began = Instant::now();
        let mut clock = RetentionClock::new(None, START, began);
        assert_eq!(clock.time(START + 60_000, began + millis(60_000)), START + 60_000);
        for time in [120_000, 180_000] {
            assert_eq!(clock.time(START + 30 * DAY + time, began + millis(time)), START + time);
        }
        assert_eq!(clock.time(START + 240_000, began + millis(240_000)), START + 240_000);
        // The next run starts while the clock is ahead.
        let mut clock = RetentionClock::new(Some((START, clock.ahead)), START + 30 * DAY, began);
        assert_eq!(clock.time(START + 30 * DAY, began), START);
    }

    #[test]
    fn retention_follows_a_clock_that_stays_ahead_and_one_that_is_set_back() {
        let began = Instant::now();
        let mut clock = RetentionClock::new(None, START, began);
        let mut time = |ahead: i64, age: i64| {
            clock.time(START + ahead + age, began + millis(age)) - START - age
        };
        assert_eq!(time(9 * DAY, 1), 0);
        // Another step begins another day.
        assert_eq!(time(20 * DAY, DAY), 0);
        assert_eq!(time(20 * DAY + 2, 2 * DAY - 1), 0);
        assert_eq!(time(20 * DAY + 2, 2 * DAY), 20 * DAY);
        assert_eq!(time(-DAY, 2 * DAY + 1), -DAY);
    }

    #[test]
    fn retention_stayed_further_behind_with_each_night_in_which_the_host_was_off() {
        let began = Instant::now();
        let mut last = None;
        for day in 0..30 {
            let start = START + day * DAY;
            let mut clock = RetentionClock::new(last, start, began);
            for minute in 0..=16 * 60 {
                let age = minute * 60_000;
                let (wall, now) = (start + age, began + millis(age));
                let time = clock.time(wall, now);
                assert!((0..2 * DAY).contains(&(wall - time)), "day {day}: {}", wall - time);
                last = Some((time, clock.ahead));
            }
        }
    }

    #[test]
    fn runs_with_a_clock_that_is_ahead_count_together_until_one_with_the_right_clock() {
        let began = Instant::now();
        let (mut start, mut last) = (START, None);
        let mut run = |ahead: i64| {
            let mut clock = RetentionClock::new(last, start + ahead, began);
            clock.time(start + ahead, began);
            start += DAY / 2;
            let time = clock.time(start + ahead, began + millis(DAY / 2));
            last = Some((time, clock.ahead));
            time - start
        };
        assert_eq!([0, 30 * DAY, 0, 30 * DAY].map(&mut run), [0; 4]);
        assert_eq!(run(20 * DAY), 20 * DAY);
        assert_eq!(run(0), 0);
    }
}
